"""Synthetic tasks sampled on the fly, most of them with an exact posterior.

Each task of a batch is another function, observed at other points. `stream` samples batches in the
background; they depend on the seed alone, not on the number of workers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import stdtrit
from torch import Tensor
from torch.distributions import Normal

from gridtnp.synthetic.covariances import Covariance, LogUniform, OneOf
from gridtnp.synthetic.posterior import finite_rank_posterior, posterior
from gridtnp.synthetic.spectral import lattice
from gridtnp.task import PointSet, Task
from gridtnp.tasks.prefetch import prefetch

SOURCE = "observations"
Box = tuple[tuple[float, float], ...]
"""Lower and upper end of every axis."""


@dataclass(frozen=True)
class StudentNoise:
    """Student-t noise, which has heavy tails."""

    scale: float
    freedom: float = 3.0

    def __post_init__(self) -> None:
        if self.scale <= 0 or self.freedom <= 0:
            raise ValueError(
                f"StudentNoise({self.scale}, {self.freedom}): scale and degrees of freedom must be "
                "positive."
            )

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        u = torch.rand(shape, generator=generator, dtype=torch.float64).clamp_min(1e-12)
        return self.scale * torch.from_numpy(stdtrit(self.freedom, u.numpy())).float()


@dataclass(frozen=True)
class SyntheticBatch:
    """A batch of tasks, with the kernel, noise and basis that each was sampled from."""

    task: Task
    kernels: tuple[Covariance, ...] = ()
    noise: float = 0.0
    basis: Float[Tensor, "batch n r"] | None = None

    def posterior(self, *, reach: float | None = None) -> Normal:
        """The exact posterior at the targets (batch, n, 1); see `gridtnp.synthetic.posterior`."""
        if not self.kernels:
            raise ValueError(
                "These tasks have no exact posterior; only Gaussian processes with Gaussian noise "
                "have one."
            )
        context, target = self.task.context[SOURCE], self.task.target
        assert context.y is not None
        answers = []
        for i, kernel in enumerate(self.kernels):
            y = context.y[i, :, 0]
            if self.basis is not None:
                basis = self.basis[i]
                answers.append(
                    finite_rank_posterior(basis[: context.n], self.noise, y, basis[context.n :])
                )
            else:
                answers.append(
                    posterior(kernel, self.noise, context.x[i], y, target.x[i], reach=reach)
                )
        mean = torch.stack([a.mean for a in answers]).unsqueeze(-1)
        return Normal(mean, torch.stack([a.stddev for a in answers]).unsqueeze(-1))


@dataclass(frozen=True)
class Process(ABC):
    """Random functions on a box, observed with noise at uniformly distributed points.

    `context` is the number of context points, or a range from which each batch samples one.
    """

    box: Box
    context: int | tuple[int, int]
    targets: int
    noise: float | StudentNoise = 0.1

    def __post_init__(self) -> None:
        if not 1 <= len(self.box) <= 3:
            raise ValueError(f"The box has {len(self.box)} axes: must have one to three.")
        for low, high in self.box:
            if not -math.inf < low < high < math.inf:
                raise ValueError(
                    f"The box goes from {low} to {high}; give finite ends, the lower one first."
                )
        low, high = self.context if isinstance(self.context, tuple) else (self.context,) * 2
        if not 0 <= low <= high:
            raise ValueError(
                f"context={self.context}: must be a number from 0, or a range, lower end first."
            )
        if self.targets < 1:
            raise ValueError(f"targets={self.targets}: must be at least 1.")
        if not isinstance(self.noise, StudentNoise) and not 0 < self.noise < math.inf:
            raise ValueError(f"noise={self.noise}: the standard deviation must be positive.")

    def draw(self, generator: torch.Generator, batch: int) -> SyntheticBatch:
        """Sample a batch of tasks."""
        low, high = self.context if isinstance(self.context, tuple) else (self.context,) * 2
        observed = int(torch.randint(low, high + 1, (), generator=generator))
        start = torch.tensor([low for low, _ in self.box])
        extent = torch.tensor([high - low for low, high in self.box])
        x = start + extent * torch.rand(
            batch, observed + self.targets, len(self.box), generator=generator
        )
        f, kernels, basis = self.functions(x, generator)
        if isinstance(self.noise, StudentNoise):
            y, kernels = f + self.noise.draw(f.shape, generator), ()
        else:
            y = f + self.noise * torch.randn(f.shape, generator=generator)
        y = y.unsqueeze(-1)
        observations = PointSet(x[:, :observed], y[:, :observed])
        task = Task({SOURCE: observations}, PointSet(x[:, observed:], y[:, observed:]))
        noise = self.noise if not isinstance(self.noise, StudentNoise) else 0.0
        return SyntheticBatch(task, kernels, noise, basis)

    @abstractmethod
    def functions(
        self, x: Float[Tensor, "batch n d"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "batch n"], tuple[Covariance, ...], Tensor | None]:
        """Sample functions at `x`: noise-free values, their kernels, and the basis if finite."""


@dataclass(frozen=True, kw_only=True)
class GaussianProcess(Process):
    """A Gaussian process, sampled exactly; see `gridtnp.synthetic.spectral`."""

    kernel: Covariance | OneOf

    def functions(
        self, x: Float[Tensor, "batch n d"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "batch n"], tuple[Covariance, ...], Tensor | None]:
        kernels = tuple(self.kernel.sampled(generator) for _ in x)
        if len(set(kernels)) == 1:
            return lattice(kernels[0], self.box).draw(x, generator), kernels, None
        each = [
            lattice(kernel, self.box).draw(points.unsqueeze(0), generator)
            for kernel, points in zip(kernels, x, strict=True)
        ]
        return torch.cat(each), kernels, None


@dataclass(frozen=True, kw_only=True)
class RankLimitedProcess(Process):
    """A Gaussian process sampled by a Lanczos root of limited rank: the data of the paper.

    Libraries sample large processes in this way. The functions are combinations of `rank` random
    basis functions and keep only a part of the kernel's variance: of 11,000 points on [-6, 6]², 4 %
    at length-scale 0.1 and half at 0.5.
    """

    kernel: Covariance
    rank: int = 100

    def functions(
        self, x: Float[Tensor, "batch n d"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "batch n"], tuple[Covariance, ...], Tensor | None]:
        kernels = tuple(self.kernel.sampled(generator) for _ in x)
        basis = torch.stack(
            [_lanczos_root(k, p, self.rank, generator) for k, p in zip(kernels, x, strict=True)]
        )
        weights = torch.randn(len(x), basis.shape[-1], 1, generator=generator, dtype=torch.float64)
        return (basis @ weights).squeeze(-1).float(), kernels, basis


@dataclass(frozen=True, kw_only=True)
class Sawtooth(Process):
    """Sawtooth waves with random direction, frequency and phase: not a Gaussian process."""

    frequency: LogUniform = field(default_factory=lambda: LogUniform(0.2, 2.0))
    amplitude: float = 1.0

    def functions(
        self, x: Float[Tensor, "batch n d"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "batch n"], tuple[Covariance, ...], Tensor | None]:
        batch, _, axes = x.shape
        direction = torch.randn(batch, 1, axes, generator=generator)
        direction = direction / direction.norm(dim=-1, keepdim=True)
        frequency = torch.tensor([self.frequency.sample(generator) for _ in range(batch)])
        phase = torch.rand(batch, 1, generator=generator)
        turns = (x * direction).sum(-1) * frequency.unsqueeze(-1).float() + phase
        return self.amplitude * (2 * (turns % 1.0) - 1), (), None


def stream(
    process: Process, *, seed: int, batch: int, start: int = 0, workers: int = 1, ahead: int = 4
) -> Iterator[SyntheticBatch]:
    """Endless batches, sampled in the background, from number `start`."""
    yield from prefetch(
        lambda index: draw_at(process, seed, index, batch), start, workers=workers, ahead=ahead
    )


def draw_at(process: Process, seed: int, index: int, batch: int) -> SyntheticBatch:
    """Batch number `index` of a seed."""
    state = np.random.SeedSequence((seed, index)).generate_state(2, np.uint32)
    number = int(state[0]) << 32 | int(state[1])
    return process.draw(torch.Generator().manual_seed(number & (2**63 - 1)), batch)


def _lanczos_root(
    kernel: Covariance, x: Float[Tensor, "n d"], rank: int, generator: torch.Generator
) -> Float[Tensor, "n r"]:
    """Q T^½ after `rank` Lanczos steps from a random vector, for the covariance at `x`."""
    covariance = kernel.covariance(x, x)
    n = len(x)
    vectors = torch.zeros(min(rank, n), n, dtype=torch.float64)
    v = torch.randn(n, generator=generator, dtype=torch.float64)
    diagonal, off_diagonal = [], []
    for step in range(len(vectors)):
        norm = v.norm()
        if step and norm < 1e-10 * math.sqrt(kernel.total * n):
            vectors = vectors[:step]
            break
        if step:
            off_diagonal.append(norm)
        vectors[step] = v / norm
        v = covariance @ vectors[step]
        diagonal.append(v @ vectors[step])
        done = vectors[: step + 1]
        for _ in range(2):  # orthogonalising twice is enough
            v = v - done.mT @ (done @ v)
    t = torch.diag(torch.stack(diagonal))
    if off_diagonal:
        off = torch.stack(off_diagonal)
        t = t + torch.diag(off, 1) + torch.diag(off, -1)
    values, rotation = torch.linalg.eigh(t)
    root = vectors.mT @ (rotation * values.clamp_min(0.0).sqrt())
    return torch.nn.functional.pad(root, (0, rank - root.shape[1]))
