"""What stays from task to task: the deviation of every place from the regression.

A valley is colder than its elevation says, today and tomorrow. What all training tasks together
say of such deviations is kept as one value for every place, with the covariance of their errors.
Kriging then interpolates what is left, and what is known of a place need not be interpolated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

SAME = 1e-5
"""Places that are nearer to each other, in length scales, are one."""
LARGEST = 8.0
"""Limit of the logarithm of a hyper-parameter."""
SMOOTH = 1e-3
"""Least variance of a place's own effect, relative to that of the field: for factorisations."""


@dataclass(frozen=True, eq=False)
class Deviations:
    """The persistent field at some points.

    Its posterior has this `mean`; its covariance is that of the prior at `coordinates`, in length
    scales, minus the products of `loadings`.
    """

    coordinates: Float[Tensor, "*batch n d"]
    mean: Float[Tensor, "*batch n"]
    loadings: Float[Tensor, "*batch n s"]

    def __getitem__(self, index: tuple[int | slice | Tensor | None, ...]) -> Deviations:
        return Deviations(self.coordinates[index], self.mean[index], self.loadings[index])


@dataclass(frozen=True, eq=False)
class PersistentPosterior:
    """What is known of the field at its places: the Cholesky factor of the covariance of `value`,
    and the weights with which covariances become means.
    """

    factor: Float[Tensor, "batch s s"]
    weights: Float[Tensor, "batch s"]
    used: Float[Tensor, "batch s"]

    def of(self, task: int) -> PersistentPosterior:
        """That of one task; they may all have the same."""
        some = slice(task, task + 1) if len(self.used) > 1 else slice(None)
        return PersistentPosterior(self.factor[some], self.weights[some], self.used[some])


class PersistentField(nn.Module):
    """A Gaussian process over places, given what training tasks say of it.

    Its covariance is a Matérn function (3/2) of the distance in place and static features, plus an
    effect of every place's own. `value` holds its estimates at up to `size` places, `error` the
    covariance of their errors; `used` is 1 for those that hold one. Until something is learned
    (`fitting.py`), it is zero everywhere.
    """

    amplitude: Tensor
    own: Tensor
    length: Tensor
    places: Tensor
    value: Tensor
    error: Tensor
    used: Tensor

    def __init__(self, size: int, coordinates: int) -> None:
        super().__init__()
        self.register_buffer("amplitude", torch.tensor(-LARGEST))
        self.register_buffer("own", torch.tensor(-LARGEST))
        self.register_buffer("length", torch.zeros(coordinates))
        self.register_buffer("places", torch.zeros(size, coordinates, dtype=torch.float64))
        self.register_buffer("value", torch.zeros(size))
        self.register_buffer("error", torch.zeros(size, size))
        self.register_buffer("used", torch.zeros(size))

    @property
    def known(self) -> bool:
        """Whether anything was learned; a graph that is traced holds both cases."""
        return torch.compiler.is_compiling() or bool(self.used.any())

    def hyper_parameters(self) -> list[Tensor]:
        """The logarithms that are fitted."""
        return [self.amplitude, self.own, self.length]

    def scaled(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Coordinates in length scales."""
        return x / exp_of(self.length)

    def kernel(self, a: Float[Tensor, "*b n d"], b: Float[Tensor, "*b m d"]) -> Tensor:
        """Prior covariance between points in length scales."""
        r = _distance(a, b)
        r3 = math.sqrt(3) * r
        variance = exp_of(self.amplitude).square()
        return variance * (1 + r3) * torch.exp(-r3) + self._own() * (r < SAME)

    def _own(self) -> Tensor:
        """Variance of the effect of a place's own."""
        return exp_of(self.own).square() + SMOOTH * exp_of(self.amplitude).square()

    def posterior(self, among: Float[Tensor, "batch n d"] | None = None) -> PersistentPosterior:
        """What is known of all places, or only of those that are `among` some points."""
        places, used = self.scaled(self.places)[None], self.used.double()[None]
        if among is not None:
            every = places.expand(len(among), -1, -1)
            used = used * (_distance(every, self.scaled(among)) < SAME).any(-1)
        k = self.kernel(places, places) + self.error.double()
        eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
        factor = torch.linalg.cholesky(torch.where(_both(used), k, eye))
        values = (used * self.value.double())[..., None]
        return PersistentPosterior(factor, torch.cholesky_solve(values, factor)[..., 0], used)

    def is_place(self, x: Float[Tensor, "batch n d"]) -> Bool[Tensor, "batch n"]:
        """Whether points are at places of which something is known."""
        places = self.scaled(self.places).expand(len(x), -1, -1)
        return ((_distance(self.scaled(x), places) < SAME) & (self.used > 0)).any(-1)

    def at(self, x: Float[Tensor, "batch n d"], given: PersistentPosterior) -> Deviations:
        """The field at some points."""
        scaled = self.scaled(x)
        places = self.scaled(self.places).expand(len(x), -1, -1)
        k = self.kernel(scaled, places) * given.used[:, None]
        mean = (k @ given.weights[..., None])[..., 0]
        root = given.factor.expand(len(x), -1, -1)
        loadings = torch.linalg.solve_triangular(root, k.mT, upper=False).mT
        return Deviations(scaled, mean, loadings)

    def covariance(self, a: Deviations, b: Deviations) -> Float[Tensor, "batch n m"]:
        """Posterior covariance between two sets of points."""
        return self.kernel(a.coordinates, b.coordinates) - a.loadings @ b.loadings.mT

    def variance(self, a: Deviations) -> Float[Tensor, "batch n"]:
        """Posterior variance."""
        prior = exp_of(self.amplitude).square() + self._own()
        return (prior - a.loadings.square().sum(-1)).clamp_min(0)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _both(used: Float[Tensor, "batch s"]) -> Bool[Tensor, "batch s s"]:
    return (used[:, :, None] * used[:, None]) > 0


def exp_of(log: Tensor) -> Tensor:
    """A positive hyper-parameter from its logarithm."""
    return log.double().clamp(-LARGEST, LARGEST).exp()
