"""Forecasts of events, such as more than 1 mm of rain: Brier score, reliability, ROC area."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

Chance = Float[np.ndarray, " n"]
Event = Bool[np.ndarray, " n"]
BINS = 10


def brier(chance: Chance, event: Event) -> Float[np.ndarray, " n"]:
    """Squared error of the probability, at every point; 0 is perfect."""
    return (chance - event) ** 2


def roc_area(chance: Chance, event: Event) -> float:
    """The probability that an event had a higher forecast than a non-event; NaN without either."""
    events = int(event.sum())
    others = len(event) - events
    if not events or not others:
        return float("nan")
    from scipy.stats import rankdata  # slow to import

    ranks = rankdata(chance)[event].sum()
    return float((ranks - events * (events + 1) / 2) / (events * others))


@dataclass(frozen=True, eq=False)
class Reliability:
    """How often an event happened, by its predicted probability in bins of equal width."""

    chance: Float[np.ndarray, " bins"]
    frequency: Float[np.ndarray, " bins"]
    count: Float[np.ndarray, " bins"]

    @property
    def error(self) -> float:
        """Mean distance from the diagonal, weighted by the number of forecasts."""
        return float(np.average(np.abs(self.chance - self.frequency), weights=self.count))


def reliability(chance: Chance, event: Event, bins: int = BINS) -> Reliability:
    """Mean probability and frequency of the event in every bin that has forecasts."""
    index = np.minimum((chance * bins).astype(int), bins - 1)
    count = np.bincount(index, minlength=bins).astype(float)
    used = count > 0
    sums = [np.bincount(index, v, minlength=bins)[used] for v in (chance, event.astype(float))]
    return Reliability(sums[0] / count[used], sums[1] / count[used], count[used])
