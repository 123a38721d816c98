"""Gridded sources as features: their values at any point, by bilinear interpolation.

The points of a gridded source are put back onto their own grid, so that interpolation sees what the
source resolves, however coarse the grid of the network is. Missing grid points are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gridtnp import ops
from gridtnp.config import GriddedField
from gridtnp.grid import Axis, Grid
from gridtnp.task import PointSet

FAINT = 1e-6
"""Weight of a grid point more than a cell away, so that the edge's value is used beyond it."""


@dataclass(frozen=True, eq=False)
class Raster:
    """The values of a gridded source in a batch of tasks, on its own grid.

    `origin` is the first grid point of each task: tasks may be shifted over the network's grid.
    """

    field: GriddedField
    grid: Grid
    origin: Float[Tensor, "batch dx"]
    values: Float[Tensor, "batch m c"]
    known: Bool[Tensor, "batch m"]

    @classmethod
    def of(cls, field: GriddedField, points: PointSet) -> Raster:
        """From the observations of the source."""
        assert points.y is not None
        points = replace(points, x=points.x.double(), y=points.y.double())
        assert points.y is not None
        grid = Grid(tuple(Axis(a.name, 0.0, 1.0, a.size, a.periodic) for a in field.grid.axes))
        used = torch.ones_like(points.x[..., 0]) > 0 if points.mask is None else points.mask
        beyond = points.x.new_full((points.batch, 1, len(grid.axes)), torch.inf)
        first = torch.cat([torch.where(used[..., None], points.x, torch.inf), beyond], 1).amin(1)
        origin = torch.stack(
            [
                torch.full_like(first[:, i], axis.low)
                if axis.name == "time"
                else first[:, i].nan_to_num(posinf=0.0)
                for i, axis in enumerate(field.grid.axes)
            ],
            -1,
        )
        raster = cls(field, grid, origin, points.y, used)
        cell = grid.nearest(raster.position(points.x))[..., None]
        weight = used[..., None].to(points.y.dtype)
        values = points.y[..., list(field.columns)]
        total = ops.cell_sum(values, cell, weight, grid.size)
        count = ops.cell_sum(torch.ones_like(weight), cell, weight, grid.size)
        if "time" in grid.names:  # a place without a value at one time has that of the nearest
            axis = 1 + grid.names.index("time")
            total, count = (t.unflatten(1, grid.shape) for t in (total, count))
            nearest = _nearest_known(count > 0, axis)
            total, count = (
                t.gather(axis, nearest.expand_as(t)).flatten(1, -2) for t in (total, count)
            )
        return cls(field, grid, origin, total / count.clamp_min(1), count[..., 0] > 0)

    def position(self, x: Float[Tensor, "batch n dx"]) -> Float[Tensor, "batch n dx"]:
        """Coordinates in units of the spacing, from the first grid point."""
        step = x.new_tensor([axis.step for axis in self.field.grid.axes])
        return (x - self.origin[:, None]) / step

    def at(self, x: Float[Tensor, "batch n dx"]) -> Float[Tensor, "batch n c"]:
        """Bilinear interpolation in space, at the nearest time; zero without any value around."""
        x, grid = x.double(), self.grid
        position = self.position(x)
        width = [1 if axis.name == "time" else min(2, axis.size) for axis in grid.axes]
        index, valid = ops.neighbours(position, grid, width)
        apart = grid.offset(grid.points_at(index, x.dtype), position[:, :, None]).abs()
        tent = (1 - apart).clamp_min(FAINT)
        space = [i for i, axis in enumerate(grid.axes) if axis.name != "time"]
        element = torch.arange(len(x), device=x.device)[:, None, None]
        weight = tent[..., space].prod(-1) * (valid & self.known[element, index])
        found = torch.einsum("bnk,bnkc->bnc", weight, self.values[element, index])
        return found / weight.sum(-1, keepdim=True).clamp_min(FAINT**3)


def _nearest_known(known: Bool[Tensor, "*shape"], axis: int) -> Int[Tensor, "*shape"]:
    """Of every entry, where the nearest that is known is along an axis; of two, the earlier."""
    size = known.shape[axis]
    shape = [size if i == axis else 1 for i in range(known.ndim)]
    place = torch.arange(size, device=known.device).view(shape).expand_as(known)
    before = torch.where(known, place, -1).cummax(axis).values
    after = torch.where(known, place, size).flip(axis).cummin(axis).values.flip(axis)
    far = (before < 0) | ((after < size) & (after - place < place - before))
    return torch.where(far, after, before).clamp(0, size - 1)


def rasters(fields: Sequence[GriddedField], context: Mapping[str, PointSet]) -> list[Raster]:
    """The values of all fields, as rasters to sample from."""
    return [Raster.of(field, context[field.source]) for field in fields]


def sample(
    given: Sequence[Raster], x: Float[Tensor, "batch n dx"], skip: str | None = None
) -> Float[Tensor, "batch n c"]:
    """All fields at some points; zero for the fields of the source `skip`."""
    found = [
        torch.zeros((*x.shape[:2], len(raster.field.columns)), dtype=torch.float64, device=x.device)
        if raster.field.source == skip
        else raster.at(x)
        for raster in given
    ]
    return torch.cat([x[..., :0].double(), *found], -1)
