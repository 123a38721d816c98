"""Tasks drawn from a `Dataset`: at each time, context from every source, and targets.

A batch depends only on the seed and its number; `stream` prepares batches in the background.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np

from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.grid import Grid
from gridtnp.sources.times import Window, duration, show, to_time
from gridtnp.task import Task
from gridtnp.tasks.assembly import Assembler
from gridtnp.tasks.observations import Available, Observations, SourceVariables
from gridtnp.tasks.prefetch import prefetch
from gridtnp.tasks.selection import Fraction, Rest, Selection, TaskRandom, Whole

NOW = "[0h, 0h]"
TRIES = 100
"""Random times without a target that are skipped in a row before an error is raised."""


@dataclass(frozen=True)
class Context:
    """A context set: which observations of `of` (a source, or `"source.variable"`), and when.

    Without `of`, it is the source called like the set; of a source, all variables or some. Sets of
    one `group` select the same rows of their source, and each keeps those where its own variables
    are observed.
    """

    selection: Selection
    window: str | None = None
    of: str | None = None
    group: str | None = None
    variables: tuple[str, ...] | None = None


def default_context(data: Dataset, source: str, selection: Selection | None = None) -> Context:
    """The context set of a source where the user has not said otherwise.

    All of it; of the target's own source a random fraction, unless the targets are held out.
    """
    own = source == data.target_source
    if selection is None:
        partly = own and not data.held_out
        selection = Fraction(0.05, 0.95, spare=True) if partly else Whole()
    return Context(selection, group=source if own else None)


@dataclass(frozen=True, eq=False)
class RawBatch:
    """A batch before assembly, in the units of the data: for every task, what each context set and
    the targets hold.
    """

    context: Mapping[str, list[Observations]]
    target: list[Observations]

    def with_targets(self) -> RawBatch:
        """Without the tasks that have no target."""
        kept = [i for i, target in enumerate(self.target) if len(target.rows)]
        context = {name: [tasks[i] for i in kept] for name, tasks in self.context.items()}
        return RawBatch(context, [self.target[i] for i in kept])


@dataclass(frozen=True, eq=False)
class Sampler:
    """Batches of tasks from a dataset.

    Every task has a time. Its context is what was observed in `window` around it, set by set; its
    targets are what is observed in `target_window` around `lead` later. `every` places tasks at
    regular times instead of the target's own. `coordinates` are the axes of the model's grid, with
    time in hours from the task's time. With a `normaliser`, outputs and static features have about
    unit size; with a `grid`, points outside of it are masked.
    """

    data: Dataset
    context: Mapping[str, Selection | Context] | None = None
    targets: Selection = field(default_factory=Rest)
    window: str = NOW
    target_window: str = NOW
    lead: str = "0h"
    every: str | None = None
    coordinates: tuple[str, ...] = ("lat", "lon")
    normaliser: Normaliser | None = None
    grid: Grid | None = None
    batch: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch={self.batch}: a batch needs at least one task.")
        times = self.times
        if times is None and "time" in self.coordinates:
            raise ValueError(
                f"Source {self.data.target_source!r} has no times, which coordinate 'time' needs."
            )
        if times is not None and not len(times):
            raise ValueError(
                f"Part {self.data.part!r} has no time for a task with lead {self.lead!r} and "
                f"windows {self.window!r}, {self.target_window!r}."
            )
        _ = self._variables, self._target, self.assembler  # raises for unknown names

    # ---- tasks -----------------------------------------------------------------------------------

    @cached_property
    def times(self) -> np.ndarray | None:
        """The times that tasks can have."""
        valid = self.data.times()
        if valid is None or self.data.task_time is not None:
            return valid
        window, lead = Window.parse(self.target_window), duration(self.lead)
        if self.every is None:
            times = valid - lead
        else:
            step = duration(self.every)
            origin, low = np.datetime64(0, "ms"), valid[0] - lead - window.stop
            low = origin + ((low - origin) // step) * step
            times = np.arange(low, valid[-1] - lead - window.start + step, step)
            first = np.searchsorted(valid, times + lead + window.start, side="left")
            last = np.searchsorted(valid, times + lead + window.stop, side="left")
            times = times[last > first]
        instant = np.timedelta64(1, "ms")
        fits = (times >= valid[0]) & (times + lead + window.stop - instant <= valid[-1])
        return times[fits]

    @cached_property
    def assembler(self) -> Assembler:
        """Turns observations into the model's points."""
        return Assembler(self.data, self.coordinates, self.normaliser, self.grid)

    @cached_property
    def independent(self) -> bool:
        """Whether the tasks of a batch are drawn independently, so that each can be read alone.

        They are if values stay on disk; else all are drawn from one generator.
        """
        sources = [self._target.source, *(v.source for v in self._variables.values())]
        return any(source.loaded is None for source in sources)

    def draw(self, index: int, tasks: Iterable[int] | None = None) -> Task:
        """Batch number `index`; of an `independent` one, some of its tasks."""
        if not self.independent:
            rng = np.random.default_rng([self.seed, index])
            return self.assemble(self._require_targets(self._select(None, rng, (index,))))
        shared, found = np.random.default_rng([self.seed, index]).random(), []
        for i in range(self.batch) if tasks is None else tasks:
            rng = np.random.default_rng([self.seed, index, i])
            raw = self._alone._select(None, rng, (index, i), shared)
            found.append(self._require_targets(raw))
        context = {name: [raw.context[name][0] for raw in found] for name in found[0].context}
        return self.assemble(RawBatch(context, [raw.target[0] for raw in found]))

    def stream(self, start: int = 0, *, workers: int = 1, ahead: int = 4) -> Iterator[Task]:
        """Endless batches, starting with number `start`, prepared in the background."""
        yield from prefetch(self.draw, start, workers=workers, ahead=ahead)

    def in_order(self) -> Iterator[Task]:
        """Every time once, in order; times without targets are skipped."""
        yield from map(self.assemble, self.raw_batches())

    def raw_batches(
        self, times: np.ndarray | None = None, numbers: Container[int] | None = None
    ) -> Iterator[RawBatch]:
        """The tasks of `in_order`, or those at some times, before assembly.

        Of these batches, only those with some `numbers`, counted from 0.
        """
        times = self.times if times is None else times
        if times is None:
            rng = np.random.default_rng([self.seed, 0])
            yield self._require_targets(self._select(None, rng, (0,)))
            return
        for index, start in enumerate(range(0, len(times), self.batch)):
            if numbers is not None and index not in numbers:
                continue
            rng = np.random.default_rng([self.seed, index])
            raw = self._select(times[start : start + self.batch], rng, (index,))
            kept = raw if self.data.task_time is not None else raw.with_targets()
            if kept.target:
                yield kept

    def at(self, time: Any) -> Task:
        """The one task at a time."""
        rng = np.random.default_rng([self.seed, 0])
        raw = self._select(np.array([to_time(time)]), rng, (0,))
        return self.assemble(self._require_targets(raw))

    def assemble(self, raw: RawBatch) -> Task:
        """A batch of tasks for the model."""
        context = {
            of.name: self.assembler.points(of.source, of.variables, raw.context[of.name])
            for of in self._variables.values()
        }
        wanted = self._target
        return Task(context, self.assembler.points(wanted.source, wanted.variables, raw.target))

    @cached_property
    def _alone(self) -> Sampler:
        """Draws single tasks."""
        return replace(self, batch=1)

    # ---- selection ------------------------------------------------------------------------------

    @cached_property
    def _contexts(self) -> dict[str, Context]:
        if self.context is None:
            names = {name: name.split(".")[0] for name in self.data.contexts}
            return {name: default_context(self.data, source) for name, source in names.items()}
        return {
            name: given if isinstance(given, Context) else Context(given)
            for name, given in self.context.items()
        }

    @cached_property
    def _variables(self) -> dict[str, SourceVariables]:
        """What each context set holds."""
        found = {}
        for name, context in self._contexts.items():
            of, window = context.of or name, Window.parse(context.window or self.window)
            kept = self.data.context_places.get(of.split(".")[0])
            held = SourceVariables.of(self.data, name, of, window, kept)
            found[name] = replace(held, variables=context.variables or held.variables)
        return found

    @cached_property
    def _target(self) -> SourceVariables:
        data = self.data
        window, lead = Window.parse(self.target_window), duration(self.lead)
        shifted = Window(window.start + lead, window.stop + lead)
        found = SourceVariables.of(data, "target", data.target_source, shifted, data.target_places)
        return replace(found, variables=data.target_names)

    def _select(
        self,
        times: np.ndarray | None,
        rng: np.random.Generator,
        key: tuple[int, ...],
        shared: float | None = None,
    ) -> RawBatch:
        """Tasks at some times, or at random ones; `key` is the number of the batch or task."""
        if times is None:
            found = [self._time_with_targets(rng) for _ in range(self.batch)]
        else:
            found = [(time, self._target.available(time)) for time in times]
        shared = rng.random() if shared is None else shared
        centres = [self._centre(targets.complete, rng) for _, targets in found]

        common = shared

        def randoms(name: str) -> list[TaskRandom]:
            own = np.random.default_rng([self.seed, *key, crc32(name.encode())])
            return [TaskRandom(own, common, centre) for centre in centres]

        context, seen = {}, [np.zeros(0, int) for _ in found]
        for name, given in self._contexts.items():
            variables, tasks = self._variables[name], []
            own = variables.source is self._target.source
            for i, random in enumerate(randoms(given.group or name)):
                time, targets = found[i]
                there = variables.available(time)
                candidates = there.complete if given.group is None else there.rows
                rows = given.selection.select(variables.source, candidates, random)
                if own and given.selection.spare:
                    rows = _sparing(rows, targets.complete, shared)
                rows = rows if given.group is None else there.complete_of(rows)
                if own:
                    seen[i] = np.concatenate([seen[i], rows])
                tasks.append(there.observations(rows, time))
            context[name] = tasks
        target = []
        for i, random in enumerate(randoms("target")):
            time, there = found[i]
            unseen = isinstance(self.targets, Rest)
            candidates = _without(there.complete, seen[i]) if unseen else there.complete
            rows = self.targets.select(self._target.source, candidates, random)
            target.append(there.observations(rows, time))
        return RawBatch(context, target)

    def _require_targets(self, raw: RawBatch) -> RawBatch:
        empty = [target for target in raw.target if not len(target.rows)]
        if empty and self.data.task_time is None:
            when = "" if empty[0].time is None else f" at {show(empty[0].time)}"
            raise ValueError(
                f"{self.targets} leaves no target{when}; select fewer observations as context."
            )
        return raw

    def _time_with_targets(self, rng: np.random.Generator) -> tuple[Any, Available]:
        for _ in range(TRIES):
            time = None if self.times is None else self.times[rng.integers(len(self.times))]
            targets = self._target.available(time)
            if len(targets.complete) or self.data.task_time is not None:
                return time, targets
        raise ValueError(
            f"{TRIES} random times of part {self.data.part!r} have no value of "
            f"{list(self.data.target_names)}; a task needs at least one target."
        )

    def _centre(self, rows: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
        """The location of a random row."""
        uniform = rng.random()
        if not len(rows):
            return 0.0, 0.0
        source, one = self._target.source, int(uniform * len(rows))
        place = int(source.places(rows[one : one + 1])[0])
        return float(source.lat[place]), float(source.lon[place])


def _without(rows: np.ndarray, seen: np.ndarray) -> np.ndarray:
    return rows[~np.isin(rows, seen)] if len(seen) else rows


def _sparing(rows: np.ndarray, targets: np.ndarray, uniform: float) -> np.ndarray:
    """All rows, or all but one random target if no other target would be left."""
    if not len(targets) or len(_without(targets, rows)):
        return rows
    return rows[rows != targets[int(uniform * len(targets))]]
