"""Projected coordinates to latitude and longitude, by the user's `crs` or a CF grid mapping.

This needs pyproj. Latitudes and longitudes are those of WGS 84.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gridtnp.errors import require_installed
from gridtnp.sources.coordinates import DEGREES, RADIANS, recognise, require_places, units_text

if TYPE_CHECKING:
    from pyproj import CRS

METRES = {
    **dict.fromkeys(("m", "metre", "metres", "meter", "meters"), 1.0),
    **dict.fromkeys(("km", "kilometre", "kilometres", "kilometer", "kilometers"), 1000.0),
}


def projected_columns(found: Mapping[str, str], source: str) -> tuple[str, str]:
    """The columns of x and y among recognised ones, whatever they are called."""
    if "x" in found and "y" in found:
        return found["x"], found["y"]
    require_places(found, source, found.values())
    return found["lon"], found["lat"]


def unproject(
    source: str,
    crs: str | CRS,
    x: np.ndarray,
    y: np.ndarray,
    columns: tuple[str, str],
    units: tuple[str, str] = ("", ""),
) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes of projected coordinates; NaN where the projection has none."""
    pyproj = _pyproj(source)
    try:
        system = pyproj.CRS.from_user_input(crs)
    except pyproj.exceptions.CRSError as error:
        raise ValueError(
            f"crs={crs!r} of source {source!r} is unknown ({_reason(error)}); give an EPSG code "
            "such as 'EPSG:25832', WKT or a PROJ string."
        ) from None
    scales = [
        _scale(source, column, unit, system) for column, unit in zip(columns, units, strict=True)
    ]
    transformer = pyproj.Transformer.from_crs(system, "EPSG:4326", always_xy=True)
    lon, lat = transformer.transform(x * scales[0], y * scales[1])
    outside = ~(np.isfinite(lat) & np.isfinite(lon))
    return np.where(outside, np.nan, lat), np.where(outside, np.nan, lon)


def add_latlon(source: str, ds: xr.Dataset, crs: str | None) -> xr.Dataset:
    """The dataset with latitudes and longitudes instead of its projected coordinates, if any.

    Without `crs`, those of a CF grid mapping are converted if there are no others.
    """
    found = recognise({str(key): dict(ds[key].attrs) for key in ds.variables})
    system: str | CRS | None = crs
    if crs is None:
        has_latlon = "lat" in found and "lon" in found
        projected = found.get("x"), found.get("y")
        if None in projected or (has_latlon and (found["lon"], found["lat"]) != projected):
            return ds
        system = _grid_mapping(source, ds)
        if system is None:
            return ds
    assert system is not None
    columns = projected_columns(found, source)
    x, y = ds[columns[0]], ds[columns[1]]
    if x.dims == y.dims:
        dims, (column, row) = y.dims, (x.values, y.values)
    else:
        dims = (*y.dims, *x.dims)
        row, column = np.meshgrid(y.values, x.values, indexing="ij")
    units = units_text(x.attrs), units_text(y.attrs)
    lat, lon = unproject(
        source, system, column.astype(np.float64), row.astype(np.float64), columns, units
    )
    others = [found[role] for role in ("lat", "lon") if role in found]
    return ds.drop_vars({*columns, *others, "lat", "lon"}, errors="ignore").assign_coords(
        lat=(dims, lat), lon=(dims, lon)
    )


def _grid_mapping(source: str, ds: xr.Dataset) -> CRS | None:
    """The projection that the dataset declares; None if it has none or is geographic."""
    named = {
        str(key): dict(ds[key].attrs)
        for key in ds.variables
        if {"grid_mapping_name", "crs_wkt"} & set(ds[key].attrs)
    }
    if len(named) > 1:
        raise ValueError(
            f"Source {source!r} has several grid mappings, {sorted(named)}; say which projection "
            f"its coordinates are in: crs={{{source!r}: 'EPSG:25832'}}, for example."
        )
    for key, attributes in named.items():
        if attributes.get("grid_mapping_name") == "latitude_longitude":
            return None
        pyproj = _pyproj(source)
        try:
            system = pyproj.CRS.from_cf(attributes)
        except (pyproj.exceptions.CRSError, KeyError) as error:
            raise ValueError(
                f"Grid mapping {key!r} of source {source!r} is not a projection "
                f"({_reason(error)}); give it as crs={{{source!r}: 'EPSG:25832'}}, for example."
            ) from None
        return None if system.is_geographic and not system.is_derived else system
    return None


def _scale(source: str, column: str, units: str, system: CRS) -> float:
    """The factor from declared units to those of the projection."""
    axis = system.axis_info[0]
    if not units or (system.is_geographic and DEGREES.fullmatch(units)):
        return 1.0
    if system.is_geographic and units.lower() in RADIANS:
        return float(np.rad2deg(1.0))
    if not system.is_geographic and units.lower() in METRES:
        return METRES[units.lower()] / axis.unit_conversion_factor
    raise ValueError(
        f"Coordinate {column!r} of source {source!r} is in {units!r}, but its projection is in "
        f"{axis.unit_name!r}; convert it."
    )


def _pyproj(source: str) -> Any:
    """Import pyproj with its own PROJ, even if another one was loaded before.

    The GRIB reader eccodes loads one for all, with which pyproj would crash.
    """
    flags = sys.getdlopenflags() if hasattr(os, "RTLD_DEEPBIND") else None
    try:
        if flags is not None:
            sys.setdlopenflags(os.RTLD_NOW | os.RTLD_DEEPBIND)
        return require_installed("pyproj", "geo", f"The projection of source {source!r}")
    finally:
        if flags is not None:
            sys.setdlopenflags(flags)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
