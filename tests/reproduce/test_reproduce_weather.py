"""The two weather experiments at their smallest scale, from the command line."""

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

from gridtnp.network.presets import PRESETS, preset
from gridtnp.reproduce import stations as stations_module
from gridtnp.reproduce import wind as wind_module
from gridtnp.reproduce.__main__ import main
from gridtnp.reproduce.conclusions import CONCLUSIONS, NUMBERS
from gridtnp.reproduce.rows import Plan, run_row
from gridtnp.reproduce.shrinking import PAPER, row_configuration, shrunk
from gridtnp.reproduce.weather import Weather, rows_of
from gridtnp.reproduce.weather_data import EMBEDDED
from gridtnp.reproduce.weather_report import rmse
from gridtnp.reproduce.weather_scores import Tally

TABLES = ("stations", "stations-rich", "wind")


@cache
def experiment(table: str) -> Weather:
    if table == "wind":
        return wind_module.wind(wind_module.SCALES["smoke"], EMBEDDED)
    smoke = stations_module.SCALES["smoke"]
    return stations_module.stations(smoke, EMBEDDED, rich=table == "stations-rich")


@pytest.fixture(
    scope="module", params=[pytest.param(t, marks=pytest.mark.slow) for t in ("stations", "wind")]
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp(request.param) / request.param
    main([request.param, "--scale", "smoke", "--out", str(out)])
    return out / "smoke"


def results_in(folder: Path) -> dict[str, Any]:
    return {p.parent.name: json.loads(p.read_text()) for p in folder.glob("*/result.json")}


SOME = {
    "stations": ("cnp", "convcnp-64x128-full", "swin-tnp-pt-64x128", "swin-tnp-pt-64x128-kriging"),
    "wind": ("cnp", "swin-tnp-multi-pt-24x60"),
}


@pytest.fixture(scope="module", params=list(SOME))
def some_rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("some-rows") / request.param
    main([request.param, "--scale", "smoke", "--rows", *SOME[request.param], "--out", str(out)])
    return out / "smoke"


def test_some_rows(some_rows: Path) -> None:
    table, found = some_rows.parent.name, results_in(some_rows)
    assert set(found) == set(SOME[table])
    check_scores(experiment(table), found, some_rows)
    page = (some_rows / "table.md").read_text()
    for row in SOME[table]:
        assert f"| {experiment(table).described(row)[0]} |" in page
    assert "not run" in page  # conclusions that need other rows
    check_figures(table, some_rows)


def check_scores(own: Weather, found: dict[str, Any], folder: Path) -> None:
    baselines = {p.stem for p in folder.glob("baselines/*.json")}
    assert baselines == {name.partition(":")[0] for name in own.baselines}
    for result in found.values():
        scores = result["groups"]["all"]
        assert len(scores["log_likelihood"]) == own.scale.tests
        assert np.isfinite(scores["log_likelihood"]).all()
        assert np.shape(scores["squared_error"]) == (own.scale.tests, len(own.target))
        assert result["command"].startswith(f"python -m gridtnp.reproduce {own.table}")


def check_figures(table: str, folder: Path) -> None:
    for name in ("tradeoff", "errors", "histograms", "wind" if table == "wind" else "density"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_every_row_and_baseline_is_scored(folder: Path) -> None:
    table = folder.parent.name
    found, own = results_in(folder), experiment(table)
    assert set(found) == set(rows_of(table)) == set(own.rows)
    check_scores(own, found, folder)


def test_the_page_has_all_rows_conclusions_and_figures(folder: Path) -> None:
    table, page = folder.parent.name, (folder / "table.md").read_text()
    for row in rows_of(table):
        model, encoder, grid = experiment(table).described(row)
        assert f"| {model} | {encoder} | {grid} |" in page
    assert all(f"- {words}: " in page for words in CONCLUSIONS[table])
    assert "not run" not in page
    check_figures(table, folder)


@pytest.mark.parametrize("some_rows", ["stations"], indirect=True)
def test_a_finished_row_is_neither_trained_nor_scored_again(some_rows: Path) -> None:
    files = [some_rows / "cnp" / name for name in ("checkpoint.safetensors", "example.npz")]
    before = [path.stat().st_mtime_ns for path in files]
    plan = Plan(some_rows, "the same command")
    (result,) = run_row(experiment(some_rows.parent.name), "cnp", plan, Console())
    assert result == results_in(some_rows)["cnp"]
    assert [path.stat().st_mtime_ns for path in files] == before


@pytest.mark.parametrize("table", TABLES)
def test_rows_are_the_papers_and_at_its_size_its_presets(table: str) -> None:
    names = [name.partition("/")[2] for name in PRESETS if name.partition("/")[0] == table]
    assert set(names) < set(rows_of(table))
    for row in names:
        config = preset(f"{table}/{row}")
        assert row_configuration(table, row) == config
        assert shrunk(config, PAPER, list(config.sources), config.dim_y, None) == config
    compared = {row for pairs in CONCLUSIONS[table].values() for pair in pairs for row in pair}
    assert compared <= set(rows_of(table))
    assert set(NUMBERS[table]) == set(names)


def test_a_row_corrects_kriging() -> None:
    for table, fields in (("stations", ["skt"]), ("wind", [])):
        own = experiment(table)
        prior = own.configuration(rows_of(table)[-1]).prior
        assert [source for source, _ in prior.of] == [n for n in own.contexts if n != "skt"]
        assert [field.source for field in prior.fields] == fields


def test_rows_are_added() -> None:
    mean, smooth = (
        row_configuration("wind", f"swin-tnp-multi-{name}")
        for name in ("avg-24x60", "pt-24x60-smooth")
    )
    assert mean.architecture.grid_encoder.kind == "mean"
    assert mean.architecture.grid_encoder.shared == ("time",)
    assert smooth.architecture.decoder.smooth
    assert smooth.architecture.grid_encoder.smooth


# ---- the paper's tasks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "low", "high"), [("stations", 0, 0.3), ("stations-rich", 0.25, 0.5)]
)
def test_station_tasks(table: str, low: float, high: float) -> None:
    own = experiment(table)
    known = int(own.parts[0].target_places.sum())
    sampler = own.sampler(own.parts[0], 4, 7)
    for index in range(6):
        task = sampler.draw(index)
        assert low * known - 1 <= task.context["t2m"].n <= high * known + 1
        assert task.context["skt"].n == 24 * 48
        assert task.target.n == known
        places = {tuple(p) for p in task.target.x[0].tolist()}
        assert {tuple(p) for p in task.context["t2m"].x[0].tolist()} <= places
        assert not torch.equal(task.context["t2m"].x[0], task.context["t2m"].x[1]) or low == 0


def test_held_out_stations_are_never_in_training_nor_in_a_context() -> None:
    own = experiment("stations")
    train, val, test = own.parts
    held = test.target_places & ~train.target_places
    assert held.any()
    assert not (held & val.target_places).any()
    source = test.sources["stations"]
    for _, raw in own.tests():
        assert not held[source.places(raw.context["t2m"][0].rows)].any()
        groups = own.groups(raw)
        assert groups["unseen"].sum() == held.sum()
        assert groups["all"].sum() == train.target_places.sum()
        assert not (groups["unseen"] & groups["all"]).any()
        assert groups["apart"].sum() == groups["all"].sum() - len(raw.context["t2m"][0].rows)
        parts = [groups[name] for name in ("date line", "polar", "elsewhere")]
        assert (np.sum(parts, 0) >= groups["apart"]).all()


def test_parts_are_apart_in_time() -> None:
    for table in ("stations", "wind"):
        train, val, test = (part.times() for part in experiment(table).parts)
        gap = np.timedelta64(12, "h")
        assert val[0] - train[-1] > gap
        assert test[0] - val[-1] > gap


def test_wind_tasks() -> None:
    own = experiment("wind")
    assert list(own.contexts) == ["u700", "v700", "u850", "v850", "u1000", "v1000"]
    sampler = own.sampler(own.parts[0], 2, 7)
    points = 4 * len(own.parts[0].sources["wind"].lat)
    for index in range(4):
        task = sampler.draw(index)
        sizes = {points.n for points in task.context.values()}
        assert len(sizes) == 1
        assert 0.05 * points - 1 <= sizes.pop() <= 0.25 * points + 1
        places = [points.x[0].tolist() for points in task.context.values()]
        assert len({str(p) for p in places}) == 6, "every variable has places of its own"
        assert task.target.n == points // 4
        assert task.target.y.shape[-1] == 6
        assert task.target.x[..., 0].unique().tolist() == [0.0, 6.0, 12.0, 18.0]


def test_rows_with_one_source_get_no_other() -> None:
    own = experiment("stations")
    for source in ("skt", "t2m"):
        row = f"swin-tnp-pt-64x128-{source}"
        assert set(own.timed(row).context) == {source}
        assert own.timed(row).target.batch == 8


# ---- scores ------------------------------------------------------------------------------------


def test_scores_of_known_forecasts() -> None:
    rng = np.random.default_rng(0)
    std = np.array([2.0, 5.0])
    tally = Tally(std)
    mean = rng.normal(size=(20_000, 2)) * std
    truth = mean + rng.normal(size=mean.shape) * 0.5 * std
    tally.add(truth, mean, np.broadcast_to(0.5 * std, mean.shape), {})
    found = tally.groups["all"]
    # N(0, 0.25) in normalised units, twice
    entropy = 0.5 * np.log(2 * np.pi * np.e * 0.25)
    assert found["log_likelihood"][0] == pytest.approx(-2 * entropy, abs=0.03)
    assert np.allclose(rmse(found)[0], 0.5 * std, rtol=0.02)
    assert found["paper_rmse"][0] == pytest.approx(0.5 * 3.5, rel=0.02)
    assert found["inside"][0] == pytest.approx(0.9, abs=0.01)
    assert found["normalised"][0] == pytest.approx(-1.419, abs=0.02)
    assert np.allclose(found["crps"][0], 0.5 * std / np.sqrt(np.pi), rtol=0.02)


def test_results_on_other_data_are_not_mixed(tmp_path: Path) -> None:
    own = experiment("wind")
    (tmp_path / "cnp").mkdir()
    (tmp_path / "cnp" / "result.json").write_text('{"data": "other.nc"}')
    with pytest.raises(ValueError, match=r"has results on 'other\.nc', not on 'embedded'"):
        run_row(own, "cnp", Plan(tmp_path, ""), Console())


@pytest.mark.parametrize("some_rows", ["wind"], indirect=True)
def test_results_of_other_test_tasks_are_scored_again_and_not_compared(
    some_rows: Path, tmp_path: Path
) -> None:
    folder, (_, other) = tmp_path / "smoke", SOME["wind"]
    shutil.copytree(some_rows, folder)
    out = ["--scale", "smoke", "--out", str(tmp_path)]
    main(["wind", "--rows", "cnp", "--tests", "1", *out])
    found = results_in(folder) | {p.stem: json.loads(p.read_text()) for p in folder.glob("bas*/*")}
    tests = {row: len(result["groups"]["all"]["targets"]) for row, result in found.items()}
    assert tests == {"cnp": 1, other: 2, "nearest": 1, "idw": 1, "kriging": 1}
    page = (folder / "table.md").read_text()
    assert "| CNP |" in page
    assert f"| {experiment('wind').described(other)[0]} |" not in page
    with pytest.raises(ValueError, match=r"No results on 3 tasks from .+; train a row first"):
        main(["wind", "--rows", "--tests", "3", *out])


def test_results_of_other_stations_are_not_mixed(tmp_path: Path) -> None:
    places = pd.DataFrame({"lat": [0.0, 10.0, 20.0], "lon": [0.0, 10.0, 20.0]})
    places.to_csv(tmp_path / "mine.csv", index=False)
    smoke = replace(stations_module.SCALES["smoke"], thinned=1, held_out=0.0)
    own = stations_module.stations(smoke, EMBEDDED, str(tmp_path / "mine.csv"))
    assert own.data == "embedded at mine.csv"
    assert experiment("stations").data == "embedded"


def test_unknown_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Unknown row 'swin-tnp'; did you mean 'swin-tnp-multi"):
        main(["wind", "--scale", "smoke", "--rows", "swin-tnp", "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())
