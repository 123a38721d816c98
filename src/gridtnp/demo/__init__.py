"""Demo data: stations in Colorado, simulated global weather, airport stations and coastlines.

The files are small and part of the package, so that examples and tests run offline.
docs/demo-data.md documents where they come from; scripts/ has the programs that made them. pandas
and xarray are imported on first use, so that `import gridtnp` stays fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # full names, so that tools can resolve the annotations
    import pandas
    import xarray

DATA = Path(__file__).parent
READERS = {"h5netcdf": ("h5netcdf", "h5py"), "netcdf4": ("netCDF4",)}  # engine: required packages


def load() -> tuple[pandas.DataFrame, xarray.Dataset]:
    """Monthly weather at 376 stations in and around Colorado, 1895 to 1997, and the terrain.

    The table has a row for every month and station with at least one value: `time` (the first day
    of the month), `lat`, `lon`, `elevation`, `station`, and the variables `tmax` and `tmin`
    (monthly means of the daily extremes) and `precipitation` (monthly total), NaN where missing.
    Units are in `table.attrs["units"]`. The dataset has `elevation` on a grid of about 4 km.
    """
    import pandas as pd

    data = _dataset("colorado.nc")
    values = {name: data[name].to_numpy() for name in ("tmax", "tmin", "precipitation")}
    month, station = np.nonzero(~np.isnan(list(values.values())).all(0))
    places = {"lat": "station_lat", "lon": "station_lon", "elevation": "station_elevation"}
    table = pd.DataFrame(
        {"time": data["time"].to_numpy()[month]}
        | {column: data[name].to_numpy()[station] for column, name in places.items()}
        | {"station": data["station"].to_numpy().astype(str)[station]}
        | {name: value[month, station] for name, value in values.items()}
    )
    units = {name: data[name].attrs["units"] for name in values}
    units |= {column: data[name].attrs["units"] for column, name in places.items()}
    table.attrs = {**data.attrs, "units": units}
    return table, data[["elevation"]]


def weather() -> tuple[xarray.Dataset, pandas.DataFrame]:
    """Three weeks of simulated global weather every six hours, and the sites of real stations.

    The dataset has `t2m` and `skt` (near-surface air and surface temperature), `u` and `v` (wind)
    at three levels, and the static fields `elevation` and `land`, on a grid of 48 by 96 points. The
    table has `station` (ICAO code), `lat`, `lon` and `elevation` (m, NaN where unknown).
    """
    import pandas as pd

    data = _dataset("weather.nc")
    with _reading("stations.csv.gz") as path:
        sites = pd.read_csv(path, dtype={"station": str})
    sites.attrs = {"units": {"lat": "degrees_north", "lon": "degrees_east", "elevation": "m"}}
    return data, sites


def coastline() -> list[np.ndarray]:
    """Coastlines at 1:50 million, as closed rings of (longitude, latitude) rows.

    Longitudes are from -180 to 180. Land is cut at the date line, and Antarctica is closed along
    the edge of the map, so that a few edges are not coast.
    """
    with _reading("coastline.npz") as path, path.open("rb") as stream, np.load(stream) as file:
        points = np.cumsum(file["points"], axis=1).T / 100.0
        return np.split(points.astype(np.float32), file["starts"][1:])


def _dataset(name: str) -> xarray.Dataset:
    import xarray as xr

    engine = next((key for key, needed in READERS.items() if all(map(find_spec, needed))), None)
    if engine is None:
        raise ModuleNotFoundError(
            f"Reading {name} needs h5netcdf and h5py, or netCDF4, which are not installed: "
            "pip install 'gridtnp[io]'."
        )

    with _reading(name) as path, xr.open_dataset(path, engine=engine) as dataset:
        data = dataset.load()
    for variable in data.variables.values():
        if "scale_factor" in variable.encoding:  # unpacked to double precision
            variable.data = variable.to_numpy().astype(np.float32)
    return data


@contextmanager
def _reading(name: str) -> Iterator[Path]:
    """The path of a file of the package; errors in reading it say how to restore it."""
    path = DATA / name
    restore = "reinstall gridtnp, or make the file as in docs/demo-data.md."
    if not path.is_file():
        raise FileNotFoundError(f"No such file: {str(path)!r}; {restore}")
    try:
        yield path
    except Exception as error:  # every reader raises its own errors
        raise OSError(f"Cannot read {str(path)!r} ({error}); {restore}") from error
