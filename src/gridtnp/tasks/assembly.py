"""Observations, or places to predict at, as a `PointSet`: normalised, padded and masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Shaped

from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.errors import require_known
from gridtnp.grid import Grid
from gridtnp.sources.coordinates import wrap
from gridtnp.sources.source import Source
from gridtnp.sources.times import HOUR
from gridtnp.task import PointSet
from gridtnp.tasks.observations import Observations, TaskTime


@dataclass(frozen=True, eq=False)
class Assembler:
    """Makes the points of one model: `coordinates` are the axes of its grid.

    Time is in hours from the task's time. With a `normaliser`, values and static features have
    about unit size. With a `grid`, points outside of it are masked.
    """

    data: Dataset
    coordinates: tuple[str, ...]
    normaliser: Normaliser | None = None
    grid: Grid | None = None

    def __post_init__(self) -> None:
        for name in self.coordinates:
            require_known(name, ("time", "lat", "lon"), "coordinate")

    def points(
        self, source: Source, variables: Sequence[str], tasks: Sequence[Observations]
    ) -> PointSet:
        """One batch of tasks, padded to the longest and masked."""
        keys = [f"{source.name}.{name}" for name in variables]
        counts = np.array([len(task.rows) for task in tasks])
        shape = (len(tasks), int(counts.max(initial=0)))
        x = np.zeros((*shape, len(self.coordinates)), np.float32)
        y = np.zeros((*shape, len(variables)), np.float32)
        known_errors = any(task.errors is not None for task in tasks)
        error = np.zeros_like(y) if known_errors else None
        features = np.zeros((*shape, len(self.data.feature_names)), self._precision)
        locations, static = self._places[source.name], self._static[source.name]
        needs_times = self.data.computed or "time" in self.coordinates
        for i, task in enumerate(tasks):
            n, places = len(task.rows), source.places(task.rows)
            times = source.times_of(task.rows) if needs_times else None
            # indices are valid; mode="clip" spares numpy the check
            np.take(locations, places, 0, out=x[i, :n], mode="clip")
            if "time" in self.coordinates and times is not None:
                x[i, :n, self.coordinates.index("time")] = (times - task.time) / HOUR
            y[i, :n] = (
                task.values
                if self.normaliser is None
                else self.normaliser.normalise(keys, task.values)
            )
            if error is not None and task.errors is not None:
                scale = 1.0 if self.normaliser is None else self.normaliser.scale(keys)
                error[i, :n] = task.errors / scale
            if self.data.statics:
                features[i, :n, : static.shape[1]] = static[places]
            if self.data.computed:
                if times is None and task.time is not None:
                    times = np.full(n, task.time)
                computed = self.data.compute(times, source.lat[places], source.lon[places])
                features[i, :n, static.shape[1] :] = computed
        mask = None
        if (counts < shape[1]).any():
            mask = torch.from_numpy(np.arange(shape[1]) < counts[:, None])
        known = torch.from_numpy(features) if self.data.feature_names else None
        read = None if error is None else torch.from_numpy(error)
        return self._on_grid(PointSet(torch.from_numpy(x), torch.from_numpy(y), mask, known, read))

    def query(
        self,
        lat: Float[np.ndarray, " n"],
        lon: Float[np.ndarray, " n"],
        time: Shaped[np.ndarray, " n"] | None = None,
        task_time: TaskTime = None,
        known: Mapping[str, Float[np.ndarray, " n"]] | None = None,
    ) -> PointSet:
        """Any places, at their own times or at the task's, as a batch of one.

        `known` are static features that come with the places and take precedence over the fields.
        Points where a static feature is unknown are masked.
        """
        return self.query_and_unknown(lat, lon, time, task_time, known)[0]

    def query_and_unknown(
        self,
        lat: Float[np.ndarray, " n"],
        lon: Float[np.ndarray, " n"],
        time: Shaped[np.ndarray, " n"] | None = None,
        task_time: TaskTime = None,
        known: Mapping[str, Float[np.ndarray, " n"]] | None = None,
    ) -> tuple[PointSet, int]:
        """`query`, and the number of points on the grid where a static feature is unknown."""
        if time is None and task_time is not None:
            time = np.full(len(lat), task_time)
        columns = {"lat": lat, "lon": wrap(lon, self.data.west)}
        if "time" in self.coordinates:
            if time is None or task_time is None:
                raise ValueError("The task has no time, which coordinate 'time' needs.")
            columns["time"] = (time - task_time) / HOUR
        x = np.stack([columns[name] for name in self.coordinates], -1).astype(np.float32)
        features = self.data.features_at(lat, lon, time, known).astype(self._precision)
        if self.normaliser is not None and self.data.statics:
            names = tuple(self.data.statics)
            static = features[:, : len(names)]
            features[:, : len(names)] = self.normaliser.normalise(names, static)
        known_here = torch.from_numpy(np.all(np.isfinite(features), axis=1))
        place = torch.from_numpy(x)
        inside = torch.ones_like(known_here) if self.grid is None else self.grid.covers(place)
        usable = inside & known_here
        mask = None if bool(usable.all()) else usable[None]
        batched = torch.from_numpy(features)[None] if self.data.feature_names else None
        return PointSet(place[None], None, mask, batched), int((inside & ~known_here).sum())

    def _on_grid(self, points: PointSet) -> PointSet:
        if self.grid is None:
            return points
        inside = self.grid.covers(points.x)
        if bool(inside.all()):
            return points
        return replace(points, mask=inside if points.mask is None else inside & points.mask)

    @property
    def _precision(self) -> type[np.floating]:
        """Double precision where features hold hours since 1970."""
        return np.float64 if "hours" in self.data.computed else np.float32

    @cached_property
    def _places(self) -> dict[str, np.ndarray]:
        """Coordinates of the locations of every source; times are filled in later."""
        found = {}
        for name, s in self.data.sources.items():
            known = {"lat": s.lat, "lon": wrap(s.lon, self.data.west), "time": np.zeros(len(s.lat))}
            found[name] = np.stack([known[c] for c in self.coordinates], -1).astype(np.float32)
        return found

    @cached_property
    def _static(self) -> dict[str, np.ndarray]:
        """Static features at the locations of every source."""
        found = {name: self.data.static_at(name) for name in self.data.sources}
        if self.normaliser is None or not self.data.statics:
            return found
        names = tuple(self.data.statics)
        return {k: self.normaliser.normalise(names, v).astype(np.float32) for k, v in found.items()}
