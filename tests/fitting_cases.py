"""A small dataset and a small model of it, for tests of fitting; run as a script, it fits.

python fitting_cases.py FOLDER STEPS [--resume] [--slow SECONDS] [--hold PASS FILE] [--field STORE]

It can be made to wait in one of its forward passes until there is a file, so that however fast or
slow the machine is, it can be interrupted before its end.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from weather import stations

import gridtnp
from gridtnp.data.dataset import Dataset
from gridtnp.estimator import GriddedTNP
from gridtnp.recipes import Recipe
from gridtnp.training.distributed import make_accelerator

RECIPE = Recipe(24, 4, 1e-2, "cosine", optimiser="muon", ema=0.9, validate_every=6, accumulate=2)
PATIENCE = 900.0
"""Seconds that nothing takes on any machine, unless it hangs."""


def dataset() -> Dataset:
    table = stations(20, 24)
    return Dataset({"gauges": table}, target="gauges.t2m", features=["day_of_year"])


def parts(field: Path | None = None) -> tuple[Dataset, Dataset, Dataset]:
    """With a field on disk, values of which are read when they are needed."""
    if field is None:
        return dataset().split(hold_out_stations=0.3)
    sources = {"gauges": stations(20, 24), "field": field}
    data = Dataset(sources, target="gauges.t2m", features=["day_of_year"], memory=1000)
    return data.split(hold_out_stations=0.3)


def small(train: Dataset) -> GriddedTNP:
    return GriddedTNP.for_data(train, dim=16, heads=2, layers=1, prior="none", quiet=True)


def environment() -> dict[str, str]:
    """Environment of subprocesses: the same source tree, and one thread each."""
    here = Path(__file__).parent
    paths = [here, here / "training", Path(gridtnp.__file__).parent.parent]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}


def wait_for(path: Path, process: subprocess.Popen[Any]) -> None:
    """Until a process has made a file."""
    limit = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.poll() is None, f"the process ended and left no {path.name}"
        assert time.monotonic() < limit, f"there is still no {path.name}"
        time.sleep(0.02)


@contextmanager
def ends_by_itself(worker: psutil.Process) -> Iterator[None]:
    """Stop the launcher of a worker until the worker has ended.

    A launcher that sees one process die ends the others, perhaps before they notice.
    """
    launcher, limit = worker.ppid(), time.monotonic() + PATIENCE
    os.kill(launcher, signal.SIGSTOP)
    try:
        yield
        while worker.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < limit, "the worker is still there"
            time.sleep(0.02)
    finally:
        os.kill(launcher, signal.SIGCONT)


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    folder, steps, resume = Path(arguments[0]), int(arguments[1]), "--resume" in arguments
    recipe = replace(RECIPE, steps=steps)
    if "--adamw" in arguments:
        recipe = replace(recipe, optimiser="adamw")
    field = Path(arguments[arguments.index("--field") + 1]) if "--field" in arguments else None
    train, val, _ = parts(field)
    model = small(train)
    if "--slow" in arguments:
        pause = float(arguments[arguments.index("--slow") + 1])
        model.network.register_forward_pre_hook(lambda *_: time.sleep(pause))
    if "--hold" in arguments:
        number, file = arguments[arguments.index("--hold") + 1 :][:2]
        passes = itertools.count(1)

        def hold(*_: object) -> None:
            held = next(passes) >= int(number)
            while held and not Path(file).exists():
                time.sleep(0.01)

        model.network.register_forward_pre_hook(hold)
    accelerator = make_accelerator()
    print(f"{accelerator.num_processes} processes, {accelerator.distributed_type}", flush=True)
    quiet, shard = "--quiet" in arguments, "--shard" in arguments
    model.fit(train, val, recipe=recipe, out=folder, resume=resume, shard=shard, quiet=quiet)


if __name__ == "__main__":
    main(sys.argv[1:])
