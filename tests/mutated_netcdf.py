"""Random netCDF files, some harmless and some harmful, whose true contents are known.

`netcdf_file` writes one for a seed, as `mutated_csv.csv_file` does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from mutated_csv import SENTINELS, VARIABLES, File, Rng, key, places


class Field:
    """A dataset that is changed one step at a time, and how it will be written."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        times = pd.date_range("2019-03-01", periods=6, freq="6h")
        lat, lon = np.sort(places(rng, 5)), np.sort(70 + 2 * places(rng, 4))
        values = {name: rng.normal(12, 5, (6, 5, 4)).round(2) for name in VARIABLES}
        dims = ("time", "lat", "lon")
        self.ds = xr.Dataset(
            {name: (dims, data, {"units": "degC"}) for name, data in values.items()},
            {"time": times, "lat": lat, "lon": lon},
        )
        self.truth = {
            key(times[i], lat[j], lon[k]): {
                name: float(values[name][i, j, k]) for name in VARIABLES
            }
            for i, j, k in np.ndindex(6, 5, 4)
        }
        self.encoding: dict[str, dict[str, Any]] = {}
        self.format = "NETCDF4"
        self.after: list[Callable[[bytes], bytes]] = []
        self.unknown: set[str] = set()
        self.tolerance = 1e-4

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def spoil(self, name: str, value: float, number: int = 4) -> None:
        """Put a value at some places of a variable, whose truth is unknown then."""
        array = self.ds[name]
        for _ in range(number):
            i, j, k = (int(self.rng.integers(n)) for n in (6, 5, 4))
            array[{"time": i, "lat": j, "lon": k}] = value
            at = key(self.ds.time.values[i], float(self.ds.lat[j]), float(self.ds.lon[k]))
            self.truth[at].pop(name, None)

    def axis(self, name: str, values: np.ndarray, **attributes: Any) -> None:
        self.ds = self.ds.assign_coords({name: (name, values, attributes)})


def _packed(f: Field) -> None:
    name = f.pick(*VARIABLES)
    f.encoding[name] = {
        "dtype": "int16",
        "scale_factor": 0.01,
        "add_offset": 10.0,
        "_FillValue": -32768,
    }
    f.tolerance = 6e-3


def _curved(f: Field, lon: float | None = None) -> None:
    y, x = np.meshgrid(f.ds.lat.values, f.ds.lon.values, indexing="ij")
    if lon is not None:
        x[1, 2] = lon
        for at in list(f.truth):
            if at[1:] == (round(y[1, 2], 3), round(float(f.ds.lon[2]), 3)):
                f.truth[at].clear()
        f.unknown = {"coordinates"}
    ds = f.ds.rename(lat="row", lon="column").drop_vars(["row", "column"])
    f.ds = ds.assign_coords(lat=(("row", "column"), y), lon=(("row", "column"), x))


def _limits(f: Field) -> None:
    name = f.pick(*VARIABLES)
    how = f.pick({"valid_range": [-50.0, 60.0]}, {"valid_min": -50.0}, {"valid_range": [-50, 60]})
    f.spoil(name, -80.0)
    f.ds[name].attrs.update(how)


def _fill(f: Field) -> None:
    name, value = f.pick(*VARIABLES), f.pick(*SENTINELS)
    f.spoil(name, float(value))
    f.ds[name].attrs["missing_value"] = float(value)


def _counters(f: Field) -> None:
    f.ds["traj"] = (("time", "lat", "lon"), np.arange(120).reshape(6, 5, 4))


def _transposed(f: Field) -> None:
    f.ds = f.ds.transpose(*f.rng.permutation(list(f.ds.tmax.dims)))


def _since(f: Field) -> None:
    units = f.pick("hours since 2000-01-01", "seconds since 1970-01-01", "minutes since 1900-01-01")
    f.encoding["time"] = {"units": units}


HARMLESS_NETCDF: dict[str, Callable[[Field], Any]] = {
    "declared limits": _limits,
    "declared missing values": _fill,
    "transposed": _transposed,
    "from north to south": lambda f: setattr(f, "ds", f.ds.isel(lat=slice(None, None, -1))),
    "times shuffled": lambda f: setattr(f, "ds", f.ds.isel(time=f.rng.permutation(6))),
    "west": lambda f: f.axis("lon", f.ds.lon.values - 360),
    "degrees west": lambda f: f.axis("lon", (360 - f.ds.lon.values) % 360, units="degrees_west"),
    "radians": lambda f: f.axis("lat", np.deg2rad(f.ds.lat.values), units=f.pick("rad", "radians")),
    "degrees": lambda f: f.ds.lat.attrs.setdefault("units", f.pick("degrees_north", "deg", "°")),
    "a counter": _counters,
    "a scalar": lambda f: setattr(f, "ds", f.ds.assign_coords(height=2.0)),
    "single precision": lambda f: setattr(f, "ds", f.ds.astype(np.float32)),
    "hours since": _since,
    "classic": lambda f: setattr(f, "format", f.pick("NETCDF3_CLASSIC", "NETCDF3_64BIT")),
    "a variable of text": lambda f: f.ds.update({"name": ("lat", list("abcde"))}),
    "packed": _packed,
    "curved": _curved,
}  # fmt: skip


def _sentinels(f: Field) -> None:
    name = f.pick(*VARIABLES)
    f.spoil(name, float(f.pick(*SENTINELS)), int(f.rng.integers(1, 9)))
    f.unknown = {f"{name} is"}


def _standard_names(f: Field) -> None:
    y, x = f.pick(
        ("grid_latitude", "grid_longitude"), ("projection_y_coordinate", "projection_x_coordinate")
    )
    f.ds.lat.attrs["standard_name"], f.ds.lon.attrs["standard_name"] = y, x


def _bad_axis(f: Field) -> None:
    name = f.pick("lat", "lon")
    values = f.ds[name].values.copy()
    values[int(f.rng.integers(4))] = f.pick(np.nan, 999.0, -999.0, 1e20, np.inf)
    f.axis(name, values)


def _bad_times(f: Field) -> None:
    units = f.pick(
        "months since 2000-01-01", "fortnights since 2000-01-01", "days after Easter", "1", "h"
    )
    f.axis("time", np.arange(6), units=units)


def _calendar(f: Field) -> None:
    calendar = f.pick("360_day", "noleap", "all_leap")
    f.axis("time", np.arange(6), units="days since 2000-02-25", calendar=calendar)


def _same_times(f: Field) -> None:
    times = f.ds.time.values.copy()
    times[3] = times[2]
    for at in list(f.truth):
        if at[0] == str(f.ds.time.values[3].astype("datetime64[s]")):
            f.truth[at].clear()
    f.ds = f.ds.assign_coords(time=times)
    f.unknown = {"duplicate times"}


def _units(f: Field) -> None:
    name = f.pick("lat", "lon")
    f.ds[name].attrs["units"] = f.pick("km", "m", "metres", "gon", "K", "1", "degrees_C")


def _member(f: Field) -> None:
    f.ds = f.ds.expand_dims(number=2)


def _text_axis(f: Field) -> None:
    f.axis("lat", np.array([f"{v}N" for v in f.ds.lat.values]))


def _odd_attributes(f: Field) -> None:
    name = f.pick("tmax", "lat")
    f.ds[name].attrs.update(
        f.pick({"units": 5}, {"units": [1.0, 2.0]}, {"valid_range": "low"}, {"valid_min": "x"})
    )


def _cut_netcdf(f: Field) -> None:
    share = float(f.rng.uniform(0, 0.98))
    f.after.append(lambda data: data[: int(share * len(data))])


HARMFUL_NETCDF: dict[str, Callable[[Field], Any]] = {
    "sentinels": _sentinels,
    "units of coordinates": _units,
    "projected": _standard_names,
    "an impossible axis": _bad_axis,
    "an impossible place": lambda f: _curved(f, f.pick(-999.0, 999.0, 1e20, -9999.0, np.nan)),
    "times in odd units": _bad_times,
    "another calendar": _calendar,
    "times without units": lambda f: f.axis("time", np.arange(6)),
    "a time twice": _same_times,
    "two members": _member,
    "an axis of text": _text_axis,
    "odd attributes": _odd_attributes,
    "cut": _cut_netcdf,
    "garbage": lambda f: f.after.append(lambda data: f.rng.bytes(200) + data[200:]),
    "no latitude": lambda f: setattr(f, "ds", f.ds.rename(lat="row")),
    "no coordinates": lambda f: setattr(f, "ds", f.ds.drop_vars(["lat", "lon"])),
    "no values": lambda f: f.ds.tmax.__setitem__(slice(None), np.nan),
    "no variables": lambda f: setattr(f, "ds", f.ds.drop_vars(list(VARIABLES))),
    "empty": lambda f: setattr(f, "ds", f.ds.isel(lat=slice(0, 0))),
}


AXES_WITH_HARM = ("transposed", "from north to south", "times shuffled", "a counter", "classic")


def netcdf_file(folder: Path, seed: int) -> File:
    """A netCDF file with up to two harmless changes, and in most files a harmful one."""
    rng = np.random.default_rng([seed, 2])
    made = Field(rng)
    harmful = str(rng.choice(list(HARMFUL_NETCDF))) if rng.random() < 0.7 else None
    names = list(HARMLESS_NETCDF) if harmful is None else AXES_WITH_HARM
    harmless = sorted(rng.permutation(names)[: int(rng.integers(3))], key=names.index)
    if harmful == "empty":  # which the classic format cannot hold
        harmless = []
    if "curved" in harmless:
        harmless = ["curved"]
    if "single precision" in harmless:
        harmless = [c for c in harmless if c not in ("packed", "radians", "degrees west", "west")]
    for change in harmless:
        HARMLESS_NETCDF[change](made)
    if harmful is not None:
        HARMFUL_NETCDF[harmful](made)
    path = folder / f"mutated-{seed}.nc"
    made.ds.to_netcdf(path, engine="netcdf4", format=made.format, encoding=made.encoding)
    content = path.read_bytes()
    for change in made.after:
        content = change(content)
    path.write_bytes(content)
    changes = [*map(str, harmless), *([harmful] if harmful else [])]
    return File(path, made.truth, changes, harmful is not None, made.unknown, made.tolerance)
