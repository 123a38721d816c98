"""Locations to observe or predict at: fields sampled at stations, latitude-longitude grids."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from gridtnp.sources.coordinates import (
    possible,
    recognise,
    require_places,
    table_places,
    to_degrees,
    wrap,
)
from gridtnp.sources.reading import open_data, require_installed

Stations = pd.DataFrame | str | os.PathLike[str]

LATITUDE = {"standard_name": "latitude", "units": "degrees_north"}
LONGITUDE = {"standard_name": "longitude", "units": "degrees_east"}


def observe(
    field: xr.Dataset | xr.DataArray, stations: Stations, *, memory: int = 2**30
) -> xr.Dataset:
    """Sample a gridded field at the grid point nearest to each station, as the paper does ERA5.

    `stations` has latitudes and longitudes, and optionally names and elevations. A field larger
    than `memory` bytes is read lazily.
    """
    ds = field.to_dataset(name=field.name or "field") if isinstance(field, xr.DataArray) else field
    table = stations if isinstance(stations, pd.DataFrame) else open_data(stations)
    if not isinstance(table, pd.DataFrame):
        raise TypeError(f"stations={stations!r} is not a table with one row per station.")
    found, lat, lon = table_places(table, "stations")
    bad = np.flatnonzero(~possible(lat, lon))
    if len(bad):
        raise ValueError(
            f"Row {bad[0]} of the stations has latitude {lat[bad[0]]:g} and longitude "
            f"{lon[bad[0]]:g}; they must be within ±90 and ±360."
        )
    (y, x), (grid_lat, grid_lon) = grid_axes(ds)
    rows = _nearest(grid_lat, lat)
    offset = wrap(grid_lon.astype(np.float64)[None] - lon[:, None])
    cols = np.abs(offset).argmin(1)
    # reading single points from a file is slow: whole fields are read and points taken from them
    if ds.nbytes <= memory:
        ds = ds.compute()
    else:
        require_installed("dask", "io", "Observing a field larger than memory")
        ds = ds.chunk({dim: -1 if dim in (y, x) else "auto" for dim in ds.dims})
    nearest = {y: xr.DataArray(rows, dims="station"), x: xr.DataArray(cols, dims="station")}
    sampled = ds.isel(nearest)
    names = np.arange(len(lat)).astype(str)
    if "station" in found:
        names = table[found["station"]].astype(str).to_numpy(object)
    coords = {"lat": ("station", lat), "lon": ("station", lon), "station": ("station", names)}
    if "elevation" in found:
        coords["elevation"] = ("station", table[found["elevation"]].to_numpy(np.float64))
    return sampled.drop_vars([y, x]).assign_coords(coords)


def latlon_grid(
    like: xr.Dataset | xr.DataArray | None = None,
    *,
    factor: int = 1,
    lat: tuple[float, float] | None = None,
    lon: tuple[float, float] | None = None,
    step: float | None = None,
) -> xr.Dataset:
    """A latitude-longitude grid to predict on.

    It refines the grid of `like` by `factor`, keeping its points, or covers the ranges `lat` and
    `lon` with a spacing of `step` degrees, from west to east also across the seam.
    """
    if like is not None:
        ds = like.to_dataset(name="like") if isinstance(like, xr.DataArray) else like
        if factor < 1:
            raise ValueError(f"factor={factor}: must be at least 1.")
        _, (grid_lat, grid_lon) = grid_axes(ds)
        rows, cols = _refined(grid_lat, factor, 0.0), _refined(grid_lon, factor, 360.0)
    elif lat is not None and lon is not None and step is not None and step > 0:
        south, north = sorted(lat)
        west, east = lon
        if east < west:  # across the date line, or across Greenwich
            west -= 360.0 * (west > 180.0)
            east = west + (east - west) % 360.0
        rows = np.arange(south, north + step / 2, step)
        cols = np.arange(west, east + step / 2, step)
        cols = cols[cols < west + 360.0 - step / 2]
    else:
        raise ValueError(
            "The grid is not specified; refine another, latlon_grid(ds, factor=4), or give "
            "lat=(low, high), lon=(low, high) and a positive step."
        )
    return grid_of(rows, cols)


def grid_of(lat: Float[np.ndarray, " n"], lon: Float[np.ndarray, " m"]) -> xr.Dataset:
    """A grid of latitudes and longitudes, with CF attributes."""
    return xr.Dataset(coords={"lat": ("lat", lat, LATITUDE), "lon": ("lon", lon, LONGITUDE)})


def grid_axes(ds: xr.Dataset) -> tuple[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """The names of the axes of latitude and longitude, and their values in degrees."""
    found = recognise({str(key): dict(ds[key].attrs) for key in ds.variables})
    require_places(found, "grid", map(str, ds.variables))
    y, x = found["lat"], found["lon"]
    if ds[y].dims != (y,) or ds[x].dims != (x,):
        raise ValueError(
            f"Not a latitude-longitude grid: {y!r} has dimensions {ds[y].dims} and {x!r} has "
            f"{ds[x].dims}, but each must be an axis."
        )
    lat = to_degrees(ds[y].values, "lat", y, ds[y].attrs, "grid")
    return (y, x), (lat, to_degrees(ds[x].values, "lon", x, ds[x].attrs, "grid"))


def _nearest(axis: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.abs(axis.astype(np.float64)[None] - x[:, None]).argmin(1)


def _refined(axis: np.ndarray, factor: int, period: float) -> np.ndarray:
    """The axis with `factor - 1` new points in every interval, also in the one across the seam."""
    values = axis.astype(np.float64)
    if len(values) < 2 or factor == 1:
        return axis
    step = values[-1] - values[-2]
    closes = period and abs(abs(values[-1] + step - values[0]) - period) < abs(step) / 100
    ends = np.append(values, values[0] + np.sign(step) * period) if closes else values
    share = np.arange(factor) / factor
    fine = (ends[:-1, None] + np.diff(ends)[:, None] * share).ravel()
    return fine if closes else np.append(fine, ends[-1])
