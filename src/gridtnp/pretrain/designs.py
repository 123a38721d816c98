"""Where observations and targets are: uniform, clustered, along tracks, with holes, on lattices.

All designs fill a rectangle with about one observation per unit of area, so that lengths count in
spacings of observations.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

REPLICATED = 0.15
"""Share of the tasks in which some places are observed repeatedly."""
OUT = 0.1
"""Share of the rectangle's sides by which targets may lie outside."""


def draw_places(
    observed: int, targets: int, generator: torch.Generator
) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "m 2"]]:
    """Places of observations and targets, in spacings.

    Targets are anywhere in the rectangle, or distributed as the observations are.
    """
    ratio = math.exp(_uniform(generator, -0.7, 0.7))
    side = math.sqrt(observed) * torch.tensor([ratio**0.5, ratio**-0.5], dtype=torch.float64)
    kind = int(torch.multinomial(_WEIGHTS, 1, generator=generator))
    alike = _uniform(generator, 0, 1) < 0.4
    made = _DESIGNS[kind](observed + targets * alike, generator)
    made = made[torch.randperm(len(made), generator=generator)] if alike else made
    x = made[:observed]
    if _uniform(generator, 0, 1) < REPLICATED and observed > 2:
        fraction = _uniform(generator, 0.05, 0.7)
        again = torch.rand(observed, generator=generator) < fraction
        places = x[torch.randint(max(1, observed // 2), (observed,), generator=generator)]
        x = torch.where(again[:, None], places, x)
    if alike:
        at = made[observed:]
    else:
        at = (1 + 2 * OUT) * _random(targets, generator) - OUT
        inside = torch.rand(targets, 1, generator=generator) < 0.8
        at = torch.where(inside, at.clamp(0, 1), at)
    turn = _uniform(generator, 0, 2 * math.pi)
    rotation = _rotation(turn)
    return (x * side) @ rotation, (at * side) @ rotation


def _rotation(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, s], [-s, c]], dtype=torch.float64)


def _uniform(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64).item()


def _random(n: int, generator: torch.Generator) -> Tensor:
    return torch.rand(n, 2, generator=generator, dtype=torch.float64)


def _normal(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, 2, generator=generator, dtype=torch.float64)


def _clustered(n: int, generator: torch.Generator) -> Tensor:
    """Around random centres, as stations are in valleys and towns."""
    clusters = max(1, int(n / math.exp(_uniform(generator, 1.0, 3.5))))
    centres = _random(clusters, generator)
    width = math.exp(_uniform(generator, -3.5, -1.0)) / math.sqrt(clusters) * 2
    own = torch.randint(clusters, (n,), generator=generator)
    x = centres[own] + width * _normal(n, generator)
    background = torch.rand(n, 1, generator=generator) < _uniform(generator, 0, 0.5)
    return torch.where(background, _random(n, generator), x)


def _tracks(n: int, generator: torch.Generator) -> Tensor:
    """Along straight or bent lines, as ships and satellites measure."""
    tracks = max(1, int(math.exp(_uniform(generator, 0.0, 0.6 * math.log(n + 1)))))
    own = torch.randint(tracks, (n,), generator=generator)
    start, end = _random(tracks, generator), _random(tracks, generator)
    parallel = _uniform(generator, 0, 1) < 0.4
    if parallel:
        end = start + (end[:1] - start[:1])
    t = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    bend = _normal(tracks, generator)[own] * 0.2 * torch.sin(math.pi * t)
    width = math.exp(_uniform(generator, -7, -3))
    return start[own] + t * (end - start)[own] + bend + width * _normal(n, generator)


def _holed(n: int, generator: torch.Generator) -> Tensor:
    """Everywhere but in a few discs."""
    holes = 1 + int(_uniform(generator, 0, 4))
    centre, found = _random(holes, generator), torch.zeros(0, 2, dtype=torch.float64)
    radius = torch.rand(holes, generator=generator, dtype=torch.float64) * 0.3 + 0.08
    for _ in range(20):
        x = _random(2 * n, generator)
        kept = (torch.cdist(x, centre) > radius).all(1)
        found = torch.cat([found, x[kept]])
        if len(found) >= n:
            return found[:n]
    return torch.cat([found, _random(n, generator)])[:n]


def _lattice(n: int, generator: torch.Generator) -> Tensor:
    """A lattice whose points are displaced a little, or not at all."""
    columns = max(1, round(math.sqrt(n)))
    rows = math.ceil(n / columns)
    index = torch.arange(rows * columns)[torch.randperm(rows * columns, generator=generator)][:n]
    x = torch.stack([index % columns + 0.5, index // columns + 0.5], -1).double()
    jitter = max(0.0, _uniform(generator, -0.2, 0.5))
    x = x + jitter * (_random(n, generator) - 0.5)
    return x / torch.tensor([columns, rows], dtype=torch.float64)


def _graded(n: int, generator: torch.Generator) -> Tensor:
    """Denser towards one side."""
    power = math.exp(_uniform(generator, -1.2, 1.2))
    x = _random(n, generator)
    return torch.stack([x[:, 0] ** power, x[:, 1]], -1)


_DESIGNS: tuple[Callable[[int, torch.Generator], Tensor], ...] = (
    _random,
    _clustered,
    _tracks,
    _holed,
    _lattice,
    _graded,
)
_WEIGHTS = torch.tensor([0.4, 0.2, 0.1, 0.1, 0.08, 0.12])
