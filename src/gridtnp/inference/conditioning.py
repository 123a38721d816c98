"""Conditioning: the context of a model at a time, and the points to predict.

`predict` and `sample` both use a `Conditioner`.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.spatial import KDTree

from gridtnp.contents import ModelContents
from gridtnp.data.dataset import Dataset
from gridtnp.grid import EARTH_RADIUS, Grid
from gridtnp.inference.context_reader import ContextReader, Static
from gridtnp.inference.queries import Query
from gridtnp.network.model import NeuralProcess
from gridtnp.sources.coordinates import unit_vectors
from gridtnp.sources.quality import warn_data
from gridtnp.sources.reading import Data
from gridtnp.sources.source import Panel
from gridtnp.sources.times import duration, show
from gridtnp.task import PointSet, Task
from gridtnp.tasks.area import area
from gridtnp.tasks.assembly import Assembler
from gridtnp.tasks.observations import TaskTime
from gridtnp.tasks.specification import TaskSpec


@dataclass(frozen=True, eq=False)
class Conditioning:
    """The context sets of one task, as a batch of one, and their locations as unit vectors.

    `dropped` observations are outside of the model's grid; `absent` gridded sources are in the
    data, but not at the time of the task. `impossible` counts observations of target variables that
    their likelihood cannot have.
    """

    context: dict[str, PointSet]
    places: dict[str, Float[np.ndarray, "n 3"]]
    dropped: int = 0
    absent: tuple[str, ...] = ()
    impossible: Mapping[str, int] = field(default_factory=dict)

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
    absent: dict[str, list[str]] = field(default_factory=dict)
    counted: set[TaskTime] = field(default_factory=set)
    impossible: Counter[str] = field(default_factory=Counter)

    def count(self, task_time: TaskTime, found: Conditioning) -> None:
        """Of the context of a task, once."""
        if task_time in self.counted:
            return
        self.counted.add(task_time)
        self.observations += found.dropped
        self.impossible.update(found.impossible)
        time = "all" if task_time is None else show(task_time)
        if found.empty:
            self.empty.append(time)
            return
        for name in found.absent:
            self.absent.setdefault(name, []).append(time)

    def __add__(self, other: Unusable) -> Unusable:
        return Unusable(
            self.observations + other.observations,
            self.outside + other.outside,
            self.unknown + other.unknown,
            self.points + other.points,
            [*self.empty, *other.empty],
            {
                name: [*self.absent.get(name, []), *other.absent.get(name, [])]
                for name in {**self.absent, **other.absent}
            },
            self.counted | other.counted,
            self.impossible + other.impossible,
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
            found.append(
                f"there are no observations at {_first_of(self.empty)}, so the model predicts "
                "without context"
            )
        found += [
            f"{name} has no field at {_first_of(times)}, so the model predicts without it"
            for name, times in self.absent.items()
        ]
        found += [
            f"{count:,} observations of {what}, which its likelihood cannot have"
            for what, count in self.impossible.items()
        ]
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


def _first_of(times: list[str]) -> str:
    more = f" and {len(times) - 1:,} other times" if len(times) > 1 else ""
    return f"{min(times)}{more}"


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
        impossible: dict[str, int] = {}
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
            if source.name == self.spec.target_source:
                impossible |= self._impossible(variables.variables, observed.values)
        return Conditioning(context, places, dropped, self._absent(places), impossible)

    def _impossible(self, names: tuple[str, ...], values: np.ndarray) -> dict[str, int]:
        """The number of values outside of the limits of their variable, with these in words."""
        found = {}
        for name, (low, high) in self.model.limits.items():
            own = values[:, names.index(name)] if name in names else values[:0, 0]
            count = int(((own < low) | (own > high)).sum())
            if count:
                found[f"{name} are outside of {low:g} to {high:g}"] = count
        return found

    def _absent(self, places: Mapping[str, np.ndarray]) -> tuple[str, ...]:
        """Gridded sources of which nothing is in the context."""
        there = {self.reader.variables[name].source.name for name in places if len(places[name])}
        grids = (variables.source for variables in self.reader.variables.values())
        return tuple(
            dict.fromkeys(
                s.name for s in grids if isinstance(s, Panel) and s.shape and s.name not in there
            )
        )

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
