"""Predictions in parts: the store that one process would have made, whoever writes which region."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import xarray as xr

from gridtnp.data.dataset import Dataset
from gridtnp.data.places import latlon_grid
from gridtnp.estimator import GriddedTNP
from gridtnp.inference.regions import Regions, share
from gridtnp.inference.stores import HIDDEN, RECORD, RegionStore, prediction_status, spans

GRID = latlon_grid(lat=(47.5, 55.5), lon=(-4.5, 4.5), step=2.0)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return small.dataset()


@pytest.fixture(scope="module")
def model(data: Dataset) -> GriddedTNP:
    return small.model(data)


@pytest.fixture(scope="module")
def whole(model: GriddedTNP, data: Dataset) -> xr.Dataset:
    return model.predict(data, GRID, times=small.TIMES)


def predict(model: GriddedTNP, data: Dataset, **options: Any) -> Any:
    given: dict[str, Any] = {"times": small.TIMES, "regions": {"time": 1}, "progress": False}
    return model.predict(data, GRID, **(given | options))


def read(path: Path) -> xr.Dataset:
    found = xr.open_zarr(path, chunks=None).load()
    found.attrs.pop(RECORD)
    return found


def chunks(path: Path) -> dict[str, bytes]:
    """All files of a store but its attributes, which have the time it was made."""
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted(path.rglob("*"))
        if p.is_file() and p.name not in (".zattrs", ".zmetadata")
    }


def test_parts_make_the_store_of_one_process(
    model: GriddedTNP, data: Dataset, whole: xr.Dataset, tmp_path: Path
) -> None:
    alone = predict(model, data, to=tmp_path / "alone.zarr")
    to = predict(model, data, layout=tmp_path / "parts.zarr")
    for i in (2, 0, 0, 3, 1):
        assert not prediction_status(to)["complete"]
        with pytest.raises(FileNotFoundError):
            xr.open_zarr(to, chunks=None)
        predict(model, data, to=to, part=(i, 4))
    assert prediction_status(to)["complete"]
    assert chunks(to) == chunks(alone)
    assert not (to / HIDDEN).exists()
    xr.testing.assert_equal(read(to), whole)
    assert read(to).t2m_mean.attrs == whole.t2m_mean.attrs
    before = chunks(to)
    predict(model, data, to=to, part=(1, 4))  # there is nothing left to do
    predict(model, data, to=to, resume=True)
    assert chunks(to) == before


@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_regions_do_not_change_a_bit(
    model: GriddedTNP, data: Dataset, whole: xr.Dataset, tmp_path: Path, size: int
) -> None:
    """Nor does the first part need a layout."""
    number = -(-len(small.TIMES) // size)
    for i in range(number):
        to = predict(model, data, to=tmp_path / "a.zarr", part=(i, number), regions={"time": size})
    found = read(to)
    xr.testing.assert_equal(found, whole)
    assert found.t2m_mean.encoding["chunks"] == (size, *whole.t2m_mean.shape[1:])


def test_a_prediction_is_resumed(
    model: GriddedTNP,
    data: Dataset,
    whole: xr.Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regions of which a column is missing are answered again, and no others."""
    to, asked = tmp_path / "a.zarr", []
    predict(model, data, to=to, part=(0, 2))
    (to / "t2m_std" / "1.0.0").unlink()
    (to / "t2m_q05" / "2.0.0.1234.partial").touch()
    assert prediction_status(to) == {
        "path": str(to),
        "complete": False,
        "done": 2,
        "regions": 6,
        "missing": [(1, 1), (3, 5)],
        "dims": {"time": 6, "lat": 5, "lon": 5},
        "sizes": {"time": 1, "lat": 5, "lon": 5},
    }
    write = RegionStore.write

    def counted(self: RegionStore, regions: Regions, number: int, answer: xr.Dataset) -> None:
        asked.append(number)
        write(self, regions, number, answer)

    monkeypatch.setattr(RegionStore, "write", counted)
    predict(model, data, to=to, resume=True)
    assert asked == [1, 3, 4, 5]
    xr.testing.assert_equal(read(to), whole)


def test_several_times_of_one_task_are_the_same_alone_and_together(tmp_path: Path) -> None:
    """Tasks every 12 hours, of which each predicts two times."""
    data = small.dataset()
    model = small.model(data)
    model.contents.spec.__dict__.update(every="12h", target_window="[0h, 6h]")
    whole = model.predict(data, GRID, times=small.TIMES)
    for size in (1, 3):
        to = predict(model, data, to=tmp_path / f"{size}.zarr", regions={"time": size})
        xr.testing.assert_equal(read(to), whole)


def test_grids_with_times_of_their_own(
    model: GriddedTNP, data: Dataset, whole: xr.Dataset, tmp_path: Path
) -> None:
    own = GRID.assign_coords(time=small.TIMES)
    for i in range(3):
        to = model.predict(
            data, own, to=tmp_path / "a.zarr", part=(i, 3), regions={"time": 2}, progress=False
        )
    xr.testing.assert_equal(read(to), whole)


def test_a_single_time_is_one_region(model: GriddedTNP, data: Dataset, tmp_path: Path) -> None:
    at = data.at(small.TIMES[2])
    to = model.predict(at, GRID, to=tmp_path / "a.zarr", part=(0, 1), progress=False)
    xr.testing.assert_equal(read(to), model.predict(at, GRID))


def test_the_layout_comes_from_coordinates_alone(
    model: GriddedTNP, data: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(model.network, "encode", None)
    hours = np.arange("2015", "2025", dtype="datetime64[h]")  # as many as would not fit in memory
    world = latlon_grid(lat=(-90, 90), lon=(-180, 180), step=0.25)
    to = model.predict(data, world, times=hours, layout=tmp_path / "a.zarr")
    found = prediction_status(to)
    assert found["dims"] == {"time": len(hours), "lat": 721, "lon": 1440}
    assert found["sizes"] == {"time": 1, "lat": 721, "lon": 1440}
    assert found["missing"] == [(0, len(hours) - 1)]
    stations = small.table().groupby("station")[["lat", "lon", "elevation"]].first().to_xarray()
    few = model.predict(
        data, stations.set_coords(["lat", "lon"]), times=hours, layout=tmp_path / "b.zarr"
    )
    assert prediction_status(few)["sizes"] == {"time": 2**17 // 40, "station": 40}


def test_shares_are_disjoint_and_complete() -> None:
    for number in (1, 7, 24):
        for parts in range(1, number + 1):
            found = [i for part in range(parts) for i in share(number, (part, parts))]
            assert found == list(range(number))
    assert spans([0, 1, 2, 5, 7, 8]) == [(0, 2), (5, 5), (7, 8)]


def test_bad_parts(model: GriddedTNP, data: Dataset, tmp_path: Path) -> None:
    to = tmp_path / "a.zarr"
    wrong: dict[str, dict[str, Any]] = {
        r"^part=\(4, 4\): parts are numbered from 0 to 3\.$": {"to": to, "part": (4, 4)},
        r"^part=\(0, 0\): there is no such part\.$": {"to": to, "part": (0, 0)},
        r"^part=\(0, 7\): there are 6 regions, and two parts cannot share one; use at most 6": {
            "to": to,
            "part": (0, 7),
        },
        r"^part=, resume= and client= need a store to write to": {"part": (0, 2)},
        r"^overwrite=True would delete what other parts have done": {
            "to": to,
            "part": (0, 2),
            "overwrite": True,
        },
        r"^to= and layout= exclude each other": {"to": to, "layout": to},
        r"a\.nc' is no Zarr store, and only those are written in parts; use \.zarr\.$": {
            "to": tmp_path / "a.nc",
            "part": (0, 2),
        },
        r"^Unknown dimension 'tiem' in regions=; did you mean 'time'\?$": {
            "to": to,
            "regions": {"tiem": 1},
        },
        r"^regions={'time': 0}: a region needs at least one step\.$": {
            "to": to,
            "regions": {"time": 0},
        },
    }
    for sentence, options in wrong.items():
        with pytest.raises(ValueError, match=sentence):
            predict(model, data, **options)
    with pytest.raises(ValueError, match=r"a\.zarr' cannot hold a table; ask for a grid"):
        model.predict(data, small.table()[["lat", "lon"]], times=small.TIMES, to=to, part=(0, 2))
    with pytest.raises(FileNotFoundError, match=r"^No such folder: '.*/none'; create it"):
        predict(model, data, to=tmp_path / "none" / "a.zarr", part=(0, 2))
    with pytest.raises(FileNotFoundError, match=r"^No such store: '.*none\.zarr'\.$"):
        prediction_status(tmp_path / "none.zarr")
    assert not list(tmp_path.iterdir())


def test_stores_of_other_predictions_are_refused(
    model: GriddedTNP, data: Dataset, tmp_path: Path
) -> None:
    to = predict(model, data, to=tmp_path / "a.zarr", part=(0, 2))
    before = chunks(to)
    other = GRID.assign_coords(lat=GRID.lat + 0.1)
    given: dict[str, Any] = {"to": to, "part": (1, 2), "times": small.TIMES, "regions": {"time": 1}}
    with pytest.raises(
        ValueError, match=r"laid out for another prediction, with other coordinates;"
    ):
        model.predict(data, other, **given)
    with pytest.raises(ValueError, match=r'with other dims: .*"time": 6.*, not .*"time": 5'):
        predict(model, data, to=to, part=(1, 2), times=small.TIMES[:5])
    with pytest.raises(ValueError, match=r"with other regions: .*1.*, not .*2"):
        predict(model, data, to=to, part=(1, 2), regions={"time": 2})
    with pytest.raises(ValueError, match=r"with other columns: .*t2m_q05.*, not .*t2m_q10"):
        predict(model, data, to=to, part=(1, 2), quantiles=(0.1, 0.9))
    with pytest.raises(ValueError, match=r"with other model; use the same arguments, or another"):
        predict(small.model(data, seed=1), data, to=to, part=(1, 2))
    with pytest.raises(ValueError, match=r"with other context; use the same arguments"):
        predict(model, small.dataset(small.table(seed=1)), to=to, part=(1, 2))
    file = to / HIDDEN / ".zattrs"
    attributes = json.loads(file.read_text())
    record = json.loads(attributes[RECORD]) | {"gridtnp": "0.0.9"}
    file.write_text(json.dumps(attributes | {RECORD: json.dumps(record)}))
    with pytest.raises(
        ValueError, match=r"laid out by gridtnp 0\.0\.9, but this is .*; use one ver"
    ):
        predict(model, data, to=to, part=(1, 2))
    assert chunks(to) == before
    with pytest.raises(
        FileExistsError, match=r"has a part of a prediction; pass resume=True to do"
    ):
        predict(model, data, to=to)
    predict(model, data, layout=to, overwrite=True)
    assert prediction_status(to)["done"] == 0
    shutil.rmtree(to)
    small.field().to_zarr(to, zarr_format=2)
    with pytest.raises(ValueError, match=r"a\.zarr' was not laid out by gridtnp for a prediction"):
        predict(model, data, to=to, part=(1, 2))


def test_nothing_is_written_if_nothing_can_be_predicted(
    model: GriddedTNP, data: Dataset, tmp_path: Path
) -> None:
    far = latlon_grid(lat=(10, 12), lon=(0, 2), step=1.0)
    to = tmp_path / "a.zarr"
    with pytest.raises(ValueError, match=r"^Nothing can be predicted: 9 of 9 points lie outside"):
        model.predict(data, far, times=small.TIMES, to=to, part=(0, 2), regions={"time": 1})
    assert prediction_status(to)["done"] == 0
