"""The distribution of every target follows from its values, or is refused with a reason."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from gridtnp import Dataset, GriddedTNP
from gridtnp.config import Likelihood
from gridtnp.design.models import ModelOptions
from gridtnp.recipes import Recipe

N, T = 25, 16
RNG = np.random.default_rng(0)
WET = RNG.random(N * T) < 0.4
VALUES = {
    "rain": (np.where(WET, RNG.gamma(0.7, 8.0, N * T), 0.0), "mm"),
    "wind": (RNG.lognormal(1.0, 0.6, N * T), "m/s"),
    "temperature": (RNG.normal(5, 8, N * T), "degC"),
    "pressure": (RNG.normal(1010, 8, N * T), "hPa"),
    "kelvin": (RNG.normal(280, 20, N * T), "K"),
    "summer": (np.abs(RNG.normal(15, 6, N * T)), "degrees_Celsius"),
    "t_max": (np.abs(RNG.normal(60, 25, N * T)).round(), None),
    "sheltered": (np.where(np.arange(N * T) < 2 * T, 0.14, 1.0) * RNG.normal(9, 2, N * T), "m/s"),
    "calm": (np.where(np.arange(N * T) < 3, 0.0, RNG.normal(9, 1, N * T)), "m/s"),
    "outage": (np.where(np.arange(N * T) < 1, 0.0, RNG.normal(1010, 8, N * T)), "hPa"),
    "rounded": (RNG.normal(10, 2.5, N * T).round().clip(3), None),
    "cloud": (np.clip(RNG.normal(50, 60, N * T), 0, 100), "%"),
    "cover": (np.clip(RNG.normal(0.5, 0.6, N * T), 0, 1), None),
    "strikes": (RNG.negative_binomial(0.8, 0.2, N * T).astype(float), None),
    "calls": (RNG.poisson(1.5, N * T).astype(float), None),
    "wet": (WET.astype(float), None),
    "DIR": (RNG.integers(0, 37, N * T) * 10.0, None),
}
CHOSEN = {
    "rain": ("bernoulli-gamma", r"\d+ % zeros, never negative"),
    "wind": ("lognormal", "always positive, and near zero"),
    "temperature": ("gaussian", "values are negative"),
    "pressure": ("gaussian", r"the lowest value is 1\d\d\.\d standard deviations above 0"),
    "kelvin": ("gaussian", r"the lowest value is \d+\.\d standard deviations above 0"),
    "summer": ("gaussian", "a temperature, which 0 does not limit"),
    "t_max": ("gaussian", "a temperature, which 0 does not limit"),
    "sheltered": ("lognormal", "always positive, and near zero"),
    "calm": ("bernoulli-gamma", "% zeros, never negative"),
    "outage": ("gaussian", r"zeros, 1\d\d standard deviations below all .* na_values=\[0\]"),
    "rounded": ("lognormal", "always positive, and near zero"),
    "cloud": ("spiked-beta", "from 0 to 100, .* zeros"),
    "cover": ("spiked-beta", "from 0 to 1, .* zeros"),
    "strikes": ("negative-binomial", "counts whose variance is .* times their mean"),
    "calls": ("poisson", "counts whose variance is .* times their mean"),
    "DIR": ("gaussian", "a direction, of which 0 and 360 are the same; better predict the comp"),
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
    line = next(line for line in printed.splitlines() if "likelihood" in line)
    assert line.strip().startswith(f"likelihood     {name} {kind}: ")
    assert re.search(reason, line)
    if kind == "gaussian":
        assert model.config.likelihood == ()
        assert model.normaliser.mean[f"s.{name}"] != 0
        return
    assert model.config.likelihood == (Likelihood(kind=kind),)
    assert model.normaliser.mean[f"s.{name}"] == 0
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


WIND = (RNG.normal(0, 3, N * T), "m/s")


@pytest.mark.parametrize("names", [("v", "u"), ("v10", "u10"), ("10v", "10u"), ("vas", "uas")])
def test_the_eastward_component_comes_first(names: tuple[str, str]) -> None:
    data = dataset(**dict.fromkeys(names, WIND))
    with pytest.raises(ValueError, match=f"Target '{names[0]}', a northward component, comes bef"):
        GriddedTNP.for_data(data, likelihood="bivariate-gaussian", quiet=True, **FAST)
    data = dataset(**dict.fromkeys(reversed(names), WIND))
    GriddedTNP.for_data(data, likelihood="bivariate-gaussian", quiet=True, **FAST)


def test_standard_names_say_which_component_is_which() -> None:
    field = xr.Dataset(
        {k: (("time", "lat", "lon"), RNG.normal(size=(4, 5, 6))) for k in ("v", "u", "a", "b")},
        {"time": pd.date_range("2020", periods=4), "lat": np.arange(5.0), "lon": np.arange(6.0)},
    )
    for name, towards in zip("vuab", ("east", "north", "north", "east"), strict=True):
        field[name].attrs["standard_name"] = f"{towards}ward_wind"
    options = FAST | {"likelihood": "bivariate-gaussian", "quiet": True}
    GriddedTNP.for_data(Dataset({"f": field}, target=["f.v", "f.u"]), **options)
    with pytest.raises(ValueError, match="Target 'a', a northward component, comes before"):
        GriddedTNP.for_data(Dataset({"f": field}, target=["f.a", "f.b"]), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "tny"}, r"^Unknown size 'tny'; did you mean 'tiny'\?$"),
        ({"recipe": "quik"}, r"^Unknown recipe 'quik'; did you mean 'quick'\?$"),
        ({"prior": "krig"}, r"^Unknown prior 'krig'; did you mean 'kriging'\?$"),
        ({"start": "pretraind"}, r"^Unknown start 'pretraind'; did you mean 'pretrained'\?$"),
        ({"dim": 0}, r"^dim=0: must be greater than 0\.$"),
        ({"likelihood": "bivariate-gaussian"}, "^A bivariate-gaussian likelihood is for two targ"),
    ],
)
def test_wrong_options_are_one_sentence(options: dict[str, object], message: str) -> None:
    data, given = dataset(y=VALUES["temperature"]), FAST | options
    with pytest.raises(ValueError, match=message):
        GriddedTNP.from_options(data, ModelOptions(**given), quiet=True)  # pyright: ignore


def test_wrong_likelihoods_are_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"^Unknown kind 'gausian'; did you mean 'gaussian'\?$"):
        Likelihood(kind="gausian")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^components=1: must be greater than or equal to 2\.$"):
        Likelihood(kind="quantiles", components=1)
    with pytest.raises(
        ValueError, match=r"^A categorical likelihood has no number of classes; giv"
    ):
        Likelihood(kind="categorical")
    with pytest.raises(ValueError, match=r"^Unknown setting 'kin' of Likelihood; leave it out"):
        Likelihood(kin="gaussian")  # type: ignore[call-arg]


def test_values_of_later_parts_are_checked_too() -> None:
    values = VALUES["rain"][0].copy()
    train = dataset(y=(values, "mm"))
    model = GriddedTNP.for_data(train, quiet=True, **FAST)
    later = dataset(y=rain_with(-2.0))
    with pytest.raises(ValueError, match="has 3 negative values"):
        model.fit(train, later, recipe=Recipe(steps=1, batch=2), quiet=True)
