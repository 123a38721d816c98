"""Kriging of normal scores: the curve, censored scores, and rain of which 60 % are zeros."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm, truncnorm

import gridtnp as gt
from gridtnp.baselines.kriging import KrigingParameters, covariance_at, posterior
from gridtnp.baselines.normal_scores import approximate, impute
from gridtnp.distributions.empirical import Empirical
from gridtnp.distributions.marginals import Marginal
from gridtnp.distributions.transformed import NormalScores, TransformedNormal
from gridtnp.distributions.truncated import truncated_moments
from gridtnp.recipes import Recipe

SAMPLES = {
    "rain": lambda rng: rng.gamma(0.7, 5, 4000) * (rng.random(4000) > 0.6),
    "positive": lambda rng: rng.gamma(2, 3, 4000),
    "any": lambda rng: rng.normal(2, 3, 4000),
    "count": lambda rng: rng.poisson(2.0, 3000).astype(float),
    "fraction": lambda rng: np.clip(rng.normal(0.5, 0.5, 3000), 0, 1),
}


@pytest.fixture(params=list(SAMPLES))
def values(request: pytest.FixtureRequest) -> np.ndarray:
    return SAMPLES[request.param](np.random.default_rng(0))


def test_standard_normal_scores_give_the_values_back(values: np.ndarray) -> None:
    curve = NormalScores.fit(values)
    z = norm.ppf((np.arange(20000) + 0.5) / 20000)
    back = np.sort(curve.value(z))
    assert abs(back.mean() - values.mean()) < 0.01 * values.std()
    assert abs(back.std() - values.std()) < 0.02 * values.std()
    for level in (0.1, 0.5, 0.65, 0.9, 0.99):
        assert abs(np.quantile(back, level) - np.quantile(values, level)) < 0.08 * values.std()
    assert (back == 0).mean() == pytest.approx((values == 0).mean(), abs=1e-3)
    if values.min() >= 0:
        assert back.min() >= 0


def test_values_have_the_scores_that_give_them(values: np.ndarray) -> None:
    curve = NormalScores.fit(values)
    low, high = curve.interval(values[:500])
    assert (low <= high).all()
    exact = low == high
    np.testing.assert_allclose(curve.value(low[exact]), values[:500][exact], atol=1e-9)
    for a, b, y in zip(low[~exact], high[~exact], values[:500][~exact], strict=True):
        inner = np.clip([a, b], -7, 7) + np.array([1e-5, -1e-5])
        assert curve.value(inner) == pytest.approx([y, y])
    share = {y: np.mean(values == y) for y in curve.masses}
    for y, p in share.items():
        a, b = (norm.cdf(end) for end in curve.interval(np.array(y)))
        assert b - a == pytest.approx(p, abs=1e-5)


def test_moments_scores_and_quantiles_against_simulation(values: np.ndarray) -> None:
    curve = NormalScores.fit(values)
    loc, scale = torch.tensor([0.4]).double(), torch.tensor([0.6]).double()
    made = TransformedNormal(loc, scale, curve)
    z = norm.ppf((np.arange(400_000) + 0.5) / 400_000)
    drawn = torch.from_numpy(curve.value(0.4 + 0.6 * z))
    assert made.mean.item() == pytest.approx(drawn.mean().item(), rel=1e-3)
    assert made.stddev.item() == pytest.approx(drawn.std().item(), rel=2e-3)
    many = Empirical(drawn)
    for y in (values.min(), np.median(values), np.quantile(values, 0.95)):
        at = torch.tensor([y]).double()
        assert made.crps(at).item() == pytest.approx(many.crps(at).item(), rel=1e-3, abs=1e-4)
        assert made.cdf(at).item() == pytest.approx(many.cdf(at).item(), abs=2e-5)
        assert made.below(at).item() == pytest.approx(many.below(at).item(), abs=2e-5)
        above = float(np.quantile(values, 0.8))
        expected = many.crps_above(at, above).item()
        assert made.crps_above(at, above).item() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    for level in (0.02, 0.5, 0.9):
        p = torch.tensor(level).double()
        assert made.icdf(p).item() == pytest.approx(many.icdf(p).item(), abs=1e-3)


def test_densities_and_masses_sum_to_one(values: np.ndarray) -> None:
    curve = NormalScores.fit(values)
    made = TransformedNormal(torch.tensor(0.2).double(), torch.tensor(0.8).double(), curve)
    masses = torch.from_numpy(curve.masses)
    total = made.log_prob(masses).exp().sum().item()
    inner = curve.value(np.linspace(-5, 5, 200_001))
    middle = (inner[1:] + inner[:-1]) / 2
    steps, smooth = np.diff(inner), np.diff(inner) > 0
    if len(masses) < 5:  # counts have no density
        density = made.log_prob(torch.from_numpy(middle)).exp().numpy()
        total += float((density * steps)[smooth].sum())
    assert total == pytest.approx(1.0, abs=1e-3)
    assert made.log_prob(torch.tensor(-1e9).double()) == -math.inf


def test_an_empirical_distribution() -> None:
    made = Empirical(torch.tensor([[0.0, 0.0, 1.0, 3.0]]).double())
    y = torch.tensor([0.0]).double()
    assert made.below(y).item() == 0.0
    assert made.cdf(y).item() == 0.5
    assert [made.icdf(torch.tensor(p).double()).item() for p in (0.5, 0.51, 0.9)] == [0, 1, 3]
    at = torch.tensor([2.0]).double()
    assert made.crps(at).item() == pytest.approx(Marginal.crps(made, at).item(), rel=0.05)
    assert made.mean.item() == 1.0
    assert made.log_prob(y).isnan().all()


# ---- censored scores -----------------------------------------------------------------------------


def process() -> KrigingParameters:
    logs = torch.tensor([1.0, 200.0, 0.5, 0.7], dtype=torch.float64).log()
    return KrigingParameters(0.2, 1.1, np.zeros(0), np.zeros(0), logs, False)


@pytest.mark.parametrize(
    "bounds", [(-np.inf, 0.3), (-1.0, np.inf), (0.2, 0.9), (4.0, np.inf), (0.5, 0.5007)]
)
def test_moments_between_bounds(bounds: tuple[float, float]) -> None:
    mean, std = np.array([0.1]), np.array([0.8])
    low, high = (np.array([end]) for end in bounds)
    found = truncated_moments(mean, std, low, high)
    ends = [(end - 0.1) / 0.8 for end in bounds]
    expected = truncnorm.stats(*ends, loc=0.1, scale=0.8)
    assert found[0][0] == pytest.approx(expected[0], rel=1e-5)
    assert found[1][0] == pytest.approx(expected[1], rel=1e-3, abs=1e-9)


def test_censored_observations_against_rejection_sampling() -> None:
    """The approximation and the sampler against draws of the process that fit the bounds."""
    rng, made = np.random.default_rng(1), process()
    x = np.c_[rng.uniform(0, 300, (5, 3)), np.zeros(5)]
    at = np.c_[rng.uniform(0, 300, (3, 3)), np.zeros(3)]
    low, high = (
        np.array([0.9, -np.inf, -np.inf, 0.1, -np.inf]),
        np.array([0.9, -0.2, 0.0, 0.6, 0.3]),
    )
    both = covariance_at(made, np.concatenate([x, at])).numpy()
    both += np.diag(np.full(8, made["noise"] ** 2))
    # given the exact one, all others are jointly normal
    first = both[1:, 0] / both[0, 0]
    rest = both[1:, 1:] - np.outer(first, both[0, 1:])
    start = first * (0.9 - 0.2) / 1.1
    drawn = 0.2 + 1.1 * (start + rng.standard_normal((400_000, 7)) @ np.linalg.cholesky(rest).T)
    fits = ((drawn[:, :4] > low[1:]) & (drawn[:, :4] < high[1:])).all(1)
    assert fits.sum() > 5000
    mean, std = posterior(made, x, *_swapped(approximate(made, x, low, high), at))
    np.testing.assert_allclose(mean, drawn[fits, 4:].mean(0), atol=0.03)
    np.testing.assert_allclose(std, drawn[fits, 4:].std(0), rtol=0.03)
    draws = np.stack([impute(made, x, low, high, rng) for _ in range(200)])
    np.testing.assert_allclose(draws[:, 1:].mean(0), drawn[fits, :4].mean(0), atol=0.15)
    assert (draws[:, 0] == 0.9).all()


def _swapped(
    found: tuple[np.ndarray, np.ndarray], at: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return found[0], at, found[1]


# ---- rain ----------------------------------------------------------------------------------------


def rain(stations: int = 60, times: int = 40) -> pd.DataFrame:
    """A Gaussian process of a length of 200 km; its upper 40 % are rain."""
    rng = np.random.default_rng(0)
    sites = pd.DataFrame(
        {"lat": rng.uniform(45, 49, stations), "lon": rng.uniform(5, 10, stations)}
    )
    sites["station"] = [f"S{i}" for i in range(stations)]
    xy = np.c_[111 * sites["lat"], 76 * sites["lon"]]
    r = math.sqrt(3) * np.linalg.norm(xy[:, None] - xy[None], axis=-1) / 200
    root = np.linalg.cholesky(0.95 * (1 + r) * np.exp(-r) + 0.05 * np.eye(stations))
    rows = sites.merge(pd.DataFrame({"time": pd.date_range("2020", periods=times)}), how="cross")
    latent = (root @ rng.standard_normal((stations, times))).ravel()
    excess = np.maximum(norm.cdf(latent) - 0.6, 0) / 0.4
    return rows.assign(latent=latent, rain=np.round(-8 * np.log1p(-excess), 6))


@pytest.fixture(scope="module")
def parts() -> tuple[gt.Dataset, gt.Dataset, gt.Dataset]:
    table = rain().drop(columns="latent")
    data = gt.Dataset({"s": table}, target="s.rain", units={"s.rain": "mm"})
    return data.split(time=["2020-01-26", "2020-01-28"], hold_out_stations=0.3)


@pytest.fixture(scope="module")
def model(parts: tuple[gt.Dataset, ...]) -> gt.GriddedTNP:
    small = {"dim": 8, "heads": 2, "layers": 1, "cell": 1.0, "window": (2, 2)}
    made = gt.GriddedTNP.for_data(parts[0], prior="none", quiet=True, **small)
    return made.fit(parts[0], recipe=Recipe(steps=1, batch=1), quiet=True)


def test_rain_is_evaluated_beside_baselines_for_it(
    model: gt.GriddedTNP, parts: tuple[gt.Dataset, ...]
) -> None:
    found = model.evaluate(parts[2])
    table: Any = found.to_dataframe().set_index("forecast")
    assert list(table.index) == [
        "model",
        "regression-kriging",
        "normal-scores",
        "empirical-climatology",
    ]
    crps = table["crps"]
    assert crps["normal-scores"] < 0.93 * crps["regression-kriging"]
    assert crps["normal-scores"] < 0.75 * crps["empirical-climatology"]
    assert 0.82 < table.loc["normal-scores", "coverage_90"] < 0.97
    assert np.isnan(table.loc["empirical-climatology", "log_likelihood"])
    dry = found.of("normal-scores", 0).exceedance(0.0)
    wet = found.observed[:, 0] > 0
    assert abs(dry.mean() - wet.mean()) < 0.06
    events: Any = found.exceedance(1.0).set_index("forecast")
    assert events.loc["normal-scores", "brier_skill"] > 0.3
    assert "normal-scores" in str(found)


@pytest.mark.parametrize("name", ["normal-scores", "empirical-climatology"])
def test_maps_of_rain(name: str, parts: tuple[gt.Dataset, ...]) -> None:
    grid = gt.latlon_grid(lat=(46, 48), lon=(6, 9), step=0.5)
    fitted = gt.baseline(name, parts[0])
    made: Any = fitted.predict(
        parts[2].at("2020-02-02"), at=grid, exceed=[0, 5], quantiles=(0.1, 0.9)
    )
    for statistic in ("mean", "q10", "q90", "std", "above_0", "above_5"):
        assert bool((made[f"rain_{statistic}"] >= 0).all())
    assert bool((made["rain_q10"] <= made["rain_q90"]).all())
    assert bool((made["rain_above_5"] <= made["rain_above_0"]).all())
    dry = made["rain_above_0"] < 0.1 - 1e-9
    assert bool((made["rain_q90"].where(dry, 0) == 0).all())


def test_a_variable_that_never_varies() -> None:
    table = rain(10, 8).assign(rain=0.0).drop(columns="latent")
    data = gt.Dataset({"s": table}, target="s.rain")
    with pytest.raises(ValueError, match="'rain' never varies in training"):
        gt.baseline("normal-scores", data)
