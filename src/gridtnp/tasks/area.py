"""The area of a model: observations outside of its grid are dropped, with one warning.

Fitting and evaluation drop them from the data before tasks are made, prediction from each context.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from gridtnp.data.dataset import Dataset
from gridtnp.grid import Grid
from gridtnp.sources.coordinates import wrap
from gridtnp.sources.quality import warn_data
from gridtnp.sources.source import Records
from gridtnp.sources.times import HOUR, Window


def area(grid: Grid) -> str:
    """The area that a model covers, for messages."""
    spans = [f"{a.name} {a.low:g} to {a.high:g}" for a in grid.axes if not a.periodic]
    return f"the model's grid ({', '.join(spans)})"


def on_grid(data: Dataset, grid: Grid) -> Dataset:
    """The data without the locations outside of the grid."""
    inside = {name: ~_outside(data, grid, name) for name in data.sources}
    inside = {name: there for name, there in inside.items() if not there.all()}
    if not inside:
        return data
    part, target = copy.copy(data), data.target_source
    part.context_places = dict(data.context_places)
    for name, there in inside.items():
        part.context_places[name] = there & data.context_places.get(name, True)
    if target in inside:
        part.target_places = inside[target]
        if data.target_places is not None:
            part.target_places = inside[target] & data.target_places
        if data.task_time is None and not _target_locations(part).any():
            raise ValueError(
                f"No observation of target source {target!r} in part {data.part!r} lies on "
                f"{area(grid)}; use data within it, or a model of a wider area."
            )
    return part


def targets_outside(data: Dataset, grid: Grid) -> str | None:
    """How many targets lie outside of the grid; None if none do."""
    return _count(data, grid, data.target_source, _target_locations(data))


def warn_outside(
    parts: Iterable[Dataset],
    grid: Grid,
    sources: Sequence[str],
    windows: Mapping[str, str],
    stacklevel: int,
) -> None:
    """Warn once of all observations outside of the grid, in space or time.

    `windows` are the time windows by context set.
    """
    found = []
    for data in parts:
        where = "" if data.part == "all" else f" in part {data.part!r}"
        counts = [_count(data, grid, name, _locations(data, name)) for name in sources]
        found += [f"{count}{where}" for count in counts if count]
    message = []
    if found:
        message.append(f"{', '.join(found)} lie outside of {area(grid)} and are dropped")
    exceeding = [name for name, window in windows.items() if not _covers(grid, window)]
    if exceeding:
        message.append(
            f"the time windows of {exceeding} exceed the time axis of {area(grid)}; observations "
            "beyond it are dropped"
        )
    if message:
        warn_data(f"{'; '.join(message)}.", stacklevel + 1)


def _outside(data: Dataset, grid: Grid, name: str) -> np.ndarray:
    """True at the locations of a source outside of the grid's latitudes and longitudes."""
    source, axes = data.sources[name], tuple(a for a in grid.axes if a.name in ("lat", "lon"))
    if not axes:
        return np.zeros(len(source.lat), bool)
    known = {"lat": source.lat, "lon": wrap(source.lon, data.west)}
    x = np.stack([known[axis.name] for axis in axes], -1).astype(np.float32)
    return ~Grid(axes, grid.metric).covers(torch.from_numpy(x)).numpy()


def _count(data: Dataset, grid: Grid, name: str, used: np.ndarray) -> str | None:
    number = int((used & _outside(data, grid, name)).sum())
    what = "observations" if isinstance(data.sources[name], Records) else "locations"
    return f"{number:,} of {int(used.sum()):,} {what} of {name!r}" if number else None


def _locations(data: Dataset, name: str) -> np.ndarray:
    """True at the locations of a source that this part uses, for context or as targets."""
    used, kept = _in_period(data, name), data.context_places.get(name)
    if kept is None:
        return used
    if name == data.target_source and data.target_places is not None:
        kept = kept | data.target_places
    return used & kept


def _target_locations(data: Dataset) -> np.ndarray:
    used = _in_period(data, data.target_source)
    return used if data.target_places is None else used & data.target_places


def _in_period(data: Dataset, name: str) -> np.ndarray:
    """True at the locations of a source in the period of this part; a panel has them at all times,
    records have one per observation.
    """
    source = data.sources[name]
    used = np.ones(len(source.lat), bool)
    if isinstance(source, Records) and data.period is not None:
        first, last = source.rows(*data.period)
        used[:first] = used[last:] = False
    return used


def _covers(grid: Grid, window: str) -> bool:
    """Whether the time axis of the grid, if there is one, covers a time window."""
    axes, ends = tuple(a for a in grid.axes if a.name == "time"), Window.parse(window)
    if not axes:
        return True
    hours = [ends.start / HOUR, (ends.stop - np.timedelta64(1, "ms")) / HOUR]
    return bool(Grid(axes).covers(torch.tensor(hours)[:, None]).all())
