"""Scores of forecasts: CRPS, log-density, PIT, coverage, skill.

Those of Gaussian forecasts are functions of mean and standard deviation. `Forecasts` has the same
scores for any distribution. Scores are per point and in the units of the observations; the score of
any group of points is their mean. A standard deviation of zero is a point forecast: its CRPS is the
absolute error, and its density and calibration are NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ndtr, ndtri
from torch import Tensor

from gridtnp.distributions.marginals import Marginal

Values = Float[np.ndarray, "..."]
LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Probabilities of the central intervals whose coverage is reported."""
CALIBRATED = -0.5 * (1 + np.log(2 * np.pi))
"""Mean log-density of a standard normal under itself: -1.419."""


def normalised_error(observed: Values, mean: Values, std: Values) -> Values:
    """(observed - mean) / std: standard normal if the forecast is calibrated."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(std > 0, (observed - mean) / std, np.nan)


def log_density(observed: Values, mean: Values, std: Values) -> Values:
    """Log-density of the forecast at the observation."""
    z = normalised_error(observed, mean, std)
    with np.errstate(divide="ignore"):
        return -0.5 * z**2 - np.log(std) - 0.5 * np.log(2 * np.pi)


def normalised_log_density(observed: Values, mean: Values, std: Values) -> Values:
    """Standard normal log-density of the normalised error, which the paper's histograms quote.

    Its mean is -1.419 if calibrated, higher if underconfident, lower if overconfident.
    """
    return -0.5 * normalised_error(observed, mean, std) ** 2 - 0.5 * np.log(2 * np.pi)


def crps(observed: Values, mean: Values, std: Values) -> Values:
    """Continuous ranked probability score of a normal distribution; 0 is perfect."""
    error = observed - mean
    z = np.where(std > 0, error / np.where(std > 0, std, 1.0), 0.0)
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    normal = std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    return np.where(std > 0, normal, np.abs(error))


def pit(observed: Values, mean: Values, std: Values) -> Values:
    """Probability integral transform: the CDF at the observation, uniform if calibrated."""
    return ndtr(normalised_error(observed, mean, std))


def inside(observed: Values, mean: Values, std: Values, level: float) -> Values:
    """1 where the observation is in the central interval of probability `level`, else 0."""
    if not 0 < level < 1:
        raise ValueError(f"Level {level} of an interval is not between 0 and 1.")
    z = normalised_error(observed, mean, std)
    return np.where(np.isnan(z), np.nan, np.abs(z) <= ndtri(0.5 + level / 2))


def skill(score: Values, reference: Values) -> Values:
    """Skill score 1 - score / reference: 1 is perfect, 0 no better, negative worse."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(reference > 0, 1 - score / reference, np.nan)


def gaussian_exceedance(mean: Values, std: Values, threshold: float) -> Values:
    """The probability of more than a threshold; a standard deviation of zero is certain."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(std > 0, ndtr((mean - threshold) / std), (mean > threshold).astype(float))


@dataclass(frozen=True, eq=False)
class Forecasts:
    """Forecasts of one variable at all points, and what was observed.

    Without a `marginal` they are Gaussian. `uniform` are random numbers from 0 to 1, which make the
    PIT uniform where a calibrated forecast has point masses.
    """

    observed: Float[np.ndarray, " n"]
    mean: Float[np.ndarray, " n"]
    std: Float[np.ndarray, " n"]
    marginal: Marginal | None
    uniform: Float[np.ndarray, " n"]

    @property
    def _gaussian(self) -> tuple[Values, Values, Values]:
        return self.observed, self.mean, self.std

    @property
    def _y(self) -> Tensor:
        return torch.from_numpy(self.observed.astype(np.float64))

    @cached_property
    def crps(self) -> Float[np.ndarray, " n"]:
        if self.marginal is None:
            return crps(*self._gaussian)
        return self.marginal.crps(self._y).numpy()

    def crps_above(self, threshold: float) -> Float[np.ndarray, " n"]:
        """Threshold-weighted CRPS: how well values above the threshold are predicted."""
        if self.marginal is not None:
            return self.marginal.crps_above(self._y, threshold).numpy()
        return crps_above(*self._gaussian, threshold)

    def log_density(self) -> Float[np.ndarray, " n"]:
        """Of point masses, it is the logarithm of their probability."""
        if self.marginal is None:
            return log_density(*self._gaussian)
        return self.marginal.log_prob(self._y).numpy()

    def quantile(self, level: float) -> Float[np.ndarray, " n"]:
        """The value that is not exceeded with probability `level`."""
        if self.marginal is None:
            return self.mean + ndtri(level) * self.std
        return self.marginal.icdf(torch.full_like(self._y, level)).numpy()

    @cached_property
    def pit(self) -> Float[np.ndarray, " n"]:
        """The randomised PIT: between P(Y < observed) and P(Y ≤ observed)."""
        if self.marginal is None:
            return pit(*self._gaussian)
        low, high = (f(self._y).numpy() for f in (self.marginal.below, self.marginal.cdf))
        return low + self.uniform * (high - low)

    @cached_property
    def normalised_error(self) -> Float[np.ndarray, " n"]:
        """Standard normal if the forecast is calibrated: the normal quantile of the PIT."""
        if self.marginal is None:
            return normalised_error(*self._gaussian)
        return ndtri(np.clip(self.pit, 1e-12, 1 - 1e-12))

    def normalised_log_density(self) -> Float[np.ndarray, " n"]:
        return -0.5 * self.normalised_error**2 - 0.5 * np.log(2 * np.pi)

    def inside(self, level: float) -> Float[np.ndarray, " n"]:
        if self.marginal is None:
            return inside(*self._gaussian, level)
        return (np.abs(self.pit - 0.5) <= level / 2).astype(float)

    def exceedance(self, threshold: float) -> Float[np.ndarray, " n"]:
        """The probability of more than a threshold."""
        if self.marginal is None:
            return gaussian_exceedance(self.mean, self.std, threshold)
        level = torch.full(self.observed.shape, threshold, dtype=torch.float64)
        return 1 - self.marginal.cdf(level).numpy()


def crps_above(observed: Values, mean: Values, std: Values, threshold: float) -> Values:
    """Threshold-weighted CRPS of a normal distribution: the CRPS of what is above a threshold.

    It is that of the distribution censored at the threshold.
    """
    spread = np.where(std > 0, std, 1.0)
    z = (np.maximum(observed, threshold) - mean) / spread
    t = (threshold - mean) / spread
    below, density = ndtr(t), np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi)
    peak = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    found = z * (2 * ndtr(z) - 1) + 2 * peak - t * below**2 - 2 * density * below
    found = found - (1 - ndtr(np.sqrt(2) * t)) / np.sqrt(np.pi)
    point = np.abs(np.maximum(observed, threshold) - np.maximum(mean, threshold))
    return np.where(std > 0, spread * found, point)


@dataclass(frozen=True, eq=False)
class SpreadSkill:
    """Forecasts in bins of equal counts by spread; `error == spread` if calibrated."""

    spread: Float[np.ndarray, " bins"]
    error: Float[np.ndarray, " bins"]
    count: Float[np.ndarray, " bins"]


def spread_skill(
    observed: Float[np.ndarray, " n"],
    mean: Float[np.ndarray, " n"],
    std: Float[np.ndarray, " n"],
    bins: int = 10,
) -> SpreadSkill:
    """RMS spread and RMS error per bin, at least 20 points each; a constant spread is one bin."""
    bins = max(1, min(bins, len(std) // 20))
    edges = np.unique(np.quantile(std, np.arange(1, bins) / bins)) if len(std) else np.zeros(0)
    index = np.searchsorted(edges, std, side="left")
    count = np.bincount(index, minlength=len(edges) + 1).astype(float)
    used = count > 0
    sums = [np.bincount(index, v**2, minlength=len(count))[used] for v in (std, observed - mean)]
    spread, error = (np.sqrt(total / count[used]) for total in sums)
    return SpreadSkill(spread, error, count[used])


def pit_histogram(values: Float[np.ndarray, " n"], bins: int = 20) -> Float[np.ndarray, " bins"]:
    """Fraction of the points in equal bins from 0 to 1; 1 / bins each if calibrated."""
    count, _ = np.histogram(values, bins, (0.0, 1.0))
    return count / max(len(values), 1)


def coverage(
    errors: Float[np.ndarray, " n"], levels: Float[np.ndarray, " k"]
) -> Float[np.ndarray, " k"]:
    """Fraction of normalised errors within the central interval of each level."""
    sizes = np.sort(np.abs(errors))
    return np.searchsorted(sizes, ndtri(0.5 + levels / 2), side="right") / max(len(sizes), 1)
