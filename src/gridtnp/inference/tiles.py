"""Tiles: a network on the part of its grid that the targets of a region depend on.

The halo around the targets is the receptive field: the neighbours that the decoder reads, the
attention windows or convolutions of all layers of the processor, and the cells that an observation
is written to. The part of the grid starts and ends with whole windows, so that they are those of
the whole grid. Axes that are periodic stay whole, and so does time. Kriging that the network
corrects has no halo: it depends on observations by rank, not by distance, and is given all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributions import Distribution

from gridtnp.config import CNN, Full, GriddedConfig, Mean, ModelConfig, Neighbours, Swin
from gridtnp.contents import ModelContents
from gridtnp.grid import Axis, Grid
from gridtnp.network.build import build_model
from gridtnp.network.kriging import KrigedNetwork
from gridtnp.network.model import NeuralProcess
from gridtnp.task import PointSet

Cells = tuple[tuple[int, int], ...]
"""The first cell of a tile along every axis, and the one after its last."""


def require_tiles(config: ModelConfig) -> None:
    """Raise if what a prediction depends on is not bounded by a halo."""
    a = config.architecture
    why = None
    if not isinstance(a, GriddedConfig):
        why = f"a {a.kind} attends to all observations"
    elif not isinstance(a.processor, Swin | CNN):
        why = {
            "vit": "a ViT attends to the whole grid",
            "unet": "a U-Net pools the grid, and its tiles would not line up",
        }.get(a.processor.kind, "its layers are on coarser grids, whose cells would not line up")
    elif isinstance(a.decoder, Full) or a.decoder.neighbours is None:
        why = "its decoder reads the whole grid"
    elif not isinstance(a.grid_encoder, Mean) and a.grid_encoder.neighbours is None:
        why = "its encoder writes every observation to the whole grid"
    if why is not None:
        raise ValueError(
            f"This model cannot predict tiles, because {why}; split along time alone, such as "
            "regions={'time': 1}."
        )


def tile(config: ModelConfig, x: Tensor) -> Cells:
    """The cells that predictions at some points, (n, dx), depend on."""
    a = config.architecture
    assert isinstance(a, GriddedConfig)
    return tuple(
        (0, axis.size)
        if axis.periodic or axis.name == "time"
        else _along(a, axis, number, x[:, number])
        for number, axis in enumerate(a.grid.axes)
    )


def _along(a: GriddedConfig, axis: Axis, number: int, x: Tensor) -> tuple[int, int]:
    """The first cell along an axis, and the one after the last."""
    decoder, encoder = a.decoder, a.grid_encoder
    assert not isinstance(decoder, Full)
    ends = axis.nearest(torch.stack([x.min(), x.max()])).tolist()
    beside = _width(a.grid, decoder.neighbours, number) // 2 + 1
    low, high = ends[0] - beside, ends[1] + beside
    p, whole = a.processor, 1
    if isinstance(p, Swin):
        whole = p.window[number]
        shift = whole // 2 if p.shift is None else p.shift[number]
        for _ in range(p.layers):
            for start in (shift, 0):  # backwards: the shifted windows are the last
                low = start + (low - start) // whole * whole
                high = start + ((high - start) // whole + 1) * whole - 1
    else:
        assert isinstance(p, CNN)
        low, high = low - p.layers * (p.kernel // 2), high + p.layers * (p.kernel // 2)
    around = 1 if isinstance(encoder, Mean) else _width(a.grid, encoder.neighbours, number)
    low, high = low - around // 2 - 1, high + around // 2 + 1
    first, last = max(low // whole * whole, 0), (high // whole + 1) * whole
    return first, min(last, axis.size)


def _width(grid: Grid, neighbours: Neighbours | None, number: int) -> int:
    assert neighbours is not None
    return grid.width(neighbours)[number] if isinstance(neighbours, int) else neighbours[number]


def network_on(model: ModelContents, cells: Cells) -> NeuralProcess:
    """The network of a model on some of its cells, with the same weights."""
    config, whole = model.config, model.network
    a = config.architecture
    assert isinstance(a, GriddedConfig)
    if cells == tuple((0, axis.size) for axis in a.grid.axes):
        return whole
    axes = tuple(
        axis
        if (first, last) == (0, axis.size)
        else Axis(axis.name, axis.low + first * axis.step, axis.step, last - first)
        for axis, (first, last) in zip(a.grid.axes, cells, strict=True)
    )
    part = a.model_copy(update={"grid": Grid(axes, a.grid.metric)})
    network = build_model(ModelConfig.model_validate(dict(config) | {"architecture": part}))
    state = whole.state_dict()
    for name, value in network.state_dict().items():
        pairs = zip(value.shape, state[name].shape, cells, strict=False)
        sliced = [slice(*span) if small != large else slice(None) for small, large, span in pairs]
        state[name] = state[name][tuple(sliced)]  # a token per cell
    network.load_state_dict(state)
    network = network.eval().to(model.device)
    if not isinstance(network, KrigedNetwork):
        return Cut(network, a.grid, cells)
    kriged = copy.copy(network)  # a module keeps its parts in a dict of its own
    kriged._modules = dict(network._modules)
    kriged.network = Cut(network.network, a.grid, cells)
    return kriged


class Cut(NeuralProcess):
    """A network on some cells of a grid, which is told the observations there."""

    def __init__(self, network: NeuralProcess, grid: Grid, cells: Cells) -> None:
        super().__init__(network.signature, grid)
        self.network, self.cells = network, cells

    def encode(self, context: Mapping[str, PointSet]) -> object:
        return self.network.encode({name: self._inside(p) for name, p in context.items()})

    def decode(self, encoding: object, target: PointSet) -> Distribution:
        return self.network.decode(encoding, target)

    def _inside(self, points: PointSet) -> PointSet:
        """The points of a batch of one on these cells."""
        assert self.grid is not None
        inside = torch.ones_like(points.x[0, :, 0], dtype=torch.bool)
        for i, (axis, (first, last)) in enumerate(zip(self.grid.axes, self.cells, strict=True)):
            cell = axis.nearest(points.x[0, :, i])
            inside &= (cell >= first) & (cell < last)
        return points.select(inside)
