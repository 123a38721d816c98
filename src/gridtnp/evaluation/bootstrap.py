"""How sure a mean score is: resampling of whole blocks of time.

Errors of neighbouring times go together, so that single points would make intervals far too narrow.
A block holds consecutive times, long enough that blocks are nearly independent of each other.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy.special import ndtri, stdtrit

from gridtnp.data.times import duration

FEWEST, MOST = 8, 200
"""Blocks that a choice of their length leaves."""
DRAWS = 1000


def time_blocks(
    time: Shaped[np.ndarray, " n"], error: Float[np.ndarray, " n"], length: str | None = None
) -> Int[np.ndarray, " n"]:
    """The block of every point; `length` is one such as `"7D"`.

    Without it, a block is one and a half times as long as the mean error of a time is correlated
    with that of later ones, but no longer than an eighth of all times; there are at most 200.
    """
    moments, which = np.unique(time, return_inverse=True)
    if length is not None:
        step = duration(length)
        if step <= np.timedelta64(0, "ms"):
            raise ValueError(f"A block of time must have a positive length, got {length!r}.")
        return np.unique((time - moments[0]) // step, return_inverse=True)[1]
    series = np.bincount(which, error) / np.bincount(which)
    size = min(int(np.ceil(1.5 * memory(series))), max(1, len(moments) // FEWEST))
    size = max(size, -(-len(moments) // MOST))
    return which // size


def memory(series: Float[np.ndarray, " t"]) -> float:
    """So many steps are worth one independent step: 1 + 2 × the sum of the autocorrelations, up to
    the first that may be chance.
    """
    deviation = series - series.mean()
    variance = float((deviation**2).mean())
    total = 1.0
    if variance <= 0:
        return total
    for lag in range(1, len(series) // 2):
        found = float((deviation[lag:] * deviation[:-lag]).mean()) / variance
        if found < 2 / np.sqrt(len(series)):
            break
        total += 2 * found
    return total


def resampled(
    terms: Float[np.ndarray, "n k"], block: Int[np.ndarray, " n"], seed: int = 0
) -> Float[np.ndarray, "draws k"]:
    """Means of the columns over blocks that are drawn with replacement, draw by draw.

    The same seed draws the same blocks, so that two forecasts can be compared draw by draw.
    """
    count = np.bincount(block)
    sums = np.stack([np.bincount(block, column) for column in terms.T], -1)
    number = len(count)
    if number < 2:
        return np.full((DRAWS, terms.shape[1]), np.nan)
    drawn = np.random.default_rng(seed).integers(number, size=(DRAWS, number))
    place = drawn + number * np.arange(DRAWS)[:, None]
    weight = np.bincount(place.ravel(), minlength=DRAWS * number).reshape(DRAWS, number)
    weight = weight.astype(np.float64)
    return (weight @ sums) / (weight @ count)[:, None]


def interval(
    value: float, draws: Float[np.ndarray, " draws"], blocks: int, level: float = 0.95
) -> tuple[float, float]:
    """The ends of the central part of the draws around a value, widened for few blocks as Student's
    distribution is wider than the normal one.
    """
    few = max(blocks - 1, 1)
    wide = np.sqrt(blocks / few) * stdtrit(few, 0.5 + level / 2) / ndtri(0.5 + level / 2)
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return float(value + wide * (low - value)), float(value + wide * (high - value))
