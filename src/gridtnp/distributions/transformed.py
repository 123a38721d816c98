"""A normal variable on an increasing curve: what kriging of normal scores predicts.

`NormalScores` maps values to standard normal numbers and back by their empirical distribution, as
kriging of normal scores needs it. A value of many observations, such as no rain, is an interval of
scores: which of them it is, is unknown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ndtr, ndtri
from torch import Tensor

from gridtnp.distributions.marginals import Marginal
from gridtnp.distributions.special import TINY

KNOTS = 200
"""Most knots of a curve between its tails."""
MASS = 0.01
"""Share of the lowest or the highest value from which it is a point mass."""
DISCRETE = 100
"""Whole numbers with at most this many different values all have point masses."""
TAIL = 20
"""Values above the last quantile that the tail is fitted to."""
STEEP = 1e-6
"""Width of a jump of the curve, in scores."""
FAR = 8.0
"""Scores at which a curve ends."""


@dataclass(frozen=True, eq=False)
class NormalScores:
    """An increasing curve from standard normal scores to values, linear between its knots.

    Where it is flat, `values` has a point mass.
    """

    scores: Float[np.ndarray, " k"]
    values: Float[np.ndarray, " k"]

    @classmethod
    def fit(cls, observed: Float[np.ndarray, " n"]) -> NormalScores:
        """The empirical distribution, with exponential tails where it has no point mass."""
        y = observed[np.isfinite(observed)].astype(np.float64)
        value, count = np.unique(y, return_counts=True)
        if len(value) < 2:
            raise ValueError("Normal scores need a variable that varies; leave it out.")
        last = np.cumsum(count) / len(y)
        first = last - count / len(y)
        if len(value) <= DISCRETE and (value == np.floor(value)).all():
            return cls(*_steps(value, ndtri(last[:-1])))
        low, high = count[0] >= MASS * len(y), count[-1] >= MASS * len(y)
        body = slice(int(low), len(value) - int(high))
        middle = ndtri((first + last)[body] / 2)
        some = _thinned(middle, KNOTS)
        knots = [(middle[some], value[body][some])]
        if low:
            knots.insert(0, _flat(-FAR, float(ndtri(last[0])), value[0]))
        else:
            knots.insert(0, _lower_tail(y, knots[0][0][0], knots[0][1][0]))
        if high:
            knots.append(_flat(float(ndtri(first[-1])), FAR, value[-1]))
        else:
            score, where = _trimmed(knots[-1], y)
            knots[-1] = score, where
            knots.append(_upper_tail(y, score[-1], where[-1]))
        scores, values = (np.concatenate(pieces) for pieces in zip(*knots, strict=True))
        return cls(scores, values)

    def interval(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and the highest score of every value; they are equal but for point masses."""
        y = np.asarray(value, np.float64)
        low = self._score(y, "left")
        high = np.where(np.isin(y, self.masses), self._score(y, "right"), low)
        end = self.scores[[0, -1]]
        return np.where(low <= end[0], -np.inf, low), np.where(high >= end[1], np.inf, high)

    def _score(self, y: np.ndarray, side: str) -> np.ndarray:
        """The score at which the curve reaches (left) or leaves (right) a value."""
        after = np.searchsorted(self.values, y, "left" if side == "left" else "right")
        k = np.clip(after, 1, len(self.values) - 1)
        rise = self.values[k] - self.values[k - 1]
        share = np.where(rise > 0, (y - self.values[k - 1]) / np.where(rise > 0, rise, 1.0), 0.0)
        if side == "right":  # at the end of a flat part
            share = np.where(after == len(self.values), 1.0, share)
        share = np.clip(share, 0.0, 1.0)
        found = self.scores[k - 1] + share * (self.scores[k] - self.scores[k - 1])
        return np.where(np.isfinite(y), found, np.nan)

    def value(self, score: np.ndarray) -> np.ndarray:
        return np.interp(score, self.scores, self.values)

    def above(self, threshold: float) -> NormalScores:
        """The curve of what is above a threshold: values below it count as the threshold."""
        low, high = self.interval(np.array(threshold))
        ends = [z for z in (float(low), float(high)) if np.isfinite(z)]
        scores = np.unique(np.concatenate([self.scores, ends]))
        return NormalScores(scores, np.maximum(self.value(scores), threshold))

    @property
    def masses(self) -> Float[np.ndarray, " m"]:
        """The values with a point mass."""
        return np.unique(self.values[1:][np.diff(self.values) == 0])


def _steps(value: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A curve of steps: value number k is up to score number k."""
    left = np.concatenate([[-FAR], ends + STEEP / 2])
    right = np.concatenate([ends - STEEP / 2, [FAR]])
    return np.stack([left, right], -1).ravel(), np.repeat(value, 2)


def _flat(low: float, high: float, value: float) -> tuple[np.ndarray, np.ndarray]:
    return np.array([low, high]), np.array([value, value])


def _thinned(scores: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most `most` scores, about evenly spaced in probability and in scores."""
    if len(scores) <= most:
        return np.arange(len(scores))
    place = ndtr(scores) + np.linspace(0, 1, len(scores)) + (scores - scores[0]) / np.ptp(scores)
    wanted = np.linspace(place[0], place[-1], most)
    return np.unique(np.searchsorted(place, wanted).clip(0, len(scores) - 1))


def _trimmed(knots: tuple[np.ndarray, np.ndarray], y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Without the highest values, which the tail is fitted to."""
    limit = np.sort(y)[-min(TAIL, max(len(y) // 10, 1)) - 1]
    kept = knots[1] <= limit
    kept[0] = True
    return knots[0][kept], knots[1][kept]


def _upper_tail(y: np.ndarray, score: float, start: float) -> tuple[np.ndarray, np.ndarray]:
    """Exponential, with the mean excess of the values above its start."""
    excess = float((y[y > start] - start).mean()) if (y > start).any() else 1e-3 * float(np.ptp(y))
    scores = np.arange(score + 0.1, max(FAR, score + 0.2), 0.1)
    return scores, start + excess * (np.log(ndtr(-score)) - np.log(ndtr(-scores)))


def _lower_tail(y: np.ndarray, score: float, start: float) -> tuple[np.ndarray, np.ndarray]:
    """Exponential, or uniform down to zero for values that are never negative."""
    scores = np.arange(min(-FAR, score - 0.2), score - 0.05, 0.1)
    if y.min() >= 0:
        return scores, start * ndtr(scores) / ndtr(score)
    near = np.sort(y)[: min(TAIL, max(len(y) // 10, 2))]
    excess = float(near[-1] - near[:-1].mean()) if len(near) > 1 else 1e-3 * float(np.ptp(y))
    return scores, start - max(excess, 1e-9) * (np.log(ndtr(score)) - np.log(ndtr(scores)))


class TransformedNormal(Marginal):
    """A normal score `loc` ± `scale` on a curve of values; moments and CRPS are exact."""

    def __init__(self, loc: Tensor, scale: Tensor, curve: NormalScores) -> None:
        self.loc, self.scale, self.curve = loc, scale, curve
        self.limits = float(curve.values[0]), math.inf
        super().__init__(loc=loc, scale=scale)

    def _with(self, parameters: dict[str, Tensor]) -> Marginal:
        return TransformedNormal(**parameters, curve=self.curve)

    def _standardised(self, scores: np.ndarray | Tensor) -> Tensor:
        return (torch.as_tensor(scores) - self.loc.double()) / self.scale.double()

    def _interval(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """The standardised scores of values, between which they have all their probability."""
        wide = value.double().expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        low, high = self.curve.interval(wide.cpu().numpy())
        return self._standardised(low), self._standardised(high)

    def is_mass(self, value: Tensor) -> Tensor:
        return torch.isin(value.double(), torch.from_numpy(self.curve.masses))

    def log_prob(self, value: Tensor) -> Tensor:
        low, high = self._interval(value)
        upper = (low > 0) & (high > 0)  # differences are exact in the lower tail only
        a, b = torch.where(upper, -high, low), torch.where(upper, -low, high)
        mass = (torch.special.ndtr(b) - torch.special.ndtr(a)).clamp_min(TINY).log()
        k = np.searchsorted(self.curve.values, value.double().cpu().numpy(), "right")
        k = np.clip(k, 1, len(self.curve.values) - 1)
        rise = np.diff(self.curve.values)[k - 1] / np.diff(self.curve.scores)[k - 1]
        slope = torch.as_tensor(np.maximum(rise, 1e-300))
        density = -0.5 * low**2 - 0.5 * math.log(2 * math.pi) - self.scale.double().log()
        found = torch.where(self.is_mass(value), mass, density - slope.log())
        beyond = (value < self.curve.values[0]) | (value > self.curve.values[-1])
        return torch.where(beyond, -math.inf, found)

    def cdf(self, value: Tensor) -> Tensor:
        level = torch.special.ndtr(self._interval(value)[1])
        return torch.where(value < self.curve.values[0], 0.0, level)

    def icdf(self, value: Tensor) -> Tensor:
        score = self.loc.double() + self.scale.double() * torch.special.ndtri(value.double())
        return torch.as_tensor(self.curve.value(score.cpu().numpy())).to(self.loc)

    def _pieces(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Standardised ends of all linear pieces, the values there, per point; and their slope."""
        t = self._standardised(torch.from_numpy(self.curve.scores)[:, None].expand(-1, self._n))
        y = torch.from_numpy(self.curve.values)[:, None]
        slope = y.diff(dim=0) / t.diff(dim=0)
        return t[:-1], t[1:], y[:-1], slope

    @property
    def _n(self) -> int:
        return self.loc.numel()

    def _flat(self) -> TransformedNormal:
        return TransformedNormal(self.loc.reshape(-1), self.scale.reshape(-1), self.curve)

    @property
    def mean(self) -> Tensor:
        return self._moments()[0].reshape(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        first, second = self._moments()
        return (second - first**2).clamp_min(1e-12).reshape(self.batch_shape)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and mean square: integrals of the probability of more than a value."""
        a, b, y, slope = self._flat()._pieces()
        start = self.curve.values[0]
        once = _above(b) - _above(a)
        first = start + (slope * once).sum(0)
        # 2 y dy with y linear in the standardised score
        second = (
            2 * slope * ((y - slope * a) * once + slope * (_moment_above(b) - _moment_above(a)))
        )
        return first, start**2 + second.sum(0)

    def crps(self, value: Tensor) -> Tensor:
        """∫ (F − 1[y ≥ observed])² dy, piece by piece."""
        flat, observed = self._flat(), value.double().reshape(-1)
        low, _ = flat._interval(observed)
        a, b, _, slope = flat._pieces()
        middle = torch.maximum(torch.minimum(low, b), a)
        below = _squared_below(middle) - _squared_below(a)
        over = _squared_below(-middle) - _squared_below(-b)
        ends = self.curve.values[[0, -1]].tolist()
        outside = (ends[0] - observed).clamp_min(0) + (observed - ends[1]).clamp_min(0)
        return ((slope * (below + over)).sum(0) + outside).reshape(value.shape)

    def crps_above(self, value: Tensor, threshold: float) -> Tensor:
        above = TransformedNormal(self.loc, self.scale, self.curve.above(threshold))
        return above.crps(value.clamp_min(threshold))


def _density(t: Tensor) -> Tensor:
    return torch.exp(-0.5 * t**2) / math.sqrt(2 * math.pi)


def _above(t: Tensor) -> Tensor:
    """An integral of 1 − Φ."""
    return t * torch.special.ndtr(-t) - _density(t)


def _moment_above(t: Tensor) -> Tensor:
    """An integral of t (1 − Φ)."""
    return 0.5 * (t**2 * torch.special.ndtr(-t) + torch.special.ndtr(t) - t * _density(t))


def _squared_below(t: Tensor) -> Tensor:
    """An integral of Φ²."""
    below = torch.special.ndtr(t)
    last = torch.special.ndtr(math.sqrt(2) * t) / math.sqrt(math.pi)
    return t * below**2 + 2 * below * _density(t) - last
