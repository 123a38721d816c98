"""Weather in the layouts in which it is published, up to the paper's table at its full size."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from gridtnp.reproduce.__main__ import main
from gridtnp.reproduce.stations import SCALES, stations
from gridtnp.reproduce.weather_data import (
    coarsened,
    crop,
    is_global,
    open_weather,
    read_sites,
    snapped,
)
from gridtnp.reproduce.wind import SCALES as WIND_SCALES
from gridtnp.reproduce.wind import wind
from gridtnp.training.distributed import make_accelerator

HOURS = [
    t for year in (2017, 2018, 2019) for t in pd.date_range(f"{year}-03-01", periods=6, freq="h")
]
HADISD_LIST = "hadisd_station_list.txt"
HADISD = """010010-99999 JAN MAYEN(NOR-NAVY)                  70.933    -8.667     9.0
724690-23062 DENVER/STAPLETON INTL ARPT       39.767  -104.867  1611.0
030050-99999 LERWICK                            60.133 -1.183  82.0
948660-99999 MELBOURNE AIRPORT                  -37.673  144.843  132.0
"""


def values(shape: tuple[int, ...], mean: float, seed: int) -> np.ndarray:
    return (mean + np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def surface(step: float = 5.0) -> xr.Dataset:
    """Temperatures as the Climate Data Store gives them: from north to south, 0 to 360°."""
    lat, lon = np.arange(90, -90.1, -step), np.arange(0, 360, step)
    shape = (len(HOURS), len(lat), len(lon))
    dims = ("valid_time", "latitude", "longitude")
    return xr.Dataset(
        {
            "t2m": (dims, values(shape, 278, 0), {"units": "K"}),
            "skt": (dims, values(shape, 279, 1), {"units": "K"}),
        },
        {
            "valid_time": ("valid_time", HOURS, {"standard_name": "time"}),
            "latitude": ("latitude", lat, {"units": "degrees_north", "standard_name": "latitude"}),
            "longitude": (
                "longitude",
                lon,
                {"units": "degrees_east", "standard_name": "longitude"},
            ),
            "number": 0,
            "expver": ("valid_time", ["0001"] * len(HOURS)),
        },
    )


def winds() -> xr.Dataset:
    """Winds over the United States on more levels than the paper uses."""
    lat, lon, levels = (
        np.arange(25, 49.0, 3),
        np.arange(-125, -66.0, 3),
        [700.0, 850.0, 925.0, 1000.0],
    )
    shape = (len(HOURS), len(levels), len(lat), len(lon))
    dims = ("valid_time", "pressure_level", "latitude", "longitude")
    return xr.Dataset(
        {"u": (dims, values(shape, 0, 2)), "v": (dims, values(shape, 0, 3))},
        {"valid_time": HOURS, "pressure_level": levels, "latitude": lat, "longitude": lon},
    )


def as_zarr(ds: xr.Dataset, path: Path) -> Path:
    """The layout of ARCO-ERA5 and WeatherBench: long names, longitude before latitude."""
    names = {
        "t2m": "2m_temperature",
        "skt": "skin_temperature",
        "valid_time": "time",
        "u": "u_component_of_wind",
        "v": "v_component_of_wind",
        "pressure_level": "level",
    }
    kept = ds.drop_vars(["number", "expver"], errors="ignore")
    kept = kept.rename({old: new for old, new in names.items() if old in ds})
    order = [d for d in ("time", "level", "longitude", "latitude") if d in kept.dims]
    kept.transpose(*order).chunk({"time": 1}).to_zarr(path, zarr_format=2)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("era5")
    for name, ds in (("surface", surface()), ("winds", winds())):
        ds.to_netcdf(folder / f"{name}.nc")
        as_zarr(ds, folder / f"{name}.zarr")
    (folder / HADISD_LIST).write_text(HADISD)
    return folder


@pytest.mark.parametrize(
    ("name", "row", "layout"),
    [
        ("surface", "cnp", "nc"),
        pytest.param("surface", "cnp", "zarr", marks=pytest.mark.slow),
        pytest.param("winds", "cnp", "nc", marks=pytest.mark.slow),
        ("winds", "cnp", "zarr"),
    ],
)
def test_the_paper_at_its_size_up_to_the_table(
    files: Path, tmp_path: Path, name: str, row: str, layout: str
) -> None:
    experiment = "stations" if name == "surface" else "wind"
    sites = ["--stations", str(files / HADISD_LIST)] if name == "surface" else []
    short = ["--steps", "1", "--batch", "2", "--tests", "2", "--rows", row]
    data = ["--data", str(files / f"{name}.{layout}"), *sites]
    main([experiment, "--scale", "full", *data, *short, "--out", str(tmp_path)])
    result = json.loads((tmp_path / "full" / row / "result.json").read_text())
    assert result["training"] == "from 2017-03-01 to 2017-03-01 05:00"
    assert result["test"].startswith("2 tasks from 2019-03-01")
    assert result["size"]["dim"] == 128
    paper = {
        "stations": [21.22036],
        "wind": [9.168821, 6.87104, 8.188043, 6.264443, 6.141778, 5.308203],
    }
    assert result["std"] == paper[experiment]
    assert "| CNP |" in (tmp_path / "full" / "table.md").read_text()


def test_both_layouts_give_the_same_tasks(files: Path) -> None:
    both = [
        stations(SCALES["full"], str(files / f"surface.{kind}"), str(files / HADISD_LIST))
        for kind in ("nc", "zarr")
    ]
    first, second = (own.sampler(own.parts[2], 2, 0).draw(0) for own in both)
    assert first.target.n == 4
    assert first.context["skt"].n == 18 * 36
    for name in ("t2m", "skt"):
        a, b = first.context[name], second.context[name]
        assert np.array_equal(np.sort(a.y.flatten()), np.sort(b.y.flatten()))


def test_fields_that_are_too_large_are_read_as_tasks_need_them(files: Path) -> None:
    data, full = [str(files / f"{name}.zarr") for name in ("surface", "winds")], SCALES["full"]
    lazy = [stations(full, data[0], memory=1000), wind(WIND_SCALES["full"], data[1], memory=1000)]
    loaded = [stations(full, data[0]), wind(WIND_SCALES["full"], data[1])]
    for one, other in zip(lazy, loaded, strict=True):
        a, b = (next(own.tests()) for own in (one, other))
        assert a[0].independent
        assert not b[0].independent
        assert np.array_equal(a[1].target[0].values, b[1].target[0].values)
        row = one.training("cnp", replace(one.recipe, batch=2), 0, make_accelerator())
        assert row.apart
        task = next(row.start(0))
        assert task.target.batch == 2
        assert set(task.context) == set(one.contexts)


@pytest.mark.slow
def test_several_processes(files: Path, tmp_path: Path) -> None:
    launch = ["accelerate.commands.launch", "--multi_gpu", "--num_processes=2"]
    launch += ["--num_machines=1", "--main_process_port=0", "--module", "gridtnp.reproduce"]
    short = ["--scale", "full", "--steps", "1", "--batch", "2", "--tests", "2", "--rows", "cnp"]
    data = ["--data", str(files / "surface.zarr"), "--out", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *launch, "stations", *data, *short],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "full" / "cnp" / "result.json").read_text())
    assert result["processes"] == 2
    assert (tmp_path / "full" / "table.md").exists()


def test_fields_have_the_sizes_that_the_paper_prints() -> None:
    lat, lon = np.arange(90, -90.1, -0.25), np.arange(0, 360, 0.25)
    empty = xr.Dataset(coords={"lat": lat, "lon": lon})
    assert is_global(empty)
    assert dict(coarsened(empty, 4).sizes) == {"lat": 180, "lon": 360}
    region = crop(empty, (25.0, 49.0), (-125.0, -66.0))
    assert dict(region.sizes) == {"lat": 96, "lon": 236}
    assert not is_global(region)
    assert region["lon"].min() == 235.0


def test_sites_of_hadisd(files: Path, tmp_path: Path) -> None:
    listed = read_sites(str(files / HADISD_LIST))
    assert listed["lat"].tolist() == [70.933, 39.767, 60.133, -37.673]
    assert listed["station"].tolist()[1] == "724690-23062"
    for _, site in listed.iterrows():
        one = {k: ("coordinate_length", [site[k[:3]]]) for k in ("latitude", "longitude")}
        temperature = ("time", np.array([1.0, -1e30]), {"flagged_value": -2e30})
        xr.Dataset({**one, "temperatures": temperature}).to_netcdf(
            tmp_path / f"hadisd.3.4.0.2023f_19310101-20240101_{site['station']}.nc"
        )
    from_files = read_sites(str(tmp_path)).sort_values("lat")
    assert np.allclose(from_files["lat"], sorted(listed["lat"]))
    table = tmp_path / "sites.csv"
    listed.to_csv(table, index=False)
    assert read_sites(str(table))["lon"].tolist() == listed["lon"].tolist()


def test_sites_move_to_the_nearest_grid_point() -> None:
    grid = xr.Dataset(coords={"lat": np.arange(-90, 90.1, 0.25), "lon": np.arange(0, 360, 0.25)})
    sites = pd.DataFrame({"lat": [44.19, 44.2, 10.0], "lon": [115.43, 115.44, -179.99]})
    moved = snapped(sites, grid, distinct=False)
    assert moved[["lat", "lon"]].to_numpy().tolist() == [[44.25, 115.5], [44.25, 115.5], [10, -180]]
    assert len(snapped(sites, grid, distinct=True)) == 2
    region = grid.sel(lat=slice(40, 50), lon=slice(100, 120))
    assert len(snapped(sites, region, distinct=False)) == 2
    with pytest.raises(ValueError, match="0 stations are within the grid; give others"):
        snapped(sites[2:], region, distinct=False)


def test_bad_data(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("lat,lon,t2m\n1,2,3\n")
    with pytest.raises(TypeError, match="is a table; weather is on a grid"):
        open_weather(str(table))
    still, corners = tmp_path / "still.nc", {"lat": [0.0, 1.0], "lon": [0.0, 1.0]}
    xr.Dataset({"t2m": (("lat", "lon"), np.zeros((2, 2)))}, corners).to_netcdf(still)
    with pytest.raises(ValueError, match="has no times"):
        open_weather(str(still))
    with pytest.raises(ValueError, match="No grid point is within latitudes"):
        crop(xr.Dataset(coords=corners), (25.0, 49.0), (-125.0, -66.0))
    winds().drop_vars("v").to_netcdf(tmp_path / "u.nc")
    with pytest.raises(ValueError, match="has neither 'u' and 'v' on pressure levels nor 'u10'"):
        main(["wind", "--scale", "smoke", "--data", str(tmp_path / "u.nc")])
    with pytest.raises(ValueError, match="Unknown variable 't2m' of"):
        main(["stations", "--scale", "smoke", "--data", str(tmp_path / "u.nc")])
