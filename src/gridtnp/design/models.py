"""Automatic model design behind `GriddedTNP.for_data`: grid, network and recipe, with reasons.

Every choice can be overridden through `ModelOptions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import numpy as np
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
from gridtnp.data.coast import LAND
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.design.grids import (
    choose_cell,
    extent_of,
    locations,
    make_grid,
    require_overlap,
    spans_time,
    time_axis,
)
from gridtnp.design.likelihoods import Choice, choose_likelihoods, describe
from gridtnp.design.priors import design_prior, design_start
from gridtnp.design.reach import require_reach_in_time, sees_enough, window_size
from gridtnp.design.receptive_field import reach_in_cells
from gridtnp.design.windows import Windows, choose_windows
from gridtnp.distributions.kinds import Likelihood
from gridtnp.errors import require_known
from gridtnp.grid import Grid
from gridtnp.recipes import Recipe, recipe
from gridtnp.sources.source import Panel
from gridtnp.sources.times import duration
from gridtnp.task import Task
from gridtnp.tasks.specification import TaskSpec
from gridtnp.training.distributed import count, device_here

Size = Literal["tiny", "small", "medium", "large"]


@dataclass(frozen=True)
class Scale:
    """Hyperparameters of a model size.

    `cells` is the maximum number of grid points, `times` that of the time axis among them.
    """

    dim: int
    heads: int
    layers: int
    cells: int
    times: int
    recipe: str


SIZES: dict[str, Scale] = {
    "tiny": Scale(32, 4, 2, 1024, 4, "quick"),
    "small": Scale(64, 4, 3, 4096, 6, "default"),
    "medium": Scale(128, 8, 5, 16384, 8, "default"),
    "large": Scale(256, 8, 8, 65536, 8, "default"),
}
"""`medium` is close to the paper's models."""
SIDES = (4, 8)
"""Sides of attention windows in cells; the larger one if targets would see too few observations."""
NEIGHBOURS = 5
"""Grid points per axis of latitude and longitude that a target attends to."""
YEAR = 8766.0
"""Hours."""
DRAWS = 4
"""Batches drawn to measure where observations are."""


class ModelOptions(Part):
    """Options of `GriddedTNP.for_data`; None means: choose from the data.

    `cell` is the height of a grid cell in degrees, an alternative to `grid`; `window` is the size
    of attention windows in cells. Context is observed in `context_window` around a task's time,
    targets in `target_window` around `lead` later; `every` is the interval between task times.
    `likelihood` is one for all targets, or some by the name of the target.
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
    prior: Literal["kriging", "none"] | None = None
    start: Literal["kriging", "pretrained"] | None = None
    likelihood: str | Likelihood | dict[str, str | Likelihood] | None = None
    recipe: Recipe | str | None = None
    context_window: str | None = None
    target_window: str | None = None
    lead: str = "0h"
    every: str | None = None

    def windows_for(self, train: Dataset) -> Windows:
        """The time windows that are chosen from the data, if none of these options is given."""
        given = self.context_window, self.target_window, self.every, duration(self.lead)
        if any(given) or (self.grid is not None and "time" not in self.grid.names):
            return Windows()
        return choose_windows(train.sources[train.target_source])

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


COAST_FEWEST = 50
"""Places of the target that can tell what the share of land is worth."""
COAST_MOST = 1_000_000
"""Places of all sources at which computing it takes seconds."""
VARIES = 0.1
"""Standard deviation of the share of land, at least, on a coast."""
ONE_SIDE = 0.1
"""Places with a share of land nearer than this to 0 or 1 are not on the coast."""


@dataclass(frozen=True)
class Design:
    """A design for some data: each choice as (name, value, reason), and one batch of tasks."""

    config: ModelConfig
    spec: TaskSpec
    normaliser: Normaliser
    recipe: Recipe
    reasons: tuple[tuple[str, str, str], ...]
    task: Task = field(repr=False)

    def __str__(self) -> str:
        width = max(len(name) for name, _, _ in self.reasons)
        lines = [f"GriddedTNP to predict {', '.join(self.spec.target)}"]
        lines += [f"  {name:<{width}}  {value}: {reason}" for name, value, reason in self.reasons]
        return "\n".join(lines)


def design(train: Dataset, options: ModelOptions, config: ModelConfig | None = None) -> Design:
    """Design a model for a training part; `config` replaces the choices about the network."""
    scale, device = SIZES[options.size], device_here()
    name_or_recipe = options.recipe or scale.recipe
    training = recipe(name_or_recipe)
    if options.recipe is None and has_fast_bfloat16(device):
        training = replace(training, precision="bfloat16")
    reasons: list[tuple[str, str, str]] = []
    if config is None:
        train, coast = add_land_fraction(train)
        reasons += [(LAND.replace("_", " "), "another feature", coast)] * bool(coast)
    elif LAND in config.features and LAND not in train.statics:
        train = train.with_land_fraction()
    windows = options.windows_for(train) if config is None else Windows()
    reasons += [("time window", windows.window, windows.reason)] * bool(windows.reason)
    spec = TaskSpec.of(
        train,
        window=options.context_window or windows.window,
        target_window=options.target_window or windows.window,
        lead=options.lead,
        every=options.every or windows.every,
    )
    through_time = spans_time(spec)
    if config is not None:
        spec = spec.model_copy(update={"coordinates": config.coordinates})
    elif options.grid is not None:
        spec = spec.model_copy(update={"coordinates": options.grid.names})
    elif through_time:
        spec = spec.model_copy(update={"coordinates": ("time", "lat", "lon")})
    asked = options.likelihood
    if config is not None and config.likelihood:
        asked = dict(zip(spec.target, config.likelihood, strict=False))
    elif config is not None:
        asked = "gaussian"
    normaliser = Normaliser.fit(train)
    choices = choose_likelihoods(train, spec, asked)
    scales = {name: choice.scale for name, choice in choices.items() if choice.scale is not None}
    normaliser = normaliser.keeping_zero(scales)
    sampler = spec.sampler(train, normaliser, batch=training.batch)
    require_overlap(train, spec, sampler)
    tasks = [sampler.draw(index) for index in range(DRAWS)]
    _require_variation(spec, normaliser, tasks)
    if config is None:
        config = _design_network(train, spec, options, scale, tasks, choices, reasons)
    else:
        _require_matching_config(config, train, spec)
        reasons.append(("network", "as given", "its configuration matches the data"))
    if isinstance(config.architecture, GriddedConfig):
        require_reach_in_time(config.architecture, tasks)
    units = [spec.units.get(name) or "(no units)" for name in spec.target]
    spreads = [f"{s:.3g} {u}" for s, u in zip(normaliser.scale(spec.target), units, strict=True)]
    kept = [name.partition(".")[2] for name in scales]
    source = name_or_recipe if isinstance(name_or_recipe, str) else "as given"
    reasons += [
        (
            "normalisation",
            f"σ = {', '.join(spreads)}",
            "mean and standard deviation of the training part only"
            + (f"; 0 stays 0 for {', '.join(kept)}" if kept else ""),
        ),
        *describe(choices),
        ("device", device.type, f"matrix products in {training.precision}"),
        ("recipe", source, training.summary),
    ]
    return Design(config, spec, normaliser, training, tuple(reasons), tasks[0])


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the hardware supports bfloat16, rather than emulating it."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _design_network(
    train: Dataset,
    spec: TaskSpec,
    options: ModelOptions,
    scale: Scale,
    tasks: Sequence[Task],
    choices: Mapping[str, Choice],
    reasons: list[tuple[str, str, str]],
) -> ModelConfig:
    extent, layers = extent_of(train), options.layers or scale.layers
    sides = SIDES if options.window is None else options.window[-1:]
    sketches = (_sketch(train, spec, options, scale, tasks, side) for side in sides)
    sketch, reason = next(sketches)
    for wider in () if sees_enough(sketch, tasks) else sketches:
        sketch, reason = wider
    grid, window = sketch.grid, cast(Swin, sketch.processor).window
    shape = " × ".join(f"{a.size} {a.name}" for a in grid.axes)
    cells = " × ".join(f"{a.step:.3g}{' h' if a.name == 'time' else '°'}" for a in grid.axes)
    reasons.append(("grid", f"{shape}, cells of {cells}", reason))
    large_and_global = any(grid.periodic) and options.size in ("medium", "large")
    positions: Positions = options.positions or ("absolute" if large_and_global else "relative")
    several = len({held.source for held in spec.contexts.values()}) > 1
    fusion = options.fusion or ("multi" if several else "single")
    dim, heads = options.dim or scale.dim, options.heads or scale.heads
    wide = [f"{a.name} {reach_in_cells(sketch, a.name) * a.step:.2g}" for a in grid.axes]
    reasons += [
        (
            "window",
            f"{' × '.join(map(str, window))} cells",
            f"{'as given; ' if options.window else ''}with {layers} layers a target sees "
            f"everything within {', '.join(wide)} ({_units(grid)})",
        ),
        (
            "positions",
            positions,
            "what is learned in one cell applies to all cells"
            if positions == "relative"
            else "each region is learned separately",
        ),
        (
            "fusion",
            fusion,
            "one grid per source, merged before attention"
            if fusion == "multi"
            else "all observations share one grid",
        ),
        ("width", f"{dim} with {heads} heads, {layers} layers", f"size {options.size!r}"),
    ]
    if train.feature_names:
        reasons.append(("features", ", ".join(train.feature_names), "known everywhere"))
    if spec.errors:
        each = [f"{k} {v if isinstance(v, str) else f'± {v:g}'}" for k, v in spec.errors.items()]
        reasons.append(("errors", ", ".join(each), "of readings; the network and kriging see them"))
    points = points_per_task(spec, tasks)
    likelihood = tuple(choice.likelihood for choice in choices.values())
    if all(one.kind == "gaussian" for one in likelihood):
        likelihood = ()
    prior, reason = design_prior(train, spec, extent, options.prior, points, likelihood)
    reasons.append(("prior", "none" if prior is None else prior.kind, reason))
    config = ModelConfig(
        coordinates=grid.names,
        features=train.feature_names,
        sources={name: len(held.variables) for name, held in spec.contexts.items()},
        dim_y=len(spec.target),
        tokens=_tokens(grid, train.feature_names, positions),
        architecture=sketch.model_copy(
            update={
                "grid_encoder": PseudoToken(smooth=_smooth_sources(train, spec, fusion)),
                "fusion": fusion,
                "positions": positions,
            }
        ),
        dim=dim,
        heads=heads,
        min_noise=0.01 if options.min_noise is None else options.min_noise,
        prior=prior,
        likelihood=likelihood,
        errors=spec.sets_with_errors,
    )
    config, start = design_start(config, options.start, reason)
    reasons.append(start)
    return config


def _smooth_sources(train: Dataset, spec: TaskSpec, fusion: str) -> bool | tuple[str, ...]:
    """The context sets with a smooth encoder: those whose places vary.

    Gridded sources have many points that never move, for which it would be dear.
    """
    smooth = tuple(n for n, c in spec.contexts.items() if not _is_gridded(train, c.source))
    if fusion == "single" or len(smooth) in (0, len(spec.contexts)):
        return bool(smooth)
    return smooth


def _is_gridded(train: Dataset, name: str) -> bool:
    source = train.sources[name]
    return isinstance(source, Panel) and source.shape is not None


def _sketch(
    train: Dataset,
    spec: TaskSpec,
    options: ModelOptions,
    scale: Scale,
    tasks: Sequence[Task],
    side: int,
) -> tuple[GriddedConfig, str]:
    """Grid, windows and neighbours, and the reason for the grid; `side` is that of a window."""
    grid, reason = options.grid, "as given"
    if grid is None:
        extent, places = extent_of(train), locations(spec, tasks)
        time = time_axis(train, spec, scale.times) if "time" in spec.coordinates else None
        budget = max(side**2, scale.cells // (1 if time is None else time.size))
        choice = choose_cell(train, extent, places, budget, options.cell)
        grid = make_grid(extent, choice.cell, window=side, time=time)
        reason = f"covers {extent}{', periodic in longitude' if extent.is_global else ''}; "
        reason += choice.reason
    window = options.window or tuple(window_size(axis, side) for axis in grid.axes)
    widths = {"lat": NEIGHBOURS, "lon": NEIGHBOURS}
    neighbours = options.neighbours or tuple(min(widths.get(a.name, 3), a.size) for a in grid.axes)
    sketch = GriddedConfig(
        grid=grid,
        grid_encoder=PseudoToken(),
        processor=Swin(layers=options.layers or scale.layers, window=window),
        decoder=Neighbour(neighbours=neighbours, smooth=True),
    )
    return sketch, reason


def points_per_task(spec: TaskSpec, tasks: Sequence[Task]) -> float:
    """Mean number of observations of the target's source in a task, context and targets."""
    own = [n for n, held in spec.contexts.items() if held.source == spec.target_source]
    counts = [max((count(t.context[n]) for n in own), default=0) + count(t.target) for t in tasks]
    return sum(counts) / sum(t.target.batch for t in tasks)


def _units(grid: Grid) -> str:
    return "hours and degrees" if "time" in grid.names else "degrees"


def _tokens(grid: Grid, features: tuple[str, ...], positions: Positions) -> Embedded:
    parts: list[Fourier | Harmonics | Raw | Cell] = [Cell(of=grid.names, smooth=True)]
    if positions == "absolute":
        parts.append(Harmonics())
    plain = tuple(name for name in features if name != "hours")
    if plain:
        parts.append(Raw(of=plain))
    if "hours" in features:  # since 1970: periods from an hour to a year, as in the paper
        parts.append(Fourier(of=("hours",), per_column=10, shortest=1.0, longest=YEAR))
    return Embedded(embedding=tuple(parts))


def _require_variation(spec: TaskSpec, normaliser: Normaliser, tasks: Sequence[Task]) -> None:
    values = torch.cat([t.target.y.flatten(0, 1) for t in tasks if t.target.y is not None])
    for i, name in enumerate(spec.target):
        if normaliser.std[name] == 1.0 and bool((values[:, i].abs() < 1e-6).all()):
            raise ValueError(
                f"Target {name!r} is {normaliser.mean[name]:g} everywhere in the training part; "
                "choose a target that varies."
            )


def _require_matching_config(config: ModelConfig, train: Dataset, spec: TaskSpec) -> None:
    sources = {name: len(held.variables) for name, held in spec.contexts.items()}
    pairs = (
        ("sources", dict(config.sources), sources),
        ("features", config.features, train.feature_names),
        ("outputs", config.dim_y, len(spec.target)),
        ("errors", config.errors, spec.sets_with_errors),
    )
    for what, given, needed in pairs:
        if given != needed:
            raise ValueError(
                f"config= has {what} {given}, but the data have {needed}; adapt it with "
                "config.model_copy(update=...)."
            )


def add_land_fraction(train: Dataset) -> tuple[Dataset, str]:
    """With the share of land as a feature, and the reason, for many places around a coast.

    Else the same data, and no reason.
    """
    source = train.sources[train.target_source]
    used = np.broadcast_to(train.context_places.get(source.name, True), source.lat.shape)
    unique = np.unique(np.stack([source.lat[used], source.lon[used]]), axis=1).shape[1]
    total = sum(len(s.lat) for s in train.sources.values())
    if LAND in train.statics or unique < COAST_FEWEST or total > COAST_MOST:
        return train, ""
    made = train.with_land_fraction()
    land = made.static_at(source.name)[used, -1]
    if land.std() < VARIES:
        return train, ""
    share = np.mean((land > ONE_SIDE) & (land < 1 - ONE_SIDE))
    return made, f"{share:.0%} of the places are at a coast"
