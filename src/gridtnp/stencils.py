"""Smooth neighbourhoods: grid points around a location, with weights that fade in and out.

Smooth encoders and decoders weigh grid points by continuous functions of the location, so that
nothing jumps where a neighbourhood changes: at the borders of cells, at the seam of a periodic
axis, and at the poles, where all longitudes are one place. Around each pole a node is added to the
grid, which stands for the row of cells next to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gridtnp.grid import Grid, polar_fade

WAVES = 3
"""Wavelengths of an offset's features: twice the width of the neighbourhood, and fractions."""
FEATURES = 2 * WAVES
"""Features of an offset along one axis: sines, then cosines."""


@dataclass(frozen=True, eq=False)
class Stencil:
    """Nodes around locations, their weights, and the offset from the first one, in cells.

    The nodes are the product of `nodes` along each axis, then `poles` of the nearer pole, if any.
    """

    index: Int[Tensor, "batch n k"]
    weight: Float[Tensor, "batch n k"]
    offset: Float[Tensor, "batch n dx"]
    width: tuple[int, ...]
    nodes: tuple[int, ...]
    poles: int

    @property
    def valid(self) -> Bool[Tensor, "batch n k"]:
        return self.weight > 0

    @property
    def log_weight(self) -> Float[Tensor, "batch n k"]:
        """Finite everywhere; use `valid` for weights of zero."""
        return self.weight.clamp_min(torch.finfo(torch.float32).tiny).log()

    def features(self) -> Float[Tensor, "batch n dx f"]:
        """Smooth features of the offset from the first node along each axis: sines and cosines."""
        angle = self.offset.unsqueeze(-1) * self._waves(self.offset)
        return torch.cat([angle.sin(), angle.cos()], -1)

    def turns(self, cells: Float[Tensor, "k _"]) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angle between the features of the first node and of others.

        `cells` is the way to them along each axis, or along any. The features s, c of the first
        node become s · cos - c · sin and c · cos + s · sin.
        """
        angle = (cells.unsqueeze(-1) * self._waves(cells)).repeat(1, 1, 2)
        return angle.cos(), angle.sin()

    def cells(self, like: Tensor) -> Float[Tensor, "k dx"]:
        """The way from the first node to each in cells, without those of the pole."""
        along = [torch.arange(n, dtype=like.dtype, device=like.device) for n in self.nodes]
        return torch.stack(torch.meshgrid(along, indexing="ij"), -1).flatten(0, -2)

    def _waves(self, like: Tensor) -> Float[Tensor, "dx waves"]:
        """Angles per cell along each axis."""
        waves = torch.arange(1, WAVES + 1, dtype=like.dtype, device=like.device)
        return waves * (math.pi / like.new_tensor(self.width)).unsqueeze(-1)


def stencil(grid: Grid, x: Float[Tensor, "batch n dx"], width: Sequence[int]) -> Stencil:
    """The nodes around locations: `width` grid points per axis, and the nearer pole."""
    width = grid.per_axis(width, "neighbourhood widths")
    axes = {
        a.name: (a.size, *a.faded(coordinate, w))
        for a, coordinate, w in zip(grid.axes, x.unbind(-1), width, strict=True)
    }
    offset = torch.stack([offset[..., 0] for *_, offset in axes.values()], -1)
    nodes = tuple(offset.shape[-1] for *_, offset in axes.values())
    index, weight = _product(x, axes)
    if not grid.polar:
        return Stencil(index, weight, offset, width, nodes, 0)
    latitude = x[..., [grid.names.index("lat")]]
    pole, pole_weight = _product(x, {n: a for n, a in axes.items() if n not in ("lat", "lon")})
    pole = pole + grid.size + (latitude > 0).long() * _per_pole(grid)
    away = polar_fade(latitude, grid.axis("lat").step)
    index = torch.cat([index, pole], -1)
    weight = torch.cat([weight * away, pole_weight * (1 - away)], -1)
    return Stencil(index, weight, offset, width, nodes, pole.shape[-1])


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
