"""A non-stationary Gaussian process: its covariance and its posterior, with analytic gradients.

The covariance is a mixture of Matérn functions and the squared exponential, at two length-scales.
Amplitude and length-scale may differ from place to place, and so may latent coordinates, which tell
apart what is near but different, as the two sides of a front.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from gridtnp.ops import native

NEAR = 1e-12
"""Squared distance of coincident places."""
FUNCTIONS = 6
"""Correlation functions: Matérn 1/2, 3/2, 5/2 and squared exponential; 3/2 and squared exponential
of the longer length-scale."""
JITTER = 1e-8
STEP, NODES = 1 / 128, 2048
"""Of a table of the correlation: nodes are equally spaced in the square root of the distance, up to
256 length-scales.
"""


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

    @cached_property
    def columns(self) -> Float[Tensor, "batch c n"]:
        """What covariances depend on, as C reads it."""
        stretch = torch.stack([self.stretch.square() / 2, self.amplitude * self.stretch], -1)
        return torch.cat([self.x, self.latent, stretch, self.trend], -1).mT.contiguous()

    def __getitem__(self, which: Any) -> Places:
        """Some places of one task, as a batch of one: `places[task]` or `places[task, rows]`."""
        return Places(*(value[which][None] for value in self))

    def __iter__(self) -> Iterator[Tensor]:
        return (getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, eq=False)
class Shape:
    """The correlation function."""

    weights: Float[Tensor, "batch f"]
    """Of the `FUNCTIONS`; they sum to one."""
    shrink: Float[Tensor, " batch"]
    """The shorter length-scale divided by the longer."""

    def __getitem__(self, task: int) -> Shape:
        return Shape(self.weights[task : task + 1], self.shrink[task : task + 1])

    @cached_property
    def table(self) -> Float[Tensor, "batch 4 nodes"]:
        """Coefficients of the cubic polynomials between nodes, the highest first."""
        root = torch.arange(-1, NODES + 2, dtype=torch.float64) * STEP
        squared = (root**4).expand(len(self.weights), 1, -1)
        with torch.no_grad():
            f = cast(Any, Correlation.apply(squared, self.weights, self.shrink))[:, 0]
        before, left, right, after = (f[:, i : i + NODES] for i in range(4))
        cubic = (after - before) / 6 + (left - right) / 2
        square = (before + right) / 2 - left
        return torch.stack([cubic, square, right - left - cubic - square, left], 1)


def covariance(a: Places, b: Places, shape: Shape) -> Float[Tensor, "batch n m"]:
    """Between two sets of places, without noise."""
    if not torch.is_grad_enabled():
        return _fast_covariance(a, b, shape)
    stretch = (a.stretch.square()[:, :, None] + b.stretch.square()[:, None]) / 2
    squared = _squares(a.x, b.x) / stretch + _squares(a.latent, b.latent)
    local = cast(Any, Correlation.apply(squared, shape.weights, shape.shrink))
    left, right = a.amplitude * a.stretch, b.amplitude * b.stretch
    return local / stretch * left[:, :, None] * right[:, None] + a.trend @ b.trend.mT


def _squares(a: Float[Tensor, "batch n d"], b: Float[Tensor, "batch m d"]) -> Tensor:
    """Squared distances."""
    return torch.bmm(*_factors(a, b)).clamp_min(0)


def _factors(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two matrices whose product holds the squared distances."""
    one, other = torch.ones_like(a[..., :1]), torch.ones_like(b[..., :1])
    left = torch.cat([a.square().sum(-1, keepdim=True), one, -2 * a], -1)
    return left, torch.cat([other, b.square().sum(-1, keepdim=True), b], -1).mT


def _fast_covariance(a: Places, b: Places, shape: Shape) -> Tensor:
    """The same without gradients: in C, or in few passes over the matrix."""
    if native.why_not(a.x, b.x, precision=torch.float64) is None:
        return _covariance_in_c(a, b, shape)
    return _covariance_in_passes(a, b, shape)


def _covariance_in_c(a: Places, b: Places, shape: Shape) -> Tensor:
    n, m = a.x.shape[1], b.x.shape[1]
    sizes = (a.x.shape[2], a.latent.shape[2], a.trend.shape[2], NODES, round(1 / STEP))
    found = a.x.new_empty(len(a.x), n, m)
    for out, left, right, table in zip(found, a.columns, b.columns, shape.table, strict=True):
        native.call("process_covariance", out, left, n, right, m, table, *sizes)
    return found


def _covariance_in_passes(a: Places, b: Places, shape: Shape) -> Tensor:
    stretch = (a.stretch.square() / 2)[:, :, None] + (b.stretch.square() / 2)[:, None]
    squared = torch.bmm(*_factors(a.x, b.x)).div_(stretch)
    squared.baddbmm_(*_factors(a.latent, b.latent)).clamp_min_(0)
    local = tabulated(squared, shape).div_(stretch)
    local.mul_((a.amplitude * a.stretch)[:, :, None]).mul_((b.amplitude * b.stretch)[:, None])
    return local.baddbmm_(a.trend, b.trend.mT)


def tabulated(squared: Float[Tensor, "batch n m"], shape: Shape) -> Float[Tensor, "batch n m"]:
    """The correlation by a cubic polynomial between nodes of a table, right to about 1e-10.

    Six exponentials per entry would take several times as long.
    """
    u = squared.sqrt().sqrt_().mul_(1 / STEP).clamp_max_(NODES - 1e-6)
    node = u.to(torch.int32)
    u.sub_(node)
    if len(squared) > 1:
        node += NODES * torch.arange(len(squared), dtype=node.dtype)[:, None, None]
    flat, found = node.flatten(), None
    for coefficients in shape.table.unbind(1):
        here = coefficients.flatten().index_select(0, flat).view_as(u)
        found = here if found is None else torch.addcmul(here, found, u, out=here)
    assert found is not None
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
