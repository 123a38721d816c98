"""Archives larger than memory: an index of Parquet files, and a Zarr store streamed in training.

Hourly reports of 10,000 stations are written chunk by chunk to Parquet files, one per hundred
hours, and indexed; then tasks are drawn from them. Global fields at 0.25 degrees are written to a
Zarr store, one chunk per time; its chunks repeat a day of noise as hard links, so that the store
takes little of the disk and is mostly read from the system's file cache. A model is trained on
random times of it, and on one day in memory. Every measurement is a process of its own with one
thread for the network and one that prepares batches. Results go to
`benchmarks/results/archives.json`.

python benchmarks/archives.py [--rows 100_000_000] [--gigabytes 50] [--steps 30] [--folder /tmp]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import torch
import xarray as xr

import gridtnp as gt
from gridtnp.recipes import Recipe
from gridtnp.reproduce.gp import commit
from gridtnp.training.loop import train

HERE = Path(__file__).parent
STATIONS = 10_000
FILE_HOURS = 100
GROUP = 2**17
"""Rows of a row group."""
LATS, LONS = np.linspace(90, -90, 721), np.arange(0, 360, 0.25)
DAY = 24
MEMORY = 2**27
"""Bytes that sources may keep in memory."""
PAPER_ROWS = 10**9


# ---- archives ------------------------------------------------------------------------------------


def write_parquet(folder: Path, rows: int) -> None:
    """Reports of all stations, hour by hour, with names, places and one value each."""
    rng = np.random.default_rng(0)
    sites = pd.DataFrame(
        {
            "station": pd.Categorical([f"S{i:05d}" for i in range(STATIONS)]),
            "lat": rng.uniform(-90, 90, STATIONS).round(4),
            "lon": rng.uniform(-180, 180, STATIONS).round(4),
        }
    )
    hours = max(2, rows // STATIONS)
    for start in range(0, hours, FILE_HOURS):
        times = pd.date_range("1980-01-01", periods=hours, freq="1h")[start : start + FILE_HOURS]
        table = pd.concat([sites] * len(times), ignore_index=True)
        table["time"] = np.repeat(times.to_numpy(), STATIONS)
        table["t2m"] = rng.normal(280, 10, len(table)).astype(np.float32)
        below = folder / f"year={times[0].year}"
        below.mkdir(parents=True, exist_ok=True)
        table.to_parquet(below / f"{start:07d}.parquet", row_group_size=GROUP)


def write_zarr(path: Path, gigabytes: float) -> int:
    """Fields with a chunk per time; the chunks of the first day are linked to all others."""
    rng = np.random.default_rng(0)
    steps = max(2 * DAY, int(gigabytes * 1e9 / (4 * LATS.size * LONS.size)))
    times = pd.date_range("1980-01-01", periods=steps, freq="1h")
    shape = (steps, LATS.size, LONS.size)
    layout = xr.Dataset(
        {"t2m": (("time", "lat", "lon"), da.zeros(shape, np.float32, chunks=(1, *shape[1:])))},
        {"time": times, "lat": LATS, "lon": LONS},
    )
    layout.to_zarr(
        path, zarr_format=2, compute=False, encoding={"t2m": {"chunks": (1, *shape[1:])}}
    )
    for step in range(DAY):
        day = 280 + rng.normal(size=(1, *shape[1:])).astype(np.float32).round(1)
        one = xr.Dataset({"t2m": (("time", "lat", "lon"), day)})
        one.to_zarr(path, region={"time": slice(step, step + 1)}, zarr_format=2)
    for step in range(DAY, steps):
        os.link(path / "t2m" / f"{step % DAY}.0.0", path / "t2m" / f"{step}.0.0")
    return steps


# ---- measurements, each in a process of its own --------------------------------------------------


def memory() -> dict[str, int]:
    """Megabytes of this process: its peak, and what is its own, without mapped files."""
    status = Path("/proc/self/status").read_text()
    found = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if "kB" in line}
    return {
        "peak_megabytes": int(found["VmHWM"]) // 1024,
        "own_megabytes": int(found["RssAnon"]) // 1024,
    }


def index(folder: Path, _: int) -> dict[str, Any]:
    """Make the index."""
    wall, cpu = time.perf_counter(), time.process_time()
    data = gt.Dataset({"stations": folder}, target="stations.t2m", memory=MEMORY)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    size = sum(f.stat().st_size for f in folder.rglob(".gridtnp-index/**/*") if f.is_file())
    archive = sum(f.stat().st_size for f in folder.rglob("*.parquet"))
    return {
        "rows": data.sources["stations"].size,
        "seconds": round(wall, 2),
        "processor_seconds": round(cpu, 2),
        "index_bytes_per_row": round(size / data.sources["stations"].size, 2),
        "archive_bytes_per_row": round(archive / data.sources["stations"].size, 2),
        **memory(),
    }


def tasks(folder: Path, number: int) -> dict[str, Any]:
    """Open the archive with its index, and draw tasks of 1,000 context and 1,000 target points."""
    wall = time.perf_counter()
    data = gt.Dataset({"stations": folder}, target="stations.t2m", memory=MEMORY)
    opened = time.perf_counter() - wall
    times = data.times()
    assert times is not None
    borders = [times[int(share * len(times))] for share in (0.8, 0.9)]
    training, _, _ = data.split(borders, hold_out_stations=0.2)
    points = gt.Count(1000)
    sampler = gt.Sampler(training, {"stations": points}, gt.Rest(points), batch=1)
    sampler.draw(0)
    first = time.perf_counter() - wall
    made = {"seconds_to_open": round(opened, 2), "seconds_to_first_task": round(first, 2)}
    for what, stream in (
        ("random", (sampler.draw(i) for i in range(1, number + 1))),
        ("in order", (task for task, _ in zip(sampler.in_order(), range(number), strict=False))),
    ):
        wall, cpu = time.perf_counter(), time.process_time()
        drawn = sum(1 for _ in stream)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        made[f"{what}: tasks_per_second"] = round(drawn / wall, 1)
        made[f"{what}: tasks_per_processor_second"] = round(drawn / cpu, 1)
    return {**made, **memory()}


def training(path: Path, steps: int, loaded: bool) -> dict[str, Any]:
    """Train on random times, of the store or of its first day in memory."""
    field = xr.open_zarr(path, chunks=None)
    if loaded:
        field = field.isel(time=slice(DAY)).load()
    allowed = 2**34 if loaded else MEMORY
    data = gt.Dataset({"era5": field}, target="era5.t2m", memory=allowed)
    coarse = field.isel(
        time=slice(DAY), lat=slice(None, None, 20), lon=slice(None, None, 20)
    ).load()
    model = gt.GriddedTNP.for_data(
        gt.Dataset({"era5": coarse}, target="era5.t2m"), "tiny", prior="none", quiet=True
    )
    points = gt.Count(4000)
    sampler = gt.Sampler(
        *(data, {"era5": points}, gt.Rest(points)),
        coordinates=model.config.coordinates,
        normaliser=gt.Normaliser.fit(data),
        batch=4,
    )
    waited = 0.0

    def stream(start: int) -> Iterator[gt.Task]:
        nonlocal waited
        found = sampler.stream(start)
        while True:
            before = time.perf_counter()
            task = next(found)
            waited += time.perf_counter() - before
            yield task

    def run(number: int) -> tuple[float, float]:
        nonlocal waited
        wall, cpu, waited = time.perf_counter(), time.process_time(), 0.0
        train(model.network, stream, Recipe(number, 4, 1e-3), None)
        return time.perf_counter() - wall, time.process_time() - cpu

    run(3)
    wall, cpu = run(steps)
    return {
        "steps_per_second": round(steps / wall, 3),
        "share_of_time_waiting_for_tasks": round(waited / wall, 3),
        "processor_seconds_per_step": round(cpu / steps, 3),
        **memory(),
    }


STAGES: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "index": index,
    "tasks": tasks,
    "training on disk": lambda path, steps: training(path, steps, False),
    "training in memory": lambda path, steps: training(path, steps, True),
}


def measure(stage: str, path: Path, number: int) -> dict[str, Any]:
    """Run a stage in a process of its own."""
    command = [sys.executable, __file__, "--stage", stage, "--path", str(path)]
    done = subprocess.run([*command, "--number", str(number)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    print(stage, found, flush=True)
    return found


def parquet(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Index an archive and draw tasks from it."""
    write_parquet(folder, options.rows)
    made = measure("index", folder, 0)
    share = PAPER_ROWS / made["rows"]
    return {
        "index": made,
        "tasks": measure("tasks", folder, options.tasks),
        "on paper, 10^9 rows": {
            "index_gigabytes": round(made["index_bytes_per_row"] * PAPER_ROWS / 1e9, 2),
            "processor_minutes_to_index": round(made["processor_seconds"] * share / 60, 1),
        },
    }


def zarr(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train on a store, and on a day of it in memory."""
    steps = write_zarr(path, options.gigabytes)
    on_disk, in_memory = (
        measure(f"training {where}", path, options.steps) for where in ("on disk", "in memory")
    )
    speed = round(on_disk["steps_per_second"] / in_memory["steps_per_second"], 3)
    return {
        "gigabytes": round(4e-9 * steps * LATS.size * LONS.size, 2),
        "training on disk": on_disk,
        "training in memory": in_memory,
        "speed_on_disk_relative_to_memory": speed,
    }


PARTS = {"parquet": parquet, "zarr": zarr}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="one of the two archives")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--gigabytes", type=float, default=50.0)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "archives.json")
    for hidden in ("--stage", "--path", "--number"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.stage:
        print(json.dumps(STAGES[options.stage](Path(options.path), int(options.number))))
        return
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in [options.only] if options.only else PARTS:
        about = {
            "commit": commit(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load_by_others": round(os.getloadavg()[0], 1),
        }
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            results[name] = about | PARTS[name](Path(folder) / name, options)
        options.out.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2), f"\nwrote {options.out}")


if __name__ == "__main__":
    main()
