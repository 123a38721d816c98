"""Smooth neighbourhoods: grid points around a location, with weights that fade in and out.

Smooth encoders and decoders weigh grid points by continuous functions of the location, so that
nothing jumps where a neighbourhood changes: at the borders of cells, at the seam of a periodic
axis, and at the poles, where all longitudes are one place. Around each pole a node is added to the
grid, which stands for the row of cells next to it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gridtnp.grid import Grid, polar_fade

WAVES = 3
"""Wavelengths of an offset's features: twice the width of the neighbourhood, and fractions."""


@dataclass(frozen=True, eq=False)
class Stencil:
    """Nodes around locations, their weights, and the offsets along each axis, in cells.

    The nodes are the product of those along each axis, then those of the nearer pole, if any.
    """

    index: Int[Tensor, "batch n k"]
    weight: Float[Tensor, "batch n k"]
    offsets: tuple[Float[Tensor, "batch n _"], ...]
    width: tuple[int, ...]
    poles: int

    @property
    def valid(self) -> Bool[Tensor, "batch n k"]:
        return self.weight > 0

    @property
    def log_weight(self) -> Float[Tensor, "batch n k"]:
        """Finite everywhere; use `valid` for weights of zero."""
        return self.weight.clamp_min(torch.finfo(torch.float32).tiny).log()

    def features(self) -> list[Float[Tensor, "batch n _ f"]]:
        """Smooth features of the offsets along each axis: sines and cosines."""
        found = []
        for offset, width in zip(self.offsets, self.width, strict=True):
            waves = torch.arange(1, WAVES + 1, dtype=offset.dtype, device=offset.device)
            angle = offset.unsqueeze(-1) * (waves * (math.pi / width))
            found.append(torch.cat([angle.sin(), angle.cos()], -1))
        return found


def stencil(grid: Grid, x: Float[Tensor, "batch n dx"], width: Sequence[int]) -> Stencil:
    """The nodes around locations: `width` grid points per axis, and the nearer pole."""
    width = grid.per_axis(width, "neighbourhood widths")
    axes = {
        a.name: (a.size, *a.faded(coordinate, w))
        for a, coordinate, w in zip(grid.axes, x.unbind(-1), width, strict=True)
    }
    offsets = tuple(offset for *_, offset in axes.values())
    index, weight = _product(x, axes)
    if not grid.polar:
        return Stencil(index, weight, offsets, width, 0)
    latitude = x[..., [grid.names.index("lat")]]
    pole, pole_weight = _product(x, {n: a for n, a in axes.items() if n not in ("lat", "lon")})
    pole = pole + grid.size + (latitude > 0).long() * _per_pole(grid)
    away = polar_fade(latitude, grid.axis("lat").step)
    index = torch.cat([index, pole], -1)
    weight = torch.cat([weight * away, pole_weight * (1 - away)], -1)
    return Stencil(index, weight, offsets, width, pole.shape[-1])


def _product(
    x: Tensor, axes: Mapping[str, tuple[int, Tensor, Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Flat indices and weights of the product of some axes."""
    weight = torch.ones_like(x[..., :1])
    flat = torch.zeros_like(weight, dtype=torch.long)
    for size, index, along, _ in axes.values():
        flat = (flat.unsqueeze(-1) * size + index.unsqueeze(-2)).flatten(-2)
        weight = (weight.unsqueeze(-1) * along.unsqueeze(-2)).flatten(-2)
    return flat, weight


def stencil_points(
    grid: Grid, x: Float[Tensor, "batch n dx"], near: Stencil
) -> Float[Tensor, "batch n k dx"]:
    """Locations of the nodes of a stencil."""
    if not near.poles:
        return grid.points_at(near.index, x.dtype)
    cells, poles = near.index[..., : -near.poles], near.index[..., -near.poles :]
    rows = torch.cat([row[:, 0] for row in polar_rows(grid, x)])
    at_poles = grid.points_at(rows[poles - grid.size], x.dtype)
    lat = torch.tensor([name == "lat" for name in grid.names], device=x.device)
    north = (poles - grid.size >= _per_pole(grid)).unsqueeze(-1)
    at_poles = torch.where(lat, torch.where(north, 90.0, -90.0).to(x.dtype), at_poles)
    return torch.cat([grid.points_at(cells, x.dtype), at_poles], 2)


def node_count(grid: Grid) -> int:
    """Number of grid points and poles."""
    return grid.size + (2 * _per_pole(grid) if grid.polar else 0)


def with_poles(grid: Grid, u: Float[Tensor, "batch m d"]) -> Float[Tensor, "batch nodes d"]:
    """Append the poles to the grid points: each is the mean of the row of cells next to it."""
    if not grid.polar:
        return u
    rows = [u[:, row.flatten()].unflatten(1, row.shape).mean(2) for row in polar_rows(grid, u)]
    return torch.cat([u, *rows], 1)


def polar_rows(grid: Grid, like: Tensor) -> tuple[Int[Tensor, "p lon"], Int[Tensor, "p lon"]]:
    """Grid points of the rows next to the south and the north pole."""
    lat, lon = grid.names.index("lat"), grid.names.index("lon")
    flat = torch.arange(grid.size, device=like.device).view(grid.shape).movedim((lat, lon), (0, -1))
    columns = flat.shape[-1]
    return flat[0].reshape(-1, columns), flat[-1].reshape(-1, columns)


def _per_pole(grid: Grid) -> int:
    """Nodes per pole: one, or one for each grid point along the other axes."""
    return grid.size // (grid.axis("lat").size * grid.axis("lon").size)


class OffsetKeys(nn.Module):
    """Learned keys for the offset between a location and a grid point, as a bias of attention."""

    def __init__(self, axes: int, heads: int, dim: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.zeros(axes, 2 * WAVES, heads, dim))

    def forward(
        self, query: Float[Tensor, "batch n heads dh"], features: Sequence[Tensor]
    ) -> Float[Tensor, "batch n k heads"]:
        logits = torch.einsum("bnhd,afhd->abnfh", query, self.keys * query.shape[-1] ** -0.5)
        terms = [
            (along.to(query.dtype).unsqueeze(-1) * logit.unsqueeze(2)).sum(3)
            for along, logit in zip(features, logits, strict=True)
        ]
        return functools.reduce(_outer_sum, terms)


class OffsetLogits(nn.Module):
    """A learned logit per head for the offset between a token and a grid point."""

    def __init__(self, axes: int, heads: int) -> None:
        super().__init__()
        self.axes = nn.ModuleList(nn.Linear(2 * WAVES, heads, bias=False) for _ in range(axes))

    def forward(self, features: Sequence[Tensor]) -> Float[Tensor, "batch n k heads"]:
        terms = [
            cast(nn.Linear, linear)(along.to(cast(nn.Linear, linear).weight.dtype))
            for linear, along in zip(self.axes, features, strict=True)
        ]
        return functools.reduce(_outer_sum, terms)


class OffsetGates(nn.Module):
    """Gates on the channels of a token, learned functions of its offset from a grid point.

    A token reaches several grid points; the gates tell each of them where it is seen from.
    """

    def __init__(self, axes: int, dim: int) -> None:
        super().__init__()
        self.axes = nn.ModuleList(nn.Linear(2 * WAVES, dim) for _ in range(axes))
        for linear in self.axes:
            nn.init.ones_(cast(nn.Linear, linear).bias)

    def forward(
        self, z: Float[Tensor, "batch n dz"], features: Sequence[Tensor]
    ) -> Float[Tensor, "batch n k dz"]:
        z = z.unsqueeze(2)
        for linear, along in zip(self.axes, features, strict=True):
            gate = linear(along.to(z.dtype))
            z = (z.unsqueeze(3) * gate.unsqueeze(2)).flatten(2, 3)
        return z


def _outer_sum(
    a: Float[Tensor, "batch n k heads"], b: Float[Tensor, "batch n w heads"]
) -> Float[Tensor, "batch n _ heads"]:
    """The sums of all pairs."""
    return (a.unsqueeze(3) + b.unsqueeze(2)).flatten(2, 3)
