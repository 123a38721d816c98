"""Conditioning: the context of a model at a time, and the points to predict.

`predict` and `sample` both use a `Conditioner`. Its data are a `Dataset`, a part of one, or fresh
sources under the names that the model was trained with.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float
from scipy.spatial import KDTree

from gridtnp.contents import ModelContents
from gridtnp.data.dataset import Dataset
from gridtnp.errors import require_known
from gridtnp.grid import EARTH_RADIUS, Grid
from gridtnp.inference.queries import Query
from gridtnp.network.model import NeuralProcess
from gridtnp.sources.coordinates import unit_vectors
from gridtnp.sources.quality import warn_data
from gridtnp.sources.reading import Data, open_data
from gridtnp.sources.times import Window, duration, show, to_time
from gridtnp.task import PointSet, Task
from gridtnp.tasks.area import area
from gridtnp.tasks.assembly import Assembler
from gridtnp.tasks.observations import Observations, SourceVariables, TaskTime
from gridtnp.tasks.specification import TaskSpec

Static = Mapping[str, Data] | Data | None


@dataclass(frozen=True, eq=False)
class Conditioning:
    """The context sets of one task, as a batch of one, and their locations as unit vectors.

    `dropped` observations are outside of the model's grid.
    """

    context: dict[str, PointSet]
    places: dict[str, Float[np.ndarray, "n 3"]]
    dropped: int = 0

    @property
    def empty(self) -> bool:
        return not any(points.n for points in self.context.values())

    def distance(
        self, sets: tuple[str, ...], places: Float[np.ndarray, "n 3"]
    ) -> Float[np.ndarray, " n"]:
        """Distance in km to the nearest observation of these sets, or of any set if they are empty.

        NaN without any observations.
        """
        own = [self.places[name] for name in sets if len(self.places.get(name, ()))]
        observed = own or [points for points in self.places.values() if len(points)]
        if not observed:
            return np.full(len(places), np.nan)
        key = tuple(map(id, observed))
        if key not in self._trees:
            self._trees[key] = KDTree(np.concatenate(observed))
        chord = self._trees[key].query(places)[0]
        return EARTH_RADIUS * 2 * np.arcsin(np.minimum(chord / 2, 1.0))

    @cached_property
    def _trees(self) -> dict[tuple[int, ...], KDTree]:
        return {}


@dataclass(eq=False)
class Unusable:
    """Counts of what could not be used or predicted, for one warning at the end."""

    observations: int = 0
    outside: int = 0
    unknown: int = 0
    points: int = 0
    empty: list[str] = field(default_factory=list)
    counted: set[TaskTime] = field(default_factory=set)

    def count(self, task_time: TaskTime, found: Conditioning) -> None:
        """Of the context of a task, once."""
        if task_time in self.counted:
            return
        self.counted.add(task_time)
        self.observations += found.dropped
        if found.empty:
            self.empty.append("all" if task_time is None else show(task_time))

    def __add__(self, other: Unusable) -> Unusable:
        return Unusable(
            self.observations + other.observations,
            self.outside + other.outside,
            self.unknown + other.unknown,
            self.points + other.points,
            [*self.empty, *other.empty],
            self.counted | other.counted,
        )

    def require_points(self, grid: Grid | None, statics: tuple[str, ...]) -> None:
        """Raise if no point at all could be predicted."""
        if self.points and self.outside + self.unknown == self.points:
            raise ValueError(
                f"Nothing can be predicted: {' and '.join(self._lost(grid, statics))}; ask for "
                "other places, or train on a wider area."
            )

    def warn(self, grid: Grid | None, statics: tuple[str, ...], stacklevel: int) -> None:
        """Warn once of everything."""
        found = [f"{points} and are NaN" for points in self._lost(grid, statics)]
        if self.observations:
            covered = "" if grid is None else area(grid)
            found.append(f"{self.observations:,} observations outside of {covered} are dropped")
        if self.empty:
            first = min(self.empty)
            more = f" and {len(self.empty) - 1:,} other times" if len(self.empty) > 1 else ""
            found.append(
                f"there are no observations at {first}{more}, so the model predicts without context"
            )
        if found:
            warn_data(f"{'; '.join(found)}.", stacklevel)

    def _lost(self, grid: Grid | None, statics: tuple[str, ...]) -> list[str]:
        """Which points could not be predicted, and why."""
        found = []
        if self.outside:
            covered = "" if grid is None else area(grid)
            found.append(f"{self.outside:,} of {self.points:,} points lie outside of {covered}")
        if self.unknown:
            found.append(f"{self.unknown:,} of {self.points:,} points have no {list(statics)}")
        return found


@dataclass(frozen=True, eq=False)
class ContextReader:
    """Reads the context of tasks from data, time by time."""

    spec: TaskSpec
    data: Dataset

    @classmethod
    def of(
        cls,
        spec: TaskSpec,
        context: Dataset | Mapping[str, Data],
        static: Static = None,
        *,
        stacklevel: int = 4,
    ) -> ContextReader:
        known = {held.source for held in spec.contexts.values()} | {spec.target_source}
        for name in context.sources if isinstance(context, Dataset) else context:
            require_known(name, known, "source", "for this model")
        if isinstance(context, Dataset):
            if static is not None:
                raise ValueError(
                    "static= is for fresh sources, but the context is a Dataset, which has its own "
                    "static features; leave static= out."
                )
            data = context
        else:
            data = dataset_of(spec, context, static)
        _require_sets(spec, data, stacklevel)
        return cls(spec, spec.aligned(data))

    def observations(self, task_time: TaskTime) -> dict[str, Observations]:
        """All observations that a task at this time may use, by context set."""
        found = {}
        for name, variables in self.variables.items():
            there = variables.available(task_time)
            found[name] = there.observations(there.complete, task_time)
        return found

    @cached_property
    def variables(self) -> dict[str, SourceVariables]:
        """The context sets that are in the data."""
        found = {}
        for name, held in self.spec.contexts.items():
            source = self.data.sources.get(held.source)
            if source is None or not set(held.variables) <= set(source.names):
                continue
            window = Window.parse(held.window or self.spec.window)
            kept = self.data.context_places.get(held.source)
            variables = SourceVariables.of(self.data, name, held.source, window, kept)
            found[name] = replace(variables, variables=held.variables)
        return found

    def sets_of(self, variable: str) -> tuple[str, ...]:
        """The context sets with observations of a target variable."""
        return tuple(
            name
            for name, held in self.spec.contexts.items()
            if held.source == self.spec.target_source and variable in held.variables
        )

    def known(self, query: Query) -> dict[str, np.ndarray]:
        """Static features that come with a query."""
        given = {name: query.known(name) for name in self.spec.statics}
        return {name: values for name, values in given.items() if values is not None}

    # ---- times -----------------------------------------------------------------------------------

    def groups(self, query: Query) -> Iterator[tuple[TaskTime, np.ndarray]]:
        """Split a query into tasks: the time of each task, and the rows of the query in it."""
        if query.time is None:
            yield self.task_time, np.arange(len(query.lat))
            return
        when, inverse = np.unique(query.time, return_inverse=True)
        tasks = self._task_times(when)
        unique, which = np.unique(tasks, return_inverse=True)
        order = np.argsort(which[inverse], kind="stable")
        counts = np.bincount(which[inverse], minlength=len(unique))
        yield from zip(unique, np.split(order, np.cumsum(counts)[:-1]), strict=True)

    def steps(self, query: Query) -> Iterator[tuple[TaskTime, np.ndarray]]:
        """The same, time by time where time is a dimension of the query.

        What is computed at once, and so how it is rounded, then does not depend on which times are
        asked for together.
        """
        for task_time, rows in self.groups(query):
            if query.time is None or query.time_dim is None:
                yield task_time, rows
                continue
            valid = query.time[rows]
            for time in np.unique(valid):
                yield task_time, rows[valid == time]

    @property
    def task_time(self) -> TaskTime:
        """The only time of the data, for a query without times."""
        data = self.data
        if data.task_time is not None:
            return data.task_time
        times = data.times()
        if times is None:
            others = [s.times for s in data.sources.values() if s.times is not None]
            if not others:
                return None
            times = np.unique(np.concatenate(others))
        if len(times) > 1:
            raise ValueError(
                f"The query has no time and the context has {len(times):,}; choose one, "
                f"data.at({show(times[-1])!r}), or several, times=[...]."
            )
        return times[0]

    def _task_times(self, valid: np.ndarray) -> np.ndarray:
        """The nearest task time for each valid time."""
        spec = self.spec
        window = Window.parse(spec.target_window)
        start, stop, lead = (_ms(d) for d in (window.start, window.stop, duration(spec.lead)))
        now = valid.astype("datetime64[ms]").astype(np.int64) - lead
        first, last = now - stop + 1, now - start
        if self.data.task_time is not None:
            only = np.full(len(valid), self.data.task_time)
            tasks = only.astype("datetime64[ms]").astype(np.int64)
        elif spec.every is None:
            tasks = np.clip(now, first, last)
        else:
            step = _ms(duration(spec.every))
            low, high = -(-first // step) * step, last // step * step
            tasks = np.clip((now + step // 2) // step * step, low, high)
        wrong = np.flatnonzero((tasks < first) | (tasks > last))
        if len(wrong):
            one = show(np.datetime64(int(tasks[wrong[0]]), "ms"))
            raise ValueError(
                f"{show(to_time(valid[wrong[0]]))} is not in the target window "
                f"{spec.target_window!r}, {spec.lead} after the task at {one}; ask for other "
                "times, or pass the data of all times, without .at(...)."
            )
        return tasks.astype("datetime64[ms]")


class Encodings:
    """Contexts of the last tasks with their encodings: the next points are often of the same.

    Predictions that run at once can share them. Another process starts without any.
    """

    def __init__(self, most: int = 1) -> None:
        self.most = most
        self._kept: OrderedDict[TaskTime, tuple[NeuralProcess, Conditioning, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Encodings], tuple[int]]:
        return Encodings, (self.most,)

    def get(self, task_time: TaskTime, network: NeuralProcess) -> tuple[Conditioning, Any] | None:
        with self._lock:
            found = self._kept.get(task_time)
            if found is None or found[0] is not network:
                return None
            self._kept.move_to_end(task_time)
            return found[1:]

    def keep(
        self, task_time: TaskTime, network: NeuralProcess, conditioning: Conditioning, encoding: Any
    ) -> None:
        with self._lock:
            self._kept[task_time] = network, conditioning, encoding
            self._kept.move_to_end(task_time)
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)


@dataclass(frozen=True, eq=False)
class Conditioner:
    """Conditions a model on data, time by time."""

    model: ModelContents
    reader: ContextReader
    assembler: Assembler
    unusable: Unusable = field(default_factory=Unusable)
    encodings: Encodings = field(default_factory=Encodings)

    @classmethod
    def of(
        cls,
        model: ModelContents,
        context: Context,
        static: Static = None,
    ) -> Conditioner:
        """A conditioner of data; given one, the same with new counts of what is unusable."""
        if isinstance(context, Conditioner):
            return replace(context, unusable=Unusable())
        reader = ContextReader.of(model.spec, context, static, stacklevel=6)
        return cls(model, reader, model.assembler(reader.data))

    @property
    def spec(self) -> TaskSpec:
        return self.model.spec

    @property
    def data(self) -> Dataset:
        return self.reader.data

    def fresh(self) -> Conditioner:
        """The same without counts; several can be used at once."""
        return replace(self, unusable=Unusable(), encodings=Encodings())

    # ---- context and targets ---------------------------------------------------------------------

    def at(self, task_time: TaskTime) -> Conditioning:
        """All observations that a task at this time may use."""
        found = self._read(task_time)
        self.unusable.count(task_time, found)
        return found

    def _read(self, task_time: TaskTime) -> Conditioning:
        context, places, dropped = {}, {}, 0
        for name, observed in self.reader.observations(task_time).items():
            variables = self.reader.variables[name]
            source, rows = variables.source, observed.rows
            points = self.assembler.points(source, variables.variables, [observed])
            if points.mask is not None:  # outside of the grid
                inside = points.mask[0]
                dropped += int((~inside).sum())
                points, rows = points.select(inside), rows[inside.numpy()]
                points = replace(points, mask=None)
            location = source.places(rows)
            context[name] = points.to(self.model.device)
            places[name] = unit_vectors(source.lat[location], source.lon[location])
        return Conditioning(context, places, dropped)

    def encoded(
        self, task_time: TaskTime, like: PointSet, network: NeuralProcess
    ) -> tuple[Conditioning, Any]:
        """The context of a task, and its encoding by the network, or by it on a tile."""
        found = self.encodings.get(task_time, network)
        if found is None:
            conditioning = self._read(task_time)
            found = conditioning, network.encode(self.complete(conditioning, like))
            self.encodings.keep(task_time, network, *found)
        self.unusable.count(task_time, found[0])
        return found

    def complete(self, conditioning: Conditioning, like: PointSet) -> dict[str, PointSet]:
        """All context sets of the network, checked; sets without data are empty."""
        network = self.model.network
        network.check(Task(conditioning.context, like))
        return network.signature.complete(conditioning.context, like)

    def targets(
        self,
        query: Query,
        known: Mapping[str, np.ndarray],
        rows: np.ndarray,
        task_time: TaskTime,
        *,
        count: bool = True,
    ) -> PointSet:
        """Rows of a query as points of the model, masked where it cannot predict."""
        time = None if query.time is None else query.time[rows]
        if time is None and task_time is not None:
            time = np.full(len(rows), task_time + duration(self.spec.lead))
        own = {name: values[rows] for name, values in known.items()}
        points, unknown = self.assembler.query_and_unknown(
            query.lat[rows], query.lon[rows], time, task_time, own
        )
        if count:
            usable = len(rows) if points.mask is None else int(points.mask.sum())
            self.unusable.points += len(rows)
            self.unusable.unknown += unknown
            self.unusable.outside += len(rows) - usable - unknown
        return points.to(self.model.device)


Context = Dataset | Mapping[str, Data] | Conditioner
"""What a model is told: data, or data that are prepared already."""


def dataset_of(
    spec: TaskSpec,
    sources: Mapping[str, Data],
    static: Static = None,
    *,
    na_values: Sequence[float | str] = (),
    crs: Mapping[str, str] | None = None,
) -> Dataset:
    """A dataset of fresh sources, with the model's features."""
    if not sources:
        raise ValueError(
            "The context is empty; give at least one source of "
            f"{sorted({held.source for held in spec.contexts.values()})}."
        )
    opened = {
        name: open_data(data) if isinstance(data, str | os.PathLike) else data
        for name, data in sources.items()
    }
    if static is None and spec.statics:
        static = {name: f"{_owner(name, opened)}.{name}" for name in spec.statics}
    wanted = spec.target_source if spec.target_source in opened else next(iter(opened))
    return Dataset(
        opened,
        target=wanted,
        static=static,
        features=spec.computed,
        na_values=na_values,
        crs={name: system for name, system in (crs or {}).items() if name in opened},
        error={k: v for k, v in spec.errors.items() if k.partition(".")[0] in opened},
    )


def _ms(length: np.timedelta64) -> int:
    return int(length / np.timedelta64(1, "ms"))


def _owner(feature: str, sources: Mapping[str, Any]) -> str:
    """The source that has a static feature as a column."""
    for name, data in sources.items():
        columns = data.coords if isinstance(data, xr.DataArray) else data
        if feature in (data.columns if isinstance(data, pd.DataFrame) else columns):
            return name
    raise ValueError(
        f"The static feature {feature!r}, which the model was trained with, is missing; give "
        f"static={{{feature!r}: ...}}, or a column of that name in a source."
    )


def _require_sets(spec: TaskSpec, data: Dataset, stacklevel: int) -> None:
    """Raise without any context set of the model; warn of missing variables and other units."""
    missing, there = [], 0
    for held in spec.contexts.values():
        source = data.sources.get(held.source)
        lacking = set(held.variables) - set(() if source is None else source.names)
        there += not lacking
        if source is not None:
            missing += [f"{held.source}.{name}" for name in sorted(lacking)]
    wanted = sorted({f"{s.source}.{v}" for s in spec.contexts.values() for v in s.variables})
    if not there:
        found = sorted(f"{s.name}.{v}" for s in data.sources.values() for v in s.names)
        raise ValueError(
            f"The context has {found}, but nothing that the model was trained with: {wanted}."
        )
    units = [
        f"{key} is in {unit!r}, but was in {spec.units[key]!r} when the model was trained"
        for s in data.sources.values()
        for v in s.variables
        if (key := f"{s.name}.{v.name}") in wanted
        and None not in (unit := v.units, spec.units.get(key))
        and unit != spec.units[key]
    ]
    lack = []
    if missing:
        lack = [f"The context has no {', '.join(missing)}, which the model was trained with"]
    if lack or units:
        warn_data("; ".join([*lack, *units]) + ".", stacklevel)
