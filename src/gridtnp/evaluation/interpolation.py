"""Baselines that interpolate: the nearest observation, inverse distances, and a gridded field.

A `RawTask` is one task as a baseline sees it, in the units of the data: the same observations that
the model gets, and the places to predict at. Other baselines are in `history.py` and `kriging.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.spatial import KDTree

from gridtnp.data.coordinates import unit_vectors
from gridtnp.data.dataset import Dataset
from gridtnp.data.features import StaticField
from gridtnp.data.normalisation import ALIASES
from gridtnp.data.sources import Panel, Source
from gridtnp.data.times import HOUR
from gridtnp.errors import require_known
from gridtnp.grid import EARTH_RADIUS
from gridtnp.tasks.assembly import Observations
from gridtnp.tasks.sampling import RawBatch
from gridtnp.tasks.specification import TaskSpec

SPEED = 36.0
"""An hour counts as so many kilometres: weather moves at about ten metres a second."""
KELVIN, CELSIUS = ("K", "kelvin", "Kelvin"), ("degC", "°C", "celsius", "Celsius", "C", "deg_C")
Forecast = tuple[Float[np.ndarray, "m dy"], Float[np.ndarray, "m dy"] | None]
"""Means and spreads, NaN where there is none; without spreads for a baseline that has none."""


@dataclass(frozen=True, eq=False)
class Points:
    """Where and when, at which station, and the static features there."""

    lat: np.ndarray
    lon: np.ndarray
    time: np.ndarray | None
    station: np.ndarray
    static: Float[np.ndarray, "n df"]

    @classmethod
    def of(cls, data: Dataset, source: Source, rows: np.ndarray) -> Points:
        places = source.places(rows)
        station = places if source.labels is None else source.labels[places]
        static = data.static_at(source.name)[places]
        return cls(source.lat[places], source.lon[places], source.times_of(rows), station, static)

    def kilometres(self, now: np.datetime64 | None) -> Float[np.ndarray, "n 4"]:
        """Places in space, so that near ones are near across every pole and date line, and hours
        from now as a length.
        """
        length = np.zeros(len(self.lat))
        if self.time is not None and now is not None:
            length = SPEED * ((self.time - now) / HOUR)
        places = EARTH_RADIUS * unit_vectors(self.lat, self.lon)
        return np.concatenate([places, length[:, None]], -1)


@dataclass(frozen=True, eq=False)
class RawTask:
    """One task: what was observed of the variables to predict (NaN where one was not), where they
    are asked for, what they turned out to be there, and all that the context holds.
    """

    time: np.datetime64 | None
    observed: Points
    values: Float[np.ndarray, "n dy"]
    asked: Points
    truth: Float[np.ndarray, "m dy"]
    context: Mapping[str, Observations]

    @classmethod
    def each(cls, data: Dataset, spec: TaskSpec, raw: RawBatch) -> Iterator[RawTask]:
        """The tasks of a batch, one by one."""
        source = data.sources[spec.target_source]
        for i, target in enumerate(raw.target):
            context = {name: chosen[i] for name, chosen in raw.context.items()}
            rows, values = _observed(spec, context)
            asked = Points.of(data, source, target.rows)
            truth = target.values.astype(np.float64)
            yield cls(target.time, Points.of(data, source, rows), values, asked, truth, context)

    def by_variable(
        self, estimate: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    ) -> Float[np.ndarray, "m dy"]:
        """`estimate(places, values, asked)` for every variable, NaN where nothing was observed."""
        near, asked = self.observed.kilometres(self.time), self.asked.kilometres(self.time)
        found = np.full(self.truth.shape, np.nan)
        for v in range(self.truth.shape[1]):
            there = np.isfinite(self.values[:, v])
            if there.any():
                found[:, v] = estimate(near[there], self.values[there, v], asked)
        return found


class Baseline(ABC):
    """Predicts a raw_task from what was observed."""

    @abstractmethod
    def predict(self, raw_task: RawTask) -> Forecast:
        """Means, and spreads if it has its own."""

    def notes(self) -> tuple[str, ...]:
        """What a reader of its scores should know."""
        return ()


class Nearest(Baseline):
    """The value of the nearest observation in space and time."""

    def predict(self, raw_task: RawTask) -> Forecast:
        def nearest(places: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
            return values[KDTree(places).query(asked)[1]]

        return raw_task.by_variable(nearest), None


@dataclass(frozen=True)
class InverseDistance(Baseline):
    """The mean of the nearest observations, weighted by a power of their distance."""

    neighbours: int = 16
    power: float = 2.0

    def predict(self, raw_task: RawTask) -> Forecast:
        def weighted(places: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
            number = min(self.neighbours, len(values))
            distance, who = KDTree(places).query(asked, number)
            distance, who = distance.reshape(-1, number), who.reshape(-1, number)
            weight = np.maximum(distance, 1e-6) ** -self.power  # a millimetre: the value itself
            return (weight * values[who]).sum(1) / weight.sum(1)

        return raw_task.by_variable(weighted), None


@dataclass(frozen=True)
class Gridded:
    """Where a variable is found on a grid: a context set, its column there, and a change of unit
    to that of the target.
    """

    context: str
    column: int
    source: Panel
    shift: float


@dataclass(frozen=True)
class Bilinear(Baseline):
    """A gridded source between its points, at the time nearest to the one asked for."""

    fields: tuple[Gridded, ...]

    @classmethod
    def of(cls, data: Dataset, spec: TaskSpec, named: str | None = None) -> Bilinear:
        """With the variables of the targets' names, or those of `"source"`, `"source.variable"`."""
        found = tuple(_gridded(data, spec, name, named) for name in spec.target_names)
        return cls(found)

    def predict(self, raw_task: RawTask) -> Forecast:
        mean = np.stack([self._field(raw_task, field) for field in self.fields], -1)
        return mean, None

    def _field(self, raw_task: RawTask, of: Gridded) -> np.ndarray:
        chosen, source, asked = raw_task.context[of.context], of.source, raw_task.asked
        assert source.shape is not None
        found = np.full(len(asked.lat), np.nan)
        if not len(chosen.rows):
            return found
        places = len(source.lat)
        steps, which = np.unique(chosen.rows // places, return_inverse=True)
        values = np.full((len(steps), places), np.nan)
        values[which, chosen.rows % places] = chosen.values[:, of.column] + of.shift
        nearest = np.zeros(len(found), int)
        if source.times is not None and asked.time is not None:
            apart = np.abs(asked.time[:, None] - source.times[steps][None])
            nearest = apart.argmin(1)
        lat, lon = source.lat.reshape(source.shape)[:, 0], source.lon.reshape(source.shape)[0]
        for step in np.unique(nearest):
            field = StaticField(of.context, lat, lon, values[step].reshape(source.shape))
            here = nearest == step
            found[here] = field.at(asked.lat[here], asked.lon[here])
        return found


def _observed(spec: TaskSpec, context: Mapping[str, Observations]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the targets' source in the context, and the variables to predict there."""
    held = {n: c for n, c in spec.contexts.items() if c.source == spec.target_source}
    rows = np.unique(np.concatenate([np.zeros(0, int), *(context[name].rows for name in held)]))
    values = np.full((len(rows), len(spec.target_names)), np.nan)
    for name, of in held.items():
        where = np.searchsorted(rows, context[name].rows)
        for v, variable in enumerate(spec.target_names):
            if variable in of.variables:
                values[where, v] = context[name].values[:, of.variables.index(variable)]
    some = np.isfinite(values).any(1)
    return rows[some], values[some]


def _gridded(data: Dataset, spec: TaskSpec, target: str, named: str | None) -> Gridded:
    fields: dict[str, tuple[str, int, Panel]] = {}
    for name, of in spec.contexts.items():
        source = data.sources[of.source]
        if isinstance(source, Panel) and source.shape is not None:
            for i, variable in enumerate(of.variables):
                fields[f"{of.source}.{variable}"] = (name, i, source)
    others = [key for key in fields if not key.startswith(f"{spec.target_source}.")]
    if not (fields if named else others):
        raise ValueError(
            "Bilinear interpolation needs a gridded source beside the target's own, but the "
            f"model's context has none, {sorted(spec.contexts)}; leave it out."
        )
    if named is not None:
        key = named if "." in named else f"{named}.{target}"
        require_known(key, fields, "gridded variable", "for bilinear interpolation")
    else:
        same = ALIASES.get(target, target)
        names = {key: key.partition(".")[2] for key in others}
        found = [key for key, name in names.items() if ALIASES.get(name, name) == same]
        if not found:
            raise ValueError(
                f"Bilinear interpolation needs a gridded variable called {target!r}, but there are "
                f"{sorted(others)}; say which one, such as 'bilinear:{others[0]}'."
            )
        key = found[0]
    context, column, source = fields[key]
    there = source.variable(key.partition(".")[2]).units
    here = data.sources[spec.target_source].variable(target).units
    return Gridded(context, column, source, _shift(key, there, target, here))


def _shift(key: str, there: str | None, target: str, here: str | None) -> float:
    if there in KELVIN and here in CELSIUS:
        return -273.15
    if there in CELSIUS and here in KELVIN:
        return 273.15
    same = any(there in names and here in names for names in (KELVIN, CELSIUS))
    if None not in (there, here) and there != here and not same:
        raise ValueError(
            f"A field must have the units of the target to be compared with it, but {key} is in "
            f"{there!r} and {target} in {here!r}; convert one of them."
        )
    return 0.0
