"""Observations and queries as flat arrays: tables, arrays and xarray, on the sphere or in a plane.

Latitudes and longitudes become Cartesian coordinates in km, east, north and up at the centre of the
observations, so that there is no seam and no pole. Columns x and y, and arrays, are a plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float, Shaped

from gridtnp.data.features import StaticField
from gridtnp.errors import require_known
from gridtnp.grid import EARTH_RADIUS
from gridtnp.inference.queries import Query
from gridtnp.sources.coordinates import NAMES, recognise, unit_vectors, why_no_variable, wrap
from gridtnp.sources.tables import index_to_columns
from gridtnp.sources.times import to_times

PLANE = ("x", "y")
Covariates = str | Sequence[str] | xr.DataArray | xr.Dataset | tuple[Any, Any] | None
"""Names of columns, fields on a latitude-longitude grid, or arrays at observations and places."""
Errors = float | str | Sequence[float] | np.ndarray | None
"""Standard deviations of reading errors: one for all, a column, or one per observation."""


class PlaneQuery(Query):
    """A query in a plane: `lat` is y, `lon` is x, of any size."""

    @classmethod
    def _checked(
        cls, lat: np.ndarray, lon: np.ndarray, time: np.ndarray | None, form: Any, dims: Any
    ) -> Query:
        bad = np.flatnonzero(~(np.isfinite(lat) & np.isfinite(lon)))
        if len(bad):
            raise ValueError(f"Place {bad[0]} has no coordinates; drop places that are NaN.")
        return cls(lat, lon, time, form, dims)


@dataclass(frozen=True, eq=False)
class Observed:
    """Observations: `places` are Cartesian, `table` holds all columns, if there is one."""

    places: Float[np.ndarray, "n d"]
    values: Float[np.ndarray, " n"]
    time: Shaped[np.ndarray, " n"] | None
    name: str
    attributes: dict[str, Any]
    sphere: Sphere | None
    table: pd.DataFrame | None
    error: Float[np.ndarray, " n"] | None = None
    empty: Shaped[np.ndarray, " t"] | None = None
    """Times of which there is no value at all."""


@dataclass(frozen=True)
class Sphere:
    """Cartesian coordinates in km whose axes point east, north and up at a place."""

    lat: float
    lon: float

    @classmethod
    def around(cls, lat: np.ndarray, lon: np.ndarray) -> Sphere:
        x, y, z = unit_vectors(lat, lon).mean(0)
        return cls(
            float(np.rad2deg(np.arctan2(z, np.hypot(x, y)))), float(np.rad2deg(np.arctan2(y, x)))
        )

    def places(self, lat: np.ndarray, lon: np.ndarray) -> Float[np.ndarray, "n 3"]:
        phi, lam = np.deg2rad(self.lat), np.deg2rad(self.lon)
        sin, cos = np.sin(phi), np.cos(phi)
        east = [-np.sin(lam), np.cos(lam), 0.0]
        north = [-sin * np.cos(lam), -sin * np.sin(lam), cos]
        up = [cos * np.cos(lam), cos * np.sin(lam), sin]
        return EARTH_RADIUS * unit_vectors(lat, lon) @ np.array([east, north, up]).T


def read_observations(
    observations: Any, value: str | None, covariates: Covariates, error: Errors = None
) -> Observed:
    """Observations in any of the forms that `interpolate` takes."""
    if isinstance(observations, tuple):
        found = _arrays(observations, value)
        return replace(found, error=_errors(error, found.values, None))
    attributes: dict[str, Any] = {}
    times = None
    if isinstance(observations, xr.DataArray):
        observations = observations.to_dataset(name=observations.name or value or "value")
    if isinstance(observations, xr.Dataset):
        attributes = {str(k): dict(v.attrs) for k, v in observations.data_vars.items()}
        found = recognise({str(c): dict(v.attrs) for c, v in observations.coords.items()})
        if "time" in found:
            times = to_times(observations[found["time"]].to_numpy().ravel(), found["time"])
        observations = observations.to_dataframe().reset_index()
        observations = observations.dropna(
            subset=[c for c in attributes if c in observations], how="all"
        )
    if not isinstance(observations, pd.DataFrame):
        raise ValueError(
            f"Observations cannot be a {type(observations).__name__}; give a table, an xarray "
            "dataset, or arrays of places and values: interpolate((x, y), at)."
        )
    table = in_plane(index_to_columns(observations))
    found = recognise({str(c): {} for c in table.columns})
    for role, words in (("lat", "latitude 'lat' or 'y'"), ("lon", "longitude 'lon' or 'x'")):
        if role not in found:
            raise ValueError(f"The observations have no {words} among {sorted(map(str, table))}.")
    lat, lon = (_numbers(table, found[role]) for role in ("lat", "lon"))
    names = [covariates] if isinstance(covariates, str) else covariates
    taken = {*found.values(), *(names if isinstance(names, list | tuple) else ())}
    taken |= {error} if isinstance(error, str) else set()
    name = _value(table, value, {str(t) for t in taken})
    time = to_times(table[found["time"]], found["time"]) if "time" in found else None
    empty = None if time is None or times is None else np.setdiff1d(times, time)
    sphere = None
    if (found["lon"].lower(), found["lat"].lower()) == PLANE:
        places = np.stack([lon, lat], -1)
    else:
        bad = np.flatnonzero(~((np.abs(lat) <= 90) & (np.abs(lon) <= 360)))
        if len(bad):
            raise ValueError(
                f"Observation {bad[0]} is at latitude {lat[bad[0]]:g} and longitude "
                f"{lon[bad[0]]:g}, which is not on Earth; for a plane, name the columns x and y."
            )
        sphere = Sphere.around(lat, wrap(lon))
        places = sphere.places(lat, lon)
    values = _numbers(table, name)
    known = _errors(error, values, table)
    about = attributes.get(name, {})
    return Observed(places, values, time, name, about, sphere, table, known, empty)


def _arrays(observations: tuple[Any, ...], value: str | None) -> Observed:
    if len(observations) != 2:
        raise ValueError(
            f"{len(observations)} arrays are no observations; give places of shape (n, 2) and "
            "values of shape (n,)."
        )
    places, values = (np.asarray(a, np.float64) for a in observations)
    places = places[:, None] if places.ndim == 1 else places
    if places.ndim != 2 or values.shape != places.shape[:1]:
        raise ValueError(
            f"Places of shape {places.shape} and values of shape {values.shape} do not match; give "
            "one row and one value per observation."
        )
    return Observed(_in_plane_at_least(places), values, None, value or "", {}, None, None)


def _in_plane_at_least(places: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n e"]:
    """Places on a line are on the first axis of a plane, which the network needs."""
    return np.pad(places, ((0, 0), (0, max(0, 2 - places.shape[1]))))


def _errors(
    error: Errors, values: np.ndarray, table: pd.DataFrame | None
) -> Float[np.ndarray, " n"] | None:
    """One standard deviation per observation, if they are known."""
    if error is None:
        return None
    if isinstance(error, str):
        columns = [] if table is None else [str(c) for c in table.columns]
        require_known(error, columns, "column", "of the observations in error=")
        assert table is not None
        found, what = _numbers(table, error), f"column {error!r} of errors"
    else:
        found, what = np.asarray(error, np.float64), "error"
        if found.ndim and found.shape != values.shape:
            raise ValueError(
                f"error has shape {found.shape}, but there are {len(values)} observations; give a "
                "standard deviation for all, one for each, or the name of a column."
            )
        found = np.broadcast_to(found, values.shape)
    bad = np.flatnonzero(np.isfinite(values) & ~((found >= 0) & np.isfinite(found)))
    if len(bad):
        raise ValueError(
            f"The {what} is {found[bad[0]]:g} for observation {bad[0]}; must be a standard "
            "deviation, a finite number from 0 on."
        )
    return found


def read_places(at: Any, observed: Observed) -> tuple[Query, Float[np.ndarray, "m d"]]:
    """Places to interpolate at, as a query and in the coordinates of the observations."""
    if isinstance(at, pd.DataFrame):
        at = in_plane(at)
    if observed.sphere is not None:
        if isinstance(at, np.ndarray | list):
            raise ValueError(
                "The observations have latitudes and longitudes, but the places are an array; give "
                "a table with lat and lon, a grid, or a tuple (lat, lon)."
            )
        query = Query.of(at)
        return query, observed.sphere.places(query.lat, query.lon)
    if isinstance(at, np.ndarray | list):
        array = np.asarray(at, np.float64)
        array = array[:, None] if array.ndim == 1 else array
        array = _in_plane_at_least(array) if array.ndim == 2 else array
        if array.ndim != 2 or array.shape[1] != observed.places.shape[1]:
            raise ValueError(
                f"Places of shape {array.shape} do not have the {observed.places.shape[1]} "
                "coordinates of the observations."
            )
        if not np.isfinite(array).all():
            raise ValueError("Some places are NaN or infinite; drop them.")
        zeros = np.zeros(len(array))
        return PlaneQuery(zeros, zeros, None, (zeros, zeros), {}), array
    if isinstance(at, tuple):
        at = tuple(reversed(at))  # x and y, as latitudes come first in a query
    query = PlaneQuery.of(at)
    found = recognise({str(c): {} for c in _names(at)})
    if found.get("lat", "y").lower() != "y":
        raise ValueError(
            "The places have latitudes and longitudes, but the observations x and y; give both in "
            "the same coordinates."
        )
    return query, np.stack([query.lon, query.lat], -1)


def read_covariates(
    covariates: Covariates, observed: Observed, query: Query
) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, "m k"]] | None:
    """Covariates at the observations and at the places; NaN where unknown."""
    if covariates is None:
        return None
    if isinstance(covariates, tuple) and not all(isinstance(c, str) for c in covariates):
        pair = [np.asarray(c, np.float64) for c in covariates]
        here, there = (c[:, None] if c.ndim == 1 else c for c in pair)
        numbers = len(observed.values), len(query.lat)
        if (len(here), len(there)) != numbers or here.shape[1:] != there.shape[1:]:
            raise ValueError(
                f"Covariates of shapes {here.shape} and {there.shape} do not match {numbers[0]} "
                f"observations and {numbers[1]} places; give a row per observation and per place."
            )
        return here, there
    fields: dict[str, StaticField | None] = {}
    if isinstance(covariates, xr.DataArray | xr.Dataset):
        data = covariates
        if isinstance(data, xr.DataArray):
            data = data.to_dataset(name=data.name or "covariate")
        fields = {str(name): _field(str(name), data) for name in data.data_vars}
    else:
        names = [covariates] if isinstance(covariates, str) else list(covariates)  # pyright: ignore
        fields = dict.fromkeys(map(str, names))
    columns = [_covariate(name, field, observed, query) for name, field in fields.items()]
    here, there = (np.stack(part, -1) for part in zip(*columns, strict=True))
    return here, there


def _covariate(
    name: str, field: StaticField | None, observed: Observed, query: Query
) -> tuple[np.ndarray, np.ndarray]:
    """At observations and places: their own column, or else the field."""
    table = pd.DataFrame() if observed.table is None else observed.table
    own = _numbers(table, name) if name in table else None
    there = query.known(name)
    if field is not None and observed.sphere is not None:
        found = recognise({str(c): {} for c in table.columns})
        if own is None:
            own = field.at(_numbers(table, found["lat"]), _numbers(table, found["lon"]))
        there = field.at(query.lat, query.lon) if there is None else there
    if own is None:
        require_known(name, [str(c) for c in table.columns], "covariate", "of the observations")
    if there is None:
        raise ValueError(
            f"The places have no column {name!r}, a covariate; add it, or give the covariate as a "
            "field: covariates=terrain['elevation']."
        )
    assert own is not None
    return own, there


def _field(name: str, data: xr.Dataset) -> StaticField:
    found = recognise({str(k): dict(data[k].attrs) for k in data.coords})
    dims = [found.get("lat"), found.get("lon")]
    if None in dims or set(map(str, data[name].dims)) != set(dims):
        raise ValueError(
            f"Covariate {name!r} has dimensions {tuple(data[name].dims)}; must be a field on "
            "latitudes and longitudes, without time."
        )
    lon = wrap(data[dims[1]].to_numpy())
    sorted_field = data[name].assign_coords({dims[1]: lon}).sortby(dims).transpose(*dims)
    lat, lon = (sorted_field[d].to_numpy().astype(float) for d in dims)
    return StaticField(name, lat, lon, sorted_field.to_numpy().astype(float))


def in_plane(table: pd.DataFrame) -> pd.DataFrame:
    """With eastings and northings called x and y, unless there are latitudes."""
    found = recognise({str(c): {} for c in table.columns})
    if {"lat", "lon"} <= set(found) or not {"x", "y"} <= set(found):
        return table
    return table.rename(columns={found["x"]: "x", found["y"]: "y"})


def _value(table: pd.DataFrame, value: str | None, taken: set[str]) -> str:
    if value is not None:
        require_known(value, [str(c) for c in table.columns], "column", "of the observations")
        return value
    others = [
        str(c)
        for c in table.columns
        if str(c) not in taken
        and pd.api.types.is_numeric_dtype(table[c])
        and str(c).lower() not in NAMES["elevation"]
        and why_no_variable(str(c), list(map(str, table.columns)), True) is None
    ]
    if len(others) != 1:
        what = f"has several: {others}; name it: value={others[0]!r}" if others else "has none"
        raise ValueError(f"One column of numbers is to be interpolated, but the table {what}.")
    return others[0]


def _numbers(table: pd.DataFrame, name: str) -> Float[np.ndarray, " n"]:
    if not pd.api.types.is_numeric_dtype(table[name]):
        raise ValueError(f"Column {name!r} is not numeric; convert it with pd.to_numeric.")
    return table[name].to_numpy(np.float64, na_value=np.nan)


def _names(at: Any) -> list[str]:
    if isinstance(at, pd.DataFrame):
        return [str(c) for c in index_to_columns(at).columns]
    return [str(c) for c in at.coords] if isinstance(at, xr.Dataset | xr.DataArray) else []
