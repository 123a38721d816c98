"""Predictions on dask: the store of one process, also if workers and schedulers are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import small
import xarray as xr
from test_parts import chunks, read

from gridtnp.data.dataset import Dataset
from gridtnp.data.places import latlon_grid
from gridtnp.estimator import GriddedTNP
from gridtnp.inference import cluster
from gridtnp.inference.stores import prediction_status

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.slow
GRID = latlon_grid(lat=(47.5, 55.5), lon=(-4.5, 4.5), step=0.5)
TIMES = pd.date_range("2019-03-01", periods=24, freq="2h")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Stations in memory, and a field on disk that is never read whole."""
    path = tmp_path_factory.mktemp("data") / "era5.zarr"
    small.field().chunk({"time": 1}).to_zarr(path, zarr_format=2)
    sources = {"stations": small.table(), "era5": xr.open_zarr(path)}
    return Dataset(
        sources,
        target="stations.t2m",
        static={"elevation": small.heights()},
        features=["hour"],
        memory=2000,
    )


@pytest.fixture(scope="module")
def model(data: Dataset) -> GriddedTNP:
    return small.model(data)


@pytest.fixture(scope="module")
def alone(model: GriddedTNP, data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some times have no observations
        return predict(model, data, to=tmp_path_factory.mktemp("alone") / "a.zarr")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with cluster.open_client("local:2") as found:
        yield found


def predict(model: GriddedTNP, data: Dataset, **options: Any) -> Path:
    given: dict[str, Any] = {"times": TIMES, "regions": {"time": 1}, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.predict(data, GRID, **(given | options))


def test_workers_make_the_store_of_one_process(
    model: GriddedTNP, data: Dataset, alone: Path, client: Any, tmp_path: Path
) -> None:
    """With other regions too; and one warning has the counts of all workers."""
    with pytest.warns(match=r"^there are no observations at 2019-03-01 02:00 and 17 other times"):
        to = model.predict(
            data, GRID, times=TIMES, regions={"time": 1}, to=tmp_path / "a.zarr", client=client
        )
    assert chunks(to) == chunks(alone)
    other = predict(model, data, to=tmp_path / "b.zarr", client=client, regions={"time": 5})
    xr.testing.assert_equal(read(other), read(alone))
    with pytest.raises(FileExistsError, match="already exists; pass overwrite=True"):
        predict(model, data, to=to, client=client)
    predict(model, data, to=to, client=client, resume=True)  # nothing to do
    assert chunks(to) == chunks(alone)


def test_a_killed_worker_costs_its_tasks_alone(
    model: GriddedTNP, data: Dataset, alone: Path, tmp_path: Path
) -> None:
    """Four workers, of which one is killed after some regions and another with its successor."""
    to = tmp_path / "a.zarr"
    with cluster.open_client("local:4") as client:

        def kill() -> None:
            for wanted in (3, 9):
                limit = time.monotonic() + 300
                while time.monotonic() < limit:
                    if to.exists() and prediction_status(to)["done"] >= wanted:
                        break
                    time.sleep(0.01)
                workers = client.run(os.getpid)
                os.kill(next(iter(workers.values())), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        predict(model, data, to=to, client=client)
        killer.join()
    assert chunks(to) == chunks(alone)


def test_after_the_scheduler_is_gone_the_rest_is_done(
    model: GriddedTNP, data: Dataset, alone: Path, tmp_path: Path
) -> None:
    to = tmp_path / "a.zarr"
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        ) as local,
        distributed.Client(local) as client,
    ):
        predict(model, data, to=to, part=(0, 3))
        local.scale(0)
        limit = time.monotonic() + 60
        while client.nthreads() and time.monotonic() < limit:
            time.sleep(0.05)
        with pytest.raises(ValueError, match=r"^The scheduler has no workers; start at least one"):
            predict(model, data, to=to, client=client, resume=True)
    assert prediction_status(to)["done"] == 8
    with cluster.open_client("local:2") as client:
        predict(model, data, to=to, client=client, resume=True)
    assert chunks(to) == chunks(alone)


def test_what_can_go_wrong_is_said(
    model: GriddedTNP, data: Dataset, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "a.zarr"
    with pytest.raises(ValueError, match=r"^part= and client= exclude each other"):
        predict(model, data, to=to, client=client, part=(0, 2))
    far = latlon_grid(lat=(10, 12), lon=(0, 2), step=1.0)
    with pytest.raises(ValueError, match=r"^Nothing can be predicted: 9 of 9 points lie outside"):
        model.predict(data, far, times=TIMES[:2], to=to, client=client, regions={"time": 1})
    assert prediction_status(to)["done"] == 0
    assert not prediction_status(to)["complete"]
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "__version__", "9.9")
        with pytest.raises(
            ValueError, match=r"^gridtnp is 0\.\S+ on worker tcp://\S+, but 9\.9 he"
        ):
            predict(model, data, to=tmp_path / "b.zarr", client=client)
    job = cluster.Job(None, None, None, "9.9")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^gridtnp is 0\.\S+ on a worker, but 9\.9 here; install"):
        cluster._answer(job, 0)
    monkeypatch.setattr(cluster, "TIMEOUT", 0.2)
    with (
        pytest.raises(ValueError, match=r"^No scheduler answers at 'tcp://127\.0\.0\.1:1' \("),
        cluster.open_client("tcp://127.0.0.1:1"),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r"^Not a number of workers: 'local:x'; write it like"),
        cluster.open_client("local:x"),
    ):
        pass


def test_lazy_sources_travel_without_their_values(data: Dataset) -> None:
    import pickle

    source = data.sources["era5"]
    assert source.loaded is None
    expected = source.values(0, source.size)
    text = pickle.dumps(source)
    assert len(text) < 20_000 + 4 * len(source.lat) * 8
    np.testing.assert_array_equal(pickle.loads(text).values(0, source.size), expected)
