"""Scores of Gaussian forecasts in closed form: how close, how sharp, how well calibrated.

All of them are taken point by point in the units of the observations, so that a mean over any group
of points is that group's score. A spread of zero is a point forecast: its CRPS is its absolute
error, and it has no density and no calibration (NaN).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri

Values = Float[np.ndarray, "..."]
LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Central intervals whose coverage is looked at."""
CALIBRATED = -0.5 * (1 + np.log(2 * np.pi))
"""Mean log-density of standard normal numbers under their own density: -1.419."""


def normalised_error(observed: Values, mean: Values, std: Values) -> Values:
    """(observed - mean) / std: standard normal numbers if the forecast is calibrated."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(std > 0, (observed - mean) / std, np.nan)


def log_density(observed: Values, mean: Values, std: Values) -> Values:
    """The logarithm of the forecast's density at the observation."""
    z = normalised_error(observed, mean, std)
    with np.errstate(divide="ignore"):
        return -0.5 * z**2 - np.log(std) - 0.5 * np.log(2 * np.pi)


def normalised_log_density(observed: Values, mean: Values, std: Values) -> Values:
    """The standard normal log-density of the normalised error; its mean is -1.419 at best.

    More is too wide a spread, less too narrow a one; the paper gives it beside its histograms.
    """
    return -0.5 * normalised_error(observed, mean, std) ** 2 - 0.5 * np.log(2 * np.pi)


def crps(observed: Values, mean: Values, std: Values) -> Values:
    """Continuous ranked probability score of a normal distribution; 0 is perfect."""
    error = observed - mean
    z = np.where(std > 0, error / np.where(std > 0, std, 1.0), 0.0)
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    wide = std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    return np.where(std > 0, wide, np.abs(error))


def pit(observed: Values, mean: Values, std: Values) -> Values:
    """The probability that the forecast gave to less than was observed: uniform if calibrated."""
    return ndtr(normalised_error(observed, mean, std))


def inside(observed: Values, mean: Values, std: Values, level: float) -> Values:
    """1 where the observation is in the central interval of this probability, else 0."""
    if not 0 < level < 1:
        raise ValueError(f"The level of an interval must be between 0 and 1, got {level}.")
    z = normalised_error(observed, mean, std)
    return np.where(np.isnan(z), np.nan, np.abs(z) <= ndtri(0.5 + level / 2))


def skill(score: Values, reference: Values) -> Values:
    """The share of a reference's score that is saved: 1 is perfect, 0 no better, below 0 worse."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(reference > 0, 1 - score / reference, np.nan)


@dataclass(frozen=True, eq=False)
class SpreadSkill:
    """Forecasts in bins of equal number by spread: a calibrated one has `error == spread`."""

    spread: Float[np.ndarray, " bins"]
    error: Float[np.ndarray, " bins"]
    count: Float[np.ndarray, " bins"]


def spread_skill(
    observed: Float[np.ndarray, " n"],
    mean: Float[np.ndarray, " n"],
    std: Float[np.ndarray, " n"],
    bins: int = 10,
) -> SpreadSkill:
    """Root-mean-square spread and root-mean-square error, bin by bin; no bin has under 20 points.

    A spread that never changes makes one bin.
    """
    bins = max(1, min(bins, len(std) // 20))
    edges = np.unique(np.quantile(std, np.arange(1, bins) / bins)) if len(std) else np.zeros(0)
    where = np.searchsorted(edges, std, side="left")
    count = np.bincount(where, minlength=len(edges) + 1).astype(float)
    used = count > 0
    sums = [np.bincount(where, v**2, minlength=len(count))[used] for v in (std, observed - mean)]
    spread, error = (np.sqrt(total / count[used]) for total in sums)
    return SpreadSkill(spread, error, count[used])


def pit_histogram(values: Float[np.ndarray, " n"], bins: int = 20) -> Float[np.ndarray, " bins"]:
    """The share of the points in each of the bins from 0 to 1; 1 / bins each if calibrated."""
    count, _ = np.histogram(values, bins, (0.0, 1.0))
    return count / max(len(values), 1)


def coverage(
    errors: Float[np.ndarray, " n"], levels: Float[np.ndarray, " k"]
) -> Float[np.ndarray, " k"]:
    """The share of normalised errors inside the central interval of every level."""
    size = np.sort(np.abs(errors))
    return np.searchsorted(size, ndtri(0.5 + levels / 2), side="right") / max(len(size), 1)
