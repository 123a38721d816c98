"""Weather to experiment with: simulated, or ERA5 as it is published, and sites of stations.

ERA5 is read from netCDF files of the Climate Data Store (`t2m`, `valid_time`, `pressure_level`)
and from Zarr stores of ARCO-ERA5 and WeatherBench (`2m_temperature`, `time`, `level`); sites from
HadISD's list or station files, and from tables. Large files are read as tasks need them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from gridtnp import demo
from gridtnp.data.dataset import Dataset
from gridtnp.sources.coordinates import recognise, require_places, table_places, wrap
from gridtnp.sources.reading import open_data

EMBEDDED = "embedded"
"""The name of the data in the package."""
SHORT = {
    "2m_temperature": "t2m",
    "skin_temperature": "skt",
    "u_component_of_wind": "u",
    "v_component_of_wind": "v",
    "10m_u_component_of_wind": "u10",
    "10m_v_component_of_wind": "v10",
}
"""Names in Zarr stores, and in netCDF files."""
TRAIN, VALIDATE, GAP = 0.6, 0.8, 0.03
"""Ends of training and validation, and what is left out after each, in parts of the period."""
YEARS = ("2009", "2018", "2019")
"""First years of the paper's training, validation and test; the test is one year long."""
HADISD = re.compile(r"(\d{6}-\d{5})\s(.*?)\s*([-+]?\d+\.\d*)\s+([-+]?\d+\.\d*)(?:\s|$)")
"""A line of HadISD's list: identifier, name, latitude, longitude."""


def open_weather(data: str) -> xr.Dataset:
    """A path, glob or URL, or the data in the package; coordinates are `time`, `lat`, `lon` and
    `level`, variables have ERA5's short names.
    """
    found = demo.weather()[0] if data == EMBEDDED else open_data(data)
    if not isinstance(found, xr.Dataset):
        raise TypeError(f"{data!r} is a table; weather is on a grid: netCDF, Zarr or GRIB.")
    names = recognise({str(k): dict(found[k].attrs) for k in found.coords})
    require_places(names, data, map(str, found.coords))
    roles = {names[role]: role for role in ("time", "lat", "lon", "level") if role in names}
    if "time" not in roles.values():
        raise ValueError(f"{data!r} has no times among {sorted(map(str, found.coords))}.")
    known = {old: new for old, new in SHORT.items() if old in found}
    found = found.rename({old: new for old, new in (roles | known).items() if old != new})
    for name in ("lat", "lon", "time"):
        if found[name].ndim != 1:
            raise ValueError(f"{name!r} of {data!r} has dimensions {found[name].dims}, not one.")
    return found


def is_global(ds: xr.Dataset) -> bool:
    """Whether longitudes go all the way round."""
    lon = np.sort(wrap(ds["lon"].to_numpy().astype(np.float64)))
    gaps = np.diff(np.append(lon, lon[0] + 360.0))
    return bool(gaps.max() < 2 * np.median(gaps))


def crop(ds: xr.Dataset, lat: tuple[float, float], lon: tuple[float, float]) -> xr.Dataset:
    """The part within a box; its northern and eastern edges are left out."""
    rows = (ds["lat"].to_numpy() >= lat[0]) & (ds["lat"].to_numpy() < lat[1])
    east = wrap(ds["lon"].to_numpy().astype(np.float64), lon[0])
    columns = east < lon[1]
    if not (rows.any() and columns.any()):
        raise ValueError(f"No grid point is within latitudes {lat} and longitudes {lon}.")
    return ds.isel(lat=np.flatnonzero(rows), lon=np.flatnonzero(columns))


def coarsened(ds: xr.Dataset, factor: int) -> xr.Dataset:
    """Every `factor`-th row and column; 721 × 1440 points become 180 × 360 if it is 4."""
    kept = {axis: slice(0, ds.sizes[axis] // factor * factor, factor) for axis in ("lat", "lon")}
    return ds.isel(kept)


def spacing(ds: xr.Dataset) -> float:
    """Distance of rows in degrees."""
    return float(np.median(np.abs(np.diff(ds["lat"].to_numpy().astype(np.float64)))))


def box_of(ds: xr.Dataset, west: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The south-western and the north-eastern corner (lat, lon), half a grid cell outside."""
    lat, lon = (ds[name].to_numpy().astype(np.float64) for name in ("lat", "lon"))
    lon, half = wrap(lon, west), spacing(ds) / 2
    low, high = (float(lat.min()), float(lon.min())), (float(lat.max()), float(lon.max()))
    return (max(low[0] - half, -90.0), low[1] - half), (min(high[0] + half, 90.0), high[1] + half)


def hours_between(ds: xr.Dataset) -> float:
    """The usual time between consecutive fields."""
    return float(np.median(np.diff(ds["time"].to_numpy())) / np.timedelta64(1, "h"))


def read_sites(path: str | None) -> pd.DataFrame:
    """Sites of stations: those in the package, or of HadISD (its list, or a folder of its files),
    or any table with latitudes and longitudes.
    """
    if path is None:
        return demo.weather()[1]
    folder, files = Path(path), sorted(Path(path).glob("*.nc"))
    if folder.is_dir() and files:
        return pd.DataFrame([_site(file) for file in files])
    if folder.suffix == ".txt":
        lines = folder.read_text(encoding="utf-8", errors="replace").splitlines()
        found = [match for line in lines if (match := HADISD.match(line.strip()))]
        if found:
            rows = [(m[1], float(m[3]), float(m[4])) for m in found]
            return pd.DataFrame(rows, columns=["station", "lat", "lon"])
    table = open_data(path)
    if not isinstance(table, pd.DataFrame):
        raise TypeError(f"{path!r} is not a table with one row per station.")
    return table


def _site(path: Path) -> Mapping[str, object]:
    """The site in a station file of HadISD."""
    with xr.open_dataset(path, decode_times=False) as ds:
        lat, lon = (float(ds[name].to_numpy().ravel()[0]) for name in ("latitude", "longitude"))
    return {"station": path.stem, "lat": lat, "lon": lon}


def snapped(sites: pd.DataFrame, ds: xr.Dataset, *, distinct: bool) -> pd.DataFrame:
    """Sites moved to the nearest grid point, as the paper does; those beyond the grid are dropped.

    If they are to be `distinct`, the first of each grid point is kept.
    """
    found, lat, lon = table_places(sites, "stations")
    rows, columns = ds["lat"].to_numpy(), wrap(ds["lon"].to_numpy().astype(np.float64))
    row = np.abs(lat[:, None] - rows).argmin(1)
    away = np.abs(wrap(wrap(lon)[:, None] - columns))
    column = away.argmin(1)
    reach = spacing(ds)
    near = (np.abs(lat - rows[row]) <= reach) & (away.min(1) <= reach)
    names = sites[found["station"]].astype(str) if "station" in found else sites.index.astype(str)
    table = pd.DataFrame({"station": names, "lat": rows[row], "lon": columns[column]})
    kept = near & ~table.duplicated(["lat", "lon"]).to_numpy() if distinct else near
    table = pd.DataFrame(table.loc[kept])
    if len(table) < 2:
        raise ValueError(
            f"Only {len(table)} stations are within the grid; give others: --stations."
        )
    return table.reset_index(drop=True)


def within_years(ds: xr.Dataset) -> xr.Dataset:
    """The years of the paper."""
    return ds.sel(time=slice(YEARS[0], YEARS[2]))


def split(
    data: Dataset, *, by_years: bool, held_out: float = 0.0
) -> tuple[Dataset, Dataset, Dataset]:
    """Training, validation and test: the paper's years, or parts of the period with gaps.

    Of the `held_out` stations, half are targets in validation and half in the test, beside all
    others.
    """
    times = data.times()
    assert times is not None
    if by_years:
        return data.split(time=YEARS[1:])
    span = times[-1] - times[0]
    borders = [str(times[0] + np.timedelta64(part * span, "ms")) for part in (TRAIN, VALIDATE)]
    hours = int(GAP * span / np.timedelta64(1, "h"))
    parts = data.split(time=borders, gap=f"{hours}h", hold_out_stations=held_out or None)
    known = parts[0].target_places
    for part in parts[1:]:
        if known is not None and part.target_places is not None:
            part.target_places = part.target_places | known
    return parts
