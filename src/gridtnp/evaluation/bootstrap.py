"""Confidence intervals of mean scores: blocks of time and stations are resampled.

Errors at neighbouring times are correlated, and so are the errors of a station at all times, so
that resampling single points would give intervals that are far too narrow. Blocks of consecutive
times, long enough to be nearly independent, and stations are drawn with replacement independently
of each other; the weight of a point is the product of both counts (Owen's pigeonhole bootstrap).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy.special import ndtri, stdtrit

from gridtnp.sources.coordinates import unit_vectors
from gridtnp.sources.times import duration

MIN_BLOCKS, MAX_BLOCKS = 8, 200
"""Limits of the number of blocks of time if no length is given; most groups of stations."""
DRAWS = 1000
"""Bootstrap replicates."""


def time_blocks(
    time: Shaped[np.ndarray, " n"],
    error: Float[np.ndarray, " n"],
    length: str | None = None,
    points: Int[np.ndarray, " n"] | None = None,
) -> Int[np.ndarray, " n"]:
    """The block of every point; `length` is the length of a block, such as `"7D"`.

    With `points`, a row stands for so many of them, and its error is their sum.

    By default, a block has 1.5 times the autocorrelation time of the mean error, but there are at
    least 8 blocks and at most 200.
    """
    times, step = np.unique(time, return_inverse=True)
    if length is not None:
        size = duration(length)
        if size <= np.timedelta64(0, "ms"):
            raise ValueError(f"block={length!r}: the length of a block must be positive.")
        return np.unique((time - times[0]) // size, return_inverse=True)[1]
    series = np.bincount(step, error) / np.bincount(step, points)
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


def place_blocks(
    station: Shaped[np.ndarray, " n"], lat: Float[np.ndarray, " n"], lon: Float[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """The station of every point; if there are more than 200, groups of neighbouring stations."""
    _, first, code = np.unique(station, return_index=True, return_inverse=True)
    groups = [np.arange(len(first))]
    places = unit_vectors(lat[first], lon[first])
    while len(first) > MAX_BLOCKS and 2 * len(groups) <= MAX_BLOCKS:
        halves = []
        for group in groups:  # at the median of the direction of largest extent
            axis = np.ptp(places[group], axis=0).argmax()
            halves += np.array_split(group[np.argsort(places[group, axis], kind="stable")], 2)
        groups = halves
    if len(groups) == 1:
        return code
    block = np.zeros(len(first), int)
    for number, group in enumerate(groups):
        block[group] = number
    return block[code]


def bootstrap_means(
    terms: Float[np.ndarray, "n k"],
    clusters: Sequence[Int[np.ndarray, " n"]],
    seed: int = 0,
    points: Int[np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, "draws k"]:
    """Means of the columns over clusters drawn with replacement, one row per draw.

    `clusters` has the cluster of every point for one or two kinds, such as blocks of time and
    stations, which are drawn independently. Kinds with a single cluster are not resampled. A seed
    always draws the same clusters, so that forecasts can be compared draw by draw. Draws without
    any point are left out. With `points`, a row is the sum of so many of them.
    """
    kinds = [code for code in clusters if len(code) and code.max() > 0]
    if not kinds:
        return np.full((DRAWS, terms.shape[1]), np.nan)
    rng = np.random.default_rng(seed)
    rows, *columns = [_weights(rng, int(code.max()) + 1) for code in kinds]
    columns = columns[0] if columns else np.ones((DRAWS, 1))
    cell = kinds[0] if len(kinds) == 1 else kinds[0] * columns.shape[1] + kinds[1]
    shape = rows.shape[1], columns.shape[1]

    def totals(values: np.ndarray | None) -> np.ndarray:
        """Weighted sums of every draw."""
        sums = np.bincount(cell, values, minlength=shape[0] * shape[1]).reshape(shape)
        return ((rows @ sums) * columns).sum(1)

    count = totals(points)
    drawn = count > 0
    return np.stack([totals(column)[drawn] / count[drawn] for column in terms.T], -1)


def _weights(rng: np.random.Generator, number: int) -> Float[np.ndarray, "draws n"]:
    """How often each cluster is drawn."""
    drawn = rng.integers(number, size=(DRAWS, number))
    place = drawn + number * np.arange(DRAWS)[:, None]
    weight = np.bincount(place.ravel(), minlength=DRAWS * number).reshape(DRAWS, number)
    return weight.astype(np.float64)


def interval(
    value: float, draws: Float[np.ndarray, " draws"], blocks: int, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of the draws around a value, widened for few blocks by the ratio of
    Student's t to the normal quantile; `blocks` are those of the kind with the fewest.
    """
    freedom = max(blocks - 1, 1)
    factor = np.sqrt(blocks / freedom) * stdtrit(freedom, 0.5 + level / 2) / ndtri(0.5 + level / 2)
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return float(value + factor * (low - value)), float(value + factor * (high - value))
