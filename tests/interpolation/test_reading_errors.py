"""Known errors of readings and replicated places, with an exact Gaussian process as the oracle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import gridtnp as gt
from gridtnp.amortised import network, posterior
from gridtnp.amortised.constants import Change
from gridtnp.amortised.network import SOURCE, Encoding
from gridtnp.amortised.process import Correlation, Places
from gridtnp.amortised.refinement import PRIOR
from gridtnp.amortised.weights import pretrained
from gridtnp.pretrain.fields import FieldPrior, draw_at

RNG = np.random.default_rng(4)
X = RNG.random((80, 2)) * 9
TRUTH = np.sin(X[:, 0]) + 0.5 * np.cos(X[:, 1])
ERROR = np.where(RNG.random(80) < 0.3, 1.5, 0.05)
Y = TRUTH + ERROR * RNG.normal(size=80)
AT = RNG.random((200, 2)) * 9


def plain(error: object = None, x: np.ndarray = X, y: np.ndarray = Y, at: np.ndarray = AT) -> dict:
    found = gt.interpolate((x, y), at, error=error)  # pyright: ignore[reportArgumentType]
    assert isinstance(found, dict)
    return found


def encoded(number: int = 60, error: float = 0.0) -> tuple[Encoding, Places]:
    """Observations of a random field with errors from 0 on, and some targets."""
    task = draw_at(FieldPrior("Matérn 3/2"), (11,), 1, number, 30).task
    context = task.context[SOURCE]
    assert context.y is not None
    errors = torch.linspace(0, error, number)[None, :, None]
    with torch.no_grad():
        encoding = pretrained().encode({SOURCE: replace(context, error=errors)})
        return encoding, pretrained().places(encoding, task.target)[0]


def exact(encoding: Encoding, at: Places) -> tuple[torch.Tensor, torch.Tensor]:
    """Gaussian-process regression as textbooks have it."""
    shape = encoding.constants.shape

    def covariance(a: Places, b: Places) -> torch.Tensor:
        stretch = (a.stretch[0, :, None] ** 2 + b.stretch[0] ** 2) / 2
        squared = (a.x[0, :, None] - b.x[0]).square().sum(-1) / stretch
        squared = squared + (a.latent[0, :, None] - b.latent[0]).square().sum(-1)
        local = Correlation.apply(squared[None], shape.weights, shape.shrink)[0]  # pyright: ignore
        local = local * a.stretch[0, :, None] * b.stretch[0] / stretch
        local = local * a.amplitude[0, :, None] * b.amplitude[0]
        return local + a.trend[0] @ b.trend[0].mT

    seen = encoding.observed
    across = covariance(seen, at)
    weights = torch.linalg.solve(covariance(seen, seen) + torch.diag(seen.noise[0]), across)
    rest = covariance(at, at).diagonal() - (weights * across).sum(0)
    return weights.mT @ encoding.y[0], rest


@pytest.mark.parametrize("error", [0.0, 1.0])
@pytest.mark.parametrize("most", [512, 40])
def test_the_posterior_is_that_of_an_exact_process(
    error: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding, at = encoded(error=error)
    monkeypatch.setattr(posterior, "EXACT", most)  # 40: in tiles that hold all observations
    with torch.no_grad():
        mean, rest = encoding.posterior().predict(at)
        expected = exact(encoding, at)
    torch.testing.assert_close(mean[0], expected[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(rest[0], expected[1], rtol=1e-4, atol=1e-6)


def test_the_variance_of_reading_errors_is_part_of_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = Change(torch.zeros(1, len(PRIOR)).double())
    monkeypatch.setattr(network, "refine", lambda *_: nothing)  # which would change the rest
    (with_errors, at), (without, before) = encoded(error=1.0), encoded()
    mean = (torch.linspace(0, 1, 60).double() / with_errors.units.scale).square().mean()
    own = with_errors.observed.noise - without.observed.noise * (
        with_errors.constants.noise / without.constants.noise
    )
    variance = (torch.linspace(0, 1, 60).double() / with_errors.units.scale).square()
    torch.testing.assert_close(own[0], variance, rtol=1e-5, atol=1e-7)
    unexplained = torch.maximum(without.constants.noise - mean, 0.05 * without.constants.noise)
    torch.testing.assert_close(with_errors.constants.noise, unexplained)
    assert (at.noise < before.noise).all()  # new observations have no such errors


def test_two_readings_at_a_place_are_one_with_half_the_variance() -> None:
    encoding, at = encoded()
    seen, shape = encoding.observed, encoding.constants.shape
    every = torch.ones(1, 60, dtype=torch.bool)
    apart = 0.3 * torch.randn(1, 60, generator=torch.Generator().manual_seed(0)).double()
    twice = seen[0, torch.arange(60).repeat(2)]
    readings = torch.cat([encoding.y + apart, encoding.y - apart], 1)
    half = replace(seen, noise=seen.noise / 2)
    with torch.no_grad():
        one = posterior.ExactPosterior.of(half, encoding.y, every, shape).predict(at)
        both = posterior.ExactPosterior.of(twice, readings, every.repeat(1, 2), shape).predict(at)
    torch.testing.assert_close(both[0], one[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(both[1], one[1], rtol=1e-3, atol=1e-5)


def test_errors_as_a_number_a_column_and_an_array_agree() -> None:
    number, array = plain(0.3), plain(np.full(80, 0.3))
    table = pd.DataFrame({"x": X[:, 0], "y": X[:, 1], "t": Y, "sigma": 0.3})
    places = pd.DataFrame({"x": AT[:, 0], "y": AT[:, 1]})
    column = gt.interpolate(table, places, error="sigma")  # and it is not the variable
    assert isinstance(column, pd.DataFrame)
    for name in ("mean", "std"):
        np.testing.assert_allclose(number[name], array[name])
        np.testing.assert_allclose(column[f"t_{name}"], array[name])


def test_units_of_values_and_errors_do_not_matter() -> None:
    found, scaled = plain(ERROR), plain(1.8 * ERROR, y=1.8 * Y + 32)
    np.testing.assert_allclose(scaled["mean"], 1.8 * found["mean"] + 32, rtol=1e-4)
    np.testing.assert_allclose(scaled["std"], 1.8 * found["std"], rtol=1e-4)


def test_known_errors_make_the_answer_better_and_sharper() -> None:
    truth = np.sin(AT[:, 0]) + 0.5 * np.cos(AT[:, 1])
    known, unknown = plain(ERROR), plain()
    error, before = (np.sqrt(np.mean((found["mean"] - truth) ** 2)) for found in (known, unknown))
    assert error < 0.9 * before
    assert known["std"].mean() < 0.9 * unknown["std"].mean()
    assert (np.abs(known["mean"] - truth) < 3 * known["std"]).mean() > 0.9


def test_errors_of_zero_change_nothing() -> None:
    for name, values in plain().items():
        np.testing.assert_allclose(plain(0.0)[name], values)


def test_wrong_errors_are_refused() -> None:
    with pytest.raises(ValueError, match="error is -1 for observation 0; must be a standard"):
        plain(-1.0)
    with pytest.raises(ValueError, match="error is nan for observation 2; must be a standard"):
        plain(np.where(np.arange(80) == 2, np.nan, ERROR))
    with pytest.raises(ValueError, match=r"error has shape \(3,\), but there are 80 observations"):
        plain(ERROR[:3])
    with pytest.raises(ValueError, match="Unknown column 'sigma'"):
        plain("sigma")
    table = pd.DataFrame({"x": X[:, 0], "y": X[:, 1], "t": Y, "sigma": -ERROR})
    with pytest.raises(ValueError, match=r"column 'sigma' of errors is -.* for observation 0"):
        gt.interpolate(table, table, value="t", error="sigma")


def test_the_command_takes_errors(tmp_path: Path) -> None:
    from gridtnp.cli.commands import main

    table = pd.DataFrame({"lon": X[:, 0], "lat": X[:, 1], "t": Y, "sigma": ERROR})
    table.to_csv(tmp_path / "obs.csv", index=False)
    found = []
    for name, error in (
        ("none", []),
        ("number", ["--error", "0.5"]),
        ("column", ["--error", "sigma"]),
    ):
        path = tmp_path / f"{name}.nc"
        words = ["interpolate", str(tmp_path / "obs.csv"), "--at", "lat=1:8,lon=1:8,step=1"]
        main([*words, "--value", "t", *error, "-o", str(path)])
        with xr.open_dataset(path) as answer:
            found.append(float(answer["t_std"].mean()))
    assert found[2] < found[0]
    assert found[1] != found[0]
