"""Nodes of a grid around locations, also with weights that fade in and out: PyTorch, and C.

C (stencils.c) computes sines and cosines once per location and axis; those of other nodes are
turned by the angle between them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gridtnp.grid import Grid, polar_fade
from gridtnp.ops import native

WAVES = 3
"""Wavelengths of an offset's features: twice the width of the neighbourhood, and fractions."""

Nodes = tuple[Tensor, Tensor, Tensor]
"""Flat indices and weights of nodes, and features of the offsets along each axis."""


def nodes_along(grid: Grid, width: Sequence[int]) -> tuple[int, ...]:
    """Number of nodes along each axis: the width, or one where there is only one grid point."""
    return tuple(
        w if a.size > 1 or a.periodic else 1 for a, w in zip(grid.axes, width, strict=True)
    )


def per_pole(grid: Grid) -> int:
    """Nodes per pole: one, or one for each grid point along the other axes."""
    return grid.size // (grid.axis("lat").size * grid.axis("lon").size)


def check_nodes(
    op: str, nodes: Sequence[int], of_axes: Tensor, features: Tensor, index: Tensor
) -> None:
    """Raise unless the nodes along each axis fit the axes, rows of features and nodes."""
    axes, rows, k = len(of_axes), features.shape[2], index.shape[-1]
    if len(nodes) != axes or sum(nodes) != rows or not 1 <= math.prod(nodes) <= k:
        raise ValueError(
            f"{op}: 'nodes' must fit {axes} axes, {rows} rows of features and {k} nodes, got "
            f"{tuple(nodes)}."
        )


def plain(x: Tensor, grid: Grid, width: Sequence[int]) -> Nodes:
    axes, features = {}, []
    for axis, coordinate, w in zip(grid.axes, x.unbind(-1), width, strict=True):
        index, weight, offset = axis.faded(coordinate, w)
        axes[axis.name] = (axis.size, index, weight)
        waves = torch.arange(1, WAVES + 1, dtype=x.dtype, device=x.device) * (math.pi / w)
        angle = offset.unsqueeze(-1) * waves
        features.append(torch.cat([angle.sin(), angle.cos()], -1))
    index, weight = _product(x, axes)
    if grid.polar:
        latitude = x[..., [grid.names.index("lat")]]
        pole, pole_weight = _product(x, {n: a for n, a in axes.items() if n not in ("lat", "lon")})
        pole = pole + grid.size + (latitude > 0).long() * per_pole(grid)
        away = polar_fade(latitude, grid.axis("lat").step)
        index = torch.cat([index, pole], -1)
        weight = torch.cat([weight * away, pole_weight * (1 - away)], -1)
    return index, weight, torch.cat(features, -2)


def _product(x: Tensor, axes: Mapping[str, tuple[int, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Flat indices and weights of the product of some axes."""
    weight = torch.ones_like(x[..., :1])
    flat = torch.zeros_like(weight, dtype=torch.long)
    for size, index, along in axes.values():
        flat = (flat.unsqueeze(-1) * size + index.unsqueeze(-2)).flatten(-2)
        weight = (weight.unsqueeze(-1) * along.unsqueeze(-2)).flatten(-2)
    return flat, weight


def why_not(x: Tensor, *_: object) -> str | None:
    """The reason why C cannot run with these arguments."""
    if x.requires_grad and torch.is_grad_enabled():
        return "gradients with respect to locations are needed"
    return native.why_not(x)


def in_c(x: Tensor, grid: Grid, width: Sequence[int]) -> Nodes:
    (*about, tables), (rows, k) = _layout(grid, tuple(width))
    batch, n, axes = x.shape
    index = torch.empty((batch, n, k), dtype=torch.long, device=x.device)
    weight, features = x.new_empty(batch, n, k), x.new_empty(batch, n, rows, 2 * WAVES)
    given = (*about, *tables, native.contiguous(x.detach()), index, weight, features)
    native.call("stencil", batch * n, axes, rows, k, WAVES, *given)
    return index, weight, features


def neighbours(x: Tensor, grid: Grid, width: Sequence[int]) -> tuple[Tensor, Tensor]:
    return grid.neighbours(x, width)


def why_not_neighbours(x: Tensor, grid: Grid, width: Sequence[int]) -> str | None:
    """The reason why C cannot run with these arguments; it takes locations of any precision."""
    if min(width) < 1 or x.shape[-1] != len(grid.axes):
        return "the widths or the coordinates do not fit the grid"
    return native.why_not(x, precision=x.dtype)


def neighbours_in_c(x: Tensor, grid: Grid, width: Sequence[int]) -> tuple[Tensor, Tensor]:
    tables, k = _axes(grid, tuple(width), tuple(width)), math.prod(width)
    batch, n, axes = x.shape
    index = torch.empty((batch, n, k), dtype=torch.long, device=x.device)
    valid = torch.empty((batch, n, k), dtype=torch.bool, device=x.device)
    given = (*tables, native.contiguous(x.detach().double()), index, valid)
    native.call("neighbours", batch * n, axes, k, *given)
    return index, valid


@functools.lru_cache(maxsize=64)
def _axes(grid: Grid, width: tuple[int, ...], nodes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Where the axes of a grid begin, and their sizes, for C."""
    sizes = [(a.size, a.periodic, w, n) for a, w, n in zip(grid.axes, width, nodes, strict=True)]
    return (
        torch.tensor([(a.low, a.step) for a in grid.axes], dtype=torch.float64, device="cpu"),
        torch.tensor(sizes, dtype=torch.int64, device="cpu"),
    )


@functools.lru_cache(maxsize=64)
def _layout(grid: Grid, width: tuple[int, ...]) -> tuple[tuple, tuple[int, int]]:
    """Axes and poles for C, and the number of nodes along all axes and in total."""
    nodes = nodes_along(grid, width)
    tables = _axes(grid, width, nodes)
    lat, lon, first, each, k = -1, -1, 0, 0, math.prod(nodes)
    if grid.polar:
        lat, lon = (grid.names.index(name) for name in ("lat", "lon"))
        first, each = grid.size, per_pole(grid)
        k += k // (nodes[lat] * nodes[lon])
    return (lat, lon, first, each, tables), (sum(nodes), k)
