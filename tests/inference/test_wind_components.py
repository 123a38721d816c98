"""Wind as a bivariate normal distribution, and its speed and direction."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from scipy import stats
from torch.distributions import Normal

import gridtnp as gt
from gridtnp.config import Likelihood, ModelConfig
from gridtnp.distributions.marginals import Gaussian, Product, from_normal
from gridtnp.inference.wind import Wind
from gridtnp.network.likelihoods import ProductLikelihood, families
from gridtnp.recipes import Recipe

PAIR = "bivariate-gaussian"
SMALL: dict[str, Any] = {"dim": 8, "heads": 2, "layers": 1, "cell": 1.0, "window": (2, 2)}


def product(u: float, v: float, std: float, correlation: float, n: int = 1) -> Product:
    def full(value: float) -> torch.Tensor:
        return torch.full((1, n), value).double()

    outputs = [Gaussian(full(u), full(std)), Gaussian(full(v), full(2 * std))]
    return Product(outputs, {1: full(correlation)})


def test_densities_are_those_of_a_bivariate_normal() -> None:
    made = product(1.0, -2.0, 0.5, 0.8)
    cov = np.array([[0.25, 0.8 * 0.5], [0.8 * 0.5, 1.0]])
    y = np.random.default_rng(0).normal(size=(20, 2))
    expected = stats.multivariate_normal([1, -2], cov).logpdf(y)
    for value, wanted in zip(y, expected, strict=True):
        found = made.log_prob(torch.from_numpy(value)[None, None]).sum(-1).item()
        assert found == pytest.approx(wanted)


def test_samples_are_correlated() -> None:
    torch.manual_seed(0)
    for drawn in (
        product(1.0, -2.0, 0.5, -0.7).rsample((20_000,))[:, 0, 0],
        from_normal(product(1.0, -2.0, 0.5, -0.7, 20_000), torch.randn(1, 20_000, 2))[0],
    ):
        assert np.corrcoef(drawn.numpy().T)[0, 1] == pytest.approx(-0.7, abs=0.02)
        assert drawn.mean(0).tolist() == pytest.approx([1, -2], abs=0.03)
        assert drawn.std(0).tolist() == pytest.approx([0.5, 1.0], rel=0.03)


# ---- a model -------------------------------------------------------------------------------------


def table(stations: int = 25, times: int = 12) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    sites = pd.DataFrame(
        {"lat": rng.uniform(45, 50, stations), "lon": rng.uniform(5, 10, stations)}
    )
    sites["station"] = [f"S{i}" for i in range(stations)]
    rows = sites.merge(pd.DataFrame({"time": pd.date_range("2020", periods=times)}), how="cross")
    both = rng.multivariate_normal([4, 1], [[4, 3.2], [3.2, 4]], len(rows))
    return rows.assign(u=both[:, 0], v=both[:, 1])


def dataset(units: dict[str, str] | None = None, rows: pd.DataFrame | None = None) -> gt.Dataset:
    units = {"s.u": "m/s", "s.v": "m/s"} if units is None else units
    return gt.Dataset({"s": table() if rows is None else rows}, target=["s.u", "s.v"], units=units)


@pytest.fixture(scope="module")
def model() -> gt.GriddedTNP:
    made = gt.GriddedTNP.for_data(dataset(), likelihood=PAIR, prior="none", quiet=True, **SMALL)
    return made.fit(dataset(), recipe=Recipe(steps=2, batch=2), quiet=True)


def test_the_correlation_is_learned() -> None:
    torch.manual_seed(0)
    pair = (Likelihood(kind=PAIR),) * 2
    made = ProductLikelihood(2, families(pair), dim=8, hidden_layers=1)
    z = torch.randn(1, 512, 2)
    rho = 0.8 * z[..., 0].sign()  # it depends on the token
    normal = torch.randn(1, 512, 2)
    second = rho * normal[..., 0] + 0.6 * normal[..., 1]
    y = torch.stack([normal[..., 0], second], -1)
    optimiser = torch.optim.Adam(made.parameters(), 0.03)
    for _ in range(120):
        optimiser.zero_grad()
        loss = -made(z).log_prob(y).sum(-1).mean()
        loss.backward()
        optimiser.step()
    found = made(z).correlations[1].detach()
    assert float((found[rho > 0]).mean()) > 0.6
    assert float((found[rho < 0]).mean()) < -0.6


def test_speed_and_direction(model: gt.GriddedTNP) -> None:
    grid = gt.latlon_grid(lat=(46, 49), lon=(6, 9), step=0.5)
    at = dataset().at("2020-01-05")
    found = model.predict(
        at, grid, quantiles=(0.1, 0.5, 0.9), exceed={"speed": [5]}, derive=["speed", "direction"]
    )
    same = Wind.of(model.contents, ["speed", "direction"], (0.1, 0.5, 0.9), (5,))
    assert same is not None
    assert set(same.columns()) <= set(found.data_vars)
    assert bool((found["speed_q10"] < found["speed_q50"]).all())
    assert bool((found["speed_q50"] < found["speed_q90"]).all())
    assert float(found["speed_q10"].min()) >= 0
    # the mean speed is higher than the speed of the mean wind
    assert bool((found["speed_mean"] > np.hypot(found["u_mean"], found["v_mean"])).all())
    assert bool(((found["speed_above_5"] >= 0) & (found["speed_above_5"] <= 1)).all())
    assert found["speed_mean"].attrs["units"] == "m/s"
    assert found["speed_mean"].attrs["standard_name"] == "wind_speed"
    assert found["direction_mean"].attrs["standard_name"] == "wind_from_direction"
    assert bool(((found["direction_mean"] >= 0) & (found["direction_mean"] < 360)).all())
    assert 5 < float(found["direction_spread"].mean()) < 120
    again = model.predict(at, grid, quantiles=(0.1,), derive=["speed"])
    assert np.array_equal(again["speed_q10"], found["speed_q10"])
    assert "direction_mean" not in again


def test_the_wind_of_a_store_in_parts(model: gt.GriddedTNP, tmp_path: Path) -> None:
    grid, times = gt.latlon_grid(lat=(46, 49), lon=(6, 9), step=1.0), ["2020-01-05", "2020-01-06"]
    asked: dict[str, Any] = {"times": times, "exceed": {"speed": [5]}, "progress": False}
    whole = model.predict(dataset(), grid, derive=["speed", "direction"], **asked)
    given = asked | {"to": tmp_path / "wind.zarr", "regions": {"time": 1}}
    for i in range(2):
        part = {"part": (i, 2), "derive": ["speed", "direction"]}
        model.predict(dataset(), grid, **given, **part)
    found = xr.open_zarr(tmp_path / "wind.zarr", chunks=None)
    assert set(found.data_vars) == set(whole.data_vars)
    for name in ("speed_mean", "speed_q95", "speed_above_5", "direction_mean", "u_mean"):
        np.testing.assert_array_equal(found[name], whole[name])
        assert found[name].attrs == whole[name].attrs
    with pytest.raises(ValueError, match="for another prediction, with other columns"):
        model.predict(dataset(), grid, **given, derive=["speed"], part=(0, 2))


@pytest.mark.parametrize(("u", "v", "angle"), [(0, -3, 0), (-3, 0, 90), (0, 3, 180), (3, 0, 270)])
def test_directions_are_where_the_wind_comes_from(
    model: gt.GriddedTNP, u: float, v: float, angle: float
) -> None:
    """With quantiles of the speed against a noncentral distribution."""
    wind = Wind.of(model.contents, ["speed", "direction"], (0.1, 0.9), ())
    assert wind is not None
    names = model.spec.target
    centre, scale = (
        np.array([c[name] for name in names])
        for c in (model.contents.normaliser.mean, model.contents.normaliser.std)
    )
    mean = (np.array([u, v]) - centre) / scale
    outputs = [
        Gaussian(torch.full((1, 3), m).double(), torch.full((1, 3), 0.5 / s).double())
        for m, s in zip(mean, scale, strict=True)
    ]
    found = wind.at(Product(outputs, {1: torch.zeros(1, 3).double()}))
    off = (found["direction_mean"] - angle + 180) % 360 - 180
    assert np.abs(off).max() < 0.5
    assert found["direction_spread"][0] == pytest.approx(math.degrees(0.5 / 3), rel=0.05)
    for level in (0.1, 0.9):
        expected = 0.5 * stats.ncx2.ppf(level, 2, (3 / 0.5) ** 2) ** 0.5
        assert found[f"speed_q{level * 100:.0f}"][0] == pytest.approx(expected, rel=0.01)


def test_saving_and_evaluation(
    model: gt.GriddedTNP, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model.save("wind")
    loaded = gt.GriddedTNP.load("wind")
    at, place = dataset().at("2020-01-05"), ([47.0], [7.0])
    for one in (loaded, model):
        found = one.predict(at, place, derive=["speed"])
    assert found["speed_mean"] == loaded.predict(at, place, derive=["speed"])["speed_mean"]
    scores = model.evaluate(dataset(), ["nearest"], limit=2)
    assert scores.forecasts["model"].marginals == ()


def test_a_prior_keeps_the_correlation() -> None:
    made = gt.GriddedTNP.for_data(dataset(), likelihood=PAIR, quiet=True, **SMALL)
    task = made.contents.sampler(dataset()).draw(0)
    found = made.network(task)
    assert isinstance(found, Product)
    assert float(found.correlations[1].detach().abs().max()) == 0  # fresh weights
    plain = gt.GriddedTNP.for_data(dataset(), quiet=True, **SMALL)
    other = plain.network(task)
    assert isinstance(other, Normal)
    assert torch.allclose(found.mean, other.mean, atol=1e-5)


# ---- bad input -----------------------------------------------------------------------------------


def test_what_cannot_be_derived(model: gt.GriddedTNP) -> None:
    at, place = dataset().at("2020-01-05"), ([47.0], [7.0])
    with pytest.raises(ValueError, match=r"Unknown derived variable 'sped'; did you mean 'speed'"):
        model.predict(at, place, derive=["sped"])
    with pytest.raises(ValueError, match=r"derive='speed': must be a list, such as \['speed'\]"):
        model.predict(at, place, derive="speed")
    with pytest.raises(ValueError, match="thresholds of 'speed', which is not derived"):
        model.predict(at, place, exceed={"speed": [5]})
    with pytest.raises(ValueError, match="exceed=-1: a speed is never negative"):
        model.predict(at, place, exceed={"speed": [-1]}, derive=["speed"])
    plain = gt.GriddedTNP.for_data(dataset(), prior="none", quiet=True, **SMALL)
    with pytest.raises(ValueError, match="needs one pair of wind components, but the model has 0"):
        plain.predict(at, place, derive=["speed"])


def test_components_in_different_units() -> None:
    data = dataset({"s.u": "m/s", "s.v": "kn"})
    made = gt.GriddedTNP.for_data(data, likelihood=PAIR, prior="none", quiet=True, **SMALL)
    with pytest.raises(ValueError, match="are in 'm/s' and 'kn'; convert one of them"):
        made.predict(data.at("2020-01-05"), ([47.0], [7.0]), derive=["speed"])


def test_a_component_without_a_partner() -> None:
    with pytest.raises(ValueError, match="is for two targets in a row, but one has no partner"):
        gt.GriddedTNP.for_data(dataset(), likelihood={"u": PAIR}, quiet=True, **SMALL)
    pair = Likelihood(kind=PAIR)
    config = gt.GriddedTNP.for_data(dataset(), prior="none", quiet=True, **SMALL).config
    with pytest.raises(ValueError, match="two targets in a row"):
        ModelConfig.model_validate(
            dict(config) | {"dim_y": 3, "likelihood": (pair, Likelihood(), pair)}
        )
