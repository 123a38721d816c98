"""Clients that we did not write read what the server answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from report_cases import UNITS
from serving import HERE, NOON, Server, values_of

READER = "covjson-reader@0.16.3"
QUERIES = {
    "position": {"coords": "POINT(0.3 51.1)"},
    "cube": {"bbox": "-2,49,2,52", "datetime": NOON, "resolution-x": 3, "resolution-y": 2},
    "trajectory": {"coords": "LINESTRINGM(0 50 1551398400,1 51 1551420000)"},
}


def install(folder: Path) -> None:
    """covjson-reader from npm; skips with the reason if that is impossible."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no node and npm on this machine, which covjson-reader needs")
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), READER]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not install covjson-reader within two minutes")
    if done.returncode:
        pytest.skip(f"npm cannot install covjson-reader: {done.stderr.strip().splitlines()[-1]}")


@pytest.mark.slow
def test_covjson_reader_reads_every_kind_of_coverage(server: Server, tmp_path: Path) -> None:
    install(tmp_path)
    answers = {kind: server.ask(f"{HERE}/{kind}", query) for kind, query in QUERIES.items()}
    files = []
    for kind, answer in answers.items():
        assert answer.status == 200, answer.body
        files.append(tmp_path / f"{kind}.covjson")
        files[-1].write_bytes(answer.body)
    script = Path(__file__).parent / "read_coverage.js"
    environment = {**os.environ, "NODE_PATH": str(tmp_path / "node_modules")}
    done = subprocess.run(
        ["node", str(script), *map(str, files)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    kinds = [one["type"].rsplit("#", 1)[-1] for one in found]
    assert kinds == ["PointSeries", "Grid", "Trajectory"]
    for one, answer in zip(found, answers.values(), strict=True):
        assert UNITS in json.dumps(one["unit"])
        for name, values in one["values"].items():
            np.testing.assert_array_equal(values, values_of(answer, name).ravel())


@pytest.mark.slow
def test_gdal_reads_the_netcdf_as_a_raster(server: Server, tmp_path: Path) -> None:
    if shutil.which("gdalinfo") is None:
        pytest.skip("no gdalinfo on this machine; on Debian: apt-get install gdal-bin")
    query = {**QUERIES["cube"], "f": "netCDF", "resolution-x": 5, "resolution-y": 4}
    path = tmp_path / "cube.nc"
    path.write_bytes(server.ask(f"{HERE}/cube", query).body)
    tile = tmp_path / "tile.png"
    tile.write_bytes(server.ask("/tiles/6/32/21.png", {"datetime": NOON}).body)
    size = {f'NETCDF:"{path}":t2m_mean': [5, 4], str(tile): [256, 256]}
    for source, wanted in size.items():
        done = subprocess.run(
            ["gdalinfo", "-json", "-stats", source], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["size"] == wanted
