"""Tasks whose targets have any distribution, given a latent Gaussian process.

The context holds latent values f (a function and noise), and a target y is drawn from a
distribution whose parameters depend on f there. Given the context, f at a target is normal with
known mean and variance, so that the predictive density is one integral,

    p(y | context) = ∫ p(y | f) N(f; m, s²) df,

which Gauss–Hermite quadrature computes to many digits: the best log-likelihood that any model can
reach. It is exact for every target on its own; targets of one task are not scored jointly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal

from gridtnp.distributions.continuous import LogNormal, NormalMixture, StudentT
from gridtnp.distributions.discrete import Bernoulli, Categorical, NegativeBinomial, Poisson
from gridtnp.distributions.marginals import Gaussian, Marginal, Product, from_normal
from gridtnp.distributions.mixed import BernoulliGamma, CensoredGamma, SpikedBeta
from gridtnp.distributions.quantile_spline import QuantileSpline
from gridtnp.synthetic.processes import Process, SyntheticBatch, draw_at
from gridtnp.task import PointSet, Task

NODES = 128
"""Nodes of the quadrature."""
Observation = Callable[[Tensor], Product]
"""The distribution of targets where the latent function has some values."""


def _one(make: Callable[[Tensor], Marginal]) -> Observation:
    return lambda f: Product([make(f)])


def _like(f: Tensor, value: float) -> Tensor:
    return torch.full_like(f, value)


def _wind(f: Tensor) -> Product:
    outputs = [Gaussian(f, _like(f, 0.3)), Gaussian(-0.5 * f, _like(f, 0.5))]
    return Product(outputs, {1: _like(f, 0.6)})


def _spline(f: Tensor) -> QuantileSpline:
    """Skewed: quantiles are farther apart above the median than below it."""
    slopes = torch.linspace(0.05, 0.35, 15, dtype=f.dtype).expand(*f.shape, -1)
    return QuantileSpline(f - 1.0, slopes)


OBSERVATIONS: dict[str, Observation] = {
    "gaussian": _one(lambda f: Gaussian(f, _like(f, 0.3))),
    "bivariate-gaussian": _wind,
    "student-t": _one(lambda f: StudentT(_like(f, 4.0), f, _like(f, 0.3))),
    "lognormal": _one(lambda f: LogNormal(0.7 * f, _like(f, 0.4))),
    "bernoulli-gamma": _one(lambda f: BernoulliGamma(1.5 * f, (0.5 * f).exp(), _like(f, 2.0))),
    "censored-gamma": _one(lambda f: CensoredGamma((0.7 * f).exp(), _like(f, 2.0), _like(f, 0.5))),
    "spiked-beta": _one(
        lambda f: SpikedBeta(
            f.sigmoid(), _like(f, 6.0), torch.stack([-1 - f, f - 1, _like(f, 0.5)], -1)
        )
    ),
    "normal-mixture": _one(
        lambda f: NormalMixture(
            torch.tensor([0.4, 0.6], dtype=f.dtype).log().expand(*f.shape, 2),
            torch.stack([f - 0.8, f + 0.8], -1),
            _like(f, 0.25)[..., None].expand(*f.shape, 2),
        )
    ),
    "quantiles": _one(_spline),
    "bernoulli": _one(lambda f: Bernoulli(2 * f)),
    "categorical": _one(
        lambda f: Categorical(torch.stack([torch.zeros_like(f), f, 2 * f - 0.5], -1))
    ),
    "poisson": _one(lambda f: Poisson((0.8 * f + 0.5).exp())),
    "negative-binomial": _one(lambda f: NegativeBinomial((0.8 * f + 0.5).exp(), _like(f, 2.0))),
}
"""For every likelihood, a distribution of its kind that depends on a latent value."""


@dataclass(frozen=True)
class LatentTasks:
    """Tasks of a Gaussian `process` whose targets are drawn from an `observation`."""

    process: Process
    observation: Observation

    def draw(self, seed: int, index: int, batch: int) -> LatentBatch:
        """Batch number `index` of a seed."""
        made = draw_at(self.process, seed, index, batch)
        task = made.task
        assert task.target.y is not None
        given = self.observation(task.target.y[..., 0].double())
        generator = torch.Generator().manual_seed(2**31 * seed + index)
        normal = torch.randn(given.batch_shape, generator=generator, dtype=torch.float64)
        y = from_normal(given, normal).to(task.target.x)
        return LatentBatch(Task(task.context, PointSet(task.target.x, y)), made, self.observation)


@dataclass(frozen=True)
class LatentBatch:
    """A batch of tasks, and what it was drawn from."""

    task: Task
    latent: SyntheticBatch
    observation: Observation

    def log_density(self) -> Float[Tensor, "batch n"]:
        """The exact log-density of every target given the context, summed over outputs."""
        assert self.task.target.y is not None
        given = self.latent.posterior()
        latent = Normal(given.mean[..., 0], given.stddev[..., 0])
        return predictive_log_density(self.observation, latent, self.task.target.y.double())


def predictive_log_density(
    observation: Observation,
    latent: Normal,
    y: Float[Tensor, "batch n dy"],
    nodes: int = NODES,
) -> Float[Tensor, "batch n"]:
    """log ∫ p(y | f) N(f) df by Gauss–Hermite quadrature."""
    place, weight = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(nodes))
    f = latent.mean[..., None] + latent.stddev[..., None] * place
    wide = y[..., None, :].expand(*f.shape, y.shape[-1])
    logs = observation(f).log_prob(wide).sum(-1)
    return torch.logsumexp(logs + weight.log() - 0.5 * math.log(2 * math.pi), -1)
