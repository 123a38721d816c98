"""Joint samples: the Gaussian process says how values at different places depend on each other.

A sample of the process is mapped, target by target, to the network's predictive distribution (a
Gaussian copula), so that samples have the quantiles that `Interpolation.at` predicts.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gridtnp.amortised.posterior import ExactPosterior, observed_covariance
from gridtnp.amortised.predictor import Interpolation
from gridtnp.amortised.process import Places, Shape, covariance, stable_root

MOST = 2048
"""Most observations of a task."""
JOINT = 1500
"""Targets whose values are drawn jointly; all others are drawn one by one given these."""
PIECE = 4096
"""Targets that are drawn one by one at once."""
KNOWN = 1e-8
"""Variance of values that were drawn before."""


@torch.no_grad()
def sample(
    given: Interpolation,
    number: int,
    x: Float[Tensor, "batch m d"],
    covariates: Float[Tensor, "batch m df"] | None = None,
    *,
    seed: int = 0,
) -> Float[Tensor, "number batch m"]:
    """Draw joint samples of new observations at the targets."""
    e, network = given.encoding, given.network
    if e.y.shape[1] > MOST:
        raise ValueError(
            f"Joint samples are for at most {MOST:,} observations at a time, but there are "
            f"{e.y.shape[1]:,}; take those in the region of interest."
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(0))
    target, trend = given.target(x, covariates)
    places, tokens = network.places(e, target)
    drawn = torch.empty(number, *x.shape[:2], dtype=torch.float64)
    for b in range(len(x)):
        shape, used = e.constants.shape[b], e.mask[b]
        known = _Known(e.observed[b, used], e.y[b, used].expand(number, -1), shape)
        first = order[:JOINT]
        drawn[:, b, first] = known.draw_jointly(places[b, first], generator)
        if len(order) > JOINT:
            known = known.and_also(places[b, first], drawn[:, b, first])
        for rest in order[JOINT:].split(PIECE):
            drawn[:, b, rest] = known.draw_each(places[b, rest], generator)
    drawn += places.noise.sqrt() * torch.randn(drawn.shape, generator=generator, dtype=drawn.dtype)
    mean, rest = ExactPosterior.of(e.observed, e.y, e.mask, e.constants.shape).predict(places)
    chance = torch.special.ndtr((drawn - mean) / (rest + places.noise).sqrt())
    marginal = given.moved(network.corrected(e, tokens, places, mean, rest), trend)
    return marginal.icdf(chance.clamp(1e-6, 1 - 1e-6))


class _Known:
    """Values at some places, of one task; a row for every sample."""

    def __init__(self, places: Places, y: Float[Tensor, "number n"], shape: Shape) -> None:
        self.places, self.y, self.shape = places, y, shape
        every = torch.ones_like(places.noise, dtype=torch.bool)
        self.root = stable_root(observed_covariance(places, shape, every))[0]
        self.white = torch.linalg.solve_triangular(self.root, y.mT, upper=False)

    def and_also(self, places: Places, y: Float[Tensor, "number m"]) -> _Known:
        """Together with values that were drawn before."""
        pairs = zip(self.places, places, strict=True)
        both = Places(*(torch.cat(pair, 1) for pair in pairs))
        drawn: Int[Tensor, " n"] = torch.arange(both.noise.shape[1]) >= self.y.shape[1]
        both.noise[:, drawn] = KNOWN
        return _Known(both, torch.cat([self.y, y], -1), self.shape)

    def draw_jointly(self, at: Places, generator: torch.Generator) -> Float[Tensor, "number m"]:
        half = self._half(at)
        k = covariance(at, at, self.shape)[0] - half.mT @ half
        k.diagonal().add_(KNOWN * at.variance.mean())
        return self._mean(half) + _normal(self.y, k, generator) @ stable_root(k[None])[0].mT

    def draw_each(self, at: Places, generator: torch.Generator) -> Float[Tensor, "number m"]:
        half = self._half(at)
        std = (at.variance[0] - half.square().sum(0)).clamp_min(0).sqrt()
        return self._mean(half) + std * _normal(self.y, std, generator)

    def _half(self, at: Places) -> Tensor:
        across = covariance(self.places, at, self.shape)[0]
        return torch.linalg.solve_triangular(self.root, across, upper=False)

    def _mean(self, half: Tensor) -> Tensor:
        return (half.mT @ self.white).mT


def _normal(y: Tensor, like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(len(y), len(like), generator=generator, dtype=like.dtype)
