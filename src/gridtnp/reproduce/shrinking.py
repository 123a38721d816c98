"""The paper's models on other grids and narrower, so that they can be trained on a CPU.

A row keeps its parts, windows and number of neighbours; its grid has fewer points or another
extent, and initial length-scales stay the same number of cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gridtnp.config import GriddedConfig, Kernel, Mean, ModelConfig, Part, PseudoToken, PTTNPConfig
from gridtnp.grid import Axis, Grid
from gridtnp.network.presets import PRESETS, preset


@dataclass(frozen=True)
class Size:
    """Width, heads and layers of a network; every grid axis in space has 1/`factor` the points."""

    factor: int = 1
    dim: int = 128
    heads: int = 8
    layers: int = 5


PAPER = Size()
SMOOTH, KRIGING = "-smooth", "-kriging"


def row_configuration(table: str, row: str) -> ModelConfig:
    """The paper's row, or one of ours: `-avg-` (mean grid encoder), `…-smooth` and `…-kriging`.

    The last one is smooth, too, and the caller adds the kriging that the network corrects.
    """
    if f"{table}/{row}" in PRESETS:
        return preset(f"{table}/{row}")
    base = row.removesuffix(SMOOTH).removesuffix(KRIGING).replace("-avg-", "-pt-")
    config = preset(f"{table}/{base}")
    a = config.architecture
    if "-avg-" in row and isinstance(a, GriddedConfig) and isinstance(a.grid_encoder, PseudoToken):
        mean = Mean(shared=a.grid_encoder.shared)
        a = a.model_copy(update={"grid_encoder": mean})
        config = config.model_copy(update={"architecture": a})
    return config.smooth() if row.endswith((SMOOTH, KRIGING)) else config


def shrunk(
    config: ModelConfig,
    size: Size,
    sources: Sequence[str],
    outputs: int,
    place: Callable[[Grid], Grid] | None,
) -> ModelConfig:
    """A configuration for some sources and outputs, at a size; `place` moves grids elsewhere."""
    a: Any = config.architecture
    changes: dict[str, Any] = {}
    if isinstance(a, PTTNPConfig):
        changes = {"layers": size.layers, "pseudo_tokens": max(8, a.pseudo_tokens // size.factor)}
    elif isinstance(a, GriddedConfig):
        coarse = [x if x.name == "time" else x.coarsen(size.factor) for x in a.grid.axes]
        grid = Grid(tuple(coarse), metric=a.grid.metric)
        grid = grid if place is None else place(grid)
        stretch = grid.axis("lat").step / a.grid.axis("lat").step
        processor = a.processor
        if hasattr(processor, "layers"):
            processor = processor.model_copy(update={"layers": size.layers})
        changes = {
            "grid": grid,
            "processor": processor,
            "grid_encoder": _stretched(a.grid_encoder, stretch),
            "decoder": _stretched(a.decoder, stretch),
        }
    made = {
        "architecture": a.model_copy(update=changes),
        "sources": dict.fromkeys(sources, 1),
        "dim_y": outputs,
        "dim": size.dim,
        "heads": size.heads,
    }
    return ModelConfig.model_validate(dict(config) | made)


def _stretched(part: Part, factor: float) -> Part:
    """A kernel with its length-scale in space multiplied by a factor."""
    if not isinstance(part, Kernel):
        return part
    scale = part.length_scale
    if isinstance(scale, tuple):  # time first
        return part.model_copy(update={"length_scale": (*scale[:-1], factor * scale[-1])})
    return part.model_copy(update={"length_scale": factor * scale})


def over(
    low: tuple[float, float], high: tuple[float, float], hours: float = 1.0
) -> Callable[[Grid], Grid]:
    """Moves grids to the box between two corners (lat, lon); time steps are `hours` apart."""

    def place(grid: Grid) -> Grid:
        ends: dict[str, tuple[float, float]] = {
            "lat": (low[0], high[0]),
            "lon": (low[1], high[1]),
        }
        axes = [
            Axis.span("time", 0.0, hours * (x.size - 1), x.size)
            if x.name == "time"
            else Axis.cells(x.name, *ends[x.name], x.size)
            for x in grid.axes
        ]
        return Grid(tuple(axes), metric=grid.metric)

    return place
