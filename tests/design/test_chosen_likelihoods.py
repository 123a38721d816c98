"""The distribution of every target follows from its values, or is refused with a reason."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from gridtnp import Dataset, GriddedTNP
from gridtnp.config import Likelihood
from gridtnp.recipes import Recipe

N, T = 25, 16
RNG = np.random.default_rng(0)
WET = RNG.random(N * T) < 0.4
VALUES = {
    "rain": (np.where(WET, RNG.gamma(0.7, 8.0, N * T), 0.0), "mm"),
    "wind": (RNG.lognormal(1.0, 0.6, N * T), "m/s"),
    "temperature": (RNG.normal(5, 8, N * T), "degC"),
    "pressure": (RNG.normal(1010, 8, N * T), "hPa"),
    "cloud": (np.clip(RNG.normal(50, 60, N * T), 0, 100), "%"),
    "cover": (np.clip(RNG.normal(0.5, 0.6, N * T), 0, 1), None),
    "strikes": (RNG.negative_binomial(0.8, 0.2, N * T).astype(float), None),
    "calls": (RNG.poisson(1.5, N * T).astype(float), None),
    "wet": (WET.astype(float), None),
}
CHOSEN = {
    "rain": ("bernoulli-gamma", r"\d+ % zeros, never negative"),
    "wind": ("lognormal", "always positive, and near zero"),
    "temperature": ("gaussian", "values are negative"),
    "pressure": ("gaussian", "0 is 1.* standard deviations off the mean"),
    "cloud": ("spiked-beta", "from 0 to 100, .* zeros"),
    "cover": ("spiked-beta", "from 0 to 1, .* zeros"),
    "strikes": ("negative-binomial", "counts whose variance is .* times their mean"),
    "calls": ("poisson", "counts whose variance is .* times their mean"),
    "wet": ("bernoulli", "only 0 and 1, of which .* are 1"),
}
FAST = {"dim": 8, "heads": 2, "layers": 1, "cell": 2.0, "window": (2, 2), "prior": "none"}


def dataset(**values: tuple[np.ndarray, str | None]) -> Dataset:
    rng = np.random.default_rng(1)
    sites = pd.DataFrame({"lat": rng.uniform(45, 50, N), "lon": rng.uniform(5, 10, N)})
    sites["station"] = [f"S{i}" for i in range(N)]
    table = sites.merge(pd.DataFrame({"time": pd.date_range("2020", periods=T)}), how="cross")
    for name, (column, _) in values.items():
        table[name] = column
    units = {f"s.{name}": unit for name, (_, unit) in values.items() if unit}
    return Dataset({"s": table}, target=[f"s.{name}" for name in values], units=units)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_chosen_from_the_values(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind, reason = CHOSEN[name]
    model = GriddedTNP.for_data(dataset(**{name: VALUES[name]}), **FAST)
    printed = capsys.readouterr().out
    if kind == "gaussian":
        assert model.config.likelihood == ()
        assert "likelihood     Gaussian: a mean and a standard deviation" in printed
        assert model.normaliser.mean[f"s.{name}"] != 0
        return
    assert model.config.likelihood == (Likelihood(kind=kind),)
    assert model.normaliser.mean[f"s.{name}"] == 0
    line = next(line for line in printed.splitlines() if "likelihood" in line)
    assert line.strip().startswith(f"likelihood     {name} {kind}: ")
    assert re.search(reason, line)
    assert f"0 stays 0 for {name}" in printed


def test_several_targets_have_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    data = dataset(temperature=VALUES["temperature"], rain=VALUES["rain"])
    model = GriddedTNP.for_data(data, **FAST)
    kinds = dict(zip(model.spec.target_names, model.config.likelihood, strict=True))
    assert kinds["temperature"].kind == "gaussian"
    assert kinds["rain"].kind == "bernoulli-gamma"
    assert "temperature gaussian: " in capsys.readouterr().out
    asked = {"rain": "censored-gamma", "s.temperature": Likelihood(kind="student-t")}
    model = GriddedTNP.for_data(data, likelihood=asked, quiet=True, **FAST)
    kinds = dict(zip(model.spec.target_names, model.config.likelihood, strict=True))
    assert {k: v.kind for k, v in kinds.items()} == {
        "temperature": "student-t",
        "rain": "censored-gamma",
    }
    everywhere = GriddedTNP.for_data(data, likelihood="gaussian", quiet=True, **FAST)
    assert everywhere.config.likelihood == ()
    again = GriddedTNP.for_data(data, config=model.config, quiet=True)
    assert again.normaliser.mean == model.normaliser.mean


def test_classes_are_counted() -> None:
    classes = (RNG.integers(0, 4, N * T).astype(float), None)
    model = GriddedTNP.for_data(dataset(kind=classes), likelihood="categorical", quiet=True, **FAST)
    assert model.config.likelihood == (Likelihood(kind="categorical", components=4),)


def rain_with(value: float) -> tuple[np.ndarray, str]:
    values = VALUES["rain"][0].copy()
    values[:3] = value
    return values, "mm"


@pytest.mark.parametrize(
    ("values", "asked", "message"),
    [
        (
            rain_with(-1.5),
            "bernoulli-gamma",
            r"'s.y' has 3 negative values \(the lowest is -1.5\), which a bernoulli-gamma "
            "likelihood cannot have; correct the data",
        ),
        (VALUES["rain"], "lognormal", "'s.y' has .* zeros, which a lognormal .* cannot have"),
        (VALUES["rain"], "poisson", "'s.y' has values that are not whole numbers, which a poisson"),
        (VALUES["strikes"], "bernoulli", "reaches .*, but the highest value of its bernoulli"),
        (rain_with(400.0), "spiked-beta", "reaches 400, but a spiked-beta likelihood ends at 100"),
        ((np.zeros(N * T), "mm"), "bernoulli-gamma", "'s.y' is 0 everywhere in the training part"),
        ((np.ones(N * T), None), "bernoulli", "'s.y' is 1 everywhere in the training part"),
        (VALUES["rain"], "bernoulli-gama", "Unknown likelihood 'bernoulli-gama'; did you mean"),
        (VALUES["rain"], {"x": "poisson"}, r"Unknown target 'x' in likelihood="),
    ],
)
def test_values_that_do_not_fit_are_refused(
    values: tuple[np.ndarray, str | None], asked: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        GriddedTNP.for_data(dataset(y=values), likelihood=asked, quiet=True, **FAST)


def test_values_of_later_parts_are_checked_too() -> None:
    values = VALUES["rain"][0].copy()
    train = dataset(y=(values, "mm"))
    model = GriddedTNP.for_data(train, quiet=True, **FAST)
    later = dataset(y=rain_with(-2.0))
    with pytest.raises(ValueError, match="has 3 negative values"):
        model.fit(train, later, recipe=Recipe(steps=1, batch=2), quiet=True)
