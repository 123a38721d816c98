"""Fields sampled at stations, and grids to predict on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import weather
import xarray as xr

from gridtnp.data.dataset import Dataset
from gridtnp.data.places import latlon_grid, observe


def test_a_list_of_stations_sees_the_nearest_grid_point(tmp_path: Path) -> None:
    """A list like that of HadISD: nothing but latitudes and longitudes, some of them twice."""
    ds = weather.field()
    places = pd.DataFrame({"lat": [50.1, 53.75, 50.1], "lon": [-2.4, -359.0, -2.4]})
    places.to_csv(tmp_path / "stations.csv", index=False)
    seen = observe(ds, tmp_path / "stations.csv")
    assert dict(seen.sizes) == {"time": 6, "station": 3}
    np.testing.assert_array_equal(seen.t2m[:, 0], ds.t2m.sel(lat=50.0, lon=-2.5))
    np.testing.assert_array_equal(seen.t2m[:, 1], ds.t2m.sel(lat=53.75, lon=1.25))
    assert seen.lat.values.tolist() == [50.1, 53.75, 50.1]
    lazily = observe(ds, tmp_path / "stations.csv", memory=0)
    assert lazily.t2m.chunks is not None
    xr.testing.assert_identical(lazily.load(), seen)
    data = Dataset({"stations": seen, "era5": ds[["u10"]]}, target="stations.t2m")
    assert "stations: 3 stations, 6 times" in repr(data)
    train, _, test = data.split(["2019-03-01T12:00", "2019-03-02"])
    assert train.times() is not None
    assert test.times() is not None


def test_the_nearest_grid_point_may_be_across_the_seam() -> None:
    lon = np.arange(0, 360, 10.0)
    ds = xr.DataArray(np.stack([lon]), {"lat": [0.0], "lon": lon}, ("lat", "lon"), "v")
    seen = observe(ds, pd.DataFrame({"lat": [0.0, 0.0], "lon": [-4.0, 356.0], "id": ["a", "b"]}))
    assert seen.v.values.tolist() == [0.0, 0.0]
    assert seen.station.values.tolist() == ["a", "b"]


def test_names_and_elevations_come_along() -> None:
    seen = observe(weather.field(), weather.stations(days=1))
    assert seen.station.values.tolist()[:2] == ["S00", "S01"]
    assert "elevation" in seen.coords


def test_stations_need_valid_coordinates(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^Row 1 of the stations has latitude 95 and longitude 0; they must"
    ):
        observe(weather.field(), pd.DataFrame({"lat": [0.0, 95.0], "lon": [0.0, 0.0]}))
    weather.field().to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    with pytest.raises(TypeError, match=r"^stations=.*a\.nc.* is not a table with one row per"):
        observe(weather.field(), tmp_path / "a.nc")
    with pytest.raises(ValueError, match=r"^Source 'stations' has no latitude among \['name'\]"):
        observe(weather.field(), pd.DataFrame({"name": ["a"]}))


def test_a_finer_grid_keeps_the_points_of_the_first() -> None:
    ds = weather.field()
    fine = latlon_grid(ds, factor=4)
    assert dict(fine.sizes) == {"lat": 13, "lon": 17}
    np.testing.assert_array_equal(fine.lat.values[::4], ds.lat.values)
    np.testing.assert_array_equal(fine.lon.values[::4], ds.lon.values)
    down = latlon_grid(ds.isel(lat=slice(None, None, -1)), factor=2)
    assert (np.diff(down.lat.values) < 0).all()
    same = latlon_grid(ds)
    np.testing.assert_array_equal(same.lat.values, ds.lat.values)
    assert fine.lat.attrs["units"] == "degrees_north"


def test_a_grid_around_the_globe_closes() -> None:
    globe = xr.Dataset(coords={"lat": [0.0, 1.0], "lon": np.arange(0, 360, 90.0)})
    fine = latlon_grid(globe, factor=2)
    assert fine.lon.values.tolist() == list(np.arange(0, 360, 45.0))


def test_a_grid_from_a_box() -> None:
    grid = latlon_grid(lat=(50, 51), lon=(0, 360), step=0.5)
    assert grid.lat.values.tolist() == [50.0, 50.5, 51.0]
    assert grid.sizes["lon"] == 720
    across = latlon_grid(lat=(51, 50), lon=(179, -179), step=0.5)
    assert across.lat.values.tolist() == [50.0, 50.5, 51.0]
    assert across.lon.values.tolist() == [179.0, 179.5, 180.0, 180.5, 181.0]
    greenwich = latlon_grid(lat=(50, 51), lon=(350, 10), step=10)
    assert greenwich.lon.values.tolist() == [-10.0, 0.0, 10.0]
    with pytest.raises(
        ValueError, match=r"^The grid is not specified; refine another, latlon_grid\(ds, factor"
    ):
        latlon_grid(lat=(50, 51))
    with pytest.raises(ValueError, match=r"^factor=0: must be at least 1\.$"):
        latlon_grid(weather.field(), factor=0)
    curved = xr.Dataset(coords={"lat": (("y", "x"), [[1.0]]), "lon": (("y", "x"), [[1.0]])})
    with pytest.raises(
        ValueError, match=r"^Not a latitude-longitude grid: 'lat' has dimensions \('y', 'x'\)"
    ):
        latlon_grid(curved)
