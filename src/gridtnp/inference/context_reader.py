"""Reading the context of a model from data: observations by task time, and tasks of a query.

The data are a `Dataset`, a part of one, or fresh sources under the names that the model was trained
with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from gridtnp.data.dataset import Dataset, require_names
from gridtnp.errors import require_known
from gridtnp.inference.queries import Query
from gridtnp.sources.quality import warn_data
from gridtnp.sources.reading import Data, open_data
from gridtnp.sources.times import Window, duration, show, to_time
from gridtnp.tasks.observations import Observations, SourceVariables, TaskTime
from gridtnp.tasks.specification import TaskSpec

Static = Mapping[str, Data] | Data | None


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
        require_names(context, "context", spec.target_source)
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
        static = {name: f"{_owner(name, opened)}.{name}" for name in spec.given_statics}
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
