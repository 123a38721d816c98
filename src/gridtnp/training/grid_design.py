"""A grid that suits the data: as wide as they are, with a few observations in a cell.

Also what can be told at once about sources that have nothing to do with each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gridtnp.data.coordinates import wrap
from gridtnp.data.dataset import Dataset
from gridtnp.data.sources import Source
from gridtnp.data.times import HOUR, Window, duration, show
from gridtnp.grid import Axis, Grid
from gridtnp.tasks.sampling import Sampler
from gridtnp.tasks.specification import TaskSpec

PER_CELL = 2.5
"""Observations of a task that a cell should hold: enough to fill it, few enough to tell apart."""
AROUND = 300.0
"""Longitudes that span so many degrees go around the globe."""
MARGIN = 0.02
"""Of the extent, on each side."""


@dataclass(frozen=True)
class Extent:
    """A box of degrees; longitudes in the range that the dataset uses."""

    south: float
    north: float
    west: float
    east: float

    @classmethod
    def of(cls, lat: np.ndarray, lon: np.ndarray, west: float) -> Extent:
        turned = wrap(lon, west)
        ends = (lat.min(), lat.max(), turned.min(), turned.max())
        return cls(*(float(value) for value in ends))

    @property
    def goes_around(self) -> bool:
        return self.east - self.west > AROUND

    @property
    def squeeze(self) -> float:
        """How much shorter a degree of longitude is than one of latitude, in the middle."""
        return max(0.2, math.cos(math.radians((self.south + self.north) / 2)))

    def apart(self, other: Extent) -> bool:
        """Whether the two have nothing in common."""
        lat = self.south > other.north or other.south > self.north
        return lat or self.west > other.east or other.west > self.east

    def __str__(self) -> str:
        return f"{self.south:.4g} to {self.north:.4g} N, {self.west:.4g} to {self.east:.4g} E"


def extent_of(data: Dataset) -> Extent:
    """Of all sources and static fields together."""
    lat = [s.lat for s in data.sources.values()]
    lon = [s.lon for s in data.sources.values()]
    for feature in data.statics.values():
        if feature.field is not None and not Extent.of(
            np.concatenate(lat), np.concatenate(lon), data.west
        ).apart(Extent.of(feature.field.lat, feature.field.lon, data.west)):
            near = _within(feature.field.lat, np.concatenate(lat))
            close = _within(
                wrap(feature.field.lon, data.west), wrap(np.concatenate(lon), data.west)
            )
            lat, lon = [*lat, near], [*lon, close]
    return Extent.of(np.concatenate(lat), np.concatenate(lon), data.west)


def _within(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """A static field counts as far as half the places' own extent beyond them: a map of the world
    must not make a grid of the world.
    """
    low, high = places.min(), places.max()
    room = (high - low) / 2 + 1e-6
    return np.clip(values, low - room, high + room)


def make_grid(
    extent: Extent,
    points: float,
    *,
    most: int,
    window: int,
    cell: float | None = None,
    time: Axis | None = None,
) -> Grid:
    """Latitude and longitude cells about as wide as high, whole windows of them along each axis.

    A cell of `cell` degrees of latitude, or as many cells as `points` observations fill, at most
    `most`.
    """
    height = max(extent.north - extent.south, 1e-3)
    width = 360.0 if extent.goes_around else max(extent.east - extent.west, 1e-3)
    area = height * width * extent.squeeze
    if cell is None:
        wanted = min(max(points / PER_CELL, window**2), most)
        cell = math.sqrt(area / wanted)
    rows = _whole(height / cell, window)
    columns = _whole(width * extent.squeeze / cell, window)
    pad = MARGIN * height
    south, north = max(-90.0, extent.south - pad), min(90.0, extent.north + pad)
    if extent.goes_around:
        lon = Axis.circle("lon", extent.west, 360.0, columns)
    else:
        pad = MARGIN * width
        lon = Axis.cells("lon", extent.west - pad, extent.east + pad, columns)
    axes = (Axis.cells("lat", south, north, rows), lon)
    return Grid(axes if time is None else (time, *axes), "sphere")


def _whole(cells: float, window: int) -> int:
    return max(1, round(cells / window)) * window


def spans_time(spec: TaskSpec) -> bool:
    """Whether the points of a task are of more than one moment."""
    return _reach(spec)[1] > _reach(spec)[0]


def time_axis(data: Dataset, spec: TaskSpec, most: int = 8) -> Axis:
    """Hours around a task's time, as far as its windows reach, at most `most` of them."""
    low, high = _reach(spec)
    steps = []
    for source in data.sources.values():
        if source.times is not None and len(source.times) > 1:
            gaps = np.diff(np.unique(source.times)) / HOUR
            steps.append(float(np.median(gaps)))
    step = min(steps, default=high - low)
    size = int(min(most, max(2, round((high - low) / max(step, 1e-6)) + 1)))
    return Axis.span("time", low, high, size)


def _reach(spec: TaskSpec) -> tuple[float, float]:
    """Hours from the earliest to the latest that a task may hold."""
    lead, instant = duration(spec.lead), np.timedelta64(1, "ms")
    target = Window.parse(spec.target_window)
    ends = [(target.start + lead, target.stop + lead - instant)]
    for context in spec.contexts.values():
        window = Window.parse(context.window or spec.window)
        ends.append((window.start, window.stop - instant))
    return min(float(a / HOUR) for a, _ in ends), max(float(b / HOUR) for _, b in ends)


def require_overlap(data: Dataset, spec: TaskSpec, sampler: Sampler) -> None:
    """Raise if a context source is nowhere near the target's, or never at the same time."""
    target = data.sources[spec.target_source]
    wanted = Extent.of(target.lat, target.lon, data.west)
    times = sampler.times
    for held in spec.contexts.values():
        source = data.sources[held.source]
        if source is target:
            continue
        found = Extent.of(source.lat, source.lon, data.west)
        if found.apart(wanted):
            raise ValueError(
                f"All sources must share a region with {target.name!r} ({wanted}), but "
                f"{source.name!r} is elsewhere ({found}); leave it out or check its coordinates."
            )
        if times is None or source.times is None:
            continue
        window = Window.parse(held.window or spec.window)
        if not _ever(source, times, window):
            raise ValueError(
                f"All sources must have observations at the times of tasks ({show(times[0])} to "
                f"{show(times[-1])}), but {source.name!r} ({show(source.times[0])} to "
                f"{show(source.times[-1])}) never has any in the window "
                f"{held.window or spec.window}; widen context_window or leave it out."
            )


def _ever(source: Source, times: np.ndarray, window: Window) -> bool:
    assert source.times is not None
    first = np.searchsorted(source.times, times + window.start, side="left")
    last = np.searchsorted(source.times, times + window.stop, side="left")
    return bool((last > first).any())
