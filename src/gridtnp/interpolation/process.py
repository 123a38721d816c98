"""A non-stationary Gaussian process: its covariance and its posterior, with analytic gradients.

The covariance is a mixture of Matérn functions and the squared exponential, at two length-scales.
Amplitude and length-scale may differ from place to place, and so may latent coordinates, which tell
apart what is near but different, as the two sides of a front.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

NEAR = 1e-12
"""Squared distance of coincident places."""
FUNCTIONS = 6
"""Correlation functions: Matérn 1/2, 3/2, 5/2 and squared exponential; 3/2 and squared exponential
of the longer length-scale."""
JITTER = 1e-8
NEGLIGIBLE = 1e-5
"""Weight of a correlation function below which it is left out of predictions."""


@dataclass(frozen=True, eq=False)
class Places:
    """Places with the local properties of the process there."""

    x: Float[Tensor, "batch n d"]
    """In length-scales."""
    amplitude: Float[Tensor, "batch n"]
    stretch: Float[Tensor, "batch n"]
    """Factor of the length-scale."""
    latent: Float[Tensor, "batch n e"]
    noise: Float[Tensor, "batch n"]
    """Variance of the noise."""
    trend: Float[Tensor, "batch n t"]
    """Level, coordinates and covariates, scaled such that their coefficients have unit variance."""

    @property
    def variance(self) -> Float[Tensor, "batch n"]:
        """Without noise."""
        return self.amplitude.square() + self.trend.square().sum(-1)

    def __getitem__(self, which: Any) -> Places:
        """Some places of one task, as a batch of one: `places[task]` or `places[task, rows]`."""
        return Places(*(value[which][None] for value in vars(self).values()))


@dataclass(frozen=True, eq=False)
class Shape:
    """The correlation function."""

    weights: Float[Tensor, "batch f"]
    """Of the `FUNCTIONS`; they sum to one."""
    shrink: Float[Tensor, " batch"]
    """The shorter length-scale divided by the longer."""

    def __getitem__(self, task: int) -> Shape:
        return Shape(self.weights[task : task + 1], self.shrink[task : task + 1])


def covariance(a: Places, b: Places, shape: Shape) -> Float[Tensor, "batch n m"]:
    """Between two sets of places, without noise."""
    stretch = (a.stretch.square()[:, :, None] + b.stretch.square()[:, None]) / 2
    squared = _squares(a.x, b.x) / stretch + _squares(a.latent, b.latent)
    if torch.is_grad_enabled():
        local = cast(Any, Correlation.apply(squared, shape.weights, shape.shrink))
    else:
        local = _correlation(squared, shape)
    left, right = a.amplitude * a.stretch, b.amplitude * b.stretch
    return local / stretch * left[:, :, None] * right[:, None] + a.trend @ b.trend.mT


def _squares(a: Float[Tensor, "batch n d"], b: Float[Tensor, "batch m d"]) -> Tensor:
    """Squared distances."""
    own = a.square().sum(-1)[:, :, None] + b.square().sum(-1)[:, None]
    return (own - 2 * a @ b.mT).clamp_min(0)


def _correlation(squared: Float[Tensor, "batch n m"], shape: Shape) -> Tensor:
    """As `Correlation`, without what gradients need and without functions of little weight."""
    r, found = (squared + NEAR).sqrt(), torch.zeros_like(squared)
    for i in range(FUNCTIONS):
        weight = shape.weights[:, i, None, None]
        if weight.max() < NEGLIGIBLE:
            continue
        s = r if i < 4 else r * shape.shrink[:, None, None]
        match i:
            case 0:
                part = torch.exp(-s)
            case 1 | 4:
                s = s * math.sqrt(3)
                part = torch.exp(-s).mul_(1 + s)
            case 2:
                s = s * math.sqrt(5)
                part = torch.exp(-s).mul_(1 + s + s.square() / 3)
            case _:
                part = s.square().mul_(-0.5).exp_()
        found.addcmul_(weight, part)
    return found


class Correlation(torch.autograd.Function):
    """The mixture of correlation functions of a squared distance in length-scales."""

    @staticmethod
    def forward(ctx: Any, squared: Tensor, weights: Tensor, shrink: Tensor) -> Tensor:  # pyright: ignore
        parts, slopes = [], []
        r = (squared + NEAR).sqrt()
        e = torch.exp(-r)
        parts.append(e)
        slopes.append(-0.5 * e / r)
        s = math.sqrt(3) * r
        e = torch.exp(-s)
        parts.append((1 + s) * e)
        slopes.append(-1.5 * e)
        s = math.sqrt(5) * r
        e = torch.exp(-s)
        parts.append((1 + s + s.square() / 3) * e)
        slopes.append((-5 / 6) * (1 + s) * e)
        e = torch.exp(-0.5 * squared)
        parts.append(e)
        slopes.append(-0.5 * e)
        c = shrink[:, None, None]
        s = math.sqrt(3) * r * c
        e = torch.exp(-s)
        parts.append((1 + s) * e)
        slopes.append(-1.5 * e * c.square())
        e = torch.exp(-0.5 * squared * c.square())
        parts.append(e)
        slopes.append(-0.5 * e * c.square())
        w = weights[:, :, None, None]
        value = sum(w[:, i] * part for i, part in enumerate(parts))
        slope = sum(w[:, i] * part for i, part in enumerate(slopes))
        longer = w[:, 4] * slopes[4] + w[:, 5] * slopes[5]
        ctx.save_for_backward(squared, shrink, slope, longer, *parts)
        assert isinstance(value, Tensor)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (grad,) = grads
        squared, shrink, slope, longer, *parts = ctx.saved_tensors
        weights = torch.stack([(grad * part).sum((1, 2)) for part in parts], -1)
        # a function of squared · shrink², so that its slope by log shrink is 2 · squared · slope
        by_shrink = (grad * longer * squared).sum((1, 2)) * 2 / shrink
        return grad * slope, weights, by_shrink


class Condition(torch.autograd.Function):
    """Posterior mean, and the variance that the observations explain.

    Of a covariance of observations (noise included), one with the targets, and values.
    """

    @staticmethod
    def forward(ctx: Any, k: Tensor, across: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore
        root = stable_root(k)
        solved = torch.cholesky_solve(torch.cat([across, y[..., None]], -1), root)
        weights, alpha = solved[..., :-1], solved[..., -1]
        ctx.save_for_backward(weights, alpha)
        mean = (across.mT @ alpha[..., None])[..., 0]
        return mean, (across * weights).sum(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        by_mean, by_explained = grads
        weights, alpha = ctx.saved_tensors
        across = alpha[:, :, None] * by_mean[:, None] + 2 * weights * by_explained[:, None]
        left = torch.cat([weights @ by_mean[..., None], weights * by_explained[:, None]], -1)
        right = torch.cat([alpha[..., None], weights], -1)
        return -left @ right.mT, across, None


def stable_root(k: Float[Tensor, "batch n n"]) -> Float[Tensor, "batch n n"]:
    """Cholesky factor; where rounding makes a matrix indefinite, more is added to its diagonal."""
    mean = k.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None]
    added = JITTER
    root, failed = torch.linalg.cholesky_ex(k)
    while failed.any() and added < 1e-2:
        more = torch.where(failed[:, None] > 0, added * mean, 0.0).expand(k.shape[:2])
        root, failed = torch.linalg.cholesky_ex(k + torch.diag_embed(more))
        added *= 10
    return root
