"""Answers as CoverageJSON, netCDF or CSV, with all digits of the predictions."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from covjson_pydantic.coverage import Coverage
from covjson_pydantic.domain import Domain, ValuesAxis
from covjson_pydantic.ndarray import NdArrayFloat
from covjson_pydantic.observed_property import ObservedProperty
from covjson_pydantic.parameter import Parameter, Parameters
from covjson_pydantic.reference_system import ReferenceSystem, ReferenceSystemConnectionObject
from covjson_pydantic.unit import Unit

from gridtnp.inference.writers import write
from gridtnp.server.queries import CRS84, Format

MEDIA = {
    "CoverageJSON": "application/prs.coverage+json",
    "netCDF": "application/x-netcdf",
    "CSV": "text/csv; charset=utf-8",
}
WGS84 = {
    "grid_mapping_name": "latitude_longitude",
    "longitude_of_prime_meridian": 0.0,
    "semi_major_axis": 6378137.0,
    "inverse_flattening": 298.257223563,
    "crs_wkt": 'GEOGCRS["WGS 84",DATUM["World Geodetic System 1984",'
    'ELLIPSOID["WGS 84",6378137,298.257223563]],CS[ellipsoidal,2],AXIS["latitude",north],'
    'AXIS["longitude",east],ANGLEUNIT["degree",0.0174532925199433],ID["EPSG",4326]]',
}
ENDINGS = {"CoverageJSON": ".covjson", "netCDF": ".nc", "CSV": ".csv"}


def encode(answer: xr.Dataset, f: Format) -> bytes:
    """An answer in a format."""
    if f == "CoverageJSON":
        return coverage(answer).model_dump_json(exclude_none=True).encode()
    if f == "CSV":
        return to_csv(answer).encode()
    with tempfile.TemporaryDirectory(prefix="gridtnp-") as folder:
        path = write(answer, Path(folder) / "answer.nc")
        georeference(path)
        return path.read_bytes()


def georeference(path: Path) -> None:
    """Name the reference system of a grid in a netCDF file, without which QGIS would ask for it."""
    import netCDF4
    from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK  # the library is not thread-safe

    with NETCDF4_PYTHON_LOCK, netCDF4.Dataset(path, "a") as file:
        if not {"lat", "lon"} <= set(file.dimensions):
            return
        file.createVariable("crs", "i4").setncatts(WGS84)
        for values in file.variables.values():
            if {"lat", "lon"} <= set(values.dimensions):
                values.setncattr("grid_mapping", "crs")


def to_csv(answer: xr.Dataset) -> str:
    table = answer.to_dataframe() if answer.sizes else pd.DataFrame([_row(answer)])
    text: str = table.reset_index(drop=not answer.sizes).to_csv(
        index=False, date_format="%Y-%m-%dT%H:%M:%SZ", lineterminator="\n"
    )
    return text


def _row(answer: xr.Dataset) -> dict[str, Any]:
    return {str(name): value.values[()] for name, value in answer.variables.items()}


# ---- CoverageJSON --------------------------------------------------------------------------------


def coverage(answer: xr.Dataset) -> Coverage:
    """A grid, a point or several with or without times, or a trajectory."""
    times = answer["time"] if "time" in answer.coords else None
    t = None if times is None else time_texts(times.to_numpy())
    lat, lon = answer["lat"].to_numpy(), answer["lon"].to_numpy()
    series = times is not None and times.dims == ("time",)
    axes: dict[str, Any] = {}
    if "lat" in answer.sizes:
        kind = "Grid"
        axes = {"x": _axis(lon), "y": _axis(lat)}
    elif "point" not in answer.sizes:
        kind = "PointSeries" if series else "Point"
        axes = {"x": _axis(lon), "y": _axis(lat)}
    elif times is not None and times.dims == ("point",):
        kind, series = "Trajectory", False
        assert t is not None
        axes["composite"] = _tuples("txy", t, lon.tolist(), lat.tolist())
        t = None
    else:
        kind = "MultiPointSeries" if series else "MultiPoint"
        axes["composite"] = _tuples("xy", lon.tolist(), lat.tolist())
    if t is not None:
        axes["t"] = ValuesAxis[str](values=t)
    referencing = [_places()]
    if times is not None:
        referencing.append(_times())
    names = {"time": "t", "lat": "y", "lon": "x", "point": "composite"}
    columns = [str(name) for name in answer.data_vars]
    return Coverage(
        domain=Domain.model_validate(
            {
                "domainType": kind,
                "axes": {key: axis.model_dump(exclude_none=True) for key, axis in axes.items()},
                "referencing": [r.model_dump(exclude_none=True) for r in referencing],
            }
        ),
        parameters=Parameters({name: parameter(name, answer[name].attrs) for name in columns}),
        ranges={name: _range(answer[name], names) for name in columns},
    )


def _range(values: xr.DataArray, names: dict[str, str]) -> NdArrayFloat:
    flat = values.to_numpy().astype(np.float64).ravel()
    missing = np.isnan(flat)
    numbers: list[float | None] = [*flat.tolist()]
    for i in np.flatnonzero(missing):
        numbers[i] = None
    return NdArrayFloat(
        axisNames=[names[str(dim)] for dim in values.dims],
        shape=list(values.shape),
        values=numbers,
    )


def parameter(name: str, about: dict[str, Any]) -> Parameter:
    label = str(about.get("long_name", name))
    unit = str(about.get("units") or "").strip()
    return Parameter(
        id=name,
        label={"en": label},
        observedProperty=ObservedProperty(label={"en": label}),
        unit=Unit(label={"en": unit}, symbol=unit) if unit else None,
    )


def time_texts(times: np.ndarray) -> list[str]:
    """Times as ISO 8601, in UTC."""
    whole = np.atleast_1d(times).astype("datetime64[ms]")
    seconds = bool((whole == whole.astype("datetime64[s]")).all())
    return [f"{t}Z" for t in np.datetime_as_string(whole, unit="s" if seconds else "ms").tolist()]


def _axis(values: np.ndarray) -> ValuesAxis[float]:
    return ValuesAxis[float](values=np.atleast_1d(values).astype(np.float64).tolist())


def _tuples(names: str, *columns: list[Any]) -> Any:
    rows = list(zip(*columns, strict=True))
    return ValuesAxis[tuple](dataType="tuple", coordinates=list(names), values=rows)


def _places() -> ReferenceSystemConnectionObject:
    system = ReferenceSystem(type="GeographicCRS", id=CRS84)
    return ReferenceSystemConnectionObject(coordinates=["x", "y"], system=system)


def _times() -> ReferenceSystemConnectionObject:
    system = ReferenceSystem(type="TemporalRS", calendar="Gregorian")
    return ReferenceSystemConnectionObject(coordinates=["t"], system=system)
