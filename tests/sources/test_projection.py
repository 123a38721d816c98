"""Projected coordinates and units other than degrees north and east."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import weather
import xarray as xr

from gridtnp.data.dataset import Dataset
from gridtnp.data.places import latlon_grid, observe
from gridtnp.inference.queries import Query
from gridtnp.sources.source import Source

UTM = "EPSG:25832"
MUNICH = (691604.0, 5334780.0)
"""Easting and northing of 48.1374 N, 11.5755 E."""
ROTATED = {
    "grid_mapping_name": "rotated_latitude_longitude",
    "grid_north_pole_latitude": 39.25,
    "grid_north_pole_longitude": -162.0,
}
LAMBERT = {
    "grid_mapping_name": "lambert_conformal_conic",
    "standard_parallel": [30.0, 60.0],
    "longitude_of_central_meridian": 10.0,
    "latitude_of_projection_origin": 45.0,
    "earth_radius": 6370000.0,
}


def source(data: object, crs: str | None = None) -> Source:
    made = Dataset({"obs": data}, target="obs", crs=crs and {"obs": crs})  # pyright: ignore[reportArgumentType]
    return made.sources["obs"]


def assert_places(one: Source, other: Source) -> None:
    np.testing.assert_allclose(one.lat, other.lat, atol=1e-9)
    np.testing.assert_allclose(one.lon, other.lon, atol=1e-9)
    np.testing.assert_array_equal(one.values(0, one.size), other.values(0, other.size))


# ---- degrees of other kinds ----------------------------------------------------------------------


def test_radians_and_degrees_west_and_south_are_converted() -> None:
    ds = weather.field().assign_coords(lon=weather.LONS - 100, lat=weather.LATS - 80)
    expected = source(ds)
    turned = ds.assign_coords(
        lon=("lon", -ds.lon.values, {"units": "degrees_west"}),
        lat=("lat", -ds.lat.values, {"units": "degree_S"}),
    )
    assert_places(source(turned), expected)
    radians = ds.assign_coords(
        lon=("lon", np.deg2rad(ds.lon.values), {"units": "radian"}),
        lat=("lat", np.deg2rad(ds.lat.values), {"units": "rad"}),
    )
    assert_places(source(radians), expected)
    for units in ("degrees", "degree", "deg", "°", "decimal degrees", "degrees_N", ""):
        ds.lat.attrs["units"] = units
        np.testing.assert_array_equal(source(ds).lat, expected.lat)


def test_a_table_tells_its_units() -> None:
    frame = weather.stations()
    expected = source(frame)
    west = frame.assign(lon=5 - frame.lon, lat=np.deg2rad(frame.lat))
    west.attrs["units"] = {"lon": "degrees_west", "lat": "radians"}
    made = source(west)
    np.testing.assert_allclose(np.sort(made.lat), np.sort(expected.lat))
    np.testing.assert_allclose(np.sort(made.lon), np.sort(expected.lon - 5))
    west.attrs["units"] = {"lat": "km"}
    with pytest.raises(ValueError, match=r"^Latitude 'lat' of source 'obs' is in 'km', not in deg"):
        source(west)


def test_places_to_observe_and_predict_at_declare_units_too() -> None:
    ds = weather.field()
    radians = ds.assign_coords(
        lat=("lat", np.deg2rad(ds.lat.values), {"units": "radians"}),
        lon=("lon", np.deg2rad(ds.lon.values), {"units": "radians"}),
    )
    np.testing.assert_allclose(Query.of(radians).lat, Query.of(ds).lat)
    sites = weather.stations(days=1)
    np.testing.assert_array_equal(observe(radians, sites).t2m, observe(ds, sites).t2m)
    np.testing.assert_allclose(latlon_grid(radians, factor=2).lat, latlon_grid(ds, factor=2).lat)
    ds.lat.attrs["units"] = "km"
    for refused in (Query.of, latlon_grid, lambda d: observe(d, sites)):
        with pytest.raises(ValueError, match=r"^Latitude 'lat' of source '\w+' is in 'km', not in"):
            refused(ds)


# ---- projections ---------------------------------------------------------------------------------


def test_a_table_in_utm() -> None:
    frame = pd.DataFrame({"easting": [MUNICH[0]] * 2, "northing": [MUNICH[1]] * 2, "t": [1.0, 2.0]})
    frame["time"] = pd.date_range("2019-03-01", periods=2)
    for names in (("easting", "northing"), ("x", "y"), ("lon", "lat"), ("X", "Y")):
        renamed = frame.rename(columns=dict(zip(("easting", "northing"), names, strict=True)))
        made = source(renamed, UTM)
        assert made.names == ("t",)
        np.testing.assert_allclose(made.lat, 48.13739943, atol=1e-7)
        np.testing.assert_allclose(made.lon, 11.57551298, atol=1e-7)
    kilometres = frame.assign(easting=frame.easting / 1000, northing=frame.northing / 1000)
    kilometres.attrs["units"] = {"easting": "km", "northing": "km"}
    np.testing.assert_allclose(source(kilometres, UTM).lat, 48.13739943, atol=1e-7)


def test_a_grid_in_utm_is_a_panel_of_its_points() -> None:
    x, y = MUNICH[0] + np.arange(3) * 1000.0, MUNICH[1] + np.arange(2) * 1000.0
    values = np.arange(6.0).reshape(2, 3)
    ds = xr.Dataset({"t": (("y", "x"), values)}, {"y": ("y", y, {"units": "m"}), "x": x})
    made = source(ds, UTM)
    assert made.size == 6
    first = int(made.values(0, 6)[:, 0].argmin())
    np.testing.assert_allclose(
        (made.lat[first], made.lon[first]), (48.137399, 11.575513), atol=1e-6
    )
    again = source(ds.assign_coords(y=("y", y / 1000, {"units": "km"})), UTM)
    assert_places(again, made)
    # beside true latitudes, projected coordinates are not needed
    both = ds.assign_coords(
        lat=(("y", "x"), np.zeros((2, 3))), lon=(("y", "x"), np.arange(6.0).reshape(2, 3))
    )
    assert (source(both).lat == 0).all()


def test_a_grid_mapping_is_followed(tmp_path: Path) -> None:
    axis = (
        {"standard_name": "grid_latitude", "units": "degrees"},
        {
            "standard_name": "grid_longitude",
            "units": "degrees",
        },
    )
    ds = xr.Dataset(
        {
            "t": (("rlat", "rlon"), np.ones((2, 2)), {"grid_mapping": "pole"}),
            "pole": ((), 0, ROTATED),
        },
        {"rlat": ("rlat", [0.0, 1.0], axis[0]), "rlon": ("rlon", [0.0, 1.0], axis[1])},
    )
    ds.to_netcdf(tmp_path / "a.nc")
    made = source(tmp_path / "a.nc")
    nearest = np.abs(made.lat - 50.75) + np.abs(made.lon - 18.0)
    assert nearest.min() < 1e-9
    lambert = xr.Dataset(
        {"t": (("y", "x"), np.ones((1, 1)), {"grid_mapping": "crs"}), "crs": ((), 0, LAMBERT)},
        {"y": ("y", [200.0], {"units": "km"}), "x": ("x", [100.0], {"units": "km"})},
    )
    made = source(lambert)
    np.testing.assert_allclose((made.lat[0], made.lon[0]), (46.8549020, 11.3618684), atol=1e-6)
    plain = lambert.assign_coords(y=[48.0], x=[11.0])
    plain["crs"].attrs = {"grid_mapping_name": "latitude_longitude"}
    assert source(plain).lat.tolist() == [48.0]


@pytest.mark.parametrize(
    ("crs", "attributes", "message"),
    [
        ("EPSG:99999", {}, r"^crs='EPSG:99999' of source 'obs' is unknown \(.+\); give an EPSG"),
        (
            UTM,
            {"units": "degrees"},
            r"^Coordinate 'x' of source 'obs' is in 'degrees', but its pro",
        ),
        ("EPSG:4258", {"units": "km"}, r"^Coordinate 'x' of source 'obs' is in 'km', but its proj"),
    ],
)
def test_a_projection_that_does_not_fit(crs: str, attributes: dict[str, str], message: str) -> None:
    ds = xr.Dataset(
        {"t": (("y", "x"), np.ones((1, 1)))}, {"y": [1.0], "x": ("x", [1.0], attributes)}
    )
    with pytest.raises(ValueError, match=message):
        source(ds, crs)


def test_grid_mappings_that_say_nothing() -> None:
    ds = xr.Dataset(
        {"t": (("y", "x"), np.ones((1, 1))), "crs": ((), 0, {"grid_mapping_name": "odd"})},
        {"y": [1.0], "x": [1.0]},
    )
    with pytest.raises(
        ValueError, match=r"^Grid mapping 'crs' of source 'obs' is not a projection"
    ):
        source(ds)
    with pytest.raises(ValueError, match=r"^Source 'obs' has several grid mappings, \['crs', 'two"):
        source(ds.assign(two=ds.crs))
    with pytest.raises(ValueError, match=r"^Unknown source 'ob' in crs; did you mean 'obs'\?$"):
        Dataset({"obs": ds}, target="obs", crs={"ob": UTM})


def test_points_without_a_location_in_the_projection_are_dropped() -> None:
    frame = pd.DataFrame({"x": [MUNICH[0], 1e12], "y": [MUNICH[1]] * 2, "t": [1.0, 2.0]})
    with pytest.warns(UserWarning, match=r"obs: 1 of 2 dropped: invalid coordinates"):
        assert source(frame, UTM).size == 1


def test_packed_values_and_limits(tmp_path: Path) -> None:
    """Whole-numbered limits are those of the packed values, others those of the values."""
    ds = weather.field()
    packed = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}
    low, high = float(ds.t2m.min()), float(ds.t2m.max())
    for limits in (
        np.array([-100, 100], np.int16),  # 279 to 281
        np.array([279.0, 281.0]),
    ):
        ds.t2m.attrs["valid_range"] = limits
        ds.to_netcdf(tmp_path / "a.nc", encoding={"t2m": packed})
        for data in (tmp_path / "a.nc", xr.open_dataset(tmp_path / "a.nc")):
            made = Dataset({"obs": data}, target="obs.t2m").sources["obs"].variable("t2m")
            assert made.low is not None
            assert made.high is not None
            assert low < 278.99 < 279 <= made.low
            assert made.high <= 281.001 < high
        (tmp_path / "a.nc").unlink()
    raw = ds.assign(t2m=ds.t2m.assign_attrs(scale_factor=0.1))
    with pytest.raises(
        ValueError, match=r"^Variable 't2m' of source 'obs' is packed, since its at"
    ):
        Dataset({"obs": raw}, target="obs.t2m")


@pytest.mark.parametrize("first", ["cfgrib", "gridtnp"])
def test_projections_and_grib_work_in_one_process(first: str) -> None:
    """Both bring a library PROJ of their own; with the wrong one the process crashes."""
    code = (
        f"import {first}, pandas as pd, gridtnp as gt\n"
        "table = pd.DataFrame({'x': [691604.0], 'y': [5334780.0], 't': [1.0]})\n"
        "data = gt.Dataset({'obs': table}, target='obs.t', crs={'obs': 'EPSG:25832'})\n"
        "import cfgrib, eccodes\n"
        "data = gt.Dataset({'obs': table}, target='obs.t', crs={'obs': 'EPSG:25832'})\n"
        "print(round(float(data.sources['obs'].lat[0]), 6))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "48.137399\n", done.stderr
