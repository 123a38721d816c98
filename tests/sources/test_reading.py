"""Files of every kind give the same tasks, and unreadable files clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
import torch
import weather
import xarray as xr

from gridtnp.data.dataset import Dataset
from gridtnp.sources.reading import kind_of, open_data, require_installed
from gridtnp.task import Task
from gridtnp.tasks.sampling import Sampler
from gridtnp.tasks.selection import Fraction


def task(data: Any, index: int = 3) -> Task:
    made = Dataset({"obs": data}, target="obs.t2m", features=("hour",))
    context = {"obs.u10": Fraction(0.2, 0.8), "obs.t2m": Fraction(0.1, 0.5, per="batch")}
    return Sampler(made, context, coordinates=("time", "lat", "lon"), window="(-12h, 0h]").draw(
        index
    )


def same(a: Task, b: Task, tolerance: float = 0.0) -> None:
    assert set(a.context) == set(b.context)
    for one, other in [(a.target, b.target), *((a.context[k], b.context[k]) for k in a.context)]:
        for name in ("x", "y", "mask", "features"):
            left, right = getattr(one, name), getattr(other, name)
            assert (left is None) == (right is None), name
            if left is not None:
                torch.testing.assert_close(left, right, rtol=0, atol=tolerance)


def write_copies(folder: Path) -> dict[str, Path]:
    table, ds = weather.rows(), weather.field()
    table.to_csv(folder / "a.csv", index=False)
    table.to_parquet(folder / "a.parquet")
    ds.to_netcdf(folder / "a.nc", engine="netcdf4")
    ds.to_netcdf(folder / "classic.nc", engine="netcdf4", format="NETCDF3_64BIT")
    ds.to_zarr(folder / "a.zarr", consolidated=False)
    for i, part in enumerate((ds.isel(time=slice(0, 2)), ds.isel(time=slice(2, None)))):
        part.to_netcdf(folder / f"part{i}.nc", engine="netcdf4")
        weather.rows(part).to_csv(folder / f"part{i}.csv", index=False)
    names = ("a.csv", "a.parquet", "a.nc", "classic.nc", "a.zarr", "part*.nc", "part*.csv")
    return {name: folder / name for name in names}


def test_every_kind_of_file_holds_the_same_tasks(tmp_path: Path) -> None:
    expected = task(weather.field())
    for path in write_copies(tmp_path).values():
        same(task(path), expected)
        same(task(str(path)), expected)


def test_grib_holds_the_same_tasks(tmp_path: Path) -> None:
    """Up to the precision to which GRIB packs values."""
    ds = weather.field()
    path = tmp_path / "a.grib"
    write_grib(ds, path)
    expected = task(ds)
    got = task(path)
    same(got, expected, tolerance=2e-3)
    assert not list(tmp_path.glob("*.idx")), "no index file may be left beside the data"
    path.write_bytes(path.read_bytes()[:-3])
    message = r"^Cannot read '.*a\.grib' as a grib file \("
    with pytest.raises(OSError, match=message):
        open_data(path)


def test_forecasts_in_grib_are_at_their_valid_time(tmp_path: Path) -> None:
    ds, day = weather.field().isel(time=[0]), np.timedelta64(24, "h")
    write_grib(ds, tmp_path / "f024.grib", lead=24)
    assert open_data(tmp_path / "f024.grib").time.values == ds.time.values + day
    # wind at two leads, temperature at one
    write_grib(ds, tmp_path / "wind.grib", {"u10": (103, 10)}, lead=30)
    content = (tmp_path / "f024.grib").read_bytes() + (tmp_path / "wind.grib").read_bytes()
    (tmp_path / "both.grib").write_bytes(content)
    both = open_data(tmp_path / "both.grib")
    np.testing.assert_array_equal(both.time, ds.time.values + day + [0, np.timedelta64(6, "h")])
    assert both.t2m.count("time").max() == 1
    assert both.u10.count("time").min() == 2
    # files of one lead each are one source
    write_grib(ds, tmp_path / "f030.grib", lead=30)
    joined = open_data(tmp_path / "f*.grib")
    np.testing.assert_array_equal(joined.time, both.time)


def test_grib_with_a_variable_at_levels_of_two_kinds(tmp_path: Path) -> None:
    write_grib(weather.field(), tmp_path / "a.grib", {"t2m": (100, 50000), "t2m again": (1, 0)})
    message = (
        r"^'.*a\.grib' holds 't' at levels 'isobaricInhPa' and 'surface'; open one of them, xr\."
    )
    with pytest.raises(ValueError, match=message):
        open_data(tmp_path / "a.grib")


def test_a_single_level_in_grib_leaves_those_of_other_variables(tmp_path: Path) -> None:
    levels = {"t2m": (100, 50000), "t2m again": (100, 85000), "u10": (100, 50000)}
    write_grib(weather.field(), tmp_path / "a.grib", levels)
    data = Dataset({"a": tmp_path / "a.grib"}, target="a")
    assert data.target_names == ("t_500", "t_850", "u")


def test_addresses_are_opened_through_fsspec(tmp_path: Path) -> None:
    ds = weather.field()
    ds.to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    fsspec.filesystem("memory").pipe("/test-reading/a.nc", (tmp_path / "a.nc").read_bytes())
    same(task("memory://test-reading/a.nc"), task(ds))
    ds.to_zarr("memory://test-reading/a.zarr", mode="w", consolidated=False)
    same(task("memory://test-reading/a.zarr"), task(ds))
    weather.rows().to_csv("memory://test-reading/a.csv", index=False)
    same(task("memory://test-reading/a.csv"), task(ds))


def test_shuffled_rows_dimensions_and_ranges_make_no_difference() -> None:
    ds, expected = weather.field(), task(weather.field())
    same(task(weather.rows().sample(frac=1.0, random_state=3)), expected)
    same(task(ds.transpose("lon", "time", "lat")), expected)
    same(task(ds.isel(lat=slice(None, None, -1))), expected)
    turned = ds.assign_coords(lon=ds.lon % 360)
    same(task(turned), expected)
    same(task(turned.sortby("lon")), expected)
    same(task(ds.isel(time=[3, 1, 0, 2, 5, 4])), expected)
    table = weather.rows()
    same(task(table.assign(lon=table.lon % 360)), expected)
    same(task(table.set_index(["time", "lat", "lon"])), expected)
    same(task(ds.rename(lat="latitude", lon="nav_lon", time="valid_time")), expected)


def test_single_and_double_precision_are_the_same_to_single_precision() -> None:
    same(task(weather.field(np.float32)), task(weather.field()), tolerance=1e-4)


def test_a_glob_that_matches_nothing(tmp_path: Path) -> None:
    message = r"^No file matches '.*/none\*\.nc' in '.*'\.$"
    with pytest.raises(FileNotFoundError, match=message):
        open_data(tmp_path / "none*.nc")


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^No such file: '.*none\.nc'\.$"):
        open_data(tmp_path / "none.nc")


@pytest.mark.parametrize("name", ["a.nc", "classic.nc", "a.parquet"])
def test_a_truncated_file(tmp_path: Path, name: str) -> None:
    content = write_copies(tmp_path)[name].read_bytes()
    (tmp_path / f"cut-{name}").write_bytes(content[: len(content) // 3])
    with pytest.raises(
        OSError, match=rf"^Cannot read '.*cut-{name}' as a \w+ file \(.+\); was its download"
    ):
        Dataset({"obs": tmp_path / f"cut-{name}"}, target="obs.t2m")


@pytest.mark.parametrize("name", ["a.nc", "a.parquet", "a.grib", "a.zarr"])
def test_an_unreadable_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(OSError, match=rf"^Cannot read '.*{name}' as a \w+ file \("):
        open_data(tmp_path / name)


def test_an_unknown_ending_and_mixed_kinds(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^Unknown file ending of 'a\.docx'; use one of \['\.cdf', "
    ):
        kind_of("a.docx")
    assert kind_of("s3://bucket/a.zarr/") == "zarr"
    assert kind_of("gs://bucket/full-1h.zarr-v3") == "zarr"
    assert kind_of("https://host/a.csv?token=1") == "csv"
    write_copies(tmp_path)
    with pytest.raises(
        ValueError, match=r"^The files of one source are of different kinds, \['csv'"
    ):
        open_data(tmp_path / "part*")


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    message = (
        r"^Reading 'a\.grib' needs no_such_module, which is not installed: "
        r"pip install 'gridtnp\[grib\]'\.$"
    )
    with pytest.raises(ImportError, match=message):
        require_installed("no_such_module", "grib", "Reading 'a.grib'")


SURFACES = {"t2m": (103, 2), "u10": (103, 10)}
"""The kind and height of the surface of each variable, 2 and 10 m above ground."""


def write_grib(
    ds: xr.Dataset, path: Path, surfaces: dict[str, tuple[int, int]] = SURFACES, lead: int = 0
) -> None:
    """Two variables on a regular grid, 24 bits a value, forecast `lead` hours ahead."""
    import eccodes

    codes = {"t2m": (0, 0, 0), "u10": (0, 2, 2)}
    with open(path, "wb") as file:
        for name, surface in surfaces.items():
            name, (kind, height) = name.removesuffix(" again"), surface
            discipline, category, number = codes[name]
            for step, time in enumerate(pd.DatetimeIndex(ds.time.values)):
                handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
                keys = {
                    "dataDate": int(time.strftime("%Y%m%d")),
                    "dataTime": int(time.strftime("%H%M")),
                    "discipline": discipline,
                    "parameterCategory": category,
                    "parameterNumber": number,
                    "forecastTime": lead,
                    "typeOfFirstFixedSurface": kind,
                    "scaleFactorOfFirstFixedSurface": 0,
                    "scaledValueOfFirstFixedSurface": height,
                    "Ni": ds.sizes["lon"],
                    "Nj": ds.sizes["lat"],
                    "latitudeOfFirstGridPointInDegrees": float(ds.lat[-1]),
                    "latitudeOfLastGridPointInDegrees": float(ds.lat[0]),
                    "longitudeOfFirstGridPointInDegrees": float(ds.lon[0]) % 360,
                    "longitudeOfLastGridPointInDegrees": float(ds.lon[-1]) % 360,
                    "iDirectionIncrementInDegrees": float(ds.lon[1] - ds.lon[0]),
                    "jDirectionIncrementInDegrees": float(ds.lat[1] - ds.lat[0]),
                    "bitsPerValue": 24,
                }
                for key, value in keys.items():
                    eccodes.codes_set(handle, key, value)
                values = ds[name].isel(time=step, lat=slice(None, None, -1)).values
                eccodes.codes_set_values(handle, values.ravel().astype(float))
                eccodes.codes_write(handle, file)
                eccodes.codes_release(handle)


def test_a_file_that_exists_is_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weather.rows().to_csv(tmp_path / "a[1].csv", index=False)
    weather.rows().iloc[:20].to_csv(tmp_path / "a1.csv", index=False)
    assert len(open_data(tmp_path / "a[1].csv")) == 120
    (tmp_path / "a[1].csv").unlink()
    assert len(open_data(tmp_path / "a[1].csv")) == 20
    monkeypatch.chdir(tmp_path)
    weather.field().isel(time=0, drop=True)[["u10"]].to_netcdf("obs.nc")
    data = Dataset({"obs": weather.rows()}, target="obs.t2m", static={"u10": "obs.nc"})
    assert data.feature_names == ("u10",)


def test_grib_is_read_from_addresses(tmp_path: Path) -> None:
    write_grib(weather.field(), tmp_path / "a.grib")
    content = (tmp_path / "a.grib").read_bytes()
    fsspec.filesystem("memory").pipe("/test-grib/a.grib", content)
    same(task("memory://test-grib/a.grib"), task(tmp_path / "a.grib"))
    fsspec.filesystem("memory").pipe("/test-grib/empty.grib", b"")
    with pytest.raises(OSError, match=r"^Cannot read 'memory://.*' as a grib file \(it is empty\)"):
        open_data("memory://test-grib/empty.grib")
