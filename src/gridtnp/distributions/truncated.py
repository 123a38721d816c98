"""Normal variables between two bounds: moments and samples."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.special import log_ndtr, ndtr, ndtri

Bounds = Float[np.ndarray, " n"]


def truncated_moments(
    mean: np.ndarray, std: np.ndarray, low: Bounds, high: Bounds
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of a normal variable between two bounds."""
    a, b = (low - mean) / std, (high - mean) / std
    upper = a + b > 0
    a, b = np.where(upper, -b, a), np.where(upper, -a, b)
    with np.errstate(invalid="ignore", divide="ignore"):
        top = log_ndtr(b)
        log_mass = top + np.log(-np.expm1(np.minimum(log_ndtr(a) - top, -1e-15)))
        ends = [np.exp(-0.5 * t**2 - 0.5 * np.log(2 * np.pi) - log_mass) for t in (a, b)]
        first = ends[0] - ends[1]
        products = [np.where(np.isfinite(t), t * e, 0.0) for t, e in zip((a, b), ends, strict=True)]
    second = np.clip(1 + products[0] - products[1] - first**2, 1e-10, 1.0)
    narrow = b - a < 1e-3  # differences of the ends would be rounding errors
    first = np.where(narrow, (a + b) / 2, np.clip(first, a, b))
    second = np.where(narrow, (b - a) ** 2 / 12, second)
    return mean + std * np.where(upper, -first, first), std**2 * second


def draw(
    mean: np.ndarray, std: np.ndarray, low: Bounds, high: Bounds, rng: np.random.Generator
) -> np.ndarray:
    """Independent normal numbers between two bounds."""
    columns = (mean, std, low, high, rng.random(len(mean)))
    return np.array([draw_one(*row) for row in zip(*columns, strict=True)])


def draw_one(mean: float, std: float, low: float, high: float, level: float) -> float:
    """`draw` of one number, at a level from 0 to 1."""
    a, b = (low - mean) / std, (high - mean) / std
    if a > 0:  # there, probabilities are exact from above
        return mean - std * draw_one(0.0, 1.0, -b, -a, level)
    below = ndtr(a)
    z = ndtri(min(max(below + level * (ndtr(b) - below), 1e-300), 1 - 1e-16))
    return mean + std * min(max(z, a), b)
