"""Confidence intervals of mean scores by the block bootstrap: blocks of time are resampled.

Errors at neighbouring times are correlated, so that resampling single points would give intervals
that are far too narrow. A block holds consecutive times, long enough to be nearly independent of
the others.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy.special import ndtri, stdtrit

from gridtnp.data.times import duration

MIN_BLOCKS, MAX_BLOCKS = 8, 200
"""Limits of the number of blocks if no length is given."""
DRAWS = 1000
"""Bootstrap replicates."""


def time_blocks(
    time: Shaped[np.ndarray, " n"], error: Float[np.ndarray, " n"], length: str | None = None
) -> Int[np.ndarray, " n"]:
    """The block of every point; `length` is the length of a block, such as `"7D"`.

    By default, a block has 1.5 times the autocorrelation time of the mean error, but there are at
    least 8 blocks and at most 200.
    """
    times, step = np.unique(time, return_inverse=True)
    if length is not None:
        size = duration(length)
        if size <= np.timedelta64(0, "ms"):
            raise ValueError(f"block={length!r}: the length of a block must be positive.")
        return np.unique((time - times[0]) // size, return_inverse=True)[1]
    series = np.bincount(step, error) / np.bincount(step)
    steps = int(np.ceil(1.5 * autocorrelation_time(series)))
    steps = min(steps, max(1, len(times) // MIN_BLOCKS))
    steps = max(steps, -(-len(times) // MAX_BLOCKS))
    return step // steps


def autocorrelation_time(series: Float[np.ndarray, " t"]) -> float:
    """Integrated autocorrelation time in steps: 1 + 2 Σ ρ(lag), up to the first lag where ρ is not
    significant.
    """
    deviation = series - series.mean()
    variance = float((deviation**2).mean())
    total = 1.0
    if variance <= 0:
        return total
    for lag in range(1, len(series) // 2):
        correlation = float((deviation[lag:] * deviation[:-lag]).mean()) / variance
        if correlation < 2 / np.sqrt(len(series)):
            break
        total += 2 * correlation
    return total


def bootstrap_means(
    terms: Float[np.ndarray, "n k"], block: Int[np.ndarray, " n"], seed: int = 0
) -> Float[np.ndarray, "draws k"]:
    """Means of the columns over blocks drawn with replacement, one row per draw.

    A seed always draws the same blocks, so that forecasts can be compared draw by draw.
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
    """Percentile interval of the draws around a value, widened for few blocks by the ratio of
    Student's t to the normal quantile.
    """
    freedom = max(blocks - 1, 1)
    factor = np.sqrt(blocks / freedom) * stdtrit(freedom, 0.5 + level / 2) / ndtri(0.5 + level / 2)
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return float(value + factor * (low - value)), float(value + factor * (high - value))
