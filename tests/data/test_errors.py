"""Reading errors: a column or a constant of a source, all the way to kriging and the likelihood."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import jaxtyping
import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributions import Normal

import gridtnp as gt
from gridtnp.baselines.kriging import KrigingParameters, posterior
from gridtnp.baselines.regression import RegressionKriging
from gridtnp.distributions.marginals import Gaussian, Product, of_readings
from gridtnp.evaluation.baselines import BaselineTraining, fit_baseline
from gridtnp.kriging.fitting import deform, fit
from gridtnp.kriging.gaussian_process import Inputs, KrigingProcess
from gridtnp.recipes import Recipe
from gridtnp.tasks.specification import TaskSpec

SMALL: dict[str, Any] = {"dim": 8, "heads": 2, "layers": 1, "cell": 1.0, "window": (2, 2)}
GOOD, BAD = 0.1, 3.0


def table(stations: int = 30, times: int = 12) -> pd.DataFrame:
    """A smooth field; every other station reads it badly, and says so."""
    rng = np.random.default_rng(0)
    sites = pd.DataFrame(
        {"lat": rng.uniform(45, 50, stations), "lon": rng.uniform(5, 10, stations)}
    )
    sites["station"] = [f"S{i}" for i in range(stations)]
    sites["sigma"] = np.where(np.arange(stations) % 2, GOOD, BAD)
    days = pd.DataFrame({"time": pd.date_range("2020", periods=times), "day": np.arange(times)})
    rows = sites.merge(days, how="cross")
    truth = 4 * np.sin(0.7 * rows["lat"] + rows["day"]) + 3 * np.cos(0.6 * rows["lon"])
    rows["t"] = truth + rows["sigma"] * rng.standard_normal(len(rows))
    return rows.drop(columns="day")


def dataset(rows: pd.DataFrame | None = None, error: Any = "sigma") -> gt.Dataset:
    rows = table() if rows is None else rows
    return gt.Dataset({"s": rows}, target="s.t", error=None if error is None else {"s": error})


# ---- the data ------------------------------------------------------------------------------------


def test_a_column_of_errors_is_no_variable() -> None:
    data = dataset()
    assert data.errors == {"s.t": "sigma"}
    assert data.contexts == ("s",)
    assert data.variables_of("s")[1] == ("t",)
    task = gt.Sampler(data, normaliser=gt.Normaliser.fit(data)).draw(0)
    scale = gt.Normaliser.fit(data).std["s.t"]
    for points in (task.context["s"], task.target):
        assert points.y is not None
        assert points.error is not None
        assert points.error.shape == points.y.shape
        used = points.error if points.mask is None else points.error[points.mask]
        assert sorted(set((used * scale).flatten().tolist())) == pytest.approx([GOOD, BAD])


def test_a_constant() -> None:
    task = gt.Sampler(dataset(table().drop(columns="sigma"), 0.5)).draw(0)
    assert task.target.error is not None
    mask = task.target.mask
    used = task.target.error if mask is None else task.target.error[mask]
    assert used.unique().tolist() == [0.5]
    assert gt.Sampler(dataset(error=None)).draw(0).target.error is None


def test_the_only_source_need_not_be_named() -> None:
    rows = table().drop(columns="sigma")
    assert gt.Dataset({"s": rows}, target="s.t", error=0.5).errors == {"s.t": 0.5}
    assert gt.Dataset({"s": table()}, target="s.t", error="sigma").errors == {"s.t": "sigma"}
    with pytest.raises(
        ValueError, match=r"^error=0.5 does not say which of \['s', 'r'\]; give err"
    ):
        gt.Dataset({"s": rows, "r": rows}, target="s.t", error=0.5)


def test_wrong_errors_are_refused() -> None:
    with pytest.raises(ValueError, match="Unknown column 'sigm' of source 's' in error=; did you"):
        dataset(error="sigm")
    with pytest.raises(ValueError, match=r"'s': -0.5.*: must be a standard deviation"):
        dataset(error=-0.5)
    with pytest.raises(ValueError, match=r"'s': nan.*: must be a standard deviation"):
        dataset(table().drop(columns="sigma"), float("nan"))
    rows = table()
    rows.loc[:2, "sigma"] = -1.0
    with pytest.raises(ValueError, match="'sigma' of source 's' has 3 negative values, but a"):
        dataset(rows)
    rows = table()
    rows.loc[:4, "sigma"] = np.nan
    with pytest.raises(ValueError, match="'sigma' of source 's' is missing at 5 observations of"):
        dataset(rows)
    with pytest.raises(ValueError, match="Unknown source 'x' in error="):
        gt.Dataset({"s": table()}, target="s.t", error={"x": 1.0})
    rows = table().assign(p=1.0)
    with pytest.raises(ValueError, match=r"has the variables \['p', 't'\]; name one of them"):
        gt.Dataset({"s": rows}, target="s.t", error={"s": "sigma"})
    assert gt.Dataset({"s": rows}, target="s.t", error={"s.t": "sigma"}).errors == {"s.t": "sigma"}


@pytest.mark.parametrize("name", ["climatology", "boosting", "pretrained", "regression-kriging"])
def test_what_is_fitted_to_readings_has_their_errors_already(name: str) -> None:
    data = dataset(table().drop(columns="sigma"), BAD)
    training = BaselineTraining(TaskSpec.of(data), data, held_out=False)
    fitted = fit_baseline(name, training, data)
    if isinstance(fitted.baseline, RegressionKriging):
        alone = replace(fitted, baseline=RegressionKriging(fitted.baseline.regression, None))
        assert (fitted.baseline.of_readings, alone.baseline.of_readings) == (False, True)
        fitted = alone
    task = next(training.tasks())
    np.testing.assert_array_equal(fitted.predict(task).std, fitted.baseline.predict(task)[1])


def test_the_error_of_a_reading_is_added_to_kriging() -> None:
    data = dataset(table().drop(columns="sigma"), BAD)
    training = BaselineTraining(TaskSpec.of(data), data, held_out=False)
    fitted, task = fit_baseline("kriging", training, data), next(training.tasks())
    std = fitted.baseline.predict(task)[1]
    assert std is not None
    np.testing.assert_allclose(fitted.predict(task).std, np.hypot(std, BAD))


def test_points_with_wrong_errors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    x, y = torch.zeros(1, 3, 2), torch.zeros(1, 3, 1)
    with pytest.raises(ValueError, match="error is negative somewhere"):
        gt.PointSet(x, y, error=y - 1)
    with pytest.raises(ValueError, match="must have one number for every value of y"):
        gt.PointSet(x, y, error=torch.zeros(1, 3, 2))
    with pytest.raises(ValueError, match="error is NaN or infinite at 3 points"):
        gt.PointSet(x, y, error=y + torch.nan)


# ---- distributions and kriging -------------------------------------------------------------------


def test_errors_are_added_to_normal_distributions() -> None:
    mean, std, error = torch.zeros(1, 2, 1), torch.full((1, 2, 1), 3.0), torch.full((1, 2, 1), 4.0)
    found = of_readings(Normal(mean, std), error)
    assert found.stddev.flatten().tolist() == [5.0, 5.0]
    pair = [Gaussian(mean[..., 0], std[..., 0]), Gaussian(mean[..., 0], std[..., 0])]
    both = of_readings(Product(pair, {1: torch.full((1, 2), 0.5)}), error.expand(1, 2, 2))
    assert isinstance(both, Product)
    assert both.stddev.flatten().tolist() == [5.0] * 4
    # the covariance stays
    assert both.correlations[1].flatten().tolist() == pytest.approx([0.5 * 9 / 25] * 2)
    same = Normal(mean, std)
    assert of_readings(same, None) is same


def test_kriging_trusts_good_readings_more() -> None:
    logs = torch.tensor([1.0, 200.0, 0.1, 1.0], dtype=torch.float64).log()
    process = KrigingParameters(0.0, 1.0, np.zeros(0), np.zeros(0), logs, False)
    x, at = np.zeros((2, 4)), np.zeros((1, 4))
    values = np.array([1.0, -1.0])
    even, _ = posterior(process, x, values, at)
    assert even[0] == pytest.approx(0.0, abs=1e-9)
    uneven, std = posterior(process, x, values, at, np.array([0.0, 100.0]))
    alone, alone_std = posterior(process, x[:1], values[:1], at)
    assert uneven[0] == pytest.approx(alone[0], rel=0.02)
    assert std[0] == pytest.approx(alone_std[0], rel=0.02)


def test_the_prior_of_a_network_trusts_good_readings_more() -> None:
    process = KrigingProcess(
        0, dimensions=2, drifts=0, distances=0, timed=False, length=1.0, hours=1.0
    )
    place = torch.zeros(1, 2, 2, dtype=torch.float64)
    nothing = torch.zeros(1, 2, 0, dtype=torch.float64)
    y, mask = torch.tensor([[1.0, -1.0]]).double(), torch.ones(1, 2, dtype=torch.bool)
    at = Inputs(place[:, :1], None, nothing[:, :1])
    for error, sign in ((None, 0), ([[0.0, 25.0]], 1), ([[25.0, 0.0]], -1)):
        known = None if error is None else torch.tensor(error).double()
        given = process.condition(Inputs(place, None, nothing, known), y, mask)
        mean = process.predict(given, at)[0].item()
        assert mean * sign > 0.9 if sign else abs(mean) < 1e-6


def test_the_noise_is_what_reading_errors_do_not_explain() -> None:
    """When hyper-parameters are fitted, and when the covariance is deformed."""
    generator = torch.Generator().manual_seed(0)
    place = 5 * torch.rand((4, 60, 2), generator=generator, dtype=torch.float64)
    y = place.sum(-1).sin() + torch.randn((4, 60), generator=generator, dtype=torch.float64)
    mask, nothing, noise = torch.ones_like(y) > 0, place[..., :0], []
    for error in (None, torch.ones_like(y)):
        process = KrigingProcess(
            0, dimensions=2, drifts=0, distances=0, timed=False, length=1.0, hours=1.0
        )
        inputs, scores = Inputs(place, None, nothing, error), count(100, -10)
        fit(process, inputs, y, mask)
        at = Inputs(place, None, nothing)
        noise.append(process.noise_variance(process.points(at)).mean().item())
        deform(process, inputs, y, mask, lambda s=scores: torch.full((9,), next(s)).double())
        assert process.deformation.outputs(place).abs().max() > 0.01
        with_errors, without = (process.noise_variance(process.points(i)) for i in (inputs, at))
        more = with_errors - without
        torch.testing.assert_close(more, torch.zeros_like(y) if error is None else error)
    assert noise[0] > 0.7
    assert noise[1] < 0.4


# ---- a model -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> gt.GriddedTNP:
    made = gt.GriddedTNP.for_data(dataset(), quiet=True, **SMALL)
    return made.fit(dataset(), recipe=Recipe(steps=2, batch=2), quiet=True)


def test_a_model_sees_errors(model: gt.GriddedTNP, tmp_path: Any) -> None:
    assert model.config.errors == ("s",)
    assert model.spec.errors == {"s.t": "sigma"}
    model.save(tmp_path / "model")
    loaded = gt.GriddedTNP.load(tmp_path / "model")
    rows = table()
    fresh = rows[rows["time"] == "2020-01-05"]
    place = ([47.0, 48.0], [7.0, 8.0])
    found = loaded.predict({"s": fresh}, place)
    assert found["t_mean"] == pytest.approx(
        model.predict(dataset().at("2020-01-05"), place)["t_mean"], rel=1e-5
    )
    # readings that are said to be worse are believed less
    wrong = fresh.assign(sigma=np.where(fresh["sigma"] == GOOD, BAD, GOOD))
    other = loaded.predict({"s": wrong}, place)
    assert np.abs(other["t_mean"] - found["t_mean"]).max() > 0.05
    samples = model.sample(2, dataset().at("2020-01-05"), place)
    assert np.isfinite(samples["t"]).all()


@pytest.mark.slow
def test_a_model_that_sees_errors_is_exported(model: gt.GriddedTNP, tmp_path: Any) -> None:
    with pytest.warns(UserWarning, match="leaves out the pretrained process"):
        assert model.export(tmp_path / "model.pt2").exists()  # compared with the network


def test_evaluation_compares_with_readings(model: gt.GriddedTNP) -> None:
    found = model.evaluate(dataset(), ["kriging"], train=dataset(), limit=3)
    bad = np.isin(found.station, [f"S{i}" for i in range(0, 30, 2)])
    for name in ("model", "kriging"):
        std = found.forecasts[name].std[:, 0]
        assert std[bad].min() >= BAD
        assert std[~bad].min() < BAD


def test_data_without_the_errors_of_a_model(model: gt.GriddedTNP) -> None:
    with pytest.raises(ValueError, match=r"have errors of \[\], but the model was trained with"):
        model.evaluate(dataset(table().drop(columns="sigma"), None), [])
    with pytest.raises(ValueError, match="Unknown column 'sigma' of source 's' in error="):
        model.predict({"s": table(times=1).drop(columns="sigma")}, ([47.0], [7.0]))
    plain = gt.GriddedTNP.for_data(dataset(error=None), prior="none", quiet=True, **SMALL)
    x = torch.tensor([[[47.0, 7.0]]])
    y = torch.zeros(1, 1, 2)
    points = gt.PointSet(x, y, error=y)
    with pytest.raises(ValueError, match="have errors, but the model was trained without"):
        plain.network(gt.Task({"s": points}, gt.PointSet(x, y[..., :1])))
