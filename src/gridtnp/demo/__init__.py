"""Data in the box: stations of Colorado, simulated global weather, and coastlines.

Small files inside the package, so that examples and tests run offline. docs/demo-data.md tells
where each comes from, and a script in scripts/ makes each of them again. pandas and xarray are
imported when data is asked for, so that `import gridtnp` stays light.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # full names, so that whoever reads the annotations can import them
    import pandas
    import xarray

DATA = Path(__file__).parent
READERS = {"h5netcdf": ("h5netcdf", "h5py"), "netcdf4": ("netCDF4",)}  # engine: what it needs


def load() -> tuple[pandas.DataFrame, xarray.Dataset]:
    """Monthly weather at 376 stations in and around Colorado, 1895 to 1997, and the terrain there.

    The table has a row for every month in which a station reported anything: `time` (the first day
    of the month), `lat`, `lon`, `elevation`, `station`, and the values `tmax`, `tmin` (means of the
    daily extremes) and `precipitation` (the month's total), NaN where one of them is missing. Units
    are in `table.attrs["units"]`. The dataset holds `elevation` on a grid of about 4 km.
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
    """Some weeks of simulated global weather every six hours, and the sites of real stations.

    The dataset has `t2m` and `skt` (air temperature near the surface, temperature of the surface),
    `u` and `v` at three levels, and the constant fields `elevation` and `land`, on 48 by 96 points.
    The table has `station` (the ICAO code), `lat`, `lon` and `elevation` (m, NaN where unknown).
    """
    import pandas as pd

    data = _dataset("weather.nc")
    with _reading("stations.csv.gz") as path:
        sites = pd.read_csv(path, dtype={"station": str})
    sites.attrs = {"units": {"lat": "degrees_north", "lon": "degrees_east", "elevation": "m"}}
    return data, sites


def coastline() -> list[np.ndarray]:
    """The outlines of land at 1:110 million, for maps: closed rings of (longitude, latitude) rows.

    Longitudes run from -180 to 180. Land that crosses the date line is cut there, and Antarctica
    is closed along the edge of the map, so a few rings have edges that are no coast.
    """
    with _reading("coastline.npz") as path, path.open("rb") as stream, np.load(stream) as file:
        return np.split(file["points"], file["starts"][1:])


def _dataset(name: str) -> xarray.Dataset:
    import xarray as xr

    engine = next((key for key, needed in READERS.items() if all(map(find_spec, needed))), None)
    if engine is None:
        raise ModuleNotFoundError(
            f"{name} needs a reader of netCDF, but neither h5netcdf with h5py nor netCDF4 "
            "is installed; pip install 'gridtnp[io]'."
        )

    with _reading(name) as path, xr.open_dataset(path, engine=engine) as dataset:
        data = dataset.load()
    for variable in data.variables.values():
        if "scale_factor" in variable.encoding:  # unpacked in double precision: exact decimals
            variable.data = variable.to_numpy().astype(np.float32)
    return data


@contextmanager
def _reading(name: str) -> Iterator[Path]:
    """The path of a packaged file; whatever goes wrong with it becomes a sentence."""
    path = DATA / name
    again = "install gridtnp again, or make it as docs/demo-data.md says."
    if not path.is_file():
        raise FileNotFoundError(f"{path} comes with gridtnp, but it is not there; {again}")
    try:
        yield path
    except Exception as error:  # readers have many ways to fail
        raise OSError(
            f"{path} must be a whole file, but reading it failed ({error}); {again}"
        ) from error
