"""The experiment on Gaussian processes at its smallest scale, all rows, from the command line."""

import json
from pathlib import Path

import pytest

from gridtnp.reproduce.__main__ import main
from gridtnp.reproduce.gp import NAMES, PRESETS_OF_ROWS, SCALES, configuration
from gridtnp.reproduce.report import gap, write_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gp")
    command = ["gp", "--scale", "smoke", "--length-scale", "0.5", "--larger", "1.5"]
    main([*command, "--out", str(out)])
    main([*command[:-2], "--data", "rank-limited", "--rows", "cnp", "--out", str(out)])
    return out / "smoke"


def test_every_row_is_trained_and_scored(folder: Path) -> None:
    results = {p.parent.name: json.loads(p.read_text()) for p in folder.glob("*/result.json")}
    assert set(results) == {f"{row}-0.5-exact" for row in NAMES} | {"cnp-0.5-rank-limited"}
    for result in results.values():
        mean, error = gap(result)
        assert mean > -2 * error, "no model beats the exact answer"
        assert result["parameters"] > 0
        assert result["command"].startswith("python -m gridtnp.reproduce")


def test_table_and_figures_are_written(folder: Path) -> None:
    table = (folder / "table.md").read_text()
    assert all(f"| {name} |" in table for name in NAMES.values())
    assert "| exact posterior |" in table
    assert "[-1.5, 1.5]²" in table
    for figure in ("tradeoff.png", "tradeoff-rank-limited.png", "fields-0.5.png"):
        assert (folder / figure).read_bytes().startswith(b"\x89PNG")


def test_a_finished_run_is_not_trained_again(folder: Path) -> None:
    checkpoint = folder / "cnp-0.5-exact" / "checkpoint.safetensors"
    before = checkpoint.stat().st_mtime_ns
    command = ["gp", "--scale", "smoke", "--length-scale", "0.5", "--rows", "cnp"]
    main([*command, "--out", str(folder.parent)])
    assert checkpoint.stat().st_mtime_ns == before


def test_full_scale_is_the_papers() -> None:
    full = SCALES["full"]
    assert (full.half, full.context, full.targets) == (6.0, 10_000, 1_000)
    assert (full.recipe.steps, full.recipe.batch, full.recipe.rate) == (500_000, 8, 5e-4)
    assert (full.recipe.clip, full.recipe.schedule) == (0.5, "constant")
    assert full.pool is not None
    assert full.pool * full.recipe.batch == 160_000
    assert set(PRESETS_OF_ROWS) == set(NAMES)
    assert configuration("swin-tnp-pt", full).dim == 128


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model families.*'swin'"):
        main(["gp", "--scale", "smoke", "--rows", "swin"])
    with pytest.raises(ValueError, match=r"no result in .* yet; train a row first"):
        write_report(tmp_path)
