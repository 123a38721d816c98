"""Features known at any location and time: static fields, calendar and position of the sun.

Static fields (elevation, land-sea mask) are interpolated bilinearly; the others are computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from jaxtyping import Float

from gridtnp.data.coast import Coast
from gridtnp.errors import require_known
from gridtnp.sources.coordinates import NAMES, wrap
from gridtnp.sources.quality import Note
from gridtnp.sources.reading import Data, read_source
from gridtnp.sources.source import Panel, Source
from gridtnp.sources.times import UNIT

DAY = np.timedelta64(86_400_000, "ms")
J2000 = np.datetime64("2000-01-01T12:00:00", "ms")


@dataclass(frozen=True, eq=False)
class StaticField:
    """A field on a latitude-longitude grid that does not change with time."""

    name: str
    lat: np.ndarray
    lon: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, name: str, source: Source, variable: str | None = None) -> StaticField:
        """From a variable or a static column of a gridded source, by default that of its name."""
        if not isinstance(source, Panel) or source.shape is None:
            raise ValueError(
                f"Static field {name!r} is not on a latitude-longitude grid; to use a column of a "
                f"source, give static={{{name!r}: 'source.column'}}."
            )
        variable = variable or _variable_called(name, source)
        if variable in source.columns:
            values = source.columns[variable]
        else:
            if source.steps > 1:
                raise ValueError(
                    f"Static field {name!r} has {source.steps} times; select one, e.g. "
                    "ds.isel(time=0)."
                )
            values = source.values(0, len(source.lat))[:, source.index((variable,))[0]]
        rows, cols = source.shape
        lat, lon = source.lat.reshape(rows, cols)[:, 0], source.lon.reshape(rows, cols)[0]
        return cls(name, lat, lon, values.reshape(rows, cols))

    def at(
        self, lat: Float[np.ndarray, " n"], lon: Float[np.ndarray, " n"]
    ) -> Float[np.ndarray, " n"]:
        """Bilinear interpolation, without a seam if the field covers all longitudes.

        Missing corners are left out. Up to one cell outside of the field, the value at its edge is
        used; farther out it is NaN.
        """
        i, j, v = _bracket(self.lat, lat, 0.0)
        k, m, u = _bracket(self.lon, wrap(lon), 360.0)
        total, weight = np.zeros(len(lat)), np.zeros(len(lat))
        for rows, across in ((i, 1 - v), (j, v)):
            for cols, along in ((k, 1 - u), (m, u)):
                corner, product = self.values[rows, cols], across * along
                used = np.isfinite(corner) & (product > 0)
                total += np.where(used, corner, 0.0) * np.where(used, product, 0.0)
                weight += np.where(used, product, 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(weight > 0, total / weight, np.nan).astype(np.float32)


@dataclass(frozen=True, eq=False)
class StaticFeature:
    """A static field, a column of the sources, or both, where the column takes precedence."""

    name: str
    field: StaticField | Coast | None
    column: str

    def of(self, source: Source) -> Float[np.ndarray, " n"]:
        """Values at the locations of a source."""
        own = source.columns.get(self.column)
        if own is None and self.name.lower() in NAMES["elevation"]:  # under any accepted name
            heights = [c for c in source.columns if c.lower() in NAMES["elevation"]]
            own = source.columns[heights[0]] if heights else None
        if self.field is not None:
            sampled = self.field.at(source.lat, source.lon)
            return sampled if own is None else np.where(np.isnan(own), sampled, own)
        if own is None:
            raise ValueError(
                f"Source {source.name!r} has no column for feature {self.name!r}, which every "
                f"source needs; give it as a field: static={{{self.name!r}: ...}}."
            )
        return own

    def at(
        self,
        lat: Float[np.ndarray, " n"],
        lon: Float[np.ndarray, " n"],
        own: Float[np.ndarray, " n"] | None = None,
    ) -> Float[np.ndarray, " n"]:
        """Values at any locations; `own` values take precedence over the field unless NaN."""
        if own is not None and (self.field is None or not np.isnan(own).any()):
            return own.astype(np.float32)
        if self.field is None:
            raise ValueError(
                f"Feature {self.name!r} is known only at stations; to predict elsewhere, give it "
                f"as a field, static={{{self.name!r}: ...}}, or as a column of the query."
            )
        sampled = self.field.at(lat, lon)
        return sampled if own is None else np.where(np.isnan(own), sampled, own.astype(np.float32))


def static_features(
    given: Mapping[str, Data] | Data | None,
    sources: Mapping[str, Source],
    na_values: Sequence[float | str] = (),
) -> tuple[dict[str, StaticFeature], list[Note]]:
    """Static features by name, from a dataset of fields or a mapping to fields or columns."""
    if given is None:
        return {}, []
    if isinstance(given, xr.Dataset) or not isinstance(given, Mapping):
        source, notes = read_source("static", given, na_values=na_values)
        fields = {name: StaticField.of(name, source, name) for name in source.names}
        return {name: StaticFeature(name, field, name) for name, field in fields.items()}, notes
    made, notes = {}, []
    for name, data in given.items():
        owner, _, column = data.partition(".") if isinstance(data, str) else ("", "", "")
        if owner in sources and not os.path.exists(str(data)):
            source = sources[owner]
            require_known(column, source.columns, "column", f"of source {owner!r}")
            on_grid = isinstance(source, Panel) and source.shape is not None
            field = StaticField.of(name, source, column) if on_grid else None
            made[name] = StaticFeature(name, field, column)
        else:
            source, found = read_source(name, data, na_values=na_values)
            notes += found
            made[name] = StaticFeature(name, StaticField.of(name, source), name)
    return made, notes


def _variable_called(name: str, source: Panel) -> str:
    """The field of this name, elevation under any accepted one, or the only one without times."""
    every = [*source.columns, *source.names]
    accepted = NAMES["elevation"] if name.lower() in NAMES["elevation"] else ()
    fits = [v for v in every if v == name] or [v for v in every if v.lower() in accepted]
    static = source.columns if source.steps > 1 and source.columns else source.names
    if not fits and len(static) > 1:
        raise ValueError(
            f"None of {list(static)} is called {name!r}; choose one of them: "
            f"static={{{name!r}: ds[{next(iter(static))!r}]}}."
        )
    return fits[0] if fits else next(iter(static))


def _bracket(
    axis: np.ndarray, x: np.ndarray, period: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The indices of the grid points on both sides of x, and the weight of the second.

    There is no interpolation across gaps of more than three steps. Up to one step outside of the
    axis, all weight is on its end; elsewhere off the axis the weight is NaN.
    """
    if len(axis) == 1:
        zero = np.zeros(len(x), int)
        return zero, zero, np.zeros(len(x))
    step = float(np.median(np.diff(axis)))
    low = np.searchsorted(axis, x, side="right") - 1
    if period:
        high = (low + 1) % len(axis)
        low = low % len(axis)
        width = np.mod(axis[high] - axis[low], period)
        position = np.mod(x - axis[low], period)
    else:
        low = np.clip(low, 0, len(axis) - 2)
        high = low + 1
        width, position = axis[high] - axis[low], x - axis[low]
    before, after = np.abs(position), np.abs(width - position)
    edge = np.where(before <= np.minimum(step, after), 0.0, np.where(after <= step, 1.0, np.nan))
    inside = (position >= 0) & (position <= width) & (width <= 3 * step)
    with np.errstate(invalid="ignore"):
        return low, high, np.where(inside, position / np.where(inside, width, 1.0), edge)


def _sine_cosine(phase: np.ndarray) -> np.ndarray:
    return np.stack([np.sin(2 * np.pi * phase), np.cos(2 * np.pi * phase)], -1)


def _day_of_year(time: np.ndarray, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:  # noqa: ARG001
    year = time.astype("datetime64[Y]").astype(UNIT)
    return _sine_cosine((time - year) / DAY / 365.2425)


def _month(time: np.ndarray, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:  # noqa: ARG001
    return _sine_cosine((time.astype("datetime64[M]").astype(int) % 12) / 12)


def _hour(time: np.ndarray, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:  # noqa: ARG001
    return _sine_cosine((time - time.astype("datetime64[D]").astype(UNIT)) / DAY)


def _local_hour(time: np.ndarray, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:  # noqa: ARG001
    return _sine_cosine((time - time.astype("datetime64[D]").astype(UNIT)) / DAY + lon / 360)


def _decade(time: np.ndarray, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:  # noqa: ARG001
    return ((time - J2000) / DAY / 3652.425)[..., None]


def _hours(time: np.ndarray, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:  # noqa: ARG001
    return (time.astype(UNIT).astype(np.int64) / 3_600_000)[..., None]


def sine_of_solar_elevation(time: np.ndarray, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    """Low-precision formulas of the Astronomical Almanac (0.01 degrees between 1950 and 2050)."""
    days = (time - J2000) / DAY
    anomaly = np.deg2rad(357.528 + 0.9856003 * days)
    ecliptic = 280.460 + 0.9856474 * days + 1.915 * np.sin(anomaly) + 0.020 * np.sin(2 * anomaly)
    ecliptic, tilt = np.deg2rad(ecliptic), np.deg2rad(23.439 - 4e-7 * days)
    declination = np.arcsin(np.sin(tilt) * np.sin(ecliptic))
    ascension = np.arctan2(np.cos(tilt) * np.sin(ecliptic), np.cos(ecliptic))
    greenwich = np.deg2rad(np.mod(280.46061837 + 360.98564736629 * days, 360.0)) - ascension
    # from here on per point, where single precision is accurate enough and faster
    hour_angle = (greenwich + np.deg2rad(lon)).astype(np.float32)
    phi = np.deg2rad(lat).astype(np.float32)
    sine = np.sin(phi) * np.sin(declination)
    return sine + np.cos(phi) * np.cos(hour_angle) * np.cos(declination)


def _solar_elevation(time: np.ndarray, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    return sine_of_solar_elevation(time, lat, lon)[..., None]


COMPUTED: dict[
    str, tuple[tuple[str, ...], Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]]
] = {
    "day_of_year": (("day_of_year_sin", "day_of_year_cos"), _day_of_year),
    "month": (("month_sin", "month_cos"), _month),
    "hour": (("hour_sin", "hour_cos"), _hour),
    "local_hour": (("local_hour_sin", "local_hour_cos"), _local_hour),
    "solar_elevation": (("solar_elevation",), _solar_elevation),
    "decade": (("decade",), _decade),
    "hours": (("hours",), _hours),
}
"""Computed features by name: their columns, and their function of time, latitude and longitude.

`hours` counts from 1970 and `decade` from 2000; `solar_elevation` is a sine; `hour` is in UTC and
`local_hour` in local solar time.
"""
