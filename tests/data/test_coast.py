"""The share of land from the coastlines in the package."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.path import Path as Polygon

import gridtnp as gt

PLACES = {  # (lat, lon): whether it is land
    (52.5, -1.5): True, (54.0, 3.5): False, (51.0, -30.0): False, (48.0, 10.0): True,
    (-25.0, 134.0): True, (0.0, 0.0): False, (64.9, -18.5): True, (-85.0, 10.0): True,
    (67.0, 175.0): True, (67.0, -179.0): True, (60.0, -179.5): False, (23.0, 5.0): True,
}  # fmt: skip


@pytest.mark.parametrize("turn", [0.0, 360.0])
def test_places_that_everyone_knows(turn: float) -> None:
    for (lat, lon), is_land in PLACES.items():
        land = gt.land_fraction(xr.Dataset(coords={"lat": [lat], "lon": [lon + turn]}))
        assert land.item() == pytest.approx(float(is_land), abs=0.02), (lat, lon)


def test_it_is_what_the_polygons_say() -> None:
    """By another algorithm, on both sides of the coast."""
    grid = gt.latlon_grid(lat=(49.0, 60.0), lon=(-11.0, 3.0), step=0.5)
    land = gt.land_fraction(grid, scale=1e-6)
    lon, lat = (v.ravel() for v in np.meshgrid(grid["lon"], grid["lat"]))
    inside = np.zeros(len(lat), int)
    for ring in gt.demo.coastline():
        inside += Polygon(ring).contains_points(np.stack([lon, lat], -1))
    np.testing.assert_array_equal(land.to_numpy().ravel() > 0.5, inside % 2 == 1)
    assert 0.2 < land.mean() < 0.6


def test_it_changes_over_the_scale() -> None:
    """On the way from land to sea, it passes 1/2 at the coast, and the slope is 1 / 2 scale."""
    way = xr.Dataset(coords={"lat": [52.0], "lon": np.linspace(-6.0, -3.0, 601)})
    for scale in (10.0, 25.0):
        land = gt.land_fraction(way, scale=scale)[0].to_numpy()
        km = 3.0 / 600 * 111.2 * np.cos(np.deg2rad(52.0))
        assert np.abs(np.diff(land)).max() <= km / (2 * scale) * 1.01
        assert land.min() < 0.1
        assert land.max() > 0.6
    assert land.max() < gt.land_fraction(way, scale=5.0).max()


def test_coordinates_are_those_of_the_grid() -> None:
    grid = xr.Dataset(coords={"longitude": [350.0, 352.0], "latitude": [53.0, 51.0, 49.0]})
    land = gt.land_fraction(grid)
    assert land.dims == ("latitude", "longitude")
    assert land["longitude"].equals(grid["longitude"])
    field = xr.DataArray(np.zeros((3, 2)), grid.coords, ("latitude", "longitude"))
    xr.testing.assert_identical(gt.land_fraction(field), land)


def test_bad_input() -> None:
    grid = gt.latlon_grid(lat=(49.0, 50.0), lon=(0.0, 1.0), step=0.5)
    with pytest.raises(ValueError, match=r"^scale=0: must be positive, in km\.$"):
        gt.land_fraction(grid, scale=0)
    with pytest.raises(ValueError, match="latitude"):
        gt.land_fraction(xr.Dataset(coords={"a": [1.0]}))
