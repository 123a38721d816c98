"""Archives of Parquet files: the tasks of the same table in memory, and what is refused."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import small
import torch
import weather
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.recipes import Recipe
from gridtnp.sources import archives
from gridtnp.sources.archives import Archive
from gridtnp.sources.quality import DataWarning
from gridtnp.sources.source import Records
from gridtnp.task import Task
from gridtnp.tasks.sampling import Sampler

BYTES_PER_ROW = 70
"""Memory that is too small for a row of a table, but enough for one that waits to be indexed."""
pytest.importorskip("pyarrow")


def archive(folder: Path, table: pd.DataFrame, files: int = 3, rows: int = 13) -> Path:
    """A table cut into files of small row groups, a partition each."""
    for number, part in enumerate(np.array_split(np.arange(len(table)), files)):
        below = folder / f"part={number}"
        below.mkdir(parents=True)
        table.iloc[part].to_parquet(below / "a.parquet", row_group_size=rows)
    return folder


def both(path: Path, table: pd.DataFrame, **options: Any) -> tuple[Dataset, Dataset]:
    """The archive on disk and the same table in memory."""
    given: dict[str, Any] = {"target": "s.t2m", **options}
    memory = BYTES_PER_ROW * len(table)
    return Dataset({"s": path}, memory=memory, **given), Dataset({"s": table}, **given)


def assert_same(one: Task, other: Task) -> None:
    assert set(one.context) == set(other.context)
    pairs = [(one.context[name], other.context[name]) for name in one.context]
    for a, b in (*pairs, (one.target, other.target)):
        for name in ("x", "y", "mask", "features"):
            mine, theirs = getattr(a, name), getattr(b, name)
            assert (mine is None) == (theirs is None), name
            if mine is not None and name == "features":  # moments of static columns are rounded
                torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
            elif mine is not None:
                assert torch.equal(mine, theirs), name


def independent(sampler: Sampler) -> Sampler:
    """Draws the tasks of a batch apart from each other, as from a source on disk."""
    vars(sampler)["independent"] = True
    return sampler


def assert_same_tasks(one: Dataset, other: Dataset, **options: Any) -> None:
    normalisers = [Normaliser.fit(data) for data in (one, other)]
    for name, mean in normalisers[0].mean.items():
        assert mean == pytest.approx(normalisers[1].mean[name], rel=1e-12)
    samplers = [
        Sampler(data, normaliser=normalisers[1], batch=2, seed=3, **options)
        for data in (one, other)
    ]
    np.testing.assert_array_equal(samplers[0].times, samplers[1].times)
    for pair in zip(*(sampler.in_order() for sampler in samplers), strict=True):
        assert_same(*pair)
    drawn = [independent(sampler) for sampler in samplers]
    for index in range(3):
        assert_same(drawn[0].draw(index), drawn[1].draw(index))


@st.composite
def tables(draw: st.DrawFn) -> pd.DataFrame:
    """Stations with gaps, repeated and impossible rows, unnamed and moving stations."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.integers(20, 60))
    who = rng.integers(0, draw(st.integers(2, 6)), rows)
    table = pd.DataFrame(
        {
            "time": np.datetime64("1969-12-30", "ns") + rng.integers(0, 6, rows) * 10**13 * 6,
            "lat": 50 + who * draw(st.sampled_from([0.0, 0.5])),
            "lon": rng.choice([0.0, -0.0, 190.0, -170.0], rows) if draw(st.booleans()) else 2.0,
            "elevation": who * 10.0,
            "t2m": rng.normal(size=rows),
            "rain": rng.normal(size=rows).astype(np.float32),
        }
    )
    if draw(st.booleans()):
        table["station"] = np.where(rng.random(rows) < 0.2, None, np.char.add("S", who.astype(str)))
    for column, value in (("t2m", np.nan), ("rain", -999.0), ("lat", 95.0), ("time", pd.NaT)):
        if draw(st.booleans()):
            table.loc[rng.random(rows) < 0.15, column] = value
    if draw(st.booleans()):
        table = table.sort_values("time", kind="stable").reset_index(drop=True)
    return table


@pytest.mark.filterwarnings("ignore::gridtnp.sources.quality.DataWarning")
@settings(max_examples=examples(15))
@given(table=tables(), files=st.integers(1, 4), rows=st.integers(3, 30))
def test_an_archive_holds_the_tasks_of_the_table(
    tmp_path_factory: pytest.TempPathFactory, table: pd.DataFrame, files: int, rows: int
) -> None:
    path = archive(tmp_path_factory.mktemp("archive"), table, files, rows)
    kept = table[table.lat.between(-90, 90) & table.time.notna()]
    if kept.t2m.isna().all() or kept.rain.isin([-999.0]).all():
        return
    options: dict[str, Any] = {"na_values": [-999], "static": {"elevation": "s.elevation"}}
    one, other = both(path, table, **options)
    disk, memory = one.sources["s"], other.sources["s"]
    assert isinstance(disk, Archive)
    assert isinstance(memory, Records)
    assert [replace(v, attributes={}) for v in disk.variables] == list(memory.variables)
    everywhere = np.arange(memory.size)
    at = disk.places(everywhere)
    for mine, theirs in (
        (disk.values(0, disk.size), memory.table),
        (disk.times_of(everywhere), memory.times),
        (disk.lat[at], memory.lat),
        (disk.lon[at], memory.lon),
        (disk.labels[at], memory.labels),  # type: ignore[index]
        (disk.columns["elevation"][at], memory.columns["elevation"]),
        (disk.rows_per_place, np.bincount(at)),
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert_same_tasks(one, other, window="[-1D, 0h]", coordinates=("time", "lat", "lon"))
    mine, theirs = ({(n.action, n.why): n.count for n in data.notes} for data in (one, other))
    assert mine == theirs


def test_parts_by_time_and_stations_are_those_of_the_table(tmp_path: Path) -> None:
    table = weather.stations(12, 12)
    one, other = both(archive(tmp_path / "a", table), table)
    split: dict[str, Any] = {"time": ["2019-03-06", "2019-03-09"], "hold_out_stations": 0.4}
    for mine, theirs in zip(one.split(**split), other.split(**split), strict=True):
        assert mine.held_out == theirs.held_out
        assert_same_tasks(mine, theirs)


def test_a_station_that_is_seldom_there_has_tasks_at_its_own_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "SCAN", 5)  # rows at once
    table = weather.stations(4, 12)
    table = table[(table.station != "S03") | (table.time == table.time.iloc[-8])]
    split: dict[str, Any] = {"time": ["2019-03-03", "2019-03-04"], "hold_out_stations": ["S03"]}
    one, other = (d.split(**split) for d in both(archive(tmp_path / "a", table), table))
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine.times(), theirs.times())


# ---- the index -----------------------------------------------------------------------------------


def count_indices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows by one whenever an index is made."""
    made: list[str] = []
    write = archives.IndexWriter.write
    monkeypatch.setattr(
        archives.IndexWriter, "write", lambda s, to: made.append(s.name) or write(s, to)
    )
    return made


def test_the_index_is_made_once_and_again_when_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, table = count_indices(monkeypatch), weather.stations()
    path = archive(tmp_path / "a", table)
    first, _ = both(path, table)
    again, _ = both(path, table)
    assert made == ["s"]
    assert (path / ".gridtnp-index").is_dir()
    assert first.fingerprint() == again.fingerprint()
    assert first.identity() == again.identity()
    assert first.notes == again.notes

    changed = path / "part=1" / "a.parquet"
    new = pd.read_parquet(changed)
    new["t2m"] += 1
    new.to_parquet(changed, row_group_size=13)
    os.utime(changed, ns=(0, 0))
    with pytest.raises(OSError, match=r"a\.parquet' has changed since the dataset was made; make"):
        Normaliser.fit(first)
    table = pd.concat([pd.read_parquet(path / f"part={i}" / "a.parquet") for i in range(3)])
    assert_same_tasks(*both(path, table))
    shutil.copytree(path / "part=1", path / "part=3")  # all rows are there already
    with pytest.warns(DataWarning, match=r"^s: 32 of 128 dropped: duplicates \(for example row "):
        both(path, table)
    assert made == ["s"] * 3


def test_an_index_of_read_only_data_is_in_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, table = count_indices(monkeypatch), weather.stations()
    path = archive(tmp_path / "a", table)
    monkeypatch.setattr(archives, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(archives.os, "access", lambda *_: False)
    for _ in range(2):
        assert_same_tasks(*both(path, table))
    assert made == ["s"]
    assert not (path / ".gridtnp-index").exists()
    assert len(list((tmp_path / "cache" / "index").iterdir())) == 1


def test_an_index_that_is_damaged_or_half_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, table = count_indices(monkeypatch), weather.stations()
    path = archive(tmp_path / "a", table)
    both(path, table)
    (index,) = (path / ".gridtnp-index").iterdir()
    (index / "row.bin").write_bytes(b"")
    assert_same_tasks(*both(path, table))
    (index / "index.json").write_text("{")
    assert_same_tasks(*both(path, table))
    assert made == ["s"] * 3


def test_another_process_opens_the_archive_for_itself(tmp_path: Path) -> None:
    table = weather.stations()
    one, other = both(archive(tmp_path / "a", table), table, units={"s.t2m": "K"})
    text = pickle.dumps(one)
    assert len(text) < 20_000
    again = pickle.loads(text)
    assert again.target == one.target
    assert_same_tasks(again, other)


@pytest.mark.parametrize("pattern", ["a", "a/*/*.parquet", "a/part=0/a.parquet", "a/part=?"])
def test_a_folder_a_glob_and_a_file(tmp_path: Path, pattern: str) -> None:
    table = weather.stations()
    archive(tmp_path / "a", table, files=1 if pattern.endswith("=0/a.parquet") else 3)
    one, other = both(tmp_path / pattern, table)
    assert isinstance(one.sources["s"], Archive)
    assert_same_tasks(one, other)
    loaded = Dataset({"s": tmp_path / pattern}, target="s.t2m")
    assert isinstance(loaded.sources["s"], Records)
    assert loaded.identity() == other.identity()


def test_stations_and_times_may_be_partitions(tmp_path: Path) -> None:
    table = weather.stations(3, 4)
    for (station, time), rows in table.groupby(["station", "time"]):
        below = tmp_path / "a" / f"date={time:%Y-%m-%d}" / f"station={station}"
        below.mkdir(parents=True)
        rows.drop(columns=["station", "time"]).to_parquet(below / "0.parquet")
    assert_same_tasks(*both(tmp_path / "a", table))


def test_only_the_row_groups_of_a_task_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = weather.stations(12, 30)
    one, _ = both(archive(tmp_path / "a", table, files=3, rows=24), table)
    source = one.sources["s"]
    assert isinstance(source, Archive)
    read, load = [], source.groups.load
    monkeypatch.setattr(source.groups, "load", lambda number: read.append(number) or load(number))
    Sampler(one).at("2019-03-16")
    assert read == [7]
    source.groups.memory = 500
    Normaliser.fit(one)
    assert source.groups.cached_bytes <= 500


# ---- bad input -----------------------------------------------------------------------------------

Spoil = Callable[[Path, pd.DataFrame], object]


def rewrite(**changes: Any) -> Spoil:
    """Give the second file other columns; None drops one."""

    def spoil(path: Path, _: pd.DataFrame) -> None:
        file = path / "part=1" / "a.parquet"
        table = pd.read_parquet(file).assign(**{k: v for k, v in changes.items() if v is not None})
        table.drop(columns=[k for k, v in changes.items() if v is None]).to_parquet(file)

    return spoil


def everywhere(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Spoil:
    def spoil(path: Path, _: pd.DataFrame) -> None:
        for file in path.rglob("*.parquet"):
            change(pd.read_parquet(file)).to_parquet(file, row_group_size=13)

    return spoil


def cut(path: Path, _: pd.DataFrame) -> None:
    file = path / "part=1" / "a.parquet"
    file.write_bytes(file.read_bytes()[:300])


def long(table: pd.DataFrame) -> pd.DataFrame:
    return table.rename(columns={"t2m": "value"}).assign(variable="t2m")


SPOILED: dict[str, tuple[Spoil, str]] = {
    "no such folder": (lambda p, _: shutil.rmtree(p), r"^No such file: '.*a'\.$"),
    "a folder without files": (
        lambda p, _: [f.unlink() for f in p.rglob("*.parquet")],
        r"^Folder '.*a' holds no \.parquet file; if it is a Zarr store, name it \.zarr\.$",
    ),
    "a missing column": (
        rewrite(t2m=None),
        r"^'.*part=1/a\.parquet' has no column 't2m', but '.*part=0/a\.parquet' does; write all",
    ),
    "one more column": (
        rewrite(wind=1.0),
        r"^'.*part=0/a\.parquet' has no column 'wind', but '.*part=1/a\.parquet' does; write all",
    ),
    "a column of another type": (
        rewrite(t2m="warm"),
        r"^Column 't2m' holds text in '.*part=1/a\.parquet', but numbers in '.*part=0/",
    ),
    "a file that was cut": (
        cut,
        r"^Cannot read '.*part=1/a\.parquet' as a parquet file \(.*\); was its download or copy",
    ),
    "no rows at all": (everywhere(lambda t: t.iloc[:0]), r"^'.*a' has no rows; a source needs"),
    "no time": (
        everywhere(lambda t: t.drop(columns="time")),
        r"^Source 's' is too large to be read whole, and has no time among \['elevation', 'lat', ",
    ),
    "a row per variable": (
        everywhere(long),
        r"^Source 's' has a row per variable; give it a column per variable, or enough memory=",
    ),
    "no possible place": (
        everywhere(lambda t: t.assign(lat=500.0)),
        r"^No row of source 's' has a latitude within ±90 and a longitude within ±360",
    ),
    "text in a coordinate": (
        everywhere(lambda t: t.assign(lat="north")),
        r"^Column 'lat' of source 's' is not numeric: row 0 holds 'north' \(in row group 0 of '.*a",
    ),
    "all values missing": (
        everywhere(lambda t: t.assign(t2m=np.nan)),
        r"^Variable 't2m' of source 's' is missing everywhere; leave it out or correct",
    ),
}


@pytest.mark.parametrize("what", SPOILED)
@pytest.mark.filterwarnings("ignore::gridtnp.sources.quality.DataWarning")
def test_bad_archives_are_refused_with_a_sentence(tmp_path: Path, what: str) -> None:
    """And leave no index that looks whole."""
    spoil, sentence = SPOILED[what]
    table = weather.stations()
    path = archive(tmp_path / "a", table)
    spoil(path, table)
    with pytest.raises((ValueError, OSError), match=sentence):
        both(path, table)
    assert not list(tmp_path.rglob("index.json"))


def test_an_archive_that_is_not_in_the_order_of_time(tmp_path: Path) -> None:
    table = weather.stations(12, 30).sort_values("station")
    path = archive(tmp_path / "a", table)
    with pytest.raises(
        ValueError,
        match=r"^The files of source 's' are not in the order of time: row groups of \d+ rows "
        r"overlap at 2019-03-.*; sort the archive by time",
    ):
        Dataset({"s": path}, target="s.t2m", memory=2000)


def test_too_many_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridtnp.sources.archive_index.PLACE_BYTES", 2**18)
    table = weather.stations()
    path = archive(tmp_path / "a", table)
    with pytest.raises(ValueError, match=r"^Source 's' has more than 12 places, too many for an"):
        both(path, table)


def test_a_file_that_vanishes(tmp_path: Path) -> None:
    table = weather.stations()
    one, _ = both(archive(tmp_path / "a", table), table)
    shutil.rmtree(tmp_path / "a" / "part=1")
    with pytest.raises(FileNotFoundError, match=r"part=1/a\.parquet' is gone; if files were moved"):
        Normaliser.fit(one)


def test_files_without_rows_are_left_out(tmp_path: Path) -> None:
    table = weather.stations()
    path = archive(tmp_path / "a", table)
    (path / "part=9").mkdir()
    table.iloc[:0].to_parquet(path / "part=9" / "a.parquet")
    one, other = both(path, table)
    assert_same_tasks(one, other)
    assert "s: 1 of 4 left out: files without rows (for example part=9/a.parquet)" in str(one)


# ---- downstream ----------------------------------------------------------------------------------


def test_scores_and_predictions_are_those_of_the_table(tmp_path: Path) -> None:
    table = small.table().sort_values("time")
    made = []
    for data in both(archive(tmp_path / "a", table, rows=40), table):
        model = small.gridless(data)
        scores = model.evaluate(data, ["nearest", "persistence"])
        made.append((str(scores), model.predict(data, table.iloc[::30])))
    assert made[0][0] == made[1][0]
    pd.testing.assert_frame_equal(made[0][1], made[1][1])


def test_training_on_an_archive_is_that_on_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sampler, "independent", True)
    table = small.table().sort_values("time")
    weights = []
    for data in both(archive(tmp_path / "a", table, rows=40), table):
        train, val, _ = data.split(hold_out_stations=0.3)
        model = small.gridless(train).fit(train, val, recipe=Recipe(3, 2, 1e-2), quiet=True)
        weights.append(model.network.state_dict())
    for name, mine in weights[0].items():
        torch.testing.assert_close(mine, weights[1][name], rtol=1e-5, atol=1e-6)
