"""The experiment on Gaussian processes at its smallest scale, from the command line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gridtnp import ModelConfig, build_model
from gridtnp.files import read_tensors
from gridtnp.reproduce.__main__ import main
from gridtnp.reproduce.gp import (
    NAMES,
    PRESETS_OF_ROWS,
    SCALES,
    configuration,
    oracle_scores,
    scores,
    trained,
    unseen,
)
from gridtnp.reproduce.gp_report import gap, write_report

SOME = ("cnp", "convcnp", "vitnp-ki", "swin-tnp-pt-relative")


@pytest.fixture(
    scope="module",
    params=[SOME, pytest.param(tuple(NAMES), marks=pytest.mark.slow)],
    ids=["some rows", "all rows"],
)
def rows(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return request.param


@pytest.fixture(scope="module")
def folder(rows: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gp")
    command = ["gp", "--scale", "smoke", "--length-scale", "0.5", "--out", str(out)]
    named = ["--rows", *rows] if rows == SOME else []
    main([*command, "--larger", "1.5", "--keep", str(out / "kept"), *named])
    main([*command, "--data", "rank-limited", "--rows", "cnp"])
    return out / "smoke"


def test_every_row_is_trained_and_scored(folder: Path, rows: tuple[str, ...]) -> None:
    results = {p.parent.name: json.loads(p.read_text()) for p in folder.glob("*/result.json")}
    assert set(results) == {f"{row}-0.5-exact" for row in rows} | {"cnp-0.5-rank-limited"}
    for result in results.values():
        mean, error = gap(result)
        assert mean > -2 * error, "no model beats the exact answer"
        assert result["parameters"] > 0
        assert result["command"].startswith("python -m gridtnp.reproduce")


def test_table_and_figures_are_written(folder: Path, rows: tuple[str, ...]) -> None:
    table = (folder / "table.md").read_text()
    assert all(f"| {NAMES[row]} |" in table for row in rows)
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


def test_weights_are_kept_with_their_configuration(folder: Path) -> None:
    weights, about = read_tensors(folder.parent / "kept" / "gp-0.5.safetensors")
    network = build_model(ModelConfig.model_validate_json(about["config"]))
    network.load_state_dict(weights)
    result = json.loads((folder / "swin-tnp-pt-relative-0.5-exact" / "result.json").read_text())
    assert about["commit"] == result["commit"]


@pytest.mark.parametrize(
    ("length_scale", "half", "context", "most"),
    [
        (0.5, 3.0, 2500, 0.05),
        pytest.param(0.5, 4.5, 5625, 0.05, marks=pytest.mark.slow),
        (0.1, 3.0, 2500, 0.08),
    ],
)
def test_the_packaged_model_is_close_to_the_exact_answer(
    length_scale: float, half: float, context: int, most: float
) -> None:
    scale = replace(SCALES["cpu"], half=half, context=context)
    tests = unseen(scale.process(length_scale, "exact"), 2)
    found = scores(trained(length_scale, half), tests)
    gaps = [b - f for b, f in zip(oracle_scores(tests), found, strict=True)]
    assert 0 < sum(gaps) / 2 < most


def test_larger_squares_are_predicted_by_what_was_trained_now(tmp_path: Path) -> None:
    row = "swin-tnp-pt-relative"
    command = ["gp", "--scale", "smoke", "--length-scale", "0.5", "--larger", "1.5", "--rows", row]
    options = ["--seeds", "1", "--data", "rank-limited", "--keep", str(tmp_path / "kept")]
    main([*command, *options, "--out", str(tmp_path)])
    trained = tmp_path / "smoke" / f"{row}-0.5-rank-limited-seed1"
    assert (trained / "larger-1.5.json").exists()
    assert list((tmp_path / "kept").glob("*.safetensors"))


def test_with_no_rows_the_packaged_models_predict_on_larger_squares(tmp_path: Path) -> None:
    smoke = ["gp", "--scale", "smoke", "--length-scale", "0.5"]
    main([*smoke, "--rows", "--larger", "3", "--out", str(tmp_path)])
    (path,) = tmp_path.glob("smoke/*/larger-3.json")
    result = json.loads(path.read_text())
    assert (result["context"], len(result["oracle"])) == (960, 16)
    assert 0 < sum(result["oracle"]) - sum(result["log_likelihood"]) < 16 * 0.5


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
    with pytest.raises(ValueError, match=r"Unknown row 'swin'; did you mean 'swin-tnp-"):
        main(["gp", "--scale", "smoke", "--rows", "swin"])
    with pytest.raises(ValueError, match=r"Unknown length-scale '0\.7' of the trained models"):
        trained(0.7)
    with pytest.raises(ValueError, match=r"No results in '.*'; train a row first"):
        write_report(tmp_path)
