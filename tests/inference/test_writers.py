"""Answers on disk and back, complete or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import weather
import xarray as xr
from test_queries import ask

from gridtnp.inference.writers import open_stream, write


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
    write(made, tmp_path / "b.csv.gz")
    assert (tmp_path / "b.csv.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert pd.read_csv(tmp_path / "b.csv.gz", index_col="station").equals(made)
    assert not list(tmp_path.glob(".*"))


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
    with pytest.raises(ValueError, match=r"^The region does not fit Zarr store .*a\.zarr"):
        write(elsewhere, path, region=True)
    with pytest.raises(ValueError, match=r"^No such Zarr store: .*; write it whole before"):
        write(whole, tmp_path / "b.zarr", region=True)
    with pytest.raises(ValueError, match=r"^append= and region= exclude each other"):
        write(whole, path, region=True, append="time")
    with pytest.raises(
        ValueError, match=r"b\.nc' is no Zarr store; only those take append= and region="
    ):
        write(whole, tmp_path / "b.nc", region=True)


def test_bad_paths(tmp_path: Path) -> None:
    query, columns = ask(weather.field())
    answer = query.answer(columns)
    assert isinstance(answer, xr.Dataset)
    with pytest.raises(FileNotFoundError, match=r"^No such folder: '.*/none'; create it"):
        write(answer, tmp_path / "none" / "a.nc")
    with pytest.raises(ValueError, match=r"^Unknown file ending of"):
        write(answer, tmp_path / "a.doc")
    with pytest.raises(ValueError, match=r"^GRIB cannot be written: '.*'; use \.nc or \.zarr"):
        write(answer, tmp_path / "a.grib")
    with pytest.raises(ValueError, match=r"a\.nc' is no Zarr store; only those take append="):
        write(answer, tmp_path / "a.nc", append="time")
    with pytest.raises(
        ValueError, match=r"^A table cannot be written to .*; use \.parquet or \.csv\.$"
    ):
        write(pd.DataFrame({"a": [1]}), tmp_path / "a.nc")
    write(answer, tmp_path / "a.nc")
    with pytest.raises(
        FileExistsError, match=r"already exists; pass overwrite=True to replace it\.$"
    ):
        write(answer, tmp_path / "a.nc")
    write(answer, tmp_path / "a.nc", overwrite=True)


@pytest.mark.parametrize("name", ["a.nc", "a.zarr", "a.csv"])
def test_a_failed_write_leaves_what_was_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, columns = ask(weather.field())
    answer = query.answer(columns)
    assert isinstance(answer, xr.Dataset)
    path = write(answer, tmp_path / name)
    before = sorted(p.name for p in tmp_path.rglob("*"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(answer * 0, path, overwrite=True)
    with (
        pytest.raises(OSError, match="No space left"),
        open_stream(path, None, overwrite=True) as file,
    ):
        file.add(answer * 0)
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.rglob("*")) == before
    if name != "a.csv":
        engine = "netcdf4" if name == "a.nc" else "zarr"
        with xr.open_dataset(path, engine=engine) as back:
            xr.testing.assert_equal(back.load(), answer)
    write(answer * 0, path, overwrite=True)
