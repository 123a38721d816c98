"""What all experiments share: seeds, learning rates, tables and verdicts."""

import json
from pathlib import Path

import pytest

from gridtnp.reproduce.__main__ import main
from gridtnp.reproduce.tables import markdown, mean_and_error, number, paired, verdict

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
    main([*SMOKE, *rates, "--out", str(folder.parent)])
    after = json.loads(path.read_text())
    assert after["commit"] == before["commit"]
    assert after["log_likelihood"] == before["log_likelihood"]
    with pytest.raises(ValueError, match="made with another recipe"):
        main([*SMOKE, "--steps", "4", "--out", str(folder.parent)])


def test_a_row_that_always_diverges_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Row 'cnp' diverges at all rates \[1e\+30\]; give lower"):
        main([*SMOKE, "--rates", "1e30", "--out", str(tmp_path)])


def test_minutes_end_a_training(tmp_path: Path) -> None:
    main([*SMOKE, "--minutes", "0.001", "--out", str(tmp_path)])
    (path,) = tmp_path.glob("smoke/*/result.json")
    result = json.loads(path.read_text())
    assert result["recipe"]["minutes"] == 0.001
    assert result["minutes"] > 0


def test_differences_are_judged_by_their_standard_errors() -> None:
    assert paired([1.0, 2.0, 3.0], [0.0, 1.0, 2.0]) == (1.0, 0.0)
    assert mean_and_error([4.0]) == (4.0, 0.0)
    clear, unclear = (1.0, 0.1), (0.1, 0.1)
    assert verdict([clear, clear]) == "holds here"
    assert verdict([clear, unclear]) == "cannot be told"
    assert verdict([clear, (-1.0, 0.1)]) == "holds here in part"
    assert verdict([(-1.0, 0.1)]) == "does not hold here"
    assert verdict([]) == "not run"


def test_numbers_and_tables_as_text() -> None:
    assert number(1.23456, 0.01) == "1.235 ± 0.010"
    assert number(float("nan")) == ""
    assert markdown(["a", "b"], [["1", "2"]]) == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]
