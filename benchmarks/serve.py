"""Load on the server: clients at once, right answers, and `/health` while a large job runs.

A model of the demo stations is served by a process of its own. Clients in another process ask for
predictions at places and times, and compare every answer with `predict`. A bare FastAPI route, in
a process of its own, is asked by the same clients in the same run. Results go to
`benchmarks/results/serve.json`.

python benchmarks/serve.py [--clients 32] [--seconds 60]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import xarray as xr

import gridtnp as gt
from gridtnp.cli.arguments import load_run
from gridtnp.cli.commands import main as gridtnp
from gridtnp.reproduce.gp import commit

HERE = Path(__file__).parent.resolve()
BARE = """
import uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get("/health")
async def health(coords: str = "", datetime: str = "") -> dict:
    return {"status": "ok"}
import socket
made = socket.create_server(("127.0.0.1", 0))
print(made.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[made])
"""


def make_run(folder: Path) -> Path:
    """A run of the demo stations from 1994 on, fitted for a few steps."""
    table, terrain = gt.demo.load()
    columns = ["time", "lat", "lon", "elevation", "station", "tmax"]
    table = table.loc[table["time"] >= "1994", columns]
    table.to_csv(folder / "stations.csv", index=False)
    terrain.to_netcdf(folder / "terrain.nc")
    os.chdir(folder)
    gridtnp(["init", "stations.csv", "terrain.nc", "--target", "stations.tmax", "-o", "exp.yaml"])
    gridtnp(["fit", "exp.yaml", "--train.steps", "20", "--json"])
    return folder / "runs" / "exp"


def expectations(run: Path, places: int) -> list[tuple[str, float]]:
    """Paths to ask for, with the mean that `predict` gives."""
    model, experiment = load_run(run)
    _, _, test = experiment.parts()
    rng, times = np.random.default_rng(0), test.times()
    assert times is not None
    found = []
    for _ in range(places):
        lat, lon = round(rng.uniform(37.5, 40.5), 3), round(rng.uniform(-108.5, -102.5), 3)
        time_ = times[rng.integers(len(times))]
        at = xr.Dataset(coords={"lat": lat, "lon": lon})
        made = model.predict(test, at, times=[time_], progress=False)
        path = f"/collections/predictions/position?coords=POINT({lon}%20{lat})&datetime={time_}"
        found.append((path, float(made["tmax_mean"].item())))
    return found


# ---- clients -------------------------------------------------------------------------------------


async def get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> bytes:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    if not head.startswith("HTTP/1.1 200"):
        raise RuntimeError(head.partition("\r\n")[0])
    lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    return await reader.readexactly(int(lines["content-length"]))


async def load(
    port: int, clients: int, seconds: float, asked: list[tuple[str, float | None]]
) -> dict[str, Any]:
    """Latencies of as many clients at once, and the number of wrong answers."""
    end, latencies, wrong = time.perf_counter() + seconds, [], 0

    async def client(number: int) -> None:
        nonlocal wrong
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        at = number
        while time.perf_counter() < end:
            path, wanted = asked[at % len(asked)]
            start = time.perf_counter()
            body = await get(reader, writer, path)
            latencies.append(time.perf_counter() - start)
            if wanted is not None:
                wrong += json.loads(body)["ranges"]["tmax_mean"]["values"][0] != wanted
            at += 1
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    elapsed = time.perf_counter() - start
    return {
        "requests": len(latencies),
        "wrong": wrong,
        "requests_per_second": round(len(latencies) / elapsed, 1),
        "median_ms": round(1e3 * float(np.median(latencies)), 1),
        "p95_ms": round(1e3 * float(np.quantile(latencies, 0.95)), 1),
        "largest_ms": round(1e3 * max(latencies), 1),
    }


def health_during_a_job(port: int) -> dict[str, Any]:
    """How long `/health` takes while a job of hundreds of thousands of points runs."""
    base = f"http://127.0.0.1:{port}"
    grid = {"lat": [37, 41], "lon": [-109, -102], "step": 0.012}
    body = {"grid": grid, "times": ["1997-07-01"], "f": "netCDF"}
    request = urllib.request.Request(f"{base}/predict", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        job = json.load(answer)["id"]
    latencies, status, progress = [], {"status": "running"}, []
    while status["status"] in ("accepted", "running") and len(latencies) < 200:
        start = time.perf_counter()
        urllib.request.urlopen(f"{base}/health").read()
        latencies.append(time.perf_counter() - start)
        with urllib.request.urlopen(f"{base}/jobs/{job}") as answer:
            status = json.load(answer)
        progress.append(status["progress"])
        time.sleep(0.1)
    urllib.request.urlopen(urllib.request.Request(f"{base}/jobs/{job}", method="DELETE")).read()
    return {
        "requests": len(latencies),
        "largest_ms": round(1e3 * max(latencies), 1),
        "p95_ms": round(1e3 * float(np.quantile(latencies, 0.95)), 1),
        "job_reached_percent": max(progress),
        "within_0.2_s": max(latencies) < 0.2,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--places", type=int, default=100)
    options = parser.parse_args()
    version, started = commit(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        run = make_run(Path(name))
        asked = expectations(run, options.places)
        command = [sys.executable, "-m", "gridtnp", "serve", str(run), "--port", "0", "--json"]
        served = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        bare = subprocess.Popen([sys.executable, "-c", BARE], stdout=subprocess.PIPE, text=True)
        try:
            assert served.stdout is not None
            assert bare.stdout is not None
            address = json.loads(served.stdout.readline())["address"]
            port, other = int(address.rstrip("/").rsplit(":", 1)[1]), int(bare.stdout.readline())
            urllib.request.urlopen(f"{address}map").read()  # made at the start, in the background
            server = psutil.Process(served.pid)
            before = sum(server.cpu_times()[:2])
            position = asyncio.run(load(port, options.clients, options.seconds, [*asked]))
            used = sum(server.cpu_times()[:2]) - before
            position["server_cpu_ms"] = round(1e3 * used / position["requests"], 1)
            results = {
                "commit": version,
                "machine": platform.machine(),
                "cores": os.cpu_count(),
                "load_by_others": round(started, 1),
                "clients": options.clients,
                "seconds": options.seconds,
                "position": position,
                "health of the same server": asyncio.run(
                    load(port, options.clients, options.seconds / 6, [("/health", None)])
                ),
                "bare FastAPI route": asyncio.run(
                    load(other, options.clients, options.seconds / 6, [("/health", None)])
                ),
                "health during a job": health_during_a_job(port),
            }
        finally:
            for process in (served, bare):
                process.terminate()
                process.wait(20)
    for key, value in results.items():
        print(f"{key:<28} {value}")
    path = HERE / "results" / "serve.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
