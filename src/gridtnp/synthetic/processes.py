"""Synthetic tasks, made on the fly, most of them with the exact answer beside them.

A process draws batches of tasks from a seed: every batch element is a function of its own, seen at
places of its own. `stream` makes them in the background; the same seed gives the same tasks however
many workers make them.
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
"""From where to where, axis by axis."""


@dataclass(frozen=True)
class StudentNoise:
    """Noise with heavy tails: now and then a value is far off."""

    scale: float
    freedom: float = 3.0

    def __post_init__(self) -> None:
        if self.scale <= 0 or self.freedom <= 0:
            raise ValueError(
                f"Scale and degrees of freedom must be positive, got {self.scale} and "
                f"{self.freedom}."
            )

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        u = torch.rand(shape, generator=generator, dtype=torch.float64).clamp_min(1e-12)
        return self.scale * torch.from_numpy(stdtrit(self.freedom, u.numpy())).float()


@dataclass(frozen=True)
class SyntheticBatch:
    """A batch of tasks, and how its functions came about."""

    task: Task
    kernels: tuple[Covariance, ...] = ()
    noise: float = 0.0
    basis: Float[Tensor, "batch n r"] | None = None

    def posterior(self, *, reach: float | None = None) -> Normal:
        """The best possible answer at the targets (batch, n, 1), if these are Gaussian functions.

        `reach` is for very many points: see `oracle.posterior`.
        """
        if not self.kernels:
            raise ValueError(
                "Only Gaussian functions seen with Gaussian noise have an exact answer; these have "
                "none."
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
    """Functions on a box, each seen with noise at `context` uniform places, asked for at `targets`.

    `context` may be a range: then every batch has a number of its own, and no fewer than the low
    end.
    """

    box: Box
    context: int | tuple[int, int]
    targets: int
    noise: float | StudentNoise = 0.1

    def __post_init__(self) -> None:
        if not 1 <= len(self.box) <= 3:
            raise ValueError(f"A box must have one to three axes, got {len(self.box)}.")
        for low, high in self.box:
            if not -math.inf < low < high < math.inf:
                raise ValueError(f"A box must go from a low to a higher end, got {low} to {high}.")
        low, high = self.context if isinstance(self.context, tuple) else (self.context,) * 2
        if not 0 <= low <= high or self.targets < 1:
            raise ValueError(
                "There must be at least one target and no negative number of context points, got "
                f"{self.targets} and {self.context}."
            )
        if not isinstance(self.noise, StudentNoise) and not 0 < self.noise < math.inf:
            raise ValueError(
                f"The noise must have a positive standard deviation, got {self.noise}."
            )

    def draw(self, generator: torch.Generator, batch: int) -> SyntheticBatch:
        """A batch of tasks."""
        low, high = self.context if isinstance(self.context, tuple) else (self.context,) * 2
        seen = int(torch.randint(low, high + 1, (), generator=generator))
        start = torch.tensor([low for low, _ in self.box])
        extent = torch.tensor([high - low for low, high in self.box])
        x = start + extent * torch.rand(
            batch, seen + self.targets, len(self.box), generator=generator
        )
        f, kernels, basis = self.functions(x, generator)
        if isinstance(self.noise, StudentNoise):
            y, kernels = f + self.noise.draw(f.shape, generator), ()
        else:
            y = f + self.noise * torch.randn(f.shape, generator=generator)
        y = y.unsqueeze(-1)
        observations = PointSet(x[:, :seen], y[:, :seen])
        task = Task({SOURCE: observations}, PointSet(x[:, seen:], y[:, seen:]))
        noise = self.noise if not isinstance(self.noise, StudentNoise) else 0.0
        return SyntheticBatch(task, kernels, noise, basis)

    @abstractmethod
    def functions(
        self, x: Float[Tensor, "batch n d"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "batch n"], tuple[Covariance, ...], Tensor | None]:
        """Values without noise; the kernels and, if finite, the basis that they came from."""


@dataclass(frozen=True, kw_only=True)
class GaussianProcess(Process):
    """Exact samples, with the kernel's full variance."""

    kernel: Covariance | OneOf

    def functions(
        self, x: Float[Tensor, "batch n d"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "batch n"], tuple[Covariance, ...], Tensor | None]:
        kernels = tuple(self.kernel.drawn(generator) for _ in x)
        if len(set(kernels)) == 1:
            return lattice(kernels[0], self.box).draw(x, generator), kernels, None
        each = [
            lattice(kernel, self.box).draw(places.unsqueeze(0), generator)
            for kernel, places in zip(kernels, x, strict=True)
        ]
        return torch.cat(each), kernels, None


@dataclass(frozen=True, kw_only=True)
class RankLimitedProcess(Process):
    """What a Lanczos root of limited rank makes of a Gaussian process: the data of the paper.

    Libraries draw large samples in this way. The functions are smooth combinations of `rank` random
    basis functions and have only a part of the kernel's variance: of 11,000 points on [-6, 6]², a
    twentieth at length-scale 0.1 and half at 0.5.
    """

    kernel: Covariance
    rank: int = 100

    def functions(
        self, x: Float[Tensor, "batch n d"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "batch n"], tuple[Covariance, ...], Tensor | None]:
        kernels = tuple(self.kernel.drawn(generator) for _ in x)
        basis = torch.stack(
            [_lanczos_root(k, p, self.rank, generator) for k, p in zip(kernels, x, strict=True)]
        )
        weights = torch.randn(len(x), basis.shape[-1], 1, generator=generator, dtype=torch.float64)
        return (basis @ weights).squeeze(-1).float(), kernels, basis


@dataclass(frozen=True, kw_only=True)
class Sawtooth(Process):
    """Straight ramps with jumps: along a random direction, with a random frequency and phase.

    Not Gaussian, and nothing a smooth kernel could express.
    """

    frequency: LogUniform = field(default_factory=lambda: LogUniform(0.2, 2.0))
    amplitude: float = 1.0

    def functions(
        self, x: Float[Tensor, "batch n d"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "batch n"], tuple[Covariance, ...], Tensor | None]:
        batch, _, axes = x.shape
        direction = torch.randn(batch, 1, axes, generator=generator)
        direction = direction / direction.norm(dim=-1, keepdim=True)
        frequency = torch.tensor([self.frequency.drawn(generator) for _ in range(batch)])
        phase = torch.rand(batch, 1, generator=generator)
        turns = (x * direction).sum(-1) * frequency.unsqueeze(-1).float() + phase
        return self.amplitude * (2 * (turns % 1.0) - 1), (), None


def stream(
    process: Process, *, seed: int, batch: int, start: int = 0, workers: int = 1, ahead: int = 4
) -> Iterator[SyntheticBatch]:
    """Batches without end, made in the background; `start` skips as many without making them."""
    yield from prefetch(
        lambda index: draw_at(process, seed, index, batch), start, workers=workers, ahead=ahead
    )


def draw_at(process: Process, seed: int, index: int, batch: int) -> SyntheticBatch:
    """The batch number `index` of a seed."""
    state = np.random.SeedSequence((seed, index)).generate_state(2, np.uint32)
    number = int(state[0]) << 32 | int(state[1])
    return process.draw(torch.Generator().manual_seed(number & (2**63 - 1)), batch)


def _lanczos_root(
    kernel: Covariance, x: Float[Tensor, "n d"], rank: int, generator: torch.Generator
) -> Float[Tensor, "n r"]:
    """Q T^½ of so many steps of Lanczos on the covariance of the values at `x`, from a random
    start.
    """
    covariance = kernel.covariance(x, x)
    n = len(x)
    vectors = torch.zeros(min(rank, n), n, dtype=torch.float64)
    v = torch.randn(n, generator=generator, dtype=torch.float64)
    diagonal, beside = [], []
    for step in range(len(vectors)):
        norm = v.norm()
        if step and norm < 1e-10 * math.sqrt(kernel.total * n):
            vectors = vectors[:step]
            break
        if step:
            beside.append(norm)
        vectors[step] = v / norm
        v = covariance @ vectors[step]
        diagonal.append(v @ vectors[step])
        done = vectors[: step + 1]
        for _ in range(2):  # twice is enough to stay orthogonal
            v = v - done.mT @ (done @ v)
    t = torch.diag(torch.stack(diagonal))
    if beside:
        off = torch.stack(beside)
        t = t + torch.diag(off, 1) + torch.diag(off, -1)
    values, rotation = torch.linalg.eigh(t)
    root = vectors.mT @ (rotation * values.clamp_min(0.0).sqrt())
    return torch.nn.functional.pad(root, (0, rank - root.shape[1]))
