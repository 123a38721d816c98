"""Answers have the form of the query, and its coordinates bit for bit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import weather
import xarray as xr
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from gridtnp.inference.queries import Query, attributes_of, column
from gridtnp.sources.source import Variable


def ask(places: object) -> tuple[Query, dict[str, np.ndarray]]:
    """A query, and columns that identify every point."""
    query = Query.of(places)  # type: ignore[arg-type]
    mean = query.lat * 1000 + query.lon
    if query.time is not None:
        mean = mean + query.time.astype("datetime64[h]").astype(float)
    return query, {"t2m_mean": mean, "t2m_std": np.ones(len(mean))}


@settings(max_examples=examples(40))
@given(
    st.lists(st.floats(-90, 90), min_size=1, max_size=5, unique=True),
    st.lists(st.floats(-360, 360), min_size=1, max_size=5, unique=True),
    st.sampled_from([np.float32, np.float64]),
)
def test_the_coordinates_of_a_grid_come_back_bit_for_bit(
    lat: list[float], lon: list[float], dtype: type
) -> None:
    asked = xr.Dataset(coords={"latitude": np.array(lat, dtype), "lon": np.array(lon, dtype)})
    query, columns = ask(asked)
    answer = query.answer(columns)
    assert isinstance(answer, xr.Dataset)
    for name in ("latitude", "lon"):
        assert answer[name].dtype == dtype
        assert answer[name].values.tobytes() == asked[name].values.tobytes()
    expected = np.array(lat, dtype).astype(float)[:, None] * 1000 + np.array(lon, dtype).astype(
        float
    )
    np.testing.assert_array_equal(answer.t2m_mean, expected)


def test_the_order_of_dimensions_is_the_query_s() -> None:
    ds = weather.field().transpose("lon", "time", "lat")
    query, columns = ask(ds.t2m)
    answer = query.answer(columns)
    assert isinstance(answer, xr.Dataset)
    assert answer.t2m_mean.dims == ("lon", "time", "lat")
    hours = ds.time.values.astype("datetime64[h]").astype(float)
    expected = ds.lat * 1000 + ds.lon + xr.DataArray(hours, dims="time")
    np.testing.assert_array_equal(answer.t2m_mean, expected.transpose("lon", "time", "lat"))
    assert answer.attrs["Conventions"].startswith("CF-")
    assert "gridtnp" in answer.attrs["history"]


def test_curved_grids_stations_and_single_places() -> None:
    lat, lon = np.meshgrid([50.0, 51.0], [1.0, 2.0, 3.0], indexing="ij")
    curved = xr.Dataset(coords={"lat": (("y", "x"), lat), "lon": (("y", "x"), lon)})
    for asked in (curved, curved.isel(y=0), curved.isel(y=0, x=1)):
        query, columns = ask(asked)
        answer = query.answer(columns)
        assert isinstance(answer, xr.Dataset)
        np.testing.assert_array_equal(answer.t2m_mean, asked.lat * 1000 + asked.lon)
        assert answer.coords.keys() == asked.coords.keys()


def test_a_table_keeps_its_index_and_columns() -> None:
    table = weather.stations(days=1)[["station", "lat", "lon"]].set_index("station")
    table = table.sample(frac=1.0, random_state=0)
    query, columns = ask(table)
    answer = query.answer(columns, {"t2m_mean": {"units": "K"}})
    assert isinstance(answer, pd.DataFrame)
    pd.testing.assert_frame_equal(answer[["lat", "lon"]], table)
    np.testing.assert_array_equal(answer.t2m_mean, table.lat * 1000 + table.lon)
    assert answer.attrs["units"] == {"t2m_mean": "K"}
    placed = table.reset_index().set_index(["lat", "lon"])
    again = Query.of(placed).answer(columns)
    assert isinstance(again, pd.DataFrame)
    assert again.index.equals(placed.index)


def test_a_table_may_have_a_column_in_its_index_too() -> None:
    table = weather.stations(days=1)[["station", "lat", "lon", "elevation"]]
    table = table.set_index("station", drop=False)
    query, columns = ask(table)
    answer = query.answer(columns)
    assert isinstance(answer, pd.DataFrame)
    pd.testing.assert_frame_equal(answer[[*table]], table)
    np.testing.assert_array_equal(query.known("elevation"), table.elevation)
    by_height = Query.of(table.set_index("elevation")).known("altitude")
    np.testing.assert_array_equal(by_height, table.elevation)


def test_arrays_for_arrays() -> None:
    query, columns = ask((np.array([1.0, 2.0]), [3.0, 4.0]))
    assert query.time is None
    assert query.answer(columns) == columns
    with pytest.raises(
        ValueError, match=r"^2 latitudes and 1 longitudes do not make pairs; for a grid"
    ):
        Query.of((np.array([1.0, 2.0]), [3.0]))


def test_queries_that_cannot_be_answered() -> None:
    with pytest.raises(ValueError, match=r"^Source 'query' has no latitude among"):
        Query.of(pd.DataFrame({"lon": [1.0]}))
    with pytest.raises(
        ValueError, match=r"^Point 1 of the query at 91, 0 is outside latitudes -90 to 90"
    ):
        Query.of((np.array([0.0, 91.0]), [0.0, 0.0]))
    with pytest.raises(
        ValueError, match=r"^Cannot predict at a dict; give an xarray grid, a pandas"
    ):
        Query.of({"lat": [0.0], "lon": [0.0]})  # type: ignore[arg-type]
    query, columns = ask((np.array([0.0]), [0.0]))
    with pytest.raises(
        ValueError, match=r"^Column 'a' has shape \(2,\), but the query \(1,\); give one"
    ):
        query.answer({"a": np.zeros(2), **columns})


def test_columns_and_their_attributes() -> None:
    assert [column("t2m", what) for what in ("mean", "std", 0.05, 0.5, 0.025, 0.95)] == [
        "t2m_mean",
        "t2m_std",
        "t2m_q05",
        "t2m_q50",
        "t2m_q025",
        "t2m_q95",
    ]
    with pytest.raises(ValueError, match=r"^Quantile 5\.0 is not between 0 and 1\.$"):
        column("t2m", 5.0)
    about = {"standard_name": "air_temperature", "long_name": "2 m temperature", "units": "K"}
    variable = Variable("t2m", "K", about)
    assert attributes_of(variable, "mean") == {
        "long_name": "2 m temperature: predicted mean",
        "standard_name": "air_temperature",
        "units": "K",
    }
    assert "standard_name" not in attributes_of(variable, "std")
    assert attributes_of(variable, 0.05)["long_name"].endswith("5 % quantile")
