"""The prior over fields that the model is pretrained on, with exact posteriors where there are any.

A field is a Gaussian process whose kernel is drawn anew for every task: squared exponential or
Matérn, sums of two, anisotropic, in warped coordinates, of varying amplitude, with fronts, with
trends, with heavy-tailed noise, or transformed to another marginal distribution. A kind of tasks
has one of these features for certain; training mixes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Normal

from gridtnp.pretrain.designs import draw_places
from gridtnp.task import PointSet, Task

SOURCE = "observations"
KINDS = (
    "squared exponential",
    "Matérn 1/2",
    "Matérn 3/2",
    "Matérn 5/2",
    "sum",
    "anisotropic",
    "warped",
    "varying amplitude",
    "fronts",
    "trend",
    "heavy tails",
    "transformed",
)
FEATURES = KINDS[4:]
SHARE = dict(zip(FEATURES, (0.25, 0.3, 0.12, 0.12, 0.1, 0.15, 0.15, 0.08), strict=True))
"""Probability of each feature in training; features occur together."""
JITTER = 1e-7


@dataclass(frozen=True)
class FieldTasks:
    """A batch of tasks and what they were drawn from."""

    task: Task
    covariance: Float[Tensor, "batch nm nm"]
    """Of the noise-free values: observations first."""
    noise: Float[Tensor, " batch"]
    exact: Bool[Tensor, " batch"]
    """Whether the task is a Gaussian process with Gaussian noise."""

    def posterior(self) -> Normal:
        """Of the targets (batch, m, 1), noise included; only meaningful for `exact` tasks."""
        context = self.task.context[SOURCE]
        n, variance = context.n, self.noise.square()[:, None]
        assert context.y is not None
        k = self.covariance[:, :n, :n] + torch.diag_embed(variance.expand(-1, n))
        root = torch.linalg.cholesky(k)
        half = torch.linalg.solve_triangular(root, self.covariance[:, :n, n:], upper=False)
        white = torch.linalg.solve_triangular(root, context.y.double(), upper=False)
        own = self.covariance.diagonal(dim1=-2, dim2=-1)[:, n:]
        rest = (own - half.square().sum(1)).clamp_min(0) + variance
        return Normal(half.mT @ white, rest.sqrt().unsqueeze(-1))


@dataclass(frozen=True)
class FieldPrior:
    """Random fields; `kind` makes one feature certain and all others absent."""

    kind: str | None = None

    def draw(
        self, generator: torch.Generator, batch: int, observed: int, targets: int
    ) -> FieldTasks:
        """A batch of tasks with this number of observations and targets each."""
        drawn = [self._one(generator, observed, targets) for _ in range(batch)]
        x, y, k, noise, exact = (list(column) for column in zip(*drawn, strict=True))
        places, values = torch.stack(x).float(), torch.stack(y).unsqueeze(-1).float()
        context = PointSet(places[:, :observed], values[:, :observed])
        task = Task({SOURCE: context}, PointSet(places[:, observed:], values[:, observed:]))
        return FieldTasks(task, torch.stack(k), torch.tensor(noise).double(), torch.tensor(exact))

    def _one(
        self, generator: torch.Generator, observed: int, targets: int
    ) -> tuple[Tensor, Tensor, Tensor, float, bool]:
        def uniform(low: float, high: float) -> float:
            u = torch.rand((), generator=generator, dtype=torch.float64).item()
            return low + (high - low) * u

        if self.kind is None:
            features = {name for name, share in SHARE.items() if uniform(0, 1) < share}
        else:
            features = {self.kind} & set(FEATURES)
        x = torch.cat(draw_places(observed, targets, generator)).float().double()
        extent = math.sqrt(observed)
        centred = x - x.mean(0)

        def smoothness() -> int:
            named = KINDS[:4].index(self.kind) if self.kind in KINDS[:4] else None
            return int(uniform(0, 4)) if named is None else named

        def length() -> float:
            return math.exp(uniform(math.log(0.4), math.log(max(2.0 * extent, 8.0))))

        def wave(longest: float) -> Tensor:
            """A smooth random function with values around ±1."""
            total = torch.zeros(len(x), dtype=torch.float64)
            for _ in range(3):
                angle, phase = uniform(0, 2 * math.pi), uniform(0, 2 * math.pi)
                period = extent * math.exp(uniform(math.log(0.4), math.log(longest)))
                along = centred[:, 0] * math.cos(angle) + centred[:, 1] * math.sin(angle)
                total += torch.sin(2 * math.pi * along / period + phase)
            return total / 1.5**0.5

        places = centred
        if "warped" in features:
            by = uniform(0.1, 0.35) * extent
            places = places + by * torch.stack([wave(3.0), wave(3.0)], -1) / 2
        if "anisotropic" in features:
            angle, ratio = uniform(0, math.pi), math.exp(uniform(0.2, 1.0))
            c, s = math.cos(angle), math.sin(angle)
            turn = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
            stretch = torch.tensor([ratio, 1 / ratio], dtype=torch.float64)
            places = (places @ turn) * stretch
        k = correlation(_distance(places), length(), smoothness())
        if "sum" in features:
            share = uniform(0.1, 0.9)
            k = share * k + (1 - share) * correlation(_distance(places), length(), smoothness())
        if "varying amplitude" in features:
            amplitude = torch.exp(uniform(0.3, 0.9) * wave(3.0))
            k = k * amplitude[:, None] * amplitude
        if "fronts" in features:
            side = (wave(2.0) > uniform(-0.7, 0.7)).double()
            same = side[:, None] == side
            k = k * torch.where(same, 1.0, uniform(0, 0.7))
            k = k + math.exp(uniform(-0.7, 1.2)) * same
        if "trend" in features:
            slope = math.exp(uniform(-1, 1.5)) * 3 / extent**2
            k = k + slope * centred @ centred.mT
        noise = math.exp(uniform(math.log(0.01), 0.0))
        k = k + math.exp(uniform(-4, 1)) + JITTER * torch.eye(len(x), dtype=torch.float64)
        normal = torch.randn(2, len(x), generator=generator, dtype=torch.float64)
        f = torch.linalg.cholesky(k) @ normal[0]
        exact = not features & {"heavy tails", "transformed"}
        error = noise * normal[1]
        if "heavy tails" in features:
            error = error * _heavy(len(x), uniform(0, 1), generator)
        if "transformed" in features:
            f = _transformed(f, int(uniform(0, 4)), uniform(0.3, 1.2))
        return x, f + error, k, noise, exact


def correlation(r: Tensor, length: float, smoothness: int) -> Tensor:
    """Squared exponential (0) or Matérn with smoothness 1/2, 3/2, 5/2 (1, 2, 3)."""
    if smoothness == 0:
        return torch.exp(-0.5 * (r / length).square())
    s = r * (math.sqrt(2 * smoothness - 1) / length)
    polynomial = (1.0, 1 + s, 1 + s + s.square() / 3)[smoothness - 1]
    return polynomial * torch.exp(-s)


def _distance(x: Tensor) -> Tensor:
    return (x[:, None] - x).square().sum(-1).sqrt()


def _heavy(n: int, which: float, generator: torch.Generator) -> Tensor:
    """Factors of normal errors: of Student's t with 2 to 5 degrees of freedom, or outliers."""
    if which < 0.5:
        freedom = 2 + int(8 * which)
        squares = torch.randn(n, freedom, generator=generator, dtype=torch.float64).square()
        return squares.mean(1).rsqrt()
    rate = 0.02 + 0.2 * (which - 0.5)
    gross = torch.rand(n, generator=generator) < rate
    return torch.where(gross, 3 + 20 * torch.rand(n, generator=generator), 1.0).double()


def _transformed(f: Tensor, which: int, by: float) -> Tensor:
    """A marginal distribution that is not normal, with about the same spread."""
    match which:
        case 0:
            return (torch.exp(by * f) - 1) / by
        case 1:
            return torch.sinh(by * f) / by
        case 2:
            return torch.tanh(2 * by * f) / by
        case _:
            return f.clamp_min(-by / 2)


def draw_at(
    prior: FieldPrior, seed: Sequence[int], batch: int, observed: int, targets: int
) -> FieldTasks:
    """The tasks of a seed, the same on every machine."""
    return prior.draw(_generator(seed), batch, observed, targets)


def training_tasks(
    seed: int, start: int, most: int = 800, targets: int = 128, budget: int = 1600
) -> Iterator[Task]:
    """Endless batches from number `start`: from 8 to `most` observations, fewer tasks if many."""
    index = start
    while True:
        generator = _generator((seed, index))
        u = torch.rand((), generator=generator, dtype=torch.float64).item()
        observed = round(8 * (most / 8) ** u)
        batch = max(2, min(12, budget // (observed + targets)))
        yield FieldPrior().draw(generator, batch, observed, targets).task
        index += 1


def _generator(seed: Sequence[int]) -> torch.Generator:
    state = np.random.SeedSequence(tuple(seed)).generate_state(2, np.uint32)
    return torch.Generator().manual_seed((int(state[0]) << 31) | int(state[1]) >> 1)
