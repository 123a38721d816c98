"""An evaluation's tables, sentences and files, from forecasts that are known."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from small import DAYS, STATIONS, evaluation

from gridtnp.evaluation import scores
from gridtnp.evaluation.results import Evaluation, Prediction
from gridtnp.evaluation.saved import SavedScores
from gridtnp.evaluation.summary import ScoreTable
from gridtnp.evaluation.sums import SCORES


def test_scores_are_means_over_points() -> None:
    made = evaluation()
    table = made.to_dataframe().set_index(["variable", "forecast"])
    assert len(table) == 8
    for v, variable in enumerate(made.variables):
        for name, forecast in made.forecasts.items():
            of = (made.observed[:, v], forecast.mean[:, v], forecast.std[:, v])
            row, error = table.loc[(variable, name)], of[1] - of[0]
            assert row["crps"] == pytest.approx(scores.crps(*of).mean())
            assert row["rmse"] == pytest.approx(np.sqrt((error**2).mean()))
            assert row["mae"] == pytest.approx(np.abs(error).mean())
            assert row["bias"] == pytest.approx(error.mean())
            assert row["points"] == STATIONS * DAYS
            if name == "bilinear":
                assert row["crps"] == pytest.approx(row["mae"])
                assert np.isnan(row[["log_likelihood", "coverage_90"]].astype(float)).all()
            else:
                assert row["log_likelihood"] == pytest.approx(scores.log_density(*of).mean())
                assert row["coverage_80"] == pytest.approx(scores.inside(*of, 0.8).mean())
            model = table.loc[(variable, "model")]
            if name != "model":
                assert row["crps_skill"] == pytest.approx(1 - model["crps"] / row["crps"])


def test_intervals_hold_the_value_and_narrow_with_more_data() -> None:
    table = evaluation().to_dataframe()
    for score in SCORES:
        known = table[table[score].notna()]
        assert (known[f"{score}_low"] <= known[score]).all()
        assert (known[score] <= known[f"{score}_high"]).all()
        assert (known[f"{score}_low"] < known[f"{score}_high"]).all()
    assert table["crps_skill_low"].dropna().gt(0).all()
    few = evaluation()
    keep = few.time < few.time[0] + np.timedelta64(12, "D")  # type: ignore[operator, index]
    fewer = Evaluation(
        few.variables,
        *(getattr(few, name)[keep] for name in ("time", "station", "lat", "lon", "observed")),
        {n: Prediction(f.mean[keep], f.std[keep], f.spread) for n, f in few.forecasts.items()},
        "",
    ).to_dataframe()
    width = [(t["crps_high"] - t["crps_low"])[0] for t in (fewer, table)]
    assert width[0] > 1.5 * width[1]


@pytest.mark.parametrize("by", ["station", "hour", "month", "region", "time", "variable"])
def test_groups_are_those_of_pandas(by: str) -> None:
    made = evaluation()
    frame = made.predictions("wind")
    assert frame.columns[:5].tolist() == ["time", "station", "lat", "lon", "observed"]
    table = made.per(by)
    table = table[(table["variable"] == "wind") & (table["forecast"] == "kriging")]
    assert table["points"].sum() == len(frame)
    keys = {"hour": frame.time.dt.hour, "month": frame.time.dt.month, "time": frame.time}
    error = (frame.kriging_mean - frame.observed).abs()
    if by == "variable":
        assert table["mae"].tolist() == [pytest.approx(error.mean())]
    elif by != "region":
        expected = error.groupby(keys.get(by, frame.station)).mean()
        np.testing.assert_allclose(table.set_index(by)["mae"][expected.index], expected)
    if by == "station":
        where = frame.groupby("station")[["lat", "lon"]].first()
        pd.testing.assert_frame_equal(table.set_index("station")[["lat", "lon"]], where)


def test_regions_are_boxes_that_say_where_they_are() -> None:
    table = evaluation().per("region").query("variable == 'tmax' and forecast == 'model'")
    assert "44N to 46N, 0E to 2E" in table["region"].tolist()
    assert "40N to 42N, 4W to 2W" in table["region"].tolist()
    assert table["points"].sum() == STATIONS * DAYS


def test_groups_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^Unknown group 'stations'; did you mean 'station'\?$"):
        evaluation().per("stations")
    with pytest.raises(ValueError, match=r"^The data have no times, which scores per hour need\.$"):
        evaluation(time=None).per("hour")
    with pytest.raises(
        ValueError, match=r"^Unknown variable 'tmx' in this evaluation; did you mean 'tmax'\?$"
    ):
        evaluation().predictions("tmx")


def test_one_time_is_resampled_by_station() -> None:
    made = evaluation(time=None)
    row = made.to_dataframe().iloc[0]
    assert row["crps_low"] < row["crps"] < row["crps_high"]
    assert "time" not in made.predictions()
    alone = Evaluation(
        {"t": "K"},
        None,
        np.array(["A"]),
        *(np.zeros(1), np.zeros(1), np.ones((1, 1))),
        {"model": Prediction(np.zeros((1, 1)), np.ones((1, 1)))},
        "1 station",
    )
    assert np.isnan(alone.to_dataframe()["crps_low"][0])
    assert "0.602" in str(alone)  # a CRPS without an interval


def test_the_table_is_read_at_a_glance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = str(evaluation(notes=("said about it",)))
    lines = text.splitlines()
    assert lines[0] == "tmax (degC), 600 values"
    first = lines[: next(i for i, line in enumerate(lines) if line.startswith("wind,"))]
    rows = {line.split()[0]: line for line in first if line.startswith("  ")}
    assert {"model", "kriging", "nearest*", "bilinear°"} <= set(rows)
    assert rows["model"].split()[1:3] == ["0.60", "±0.07"]
    assert rows["model"].rstrip().endswith("–")
    assert "* predicts no standard deviation; its RMSE in training is used." in text
    assert "° predicts no standard deviation; its CRPS is its MAE." in text
    assert "said about it" in text
    assert max(map(len, lines)) <= 120
    alone = str(evaluation(forecasts={"model": evaluation().forecasts["model"]}))
    assert alone.count("skill") == 2
    assert "Skill" not in alone


def wide() -> Evaluation:
    """Several variables of very different size, and many baselines with long names."""
    made = evaluation()
    factor = np.array([1.0, 2e6, 1e-5])
    pick = [0, 1, 0]
    forecasts = {
        name: Prediction(f.mean[:, pick] * factor, f.std[:, pick] * factor, f.spread)
        for name, f in made.forecasts.items()
    }
    forecasts["kriging-drift"] = forecasts["kriging"]
    forecasts["bilinear:reanalysis.2m_temperature"] = forecasts["bilinear"]
    variables = {"tmax": "degC", "pressure_of_the_air": "Pa", "q": "kg kg**-1"}
    observed = made.observed[:, pick] * factor
    return evaluation(variables=variables, observed=observed, forecasts=forecasts)


def cells(made: Evaluation) -> list[str]:
    found = []
    for variable in made.variables:
        rows = [r for r in made.to_dataframe().to_dict("records") if r["variable"] == variable]
        columns = ScoreTable.of(rows).columns.values()
        found += [cell for column in columns for cell in column]
    return found


@pytest.mark.parametrize("width", [30, 33, 37, 40, 50, 60, 72, 80, 100, 119, 120, 160, 200])
def test_numbers_are_whole_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _WIDE.get("it") or _WIDE.setdefault("it", wide())
    monkeypatch.setenv("COLUMNS", str(width))
    printed = str(made)
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system=None).print(made)
    for text in (printed, file.getvalue()):
        assert "…" not in text
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
        left = text
        for cell in sorted(cells(made), key=len, reverse=True):
            assert cell in left
            left = left.replace(cell, "", 1)
    assert printed == "\n".join(line.rstrip() for line in file.getvalue().splitlines())


_WIDE: dict[str, Evaluation] = {}


def test_a_pipe_is_as_wide_as_a_page(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "import small; print(small.evaluation())"
    )
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | {"PYTHONIOENCODING": "utf-8"}
    with (tmp_path / "scores.txt").open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, env=env, check=True)
    text = (tmp_path / "scores.txt").read_text(encoding="utf-8")
    assert text.count("kriging ") == 2  # a table per variable, not split
    assert 100 < max(map(len, text.splitlines())) <= 120
    assert all(cell in text for cell in cells(evaluation()))


def test_the_summary_names_the_split_and_the_best_baseline() -> None:
    made = evaluation()
    assert made.summaries()[0].startswith(
        "tmax on 10 stations never seen: CRPS 0.597 degC, 27 % lower than kriging, the best"
    )
    assert made.summaries()[0].endswith("; the 90 % intervals cover 87 %.")
    assert made.summaries()[1].startswith("wind on 10 stations never seen: CRPS 1.")
    worse = evaluation(
        forecasts={"model": made.forecasts["kriging"], "kriging": made.forecasts["model"]}
    )
    assert "37 % higher than kriging" in worse.summaries()[0]
    same = evaluation(forecasts=dict.fromkeys(("model", "twin"), made.forecasts["model"]))
    assert "0 % lower than twin, the best baseline, which may be chance" in same.summaries()[0]


def test_stations_of_their_own_widen_the_intervals_of_scores_and_skill() -> None:
    """The model is much better at some stations, much worse at others, at all times alike."""
    rng = np.random.default_rng(0)
    n = STATIONS * DAYS
    gain = np.tile(rng.normal(0, 0.8, STATIONS), DAYS)[:, None]
    observed, right = rng.normal(size=(n, 1)), np.ones((n, 1))
    forecasts = {
        "model": Prediction(observed + np.exp(gain) * 0.7, right),
        "kriging": Prediction(observed + 0.95, right),
    }
    changes = {"variables": {"t": None}, "observed": observed, "forecasts": forecasts}
    made = evaluation(**changes)
    one = evaluation(**changes, station=np.full(n, "S"), lat=np.zeros(n), lon=np.zeros(n))

    def width(of: Evaluation) -> float:
        row = of.to_dataframe().iloc[1]
        return row["crps_skill_high"] - row["crps_skill_low"]

    assert width(made) > 5 * max(width(one), 1e-3)
    assert "which may be chance" in made.summaries()[0]
    assert "over blocks of time and stations" in str(made)


def test_the_summary_says_when_rmse_disagrees() -> None:
    made = evaluation()
    truth, ones = made.observed, np.ones(made.observed.shape)
    sure = Prediction(truth + 1.0, 0.7 * ones)  # a larger error, well calibrated
    vague = Prediction(truth + 0.9, 9.0 * ones)  # a smaller error, far too wide
    for names in (("model", "idw"), ("idw", "model")):
        forecasts = dict(zip(names, (sure, vague), strict=True))
        forecasts = {name: forecasts[name] for name in ("model", "idw")}
        text = evaluation(forecasts=forecasts).summaries()[0]
        better = "idw" if names[0] == "model" else "the model"
        assert ("lower than idw" in text) == (names[0] == "model")
        assert f"; by RMSE {better} is better (0.9" in text
        assert "against 1.0" in text
    assert "by RMSE" not in made.summaries()[0]


def test_rows_that_differ_by_a_thousandth_are_told_apart() -> None:
    made = evaluation()
    truth, none = made.observed, np.zeros(made.observed.shape)
    sizes = {"model": 1.0, "a": 1.002, "b": 1.004, "c": 1.2}
    forecasts = {k: Prediction(truth + error, none, "none") for k, error in sizes.items()}
    close = evaluation(forecasts=forecasts)
    rows = [r for r in close.to_dataframe().to_dict("records") if r["variable"] == "tmax"]
    table = ScoreTable.of(rows)
    values = [cell.split()[0] for cell in table.columns["CRPS"]]
    assert values == ["1.000", "1.002", "1.004", "1.200"]
    assert table.columns["skill"][1].startswith("0.2")
    assert "CRPS 1.000 degC, 0.2 % lower than a" in close.summaries()[0]


def test_skill_against_a_perfect_baseline_is_not_defined() -> None:
    made = evaluation()
    perfect = Prediction(made.observed, np.zeros(made.observed.shape), "none")
    again = evaluation(forecasts={"model": made.forecasts["model"], "oracle": perfect})
    assert np.isnan(again.to_dataframe()["crps_skill"]).all()
    assert "best baseline" not in again.summaries()[0]


def test_it_becomes_json_and_files(tmp_path: Path) -> None:
    made = evaluation()
    record = json.loads(made.to_json())
    assert record["points"] == 600
    assert record["split"] == "10 stations never seen"
    assert record["scores"][0]["crps"] == pytest.approx(made.to_dataframe()["crps"][0])
    assert record["scores"][0]["crps_skill"] is None
    assert record["scores"][4]["units"] is None
    place = made.save(tmp_path / "run")
    assert place == tmp_path / "run" / "eval"
    assert sorted(p.name for p in place.iterdir()) == [
        "calibration.json",
        "per_station.parquet",
        "scores.csv",
        "scores.json",
    ]
    written = pd.read_csv(place / "scores.csv")
    np.testing.assert_allclose(written["crps"], made.to_dataframe()["crps"])
    pd.testing.assert_frame_equal(
        pd.read_parquet(place / "per_station.parquet"), made.per("station")
    )
    found = json.loads((place / "calibration.json").read_text())["tmax"]
    assert set(found) == {"model", "kriging", "nearest"}  # what has a spread
    assert found["model"]["coverage"]["0.9"] == pytest.approx(0.87)
    assert sum(found["model"]["pit"]) == pytest.approx(1.0)
    assert found["model"]["normalised_log_density"] == pytest.approx(-1.419, abs=0.12)
    assert made.save(tmp_path / "run") == place  # again


def test_saved_scores_are_read_to_the_last_digit(tmp_path: Path) -> None:
    made = evaluation(notes=("a note",))
    assert SavedScores.read(tmp_path) is None
    place = made.save(tmp_path)
    found = SavedScores.read(tmp_path)
    assert found is not None
    pd.testing.assert_frame_equal(pd.DataFrame(found.rows), made.to_dataframe(), check_exact=True)
    assert found.calibration == made.calibration()
    assert (found.split, found.notes) == (made.split, made.notes)
    assert found.variables == tuple(made.variables)
    config = tmp_path / "model" / "config.json"
    config.parent.mkdir()
    for weights in ("a", "b"):  # after more training, scores are those of another model
        config.write_text(json.dumps({"sha256": {"model.safetensors": weights}}))
        assert SavedScores.read(tmp_path) is None
        made.save(tmp_path)
        assert SavedScores.read(tmp_path) is not None
    (place / "scores.json").write_text('{"scores": [1]}')
    with pytest.raises(ValueError, match=r"does not hold the scores .*; evaluate the run again\.$"):
        SavedScores.read(tmp_path)


def test_writing_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = evaluation().save(tmp_path)
    before = (place / "scores.csv").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        evaluation(notes=("x",), seed=1).save(tmp_path)
    assert (place / "scores.csv").read_bytes() == before
    assert len(list(place.iterdir())) == 4


def test_brackets_in_names_and_units_are_shown_as_they_are() -> None:
    for name in ("t [degC]", "t [/b]", "[red]t"):
        text = str(evaluation(variables={name: "[/i]", "wind": None}))
        assert f"{name} ([/i])" in text
