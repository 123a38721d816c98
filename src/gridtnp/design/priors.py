"""Designing what the network corrects: regression on features and gridded sources, and kriging."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gridtnp.config import GriddedField, Kriging, ModelConfig
from gridtnp.data.dataset import Dataset
from gridtnp.design.grids import Extent, regular_axes, source_time_axis
from gridtnp.distributions.kinds import Likelihood
from gridtnp.grid import Grid
from gridtnp.network.pretrained import SHARE, why_not, with_pretrained
from gridtnp.sources.source import Panel
from gridtnp.tasks.specification import TaskSpec

RAIN, ROOT = ("bernoulli-gamma", "censored-gamma"), 0.5
"""Likelihoods of rain, whose square roots are nearer to normal than the values themselves."""
MAX_KRIGED = 12_000
"""Most observations of a task, on average, that are kriged unless asked for."""
MAX_PLACES, MIN_TIMES = 1000, 8
"""Most places whose persistent deviations are kept, and fewest times of each that can tell."""


def design_prior(
    train: Dataset,
    spec: TaskSpec,
    extent: Extent,
    asked: str | None,
    points: float,
    likelihood: Sequence[Likelihood] = (),
) -> tuple[Kriging | None, str]:
    """What the network corrects, and why."""
    if asked == "none":
        return None, "as given"
    if asked is None and points > MAX_KRIGED:
        way = "unless asked for: prior='kriging'"
        return None, f"more than {MAX_KRIGED:,} observations per task take long to krige, {way}"
    prior = _kriging(train, spec, extent)
    powers = tuple(ROOT if one.kind in RAIN else 1.0 for one in likelihood)
    if any(power != 1 for power in powers):
        prior = prior.model_copy(update={"powers": powers})
    gridded = [f"{f.source}.{v}" for f in prior.fields for v in spec.contexts[f.source].variables]
    names = ", ".join([*prior.features, *gridded])
    parts = [f"regression on {names}"] * bool(names)
    pairs = zip(spec.target_names, powers or (1.0,) * len(spec.target), strict=True)
    roots = ", ".join(name for name, power in pairs if power != 1)
    what = f"kriging of the context{f' (roots of {roots})' * bool(roots)}"
    parts += [what] * any(of is not None for of in prior.of)
    return prior, f"the network corrects {' and '.join(parts) or 'a constant'}"


def design_start(
    config: ModelConfig, asked: str | None, reason: str
) -> tuple[ModelConfig, tuple[str, str, str]]:
    """Whether fitted kriging is blended with the pretrained process; raises if it is asked for and
    not possible.
    """
    why = why_not(config)
    if asked == "pretrained" and why is not None:
        detail = f" ({reason})" if config.prior is None else ""
        raise ValueError(
            f"start='pretrained' is not possible, because {why}{detail}; leave it out."
        )
    if why is not None:
        return config, ("start", "kriging" if config.prior else "random weights", why)
    if asked == "kriging":
        return with_pretrained(config, False), ("start", "kriging", "as given")
    part = f"{SHARE:.0%} of the answer is that of the process behind gt.interpolate"
    return config, ("start", "kriging and pretrained", part)


def _kriging(train: Dataset, spec: TaskSpec, extent: Extent) -> Kriging:
    """Regression on features and gridded sources, and kriging of the target's own observations."""
    columns = {
        f"{held.source}.{variable}": (name, i)
        for name, held in spec.contexts.items()
        for i, variable in enumerate(held.variables)
    }
    height, width = extent.north - extent.south, (extent.east - extent.west) * extent.lon_scale
    return Kriging(
        of=tuple(columns.get(name) for name in spec.target),
        features=tuple(name for name in train.feature_names if name != "hours"),
        drift=tuple(train.statics),
        fields=_fields(train, spec),
        length_scale=max(height, width, 1e-3) / 3,
        places=_places(train, spec),
    )


def _places(train: Dataset, spec: TaskSpec) -> int:
    """How many places of the target's source can be kept; none if they move or are too many."""
    source = train.sources[spec.target_source]
    if "time" in spec.coordinates:
        return 0
    used = np.broadcast_to(train.context_places.get(source.name, True), source.lat.shape)
    unique = len(np.unique(source.lat[used] + 1j * source.lon[used]))
    times = source.steps if isinstance(source, Panel) else used.sum() / max(unique, 1)
    return unique if unique <= MAX_PLACES and times >= MIN_TIMES else 0


def _fields(train: Dataset, spec: TaskSpec) -> tuple[GriddedField, ...]:
    """The gridded sources other than the target's."""
    found = []
    for name, held in spec.contexts.items():
        axes = regular_axes(train.sources[held.source], train.west)
        if axes is None or held.source == spec.target_source:
            continue
        if "time" in spec.coordinates:
            axes = (source_time_axis(train.sources[held.source], held.window or spec.window), *axes)
        ordered = tuple(axis for c in spec.coordinates for axis in axes if axis.name == c)
        grid = Grid(ordered, "sphere")
        found.append(
            GriddedField(source=name, columns=tuple(range(len(held.variables))), grid=grid)
        )
    return tuple(found)
