"""Scores of distributions that are not Gaussian, and of events, against known implementations."""

from __future__ import annotations

import numpy as np
import pytest
import scoringrules
import small
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, roc_auc_score

from gridtnp import plots
from gridtnp.distributions.marginals import Gaussian, Scaled
from gridtnp.distributions.mixed import BernoulliGamma
from gridtnp.evaluation import exceedance, scores
from gridtnp.evaluation.results import Evaluation, Prediction

N = small.STATIONS * small.DAYS
seeds = st.integers(0, 2**32 - 1)


def rain(n: int = N, seed: int = 0, units: float = 5.0) -> tuple[Scaled, np.ndarray]:
    """A calibrated forecast of rain, and what was observed."""
    rng = np.random.default_rng(seed)
    parameters = rng.normal(size=n), rng.uniform(0.3, 2, n), rng.uniform(0.4, 3, n)
    d = Scaled(BernoulliGamma(*map(torch.from_numpy, parameters)), 0.0, units)
    torch.manual_seed(seed)
    return d, d.rsample().numpy()


def rainy_evaluation() -> Evaluation:
    """The second variable of a small evaluation is rain, of which the model knows all."""
    forecast, observed = rain()
    base = small.evaluation()
    mean, std = (v.numpy() for v in (forecast.mean, forecast.stddev))
    own = base.forecasts["model"]
    both = Prediction(
        np.stack([own.mean[:, 0], mean], -1),
        np.stack([own.std[:, 0], std], -1),
        marginals=(None, forecast),
    )
    gaussian = Prediction(both.mean, both.std)
    return small.evaluation(
        observed=np.stack([base.observed[:, 0], observed], -1),
        forecasts={"model": both, "gaussian": gaussian},
        variables={"tmax": "degC", "rain": "mm"},
    )


def test_scores_of_a_calibrated_forecast() -> None:
    found = rainy_evaluation()
    table = found.to_dataframe().set_index(["variable", "forecast"])
    model, gaussian = table.loc[("rain", "model")], table.loc[("rain", "gaussian")]
    assert model["crps"] < gaussian["crps"]
    assert model["rmse"] == gaussian["rmse"]
    assert model["coverage_90"] == pytest.approx(0.9, abs=0.03)
    assert model["normalised_log_density"] == pytest.approx(scores.CALIBRATED, abs=0.1)
    of = found.of("model", 1)
    assert of.pit.mean() == pytest.approx(0.5, abs=0.03)
    assert scores.pit_histogram(of.pit, 5) == pytest.approx(np.full(5, 0.2), abs=0.05)
    forecast, observed = rain()
    assert of.crps == pytest.approx(forecast.crps(torch.from_numpy(observed)).numpy())
    assert (of.log_density()[observed == 0] < 0).all()
    assert (of.quantile(0.05) >= 0).all()
    assert np.mean(observed <= of.quantile(0.9)) == pytest.approx(0.9, abs=0.03)
    normal = found.of("gaussian", 1)
    assert normal.quantile(0.9) == pytest.approx(normal.mean + 1.2815516 * normal.std)
    tmax = table.loc[("tmax", "model")]
    assert tmax["crps"] == table.loc[("tmax", "gaussian")]["crps"]
    assert set(found.calibration()["rain"]["model"]) >= {"coverage", "pit", "spread_skill"}
    assert "rain on 10 stations never seen" in str(found)


def test_probabilities_of_events() -> None:
    found = rainy_evaluation()
    table = found.exceedance(1.0, "rain").set_index("forecast")
    chance, event = found.of("model", 1).exceedance(1.0), found.observed[:, 1] > 1
    model = table.loc["model"]
    assert model["brier"] == pytest.approx(brier_score_loss(event, chance))
    assert model["roc_area"] == pytest.approx(roc_auc_score(event, chance))
    assert model["brier_low"] < model["brier"] < model["brier_high"]
    assert model["frequency"] == event.mean()
    assert model["brier_skill"] > table.loc["gaussian", "brier_skill"]
    assert model["reliability_error"] < 0.08
    assert model["crps_above"] < table.loc["gaussian", "crps_above"]
    assert found.reliability(1.0, variable="rain").count.sum() == N
    figure = plots.reliability(found, 1.0, "rain")
    assert figure.axes[0].get_xlabel() == "predicted probability of rain > 1 mm"


def test_events_without_meaning() -> None:
    found = rainy_evaluation()
    with pytest.raises(ValueError, match=r"threshold=1e.06: no observation of rain is higher"):
        found.exceedance(1e6, "rain")
    for wrong in ("a", [1]):
        with pytest.raises(ValueError, match=r"^threshold=.*: must be one number, in the units of"):
            found._event(wrong, 0)  # what exceedance and reliability ask first
    with pytest.raises(ValueError, match="threshold=-1: every observation of rain is higher"):
        found.reliability(-1.0, variable="rain")
    with pytest.raises(ValueError, match="Unknown forecast 'modell' in this evaluation"):
        found.reliability(1.0, "modell", "rain")


@given(seed=seeds, number=st.integers(2, 60))
def test_events_against_scikit_learn(seed: int, number: int) -> None:
    rng = np.random.default_rng(seed)
    chance, event = rng.random(number).round(1), rng.random(number) < 0.5
    assert exceedance.brier(chance, event) == pytest.approx(scoringrules.brier_score(event, chance))
    if event.any() and not event.all():
        assert exceedance.roc_area(chance, event) == pytest.approx(roc_auc_score(event, chance))
    else:
        assert np.isnan(exceedance.roc_area(chance, event))
    found = exceedance.reliability(chance, event)
    assert found.count.sum() == number
    assert (found.chance * found.count).sum() == pytest.approx(chance.sum())
    assert (found.frequency * found.count).sum() == pytest.approx(event.sum())
    assert 0 <= found.error <= 1


@given(seed=seeds, threshold=st.floats(-3, 3))
def test_gaussian_scores_above_a_threshold(seed: int, threshold: float) -> None:
    rng = np.random.default_rng(seed)
    y, mean, std = rng.normal(size=5), rng.normal(size=5), rng.uniform(0.1, 2, 5)
    d = Gaussian(*map(torch.from_numpy, (mean, std)))
    found = scores.crps_above(y, mean, std, threshold)
    known = d.crps_above(torch.from_numpy(y), threshold).numpy()
    assert found == pytest.approx(known, abs=5e-3)
    assert scores.crps_above(y, mean, std, -1e3) == pytest.approx(scores.crps(y, mean, std))
    level = torch.full((5,), threshold, dtype=torch.float64)
    chance = scores.gaussian_exceedance(mean, std, threshold)
    assert chance == pytest.approx(1 - d.cdf(level).numpy())


def test_a_point_forecast_is_certain() -> None:
    y, mean, std = np.array([0.0, 2.0]), np.array([1.0, 3.0]), np.zeros(2)
    assert scores.gaussian_exceedance(mean, std, 2.0).tolist() == [0, 1]
    assert scores.crps_above(y, mean, std, 0.5).tolist() == [0.5, 1.0]
