"""Predictions, samples and evaluation of a model of rain and temperature, from end to end."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.special import ndtr

import gridtnp as gt
from gridtnp.inference.forecasts import read_levels
from gridtnp.recipes import Recipe
from gridtnp.report import maps
from gridtnp.report.packing import unpack
from gridtnp.sources.quality import DataWarning

GRID = gt.latlon_grid(lat=(46, 49), lon=(6, 9), step=0.5)
SMALL = {"dim": 8, "heads": 2, "layers": 1, "cell": 1.0, "window": (2, 2)}


def table(stations: int = 30, times: int = 24) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    sites = pd.DataFrame(
        {"lat": rng.uniform(45, 50, stations), "lon": rng.uniform(5, 10, stations)}
    )
    sites["station"] = [f"S{i}" for i in range(stations)]
    days = pd.DataFrame({"time": pd.date_range("2020", periods=times), "phase": np.arange(times)})
    rows = sites.merge(days, how="cross")
    wave = np.sin(rows["lat"] + rows["lon"] + rows["phase"])
    rows["rain"] = np.maximum(6 * wave + rng.normal(size=len(rows)), 0)
    rows["tmax"] = 10 * wave - 5 + rng.normal(size=len(rows))
    return rows.drop(columns="phase")


@pytest.fixture(scope="module")
def parts() -> tuple[gt.Dataset, gt.Dataset, gt.Dataset]:
    units = {"s.rain": "mm", "s.tmax": "degC"}
    data = gt.Dataset({"s": table()}, target=["s.rain", "s.tmax"], units=units)
    return data.split(time=["2020-01-14", "2020-01-17"], hold_out_stations=0.3)


@pytest.fixture(scope="module")
def model(parts: tuple[gt.Dataset, ...]) -> gt.GriddedTNP:
    made = gt.GriddedTNP.for_data(parts[0], quiet=True, **SMALL)
    return made.fit(parts[0], parts[1], recipe=Recipe(steps=4, batch=2), quiet=True)


def test_predictions(model: gt.GriddedTNP, parts: tuple[gt.Dataset, ...]) -> None:
    found = model.predict(
        parts[2].at("2020-01-20"),
        at=GRID,
        quantiles=(0.05, 0.5, 0.95),
        exceed={"rain": [0, 1, 0.25]},
    )
    names = [name for name in found.data_vars if str(name).startswith("rain_above")]
    assert names == ["rain_above_0", "rain_above_1", "rain_above_0.25"]
    assert found["rain_above_1"].attrs == {"long_name": "probability of rain > 1 mm", "units": "1"}
    for name in names:
        assert 0 <= float(found[name].min()) <= float(found[name].max()) <= 1
    assert bool((found["rain_above_1"] <= found["rain_above_0.25"]).all())
    assert bool((found["rain_above_0.25"] <= found["rain_above_0"]).all())
    for name in ("rain_mean", "rain_q05", "rain_q50", "rain_q95"):
        assert float(found[name].min()) >= 0
    assert bool((found["rain_q05"] <= found["rain_q50"]).all())
    dry = found["rain_above_0"] < 0.5
    assert bool((found["rain_q50"].where(dry, 0) == 0).all())
    assert "tmax_above_1" not in found


def test_thresholds_of_a_normal_variable(
    model: gt.GriddedTNP, parts: tuple[gt.Dataset, ...]
) -> None:
    found = model.predict(parts[2].at("2020-01-20"), at=([47.0], [7.0]), exceed={"tmax": [-5]})
    z = (found["tmax_mean"] + 5) / found["tmax_std"]
    assert found["tmax_above_-5"] == pytest.approx(ndtr(z), abs=1e-5)
    rival = gt.baseline("kriging", parts[0])
    other = rival.predict(parts[2].at("2020-01-20"), at=([47.0], [7.0]), exceed={"tmax": [-5]})
    z = (other["tmax_mean"] + 5) / other["tmax_std"]
    assert other["tmax_above_-5"] == pytest.approx(ndtr(z))


@pytest.mark.parametrize(
    ("exceed", "message"),
    [
        (
            [1],
            r"exceed=\[1\] does not say which of \['rain', 'tmax'\]; give exceed=\{'rain': \[1\]\}",
        ),
        ({"rian": [1]}, "Unknown target 'rian' in exceed=; did you mean 'rain'"),
        ({"rain": [-1]}, "exceed=-1: rain is always higher, because its values are from 0 to inf"),
        ({"tmax": [np.nan]}, "exceed=nan: a threshold must be a finite number"),
    ],
)
def test_thresholds_without_meaning(
    model: gt.GriddedTNP, parts: tuple[gt.Dataset, ...], exceed: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        model.predict(parts[2].at("2020-01-20"), at=GRID, exceed=exceed)


@pytest.mark.parametrize("wrong", [["a"], "rain", None])
def test_thresholds_that_are_no_numbers(wrong: object) -> None:
    rule = r"must be thresholds in the units of the data, such as \[1, 10\]"
    with pytest.raises(ValueError, match=f"^exceed={re.escape(repr(wrong))}: {rule}"):
        read_levels(wrong)


def test_one_threshold_may_be_a_number(model: gt.GriddedTNP, parts: tuple[gt.Dataset, ...]) -> None:
    at = parts[2].at("2020-01-20")
    one = model.predict(at, at=([47.0], [7.0]), exceed={"rain": 5})
    same = model.predict(at, at=([47.0], [7.0]), exceed={"rain": [5]})
    assert one["rain_above_5"] == same["rain_above_5"]


def test_impossible_observations_are_told(model: gt.GriddedTNP) -> None:
    rows = table()
    rows = rows[rows["time"] == "2020-01-20"]
    rows.loc[rows.index[:3], "rain"] = -1.0
    message = "^3 observations of rain are outside of 0 to inf, which its likelihood cannot have"
    with pytest.warns(DataWarning, match=message):
        model.predict({"s": rows}, at=GRID)
    with pytest.warns(DataWarning, match=message):
        model.sample(1, {"s": rows}, at=GRID, subset=4)


def test_joint_samples(model: gt.GriddedTNP, parts: tuple[gt.Dataset, ...]) -> None:
    now = parts[2].at("2020-01-20")
    fields = model.sample(25, now, at=GRID, subset=6, seed=1)
    assert isinstance(fields, xr.Dataset)
    assert float(fields["rain"].min()) == 0.0
    assert float(fields["tmax"].min()) < 0
    wet = float((fields["rain"] > 1).mean())
    chance = model.predict(now, at=GRID, exceed={"rain": [1]})["rain_above_1"]
    assert wet == pytest.approx(float(chance.mean()), abs=0.15)


def test_evaluation(model: gt.GriddedTNP, parts: tuple[gt.Dataset, ...], tmp_path: Path) -> None:
    found = model.evaluate(parts[2], ["kriging", "climatology"])
    scores = found.to_dataframe().set_index(["variable", "forecast"])
    assert np.isfinite(
        scores.loc[("rain", "model"), ["crps", "log_likelihood"]].to_numpy(float)
    ).all()
    assert found.forecasts["model"].marginals[1] is None  # of tmax
    assert not found.notes
    table = found.exceedance(1.0, "rain")
    assert table["forecast"].tolist() == ["model", "kriging", "climatology"]
    found.save(tmp_path)
    gt.plots.pit(found, "rain")
    gt.plots.normalised_errors(found, "rain")


def test_the_report_maps_probabilities_of_rain(
    model: gt.GriddedTNP, parts: tuple[gt.Dataset, ...]
) -> None:
    found = model.evaluate(parts[2], [])
    assert maps.thresholds(found) == {"rain": 0.0}  # not of tmax, which is normal
    times = np.unique(found.time)[-2:]
    made = maps.fields(model.contents, parts[2], GRID, times, {"rain": 0.0})["values"]
    assert "chance" not in made["tmax"]
    chance, low = (unpack(made["rain"][key]) for key in ("chance", "low"))
    assert chance.shape == low.shape == (2, GRID.sizes["lat"], GRID.sizes["lon"])
    assert chance.min() >= 0
    assert chance.max() <= 1
    assert low.min() >= 0


def test_impossible_observations_are_noted(model: gt.GriddedTNP) -> None:
    wrong = table()
    wrong.loc[wrong["rain"] == 0, "rain"] = -9.0
    units = {"s.rain": "mm", "s.tmax": "degC"}
    data = gt.Dataset({"s": wrong}, target=["s.rain", "s.tmax"], units=units)
    _, _, test = data.split(time=["2020-01-14", "2020-01-17"], hold_out_stations=0.3)
    found = model.evaluate(test, [])
    assert any("observations of rain are outside of 0 to inf" in note for note in found.notes)


def test_saving_keeps_the_distribution(
    model: gt.GriddedTNP, parts: tuple[gt.Dataset, ...], tmp_path: Path
) -> None:
    again = gt.GriddedTNP.load(model.save(tmp_path / "model"))
    assert again.config == model.config
    assert "likelihood  rain bernoulli-gamma, tmax gaussian" in repr(again)
    now = parts[2].at("2020-01-20")
    both = [m.predict(now, at=GRID, exceed={"rain": [1]}) for m in (model, again)]
    xr.testing.assert_identical(both[0].drop_attrs(), both[1].drop_attrs())


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("student-t", "normal-mixture")),
        *("censored-gamma", "quantiles", "negative-binomial"),
    ],
)
def test_other_kinds_are_fitted_and_predict(kind: str) -> None:
    rows = table(20, 8).drop(columns="tmax")
    rows["rain"] = rows["rain"].round()
    data = gt.Dataset({"s": rows}, target="s.rain")
    made = gt.GriddedTNP.for_data(data, likelihood=kind, quiet=True, **SMALL)
    made.fit(data, recipe=Recipe(steps=2, batch=2), quiet=True)
    found = made.predict(data.at("2020-01-05"), at=([47.0, 48.0], [7.0, 8.0]), exceed=[1])
    assert all(np.isfinite(v).all() for v in found.values())
    drawn = made.sample(2, data.at("2020-01-05"), at=([47.0, 48.0], [7.0, 8.0]), subset=2)
    assert np.isfinite(drawn["rain"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bernoulli-gamma", "censored-gamma", "quantiles"])
def test_networks_are_exported(kind: str, tmp_path: Path) -> None:
    rows = table(20, 8).drop(columns="tmax")
    data = gt.Dataset({"s": rows}, target="s.rain")
    made = gt.GriddedTNP.for_data(data, likelihood=kind, quiet=True, prior="none", **SMALL)
    assert made.export(tmp_path / "rain.pt2").exists()
