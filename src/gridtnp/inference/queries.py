"""Queries: places to predict at as xarray, pandas or arrays, and answers in the same form.

An answer keeps the query's coordinates and index bit for bit. Its columns are `<variable>_mean`,
`<variable>_std`, `<variable>_q05`, … with CF attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float, Shaped

from gridtnp import __version__
from gridtnp.sources.coordinates import (
    NAMES,
    possible,
    recognise,
    require_places,
    table_places,
    to_degrees,
)
from gridtnp.sources.source import Variable
from gridtnp.sources.tables import index_to_columns
from gridtnp.sources.times import to_times

Places = pd.DataFrame | xr.Dataset | xr.DataArray | tuple[Any, Any]
Answer = pd.DataFrame | xr.Dataset | dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Query:
    """The points to predict at as flat arrays, and the form that the answer takes.

    `time` is None if the query has no times. `dims` are the dimensions of an xarray answer.
    """

    lat: Float[np.ndarray, " n"]
    lon: Float[np.ndarray, " n"]
    time: Shaped[np.ndarray, " n"] | None
    form: Places
    dims: dict[str, int]

    @classmethod
    def of(cls, places: Places | object) -> Query:
        """From a table, an xarray object with latitudes and longitudes, or a pair of arrays."""
        if isinstance(places, tuple):
            lat, lon = (np.atleast_1d(np.asarray(a, np.float64)).ravel() for a in places)
            if len(lat) != len(lon):
                raise ValueError(
                    f"{len(lat)} latitudes and {len(lon)} longitudes do not make pairs; for a grid "
                    "use gt.latlon_grid."
                )
            return cls._checked(lat, lon, None, places, {})
        if isinstance(places, pd.DataFrame):
            return cls._of_table(places)
        if not isinstance(places, xr.Dataset | xr.DataArray):
            raise ValueError(
                f"Cannot predict at a {type(places).__name__}; give an xarray grid, a pandas table "
                "or a tuple of latitudes and longitudes."
            )
        return cls._of_xarray(places)

    @classmethod
    def _of_table(cls, table: pd.DataFrame) -> Query:
        flat = index_to_columns(table)
        found, lat, lon = table_places(flat, "query")
        time = to_times(flat[found["time"]], found["time"]) if "time" in found else None
        return cls._checked(lat, lon, time, table, {})

    @classmethod
    def _of_xarray(cls, data: xr.Dataset | xr.DataArray) -> Query:
        found, dims = grid_dims(data)
        axes = [data[found[role]] for role in ("lat", "lon", "time") if role in found]
        full = [
            axis.variable.set_dims(dims).transpose(*dims).values.ravel()
            if dims
            else np.atleast_1d(axis.values)
            for axis in axes
        ]
        time = to_times(full[2], found["time"]) if len(full) == 3 else None
        y, x = (
            to_degrees(values.astype(np.float64), role, found[role], axis.attrs, "query")
            for role, axis, values in zip(("lat", "lon"), axes, full, strict=False)
        )
        return cls._checked(y, x, time, data, dims)

    @classmethod
    def _checked(
        cls,
        lat: np.ndarray,
        lon: np.ndarray,
        time: np.ndarray | None,
        form: Places,
        dims: dict[str, int],
    ) -> Query:
        bad = np.flatnonzero(~possible(lat, lon))
        if len(bad):
            raise ValueError(
                f"Point {bad[0]} of the query at {lat[bad[0]]:g}, {lon[bad[0]]:g} is outside "
                "latitudes -90 to 90 or longitudes -360 to 360."
            )
        return cls(lat, lon, time, form, dims)

    def known(self, name: str) -> Float[np.ndarray, " n"] | None:
        """A column of the query by its name; elevation goes by several names."""
        if isinstance(self.form, tuple):
            return None
        names = (name, *(NAMES["elevation"] if name.lower() in NAMES["elevation"] else ()))
        if isinstance(self.form, pd.DataFrame):
            table = index_to_columns(self.form)
            found = [c for n in names for c in table.columns if str(c).lower() == n.lower()]
            return table[found[0]].to_numpy(np.float64) if found else None
        form = as_dataset(self.form)
        found = [k for n in names for k in form.variables if str(k).lower() == n.lower()]
        fits = [k for k in found if set(map(str, form[k].dims)) <= set(self.dims)]
        if not fits:
            return None
        values = form[fits[0]].variable.set_dims(self.dims).transpose(*self.dims)
        return np.atleast_1d(np.asarray(values.values, np.float64)).ravel()

    def at_times(self, times: Shaped[np.ndarray, " t"]) -> Query:
        """The same places at each of the times, in order of time."""
        if self.time is not None:
            raise ValueError("times= is given, but the query has times already; drop one of them.")
        number, points = len(times), len(self.lat)
        lat, lon = np.tile(self.lat, number), np.tile(self.lon, number)
        when = np.repeat(times, points)
        if isinstance(self.form, tuple):
            return Query(lat, lon, when, self.form, {"time": number, "point": points})
        if isinstance(self.form, pd.DataFrame):
            rows = self.form.iloc[np.tile(np.arange(points), number)]
            return Query(lat, lon, when, rows.assign(time=when), {})
        dims = {"time": number, **self.dims}
        form = as_dataset(self.form).assign_coords(time=("time", times))
        return Query(lat, lon, when, form, dims)

    @property
    def time_dim(self) -> str | None:
        """The dimension along which only time varies, if there is one."""
        if isinstance(self.form, tuple):
            return "time" if "time" in self.dims else None
        if isinstance(self.form, pd.DataFrame) or self.time is None:
            return None
        return grid_time_dim(self.form)

    def answer(
        self,
        columns: Mapping[str, np.ndarray],
        attributes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Answer:
        """Columns with one value per point in the form of the query.

        `attributes` are CF attributes by column.
        """
        for name, values in columns.items():
            if values.shape != self.lat.shape:
                raise ValueError(
                    f"Column {name!r} has shape {values.shape}, but the query {self.lat.shape}; "
                    "give one value per point."
                )
        attributes = attributes or {}
        if isinstance(self.form, tuple):
            shape = tuple(self.dims.values())
            return {k: v.reshape(shape) if shape else v for k, v in columns.items()}
        if isinstance(self.form, pd.DataFrame):
            table = self.form.assign(**columns)  # pyright: ignore[reportArgumentType]
            table.attrs["units"] = {
                name: attributes[name]["units"]
                for name in columns
                if "units" in attributes.get(name, {})
            }
            return table
        shape = tuple(self.dims.values())
        data = {
            name: (tuple(self.dims), values.reshape(shape), dict(attributes.get(name, {})))
            for name, values in columns.items()
        }
        base = coordinates_of(self.form, self.dims)
        return xr.Dataset(data, base.coords, base.attrs)  # dimensions in the order of the data


def coordinates_of(form: xr.Dataset | xr.DataArray, dims: Mapping[str, int]) -> xr.Dataset:
    """The coordinates of an answer with these dimensions, and where it comes from."""
    keep = {
        key: coord.variable
        for key, coord in form.coords.items()
        if set(map(str, coord.dims)) <= set(dims)
    }
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    provenance = {
        "Conventions": "CF-1.11",
        "source": f"gridtnp {__version__}",
        "history": f"{now}: predicted by gridtnp {__version__}",
    }
    return xr.Dataset(coords=keep, attrs=provenance).drop_encoding()


def grid_dims(data: xr.Dataset | xr.DataArray) -> tuple[dict[str, str], dict[str, int]]:
    """The names of the coordinates of a grid by role, and the dimensions of an answer on it.

    Dimensions are in the order of the grid's own variables; without any, time is first.
    """
    found = recognise({str(key): dict(data[key].attrs) for key in data.coords})
    require_places(found, "query", map(str, data.coords))
    axes = [data[found[role]] for role in ("time", "lat", "lon") if role in found]
    needed = {dim for axis in axes for dim in axis.dims}
    example = (
        data
        if isinstance(data, xr.DataArray)
        else next((v for v in data.data_vars.values() if needed <= set(v.dims)), None)
    )
    order = [d for axis in axes for d in axis.dims] if example is None else list(example.dims)
    return found, {str(d): int(data.sizes[d]) for d in dict.fromkeys(order) if d in needed}


def grid_time_dim(data: xr.Dataset | xr.DataArray) -> str | None:
    """The dimension of a grid along which only time varies, if there is one."""
    return time_dim_of(data, grid_dims(data)[0])


def time_dim_of(data: xr.Dataset | xr.DataArray, found: Mapping[str, str]) -> str | None:
    """The same, given the names of its coordinates by role."""
    if "time" not in found:
        return None
    dims = set(map(str, data[found["time"]].dims))
    dims -= {str(d) for role in ("lat", "lon") for d in data[found[role]].dims}
    return next(iter(dims)) if len(dims) == 1 else None


def as_dataset(form: xr.Dataset | xr.DataArray) -> xr.Dataset:
    if isinstance(form, xr.Dataset):
        return form
    return form.to_dataset(name="values" if form.name is None else form.name)


def column(variable: str, what: str | float) -> str:
    """The name of a result: `t2m_mean`, `t2m_std`, `t2m_q05` for the quantile 0.05."""
    if isinstance(what, str):
        return f"{variable}_{what}"
    if not 0 < what < 1:
        raise ValueError(f"Quantile {what} is not between 0 and 1.")
    return f"{variable}_q{f'{what:.6f}'.split('.')[1].rstrip('0').ljust(2, '0')}"


def attributes_of(variable: Variable, what: str | float) -> dict[str, Any]:
    """CF attributes of a result; a standard deviation does not keep the `standard_name`."""
    name = str(variable.attributes.get("long_name", variable.name))
    kind = what if isinstance(what, str) else f"{100 * what:g} % quantile"
    statistic = {"mean": "mean", "std": "standard deviation"}.get(kind, kind)
    found: dict[str, Any] = {"long_name": f"{name}: predicted {statistic}"}
    if what != "std" and "standard_name" in variable.attributes:
        found["standard_name"] = variable.attributes["standard_name"]
    if variable.units is not None:
        found["units"] = variable.units
    return found
