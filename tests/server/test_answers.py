"""Answers of the server: every number is that of `predict`, every format is valid."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import small
import xarray as xr
from covjson_pydantic.coverage import Coverage
from edr_pydantic.capabilities import ConformanceModel, LandingPageModel
from edr_pydantic.collections import Collection, Collections
from report_cases import SOURCE, STATION
from serving import (
    HERE,
    NOON,
    Answer,
    Server,
    expected_of,
    model_and_parts,
    observations,
    served,
    values_of,
)

from gridtnp.server.coverages import MEDIA

POLYGON = "POLYGON((-2 49,2 49,0 52,-2 49))"
COLUMNS = ("t2m_mean", "t2m_std", "t2m_q05", "t2m_q95", "t2m_support")


def coverage(answer: Answer) -> Coverage:
    """A valid one; unit symbols and all."""
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == MEDIA["CoverageJSON"]
    return Coverage.model_validate_json(answer.body)


def expected(at: xr.Dataset, times: Any = (NOON,), **options: Any) -> xr.Dataset:
    model, _, test = model_and_parts()
    return model.predict(test, at, times=times, progress=False, **options)


def assert_same(answer: Answer, wanted: xr.Dataset, names: tuple[str, ...] = COLUMNS) -> None:
    """Bit for bit."""
    for name in names:
        np.testing.assert_array_equal(
            values_of(answer, name).ravel(), wanted[name].to_numpy().ravel()
        )


def test_landing_page_conformance_and_collections_are_valid(server: Server) -> None:
    landing = LandingPageModel.model_validate_json(server.ask("/").body)
    assert {"service-desc", "conformance", "data"} <= {link.rel for link in landing.links}
    for link in landing.links:
        path = link.href.removeprefix(server.address.rstrip("/"))
        assert server.ask(path).status == 200
    assert ConformanceModel.model_validate_json(server.ask("/conformance").body).conformsTo
    found = Collections.model_validate_json(server.ask("/collections").body)
    one = Collection.model_validate_json(server.ask(HERE).body)
    assert found.collections == [one]
    assert set(COLUMNS) <= set(one.parameter_names.root)
    assert one.data_queries is not None
    assert one.data_queries.locations is not None
    assert one.extent.temporal is not None
    assert len(one.extent.temporal.values) == len(small.TIMES)


def test_a_position_is_predicted_bit_for_bit(server: Server) -> None:
    query = {"coords": "POINT(0.3 51.1)", "datetime": NOON}
    found = server.ask(f"{HERE}/position", query)
    assert coverage(found).domain.domainType == "PointSeries"
    at = xr.Dataset(coords={"lat": 51.1, "lon": 0.3})
    assert_same(found, expected(at))
    several = server.ask(f"{HERE}/position", {"coords": "MULTIPOINT((0 50),(1 51.5))"})
    assert coverage(several).domain.domainType == "MultiPointSeries"
    at = xr.Dataset(coords={"lat": ("point", [50.0, 51.5]), "lon": ("point", [0.0, 1.0])})
    assert_same(several, expected(at, served().times))


def test_any_quantile_and_probability_may_be_asked_for(server: Server) -> None:
    names = ("t2m_q10", "t2m_above_280", "t2m_mean")
    query = {"coords": "POINT(0.3 51.1)", "datetime": NOON, "parameter-name": ",".join(names)}
    found = server.ask(f"{HERE}/position", query)
    assert list(found.json["ranges"]) == list(names)
    at = xr.Dataset(coords={"lat": 51.1, "lon": 0.3})
    assert_same(found, expected(at, quantiles=[0.1], exceed=[280.0]), names)


def test_a_cube_is_the_same_in_every_format(server: Server, tmp_path: Path) -> None:
    query = {"bbox": "-2,49,2,52", "datetime": f"{NOON}/..", "resolution-x": 5, "resolution-y": 4}
    times = [t for t in small.TIMES if t >= pd.Timestamp(NOON)]
    grid = xr.Dataset(coords={"lat": np.linspace(49, 52, 4), "lon": np.linspace(-2, 2, 5)})
    wanted = expected(grid, times)
    found = server.ask(f"{HERE}/cube", query)
    assert coverage(found).domain.domainType == "Grid"
    assert_same(found, wanted)
    path = tmp_path / "cube.nc"
    path.write_bytes(server.ask(f"{HERE}/cube", {**query, "f": "netCDF"}).body)
    with xr.open_dataset(path) as made:
        for name in COLUMNS:
            np.testing.assert_array_equal(made[name], wanted[name])
        np.testing.assert_array_equal(made["time"], wanted["time"])
    table = pd.read_csv(io.BytesIO(server.ask(f"{HERE}/cube", {**query, "f": "CSV"}).body))
    flat = wanted.to_dataframe().reset_index()
    for name in ("lat", "lon", *COLUMNS):
        np.testing.assert_array_equal(table[name], flat[name])


def test_an_area_is_missing_outside_of_its_polygon(server: Server) -> None:
    query = {"coords": POLYGON, "datetime": NOON, "resolution-x": 9, "resolution-y": 7}
    found = server.ask(f"{HERE}/area", query)
    coverage(found)
    grid = xr.Dataset(coords={"lat": np.linspace(49, 52, 7), "lon": np.linspace(-2, 2, 9)})
    depth = (1 - abs(grid["lon"]) / 2 - (grid["lat"] - 49) / 3).transpose("lat", "lon").to_numpy()
    values = values_of(found, "t2m_mean")[0]
    known = np.isfinite(values)
    assert 10 < known.sum() < 40
    within = np.abs(depth) > 1e-9  # not on the border
    np.testing.assert_array_equal(known[within], depth[within] > 0)
    np.testing.assert_array_equal(values[known], expected(grid)["t2m_mean"].to_numpy()[0][known])


def test_a_trajectory_has_its_own_times(server: Server) -> None:
    seconds = [int(pd.Timestamp(t).timestamp()) for t in small.TIMES[:2]]
    line = f"LINESTRINGM(0 50 {seconds[0]},1 51 {seconds[1]})"
    found = server.ask(f"{HERE}/trajectory", {"coords": line})
    assert coverage(found).domain.domainType == "Trajectory"
    times = ("point", small.TIMES[:2])
    at = xr.Dataset(
        coords={"lat": ("point", [50.0, 51.0]), "lon": ("point", [0.0, 1.0]), "time": times}
    )
    assert_same(found, expected(at, None))
    plain = server.ask(f"{HERE}/trajectory", {"coords": "LINESTRING(0 50,1 51)", "datetime": NOON})
    assert coverage(plain).domain.domainType == "MultiPointSeries"


def test_locations_are_the_stations(server: Server) -> None:
    found = server.ask(f"{HERE}/locations").json
    assert found["type"] == "FeatureCollection"
    names = [feature["id"] for feature in found["features"]]
    assert STATION in names
    assert any(feature["properties"]["held_out"] for feature in found["features"])
    _, _, test = model_and_parts()
    name = names[0]
    path = f"{HERE}/locations/{name}"
    answer = server.ask(path, {"datetime": NOON})
    coverage(answer)
    source = test.sources["stations"]
    assert source.labels is not None
    row = int(np.flatnonzero(source.labels == name)[0])
    at = xr.Dataset(coords={"lat": source.lat[row], "lon": source.lon[row]})
    at = at.assign_coords(elevation=float(test.static_at("stations")[row, 0]))
    assert_same(answer, expected(at))


def test_fresh_observations_as_csv_or_columns_are_predicted_from(server: Server) -> None:
    table = observations()
    places = pd.DataFrame({"lat": [50.5, 52.0], "lon": [0.5, -1.5]})
    at = xr.Dataset(coords={k: ("point", places[k].to_numpy()) for k in places})
    wanted = expected_of(table, at)
    columns = {k: table[k].tolist() for k in table.columns}
    for given in (columns, table.to_csv(index=False)):
        body = {
            "observations": {"stations": given},
            "keep": [SOURCE],
            "at": {k: places[k].tolist() for k in places},
            "times": [NOON],
        }
        found = server.ask("/predict", body=body)
        coverage(found)
        assert_same(found, wanted)
    own = server.ask("/predict", body={"at": {"lat": [50.5], "lon": [0.5]}, "times": [NOON]})
    one = xr.Dataset(coords={"lat": ("point", [50.5]), "lon": ("point", [0.5])})
    assert_same(own, expected(one))
    without = {k: v for k, v in columns.items() if k != "time"}
    body = {"observations": {"stations": without}, "time": NOON, "keep": [SOURCE]}
    body |= {"at": {"lat": [50.5], "lon": [0.5]}, "times": [NOON]}
    assert values_of(server.ask("/predict", body=body), "t2m_mean")[0, 0] == pytest.approx(
        float(wanted["t2m_mean"][0, 0])
    )


def test_notes_about_the_data_are_in_a_header(server: Server) -> None:
    query = {"coords": "POINT(0.3 51.1)", "datetime": "2031-01-01"}
    found = server.ask(f"{HERE}/position", query)
    assert "no observations at 2031-01-01" in found.headers["gridtnp-note"]


def test_many_points_are_a_job(server: Server, tmp_path: Path) -> None:
    body = {"grid": {"lat": [48, 54], "lon": [-3, 3], "step": 0.1}, "times": [NOON], "f": "netCDF"}
    found = server.ask("/predict", body=body)
    assert found.status == 202
    path = found.headers["location"].removeprefix(server.address.rstrip("/"))
    server.wait(lambda: server.ask(path).json["status"] == "successful")
    status = server.ask(path).json
    assert status["progress"] == 100
    result = server.ask(f"{path}/results")
    file = tmp_path / "job.nc"
    file.write_bytes(result.body)
    lat, lon = 48 + 0.1 * np.arange(61), -3 + 0.1 * np.arange(61)
    wanted = expected(xr.Dataset(coords={"lat": lat, "lon": lon}))
    with xr.open_dataset(file) as made:
        for name in COLUMNS:
            np.testing.assert_array_equal(made[name], wanted[name])
    assert server.ask(path, method="DELETE").json["status"] == "dismissed"
    assert server.ask(path).status == 404


def pixels(data: bytes) -> np.ndarray:
    """Red, green, blue and opacity of a PNG file without filters."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, found = 8, {}
    while at < len(data):
        size = struct.unpack(">I", data[at : at + 4])[0]
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(
            kind + content
        )
        found[kind] = content
        at += 12 + size
    width, height = struct.unpack(">II", found[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(found[b"IDAT"]), np.uint8).reshape(height, -1)
    return rows[:, 1:].reshape(height, width, 4)


def test_tiles_show_the_predictions_and_fit_together(server: Server) -> None:
    query = {"datetime": NOON, "parameter-name": "t2m_support"}
    left = server.ask("/tiles/6/31/21.png", query)
    right = server.ask("/tiles/6/32/21.png", query)
    assert left.headers["content-type"] == "image/png"
    a, b = pixels(left.body).astype(int), pixels(right.body).astype(int)
    assert a.shape == (256, 256, 4)
    assert (a[..., 3] == 255).mean() > 0.8
    assert np.abs(np.diff(a[..., :3], axis=1))[(a[:, 1:, 3] == 255)].max() < 30  # no blocks
    both = (a[:, -1, 3] == 255) & (b[:, 0, 3] == 255)
    assert np.abs(a[both, -1] - b[both, 0]).max() < 30
    some = np.arange(4, 256, 16)
    lon = (31 + (some + 0.5) / 256) / 64 * 360 - 180
    lat = np.rad2deg(np.arctan(np.sinh(np.pi * (1 - 2 * (21 + (some + 0.5) / 256) / 64))))
    values = expected(xr.Dataset(coords={"lat": lat, "lon": lon}))["t2m_support"].to_numpy()[0]
    known = np.isfinite(values) & (a[np.ix_(some, some)][..., 3] == 255)
    green = a[np.ix_(some, some)][..., 1][known]  # falls from near to far
    assert np.corrcoef(green, values[known])[0, 1] < -0.9
    assert not pixels(server.ask("/tiles/6/0/0.png").body)[..., 3].any()
    assert server.ask("/tiles/3/9/0.png").status == 404


def test_the_openapi_description_has_every_address(server: Server) -> None:
    described = server.ask("/openapi.json").json
    wanted = {
        f"/collections/{{collection}}/{q}" for q in ("position", "area", "cube", "trajectory")
    }
    wanted |= {"/predict", "/health", "/tiles/{z}/{x}/{y}.png", "/jobs/{job}", "/conformance"}
    assert wanted <= set(described["paths"])
    assert "422" not in json.dumps(described)
