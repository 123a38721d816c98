"""xarray datasets of every layout: grids, fixed stations, moving platforms, levels, ERA5."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import weather
import xarray as xr

from gridtnp.data.dataset import Dataset
from gridtnp.sources.coordinates import wrap
from gridtnp.sources.fields import read_dataset
from gridtnp.sources.reading import open_data
from gridtnp.sources.source import Lazy, Panel, Records
from gridtnp.tasks.sampling import Sampler
from gridtnp.tasks.selection import Count

ALL = 2**30


def panel(ds: xr.Dataset | xr.DataArray, memory: int = ALL) -> Panel:
    source, notes = read_dataset("grid", ds, memory)
    assert isinstance(source, Panel)
    assert not notes
    return source


def test_a_grid_is_a_long_table_in_the_order_of_time_latitude_and_longitude() -> None:
    ds = weather.field()
    source = panel(ds)
    assert source.shape == (4, 5)
    assert source.names == ("t2m", "u10")
    assert source.variable("t2m").units == "K"
    expected = weather.rows()[["t2m", "u10"]].to_numpy(np.float32)
    np.testing.assert_array_equal(source.values(0, source.size), expected)
    np.testing.assert_array_equal(source.values(7, 33), expected[7:33])
    rows = np.array([3, 25, 119])
    table = weather.rows().iloc[rows]
    np.testing.assert_array_equal(source.lat[source.places(rows)], table.lat)
    np.testing.assert_array_equal(source.lon[source.places(rows)], table.lon)
    np.testing.assert_array_equal(source.times_of(rows), table.time.to_numpy("datetime64[ms]"))


def test_the_copernicus_layout(tmp_path: Path) -> None:
    """netCDF with `valid_time`, descending latitudes, and irrelevant scalar coordinates."""
    ds = weather.field(np.float32)[["t2m"]].isel(lat=slice(None, None, -1))
    ds = ds.rename(time="valid_time", lat="latitude", lon="longitude")
    ds["valid_time"].attrs = {"long_name": "time", "standard_name": "time"}
    ds["latitude"].attrs = {"units": "degrees_north", "standard_name": "latitude"}
    ds["longitude"].attrs = {"units": "degrees_east", "standard_name": "longitude"}
    ds["t2m"].attrs = {"units": "K", "long_name": "2 metre temperature"}
    ds = ds.assign_coords(number=0, expver=("valid_time", ["0001"] * ds.sizes["valid_time"]))
    ds.to_netcdf(tmp_path / "download.nc", engine="netcdf4")
    data = Dataset({"era5": tmp_path / "download.nc"}, target="era5.t2m")
    np.testing.assert_array_equal(
        data.sources["era5"].values(0, 120),
        panel(weather.field(np.float32)[["t2m"]]).values(0, 120),
    )
    assert "t2m  K, " in repr(data)
    assert "grid of 4 × 5, 6 times" in repr(data)


def test_the_cloud_layout(tmp_path: Path) -> None:
    """Zarr with long names, longitudes from 0 to 360, levels, and a static mask."""
    ds = weather.field(np.float32).rename(t2m="2m_temperature", u10="wind", lat="latitude")
    ds = ds.rename(lon="longitude")
    ds = ds.assign_coords(longitude=ds.longitude % 360).sortby("longitude")
    ds = ds.isel(latitude=slice(None, None, -1))
    levels = xr.DataArray([500, 850], dims="level", coords={"level": [500, 850]})
    ds["u_component_of_wind"] = ds["wind"] * levels.astype("float32")
    ds["land_sea_mask"] = xr.ones_like(ds["wind"].isel(time=0, drop=True))
    ds.drop_vars("wind").chunk(time=2).to_zarr(tmp_path / "cloud.zarr", consolidated=False)
    path = str(tmp_path / "cloud.zarr")
    data = Dataset(
        {"era5": path}, target="era5.2m_temperature", static={"land": "era5.land_sea_mask"}
    )
    source = data.sources["era5"]
    assert source.names == (
        "2m_temperature",
        "u_component_of_wind_500",
        "u_component_of_wind_850",
    )
    expected = panel(weather.field(np.float32))
    values, plain = source.values(0, 120), expected.values(0, 120)
    np.testing.assert_array_equal(values[:, 0], plain[:, 0])
    np.testing.assert_allclose(values[:, 2], plain[:, 1] * 850, rtol=1e-6)
    np.testing.assert_array_equal(source.lon, expected.lon)
    assert (data.static_at("era5") == 1).all()


def test_pressure_in_pascal_is_named_in_hectopascal() -> None:
    ds = weather.field()[["u10"]].expand_dims(plev=[85000.0]).rename(u10="u")
    ds["plev"].attrs = {"units": "Pa", "standard_name": "air_pressure"}
    assert panel(ds).names == ("u_850",)


def test_stations_with_common_times() -> None:
    table = weather.stations()
    ds = table.set_index(["time", "station"])[["t2m"]].to_xarray()
    places = table.drop_duplicates("station").set_index("station")
    for name in ("lat", "lon", "elevation"):
        ds[name] = ("station", places[name].loc[ds.station.values].to_numpy())
    ds["t2m"].attrs["units"] = "degC"
    source = panel(ds.transpose("station", "time").set_coords(["lat", "lon"]))
    assert source.shape is None
    assert source.labels is not None
    assert sorted(source.labels.tolist()) == sorted(places.index.tolist())
    expected = table.sort_values(["time", "lat", "lon"])
    np.testing.assert_array_equal(source.values(0, 96)[:, 0], expected.t2m.to_numpy(np.float32))
    np.testing.assert_array_equal(source.columns["elevation"], expected.elevation[:12])


def test_moving_platforms_are_records() -> None:
    ds = xr.Dataset(
        {"sst": ("time", [1.0, 2.0, 3.0], {"units": "degC"})},
        {
            "time": pd.date_range("2020", periods=3),
            "lat": ("time", [1.0, 2.0, 3.0]),
            "lon": ("time", [179.0, -180.0, -179.0]),
        },
    )
    source, _ = read_dataset("ship", ds, ALL)
    assert isinstance(source, Records)
    assert source.lon.tolist() == [179.0, -180.0, -179.0]
    assert source.variable("sst").units == "degC"


def test_a_curvilinear_grid_and_a_single_place() -> None:
    lat, lon = np.meshgrid([50.0, 51.0], [1.0, 2.0, 3.0], indexing="ij")
    ds = xr.Dataset(
        {"t": (("time", "y", "x"), np.arange(12.0).reshape(2, 2, 3))},
        {
            "time": pd.date_range("2020", periods=2),
            "lat": (("y", "x"), lat),
            "lon": (("y", "x"), lon),
        },
    )
    source = panel(ds)
    assert source.shape is None
    assert source.values(0, 12)[:, 0].tolist() == list(range(12))
    alone = panel(ds.isel(y=0, x=1))
    assert (len(alone.lat), alone.steps) == (1, 2)
    assert alone.values(0, 2)[:, 0].tolist() == [1.0, 7.0]


@pytest.mark.parametrize("role", ["lat", "lon"])
def test_a_row_of_a_grid(role: str) -> None:
    ds, other = weather.field(), "lon" if role == "lat" else "lat"
    source = panel(ds.isel({role: 1}))
    np.testing.assert_array_equal(getattr(source, role), ds[role][1].values)
    np.testing.assert_array_equal(getattr(source, other), ds[other])
    assert source.labels is None
    expected = ds.t2m.isel({role: 1}).values.astype(np.float32)
    np.testing.assert_array_equal(source.values(0, source.size)[:, 0], expected.ravel())


def test_a_ship_along_a_parallel_is_a_trajectory() -> None:
    times = pd.date_range("2020", periods=3, freq="1h")
    coords = {"time": times, "lat": 50.0, "lon": ("time", [1.0, 2.0, 3.0])}
    source, _ = read_dataset("ship", xr.Dataset({"t": ("time", [4.0, 5.0, 6.0])}, coords), ALL)
    assert isinstance(source, Records)
    assert source.lat.tolist() == [50.0] * 3
    assert source.lon.tolist() == [1.0, 2.0, 3.0]


def test_2d_coordinates_may_have_their_dimensions_in_any_order() -> None:
    lat, lon = np.meshgrid([50.0, 51.0], [1.0, 2.0, 3.0], indexing="ij")
    coords = {"lat": (("y", "x"), lat), "lon": (("x", "y"), lon.T)}
    ds = xr.Dataset({"t": (("x", "y"), np.arange(6.0).reshape(3, 2))}, coords)
    source = panel(ds)
    assert source.lat.tolist() == [50.0] * 3 + [51.0] * 3
    assert source.lon.tolist() == [1.0, 2.0, 3.0] * 2
    assert source.values(0, 6)[:, 0].tolist() == [0, 2, 4, 1, 3, 5]


def test_levels_that_do_not_change_with_time_are_left_out() -> None:
    levels = xr.DataArray([500.0, 850.0], dims="level", coords={"level": [500.0, 850.0]})
    ds = weather.field()[["t2m"]] * levels
    source, notes = read_dataset("grid", ds.assign(mean=ds.t2m.mean("time")), ALL)
    assert source.names == ("t2m_500", "t2m_850")
    assert not source.columns
    assert [note.why for note in notes] == ["mean has dimensions ('lat', 'lon', 'level')"]


def test_a_forecast_with_two_axes_of_time_is_laid_out_by_valid_time() -> None:
    start, step = pd.date_range("2020", periods=2, freq="1D"), pd.to_timedelta([6, 12], unit="h")
    ds = xr.Dataset(
        {"t": (("time", "step", "lat", "lon"), np.arange(8.0).reshape(2, 2, 1, 2))},
        {
            "time": ("time", start, {"standard_name": "forecast_reference_time"}),
            "step": step,
            "valid_time": (
                ("time", "step"),
                start.to_numpy()[:, None] + step.to_numpy(),
                {"standard_name": "time"},
            ),
            "lat": [50.0],
            "lon": [0.0, 1.0],
        },
    )
    source = panel(ds)
    assert source.steps == 4
    assert source.times is not None
    assert source.times[1] == np.datetime64("2020-01-01T12:00")
    assert source.values(0, 8)[:, 0].tolist() == list(range(8))


def test_repeated_times_and_meridians_are_dropped_and_noted() -> None:
    ds = weather.field()
    twice = ds.isel(time=[0, 1, 1, 2])
    _, notes = read_dataset("grid", twice, ALL)
    assert [str(n) for n in notes] == [
        "grid: 1 of 4 dropped: duplicate times (for example 2019-03-01 06:00)"
    ]
    globe = ds.assign_coords(lon=[0.0, 90.0, 180.0, 270.0, 360.0])
    source, notes = read_dataset("grid", globe, ALL)
    assert [str(n) for n in notes] == ["grid: 1 of 5 dropped: repeated values of lon"]
    assert isinstance(source, Panel)
    assert source.shape == (4, 4)


def test_variables_with_other_dimensions_are_left_out_and_noted() -> None:
    ds = weather.field()
    ds["profile"] = ("depth", [1.0, 2.0])
    _, notes = read_dataset("grid", ds, ALL)
    assert [str(n) for n in notes] == ["grid: 1 left out: profile has dimensions ('depth',)"]
    members = ds[["t2m"]].expand_dims(number=3)
    message = (
        r"^Source 'grid' has no variable with dimensions \('time', 'lat', 'lon'\), only \{'t2m'"
    )
    with pytest.raises(ValueError, match=message):
        read_dataset("grid", members, ALL)
    assert panel(ds[["t2m"]].expand_dims(number=1)).size == 120


def test_latitudes_beyond_the_poles_are_refused() -> None:
    ds = weather.field().assign_coords(lat=[50.0, 70.0, 90.0, 110.0])
    message = (
        r"^Latitude 110 of source 'grid' \('lat', position 3\) is outside -90 to 90; is it in "
        r"metres\?$"
    )
    with pytest.raises(ValueError, match=message):
        read_dataset("grid", ds, ALL)


def test_missing_values_are_counted_and_all_missing_is_refused() -> None:
    ds = weather.field()
    ds["t2m"][0, :2] = np.nan
    source, notes = read_dataset("grid", ds, ALL)
    assert [str(n) for n in notes] == ["grid: 10 of 120 masked: t2m is missing"]
    assert source.variable("t2m").missing == pytest.approx(10 / 120)
    with pytest.raises(
        ValueError, match=r"^Variable 'u10' of source 'grid' is missing everywhere; leave"
    ):
        read_dataset("grid", ds.assign(u10=ds.u10 * np.nan), ALL)


def test_lazy_reading_gives_the_same_values(tmp_path: Path) -> None:
    ds = weather.field(np.float32)
    ds.chunk(time=2).to_zarr(tmp_path / "a.zarr", consolidated=False)
    opened = open_data(tmp_path / "a.zarr")
    assert isinstance(opened, xr.Dataset)
    lazy, loaded = panel(opened, memory=400), panel(ds)
    assert isinstance(lazy.store, Lazy)
    assert lazy.variable("t2m").missing is None
    for first, last in ((0, 120), (7, 33), (20, 20), (119, 120)):
        np.testing.assert_array_equal(lazy.values(first, last), loaded.values(first, last))


def test_a_store_ten_times_the_allowed_memory_is_read_within_it(tmp_path: Path) -> None:
    steps, allowed = 640, 2**21
    ds = xr.Dataset(
        {"t": (("time", "lat", "lon"), np.random.default_rng(0).random((steps, 64, 128), "f4"))},
        {
            "time": pd.date_range("2020", periods=steps, freq="1h"),
            "lat": np.linspace(-89, 89, 64),
            "lon": np.linspace(0, 357, 128),
        },
    )
    assert ds.t.nbytes == 10 * allowed
    ds.to_zarr(tmp_path / "a.zarr", encoding={"t": {"chunks": (4, 64, 128)}}, consolidated=False)
    expected = ds.t.values[[0, 80, 639]].reshape(3, -1)
    del ds
    tracemalloc.start()
    try:
        data = Dataset({"grid": tmp_path / "a.zarr"}, target="grid.t", memory=allowed)
        sampler = Sampler(data, {"grid": Count(1000)}, targets=Count(100), batch=2)
        for index in range(40):
            sampler.draw(index)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * allowed
    source = data.sources["grid"]
    places = len(source.lat)
    order = np.lexsort([wrap(np.tile(np.linspace(0, 357, 128), 64)), source.lat])
    for step, values in zip((0, 80, 639), expected, strict=True):
        got = source.values(step * places, (step + 1) * places)[:, 0]
        np.testing.assert_array_equal(got, values[order])


def test_lazy_values_can_be_read_from_many_threads() -> None:
    store = Lazy(lambda a, b: np.arange(a, b, dtype=np.float32)[:, None, None], 100, 3, memory=40)
    wrong: list[int] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            a, b = np.sort(rng.integers(0, 101, 2))
            if store.read(int(a), int(b)).ravel().tolist() != list(range(a, b)):
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.cached_bytes <= 40


def test_a_single_time_is_a_panel_of_one_step() -> None:
    ds = weather.field()
    source = panel(ds.isel(time=2))
    assert source.times is not None
    assert source.times.tolist() == panel(ds).times[2:3].tolist()  # type: ignore[index]
    np.testing.assert_array_equal(source.values(0, 20), panel(ds).values(40, 60))
    timeless = panel(ds.isel(time=2, drop=True))
    assert timeless.times is None
    np.testing.assert_array_equal(timeless.values(0, 20), source.values(0, 20))
    assert timeless.rows(None, None) == (0, 20)


def test_steps_without_a_time_and_stations_without_a_location_are_dropped_and_noted() -> None:
    ds = weather.field()
    times = ds.time.values.copy()
    times[1] = np.datetime64("NaT")
    source, notes = read_dataset("grid", ds.assign_coords(time=times), ALL)
    assert [str(n) for n in notes] == ["grid: 1 of 6 dropped: steps without a time"]
    np.testing.assert_array_equal(source.values(20, 40), panel(ds).values(40, 60))
    message = r"^All times of source 'grid' \('time'\) are missing; it needs at least one\.$"
    with pytest.raises(ValueError, match=message):
        read_dataset("grid", ds.assign_coords(time=np.full(6, np.datetime64("NaT", "ns"))), ALL)
    stations = xr.Dataset(
        {
            "t": (("time", "station"), np.arange(6.0).reshape(2, 3)),
            "kind": ("station", list("abc")),
        },
        {
            "time": pd.date_range("2020", periods=2),
            "lat": ("station", [1.0, np.nan, 2.0]),
            "lon": ("station", [1.0, 1.0, 2.0]),
            "station": ["x", "y", "z"],
        },
    )
    source, notes = read_dataset("s", stations, ALL)
    assert [str(n) for n in notes] == [
        "s: 1 of 3 dropped: invalid coordinates (for example station y: nan, 1)",
        "s: 1 left out: kind is not numeric",
    ]
    assert source.labels is not None
    assert source.labels.tolist() == ["x", "z"]
    assert source.values(0, 4)[:, 0].tolist() == [0.0, 2.0, 3.0, 5.0]


def test_elevations_are_static_at_stations_and_a_variable_on_a_grid() -> None:
    station = {"lat": ("station", [1.0, 2.0]), "lon": ("station", [1.0, 2.0])}
    ds = xr.Dataset({"t": ("station", [1.0, 2]), "elev": ("station", [5.0, 6])}, station)
    source = panel(ds)
    assert source.names == ("t",)
    assert source.columns["elev"].tolist() == [5.0, 6.0]
    grid = weather.field().isel(time=0, drop=True).rename(t2m="elevation", u10="land")
    assert panel(grid).names == ("elevation", "land")


def test_a_dask_dataset_is_read_in_its_chunks() -> None:
    ds = weather.field(np.float32)
    ds = xr.concat([ds, ds.assign_coords(time=ds.time + np.timedelta64(2, "D"))], "time")
    source = panel(ds.chunk(time=2), memory=1500)
    assert isinstance(source.store, Lazy)
    assert source.store.block == 2
    np.testing.assert_array_equal(source.values(0, 240), panel(ds).values(0, 240))


def test_an_empty_selection_is_refused() -> None:
    ds = weather.field().isel(lat=slice(None, None, -1))
    message = (
        r"^Source 'grid' is empty along dimension 'lat'; if it was selected, note that descending "
        r"latitudes are selected from north to south\.$"
    )
    with pytest.raises(ValueError, match=message):
        read_dataset("grid", ds.sel(lat=slice(50, 52)), ALL)


def test_pressure_that_is_observed_is_a_variable() -> None:
    ds = weather.field().rename(u10="pressure")
    assert panel(ds).names == ("pressure", "t2m")
    common = weather.field()[["u10"]].assign_coords(level=850)
    assert panel(common).names == ("u10",)


def test_bounds_of_cells_are_no_variables() -> None:
    ds = weather.field()
    ds["lat"].attrs["bounds"] = "lat_bnds"
    ds["lat_bnds"] = (("lat", "side"), np.stack([ds.lat - 0.5, ds.lat + 0.5], -1))
    assert panel(ds).names == ("t2m", "u10")


def test_counters_of_tracks_and_observations_are_no_variables() -> None:
    rng = np.random.default_rng(0)
    times = np.datetime64("2020-01-01", "ns") + np.arange(6).reshape(2, 3) * np.timedelta64(1, "h")
    dims = ("traj", "obs")
    ds = xr.Dataset(
        {
            "sst": (dims, rng.normal(size=(2, 3)), {"valid_min": -5.0}),
            "trajectory": (("traj",), [7, 9]),
        },
        {
            "time": (dims, times.astype("datetime64[ns]")),
            "lat": (dims, rng.uniform(0, 9, (2, 3))),
            "lon": (dims, rng.uniform(0, 9, (2, 3))),
        },
    )
    ds.sst[0, 0] = -99.0
    source, notes = read_dataset("ships", ds, ALL)
    assert source.names == ("sst",)
    assert source.size == 5
    assert [str(n) for n in notes] == [
        "ships: 1 left out: column 'trajectory' numbers the rows",
        "ships: 1 of 6 masked: sst is missing",
    ]
    flat = ds.isel(traj=1, drop=True).assign(traj=("obs", [0, 0, 1]))
    for numbered in (flat, flat.assign_coords(obs=[0, 1, 2])):
        source, notes = read_dataset("ships", numbered, ALL)
        assert source.names == ("sst",)
        assert "column 'traj' numbers the rows" in str(notes)
        assert ("column 'obs' numbers the rows" in str(notes)) == ("obs" in numbered.coords)


def test_sentinels_at_the_first_step_of_a_lazy_source_are_noticed() -> None:
    ds = weather.field()
    ds.t2m[0, 0, 0] = -9999.0
    _, notes = read_dataset("era5", ds, 200)
    assert [n.why for n in notes if n.action == "noticed"] == [
        "t2m is -9999, which often stands for missing; na_values=[-9999] masks it"
    ]


def test_values_that_cannot_be_read_name_their_variable(tmp_path: Path) -> None:
    """The chunks of a netCDF file are read only when their values are wanted."""
    ds = weather.field()
    path = tmp_path / "a.nc"
    ds.to_netcdf(path, engine="netcdf4", encoding={"t2m": {"zlib": True, "fletcher32": True}})
    content = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        chunk = file["t2m"].id.get_chunk_info(0)
    start = chunk.byte_offset + chunk.size // 2
    content[start : start + 8] = bytes(b ^ 255 for b in content[start : start + 8])
    path.write_bytes(content)
    with pytest.raises(
        OSError, match=r"^Cannot read 't2m' \(.+\); was the download or copy of its"
    ):
        read_dataset("era5", xr.open_dataset(path, engine="netcdf4"), ALL)
