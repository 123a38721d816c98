"""A model's view of some data: what it is told at a time, and the points it is asked about.

Both `predict` and `sample` look through it. Data may be a `Dataset`, a part of one, or fresh
sources that the model has never seen, under the names that it was trained with.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from jaxtyping import Float
from scipy.spatial import KDTree

from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.data.quality import DataWarning
from gridtnp.data.reading import Data, open_data
from gridtnp.data.sources import Source
from gridtnp.data.times import Window, duration, show, to_time
from gridtnp.errors import require_known
from gridtnp.grid import Grid
from gridtnp.inference.queries import Query
from gridtnp.network.model import NeuralProcess
from gridtnp.task import PointSet, Task
from gridtnp.tasks.assembly import Assembler, Chosen
from gridtnp.tasks.specification import ContextSet, Setting

EARTH = 6371.0088
"""The mean radius in km."""
Static = Mapping[str, Data] | Data | None
Moment = np.datetime64 | None


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a model is told at one time: its context sets, a batch of one, and where they are."""

    context: dict[str, PointSet]
    places: dict[str, Float[np.ndarray, "n 3"]]

    @property
    def empty(self) -> bool:
        return not any(points.n for points in self.context.values())

    def distance(
        self, sets: tuple[str, ...], places: Float[np.ndarray, "n 3"]
    ) -> Float[np.ndarray, " n"]:
        """In km to the nearest observation of these sets, or of any set if they have none.

        NaN if there is nothing at all.
        """
        own = [self.places[name] for name in sets if len(self.places.get(name, ()))]
        seen = own or [there for there in self.places.values() if len(there)]
        if not seen:
            return np.full(len(places), np.nan)
        key = tuple(map(id, seen))
        if key not in self._trees:
            self._trees[key] = KDTree(np.concatenate(seen))
        chord = self._trees[key].query(places)[0]
        return EARTH * 2 * np.arcsin(np.minimum(chord / 2, 1.0))

    @cached_property
    def _trees(self) -> dict[tuple[int, ...], KDTree]:
        return {}


@dataclass(eq=False)
class Beyond:
    """What could not be used, counted, to be told once at the end."""

    observations: int = 0
    outside: int = 0
    unknown: int = 0
    points: int = 0
    empty: list[str] = field(default_factory=list)

    def tell(self, grid: Grid | None, statics: tuple[str, ...]) -> None:
        """One warning, or an error if no point at all could be predicted."""
        told = []
        if self.outside:
            told.append(f"{self.outside:,} of {self.points:,} points lie outside of {_area(grid)}")
        if self.unknown:
            told.append(f"{list(statics)} is not known at {self.unknown:,} of {self.points:,}")
        lost = self.outside + self.unknown
        if self.points and lost == self.points:
            raise ValueError(
                f"At least one place must be in the model's reach, but {' and '.join(told)}; ask "
                "for others, or train on a wider area."
            )
        if lost:
            told[-1] += ": they are NaN"
        if self.observations:
            told.append(f"{self.observations:,} observations outside of {_area(grid)} were dropped")
        if self.empty:
            many = f" and at {len(self.empty) - 1:,} other times" if len(self.empty) > 1 else ""
            told.append(
                f"the context holds no observation at {self.empty[0]}{many}, so that the answer is "
                "what the model expects without any"
            )
        if told:
            warnings.warn(f"{'; '.join(told)}.", DataWarning, stacklevel=5)


@dataclass(frozen=True, eq=False)
class View:
    """Some data as a model sees them."""

    network: NeuralProcess
    setting: Setting
    assembler: Assembler
    beyond: Beyond = field(default_factory=Beyond)

    @classmethod
    def of(
        cls,
        network: NeuralProcess,
        setting: Setting,
        normaliser: Normaliser,
        context: Dataset | Mapping[str, Data],
        static: Static = None,
    ) -> View:
        known = {held.source for held in setting.contexts.values()} | {setting.target_source}
        for name in context.sources if isinstance(context, Dataset) else context:
            require_known(name, known, "A source must be one that the model was trained with")
        if isinstance(context, Dataset):
            if static is not None:
                raise ValueError(
                    "Static features come with fresh data, but a Dataset has its own; leave out "
                    "static=, or pass the sources themselves."
                )
            data = context
        else:
            data = fresh(setting, context, static)
        _require_sets(setting, data)
        return cls(network, setting, setting.assembler(data, normaliser))

    @property
    def data(self) -> Dataset:
        return self.assembler.data

    @cached_property
    def device(self) -> torch.device:
        return next((p.device for p in self.network.parameters()), torch.device("cpu"))

    def tell(self) -> None:
        """What could not be used or predicted so far."""
        self.beyond.tell(self.network.grid, self.setting.statics)

    # ---- when ------------------------------------------------------------------------------------

    def groups(self, query: Query) -> Iterator[tuple[Moment, np.ndarray]]:
        """The tasks that answer a query: the time of each, and the points it answers."""
        if query.time is None:
            yield self.moment, np.arange(len(query.lat))
            return
        when, inverse = np.unique(query.time, return_inverse=True)
        tasks = self._task_times(when)
        unique, which = np.unique(tasks, return_inverse=True)
        order = np.argsort(which[inverse], kind="stable")
        counts = np.bincount(which[inverse], minlength=len(unique))
        yield from zip(unique, np.split(order, np.cumsum(counts)[:-1]), strict=True)

    @property
    def moment(self) -> Moment:
        """The one time of the data, where the question has none."""
        data = self.data
        if data.moment is not None:
            return data.moment
        times = data.times()
        if times is None:
            others = [s.times for s in data.sources.values() if s.times is not None]
            if not others:
                return None
            times = np.unique(np.concatenate(others))
        if len(times) > 1:
            raise ValueError(
                f"A prediction must have a time, but the context has {len(times):,} and the "
                f"question none; choose one, data.at({show(times[-1])!r}), or several, times=[...]."
            )
        return times[0]

    def _task_times(self, valid: np.ndarray) -> np.ndarray:
        """The time of the task that answers for each valid time: the nearest one there is."""
        setting = self.setting
        window = Window.parse(setting.target_window)
        start, stop, lead = (_ms(d) for d in (window.start, window.stop, duration(setting.lead)))
        now = valid.astype("datetime64[ms]").astype(np.int64) - lead
        first, last = now - stop + 1, now - start
        if self.data.moment is not None:
            tasks = np.full(len(valid), self.data.moment).astype("datetime64[ms]").astype(np.int64)
        elif setting.every is None:
            tasks = np.clip(now, first, last)
        else:
            step = _ms(duration(setting.every))
            low, high = -(-first // step) * step, last // step * step
            tasks = np.clip((now + step // 2) // step * step, low, high)
        wrong = np.flatnonzero((tasks < first) | (tasks > last))
        if len(wrong):
            one = show(np.datetime64(int(tasks[wrong[0]]), "ms"))
            raise ValueError(
                f"Times to predict must lie in the target window {setting.target_window!r} "
                f"{setting.lead} after a task, but {show(to_time(valid[wrong[0]]))} does not, for "
                f"the task at {one}; ask for others, or take the context of every time, without "
                ".at(...)."
            )
        return tasks.astype("datetime64[ms]")

    # ---- what ------------------------------------------------------------------------------------

    def evidence(self, moment: Moment) -> Evidence:
        """All observations that a task at this time has."""
        context, places = {}, {}
        for name, held in self.setting.contexts.items():
            source = self.data.sources.get(held.source)
            if source is None or not set(held.variables) <= set(source.names):
                continue
            rows, values = self._observed(source, held, moment)
            chosen = [Chosen(rows, values, moment)]
            points = self.assembler.points(source, held.variables, chosen)
            there = source.places(rows)
            if self.network.grid is not None:
                inside = self.network.grid.covers(points.x[0])
                if not inside.all():
                    self.beyond.observations += int((~inside).sum())
                    points, there = points.select(inside), there[inside.numpy()]
            context[name] = points.to(self.device)
            places[name] = on_sphere(source.lat[there], source.lon[there])
        made = Evidence(context, places)
        if made.empty:
            self.beyond.empty.append("all" if moment is None else show(moment))
        return made

    def sets_of(self, variable: str) -> tuple[str, ...]:
        """The context sets that hold a variable of the target."""
        return tuple(
            name
            for name, held in self.setting.contexts.items()
            if held.source == self.setting.target_source and variable in held.variables
        )

    def complete(self, evidence: Evidence, like: PointSet) -> dict[str, PointSet]:
        """All sets that the network knows, checked."""
        self.network.check(Task(evidence.context, like))
        return self.network.signature.complete(evidence.context, like)

    def known(self, query: Query) -> dict[str, np.ndarray]:
        """Static features that a query brings along."""
        told = {name: query.known(name) for name in self.setting.statics}
        return {name: values for name, values in told.items() if values is not None}

    def targets(
        self,
        query: Query,
        known: Mapping[str, np.ndarray],
        rows: np.ndarray,
        moment: Moment,
        *,
        count: bool = True,
    ) -> PointSet:
        """Points of a query, masked where the model has no answer."""
        time = None if query.time is None else query.time[rows]
        if time is None and moment is not None:
            time = np.full(len(rows), moment + duration(self.setting.lead))
        own = {name: values[rows] for name, values in known.items()}
        points = self.assembler.query(query.lat[rows], query.lon[rows], time, moment, own)
        there = torch.ones(points.x.shape[:2], dtype=torch.bool)
        there = there if points.mask is None else points.mask
        grid = self.network.grid
        inside = there if grid is None else there & grid.covers(points.x)
        if count:
            self.beyond.points += len(rows)
            self.beyond.unknown += int((~there).sum())
            self.beyond.outside += int((there & ~inside).sum())
        if not inside.all():
            points = PointSet(points.x, None, inside, points.features)
        return points.to(self.device)

    def _observed(
        self, source: Source, held: ContextSet, moment: Moment
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows of a set whose variables and static features are there, and its values."""
        start, stop = None, None
        if moment is not None:
            start, stop = Window.parse(held.window or self.setting.window).around(moment)
            if self.data.period is not None:
                start, stop = max(start, self.data.period[0]), min(stop, self.data.period[1])
        first, last = source.rows(start, stop)
        rows = np.arange(first, last)
        values = source.values(first, last)[:, source.index(held.variables)]
        places = source.places(rows)
        there = np.isfinite(values).all(1)
        there &= np.isfinite(self.data.still_at(source.name)[places]).all(1)
        allowed = self.data.context_places.get(source.name)
        if allowed is not None:
            there &= allowed[places]
        return rows[there], values[there]


def fresh(setting: Setting, sources: Mapping[str, Data], static: Static = None) -> Dataset:
    """A dataset of new data for a model: its features, and whichever of its sources there are."""
    if not sources:
        raise ValueError(
            f"A context must have at least one source of "
            f"{sorted({held.source for held in setting.contexts.values()})}, got none."
        )
    opened = {
        name: open_data(data) if isinstance(data, str | os.PathLike) else data
        for name, data in sources.items()
    }
    if static is None and setting.statics:
        static = {name: f"{_owner(name, opened)}.{name}" for name in setting.statics}
    wanted = setting.target_source if setting.target_source in opened else next(iter(opened))
    return Dataset(opened, target=wanted, static=static, features=setting.computed)


def on_sphere(
    lat: Float[np.ndarray, " n"], lon: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n 3"]:
    """Places as unit vectors."""
    phi, turn = np.deg2rad(lat), np.deg2rad(lon)
    return np.stack([np.cos(phi) * np.cos(turn), np.cos(phi) * np.sin(turn), np.sin(phi)], -1)


def _ms(length: np.timedelta64) -> int:
    return int(length / np.timedelta64(1, "ms"))


def _owner(feature: str, sources: Mapping[str, Any]) -> str:
    """The source that has a static feature as a column."""
    for name, data in sources.items():
        columns = data.coords if isinstance(data, xr.DataArray) else data
        if feature in (data.columns if isinstance(data, pd.DataFrame) else columns):
            return name
    raise ValueError(
        f"The model was trained with the static feature {feature!r}, so that it must be given: "
        f"static={{{feature!r}: ...}}, or a column of that name in a source."
    )


def _require_sets(setting: Setting, data: Dataset) -> None:
    """At least one context set must be there; columns that are missing are told."""
    missing, there = [], 0
    for held in setting.contexts.values():
        source = data.sources.get(held.source)
        lacking = set(held.variables) - set(() if source is None else source.names)
        there += not lacking
        if source is not None:
            missing += [f"{held.source}.{name}" for name in sorted(lacking)]
    wanted = sorted({f"{s.source}.{v}" for s in setting.contexts.values() for v in s.variables})
    if not there:
        raise ValueError(
            f"The context must hold something that the model was trained with, of {wanted}, got "
            f"{sorted(f'{s.name}.{v}' for s in data.sources.values() for v in s.names)}."
        )
    units = [
        f"{key} is in {unit!r}, but was in {setting.units[key]!r} when the model was trained"
        for s in data.sources.values()
        for v in s.variables
        if (key := f"{s.name}.{v.name}") in wanted
        and None not in (unit := v.units, setting.units.get(key))
        and unit != setting.units[key]
    ]
    told = [f"The context has no {', '.join(missing)}, which the model knows"] if missing else []
    if told or units:
        warnings.warn("; ".join([*told, *units]) + ".", DataWarning, stacklevel=5)


def _area(grid: Grid | None) -> str:
    """Where a model has answers, in words."""
    assert grid is not None
    spans = [f"{a.name} {a.low:g} to {a.high:g}" for a in grid.axes if not a.periodic]
    return f"the model's grid ({', '.join(spans)})"
