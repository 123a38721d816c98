"""Export of a network with `torch.export`, for any number of points, to run without this library.

For each source, in the order of the network's signature, the graph takes coordinates `(1, n, dx)`,
values `(1, n, dy)` and features `(1, n, df)`, then coordinates and features of the targets. It
returns means and standard deviations `(1, n, dy)`. Values are normalised; features are omitted if
the network has none. Values of a source with reading errors are followed by these, in the same
tensor. Each exported graph is compared with its network.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from gridtnp.files import replace_file
from gridtnp.network.kriging import KrigedNetwork
from gridtnp.network.model import NeuralProcess
from gridtnp.task import PointSet, Task

TOLERANCE = 1e-4
SIZES = ((11, 7), (64, 40), (201, 5))
"""Numbers of context and target points: the first for tracing, all for the comparison."""


class Flat(nn.Module):
    """The network with tensors as inputs and outputs."""

    def __init__(self, network: NeuralProcess) -> None:
        super().__init__()
        self.network = network

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        remaining = list(tensors)
        context = {name: self._take(remaining, name) for name in self.network.signature.sources}
        distribution = self.network(Task(context, self._take(remaining, None)))
        return distribution.mean, distribution.stddev

    def _take(self, remaining: list[Tensor], source: str | None) -> PointSet:
        x, y = remaining.pop(0), remaining.pop(0) if source is not None else None
        features = remaining.pop(0) if self.network.signature.features else None
        error = None
        if y is not None and source in self.network.signature.errors:
            y, error = y.chunk(2, -1)
        return PointSet(x, y, None, features, error)


def export(network: NeuralProcess, path: str | os.PathLike[str]) -> Path:
    """Write the graph, read it back and compare it with the network at other sizes."""
    path = Path(path)
    if path.suffix != ".pt2":
        raise ValueError(f"{path.name!r} does not end in .pt2, as an exported network must.")
    flat = Flat(traceable(network)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        example = inputs(network, *SIZES[0], generator)
        program = torch.export.export(
            flat, example, dynamic_shapes=(_dynamic(network),), strict=False
        )
        replace_file(path, lambda temporary: _write(program, temporary))
        graph = torch.export.load(str(path)).module()
        worst = max(_difference(flat, graph, inputs(network, *s, generator)) for s in SIZES)
    if not worst <= TOLERANCE:
        path.unlink()
        raise ValueError(
            f"The exported graph differs from the network by {worst:.3g} and was deleted; please "
            "report this."
        )
    return path


def traceable(network: NeuralProcess) -> NeuralProcess:
    """The network without the pretrained process, if it has one, which is told."""
    if not isinstance(network, KrigedNetwork) or network.pretrained is None:
        return network
    warnings.warn(
        "The graph leaves out the pretrained process, a quarter of the answer, whose search for "
        "neighbours cannot be exported; fit with start='kriging' for a graph that predicts "
        "what the model does.",
        stacklevel=3,
    )
    network = copy.deepcopy(network)
    network.blend(None)
    return network


def inputs(
    network: NeuralProcess, context: int, targets: int, generator: torch.Generator
) -> tuple[Tensor, ...]:
    """Random points inside the grid; each source has three more than the previous one."""
    signature = network.signature
    tensors: list[Tensor] = []

    def add_locations(n: int) -> None:
        x = torch.rand(1, n, len(signature.coordinates), generator=generator)
        if network.grid is not None:
            low = torch.tensor([axis.low for axis in network.grid.axes])
            high = torch.tensor([axis.high for axis in network.grid.axes])
            x = low + x * (high - low)
        tensors.append(x)

    def add_columns(n: int, columns: int) -> None:
        tensors.append(torch.randn(1, n, columns, generator=generator))

    for number, (name, columns) in enumerate(signature.values.items()):
        n = context + 3 * number
        add_locations(n)
        add_columns(n, columns)
        if name in signature.errors:
            tensors[-1] = tensors[-1].abs()
        if signature.features:
            add_columns(n, len(signature.features))
    add_locations(targets)
    if signature.features:
        add_columns(targets, len(signature.features))
    return tuple(tensors)


def _dynamic(network: NeuralProcess) -> tuple[dict[int, Any], ...]:
    """The second axis of each tensor is dynamic, with one size per point set."""
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
