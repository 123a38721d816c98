"""Tasks drawn from a `Dataset`: at a time, some observations of every source, and what to predict.

The batch number `index` of a seed is always the same, whoever makes it and when; `stream` makes
batches in the background.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np

from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.data.sources import Source
from gridtnp.data.times import Window, duration, show, to_time
from gridtnp.task import Task
from gridtnp.tasks.assembly import Assembler, Chosen
from gridtnp.tasks.prefetch import prepared
from gridtnp.tasks.selection import Draw, Fraction, Pick, Rest, Whole

NOW = "[0h, 0h]"
TRIES = 100
"""Times without a single target that are skipped in a row before it is said that there are none."""


@dataclass(frozen=True)
class Context:
    """A context set: which observations of `of` (a source, or `"source.variable"`), and when.

    Without `of` it is the one called as the set itself. Sets of one `group` choose the same places
    of their source, and each has those where its own variables are there.
    """

    pick: Pick
    window: str | None = None
    of: str | None = None
    group: str | None = None


@dataclass(frozen=True, eq=False)
class Choice:
    """A batch before it is assembled: for every task, what each context set and the target hold."""

    context: Mapping[str, list[Chosen]]
    target: list[Chosen]

    def with_targets(self) -> Choice:
        """Without the tasks that have no target."""
        kept = [i for i, chosen in enumerate(self.target) if len(chosen.rows)]
        context = {name: [chosen[i] for i in kept] for name, chosen in self.context.items()}
        return Choice(context, [self.target[i] for i in kept])


@dataclass(frozen=True)
class _Set:
    """A context set, or the targets, with all names resolved."""

    name: str
    source: Source
    variables: tuple[str, ...]
    pick: Pick
    window: Window
    allowed: np.ndarray | None
    group: str | None = None


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of a source that a task may use, and the values of all rows from the first on.

    `there` tells of all rows from the first on whether the wanted variables are there.
    """

    allowed: np.ndarray
    there: np.ndarray | None
    first: int
    values: np.ndarray

    def complete(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.there is None else rows[self.there[rows - self.first]]

    def at(self, rows: np.ndarray, of: _Set) -> np.ndarray:
        """The values of a set's variables in some of the rows."""
        picked = np.take(self.values, rows - self.first, 0)
        columns = of.source.index(of.variables)
        return picked if columns == list(range(picked.shape[1])) else picked[:, columns]

    @cached_property
    def usable(self) -> np.ndarray:
        return self.complete(self.allowed)


@dataclass(frozen=True, eq=False)
class Sampler:
    """Batches of tasks from a dataset.

    Every task has a time. Its context is what was observed in `window` around it, set by set, and
    its targets what is observed in `target_window` around `lead` later. `every` puts tasks at
    regular times instead of the target's own. `coordinates` are the axes of the model's grid; time
    is in hours from the task's time. With a normaliser, outputs and static features have about unit
    size.
    """

    data: Dataset
    context: Mapping[str, Pick | Context] | None = None
    targets: Pick = field(default_factory=Rest)
    window: str = NOW
    target_window: str = NOW
    lead: str = "0h"
    every: str | None = None
    coordinates: tuple[str, ...] = ("lat", "lon")
    normaliser: Normaliser | None = None
    batch: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"A batch must hold at least one task, got {self.batch}.")
        times = self.times
        if times is None and "time" in self.coordinates:
            raise ValueError(
                f"Coordinate 'time' needs times, but {self.data.target_source!r} has none."
            )
        if times is not None and not len(times):
            raise ValueError(
                f"There must be at least one time for a task, but with lead {self.lead!r} and "
                f"windows {self.window!r}, {self.target_window!r} part {self.data.part!r} has none."
            )
        _ = self._sets, self._target, self.assembler  # a wrong name is told at once

    # ---- tasks -----------------------------------------------------------------------------------

    @cached_property
    def times(self) -> np.ndarray | None:
        """The times that tasks can have."""
        moments = self.data.times()
        if moments is None or self.data.moment is not None:
            return moments
        window, lead = Window.parse(self.target_window), duration(self.lead)
        if self.every is None:
            times = moments - lead
        else:
            step = duration(self.every)
            origin, low = np.datetime64(0, "ms"), moments[0] - lead - window.stop
            low = origin + ((low - origin) // step) * step
            times = np.arange(low, moments[-1] - lead - window.start + step, step)
            first = np.searchsorted(moments, times + lead + window.start, side="left")
            last = np.searchsorted(moments, times + lead + window.stop, side="left")
            times = times[last > first]
        instant = np.timedelta64(1, "ms")
        fits = (times >= moments[0]) & (times + lead + window.stop - instant <= moments[-1])
        return times[fits]

    @cached_property
    def assembler(self) -> Assembler:
        """What makes points for the same model."""
        return Assembler(self.data, self.coordinates, self.normaliser)

    def draw(self, index: int) -> Task:
        """The batch number `index`."""
        rng = np.random.default_rng([self.seed, index])
        return self.assemble(self._required(self._choose(None, rng, index)))

    def stream(self, start: int = 0, *, workers: int = 1, ahead: int = 4) -> Iterator[Task]:
        """Batches without end from number `start` on, made in the background."""
        yield from prepared(self.draw, start, workers=workers, ahead=ahead)

    def in_order(self) -> Iterator[Task]:
        """Every time once, in order; times without targets are passed over."""
        yield from map(self.assemble, self.choices())

    def choices(self, times: np.ndarray | None = None) -> Iterator[Choice]:
        """What the tasks of `in_order` are made of, or of those at some times."""
        times = self.times if times is None else times
        if times is None:
            yield self._required(self._choose(None, np.random.default_rng([self.seed, 0]), 0))
            return
        for index, start in enumerate(range(0, len(times), self.batch)):
            rng = np.random.default_rng([self.seed, index])
            choice = self._choose(times[start : start + self.batch], rng, index)
            kept = choice if self.data.moment is not None else choice.with_targets()
            if kept.target:
                yield kept

    def at(self, time: Any) -> Task:
        """The one task at a time."""
        rng = np.random.default_rng([self.seed, 0])
        return self.assemble(self._required(self._choose(np.array([to_time(time)]), rng, 0)))

    def assemble(self, choice: Choice) -> Task:
        """A batch of tasks for the model."""
        context = {
            of.name: self.assembler.points(of.source, of.variables, choice.context[of.name])
            for of in self._sets
        }
        wanted = self._target
        return Task(context, self.assembler.points(wanted.source, wanted.variables, choice.target))

    # ---- how they are made -----------------------------------------------------------------------

    @cached_property
    def _sets(self) -> tuple[_Set, ...]:
        data = self.data
        if self.context is None:
            pick = Whole() if data.held_out else Fraction(0.05, 0.95, spare=True)
            some = Context(pick, group=data.target_source)
            given = {
                name: some if name.split(".")[0] == data.target_source else Context(Whole())
                for name in data.contexts
            }
        else:
            given = {
                name: chosen if isinstance(chosen, Context) else Context(chosen)
                for name, chosen in self.context.items()
            }
        sets = []
        for name, context in given.items():
            source, variables = data.variables_of(context.of or name)
            window = Window.parse(context.window or self.window)
            allowed = self._allowed(source, data.context_places.get(source.name))
            made = _Set(name, source, variables, context.pick, window, allowed, context.group)
            sets.append(made)
        return tuple(sets)

    @cached_property
    def _target(self) -> _Set:
        source = self.data.sources[self.data.target_source]
        window, lead = Window.parse(self.target_window), duration(self.lead)
        shifted = Window(window.start + lead, window.stop + lead)
        allowed = self._allowed(source, self.data.target_places)
        return _Set("target", source, self.data.target_names, self.targets, shifted, allowed)

    def _allowed(self, source: Source, kept: np.ndarray | None) -> np.ndarray | None:
        """Places that may be used: those of this part whose static features are known."""
        known = np.all(np.isfinite(self.data.still_at(source.name)), axis=-1)
        if known.all():
            return kept
        return known if kept is None else known & kept

    def _available(self, of: _Set, time: np.datetime64 | None) -> _Rows:
        """What a task at `time` may use."""
        start, stop = (None, None) if time is None else of.window.around(time)
        if start is not None and stop is not None and self.data.period is not None:
            start, stop = max(start, self.data.period[0]), min(stop, self.data.period[1])
        first, last = of.source.rows(start, stop)
        values = of.source.values(first, last)
        rows = np.arange(first, last)
        if of.allowed is not None:
            rows = rows[of.allowed[of.source.places(rows)]]
        columns = of.source.index(of.variables)
        if all(of.source.variables[i].missing == 0.0 for i in columns):
            return _Rows(rows, None, first, values)
        there = np.all(np.isfinite(values[:, columns]), axis=1)
        return _Rows(rows, there, first, values)

    def _choose(self, times: np.ndarray | None, rng: np.random.Generator, index: int) -> Choice:
        if times is None:
            found = [self._time_with_targets(rng) for _ in range(self.batch)]
        else:
            found = [(time, self._available(self._target, time)) for time in times]
        moments = [time for time, _ in found]
        of_batch = rng.random()
        centres = [self._centre(rows.usable, rng) for _, rows in found]

        def luck(name: str) -> list[Draw]:
            own = np.random.default_rng([self.seed, index, crc32(name.encode())])
            return [Draw(own, of_batch, centre) for centre in centres]

        context, seen = {}, [np.zeros(0, int) for _ in found]
        for of in self._sets:
            chosen = []
            for i, draw in enumerate(luck(of.group or of.name)):
                rows = self._available(of, moments[i])
                own = of.source is self._target.source
                picked = of.pick.choose(
                    of.source, rows.usable if of.group is None else rows.allowed, draw
                )
                if own and of.pick.spare:
                    picked = _sparing(picked, found[i][1].usable, of_batch)
                picked = picked if of.group is None else rows.complete(picked)
                if own:
                    seen[i] = np.concatenate([seen[i], picked])
                chosen.append(Chosen(picked, rows.at(picked, of), moments[i]))
            context[of.name] = chosen
        target = []
        for i, draw in enumerate(luck("target")):
            rows = found[i][1]
            usable = (
                _without(rows.usable, seen[i]) if isinstance(self.targets, Rest) else rows.usable
            )
            picked = self.targets.choose(self._target.source, usable, draw)
            target.append(Chosen(picked, rows.at(picked, self._target), moments[i]))
        return Choice(context, target)

    def _required(self, choice: Choice) -> Choice:
        empty = [chosen for chosen in choice.target if not len(chosen.rows)]
        if empty and self.data.moment is None:
            when = "" if empty[0].time is None else f" at {show(empty[0].time)}"
            raise ValueError(
                f"A task must have at least one target, but {self.targets} leaves none"
                f"{when}; take fewer for the context."
            )
        return choice

    def _time_with_targets(self, rng: np.random.Generator) -> tuple[Any, _Rows]:
        for _ in range(TRIES):
            time = None if self.times is None else self.times[rng.integers(len(self.times))]
            rows = self._available(self._target, time)
            if len(rows.usable) or self.data.moment is not None:
                return time, rows
        raise ValueError(
            f"A task must have at least one target, but {TRIES} random times of part "
            f"{self.data.part!r} have no value of {list(self.data.target_names)}."
        )

    def _centre(self, rows: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
        luck = rng.random()
        if not len(rows):
            return 0.0, 0.0
        source, one = self._target.source, int(luck * len(rows))
        place = int(source.places(rows[one : one + 1])[0])
        return float(source.lat[place]), float(source.lon[place])


def _without(rows: np.ndarray, seen: np.ndarray) -> np.ndarray:
    return rows[~np.isin(rows, seen)] if len(seen) else rows


def _sparing(picked: np.ndarray, wanted: np.ndarray, luck: float) -> np.ndarray:
    """All that was picked, but one that is wanted where nothing else would be left of those."""
    if not len(wanted) or len(_without(wanted, picked)):
        return picked
    return picked[picked != wanted[int(luck * len(wanted))]]
