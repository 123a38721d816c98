"""Designing a grid for data: it covers all sources, with a few observations per cell.

Also checks that the sources overlap in space and time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gridtnp.data.coordinates import wrap
from gridtnp.data.dataset import Dataset
from gridtnp.data.sources import Panel, Source
from gridtnp.data.times import HOUR, Window, duration, show
from gridtnp.grid import Axis, Grid
from gridtnp.tasks.sampling import Sampler
from gridtnp.tasks.specification import TaskSpec

PER_CELL = 2.5
"""Observations of a task per cell: enough to fill the cell, few enough to resolve them."""
GLOBAL = 300.0
"""Data that span more degrees of longitude get a periodic axis."""
EVEN = 0.02
"""Tolerance of equal spacing, in steps."""
MAX_TIMES = 64
"""Most times of a gridded source in a task that are told apart."""
MARGIN = 0.02
"""Margin on each side, as a fraction of the extent."""


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

    def __str__(self) -> str:
        return f"{self.south:.4g} to {self.north:.4g} N, {self.west:.4g} to {self.east:.4g} E"


def extent_of(data: Dataset) -> Extent:
    """The bounding box of all sources and static fields."""
    lat = [s.lat for s in data.sources.values()]
    lon = [s.lon for s in data.sources.values()]
    for feature in data.statics.values():
        if feature.field is not None and not Extent.of(
            np.concatenate(lat), np.concatenate(lon), data.west
        ).disjoint(Extent.of(feature.field.lat, feature.field.lon, data.west)):
            field_lat = _clip(feature.field.lat, np.concatenate(lat))
            field_lon = _clip(
                wrap(feature.field.lon, data.west), wrap(np.concatenate(lon), data.west)
            )
            lat, lon = [*lat, field_lat], [*lon, field_lon]
    return Extent.of(np.concatenate(lat), np.concatenate(lon), data.west)


def _clip(values: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Clip a static field's coordinates to the observations' extent, enlarged by half on each side.

    Otherwise a global static field would make the grid global.
    """
    low, high = observed.min(), observed.max()
    margin = (high - low) / 2 + 1e-6
    return np.clip(values, low - margin, high + margin)


def make_grid(
    extent: Extent,
    points: float,
    *,
    max_cells: int,
    window: int,
    cell: float | None = None,
    time: Axis | None = None,
) -> Grid:
    """A grid of roughly square latitude-longitude cells, a multiple of `window` along each axis.

    Cells are `cell` degrees of latitude high, or sized to hold `PER_CELL` of `points` observations
    each, with about `max_cells` cells at most.
    """
    height = max(extent.north - extent.south, 1e-3)
    width = 360.0 if extent.is_global else max(extent.east - extent.west, 1e-3)
    area = height * width * extent.lon_scale
    if cell is None:
        cells = min(max(points / PER_CELL, window**2), max_cells)
        cell = math.sqrt(area / cells)
    rows = _round_to_multiple(height / cell, window)
    columns = _round_to_multiple(width * extent.lon_scale / cell, window)
    pad = MARGIN * height
    south, north = max(-90.0, extent.south - pad), min(90.0, extent.north + pad)
    if extent.is_global:
        lon = Axis.circle("lon", extent.west, 360.0, columns)
    else:
        pad = MARGIN * width
        lon = Axis.cells("lon", extent.west - pad, extent.east + pad, columns)
    axes = (Axis.cells("lat", south, north, rows), lon)
    return Grid(axes if time is None else (time, *axes), "sphere")


def _round_to_multiple(cells: float, window: int) -> int:
    return max(1, round(cells / window)) * window


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
    """The times of a source in a time window, in hours from the task's time."""
    around = Window.parse(window)
    low, high = float(around.start / HOUR), float((around.stop - np.timedelta64(1, "ms")) / HOUR)
    times = source.times
    step = high - low
    if times is not None and len(times) > 1:
        step = float(np.median(np.diff(np.unique(times))) / HOUR)
    size = max(1, round((high - low) / max(step, 1e-6)) + 1)
    return Axis("time", low, max(step, 1e-6), min(size, MAX_TIMES))


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
