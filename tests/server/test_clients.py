"""Clients that we did not write read what the server answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

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


# ---- GDAL, with which QGIS reads rasters and tables ----------------------------------------------

SIDE = 20037508.342789244
"""Half the side of the world in web Mercator, in metres."""
TILES = """<GDAL_WMS>
  <Service name="TMS">
    <ServerUrl>{address}tiles/${{z}}/${{x}}/${{y}}.png?datetime={time}</ServerUrl>
  </Service>
  <DataWindow>
    <UpperLeftX>-{side}</UpperLeftX><UpperLeftY>{side}</UpperLeftY>
    <LowerRightX>{side}</LowerRightX><LowerRightY>-{side}</LowerRightY>
    <TileLevel>{level}</TileLevel><TileCountX>1</TileCountX><TileCountY>1</TileCountY>
    <YOrigin>top</YOrigin>
  </DataWindow>
  <Projection>EPSG:3857</Projection>
  <BlockSizeX>256</BlockSizeX><BlockSizeY>256</BlockSizeY><BandsCount>4</BandsCount>
</GDAL_WMS>
"""


def tile_box(z: int, x: int, y: int) -> tuple[float, float, float, float]:
    """West, south, east and north of a tile in web Mercator."""
    step = 2 * SIDE / 2**z
    west, north = -SIDE + x * step, SIDE - y * step
    return west, north - step, west + step, north


@pytest.fixture
def gdal() -> Callable[..., str]:
    """Runs a command of GDAL, and gives what it prints."""
    if shutil.which("gdalinfo") is None:
        pytest.skip("no gdalinfo on this machine; on Debian: apt-get install gdal-bin")

    def run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        return done.stdout

    return run


def pixels(gdal: Callable[..., str], source: str, kind: type, *options: str) -> np.ndarray:
    """The values of all pixels, in the order of rows, columns and bands."""
    with TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        gdal(
            "gdal_translate",
            "-q",
            *options,
            "-of",
            "ENVI",
            "-co",
            "INTERLEAVE=BIP",
            source,
            str(raw),
        )
        return np.fromfile(raw, kind)


@pytest.mark.slow
@pytest.mark.parametrize("query", ["cube", "area"])
def test_gdal_reads_netcdf_to_the_last_bit(
    server: Server, gdal: Callable[..., str], tmp_path: Path, query: str
) -> None:
    where = {**QUERIES["cube"], "resolution-x": 5, "resolution-y": 4}
    if query == "area":
        where |= {"coords": "POLYGON((-2 49,2 49,2 52,-2 52,-2 49))"}
        del where["bbox"]
    path = tmp_path / "field.nc"
    path.write_bytes(server.ask(f"{HERE}/{query}", {**where, "f": "netCDF"}).body)
    source = f'NETCDF:"{path}":t2m_mean'
    about = json.loads(gdal("gdalinfo", "-json", source))
    assert about["size"] == [5, 4]
    assert 'ID["EPSG",4326]' in about["coordinateSystem"]["wkt"]
    assert about["geoTransform"] == pytest.approx([-2.5, 1, 0, 52.5, 0, -1])
    wanted = values_of(server.ask(f"{HERE}/{query}", where), "t2m_mean")[0, ::-1]  # north is up
    np.testing.assert_array_equal(pixels(gdal, source, np.float64), wanted.ravel())


@pytest.mark.slow
def test_gdal_reads_the_tiles_as_one_map(
    server: Server, gdal: Callable[..., str], tmp_path: Path
) -> None:
    tile = tmp_path / "tile.png"
    tile.write_bytes(server.ask("/tiles/6/32/21.png", {"datetime": NOON}).body)
    wanted = pixels(gdal, str(tile), np.uint8)
    assert len(np.unique(wanted)) > 10
    source = tmp_path / "tiles.xml"
    source.write_text(TILES.format(address=server.address, time=NOON, side=SIDE, level=6))
    west, south, east, north = tile_box(6, 32, 21)
    window = ["-projwin", *map(repr, (west, north, east, south))]
    found = pixels(gdal, str(source), np.uint8, *window)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
def test_gdal_reads_stations_and_tables(server: Server, gdal: Callable[..., str]) -> None:
    stations = server.ask(f"{HERE}/locations").json["features"]
    text = gdal("ogrinfo", "-al", "-so", f"{server.address}{HERE[1:]}/locations")
    assert "using driver `GeoJSON' successful" in text
    assert f"Feature Count: {len(stations)}" in text
    query = f"position?coords=POINT(0.3%2051.1)&datetime={NOON}&f=CSV"
    options = ["-oo", "X_POSSIBLE_NAMES=lon", "-oo", "Y_POSSIBLE_NAMES=lat"]
    text = gdal(
        "ogrinfo", "-al", *options, f"CSV:/vsicurl_streaming/{server.address}{HERE[1:]}/{query}"
    )
    assert "POINT (0.3 51.1)" in text


# ---- QGIS ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_qgis_opens_tiles_netcdf_and_stations(
    server: Server, gdal: Callable[..., str], tmp_path: Path
) -> None:
    python, environment = "/usr/bin/python3", {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    environment = {k: v for k, v in environment.items() if k != "PYTHONPATH"}
    try:
        subprocess.run([python, "-c", "import qgis.core"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no QGIS on this machine; on Debian: apt-get install qgis")
    query = {"bbox": "-2,49,2,52", "datetime": NOON, "resolution-x": 5, "resolution-y": 4}
    query["parameter-name"] = "t2m_mean"
    path, tile = tmp_path / "field.nc", tmp_path / "tile.png"
    path.write_bytes(server.ask(f"{HERE}/cube", {**query, "f": "netCDF"}).body)
    tile.write_bytes(server.ask("/tiles/6/32/21.png", {"datetime": NOON}).body)
    west, south, east, north = tile_box(6, 32, 21)
    script = Path(__file__).parent / "read_in_qgis.py"
    box = map(repr, (west, south, east, north))
    done = subprocess.run(
        [python, str(script), server.address, str(path), NOON, *box],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tiles"] == [True, "EPSG:3857"]
    assert found["field"] == [True, "EPSG:4326"]
    assert found["stations"] == [True, "EPSG:4326"]
    assert found["count"] == len(server.ask(f"{HERE}/locations").json["features"])
    wanted = values_of(server.ask(f"{HERE}/cube", query), "t2m_mean")
    assert found["value"] == wanted[0, 1, 2]  # at 50 N, 0 E
    own, drawn = pixels(gdal, str(tile), np.uint8).reshape(-1, 4), np.array(found["pixels"])
    drawn = drawn.reshape(-1, 4)  # on white paper
    np.testing.assert_array_equal(drawn, np.where(own[:, 3:] == 0, 255, own))
