"""The leaderboard's page says what its results say, and one part of it runs from the package."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def leaderboard(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location(
        "leaderboard", ROOT / "experiments" / "leaderboard.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "leaderboard", module)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_table_of_the_results(leaderboard: ModuleType) -> None:
    page = leaderboard.PAGE.read_text(encoding="utf-8")
    for name in leaderboard.CASES:
        assert f"`{name}`" in page
    assert page.endswith(f"\n{leaderboard.table()}\n")


def test_a_kill_leaves_no_result_that_counts_as_finished(
    leaderboard: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "case" / "tiny-5min.json"
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", kill)
        with pytest.raises(KeyboardInterrupt):
            leaderboard._write(path, {"scores": []})
    assert not path.exists()
    leaderboard._write(path, {"scores": []})
    assert json.loads(path.read_text()) == {"scores": []}


@pytest.mark.slow
def test_it_trains_scores_and_continues(
    leaderboard: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(leaderboard, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(leaderboard, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(leaderboard, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(leaderboard, "TIMES", 3)
    (tmp_path / "page.md").write_text("# Page\n", encoding="utf-8")
    arguments = ["leaderboard.py", "--only", "colorado-tmax", "storm-1996", "--minutes", "0.02"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--data", str(tmp_path)])
    leaderboard.main()
    rivals = tmp_path / "results" / "colorado-tmax" / "rivals.json"
    names = {row["forecast"] for row in json.loads(rivals.read_text())["scores"]}
    assert {"kriging-drift", "regression-kriging", "boosting"} <= names
    assert not (tmp_path / "results" / "storm-1996").exists()  # its file is not there
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("# Page\n| data | model |")
    assert "colorado-tmax tmax | tiny-0.02min" in page
    made = rivals.stat().st_mtime_ns
    monkeypatch.setattr(sys, "argv", [*sys.argv[:-2], "--minutes", "0.02", "0.03"])
    leaderboard.main()
    assert rivals.stat().st_mtime_ns == made
    later = json.loads((rivals.parent / "tiny-0.03min.json").read_text())["scores"]
    assert len(later) == 2  # the model and the best rival
