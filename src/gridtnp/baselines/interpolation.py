"""Baselines that interpolate: nearest observation, inverse distance, bilinear from a grid.

A `RawTask` is one task in the units of the data, with the same observations that the model gets.
Other baselines are in `climatology.py` and `kriging.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy.spatial import KDTree

from gridtnp.data.dataset import Dataset
from gridtnp.data.features import StaticField
from gridtnp.data.normalisation import ALIASES
from gridtnp.distributions.marginals import Marginal, moments
from gridtnp.errors import require_known
from gridtnp.grid import EARTH_RADIUS
from gridtnp.sources.coordinates import unit_vectors
from gridtnp.sources.source import Panel, Source
from gridtnp.sources.times import HOUR
from gridtnp.tasks.assembly import Observations
from gridtnp.tasks.sampling import RawBatch
from gridtnp.tasks.specification import TaskSpec

KM_PER_HOUR = 36.0
"""Length of an hour in distances: weather moves at about 10 m/s."""
KELVIN, CELSIUS = ("K", "kelvin", "Kelvin"), ("degC", "°C", "celsius", "Celsius", "C", "deg_C")
QUANTITIES = {
    **dict.fromkeys(("t", "2t", "tas", "temp", "temperature", "air_temperature"), "t2m"),
    **dict.fromkeys(("2d", "td", "dewpoint", "dew_point", "dew_point_temperature"), "d2m"),
    **dict.fromkeys(("mslp", "slp", "psl", "mean_sea_level_pressure"), "msl"),
    **{f"{c}{end}": f"{c}10" for c in "uv" for end in ("", "as")},
    **{f"10{c}": f"{c}10" for c in "uv"},
}
"""Variables near the ground by other common names."""
Forecast = tuple[Float[np.ndarray, "m dy"], Float[np.ndarray, "m dy"] | None]
"""Means, NaN where unknown, and standard deviations if the baseline predicts them."""


@dataclass(frozen=True, eq=False)
class Points:
    """Locations and times, with their stations and static features."""

    lat: np.ndarray
    lon: np.ndarray
    time: np.ndarray | None
    station: np.ndarray
    static: Float[np.ndarray, "n df"]

    @staticmethod
    def concatenate(a: Points, b: Points) -> Points:
        time = None
        if a.time is not None and b.time is not None:
            time = np.concatenate([a.time, b.time])
        pairs = [(getattr(a, k), getattr(b, k)) for k in ("lat", "lon", "station", "static")]
        lat, lon, station, static = (np.concatenate(pair) for pair in pairs)
        return Points(lat, lon, time, station, static)

    def at(self, rows: np.ndarray) -> Points:
        """Some of the points."""
        time = None if self.time is None else self.time[rows]
        return Points(self.lat[rows], self.lon[rows], time, self.station[rows], self.static[rows])

    @classmethod
    def of(cls, data: Dataset, source: Source, rows: np.ndarray) -> Points:
        places = source.places(rows)
        station = places if source.labels is None else source.labels[places]
        static = data.static_at(source.name)[places]
        return cls(source.lat[places], source.lon[places], source.times_of(rows), station, static)

    def kilometres(self, now: np.datetime64 | None) -> Float[np.ndarray, "n 4"]:
        """Cartesian coordinates, and the time since `now` as a length."""
        length = np.zeros(len(self.lat))
        if self.time is not None and now is not None:
            length = KM_PER_HOUR * ((self.time - now) / HOUR)
        places = EARTH_RADIUS * unit_vectors(self.lat, self.lon)
        return np.concatenate([places, length[:, None]], -1)


@dataclass(frozen=True, eq=False)
class RawTask:
    """One task in the units of the data.

    `values` are the target variables at the `observed` points, NaN where missing, `truth` those at
    the `targets`. `context` holds all context sets, whose rows are those of `data`. `extra` is the
    variance of every observation beyond what all have in common, if it is known; `truth_error` is
    the standard deviation of the reading errors of the truth.
    """

    data: Dataset
    time: np.datetime64 | None
    observed: Points
    values: Float[np.ndarray, "n dy"]
    targets: Points
    truth: Float[np.ndarray, "m dy"]
    context: Mapping[str, Observations]
    extra: Float[np.ndarray, "n dy"] | None = None
    truth_error: Float[np.ndarray, "m dy"] | None = None

    @classmethod
    def each(cls, data: Dataset, spec: TaskSpec, raw: RawBatch) -> Iterator[RawTask]:
        """The tasks of a batch, one by one."""
        source = data.sources[spec.target_source]
        for i, target in enumerate(raw.target):
            context = {name: tasks[i] for name, tasks in raw.context.items()}
            rows, values, extra = observed_targets(spec, context)
            targets = Points.of(data, source, target.rows)
            truth, error = target.values.astype(np.float64), target.errors
            observed = Points.of(data, source, rows)
            yield cls(data, target.time, observed, values, targets, truth, context, extra, error)

    def by_variable(
        self, estimate: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    ) -> Float[np.ndarray, "m dy"]:
        """`estimate(places, values, at)` for every variable, NaN where nothing was observed."""
        places, at = self.observed.kilometres(self.time), self.targets.kilometres(self.time)
        found = np.full(self.truth.shape, np.nan)
        for v in range(self.truth.shape[1]):
            known = np.isfinite(self.values[:, v])
            if known.any():
                found[:, v] = estimate(places[known], self.values[known, v], at)
        return found


class Baseline(ABC):
    """Predicts the targets of a task from its observations."""

    @abstractmethod
    def predict(self, raw_task: RawTask) -> Forecast:
        """Means, and standard deviations if it predicts them."""

    @property
    def of_readings(self) -> bool:
        """Whether its standard deviations are of readings, errors included, not of the truth."""
        return True

    def notes(self) -> tuple[str, ...]:
        """Remarks to print below the scores."""
        return ()


class DistributionBaseline(Baseline):
    """Predicts distributions that are not normal."""

    @abstractmethod
    def marginals(self, raw_task: RawTask) -> tuple[Marginal, ...]:
        """The distribution of every variable at the targets; NaN where unknown."""

    def predict(self, raw_task: RawTask) -> Forecast:
        return moments(self.marginals(raw_task))


class Nearest(Baseline):
    """The value of the nearest observation in space and time."""

    def predict(self, raw_task: RawTask) -> Forecast:
        def nearest(places: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
            return values[KDTree(places).query(at)[1]]

        return raw_task.by_variable(nearest), None


@dataclass(frozen=True)
class InverseDistance(Baseline):
    """The mean of the nearest observations, weighted by an inverse power of their distance."""

    neighbours: int = 16
    power: float = 2.0

    def predict(self, raw_task: RawTask) -> Forecast:
        def weighted(places: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
            number = min(self.neighbours, len(values))
            distance, index = KDTree(places).query(at, number)
            distance, index = distance.reshape(-1, number), index.reshape(-1, number)
            weight = np.maximum(distance, 1e-6) ** -self.power  # within a millimetre, the value
            return (weight * values[index]).sum(1) / weight.sum(1)

        return raw_task.by_variable(weighted), None


@dataclass(frozen=True)
class GriddedVariable:
    """Column `column` of a context set of a gridded source; `offset` converts its units."""

    context: str
    source: str
    column: int
    offset: float = 0.0

    def at(self, raw_task: RawTask, points: Points) -> Float[np.ndarray, " n"]:
        """Bilinear interpolation at the time of the context nearest to that of each point."""
        observed, source = (
            raw_task.context.get(self.context),
            raw_task.data.sources.get(self.source),
        )
        found = np.full(len(points.lat), np.nan)
        if observed is None or not len(observed.rows):
            return found
        assert isinstance(source, Panel)
        assert source.shape is not None
        places = len(source.lat)
        steps, step_of = np.unique(observed.rows // places, return_inverse=True)
        values = np.full((len(steps), places), np.nan)
        values[step_of, observed.rows % places] = observed.values[:, self.column] + self.offset
        nearest = np.zeros(len(found), int)
        if source.times is not None and points.time is not None:
            distance = np.abs(points.time[:, None] - source.times[steps][None])
            nearest = distance.argmin(1)
        lat, lon = source.lat.reshape(source.shape)[:, 0], source.lon.reshape(source.shape)[0]
        for step in np.unique(nearest):
            field = StaticField(self.context, lat, lon, values[step].reshape(source.shape))
            here = nearest == step
            found[here] = field.at(points.lat[here], points.lon[here])
        return found


@dataclass(frozen=True)
class Bilinear(Baseline):
    """Bilinear interpolation of a gridded source, at the time nearest to that of the target."""

    fields: tuple[GriddedVariable, ...]

    @classmethod
    def of(cls, data: Dataset, spec: TaskSpec, named: str | None = None) -> Bilinear:
        """From gridded variables with the targets' names, or from those of `named`, which is
        `"source"` or `"source.variable"`.
        """
        return cls(tuple(_gridded(data, spec, name, named) for name in spec.target_names))

    def predict(self, raw_task: RawTask) -> Forecast:
        mean = np.stack([field.at(raw_task, raw_task.targets) for field in self.fields], -1)
        return mean, None


def observed_targets(
    spec: TaskSpec, context: Mapping[str, Observations]
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Rows of the target source in the context, the target variables there, and the variances of
    their reading errors, if any are known.
    """
    held = {name: spec.contexts[name] for name in context}
    held = {name: of for name, of in held.items() if of.source == spec.target_source}
    rows = np.unique(np.concatenate([np.zeros(0, int), *(context[name].rows for name in held)]))
    values = np.full((len(rows), len(spec.target_names)), np.nan)
    extra, any_error = np.zeros_like(values), False
    for name, of in held.items():
        index, errors = np.searchsorted(rows, context[name].rows), context[name].errors
        for v, variable in enumerate(spec.target_names):
            if variable not in of.variables:
                continue
            column = of.variables.index(variable)
            values[index, v] = context[name].values[:, column]
            if errors is not None:
                extra[index, v], any_error = errors[:, column].astype(np.float64) ** 2, True
    some = np.isfinite(values).any(1)
    return rows[some], values[some], extra[some] if any_error else None


def gridded_variables(data: Dataset, spec: TaskSpec) -> dict[str, GriddedVariable]:
    """All gridded variables of the context, as `"source.variable"`."""
    fields: dict[str, GriddedVariable] = {}
    for name, of in spec.contexts.items():
        source = data.sources.get(of.source)
        if isinstance(source, Panel) and source.shape is not None:
            for i, variable in enumerate(of.variables):
                fields[f"{of.source}.{variable}"] = GriddedVariable(name, of.source, i)
    return fields


def _gridded(data: Dataset, spec: TaskSpec, target: str, named: str | None) -> GriddedVariable:
    fields = gridded_variables(data, spec)
    others = [key for key in fields if not key.startswith(f"{spec.target_source}.")]
    if not (fields if named else others):
        raise ValueError(
            "Baseline 'bilinear' needs a gridded source other than the target's, but the context "
            f"{sorted(spec.contexts)} has none; leave it out."
        )
    if named is not None:
        key = named if "." in named else f"{named}.{target}"
        require_known(key, fields, "gridded variable")
    else:
        names = {key: key.partition(".")[2] for key in others}
        found = [key for key, name in names.items() if name == target]
        found += [key for key, name in names.items() if _quantity(name) == _quantity(target)]
        if not found:
            raise ValueError(
                f"No gridded variable is called {target!r} for baseline 'bilinear'; name one of "
                f"{sorted(others)}, such as 'bilinear:{others[0]}'."
            )
        key = found[0]
    units = data.sources[fields[key].source].variable(key.partition(".")[2]).units
    wanted = data.sources[spec.target_source].variable(target).units
    return replace(fields[key], offset=_offset(key, units, target, wanted))


def _quantity(name: str) -> str:
    """One name for variables of the same kind."""
    return QUANTITIES.get(name.lower(), ALIASES.get(name, name))


def _offset(key: str, units: str | None, target: str, wanted: str | None) -> float:
    """What to add to a gridded variable to get the target's units: degrees Celsius and kelvin."""
    if units in KELVIN and wanted in CELSIUS:
        return -273.15
    if units in CELSIUS and wanted in KELVIN:
        return 273.15
    same = any(units in names and wanted in names for names in (KELVIN, CELSIUS))
    if None not in (units, wanted) and units != wanted and not same:
        raise ValueError(
            f"{key} is in {units!r}, but target {target} in {wanted!r}; convert one of them to "
            "compare them."
        )
    return 0.0
