"""Answers on disk and back, complete or not at all."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import weather
import xarray as xr
from test_queries import ask

from gridtnp import files
from gridtnp.inference.regions import Regions
from gridtnp.inference.stores import RegionStore
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


FORMATS = ("a.nc", "a.zarr", "a.parquet", "a.csv", "a.csv.gz")


def answer_of(days: int = 6) -> xr.Dataset:
    query, columns = ask(weather.field().isel(time=slice(0, days)))
    answer = query.answer(columns)
    assert isinstance(answer, xr.Dataset)
    return answer


def stream(answer: xr.Dataset, path: Path) -> None:
    """Write an answer time by time, as `predict` does."""
    if path.suffix != ".zarr":
        with open_stream(path, "time", overwrite=True) as file:
            for time in range(answer.sizes["time"]):
                file.add(answer.isel(time=slice(time, time + 1)))
        return
    regions = Regions.of(answer, sizes={"time": 1})
    columns = {str(name): dict(variable.attrs) for name, variable in answer.data_vars.items()}
    with files.staged(path) as new, files.reporting(path):
        store = RegionStore.create(new, answer.drop_vars(columns), columns, regions, {})
        for number in range(len(regions)):
            store.write(regions, number, answer.isel(regions.where(number)))
        assert store.finish()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with hidden ones."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", FORMATS)
def test_a_failed_write_leaves_what_was_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = answer_of()
    path = write(answer, tmp_path / name)
    before = contents(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"^Cannot write .*No space left.*previous version is unch"):
        write(answer * 0, path, overwrite=True)
    with pytest.raises(OSError, match=r"^Cannot write .*No space left.*previous version is unch"):
        stream(answer * 0, path)
    monkeypatch.undo()
    assert contents(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == [name]
    write(answer * 0, path, overwrite=True)
    assert contents(tmp_path) != before


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can grow beyond some bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("pieces", [False, True])
def test_a_full_disk_leaves_what_was_there(name: str, pieces: bool, tmp_path: Path) -> None:
    """Whatever the writers are doing by then: at their start, among the data, at the end."""
    answer, changed = answer_of(), answer_of() + 1.0

    def again() -> None:
        if pieces:
            stream(changed, path)
        else:
            write(changed, path, overwrite=True)

    path = write(answer, tmp_path / name)
    before = contents(tmp_path)
    largest = max(map(len, before.values()))
    for size in (0, 1, 100, largest // 4, largest // 2):
        with full_disk(size), pytest.raises(OSError, match=r"^Cannot write .*; check disk space"):
            again()
        assert contents(tmp_path) == before
        assert [p.name for p in tmp_path.iterdir()] == [name]
    again()
    assert contents(tmp_path) != before


def test_appending_to_a_store_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path, answer = tmp_path / "a.zarr", answer_of()
    write(answer.isel(time=slice(0, 4)), path, append="time")
    before = contents(tmp_path)
    for size in (0, 10, 300, max(map(len, before.values())) // 2):
        with full_disk(size), pytest.raises(OSError, match=r"^Cannot write .*; check disk space"):
            write(answer.isel(time=slice(4, 6)), path, append="time")
        assert contents(tmp_path) == before
    write(answer.isel(time=slice(4, 6)), path, append="time")
    xr.testing.assert_equal(xr.open_zarr(path, chunks=None).load(), answer)
    assert [p.name for p in tmp_path.iterdir()] == ["a.zarr"]


def test_errors_of_what_is_written_stay_as_they_are(tmp_path: Path) -> None:
    """Such as that of a file of the context, read while the pieces are predicted."""
    with (
        pytest.raises(OSError, match=r"^Cannot read .era5\.nc.$"),
        open_stream(tmp_path / "a.csv", None),
    ):
        raise OSError("Cannot read 'era5.nc'")
    assert not list(tmp_path.iterdir())


def test_a_store_that_a_killed_process_had_moved_aside_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where folders cannot be exchanged in one step."""
    path = write(answer_of(), tmp_path / "a.zarr")
    before = contents(path)
    aside = tmp_path / f"{files.OURS}host-1-abc" / "old"
    aside.mkdir(parents=True)
    path.rename(aside / path.name)
    monkeypatch.setattr(files, "_is_dead", lambda _: True)
    with pytest.raises(FileExistsError, match=r"already exists; pass overwrite=True"):
        write(answer_of() * 0, path)
    assert contents(path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.zarr"]


def test_pieces_of_compressed_tables_are_compressed(tmp_path: Path) -> None:
    path, answer = tmp_path / "a.csv.gz", answer_of()
    stream(answer, path)
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert len(pd.read_csv(path)) == answer.to_dataframe().shape[0]
