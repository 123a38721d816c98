"""A network as a graph that runs without this library: `torch.export`, any number of points.

The graph takes, for every source in the network's order, coordinates `(1, n, dx)`, values
`(1, n, dy)` and features `(1, n, df)`, then coordinates and features of the targets, and gives
means and standard deviations `(1, n, dy)`, all in normalised units. Features are left out where
the network has none. It is compared with the network right after it is written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from gridtnp.files import replace_file
from gridtnp.network.model import NeuralProcess
from gridtnp.task import PointSet, Task

TOLERANCE = 1e-4
SIZES = ((11, 7), (64, 40), (301, 5))
"""Numbers of context and target points that the graph is compared at; the first one traces it."""


class Flat(nn.Module):
    """The network with nothing but tensors going in and out."""

    def __init__(self, network: NeuralProcess) -> None:
        super().__init__()
        self.network = network

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        rest = list(tensors)
        context = {name: self._take(rest, True) for name in self.network.signature.sources}
        distribution = self.network(Task(context, self._take(rest, False)))
        return distribution.mean, distribution.stddev

    def _take(self, rest: list[Tensor], observed: bool) -> PointSet:
        x, y = rest.pop(0), rest.pop(0) if observed else None
        return PointSet(x, y, None, rest.pop(0) if self.network.signature.features else None)


def export(network: NeuralProcess, path: str | os.PathLike[str]) -> Path:
    """Write the graph, read it back and compare it with the network at other sizes."""
    where = Path(path)
    if where.suffix != ".pt2":
        raise ValueError(
            f"An exported network must be a file that ends in .pt2, got {where.name!r}."
        )
    flat = Flat(network).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        example = inputs(network, *SIZES[0], generator)
        program = torch.export.export(
            flat, example, dynamic_shapes=(_dynamic(network),), strict=False
        )
        replace_file(where, lambda temporary: _write(program, temporary))
        graph = torch.export.load(str(where)).module()
        worst = max(_difference(flat, graph, inputs(network, *s, generator)) for s in SIZES)
    if not worst <= TOLERANCE:
        where.unlink()
        raise ValueError(
            f"An exported graph must give what the network gives, but they differ by {worst:.3g}; "
            "it was not kept. Please report it."
        )
    return where


def inputs(
    network: NeuralProcess, context: int, targets: int, generator: torch.Generator
) -> tuple[Tensor, ...]:
    """Random points inside the grid, each source a few more than the one before."""
    signature = network.signature
    tensors: list[Tensor] = []

    def places(n: int) -> None:
        share = torch.rand(1, n, len(signature.coordinates), generator=generator)
        if network.grid is not None:
            low = torch.tensor([axis.low for axis in network.grid.axes])
            high = torch.tensor([axis.high for axis in network.grid.axes])
            share = low + share * (high - low)
        tensors.append(share)

    def more(n: int, columns: int) -> None:
        tensors.append(torch.randn(1, n, columns, generator=generator))

    for number, dim_y in enumerate(signature.sources.values()):
        n = context + 3 * number
        places(n)
        more(n, dim_y)
        if signature.features:
            more(n, len(signature.features))
    places(targets)
    if signature.features:
        more(targets, len(signature.features))
    return tuple(tensors)


def _dynamic(network: NeuralProcess) -> tuple[dict[int, Any], ...]:
    """The second axis of every tensor, the same number for those of one set."""
    signature, extra = network.signature, 1 if network.signature.features else 0
    shapes: list[dict[int, Any]] = []
    for number in range(len(signature.sources)):
        shapes += [{1: Dim(f"n{number}", min=2)}] * (2 + extra)
    return (*shapes, *[{1: Dim("targets", min=2)}] * (1 + extra))


def _write(program: torch.export.ExportedProgram, path: str) -> None:
    with open(path, "wb") as file:
        torch.export.save(program, file)


def _difference(flat: nn.Module, graph: nn.Module, tensors: Sequence[Tensor]) -> float:
    pairs = zip(flat(*tensors), graph(*tensors), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)
