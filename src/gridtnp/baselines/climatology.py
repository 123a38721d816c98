"""Baselines from the past: persistence, and climatology by station, month and hour.

Climatology is a mean and a standard deviation, or the empirical distribution of values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Shaped

from gridtnp.baselines.interpolation import (
    Baseline,
    DistributionBaseline,
    Forecast,
    Nearest,
    Points,
    RawTask,
)
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import pieces
from gridtnp.distributions.empirical import Empirical
from gridtnp.distributions.marginals import Marginal
from gridtnp.sources.source import Records, Source

MAX_STEPS_BACK = 48
"""How many times persistence searches for a value, unless all are in memory."""
MIN_COUNT = 5
"""Fewest values for a mean and a standard deviation."""
MEMBERS = 50
"""Quantiles of an empirical distribution."""
MIN_MEMBERS = 20
"""Fewest values for an empirical distribution."""
MAX_GROUPS = 20_000_000
"""Most groups of station, month and hour."""
STATIONARY = 0.01
"""Degrees, about a kilometre, that a station may move and still have its own climatology."""
INSTANT = np.timedelta64(1, "ms")


class Persistence(Baseline):
    """The latest value of the same station at the time of the task, or else the nearest value.

    Without `data`, as for stations that are held out, it is always the nearest value.
    """

    def __init__(self, data: Dataset | None) -> None:
        self._nearest, self._past = Nearest(), None
        if data is None or data.sources[data.target_source].times is None:
            return
        source = data.sources[data.target_source]
        allowed, columns = data.context_places.get(source.name), source.index(data.target_names)
        past = _RecordsPast if isinstance(source, Records) else _StepsPast
        self._past = past(source, columns, allowed)

    def notes(self) -> tuple[str, ...]:
        if self._past is not None:
            return ()
        return ("persistence: no station has earlier values to use; it is the nearest value",)

    def predict(self, raw_task: RawTask) -> Forecast:
        mean, _ = self._nearest.predict(raw_task)
        if self._past is None or raw_task.time is None or raw_task.targets.time is None:
            return mean, None
        before = np.minimum(raw_task.targets.time, raw_task.time + INSTANT)
        own = self._past.before(raw_task, before)
        return np.where(np.isfinite(own), own, mean), None


class _RecordsPast:
    """Earlier values of stations that report at irregular times."""

    def __init__(self, source: Source, columns: list[int], allowed: np.ndarray | None) -> None:
        assert isinstance(source, Records)
        assert source.labels is not None
        assert source.times is not None
        stations, code = np.unique(source.labels, return_inverse=True)
        self.stations = pd.Index(stations)
        self.first, last = source.times[0], source.times[-1]
        self.span = int((last - self.first) / INSTANT) + 2
        key = code * self.span + ((source.times - self.first) / INSTANT).astype(np.int64)
        order = np.argsort(key, kind="stable")
        if allowed is not None:
            order = order[allowed[order]]
        self.past = []
        for column in columns:
            rows = order[np.isfinite(source.table[order, column])]
            self.past.append((key[rows], source.table[rows, column]))

    def before(self, raw_task: RawTask, time: np.ndarray) -> np.ndarray:
        """The latest values before each time."""
        code = self.stations.get_indexer(raw_task.targets.station)
        instant = np.clip(((time - self.first) / INSTANT).astype(np.int64), 0, self.span - 1)
        found = np.full(raw_task.truth.shape, np.nan)
        for v, (keys, values) in enumerate(self.past):
            index = np.searchsorted(keys, code * self.span + instant, side="left") - 1
            own = (index >= 0) & (keys[np.maximum(index, 0)] // self.span == code)
            found[own, v] = values[index[own]]
        return found


class _StepsPast:
    """Earlier values of places that have few times, searched one time after the other."""

    def __init__(self, source: Source, columns: list[int], allowed: np.ndarray | None) -> None:
        self.source, self.columns, self.allowed = source, columns, allowed
        names = np.arange(len(source.lat)) if source.labels is None else source.labels
        names, self.code = np.unique(names, return_inverse=True)
        self.names = pd.Index(names)

    def before(self, raw_task: RawTask, time: np.ndarray) -> np.ndarray:
        """The latest values before each time."""
        assert self.source.times is not None
        station = self.names.get_indexer(raw_task.targets.station)
        steps = np.searchsorted(self.source.times, time, side="left") - 1
        found = np.full(raw_task.truth.shape, np.nan)
        for back in range(MAX_STEPS_BACK):
            missing = np.isnan(found).any(1) & (station >= 0) & (steps - back >= 0)
            if not missing.any():
                break
            for step in np.unique(steps[missing] - back):
                here = missing & (steps - back == step)
                earlier = self._at(self.source.times[step])[station[here]]
                found[here] = np.where(np.isnan(found[here]), earlier, found[here])
        return found

    def _at(self, time: Any) -> np.ndarray:
        """The values of all stations at a time."""
        first, last = self.source.rows(time, time + INSTANT)
        places, values = self.source.places(np.arange(first, last)), self.source.values(first, last)
        used = slice(None) if self.allowed is None else self.allowed[places]
        made = np.full((len(self.names), len(self.columns)), np.nan)
        made[self.code[places[used]]] = values[used][:, self.columns]
        return made


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and standard deviation of every group, NaN where there are too few values."""

    mean: Float[np.ndarray, "k dy"]
    std: Float[np.ndarray, "k dy"]


@dataclass(frozen=True, eq=False)
class Calendar:
    """Groups of values by station, month and hour, finest first.

    Groups of stations are left out if there are too many.
    """

    stations: pd.Index
    hourly: bool

    @classmethod
    def of(cls, train: Dataset) -> Calendar:
        source = train.sources[train.target_source]
        hourly = source.times is not None and len(np.unique(_hour(source.times))) > 1
        return cls(pd.Index(_stations(source)[0]), hourly)

    def training(self, train: Dataset) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        """The values of the target in training, in pieces, each with its groups."""
        source = train.sources[train.target_source]
        columns, allowed = source.index(train.target_names), train.context_places.get(source.name)
        code = _stations(source)[1]
        for first, values in pieces(train, source):
            rows = np.arange(first, first + len(values))
            used = slice(None) if allowed is None else allowed[source.places(rows)]
            rows, values = rows[used], values[used][:, columns].astype(np.float64)
            codes = code[source.places(rows)]
            yield self._groups(codes, source.times_of(rows), len(rows)), values

    def targets(self, targets: Points) -> dict[str, np.ndarray]:
        """The groups of the targets of a task."""
        code = self.stations.get_indexer(targets.station)
        return self._groups(code, targets.time, len(code))

    def sizes(self) -> dict[str, int]:
        """How many groups there are of every kind."""
        hours, number = self._hours, len(self.stations)
        return {
            "station, month, hour": number * 12 * hours,
            "month, hour": 12 * hours,
            "station, hour": number * hours,
            "hour": hours,
            "all": 1,
        }

    @property
    def _hours(self) -> int:
        return 24 if self.hourly else 1

    def _groups(
        self, code: np.ndarray, time: Shaped[np.ndarray, " n"] | None, number: int
    ) -> dict[str, np.ndarray]:
        """The group of every point by kind of group, finest first; -1 where it has none."""
        every = {"all": np.zeros(number, int)}
        if time is None:
            return every
        hour = _hour(time) if self.hourly else every["all"]
        month = time.astype("datetime64[M]").astype(int) % 12
        shared = {"month, hour": month * self._hours + hour}
        if not 0 < len(self.stations) * 12 * self._hours <= MAX_GROUPS:
            return {**shared, "hour": hour, **every}
        unknown = code < 0
        fine = np.where(unknown, -1, (code * 12 + month) * self._hours + hour)
        coarse = np.where(unknown, -1, code * self._hours + hour)
        return {
            "station, month, hour": fine,
            **shared,
            "station, hour": coarse,
            "hour": hour,
            **every,
        }


class Climatology(Baseline):
    """Mean and standard deviation of the training part by month and hour: of the station where it
    is known, else of all stations.
    """

    def __init__(self, train: Dataset) -> None:
        self._calendar = Calendar.of(train)
        sums: dict[str, np.ndarray] = {}
        for groups, values in self._calendar.training(train):
            for name, group in groups.items():
                _add(sums, name, group, values, self._calendar.sizes()[name])
        self._moments = {name: _moments(total) for name, total in sums.items()}

    def predict(self, raw_task: RawTask) -> Forecast:
        mean = np.full(raw_task.truth.shape, np.nan)
        std = mean.copy()
        for name, group in self._calendar.targets(raw_task.targets).items():
            known = group >= 0
            moments = self._moments[name]
            for into, values in ((mean, moments.mean), (std, moments.std)):
                coarser = np.where(known[:, None], values[np.maximum(group, 0)], np.nan)
                into[:] = np.where(np.isnan(into), coarser, into)
        return mean, std


class EmpiricalClimatology(DistributionBaseline):
    """The values of the training part, in the groups of `Climatology`, as a distribution.

    It is that of `MEMBERS` quantiles of a group.
    """

    def __init__(self, train: Dataset) -> None:
        self._calendar = Calendar.of(train)
        found = list(self._calendar.training(train))
        kinds = found[0][0] if found else {}
        values = np.concatenate([piece for _, piece in found])
        self._members = {
            name: [
                _group_quantiles(np.concatenate([groups[name] for groups, _ in found]), column)
                for column in values.T
            ]
            for name in kinds
        }

    def marginals(self, raw_task: RawTask) -> tuple[Marginal, ...]:
        groups, found = self._calendar.targets(raw_task.targets), []
        for v in range(raw_task.truth.shape[1]):
            members = np.full((len(raw_task.truth), MEMBERS), np.nan)
            for name, group in groups.items():
                names, quantiles = self._members[name][v]
                if not len(names):
                    continue
                index = np.minimum(np.searchsorted(names, group), len(names) - 1)
                missing = np.isnan(members[:, 0]) & (names[index] == group)
                members[missing] = quantiles[index[missing]]
            found.append(Empirical(torch.from_numpy(members)))
        return tuple(found)


def _group_quantiles(group: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The groups with enough values, and quantiles of each."""
    used = np.isfinite(values) & (group >= 0)
    order = np.lexsort((values[used], group[used]))
    code, y = group[used][order], values[used][order]
    names, start, count = np.unique(code, return_index=True, return_counts=True)
    enough = count >= MIN_MEMBERS
    names, start, count = names[enough], start[enough], count[enough]
    level = (np.arange(MEMBERS) + 0.5) / MEMBERS
    rank = np.minimum((level * count[:, None]).astype(int), count[:, None] - 1)
    return names, y[start[:, None] + rank]


def _stations(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Names of stationary stations, and the station of every location; -1 if it moves."""
    if source.labels is None:
        return np.arange(len(source.lat)), np.arange(len(source.lat))
    names, code = np.unique(source.labels, return_inverse=True)
    fixed = np.ones(len(names), bool)
    for axis in (source.lat, source.lon):
        low, high = np.full(len(names), np.inf), np.full(len(names), -np.inf)
        np.minimum.at(low, code, axis)
        np.maximum.at(high, code, axis)
        fixed &= high - low <= STATIONARY
    number = np.where(fixed, np.cumsum(fixed) - 1, -1)
    return names[fixed], number[code]


def _hour(time: np.ndarray) -> np.ndarray:
    return time.astype("datetime64[h]").astype(int) % 24


def _add(
    sums: dict[str, np.ndarray], name: str, group: np.ndarray, values: np.ndarray, size: int
) -> None:
    """Add to the count, sum and sum of squares of every group and variable."""
    total = sums.setdefault(name, np.zeros((3, size, values.shape[1])))
    for v in range(values.shape[1]):
        used = np.isfinite(values[:, v]) & (group >= 0)
        y = values[used, v]
        for k, weights in enumerate((np.ones(len(y)), y, y**2)):
            total[k, :, v] += np.bincount(group[used], weights, minlength=size)


def _moments(total: np.ndarray) -> Moments:
    count, first, second = total
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(count >= MIN_COUNT, first / count, np.nan)
        variance = np.maximum(second / count - mean**2, 0.0) * count / (count - 1)
    return Moments(mean, np.sqrt(variance))
