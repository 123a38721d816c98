"""Features: interpolated static fields, the calendar and the sun."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from gridtnp.data.features import COMPUTED, StaticField, sine_of_solar_elevation
from gridtnp.sources.reading import read_source


def times(*texts: str) -> np.ndarray:
    return np.array(texts, "datetime64[ms]")


def static(lat: np.ndarray, lon: np.ndarray, values: np.ndarray) -> StaticField:
    array = xr.DataArray(values, {"lat": lat, "lon": lon}, ("lat", "lon"), "height")
    source, _ = read_source("height", array, 2**30)
    return StaticField.of("height", source, "height")


def test_a_plane_is_interpolated_exactly() -> None:
    lat, lon = np.array([10.0, 8.0, 5.0]), np.array([355.0, 358.0, 1.0, 4.0])
    turned = (lon + 180) % 360 - 180
    field = static(lat, lon, lat[:, None] + 2 * turned[None])
    rng = np.random.default_rng(0)
    y, x = rng.uniform(5, 10, 50), rng.uniform(-5, 4, 50)
    np.testing.assert_allclose(field.at(y, x), y + 2 * x, atol=1e-5)
    np.testing.assert_allclose(field.at(y, x + 360), y + 2 * x, atol=1e-4)


def test_the_globe_has_no_seam() -> None:
    lon = np.arange(0, 360, 10.0)
    field = static(np.array([-45.0, 45.0]), lon, np.cos(np.deg2rad(np.stack([lon, lon]))))
    got = field.at(np.zeros(2), np.array([-5.0, 355.0]))
    np.testing.assert_allclose(got, (1 + np.cos(np.deg2rad(10))) / 2, rtol=1e-6)


def test_one_cell_outside_has_the_value_at_the_edge_and_farther_out_is_nan() -> None:
    field = static(np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    lat = np.array([-0.9, 1.9, 0.0, 0.0, -1.1, 0.0, 0.0])
    lon = np.array([0.0, 1.0, 1.9, -0.9, 0.0, 2.1, -1.1])
    np.testing.assert_array_equal(field.at(lat, lon), [1, 4, 2, 1, np.nan, np.nan, np.nan])


def test_a_single_row_holds_for_all_latitudes() -> None:
    field = static(np.array([0.0]), np.array([0.0, 1.0]), np.array([[1.0, 2.0]]))
    np.testing.assert_array_equal(field.at(np.array([0.0, 40.0]), np.array([0.5, 1.0])), [1.5, 2.0])


def test_missing_corners_do_not_count() -> None:
    field = static(
        np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([[1.0, np.nan], [1.0, 3.0]])
    )
    assert field.at(np.array([0.0]), np.array([0.5]))[0] == 1.0
    assert field.at(np.array([0.5]), np.array([0.5]))[0] == pytest.approx(5 / 3)
    assert np.isnan(field.at(np.array([0.0]), np.array([1.0]))[0])


def test_the_calendar_goes_around() -> None:
    when = times("2019-01-01", "2019-07-02T12:00", "2019-12-31T23:59")
    zero = np.zeros(3)
    day = COMPUTED["day_of_year"][1](when, zero, zero)
    np.testing.assert_allclose(day[0], [0, 1], atol=1e-9)
    np.testing.assert_allclose(day[1], [0, -1], atol=0.01)
    np.testing.assert_allclose(day[2], [0, 1], atol=0.01)
    hour = COMPUTED["hour"][1](times("2019-01-01T06:00"), zero[:1], zero[:1])
    np.testing.assert_allclose(hour, [[1, 0]], atol=1e-9)
    local = COMPUTED["local_hour"][1](times("2019-01-01T06:00"), zero[:1], np.array([90.0]))
    np.testing.assert_allclose(local, [[0, -1]], atol=1e-9)
    month = COMPUTED["month"][1](times("1895-04-15", "2019-04-01"), zero[:2], zero[:2])
    np.testing.assert_allclose(month, [[1, 0], [1, 0]], atol=1e-9)


def test_hours_are_exact() -> None:
    hours = COMPUTED["hours"][1](times("1970-01-02T06:30", "2019-03-20T12:00"), *np.zeros((2, 2)))
    assert hours[:, 0].tolist() == [30.5, 431412.0]


def test_every_feature_has_its_columns() -> None:
    for columns, compute in COMPUTED.values():
        made = compute(times("2019-03-20", "2020-02-29T01:00"), np.array([1.0, 2]), np.zeros(2))
        assert made.shape == (2, len(columns))


@pytest.mark.parametrize(
    ("time", "lat", "lon", "degrees"),
    [
        ("2019-06-21T15:54", 23.44, -58.1, 90.0),  # overhead at the tropic, at its noon
        ("2019-06-21T12:02", 51.48, 0.0, 61.96),  # noon at Greenwich
        ("2019-12-22T11:58", 51.48, 0.0, 15.08),
        ("2019-03-20T21:58", 90.0, 0.0, 0.0),  # equinox seen from the pole
        ("2019-06-21T00:00", -90.0, 0.0, -23.43),
    ],
)
def test_the_sun_stands_where_the_almanac_says(
    time: str, lat: float, lon: float, degrees: float
) -> None:
    sine = sine_of_solar_elevation(times(time), np.array([lat]), np.array([lon]))
    assert np.rad2deg(np.arcsin(sine))[0] == pytest.approx(degrees, abs=0.2)


@pytest.mark.parametrize("across", ["lat", "lon"])
def test_beside_a_gap_within_an_axis_the_value_at_its_edge_holds(across: str) -> None:
    """Up to one step into a gap, on both sides, and the grid points themselves."""
    axis, other = np.array([0.0, 1.0, 2.0, 10.0, 11.0]), np.array([0.0, 1.0])
    values = np.stack([axis, axis], 1)
    x, y = np.array([1.5, 2.0, 2.9, 3.1, 8.9, 9.1, 10.0, 10.5]), np.full(8, 0.5)
    if across == "lat":
        got = static(axis, other, values).at(x, y)
    else:
        got = static(other, axis, values.T).at(y, x)
    np.testing.assert_array_equal(got, [1.5, 2, 2, np.nan, np.nan, 10, 10, 10.5])
