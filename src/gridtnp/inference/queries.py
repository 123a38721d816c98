"""Answers in the form of the question: xarray for xarray, a table for a table, arrays for arrays.

Coordinates and indices are the query's own, bit for bit. Results are columns `<variable>_mean`,
`<variable>_std`, `<variable>_q05`, … with CF attributes, and can be written to netCDF, Zarr,
Parquet or CSV.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float, Shaped

from gridtnp import __version__
from gridtnp.data.coordinates import NAMES, possible, recognise, require_places
from gridtnp.data.reading import NEEDS, kind_of, require_installed
from gridtnp.data.sources import Variable
from gridtnp.data.times import to_times

Places = pd.DataFrame | xr.Dataset | xr.DataArray | tuple[Any, Any]
Answer = pd.DataFrame | xr.Dataset | dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Query:
    """The points that something asks for, one after the other, and how to give them back.

    `time` is None where the question has none.
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
                    f"Latitudes and longitudes must be pairs, got {len(lat)} and {len(lon)}; for a "
                    "grid use gt.latlon_grid."
                )
            return cls._checked(lat, lon, None, places, {})
        if isinstance(places, pd.DataFrame):
            return cls._of_table(places)
        if not isinstance(places, xr.Dataset | xr.DataArray):
            raise ValueError(
                "Places to predict at must be an xarray grid, a pandas table or a tuple of "
                f"latitudes and longitudes, got {type(places).__name__}."
            )
        return cls._of_xarray(places)

    @classmethod
    def _of_table(cls, table: pd.DataFrame) -> Query:
        flat = table.reset_index()
        found = recognise({str(column): {} for column in flat.columns})
        require_places(found, "query", map(str, flat.columns))
        lat, lon = (flat[found[role]].to_numpy(np.float64) for role in ("lat", "lon"))
        time = to_times(flat[found["time"]], found["time"]) if "time" in found else None
        return cls._checked(lat, lon, time, table, {})

    @classmethod
    def _of_xarray(cls, data: xr.Dataset | xr.DataArray) -> Query:
        found = recognise({str(key): dict(data[key].attrs) for key in data.coords})
        require_places(found, "query", map(str, data.coords))
        lat, lon = data[found["lat"]], data[found["lon"]]
        axes = [lat, lon] + ([data[found["time"]]] if "time" in found else [])
        needed = {dim for axis in axes for dim in axis.dims}
        # the order of the query's own values where it has some, time first where it has none
        example = (
            data
            if isinstance(data, xr.DataArray)
            else next((v for v in data.data_vars.values() if needed <= set(v.dims)), None)
        )
        order = (
            list(example.dims)
            if example is not None
            else [dim for axis in (axes[2:] + axes[:2]) for dim in axis.dims]
        )
        dims = {str(d): int(data.sizes[d]) for d in dict.fromkeys(order) if d in needed}
        template = xr.DataArray(np.zeros(tuple(dims.values()), np.int8), dims=tuple(dims))
        full = [
            axis.variable.set_dims(dims).transpose(*dims).values.ravel()
            if dims
            else np.atleast_1d(axis.values)
            for axis in axes
        ]
        assert all(len(values) == template.size for values in full)
        time = to_times(full[2], found["time"]) if len(full) == 3 else None
        y, x = (values.astype(np.float64) for values in full[:2])
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
                "Places to predict at must have latitudes up to ±90 and longitudes up to ±360, but "
                f"point {bad[0]} is at {lat[bad[0]]:g}, {lon[bad[0]]:g}."
            )
        return cls(lat, lon, time, form, dims)

    def known(self, name: str) -> Float[np.ndarray, " n"] | None:
        """What the question itself tells about its points under a name; heights have several."""
        if isinstance(self.form, tuple):
            return None
        names = (name, *(NAMES["elevation"] if name.lower() in NAMES["elevation"] else ()))
        if isinstance(self.form, pd.DataFrame):
            table = self.form.reset_index()
            found = [c for n in names for c in table.columns if str(c).lower() == n.lower()]
            return table[found[0]].to_numpy(np.float64) if found else None
        form = _as_dataset(self.form)
        found = [k for n in names for k in form.variables if str(k).lower() == n.lower()]
        fits = [k for k in found if set(map(str, form[k].dims)) <= set(self.dims)]
        if not fits:
            return None
        values = form[fits[0]].variable.set_dims(self.dims).transpose(*self.dims)
        return np.atleast_1d(np.asarray(values.values, np.float64)).ravel()

    def at_times(self, times: Shaped[np.ndarray, " t"]) -> Query:
        """The same places at each of some times, time by time."""
        if self.time is not None:
            raise ValueError(
                "Places with times of their own must not be asked for at others; drop their times "
                "or leave out times=."
            )
        number, points = len(times), len(self.lat)
        lat, lon = np.tile(self.lat, number), np.tile(self.lon, number)
        when = np.repeat(times, points)
        if isinstance(self.form, tuple):
            return Query(lat, lon, when, self.form, {"time": number, "point": points})
        if isinstance(self.form, pd.DataFrame):
            rows = self.form.iloc[np.tile(np.arange(points), number)]
            return Query(lat, lon, when, rows.assign(time=when), {})
        dims = {"time": number, **self.dims}
        form = _as_dataset(self.form).assign_coords(time=("time", times))
        return Query(lat, lon, when, form, dims)

    @property
    def time_dim(self) -> str | None:
        """The dimension of a grid along which there is nothing but time."""
        if isinstance(self.form, tuple | pd.DataFrame) or self.time is None:
            return None
        found = recognise({str(key): dict(self.form[key].attrs) for key in self.form.coords})
        dims = set(map(str, self.form[found["time"]].dims))
        dims -= {str(d) for role in ("lat", "lon") for d in self.form[found[role]].dims}
        return next(iter(dims)) if len(dims) == 1 else None

    def by_time(self) -> Iterator[Query]:
        """Time by time where time is a dimension of its own, else all at once."""
        dim = self.time_dim
        if dim is None or isinstance(self.form, tuple | pd.DataFrame):
            yield self
            return
        for step in range(self.dims[dim]):
            yield Query.of(self.form.isel({dim: [step]}))

    def answer(
        self,
        columns: Mapping[str, np.ndarray],
        attributes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Answer:
        """Results by column, one value per point, in the form of the question."""
        for name, values in columns.items():
            if values.shape != self.lat.shape:
                raise ValueError(
                    f"Column {name!r} must have one value per point, ({len(self.lat)},), got "
                    f"{values.shape}."
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
        keep = {
            key: coord.variable
            for key, coord in self.form.coords.items()
            if set(map(str, coord.dims)) <= set(self.dims)
        }
        shape = tuple(self.dims.values())
        data = {
            name: (tuple(self.dims), values.reshape(shape), dict(attributes.get(name, {})))
            for name, values in columns.items()
        }
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        about = {
            "Conventions": "CF-1.11",
            "source": f"gridtnp {__version__}",
            "history": f"{now}: predicted by gridtnp {__version__}",
        }
        return xr.Dataset(data, keep, about).drop_encoding()


def _as_dataset(form: xr.Dataset | xr.DataArray) -> xr.Dataset:
    if isinstance(form, xr.Dataset):
        return form
    return form.to_dataset(name="values" if form.name is None else form.name)


def column(variable: str, what: str | float) -> str:
    """The name of a result: `t2m_mean`, `t2m_std`, `t2m_q05` for the quantile 0.05."""
    if isinstance(what, str):
        return f"{variable}_{what}"
    if not 0 < what < 1:
        raise ValueError(f"A quantile must be between 0 and 1, got {what}.")
    return f"{variable}_q{f'{what:.6f}'.split('.')[1].rstrip('0').ljust(2, '0')}"


def attributes_of(variable: Variable, what: str | float) -> dict[str, Any]:
    """CF attributes of a result; a spread does not keep the variable's standard name."""
    called = str(variable.attributes.get("long_name", variable.name))
    kind = what if isinstance(what, str) else f"{100 * what:g} % quantile"
    words = {"mean": "mean", "std": "standard deviation"}.get(kind, kind)
    made: dict[str, Any] = {"long_name": f"{called}: predicted {words}"}
    if what != "std" and "standard_name" in variable.attributes:
        made["standard_name"] = variable.attributes["standard_name"]
    if variable.units is not None:
        made["units"] = variable.units
    return made


def write(
    answer: pd.DataFrame | xr.Dataset,
    path: str | os.PathLike[str],
    *,
    append: str | None = None,
    region: bool = False,
    overwrite: bool = False,
) -> Path:
    """Into `.nc`, `.zarr`, `.parquet` or `.csv`, whole or not at all.

    `append` names the dimension along which a Zarr store grows; the first piece makes the store.
    With `region`, the answer replaces a part of a store that is there, found by its coordinates.
    """
    place, kind = Path(path), kind_of(os.fspath(path))
    if not place.parent.is_dir():
        raise FileNotFoundError(
            f"The folder to write to must exist, but {str(place.parent)!r} does not."
        )
    if (append is not None or region) and kind != "zarr":
        raise ValueError(f"Only a Zarr store can be appended to, got {str(place)!r}.")
    if region and (append is not None or not place.exists()):
        raise ValueError(
            f"A region is a part of a store that is there, but {str(place)!r} "
            + ("is to be appended to." if append is not None else "does not exist; write it first.")
        )
    if kind == "grib":
        raise ValueError(f"GRIB cannot be written, got {str(place)!r}; use .nc or .zarr.")
    if place.exists() and not overwrite and append is None and not region:
        raise FileExistsError(f"{str(place)!r} must not be there yet; overwrite=True replaces it.")
    if kind in NEEDS:
        require_installed(*NEEDS[kind], f"Writing {str(place)!r}")
    if kind in ("csv", "parquet"):
        table = answer.to_dataframe().reset_index() if isinstance(answer, xr.Dataset) else answer
        part = place.with_name(f".{place.name}.part")
        if kind == "csv":
            table.to_csv(part, index=isinstance(answer, pd.DataFrame), compression="infer")
        else:
            table.to_parquet(part)
        os.replace(part, place)
        return place
    if isinstance(answer, pd.DataFrame):
        raise ValueError(f"A table is written to .parquet or .csv, got {str(place)!r}.")
    if kind == "zarr" and region:
        try:
            answer.to_zarr(place, region="auto", consolidated=True)
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"A region must have consecutive coordinates of the store {str(place)!r}, but this "
                f"one does not fit: {error}"
            ) from error
        return place
    if kind == "zarr":
        if append is not None and place.exists():
            answer.to_zarr(place, append_dim=append, consolidated=True)
        else:
            # the second format is the one that everything reads
            mode = "w" if overwrite else "w-"
            answer.to_zarr(place, mode=mode, zarr_format=2, consolidated=True)
        return place
    part = place.with_name(f".{place.name}.part")
    answer.to_netcdf(part, engine="netcdf4")
    os.replace(part, place)
    return place
