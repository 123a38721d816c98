"""Kriging against scikit-learn, against processes with known parameters, and its errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from test_interpolation import raw_tasks

from gridtnp.baselines.interpolation import Nearest, Points, RawTask
from gridtnp.baselines.kriging import (
    JITTER,
    Kriging,
    KrigingParameters,
    nearest_posterior,
    posterior,
)
from gridtnp.data.dataset import Dataset

NAMES = ("t",)


def process(**parameters: float) -> KrigingParameters:
    values = {"amplitude": 1.3, "length": 200.0, "noise": 0.4, "level": 2.0} | parameters
    logs = torch.tensor(list(values.values()), dtype=torch.float64).log()
    return KrigingParameters(10.0, 3.0, np.zeros(0), np.zeros(0), logs, False)


def test_the_posterior_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    x, at = (np.c_[rng.uniform(0, 1000, (n, 3)), np.zeros(n)] for n in (40, 15))
    y = rng.normal(10, 3, 40)
    mean, std = posterior(process(), x, y, at)
    kernel = ConstantKernel(1.3**2) * Matern(200.0, nu=1.5) + ConstantKernel(2.0**2)
    kernel = kernel + WhiteKernel(0.4**2 + JITTER)
    other = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(x, (y - 10) / 3)
    expected = other.predict(at, return_std=True)
    np.testing.assert_allclose(mean, expected[0] * 3 + 10, rtol=1e-5)
    np.testing.assert_allclose(std, expected[1] * 3, rtol=1e-5)


def test_without_observations_it_is_the_prior() -> None:
    mean, std = posterior(process(), np.zeros((0, 4)), np.zeros(0), np.zeros((2, 4)))
    np.testing.assert_allclose(mean, 10.0)
    np.testing.assert_allclose(std, 3 * np.sqrt(1.3**2 + 2.0**2 + 0.4**2))


def world(
    drift: float = 0.0, times: int = 12, noise: float = 0.3, persistence: float = 0.0
) -> Dataset:
    """Samples of a Gaussian process with a length of 150 km, on a level of their own every day.

    `persistence` is the correlation of the process with that of the day before.
    """
    rng = np.random.default_rng(1)
    lat, lon = rng.uniform(45, 52, 120), rng.uniform(0, 10, 120)
    height = rng.uniform(0, 3000, 120)
    places = Points(lat, lon, None, np.arange(120), np.zeros((120, 0))).kilometres(None)
    distance = np.sqrt(((places[:, None] - places[None]) ** 2).sum(-1)) * np.sqrt(3) / 150
    root = np.linalg.cholesky((1 + distance) * np.exp(-distance) + 1e-9 * np.eye(120))
    rows, field = [], np.zeros(120)
    for day in pd.date_range("2000-01-01", periods=times, freq="1D"):
        level, news = 5 * rng.normal(), root @ rng.normal(size=120)
        field = persistence * field + np.sqrt(1 - persistence**2) * news
        value = level + field + noise * rng.normal(size=120)
        table = {"time": day, "lat": lat, "lon": lon, "elevation": height}
        table |= {"station": [f"S{i}" for i in range(120)], "t": value + drift * height / 1000}
        rows.append(pd.DataFrame(table))
    static = {"elevation": "s.elevation"}
    return Dataset({"s": pd.concat(rows, ignore_index=True)}, target="s.t", static=static)


def test_parameters_are_found_and_predictions_calibrated() -> None:
    _, found = raw_tasks(world(), 0.8)
    kriging = Kriging.fit(found[:8], NAMES, drift=False)
    fitted = kriging.processes[0]
    assert fitted["length"] == pytest.approx(150, rel=0.4)
    assert fitted["amplitude"] * fitted.std == pytest.approx(1.0, rel=0.3)
    assert fitted["noise"] * fitted.std == pytest.approx(0.3, rel=0.3)
    errors, spreads, baseline = [], [], []
    for raw_task in found[8:]:
        mean, std = kriging.predict(raw_task)
        assert std is not None
        errors.append(raw_task.truth - mean)
        spreads.append(std)
        baseline.append(raw_task.truth - Nearest().predict(raw_task)[0])
    z = np.concatenate(errors) / np.concatenate(spreads)
    assert z.std() == pytest.approx(1.0, abs=0.2)
    assert np.concatenate(errors).std() < 0.8 * np.concatenate(baseline).std()
    assert kriging.notes() == ()


def test_a_drift_with_elevation_is_used() -> None:
    _, found = raw_tasks(world(drift=-6.5), 0.8)
    error = {}
    for drift in (False, True):
        kriging = Kriging.fit(found[:8], NAMES, drift=drift)
        error[drift] = np.concatenate([s.truth - kriging.predict(s)[0] for s in found[8:]]).std()
    assert error[True] < 0.25 * error[False]
    assert error[True] < 1.0


def test_times_apart_say_less() -> None:
    data = world(times=8, persistence=0.9)
    _, found = raw_tasks(data, 1.0, window="(-2D, 0h]", lead="1D")
    kriging = Kriging.fit(found[:3], NAMES, drift=False)
    assert kriging.processes[0].timed
    assert kriging.processes[0]["hours"] > 48
    _, std = kriging.predict(found[4])
    older = found[4].observed
    assert older.time is not None
    _, later = kriging.predict(
        replace(found[4], observed=replace(older, time=older.time - np.timedelta64(30, "D")))
    )
    assert std is not None
    assert later is not None
    assert (later > std).all()


def test_too_many_observations_are_reduced_to_the_nearest_with_a_note() -> None:
    _, found = raw_tasks(world(times=3), 0.8)
    fitted = Kriging.fit(found, NAMES, drift=False)
    small = Kriging(fitted.processes, drift=False, max_observations=20)
    for raw_task in found[:2]:
        (mean, std), (exact, spread) = small.predict(raw_task), fitted.predict(raw_task)
        assert std is not None
        assert spread is not None
        assert np.abs((mean - exact) / spread).max() < 0.5  # a random 20 would differ by more
        assert (std > 0.98 * spread).all()
    assert small.notes() == (
        "kriging: 2 times had more than 20 observations; each target is predicted from its 64 "
        "nearest",
    )


def flavoured(length: float, timed: bool, features: int) -> KrigingParameters:
    values = {"amplitude": 1.3, "length": length, "noise": 0.4, "level": 2.0}
    values |= {"hours": 30.0} if timed else {}
    for k in range(features):
        values |= {f"drift_{k}": 0.8, f"length_{k}": 2.0}
    logs = torch.tensor(list(values.values()), dtype=torch.float64).log()
    return KrigingParameters(10.0, 3.0, np.zeros(features), np.ones(features), logs, timed)


@settings(max_examples=examples(4))
@given(st.integers(0, 1000), st.booleans(), st.integers(0, 2), st.sampled_from([5.0, 50.0, 150.0]))
def test_the_nearest_observations_say_nearly_all(
    seed: int, timed: bool, features: int, length: float
) -> None:
    """For every flavour: time, drift, and lengths below and above the spacing."""
    rng, fitted = np.random.default_rng(seed), flavoured(length, timed, features)
    x, at = (
        np.c_[
            rng.uniform(0, 1000, (n, 2)),
            np.zeros(n),
            rng.uniform(0, 48, n) * timed,
            rng.normal(size=(n, features)),
        ]
        for n in (300, 15)
    )
    y = 10 + np.sin(x[:, 0] / 100) * 3 + x[:, 4:].sum(1) + rng.normal(size=300)
    mean, std = posterior(fitted, x, y, at)
    near, spread = nearest_posterior(fitted, x, y, at, most=300)
    difference = np.abs(near - mean) / std
    assert np.sqrt((difference**2).mean()) < (0.15 if timed or features else 0.05)
    ratio = spread / std
    assert ratio.min() > 0.999  # fewer observations never say more
    assert ratio.max() < 1.05
    # with all of them as neighbours, and all of them for the trend, nothing is lost
    whole, its_std = nearest_posterior(fitted, x, y, at, most=300, neighbours=300)
    np.testing.assert_allclose(whole, mean, atol=1e-6)
    np.testing.assert_allclose(its_std, std, atol=1e-6)


def test_a_target_without_a_feature_is_not_predicted() -> None:
    _, found = raw_tasks(world(times=3), 0.8)
    fitted = Kriging.fit(found, NAMES, drift=True)
    static = found[0].targets.static.copy()
    static[0] = np.nan
    some = replace(found[0], targets=replace(found[0].targets, static=static))
    for most in (20, 1000):
        mean, std = Kriging(fitted.processes, drift=True, max_observations=most).predict(some)
        assert std is not None
        assert np.isnan(mean[0]).all()
        assert np.isnan(std[0]).all()
        assert np.isfinite(mean[1:]).all()


def test_short_lengths_are_found_among_many_observations() -> None:
    """A random subset of 200 of 2,000 points would be too sparse to tell them from noise."""
    rng = np.random.default_rng(0)
    lat, lon = rng.uniform(45, 52, 2000), rng.uniform(0, 10, 2000)
    points = Points(lat, lon, None, np.arange(2000), np.zeros((2000, 0)))
    x = points.kilometres(None)
    distance = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1)) * np.sqrt(3) / 20
    root = np.linalg.cholesky((1 + distance) * np.exp(-distance) + 0.01 * np.eye(2000))
    tasks = []
    for _ in range(4):
        value = (root @ rng.normal(size=2000))[:, None]
        empty = replace(
            points, **{k: getattr(points, k)[:0] for k in ("lat", "lon", "station", "static")}
        )
        tasks.append(RawTask(world(times=1), None, points, value, empty, value[:0], {}))
    fitted = Kriging.fit(tasks, NAMES, drift=False).processes[0]
    assert fitted["length"] == pytest.approx(20, rel=0.4)
    assert fitted["noise"] * fitted.std < 0.35


def constant(raw_task: RawTask) -> RawTask:
    return replace(
        raw_task, values=np.full_like(raw_task.values, 7), truth=np.full_like(raw_task.truth, 7)
    )


def test_a_constant_and_nothing_at_all_are_refused() -> None:
    _, found = raw_tasks(world(times=2))
    with pytest.raises(
        ValueError, match=r"^'t' is 7 throughout the training part, but kriging needs a var"
    ):
        Kriging.fit(map(constant, found), NAMES, drift=False)
    with pytest.raises(
        ValueError, match=r"^No training time has two observations of 't', which kriging"
    ):
        Kriging.fit([], NAMES, drift=False)
