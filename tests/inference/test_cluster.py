"""Predictions on dask: the store of one process, also if workers and schedulers are killed."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import small
import xarray as xr
from fitting_cases import environment
from test_parts import chunks, read

from gridtnp.data.dataset import Dataset
from gridtnp.data.places import latlon_grid
from gridtnp.estimator import GriddedTNP
from gridtnp.inference import cluster
from gridtnp.inference.stores import prediction_status
from gridtnp.sources.archives import Archive

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
    """Four workers, of which two are killed after some regions."""
    to = tmp_path / "a.zarr"
    with cluster.open_client("local:4") as client:
        workers = list(client.run(os.getpid).values())

        def kill() -> None:
            for worker, wanted in zip(workers, (3, 9), strict=False):
                limit = time.monotonic() + 300
                while time.monotonic() < limit:
                    if to.exists() and prediction_status(to)["done"] >= wanted:
                        break
                    time.sleep(0.01)
                os.kill(worker, signal.SIGKILL)

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


def test_a_scheduler_that_is_killed_is_reported_and_another_does_the_rest(
    model: GriddedTNP, data: Dataset, alone: Path, tmp_path: Path
) -> None:
    to, about = tmp_path / "a.zarr", tmp_path / "scheduler.json"
    dask = [sys.executable, "-m"]
    options = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
    commands = {
        "scheduler": [*dask, "distributed.cli.dask_scheduler", *options, "--scheduler-file", about],
        "worker": [*dask, "distributed.cli.dask_worker", "--nthreads", "1", "--no-dashboard"],
    }
    commands["worker"] += ["--scheduler-file", about, "--death-timeout", "120"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    jobs = {k: subprocess.Popen(c, env=environment(), **quiet) for k, c in commands.items()}
    try:
        until(about.exists)
        with cluster.open_client(json.loads(about.read_text())["address"]) as client:
            client.wait_for_workers(1)

            def kill() -> None:
                until(lambda: to.exists() and prediction_status(to)["done"] >= 3)
                jobs["scheduler"].kill()

            killer = threading.Thread(target=kill)
            killer.start()
            with pytest.raises(RuntimeError, match=r"^The workers or their scheduler were lost \("):
                predict(model, data, to=to, client=client)
            killer.join()
    finally:
        for job in jobs.values():
            job.kill()
            job.wait()
    assert 3 <= prediction_status(to)["done"] < len(TIMES)
    with cluster.open_client("local:2") as client:
        predict(model, data, to=to, client=client, resume=True)
    assert chunks(to) == chunks(alone)


def until(true: Callable[[], bool], seconds: float = 300) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.01)


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
    job = object.__new__(cluster.Job)  # of another version; the rest is not looked at
    object.__setattr__(job, "version", "9.9")
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


FAULTS = """
import resource
import numpy as np
from gridtnp.inference.cluster import _keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
_keep_freed_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other systems keep freed memory")
def test_a_worker_reuses_the_memory_of_arrays() -> None:
    """With the settings that dask gives it, by which arrays are new pages of memory each time."""
    given = {"MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=environment() | given, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert after < before / 10


def test_workers_read_archives_for_themselves(
    model: GriddedTNP, client: Any, tmp_path: Path
) -> None:
    table = small.table().sort_values("time")
    (tmp_path / "obs").mkdir()
    table.to_parquet(tmp_path / "obs" / "a.parquet", row_group_size=40)
    common: dict[str, Any] = {"target": "stations.t2m", "static": {"elevation": small.heights()}}
    given: tuple[Any, ...] = (table, tmp_path / "obs")
    parts = [
        Dataset(
            {"stations": stations, "era5": small.field()},
            **common,
            features=["hour"],
            memory=70 * len(table),
        )
        for stations in given
    ]
    assert isinstance(parts[1].sources["stations"], Archive)
    alone = predict(model, parts[0], to=tmp_path / "a.zarr")
    there = predict(model, parts[1], to=tmp_path / "b.zarr", client=client)
    assert chunks(there) == chunks(alone)
