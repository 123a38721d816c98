"""Answers in the form of the question, coordinates bit for bit, on disk and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import weather
import xarray as xr
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from gridtnp.data.sources import Variable
from gridtnp.inference.queries import Query, attributes_of, column, write


def ask(places: object) -> tuple[Query, dict[str, np.ndarray]]:
    """A query and an answer from which every point can be told."""
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


def test_arrays_for_arrays() -> None:
    query, columns = ask((np.array([1.0, 2.0]), [3.0, 4.0]))
    assert query.time is None
    assert query.answer(columns) == columns
    with pytest.raises(
        ValueError, match=r"^Latitudes and longitudes must be pairs, got 2 and 1; for a"
    ):
        Query.of((np.array([1.0, 2.0]), [3.0]))


def test_queries_that_cannot_be_answered() -> None:
    with pytest.raises(ValueError, match=r"^Source 'query' has no latitude among"):
        Query.of(pd.DataFrame({"lon": [1.0]}))
    with pytest.raises(
        ValueError, match=r"^Places to predict at must .* but point 1 is at 91, 0\.$"
    ):
        Query.of((np.array([0.0, 91.0]), [0.0, 0.0]))
    with pytest.raises(ValueError, match=r"^Places to predict at must be .* tuple of .*, got dict"):
        Query.of({"lat": [0.0], "lon": [0.0]})  # type: ignore[arg-type]
    query, columns = ask((np.array([0.0]), [0.0]))
    with pytest.raises(
        ValueError, match=r"^Column 'a' must have one value per point, \(1,\), got \(2,\)"
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
    with pytest.raises(ValueError, match=r"^A quantile must be between 0 and 1, got 5\.0\.$"):
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


def test_answers_survive_files(tmp_path: Path) -> None:
    query, columns = ask(weather.field())
    answer = query.answer(columns, {"t2m_mean": {"units": "K"}})
    assert isinstance(answer, xr.Dataset)
    for name in ("a.nc", "a.zarr"):
        path = write(answer, tmp_path / name)
        back = xr.open_dataset(path, engine="netcdf4" if name == "a.nc" else "zarr")
        xr.testing.assert_identical(back.load(), answer)
        back.close()
    write(answer, tmp_path / "a.parquet")
    flat = pd.read_parquet(tmp_path / "a.parquet")
    assert len(flat) == 120
    table = weather.stations(days=1)[["station", "lat", "lon"]].set_index("station")
    query, columns = ask(table)
    made = query.answer(columns)
    assert isinstance(made, pd.DataFrame)
    write(made, tmp_path / "b.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "b.parquet"), made)
    write(made, tmp_path / "b.csv")
    assert pd.read_csv(tmp_path / "b.csv", index_col="station").equals(made)
    assert not list(tmp_path.glob(".*part"))


def test_a_zarr_store_grows(tmp_path: Path) -> None:
    ds = weather.field()
    whole = None
    for start in range(0, 6, 2):
        query, columns = ask(ds.isel(time=slice(start, start + 2)))
        answer = query.answer(columns)
        assert isinstance(answer, xr.Dataset)
        write(answer, tmp_path / "a.zarr", append="time")
        whole = answer if whole is None else xr.concat([whole, answer], "time")
    assert whole is not None
    back = xr.open_zarr(tmp_path / "a.zarr", chunks=None)
    xr.testing.assert_equal(back.load(), whole)


def test_regions_of_a_zarr_store_are_written_one_by_one(tmp_path: Path) -> None:
    """Any tile of it, found by its coordinates; the rest stays as it was."""
    query, columns = ask(weather.field())
    whole, path = query.answer(columns), tmp_path / "a.zarr"
    assert isinstance(whole, xr.Dataset)
    write(whole * np.nan, path)
    lat, lon = (next(d for d in whole.dims if str(d).startswith(n)) for n in ("lat", "lon"))
    tile = {"time": slice(1, 3), lat: slice(2, 5), lon: slice(1, 4)}
    write(whole.isel(tile), path, region=True)
    back = xr.open_zarr(path, chunks=None).load()
    for name in columns:
        np.testing.assert_array_equal(back[name].isel(tile), whole[name].isel(tile))
        assert int(back[name].notnull().sum()) == whole[name].isel(tile).size
    for step in range(whole.sizes["time"]):
        write(whole.isel(time=slice(step, step + 1)), path, region=True)
    xr.testing.assert_equal(xr.open_zarr(path, chunks=None).load(), whole)
    elsewhere = whole.isel(time=slice(0, 1)).assign_coords(time=[np.datetime64("1900-01-01", "ns")])
    with pytest.raises(ValueError, match="must have consecutive coordinates of the store"):
        write(elsewhere, path, region=True)
    with pytest.raises(ValueError, match="does not exist; write it first"):
        write(whole, tmp_path / "b.zarr", region=True)
    with pytest.raises(ValueError, match="is to be appended to"):
        write(whole, path, region=True, append="time")
    with pytest.raises(ValueError, match="Only a Zarr store"):
        write(whole, tmp_path / "b.nc", region=True)


def test_bad_paths(tmp_path: Path) -> None:
    query, columns = ask(weather.field())
    answer = query.answer(columns)
    assert isinstance(answer, xr.Dataset)
    with pytest.raises(
        FileNotFoundError, match=r"^The folder to write to must exist, but '.*/none' does"
    ):
        write(answer, tmp_path / "none" / "a.nc")
    with pytest.raises(ValueError, match=r"^Unknown file ending of"):
        write(answer, tmp_path / "a.doc")
    with pytest.raises(ValueError, match=r"^GRIB cannot be written, got"):
        write(answer, tmp_path / "a.grib")
    with pytest.raises(ValueError, match=r"^Only a Zarr store can be appended to, got"):
        write(answer, tmp_path / "a.nc", append="time")
    with pytest.raises(ValueError, match=r"^A table is written to \.parquet or \.csv, got"):
        write(pd.DataFrame({"a": [1]}), tmp_path / "a.nc")
    write(answer, tmp_path / "a.nc")
    with pytest.raises(
        FileExistsError, match=r"must not be there yet; overwrite=True replaces it\.$"
    ):
        write(answer, tmp_path / "a.nc")
    write(answer, tmp_path / "a.nc", overwrite=True)
