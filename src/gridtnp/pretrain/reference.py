"""The Gaussian process to compare with: Matérn 3/2, constants fitted by maximum likelihood.

This is ordinary kriging done well: exact, with an unknown level, the best of several starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor
from torch.distributions import Normal

STARTS = [(length, noise) for length in (0.02, 0.06, 0.2, 0.6) for noise in (0.003, 0.05, 0.5)]
"""Length-scales, in extents of the data, and noise variances, relative to the process's."""
ITERATIONS = 40
BOUNDS = ((math.log(1e-4), math.log(30.0)), (math.log(1e-7), math.log(1e3)))
JITTER = 1e-9


@dataclass(frozen=True, eq=False)
class FittedProcess:
    """A Matérn-3/2 process with fitted constants, conditioned on observations."""

    x: Float[Tensor, "n d"]
    length: float
    noise: float
    variance: float
    level: float
    root: Float[Tensor, "n n"]
    white: Float[Tensor, " n"]
    white_one: Float[Tensor, " n"]

    @classmethod
    def fit(cls, x: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> FittedProcess:
        """Maximise the likelihood; level and variance in closed form."""
        x, y = x.double(), y.double()
        distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
        extent = max(distance.max().item(), 1e-12)

        def loss(log_values: Any) -> tuple[float, list[float]]:
            """Negative log-likelihood per observation, and its gradient."""
            length, noise = map(float, log_values)
            return _likelihood(distance / extent, y, length, noise)

        values = [(loss(start)[0], start) for start in map(_logarithms, STARTS)]
        best = minimize(
            loss,
            min(values)[1],
            jac=True,
            bounds=BOUNDS,
            method="L-BFGS-B",
            options={"maxiter": ITERATIONS},
        )
        length, noise = math.exp(best.x[0]) * extent, math.exp(best.x[1])
        root = _root(distance, length, noise)
        both = torch.stack([y, torch.ones_like(y)], -1)
        white, one = torch.linalg.solve_triangular(root, both, upper=False).unbind(-1)
        level = (white @ one / (one @ one)).item()
        rest = white - level * one
        return cls(x, length, noise, (rest @ rest).item() / len(y), level, root, rest, one)

    def predict(self, at: Float[Tensor, "m d"]) -> Normal:
        """New observations, noise included."""
        distance = torch.cdist(self.x, at.double(), compute_mode="donot_use_mm_for_euclid_dist")
        half = torch.linalg.solve_triangular(self.root, _matern(distance, self.length), upper=False)
        mean = self.level + half.mT @ self.white
        trend = 1 - half.mT @ self.white_one
        rest = 1 - half.square().sum(0) + self.noise
        rest = rest.clamp_min(self.noise) + trend.square() / self.white_one.square().sum()
        return Normal(mean, (max(self.variance, 1e-300) * rest).sqrt())


def _logarithms(values: tuple[float, float]) -> tuple[float, float]:
    return math.log(values[0]), math.log(values[1])


def _matern(distance: Tensor, length: float) -> Tensor:
    s = distance * (math.sqrt(3) / length)
    return (1 + s) * torch.exp(-s)


def _root(distance: Tensor, length: float, noise: float) -> Tensor:
    k = _matern(distance, length)
    k.diagonal().add_(noise + JITTER)
    return torch.linalg.cholesky(k)


def _likelihood(
    distance: Tensor, y: Tensor, log_length: float, log_noise: float
) -> tuple[float, list[float]]:
    n, length, noise = len(y), math.exp(log_length), math.exp(log_noise)
    s = distance * (math.sqrt(3) / length)
    e = torch.exp(-s)
    k = (1 + s) * e
    k.diagonal().add_(noise + JITTER)
    root = torch.linalg.cholesky(k)
    inverse = torch.cholesky_inverse(root)
    one = inverse.sum(1)
    level = (one @ y) / one.sum()
    alpha = inverse @ y - level * one
    variance = ((y - level) @ alpha / n).clamp_min(1e-300)
    value = 0.5 * variance.log() + root.diagonal().log().sum() / n
    by_length = s.square() * e  # of the covariance by log length
    outer = alpha / variance
    gradient = 0.5 / n * ((inverse * by_length).sum() - outer @ (by_length @ alpha))
    by_noise = 0.5 / n * noise * (inverse.diagonal().sum() - outer @ alpha)
    return value.item(), [gradient.item(), by_noise.item()]
