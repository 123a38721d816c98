"""What `GriddedTNP.for_data` decides: a grid, a network and a recipe from the data, with reasons.

Every decision can be made by the user instead, by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from pydantic import PositiveFloat, PositiveInt, field_validator

from gridtnp.config import (
    Cell,
    Embedded,
    Fourier,
    GriddedConfig,
    Harmonics,
    ModelConfig,
    Neighbour,
    Part,
    Positions,
    PseudoToken,
    Raw,
    Swin,
)
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.errors import require_known
from gridtnp.grid import Grid
from gridtnp.recipes import Recipe, recipe
from gridtnp.task import Task
from gridtnp.tasks.sampling import NOW
from gridtnp.tasks.specification import TaskSpec
from gridtnp.training.distributed import count
from gridtnp.training.grid_design import (
    extent_of,
    make_grid,
    require_overlap,
    spans_time,
    time_axis,
)

Size = Literal["tiny", "small", "medium", "large"]


@dataclass(frozen=True)
class Scale:
    """How large a model of a size is; `cells` is the most that its grid may have."""

    dim: int
    heads: int
    layers: int
    cells: int
    recipe: str


SIZES: dict[str, Scale] = {
    "tiny": Scale(32, 4, 2, 256, "quick"),
    "small": Scale(64, 4, 3, 1024, "default"),
    "medium": Scale(128, 8, 5, 8192, "default"),
    "large": Scale(256, 8, 8, 32768, "default"),
}
"""`medium` is about the paper's."""
YEAR = 8766.0
DRAWS = 4
"""Batches that are looked at."""


class ModelOptions(Part):
    """What may be said about a model of some data; None leaves it to the data.

    `grid` or else `cell` (degrees of latitude) say where its grid points are, `window` how many of
    them attend to each other along each axis. Observations reach from `context_window` around a
    task's time, targets from `target_window` around `lead` later, tasks are `every` so often.
    """

    size: str = "tiny"
    grid: Grid | None = None
    cell: PositiveFloat | None = None
    window: tuple[PositiveInt, ...] | None = None
    dim: PositiveInt | None = None
    heads: PositiveInt | None = None
    layers: PositiveInt | None = None
    neighbours: PositiveInt | tuple[PositiveInt, ...] | None = None
    positions: Positions | None = None
    fusion: Literal["single", "multi"] | None = None
    min_noise: float | None = None
    recipe: Recipe | str | None = None
    context_window: str = NOW
    target_window: str = NOW
    lead: str = "0h"
    every: str | None = None

    @field_validator("size")
    @classmethod
    def _known_size(cls, value: str) -> str:
        require_known(value, SIZES, "size")
        return value

    @field_validator("recipe")
    @classmethod
    def _known_recipe(cls, value: Recipe | str | None) -> Recipe | str | None:
        if value is not None:
            recipe(value)
        return value


@dataclass(frozen=True)
class Design:
    """All that a model of the data needs, why it is so, and one of its batches."""

    config: ModelConfig
    spec: TaskSpec
    normaliser: Normaliser
    recipe: Recipe
    reasons: tuple[tuple[str, str, str], ...]
    task: Task = field(repr=False)

    def __str__(self) -> str:
        width = max(len(what) for what, _, _ in self.reasons)
        lines = [f"GriddedTNP to predict {', '.join(self.spec.target)}"]
        lines += [f"  {what:<{width}}  {chosen}: {why}" for what, chosen, why in self.reasons]
        return "\n".join(lines)


def design(train: Dataset, options: ModelOptions, config: ModelConfig | None = None) -> Design:
    """Choices for a training part; a `config` of one's own replaces those about the network."""
    scale, device = SIZES[options.size], device_here()
    chosen = options.recipe or scale.recipe
    made = recipe(chosen)
    if options.recipe is None and fast_in_bfloat16(device):
        made = replace(made, precision="bfloat16")
    spec = TaskSpec.of(
        train,
        window=options.context_window,
        target_window=options.target_window,
        lead=options.lead,
        every=options.every,
    )
    through_time = spans_time(spec)
    if config is not None:
        spec = spec.model_copy(update={"coordinates": config.coordinates})
    elif options.grid is not None:
        spec = spec.model_copy(update={"coordinates": options.grid.names})
    elif through_time:
        spec = spec.model_copy(update={"coordinates": ("time", "lat", "lon")})
    normaliser = Normaliser.fit(train)
    sampler = spec.sampler(train, normaliser, batch=made.batch)
    require_overlap(train, spec, sampler)
    tasks = [sampler.draw(index) for index in range(DRAWS)]
    _require_variety(spec, normaliser, tasks)
    reasons: list[tuple[str, str, str]] = []
    if config is None:
        config = _network(train, spec, options, scale, tasks, reasons)
    else:
        _require_fit(config, train, spec)
        reasons.append(("network", "as given", "its own configuration, the data's variables"))
    units = [spec.units.get(name) or "no units" for name in spec.target]
    spread = [f"{s:.3g} {u}" for s, u in zip(normaliser.scale(spec.target), units, strict=True)]
    reasons += [
        ("normalisation", f"by {', '.join(spread)}", "mean and spread of the training part alone"),
        ("likelihood", "Gaussian", "a mean and a standard deviation for every target"),
        ("device", device.type, f"products in {made.precision}"),
        ("recipe", chosen if isinstance(chosen, str) else "as given", made.summary),
    ]
    return Design(config, spec, normaliser, made, tuple(reasons), tasks[0])


def device_here() -> torch.device:
    """Where training takes place: an accelerator if there is one."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def fast_in_bfloat16(device: torch.device) -> bool:
    """Whether products take less time than in single precision."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _network(
    train: Dataset,
    spec: TaskSpec,
    options: ModelOptions,
    scale: Scale,
    tasks: Sequence[Task],
    reasons: list[tuple[str, str, str]],
) -> ModelConfig:
    points = observations(spec, tasks)
    extent = extent_of(train)
    grid, why = options.grid, "as given"
    side = 8 if scale.cells > 1024 and points > 2000 else 4
    if options.window is not None:
        side = options.window[-1]
    if grid is None:
        time = time_axis(train, spec) if "time" in spec.coordinates else None
        grid = make_grid(
            extent, points, most=scale.cells, window=side, cell=options.cell, time=time
        )
        held = points / (grid.axis("lat").size * grid.axis("lon").size)
        why = f"covers {extent}; {held:.2g} of about {points:,.0f} observations of a task in a cell"
        why += ", around the globe" if extent.goes_around else ""
    shape = " × ".join(f"{a.size} {a.name}" for a in grid.axes)
    cells = " × ".join(f"{a.step:.3g}{' h' if a.name == 'time' else '°'}" for a in grid.axes)
    reasons.append(("grid", f"{shape}, cells of {cells}", why))
    window = options.window or tuple(_window(a.size, side) for a in grid.axes)
    near = options.neighbours or tuple(min(3, a.size) for a in grid.axes)
    everywhere = any(grid.periodic) and options.size in ("medium", "large")
    positions: Positions = options.positions or ("absolute" if everywhere else "relative")
    several = len({held.source for held in spec.contexts.values()}) > 1
    fusion = options.fusion or ("multi" if several else "single")
    dim, heads = options.dim or scale.dim, options.heads or scale.heads
    layers = options.layers or scale.layers
    reasons += [
        ("windows", " × ".join(map(str, window)), "they divide the grid and shift by half"),
        (
            "places",
            positions,
            "what is learned in one cell holds in all"
            if positions == "relative"
            else "there are enough data to learn each region by itself",
        ),
        (
            "fusion",
            fusion,
            "each source has a grid of its own first"
            if fusion == "multi"
            else "all observations share one grid",
        ),
        ("width", f"{dim} with {heads} heads, {layers} layers", f"size {options.size!r}"),
    ]
    if train.feature_names:
        reasons.append(("features", ", ".join(train.feature_names), "known at every place"))
    return ModelConfig(
        coordinates=grid.names,
        features=train.feature_names,
        sources={name: len(held.variables) for name, held in spec.contexts.items()},
        dim_y=len(spec.target),
        tokens=_tokens(grid, train.feature_names, positions),
        architecture=GriddedConfig(
            grid=grid,
            grid_encoder=PseudoToken(),
            fusion=fusion,
            processor=Swin(layers=layers, window=window),
            decoder=Neighbour(neighbours=near),
            positions=positions,
        ),
        dim=dim,
        heads=heads,
        min_noise=0.01 if options.min_noise is None else options.min_noise,
    )


def observations(spec: TaskSpec, tasks: Sequence[Task]) -> float:
    """How many of the target's source a task has, context and targets together."""
    own = [n for n, held in spec.contexts.items() if held.source == spec.target_source]
    seen = [max((count(t.context[n]) for n in own), default=0) + count(t.target) for t in tasks]
    return sum(seen) / sum(t.target.batch for t in tasks)


def _tokens(grid: Grid, features: tuple[str, ...], positions: Positions) -> Embedded:
    parts: list[Fourier | Harmonics | Raw | Cell] = [Cell(of=grid.names)]
    if positions == "absolute":
        parts.append(Harmonics())
    plain = tuple(name for name in features if name != "hours")
    if plain:
        parts.append(Raw(of=plain))
    if "hours" in features:  # since 1970: waves from an hour to a year, as in the paper
        parts.append(Fourier(of=("hours",), per_column=10, shortest=1.0, longest=YEAR))
    return Embedded(embedding=tuple(parts))


def _window(size: int, side: int) -> int:
    """The largest whole part of an axis that is no longer than `side`."""
    return max(d for d in range(1, min(size, side) + 1) if size % d == 0)


def _require_variety(spec: TaskSpec, normaliser: Normaliser, tasks: Sequence[Task]) -> None:
    values = torch.cat([t.target.y.flatten(0, 1) for t in tasks if t.target.y is not None])
    for i, name in enumerate(spec.target):
        if normaliser.std[name] == 1.0 and bool((values[:, i].abs() < 1e-6).all()):
            raise ValueError(
                f"A target must vary to be learned, but {name} is {normaliser.mean[name]:g} "
                "everywhere in the training part; choose another target."
            )


def _require_fit(config: ModelConfig, train: Dataset, spec: TaskSpec) -> None:
    wanted = {name: len(held.variables) for name, held in spec.contexts.items()}
    pairs = (
        ("sources", dict(config.sources), wanted),
        ("features", config.features, train.feature_names),
        ("outputs", config.dim_y, len(spec.target)),
    )
    for what, found, needed in pairs:
        if found != needed:
            raise ValueError(
                f"A configuration must have the {what} of the data, {needed}, got {found}; adapt "
                f"it with config.model_copy(update=...)."
            )
