"""Cost of predictions in parts and on dask: seconds, overhead, memory and bytes.

An untrained model predicts a regional grid at 0.25 degrees, hour by hour, from stations and a
field in a Zarr archive that is read lazily: by one process, by one dask worker and by two, with one
thread each. Wall time depends on who else uses the machine (`load_by_others`); processor time does
hardly. Results go to `benchmarks/results/cluster.json`.

python benchmarks/cluster.py [--times 24] [--folder /tmp]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr

import gridtnp as gt
from gridtnp.inference.cluster import open_client
from gridtnp.reproduce.gp import commit

HERE = Path(__file__).parent
HOURS = 24 * 14
"""Length of the archive."""
YEARS = {"times": 350_640, "points": 721 * 1440}
"""40 years of hours on a global grid at 0.25 degrees."""


def archive(path: Path) -> None:
    """Hourly fields at one degree, written day by day."""
    lat, lon = np.arange(30.0, 72.0), np.arange(-15.0, 45.0)
    rng = np.random.default_rng(0)
    for start in range(0, HOURS, 24):
        hours = pd.date_range("2019-01-01", periods=HOURS, freq="1h")[start : start + 24]
        values = rng.normal(280, 5, (len(hours), len(lat), len(lon))).astype(np.float32)
        axes = {"time": hours, "lat": lat, "lon": lon}
        day = xr.Dataset({"t2m": (("time", "lat", "lon"), values)}, axes)
        if start:
            day.to_zarr(path, append_dim="time")
        else:
            day.to_zarr(path, zarr_format=2, encoding={"t2m": {"chunks": (24, 42, 60)}})


def stations(number: int = 500) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    sites = pd.DataFrame({"lat": rng.uniform(35, 60, number), "lon": rng.uniform(-10, 40, number)})
    hours = pd.DataFrame({"time": pd.date_range("2019-01-01", periods=HOURS, freq="1h")})
    table = sites.merge(hours, how="cross")
    return table.assign(t2m=rng.normal(280, 5, len(table)))


def worker_use() -> tuple[float, float]:
    """Seconds of the processor, and the peak of memory in megabytes, of this process."""
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def on_workers(number: int, predict: Any, times: int) -> dict[str, float]:
    with open_client(f"local:{number}") as client:
        predict(times=1, client=client)  # imports, model and context
        before = client.run(worker_use)
        start = time.perf_counter()
        predict(times=times, client=client)
        wall = time.perf_counter() - start
        after = client.run(worker_use)
    return {
        "wall_seconds": round(wall, 2),
        "worker_processor_seconds": round(sum(after[k][0] - before[k][0] for k in after), 2),
        "peak_megabytes_per_worker": round(max(use[1] for use in after.values())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=96)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    archive(folder / "field.zarr")
    data = gt.Dataset(
        {"stations": stations(), "field": xr.open_zarr(folder / "field.zarr")},
        target="stations.t2m",
        memory=2**20,
    )
    model = gt.GriddedTNP.for_data(data, "tiny", prior="none", quiet=True)
    grid = gt.latlon_grid(lat=(35, 60), lon=(-10, 40), step=0.25)
    hours, points = (
        pd.date_range("2019-01-01", periods=HOURS, freq="1h"),
        grid.lat.size * grid.lon.size,
    )
    made: list[Path] = []

    def predict(times: int, client: Any = None) -> None:
        to = folder / f"{len(made)}.zarr"
        made.append(to)
        model.predict(
            data,
            grid,
            times=hours[:times],
            to=to,
            regions={"time": 1},
            client=client,
            progress=False,
        )

    results: dict[str, Any] = {
        "commit": commit(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_by_others": round(os.getloadavg()[0], 1),
        "points_per_time": points,
        "times": options.times,
    }
    predict(times=1)
    wall, cpu = time.perf_counter(), time.process_time()
    predict(times=options.times)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    size = sum(file.stat().st_size for file in made[-1].rglob("*") if file.is_file())
    total = points * options.times
    results["one process"] = {"wall_seconds": round(wall, 2), "processor_seconds": round(cpu, 2)}
    for number in (1, 2):
        results[f"{number} workers"] = on_workers(number, predict, options.times)
        print(number, results[f"{number} workers"], flush=True)
    results["1 workers, three times as long"] = on_workers(1, predict, 3 * options.times)
    one, two = results["1 workers"], results["2 workers"]
    results["wall_time_of_1_worker_over_2"] = round(one["wall_seconds"] / two["wall_seconds"], 2)
    results["processor_time_of_1_worker_over_one_process"] = round(
        one["worker_processor_seconds"] / cpu, 3
    )
    per_million, per_point = 1e6 * cpu / total, size / total
    results["processor_seconds_per_million_points"] = round(per_million, 3)
    results["bytes_per_point_on_disk"] = round(per_point, 1)
    many = YEARS["times"] * YEARS["points"]
    results["40 years of hours at 0.25 degrees"] = {
        "points": many,
        "core_hours": round(many / 1e6 * per_million / 3600),
        "terabytes": round(many * per_point / 1e12, 1),
    }
    path = HERE / "results" / "cluster.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    shutil.rmtree(folder)
    print(json.dumps(results, indent=2), f"\nwrote {path}")


if __name__ == "__main__":
    main()
