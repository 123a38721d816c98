"""Receptive fields: which observations can change the prediction at a target, axis by axis.

Windows, convolutions and neighbourhoods are products of intervals along the axes, so an observation
reaches a target if it does so along every axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gridtnp.config import (
    CNN,
    Full,
    GriddedConfig,
    HierarchicalSwin,
    Mean,
    Neighbours,
    Swin,
    UNet,
    ViT,
)
from gridtnp.grid import Axis, Grid


def reaches(a: GriddedConfig, axis: str, observed: Tensor, targets: Tensor) -> Tensor:
    """Whether targets depend on observations along one axis, given by coordinates.

    Returns a boolean matrix with a row per target and a column per observation.
    """
    along, number = a.grid.axis(axis), a.grid.names.index(axis)
    encoder = a.grid_encoder
    neighbours = 1 if isinstance(encoder, Mean) else encoder.neighbours
    encoded = _around(along, observed, _width(a.grid, neighbours, number)).T
    width = None if isinstance(a.decoder, Full) else _width(a.grid, a.decoder.neighbours, number)
    found = torch.zeros(len(targets), len(observed), dtype=torch.bool)
    for output, reach in _outputs(a, along, number):
        found |= _compose(_around(output, targets, width), _compose(reach, encoded))
    return found


def reach_in_cells(a: GriddedConfig, axis: str) -> int:
    """The number of cells within which every observation reaches a target, along one axis.

    It is that of the grid point with the smallest receptive field; beyond the edges of the grid
    there is nothing to miss.
    """
    along = a.grid.axis(axis)
    points = along.low + along.step * torch.arange(along.size, dtype=torch.float64)
    hidden = (~reaches(a, axis, points, points)).nonzero()
    distance = (hidden[:, 0] - hidden[:, 1]).abs()
    if along.periodic:
        distance = torch.minimum(distance, along.size - distance)
    return int(distance.min()) - 1 if len(distance) else along.size - 1


def _outputs(a: GriddedConfig, axis: Axis, number: int) -> list[tuple[Axis, Tensor]]:
    """For each output of the processor its axis, and the input grid points that it depends on."""
    p = a.processor
    if isinstance(p, ViT):
        coarse = axis if p.patch is None else axis.coarsen(p.patch[number])
        return [(coarse, torch.ones(coarse.size, axis.size, dtype=torch.bool))]
    if isinstance(p, CNN):
        return [(axis, _repeated(_convolution(axis, p.kernel), p.layers))]
    if isinstance(p, UNet):
        return _pyramid(axis, 2, [1] * (p.depth + 1), lambda level: _convolution(level, p.kernel))
    window = p.window[number]
    shift = window // 2 if p.shift is None else p.shift[number]

    def layer(level: Axis) -> Tensor:
        return _compose(_windows(level, window, shift), _windows(level, window, 0))

    if isinstance(p, HierarchicalSwin):
        return _pyramid(axis, p.merge[number], p.stages, layer)
    assert isinstance(p, Swin)
    return [(axis, _repeated(layer(axis), p.layers))]


def _pyramid(
    axis: Axis, factor: int, stages: Sequence[int], layer: Callable[[Axis], Tensor]
) -> list[tuple[Axis, Tensor]]:
    """Layers on coarser and coarser grids, and up again with skip connections."""
    outputs: list[tuple[Axis, Tensor]] = []
    merges: list[Tensor] = []
    level, reach = axis, torch.eye(axis.size, dtype=torch.bool)
    for number, layers in enumerate(stages):
        if number:
            coarse = level.coarsen(factor)
            merge = torch.arange(level.size) // factor == torch.arange(coarse.size)[:, None]
            level, reach = coarse, _compose(merge, reach)
            merges.append(merge)
        reach = _compose(_repeated(layer(level), layers), reach)
        outputs.append((level, reach))
    down = outputs[:-1]
    for (level, skipped), layers, merge in reversed(
        list(zip(down, stages[:-1], merges, strict=True))
    ):
        reach = _compose(_repeated(layer(level), layers), skipped | _compose(merge.T, reach))
        outputs.append((level, reach))
    return outputs


def _windows(axis: Axis, window: int, shift: int) -> Tensor:
    """Which grid points share an attention window."""
    position = torch.arange(axis.size) - shift
    of = (position % axis.size if axis.periodic else position).div(window, rounding_mode="floor")
    return of[:, None] == of


def _convolution(axis: Axis, kernel: int) -> Tensor:
    points = torch.arange(axis.size)
    distance = (points[:, None] - points).abs()
    if axis.periodic:
        distance = torch.minimum(distance, axis.size - distance)
    return distance <= kernel // 2


def _around(axis: Axis, x: Tensor, width: int | None) -> Tensor:
    """Which grid points are the nearest `width` of each coordinate; all if it is None."""
    found = torch.ones(len(x), axis.size, dtype=torch.bool)
    if width is None:
        return found
    index, exists = axis.around(x, width)
    return torch.zeros_like(found).scatter_reduce(1, index, exists, "amax")


def _width(grid: Grid, neighbours: Neighbours | None, number: int) -> int | None:
    if neighbours is None:
        return None
    return grid.width(neighbours)[number] if isinstance(neighbours, int) else neighbours[number]


def _repeated(step: Tensor, times: int) -> Tensor:
    reach = torch.eye(len(step), dtype=torch.bool)
    for _ in range(times):
        reach = _compose(step, reach)
    return reach


def _compose(second: Tensor, first: Tensor) -> Tensor:
    """Dependence through two steps."""
    return (second.float() @ first.float()) > 0
