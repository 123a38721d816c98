"""Kills processes that fit, save, write and predict at random moments; run as a script.

python killing_cases.py FOLDER KILLS SEED

Every process is forked from one that has imported everything and has no threads, so that it starts
in milliseconds. It works until it is killed; another one then checks what it left.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import netCDF4  # noqa: F401  imported here, and not by every process
import numpy as np
import pandas as pd
import pyarrow.parquet  # noqa: F401
import torch
import xarray as xr
import zarr  # noqa: F401
from fitting_cases import RECIPE, parts, small

from gridtnp.estimator import GriddedTNP
from gridtnp.files import OURS
from gridtnp.inference.writers import write
from gridtnp.training.run_folder import RunFolder

EARLY = 0.05
"""Seconds within which every second kill falls."""
FORMATS = ("a.nc", "a.zarr", "a.parquet", "a.csv", "a.csv.gz")
STREAMS = ("a.nc", "a.zarr", "a.csv.gz")
USERS = ("thesis.tex", ".model.old/thesis.tex", ".a.zarr.old/0", ".a.csv.part", ".gridtnp/notes")
"""Files of the user beside ours."""

torch.set_num_threads(1)
TRAIN, VAL, _ = parts()
MODEL = small(TRAIN)


class Job(NamedTuple):
    """What a process does once or forever, what was there before, and what must be there after."""

    prepare: Callable[[Path], None]
    work: Callable[[Path], None]
    check: Callable[[Path], None]


# ---- fit -----------------------------------------------------------------------------------------


def fit(out: Path) -> None:
    recipe = replace(RECIPE, steps=8, validate_every=2)
    MODEL.fit(TRAIN, VAL, recipe=recipe, out=out, resume=True, quiet=True)


def check_fit(folder: Path) -> None:
    """The run is resumed to the same weights as one that was not killed."""
    run, whole = folder / "run", folder / "whole"
    fit(run)
    expected = GriddedTNP.load(whole).network.state_dict()
    for name, value in GriddedTNP.load(run).network.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert [line["step"] for line in RunFolder(run).read_metrics()] == list(range(1, 9))
    assert_no_remains(folder)
    shutil.rmtree(run)


# ---- save ----------------------------------------------------------------------------------------


def save(folder: Path, value: float) -> None:
    with torch.no_grad():
        for p in MODEL.network.parameters():
            p.fill_(value)
    MODEL.save(folder / "model")


def keep_saving(folder: Path) -> None:
    for value in itertools.cycle((2.0, 1.0)):
        save(folder, value)


def check_save(folder: Path) -> None:
    """All of the model is of one save."""
    network = GriddedTNP.load(folder / "model").network
    values = {v for p in network.parameters() for v in p.unique().tolist()}
    assert values in ({1.0}, {2.0}), values
    save(folder, 1.0)
    assert_no_remains(folder)


# ---- write ---------------------------------------------------------------------------------------


def answer(value: float, times: int = 3) -> xr.Dataset:
    time = pd.date_range("2019-03-02", periods=times, unit="ns")
    lat, lon = np.linspace(49, 53, 20), np.linspace(-2, 2, 20)
    values = np.full((times, 20, 20), value)
    columns = dict.fromkeys(("t2m_mean", "t2m_std"), (("time", "lat", "lon"), values))
    return xr.Dataset(columns, {"time": time, "lat": lat, "lon": lon})


def write_all(folder: Path, value: float) -> None:
    for name in FORMATS:
        write(answer(value), folder / name, overwrite=True)


def prepare_write(folder: Path) -> None:
    write_all(folder, 1.0)
    write(answer(1.0), folder / "log.zarr", overwrite=True)


def keep_writing(folder: Path) -> None:
    for value in itertools.cycle((2.0, 1.0)):
        write_all(folder, value)
        write(answer(1.0), folder / "log.zarr", append="time")


def check_write(folder: Path) -> None:
    """All of a file is of one write."""
    for name in (*FORMATS, "log.zarr"):
        found = read(folder / name)[["t2m_mean", "t2m_std"]].to_numpy()
        assert len(found) % 1200 == 0, (name, len(found))
        assert name == "log.zarr" or len(found) == 1200, (name, len(found))
        assert (found == found[0, 0]).all(), name
        assert found[0, 0] in (1.0, 2.0), name
    prepare_write(folder)
    assert_no_remains(folder)


def read(path: Path) -> pd.DataFrame:
    if path.suffix in (".nc", ".zarr"):
        engine: Any = "netcdf4" if path.suffix == ".nc" else "zarr"
        with xr.open_dataset(path, engine=engine) as data:
            return data.load().to_dataframe()
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


# ---- predict -------------------------------------------------------------------------------------


def predict(to: Path | None = None) -> Any:
    places = answer(0.0, 1)[["lat", "lon"]].drop_vars("time", errors="ignore")
    return MODEL.predict(
        TRAIN,
        at=places,
        times=answer(0.0)["time"].values,
        to=to,
        overwrite=True,
        progress=False,
    )


def prepare_predict(folder: Path) -> None:
    for name in STREAMS:
        write(predict() * 0.0, folder / name, overwrite=True)


def keep_predicting(folder: Path) -> None:
    for name in itertools.cycle(STREAMS):
        predict(folder / name)


def check_predict(folder: Path) -> None:
    """Either all of the prediction, or all that was there before."""
    expected = predict().to_dataframe()["t2m_mean"].to_numpy()
    for name in STREAMS:
        found = read(folder / name)["t2m_mean"].to_numpy()
        assert found.shape == expected.shape, name
        assert (found == 0).all() or np.allclose(found, expected, rtol=1e-4), name
    prepare_predict(folder)
    assert_no_remains(folder)


JOBS = {
    "fit": Job(lambda folder: fit(folder / "whole"), lambda f: fit(f / "run"), check_fit),
    "save": Job(lambda folder: save(folder, 1.0), keep_saving, check_save),
    "write": Job(prepare_write, keep_writing, check_write),
    "predict": Job(prepare_predict, keep_predicting, check_predict),
}


# ---- killing -------------------------------------------------------------------------------------


def users_files(folder: Path) -> dict[str, str | None]:
    paths = {name: folder / name for name in USERS}
    return {name: p.read_text() if p.exists() else None for name, p in paths.items()}


def assert_no_remains(folder: Path) -> None:
    remains = [p for p in folder.rglob(f"{OURS}*") if p.exists()]
    assert not remains, remains


def forked(work: Callable[[Path], None], folder: Path) -> int:
    """The number of a process that works; it has started when this returns."""
    started, start = os.pipe()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.write(start, b".")
            work(folder)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(start)
    os.read(started, 1)
    os.close(started)
    return process


def finished(process: int) -> None:
    """Wait for a process, which must succeed."""
    _, status = os.waitpid(process, 0)
    assert status == 0, f"process {process} ended with status {status}"


def moments(number: int, seconds: float, seed: str) -> Iterator[float]:
    generator = random.Random(seed)
    for i in range(number):
        yield generator.uniform(0.0, EARLY if i % 2 == 0 else max(seconds, EARLY))


def main(folder: Path, kills: int, seed: int) -> None:
    for name, job in JOBS.items():
        here = folder / name
        for file in USERS:
            (here / file).parent.mkdir(parents=True, exist_ok=True)
            (here / file).write_text(f"years of work in {file}")
        before, start = users_files(here), time.monotonic()
        finished(forked(job.prepare, here))
        for delay in moments(kills, time.monotonic() - start, f"{seed} {name}"):
            process = forked(job.work, here)
            time.sleep(delay)
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            assert status in (0, signal.SIGKILL), f"{name} failed before it was killed"
            print(f"{name}: killed after {1000 * delay:.0f} ms", flush=True)
            finished(forked(job.check, here))
            assert users_files(here) == before, name


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
