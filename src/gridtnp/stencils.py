"""Smooth neighbourhoods: grid points around a location, with weights that fade in and out.

Smooth encoders and decoders weigh grid points by continuous functions of the location, so that
nothing jumps where a neighbourhood changes: at the borders of cells, at the seam of a periodic
axis, and at the poles, where all longitudes are one place. Around each pole a node is added to the
grid, which stands for the row of cells next to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gridtnp import ops
from gridtnp.grid import Grid
from gridtnp.ops.stencils import WAVES, nodes_along, per_pole

FEATURES = 2 * WAVES
"""Features of an offset along one axis: sines, then cosines."""


@dataclass(frozen=True, eq=False)
class Stencil:
    """Nodes around locations, their weights, and features of the offsets from them.

    The nodes are the product of `nodes` along each axis, then `poles` of the nearer pole, if any.
    Features are those of the rows along the first axis, then the second, and so on.
    """

    index: Int[Tensor, "batch n k"]
    weight: Float[Tensor, "batch n k"]
    features: Float[Tensor, "batch n rows f"]
    nodes: tuple[int, ...]
    poles: int

    @property
    def log_weight(self) -> Float[Tensor, "batch n k"]:
        """-inf for weights of zero, with finite gradients."""
        tiny = torch.finfo(self.weight.dtype).tiny
        return self.weight.clamp_min(tiny).log().masked_fill(~(self.weight > 0), -torch.inf)

    def along_axes(self) -> tuple[Float[Tensor, "batch n _ f"], ...]:
        """The features of each axis."""
        return self.features.split(list(self.nodes), 2)


def stencil(grid: Grid, x: Float[Tensor, "batch n dx"], width: Sequence[int]) -> Stencil:
    """The nodes around locations: `width` grid points per axis, and the nearer pole."""
    nodes = nodes_along(grid, width)
    index, weight, features = ops.stencil(x, grid, width)
    return Stencil(index, weight, features, nodes, index.shape[-1] - math.prod(nodes))


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
    north = (poles - grid.size >= per_pole(grid)).unsqueeze(-1)
    at_poles = torch.where(lat, torch.where(north, 90.0, -90.0).to(x.dtype), at_poles)
    return torch.cat([grid.points_at(cells, x.dtype), at_poles], 2)


def node_count(grid: Grid) -> int:
    """Number of grid points and poles."""
    return grid.size + (2 * per_pole(grid) if grid.polar else 0)


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
