"""Coordinates are found by attributes, then by names; longitudes may have any range."""

import numpy as np
import pandas as pd
import pytest
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from gridtnp.sources.coordinates import (
    possible,
    recognise,
    require_places,
    table_places,
    western_edge,
    wrap,
)


def test_names_of_the_field_are_recognised_without_case() -> None:
    for lat, lon, time in (
        ("lat", "lon", "time"),
        ("Latitude", "LONGITUDE", "Date"),
        ("nav_lat", "nav_lon", "valid_time"),
        ("y", "x", "datetime"),
    ):
        found = recognise({name: {} for name in ("t2m", lat, time, lon)})
        assert (found["lat"], found["lon"], found["time"]) == (lat, lon, time)


def test_attributes_win_over_names() -> None:
    found = recognise(
        {
            "lat": {"standard_name": "grid_latitude"},
            "phi": {"standard_name": "latitude"},
            "lon": {"units": "degrees_east"},
            "time": {"standard_name": "forecast_reference_time"},
            "valid_time": {"standard_name": "time"},
            "who": {"cf_role": "timeseries_id"},
        }
    )
    assert found["lat"] == "phi"
    assert (found["lon"], found["time"], found["station"]) == ("lon", "valid_time", "who")


def test_of_two_with_the_same_attributes_the_better_name_wins() -> None:
    north = {"units": "degrees_north"}
    assert recognise({"glat": north, "lat": north})["lat"] == "lat"


def test_missing_coordinates_are_reported_with_the_columns_that_exist() -> None:
    message = (
        r"^Source 'buoys' has no longitude among \['lat', 'sst'\]; name it 'lon' or give it the CF "
        r"standard_name 'longitude'\.$"
    )
    with pytest.raises(ValueError, match=message):
        require_places({"lat": "lat"}, "buoys", ["sst", "lat"])


@settings(max_examples=examples(100))
@given(
    st.floats(-360, 360, allow_nan=False),
    st.floats(-180, 180, allow_nan=False),
)
def test_wrapping_keeps_the_meridian_and_the_bits(lon: float, west: float) -> None:
    (got,) = wrap(np.array([lon]), west)
    assert west <= got < west + 360
    assert np.isclose((got - lon) % 360, 0, atol=1e-9) or np.isclose((got - lon) % 360, 360)
    assert wrap(np.array([got]), west)[0] == got


def test_invalid_coordinates() -> None:
    lat = np.array([90.0, 90.1, np.nan, 0.0, 0.0, -91.0])
    lon = np.array([0.0, 0.0, 0.0, 361.0, -360.0, 0.0])
    assert possible(lat, lon).tolist() == [True, False, False, False, True, False]


@pytest.mark.parametrize(
    ("lon", "torn"),
    [
        ([-10.0, 0.0, 10.0], False),
        ([350.0, 0.0, 10.0], False),
        (list(np.arange(0, 360, 5.0)), False),
        ([170.0, 175.0, 180.0, 185.0, 190.0], True),
        ([120.0, 130.0, 190.0, 210.0], True),
        ([-125.0, -66.0], False),
        ([5.0], False),
    ],
)
def test_regions_across_the_date_line_are_not_torn(lon: list[float], torn: bool) -> None:
    west = western_edge(np.array(lon))
    assert (west != -180.0) == torn
    turned = np.sort(wrap(np.array(lon), west))
    assert turned[-1] - turned[0] <= max(np.ptp(lon), np.ptp(wrap(np.array(lon))))
    if torn:
        assert turned[-1] - turned[0] == np.ptp(lon)


def test_text_as_a_coordinate_of_a_query_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"^Latitude 'lat' of source 'query' is not numeric \(first"
    ):
        table_places(pd.DataFrame({"lat": ["39.4N"], "lon": [1.0]}), "query")
