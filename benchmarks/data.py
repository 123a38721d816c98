"""Speed of making tasks from data in memory and from Gaussian processes.

Batches have 8 tasks, of 10,000 points or of 11,000 points of a process. Results go to
`benchmarks/results/data.json`.

python benchmarks/data.py [--seconds 5] [--workers 1]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import xarray as xr

import gridtnp as gt
from gridtnp.reproduce.gp import commit
from gridtnp.synthetic.covariances import SquaredExponential
from gridtnp.synthetic.processes import GaussianProcess, stream

HERE = Path(__file__).parent
POINTS = 10_000


def grid() -> xr.Dataset:
    """A day of a global field at one degree: 65,160 points."""
    values = np.random.default_rng(0).normal(size=(24, 181, 360)).astype(np.float32)
    axes = {
        "time": pd.date_range("2019-01-01", periods=24, freq="1h"),
        "lat": np.linspace(-90, 90, 181),
        "lon": np.arange(-180.0, 180.0),
    }
    return xr.Dataset({"t2m": (("time", "lat", "lon"), values)}, axes)


def table() -> pd.DataFrame:
    """A day of hourly reports from 20,000 stations."""
    rng = np.random.default_rng(0)
    stations = 20_000
    one = pd.DataFrame(
        {"lat": rng.uniform(-90, 90, stations), "lon": rng.uniform(-180, 180, stations)}
    )
    hours = pd.date_range("2019-01-01", periods=24, freq="1h")
    frame = pd.concat([one.assign(time=hour) for hour in hours], ignore_index=True)
    return frame.assign(t2m=rng.normal(size=len(frame)))


def samplers() -> dict[str, gt.Sampler]:
    half = gt.Count(POINTS // 2)
    ds = grid()
    relief = ds["t2m"].isel(time=0, drop=True).rename("relief")
    from_grid = gt.Dataset({"grid": ds}, target="grid.t2m")
    from_table = gt.Dataset({"stations": table()}, target="stations.t2m")
    rich = gt.Dataset(
        {"grid": ds},
        target="grid.t2m",
        static={"relief": relief},
        features=("day_of_year", "hour", "solar_elevation"),
    )
    return {
        "grid": gt.Sampler(from_grid, {"grid": half}, half),
        "stations": gt.Sampler(from_table, {"stations": half}, half),
        "stations, targets apart": gt.Sampler(from_table, {"stations": half}, gt.Rest(half)),
        "grid, normalised, six features": gt.Sampler(
            rich, {"grid": half}, half, normaliser=gt.Normaliser.fit(rich)
        ),
    }


def functions(length_scale: float) -> Iterator[gt.Task]:
    """Tasks of the paper's experiment: exact samples at 11,000 random points."""
    process = GaussianProcess(
        box=((-6.0, 6.0),) * 2,
        context=10_000,
        targets=1_000,
        kernel=SquaredExponential(length_scale),
    )
    return (batch.task for batch in stream(process, seed=0, batch=8))


def measure(stream: Iterator[gt.Task], seconds: float) -> dict[str, float]:
    task = next(stream)
    start, cpu, batches = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        task = next(stream)
        batches += 1
    elapsed, busy = time.perf_counter() - start, time.process_time() - cpu
    points = task.target.batch * (task.target.n + sum(p.n for p in task.context.values()))
    return {
        "batches_per_second": round(batches / elapsed, 1),
        "batches_per_second_of_one_core": round(batches / busy, 1),
        "points_per_batch": points,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, object] = {
        "commit": commit(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_by_others": round(os.getloadavg()[0], 1),
        "workers": options.workers,
    }
    streams = {n: s.stream(workers=options.workers) for n, s in samplers().items()}
    streams |= {f"Gaussian process, ℓ = {size:g}": functions(size) for size in (0.5, 0.1)}
    for name, made in streams.items():
        results[name] = measure(made, options.seconds)
        print(f"{name:<32} {results[name]}")
    path = HERE / "results" / "data.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
