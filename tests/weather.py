"""Small datasets for tests: a field, the same field as a table, and stations."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

LATS = np.array([50.0, 51.25, 52.5, 53.75])
LONS = np.array([-2.5, -1.25, 0.0, 1.25, 2.5])
TIMES = pd.date_range("2019-03-01", periods=6, freq="6h")


def field(dtype: type = np.float64) -> xr.Dataset:
    """Temperature and wind on a small grid across the Greenwich meridian, without gaps."""
    rng = np.random.default_rng(0)
    shape = (len(TIMES), len(LATS), len(LONS))
    values = {name: rng.normal(size=shape).round(3).astype(dtype) for name in ("t2m", "u10")}
    ds = xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), 280 + values["t2m"], {"units": "K"}),
            "u10": (("time", "lat", "lon"), values["u10"], {"units": "m s-1"}),
        },
        {"time": TIMES, "lat": LATS.astype(dtype), "lon": LONS.astype(dtype)},
    )
    return ds.astype(dtype) if dtype is np.float32 else ds


def rows(ds: xr.Dataset | None = None) -> pd.DataFrame:
    """The field as a table."""
    ds = field() if ds is None else ds
    return ds.to_dataframe().reset_index()[["time", "lat", "lon", "t2m", "u10"]]


def stations(number: int = 12, days: int = 8, seed: int = 1) -> pd.DataFrame:
    """Daily temperatures at stations with names and elevations."""
    rng = np.random.default_rng(seed)
    names = [f"S{i:02d}" for i in range(number)]
    lat, lon = rng.uniform(48, 55, number).round(3), rng.uniform(-4, 4, number).round(3)
    elevation = rng.uniform(0, 900, number).round()
    times = pd.date_range("2019-03-01", periods=days, freq="1D")
    index = pd.MultiIndex.from_product([times, range(number)]).to_frame(index=False)
    who = index[1].to_numpy()
    return pd.DataFrame(
        {
            "time": index[0],
            "station": np.array(names)[who],
            "lat": lat[who],
            "lon": lon[who],
            "elevation": elevation[who],
            "t2m": rng.normal(10, 4, len(who)).round(2),
        }
    )
