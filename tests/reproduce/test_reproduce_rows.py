"""What all experiments share: seeds, learning rates, tables and verdicts."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from gridtnp.reproduce.__main__ import _parser, main
from gridtnp.reproduce.conclusions import CONCLUSIONS, difference, judge, outcome
from gridtnp.reproduce.gp import NAMES
from gridtnp.reproduce.tables import markdown, mean_and_error, number, paired
from gridtnp.reproduce.weather import rows_of
from gridtnp.reproduce.weather_report import rmse

ROOT = Path(__file__).parents[2]
SMOKE = ["gp", "--scale", "smoke", "--length-scale", "0.5", "--rows", "cnp"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rows")
    main([*SMOKE, "--rates", "1e-3", "1e-6", "1e30", "--seeds", "0", "1", "--out", str(out)])
    return out / "smoke"


def test_the_rate_is_the_best_on_validation_tasks_and_that_of_all_seeds(folder: Path) -> None:
    results = [json.loads(p.read_text()) for p in sorted(folder.glob("*/result.json"))]
    assert [r["seed"] for r in results] == [0, 1]
    for result in results:
        tried = {float(rate): score for rate, score in result["rates"].items()}
        assert set(tried) == {1e-3, 1e-6, 1e30}
        assert tried.pop(1e30) is None, "it diverges, which does not end the run"
        assert result["recipe"]["rate"] == max(tried, key=lambda rate: tried[rate])
    assert results[0]["log_likelihood"] != results[1]["log_likelihood"]
    assert results[0]["oracle"] == results[1]["oracle"], "the test tasks are the same"


def test_the_table_tells_seeds_and_rates(folder: Path) -> None:
    table = (folder / "table.md").read_text()
    assert "| CNP, seed 1 |" in table
    assert "| model | 1e-06 | 0.001 | 1e+30 |" in table
    assert " | diverged |" in table


def test_finished_rows_stay_and_other_recipes_are_refused(folder: Path) -> None:
    path = folder / "cnp-0.5-exact" / "result.json"
    before = json.loads(path.read_text())
    rates = ["--rates", "1e-3", "1e-6", "1e30"]
    for left in folder.glob("*/rate-*/*"):  # results alone tell which rate is best
        left.unlink()
    main([*SMOKE, *rates, "--out", str(folder.parent)])
    assert not list(folder.glob("*/rate-*/*"))
    after = json.loads(path.read_text())
    assert after["commit"] == before["commit"]
    assert after["log_likelihood"] == before["log_likelihood"]
    with pytest.raises(ValueError, match="made with another recipe"):
        main([*SMOKE, "--steps", "4", "--out", str(folder.parent)])


def test_a_trial_with_another_recipe_is_an_error(tmp_path: Path) -> None:
    trial = ["--rates", "1e-3", "--out", str(tmp_path)]
    main([*SMOKE, *trial])
    (tmp_path / "smoke" / "cnp-0.5-exact" / "result.json").unlink()
    with pytest.raises(ValueError, match="made with another recipe"):
        main([*SMOKE, *trial, "--batch", "3"])


def test_a_row_that_always_diverges_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Row 'cnp' diverges at all rates \[1e\+30\]; give lower"):
        main([*SMOKE, "--rates", "1e30", "--out", str(tmp_path)])


def test_minutes_end_a_training(tmp_path: Path) -> None:
    main([*SMOKE, "--minutes", "0.001", "--steps", "1000000", "--out", str(tmp_path)])
    (path,) = tmp_path.glob("smoke/*/result.json")
    result = json.loads(path.read_text())
    assert result["recipe"]["minutes"] == 0.001
    assert 0 < result["steps"] < 1_000_000


def test_differences_are_judged_by_their_standard_errors() -> None:
    assert paired([1.0, 2.0, 3.0], [0.0, 1.0, 2.0]) == (1.0, 0.0)
    assert mean_and_error([4.0]) == (4.0, 0.0)
    clear, unclear = (1.0, 0.1), (0.1, 0.1)
    assert outcome([clear, clear]) == "holds here"
    assert outcome([clear, unclear]) == "cannot be told"
    assert outcome([clear, (-1.0, 0.1)]) == "holds here in part"
    assert outcome([(-1.0, 0.1)]) == "does not hold here"
    assert outcome([]) == "not run"
    assert outcome([clear, unclear], ties=True) == "holds here"
    assert outcome([(-1.0, 0.1), clear], ties=True) == "holds here in part"


def test_errors_of_the_rmse_know_targets_and_neighbouring_times() -> None:
    rng = np.random.default_rng(0)
    squared = rng.gamma(2.0, size=(400, 1))
    targets = rng.integers(1, 50, 400)
    _, error = rmse({"squared_error": squared.tolist(), "targets": targets.tolist()})
    draws = rng.integers(0, 400, (2000, 400))
    means = (targets[draws] * squared[draws, 0]).sum(1) / targets[draws].sum(1)
    assert error[0] == pytest.approx(np.sqrt(means).std(), rel=0.15)
    again = np.repeat(np.arange(400), 10)
    alike = {"squared_error": squared[again].tolist(), "targets": targets[again].tolist()}
    assert rmse(alike)[1][0] == pytest.approx(error[0], rel=0.3)


def test_tasks_that_are_alike_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    apart, none = rng.normal(size=400), np.zeros(400)
    alike = np.repeat(rng.normal(size=40), 10)
    assert difference(apart, none)[1] == pytest.approx(0.05, rel=0.3)
    assert difference(alike, none)[1] == pytest.approx(0.16, rel=0.4)


def test_conclusions_of_rows_with_known_scores() -> None:
    scores = {"swin-tnp-pt": [1.0, 1.2], "cnp": [0.0, 0.2], "pt-tnp": [2.0, 2.2]}
    results = [{"row": row} for row in [*scores, "cnp"]]
    lines = judge("gp", results, [*scores.values(), [0.2, 0.0]])
    assert lines[0] == (
        "- Gridded TNPs beat CNP, PT-TNP and ConvCNP: holds here in part (1 of 3 comparisons not "
        "run). swin-tnp-pt − cnp: +1.000 ± 0.200; swin-tnp-pt − pt-tnp: -1.000 ± 0.000."
    )
    assert lines[1] == "- PT-GE beats KI-GE and Avg-GE: not run."
    assert len(lines) == len(CONCLUSIONS["gp"])


def test_numbers_and_tables_as_text() -> None:
    assert number(1.23456, 0.01) == "1.235 ± 0.010"
    assert number(float("nan")) == ""
    assert markdown(["a", "b"], [["1", "2"]]) == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]


def test_the_commands_of_all_tables_are_right() -> None:
    spec = importlib.util.spec_from_file_location("paper", ROOT / "experiments" / "paper.py")
    assert spec is not None
    assert spec.loader is not None
    paper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(paper)
    commands = [_parser("reproduce").parse_args(given) for given in paper.commands("weather.nc")]
    assert [options.experiment for options in commands] == [
        *("gp", "gp", "stations", "wind") * 2,
        "stations",
    ]
    for options in commands:
        known = NAMES if options.experiment == "gp" else rows_of(options.experiment)
        assert options.rows is None or set(options.rows) <= set(known)
    assert commands[-1].table == "stations-rich"
    assert len({str(options.out) for options in commands}) == 4
