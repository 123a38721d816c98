"""Designing a grid for data: it covers the observations, and resolves them and gridded sources.

Also checks that the sources overlap in space and time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gridtnp.data.dataset import Dataset
from gridtnp.grid import Axis, Grid
from gridtnp.sources.coordinates import wrap
from gridtnp.sources.source import Panel, Source
from gridtnp.sources.times import HOUR, Window, duration, show
from gridtnp.task import PointSet, Task
from gridtnp.tasks.sampling import Sampler
from gridtnp.tasks.specification import TaskSpec

OCCUPANCY = 1.25
"""Largest mean number of locations in an occupied cell: about one, as cells are not aligned."""
SPARSE = 5
"""Most cells per observation: beyond, attention windows are mostly empty."""
FIELD_CELLS = 4
"""Cells of a gridded source that are used at least beyond the other sources."""
GLOBAL = 300.0
"""Data that span more degrees of longitude get a periodic axis."""
EVEN = 0.02
"""Tolerance of equal spacing, in steps."""
MAX_TIMES = 64
"""Most times of a gridded source in a task that are told apart."""


@dataclass(frozen=True)
class Extent:
    """A bounding box in degrees; longitudes are in the dataset's range."""

    south: float
    north: float
    west: float
    east: float

    @classmethod
    def of(cls, lat: np.ndarray, lon: np.ndarray, west: float) -> Extent:
        wrapped = wrap(lon, west)
        ends = (lat.min(), lat.max(), wrapped.min(), wrapped.max())
        return cls(*(float(value) for value in ends))

    @property
    def is_global(self) -> bool:
        return self.east - self.west > GLOBAL

    @property
    def lon_scale(self) -> float:
        """Length of a degree of longitude relative to one of latitude, at the central latitude."""
        return max(0.2, math.cos(math.radians((self.south + self.north) / 2)))

    def disjoint(self, other: Extent) -> bool:
        """Whether the two boxes do not overlap."""
        lat = self.south > other.north or other.south > self.north
        return lat or self.west > other.east or other.west > self.east

    def clipped(self, other: Extent, margin: float) -> Extent:
        """The part within half the size of another box around it, at least `margin` degrees."""
        lat = max(margin, (other.north - other.south) / 2)
        lon = max(margin / self.lon_scale, (other.east - other.west) / 2)
        return Extent(
            max(self.south, other.south - lat),
            min(self.north, other.north + lat),
            max(self.west, other.west - lon),
            min(self.east, other.east + lon),
        )

    def __str__(self) -> str:
        return f"{self.south:.4g} to {self.north:.4g} N, {self.west:.4g} to {self.east:.4g} E"


def extent_of(data: Dataset) -> Extent:
    """The bounding box of the observations; static fields have no part in it.

    A gridded source that is not the target's counts up to half the extent of the other sources
    beyond them, so that a global field does not make the grid of a region global.
    """
    gridded = gridded_sources(data)
    held = [s for s in data.sources.values() if s.name not in gridded]
    held = held or [data.sources[data.target_source]]
    found = _joined(data, [Extent.of(s.lat, s.lon, data.west) for s in held])
    boxes = [found]
    for name, spacing in gridded.items():
        source = data.sources[name]
        field = Extent.of(source.lat, source.lon, data.west)
        if source not in held and not found.disjoint(field):
            boxes.append(field.clipped(found, FIELD_CELLS * spacing))
    return _joined(data, boxes)


def _joined(data: Dataset, boxes: Sequence[Extent]) -> Extent:
    lat = np.array([value for box in boxes for value in (box.south, box.north)])
    lon = np.array([value for box in boxes for value in (box.west, box.east)])
    return Extent.of(lat, lon, data.west)


def gridded_sources(data: Dataset) -> dict[str, float]:
    """The gridded sources, apart from the target's, with their spacing in degrees of latitude."""
    found = {}
    for source in data.sources.values():
        if source.name == data.target_source or not isinstance(source, Panel):
            continue
        if source.shape is not None and min(source.shape) > 1:
            found[source.name] = _spacing(source, data.west)
    return found


def _spacing(source: Panel, west: float) -> float:
    lat, lon = np.unique(source.lat), np.unique(wrap(source.lon, west))
    scale = Extent.of(source.lat, source.lon, west).lon_scale
    return float(min(np.median(np.diff(lat)), np.median(np.diff(lon)) * scale))


def make_grid(
    extent: Extent, cell: float, *, window: int | tuple[int, int], time: Axis | None = None
) -> Grid:
    """A grid of cells about `cell` degrees of latitude high and as wide, over an extent.

    It has one more cell on every side, up to the poles. Its axes are multiples of the window.
    """
    sides = (window, window) if isinstance(window, int) else window
    height = max(extent.north - extent.south, 1e-3)
    width = 360.0 if extent.is_global else max(extent.east - extent.west, 1e-3)
    rows = _round_to_multiple(height / cell + 2, sides[0])
    step = height / max(1, rows - 2)
    south, north = max(-90.0, extent.south - step), min(90.0, extent.north + step)
    if extent.is_global:
        columns = _round_to_multiple(width * extent.lon_scale / cell, sides[1])
        lon = Axis.circle("lon", extent.west, 360.0, columns)
    else:
        columns = _round_to_multiple(width * extent.lon_scale / cell + 2, sides[1])
        step = width / max(1, columns - 2)
        lon = Axis.cells("lon", extent.west - step, extent.east + step, columns)
    axes = (Axis.cells("lat", south, north, rows), lon)
    return Grid(axes if time is None else (time, *axes), "sphere")


def _round_to_multiple(cells: float, window: int) -> int:
    return max(1, round(cells / window)) * window


Places = tuple[np.ndarray, np.ndarray]
"""Latitudes and longitudes."""


@dataclass(frozen=True)
class CellChoice:
    """The height of a cell in degrees, and what decided it."""

    cell: float
    reason: str


def choose_cell(
    data: Dataset,
    extent: Extent,
    places: Sequence[Places],
    max_cells: int,
    given: float | None = None,
) -> CellChoice:
    """Cells as fine as the finest gridded source, with about one location per occupied cell.

    `places` are the observations of the target's source in some tasks. There are at most
    `max_cells` cells, and `SPARSE` per location unless a gridded source is finer.
    """
    if given is not None:
        per_cell = occupancy(places, extent, given)
        return CellChoice(given, f"{per_cell:.2g} locations of a task per occupied cell, as given")
    height = max(extent.north - extent.south, 1e-3)
    width = 360.0 if extent.is_global else max(extent.east - extent.west, 1e-3)
    area = height * width * extent.lon_scale
    mean = max(1.0, float(np.mean([len(np.unique(lat + 1j * lon)) for lat, lon in places])))
    finest = math.sqrt(area / max_cells)
    cell = math.sqrt(area / mean)
    while occupancy(places, extent, cell) > OCCUPANCY and area / cell**2 < SPARSE * mean:
        cell /= 2**0.25
    decided, wanted = "", f"one needs cells of {cell:.2g}°"
    gridded = gridded_sources(data)
    name = min(gridded, key=lambda name: gridded[name], default="")
    if name and gridded[name] < cell:
        cell, decided = gridded[name], f", as fine as {name!r}"
        wanted = f"{name!r} has cells of {cell:.2g}°"
    if cell < finest:
        cell, decided = finest, f", limited by the size's {max_cells:,} cells; {wanted}"
    per_cell = occupancy(places, extent, cell)
    return CellChoice(cell, f"{per_cell:.2g} locations of a task per occupied cell{decided}")


def locations(spec: TaskSpec, tasks: Sequence[Task]) -> list[Places]:
    """Where the target's source is observed in each task, context and targets."""
    own = [n for n, held in spec.contexts.items() if held.source == spec.target_source]
    lat, lon = (spec.coordinates.index(name) for name in ("lat", "lon"))
    found = []
    for task in tasks:
        sets = [task.target, *(task.context[name] for name in own)]
        for i in range(task.target.batch):
            x = np.concatenate([used_points(points, i) for points in sets])
            found.append((x[:, lat], x[:, lon]))
    return found


def used_points(points: PointSet, number: int) -> np.ndarray:
    """The points of one task of a batch that are not masked."""
    x = points.x[number]
    return (x if points.mask is None else x[points.mask[number]]).double().numpy()


def occupancy(places: Sequence[Places], extent: Extent, cell: float) -> float:
    """Mean number of locations in an occupied cell; observations at one location count once."""
    points = cells = 0
    for lat, lon in places:
        once = np.unique(np.stack([lat, lon]), axis=1)
        rows = np.floor((once[0] - extent.south) / cell)
        columns = np.floor((once[1] - extent.west) * extent.lon_scale / cell)
        points += once.shape[1]
        cells += np.unique(np.stack([rows, columns]), axis=1).shape[1]
    return points / max(1, cells)


def spans_time(spec: TaskSpec) -> bool:
    """Whether the points of a task may have different times."""
    return _time_range(spec)[1] > _time_range(spec)[0]


def time_axis(data: Dataset, spec: TaskSpec, max_size: int = 8) -> Axis:
    """A time axis in hours from the task's time, over all time windows of a task."""
    low, high = _time_range(spec)
    steps = []
    for source in data.sources.values():
        if source.times is not None and len(source.times) > 1:
            gaps = np.diff(np.unique(source.times)) / HOUR
            steps.append(float(np.median(gaps)))
    step = min(steps, default=high - low)
    size = int(min(max_size, max(2, round((high - low) / max(step, 1e-6)) + 1)))
    return Axis.span("time", low, high, size)


def source_time_axis(source: Source, window: str) -> Axis:
    """The times of a source in a time window, in hours from the task's time: the latest ones."""
    around = Window.parse(window)
    low, high = float(around.start / HOUR), float((around.stop - np.timedelta64(1, "ms")) / HOUR)
    times = source.times
    step = high - low
    if times is not None and len(times) > 1:
        step = float(np.median(np.diff(np.unique(times))) / HOUR)
    size = max(1, round((high - low) / max(step, 1e-6)) + 1)
    step, more = max(step, 1e-6), max(size - MAX_TIMES, 0)
    return Axis("time", low + more * step, step, size - more)


def regular_axes(source: Source, west: float) -> tuple[Axis, Axis] | None:
    """Latitudes and longitudes of a gridded source; None if they are not equally spaced."""
    if not isinstance(source, Panel) or source.shape is None or min(source.shape) < 2:
        return None
    lat = np.sort(source.lat.reshape(source.shape)[:, 0])
    lon = np.sort(wrap(source.lon.reshape(source.shape)[0], west))
    axes = []
    for name, values in (("lat", lat), ("lon", lon)):
        gaps = np.diff(values)
        step = float(np.median(gaps))
        if abs(gaps - step).max() > EVEN * step:
            return None
        around = name == "lon" and abs(step * len(values) - 360) < EVEN * step
        step = 360 / len(values) if around else step
        axes.append(Axis(name, float(values[0]), step, len(values), periodic=around))
    return axes[0], axes[1]


def _time_range(spec: TaskSpec) -> tuple[float, float]:
    """Earliest and latest time that a task may hold, in hours from its own time."""
    lead, instant = duration(spec.lead), np.timedelta64(1, "ms")
    target = Window.parse(spec.target_window)
    ends = [(target.start + lead, target.stop + lead - instant)]
    for context in spec.contexts.values():
        window = Window.parse(context.window or spec.window)
        ends.append((window.start, window.stop - instant))
    return min(float(a / HOUR) for a, _ in ends), max(float(b / HOUR) for _, b in ends)


def require_overlap(data: Dataset, spec: TaskSpec, sampler: Sampler) -> None:
    """Raise if a context source does not overlap with the target's in space or in time."""
    target = data.sources[spec.target_source]
    target_extent = Extent.of(target.lat, target.lon, data.west)
    times = sampler.times
    for held in spec.contexts.values():
        source = data.sources[held.source]
        if source is target:
            continue
        extent = Extent.of(source.lat, source.lon, data.west)
        if extent.disjoint(target_extent):
            raise ValueError(
                f"Source {source.name!r} ({extent}) does not overlap with {target.name!r} "
                f"({target_extent}); leave it out or check its coordinates."
            )
        if times is None or source.times is None:
            continue
        window = Window.parse(held.window or spec.window)
        if not _any_in_window(source, times, window):
            raise ValueError(
                f"Source {source.name!r} ({show(source.times[0])} to {show(source.times[-1])}) has "
                f"no observation in the time window {held.window or spec.window} of any task "
                f"({show(times[0])} to {show(times[-1])}); widen context_window or leave it out."
            )


def _any_in_window(source: Source, times: np.ndarray, window: Window) -> bool:
    assert source.times is not None
    first = np.searchsorted(source.times, times + window.start, side="left")
    last = np.searchsorted(source.times, times + window.stop, side="left")
    return bool((last > first).any())
