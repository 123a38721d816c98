"""Regression kriging: fields and features explain what they can, the rest is kriged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_interpolation import raw_tasks

from gridtnp.baselines.interpolation import RawTask
from gridtnp.baselines.kriging import Kriging
from gridtnp.baselines.regression import LinearRegression, RegressionKriging, Regressors
from gridtnp.data.dataset import Dataset
from gridtnp.tasks.specification import TaskSpec

DAYS = pd.date_range("2000-01-01", periods=12, freq="1D")


def field(rng: np.random.Generator) -> xr.Dataset:
    """Waves that are new every day, finer than the stations' spacing; missing in the north."""
    lat, lon = np.arange(45.0, 52.1, 0.25), np.arange(0.0, 10.1, 0.25)
    a, b, c = rng.uniform(0, 6, (3, len(DAYS), 1, 1))
    waves = np.sin(2 * lat[:, None] + a) * np.cos(2 * lon + b) + np.sin(lon + lat[:, None] + c)
    waves[:, lat > 51] = np.nan
    return xr.Dataset(
        {"w": (("time", "lat", "lon"), waves)}, {"time": DAYS, "lat": lat, "lon": lon}
    )


def world(noise: float = 0.1) -> Dataset:
    """Stations that see three times the field and fall with height."""
    rng = np.random.default_rng(1)
    waves, number = field(rng), 60
    sites = {"lat": rng.uniform(45, 51.9, number), "lon": rng.uniform(0, 10, number)}
    place = {k: xr.DataArray(v, dims="station") for k, v in sites.items()}
    height = rng.uniform(0, 3000, number)
    rows = []
    for day in DAYS:
        seen = waves["w"].fillna(0.0).sel(time=day).interp(place).to_numpy()
        value = 10 + 3 * seen - 0.0065 * height + rng.normal(size=number) * noise
        names = [f"S{i}" for i in range(number)]
        columns = {"time": day, **sites, "elevation": height, "station": names, "t": value}
        rows.append(pd.DataFrame(columns))
    table = pd.concat(rows, ignore_index=True)
    flat = xr.DataArray(
        np.full((2, 2), 1000.0), {"lat": [40.0, 55.0], "lon": [-1.0, 12.0]}, ("lat", "lon")
    )
    return Dataset({"s": table, "grid": waves}, target="s.t", static={"elevation": flat})


def fitted(
    data: Dataset, spec: TaskSpec, tasks: list[RawTask], observed: bool = True
) -> RegressionKriging:
    regressors = Regressors.of(data, spec)
    drift = bool(spec.statics)
    return RegressionKriging.fit(tasks, ("t",), regressors, drift=drift, observed=observed)


def errors(baseline: RegressionKriging | Kriging, tasks: list[RawTask]) -> np.ndarray:
    return np.concatenate([task.truth - baseline.predict(task)[0] for task in tasks])


def test_a_field_that_explains_the_rest_is_used_where_it_is_known() -> None:
    data = world()
    spec, tasks = raw_tasks(data, 0.7)
    found = fitted(data, spec, tasks[:8])
    assert found.regression.regressors.names == ("elevation", "grid.w")
    inside = np.concatenate([task.targets.lat < 50.9 for task in tasks[8:]])
    error = errors(found, tasks[8:])
    assert np.isfinite(error).all()  # also where the field is missing
    drift = errors(Kriging.fit(tasks[:8], ("t",), drift=True), tasks[8:])
    assert error[inside].std() < 0.5 * drift[inside].std()
    z = [task.truth / found.predict(task)[1] for task in tasks[8:]]  # type: ignore[operator]
    assert np.isfinite(np.concatenate(z)).all()


def test_without_observations_it_is_the_regression_alone() -> None:
    data = world()
    spec, tasks = raw_tasks(data, 0.7)
    found = fitted(data, spec, tasks[:8], observed=False)
    mean, std = found.predict(tasks[9])
    assert std is not None
    assert std == pytest.approx(found.regression.rmse[0])
    assert found.notes() == ()
    inside = tasks[9].targets.lat < 50.9
    assert (tasks[9].truth - mean)[inside].std() < 1.5 * std[0, 0]
    nothing = replace(tasks[9], values=np.full_like(tasks[9].values, np.nan))
    kriged = fitted(data, spec, tasks[:8])
    np.testing.assert_allclose(kriged.predict(nothing)[0], mean, atol=0.5)


def test_without_fields_and_features_it_is_kriging_around_the_calendar() -> None:
    rng = np.random.default_rng(2)
    times = pd.date_range("2000-01-01", "2002-12-31", freq="19h")
    sites = pd.DataFrame({"station": list("ABCDEF"), "lat": rng.uniform(45, 50, 6), "lon": 3.0})
    table = sites.merge(pd.DataFrame({"time": times}), how="cross")
    day = table["time"].dt.day_of_year
    table["t"] = 15 * np.cos(2 * np.pi * day / 365.25) + rng.normal(size=len(table))
    data = Dataset({"s": table}, target="s.t")
    spec, tasks = raw_tasks(data)
    regressors = Regressors.of(data, spec)
    assert regressors.computed == ("day_of_year", "local_hour")
    found = fitted(data, spec, tasks[::40])
    assert found.regression.rmse[0] == pytest.approx(1.0, rel=0.2)
    assert errors(found, tasks[5::40]).std() == pytest.approx(1.0, rel=0.2)
    short = Dataset({"s": table[table.time < "2000-03-01"]}, target="s.t")
    assert Regressors.of(short, spec).computed == ("local_hour",)  # a season is not known yet
    plain = Dataset({"s": table.drop_duplicates("station").drop(columns="time")}, target="s.t")
    assert Regressors.of(plain, TaskSpec.of(plain)).names == ()


def test_a_regression_without_errors_is_not_kriged() -> None:
    data = world(noise=0.0)
    spec, tasks = raw_tasks(data, 0.7)

    def exact(task: RawTask) -> RawTask:
        values, truth = (points.static * 2.0 for points in (task.observed, task.targets))
        return replace(task, values=values, truth=truth)

    regressors = replace(Regressors.of(data, spec), fields=())
    found = RegressionKriging.fit(
        [exact(task) for task in tasks], ("t",), regressors, drift=True, observed=True
    )
    assert found.regression.models[0].rmse < 0.01 * found.regression.models[0].std


def test_no_training_tasks_are_refused() -> None:
    data = world()
    spec, tasks = raw_tasks(data)
    with pytest.raises(ValueError, match=r"^There are no training tasks to fit a regression to\.$"):
        fitted(data, spec, [])
    empty = replace(tasks[0], values=tasks[0].values * np.nan, truth=tasks[0].truth * np.nan)
    with pytest.raises(ValueError, match=r"^No training task has a value of 't' to fit a regr"):
        fitted(data, spec, [empty])


@settings(max_examples=examples(20))
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_the_regression_is_least_squares_and_knows_what_to_do_without(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(400, k)) * rng.uniform(0.1, 100, k) + rng.normal(size=k)
    y = x @ rng.normal(size=k) + 3.0 + rng.normal(size=400)
    model = LinearRegression.fit(x, y)
    design = np.c_[x, np.ones(400)]
    expected = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    np.testing.assert_allclose(model.predict(x), expected, atol=0.02 * y.std())
    blind = x.copy()
    blind[:, 0] = np.nan
    without = np.c_[x[:, 1:], np.ones(400)]
    expected = without @ np.linalg.lstsq(without, y, rcond=None)[0]
    np.testing.assert_allclose(model.predict(blind), expected, atol=0.02 * y.std())
    mixed = np.where(rng.random(x.shape) < 0.2, np.nan, x)
    assert np.isfinite(LinearRegression.fit(mixed, y).predict(mixed)).all()
    nothing = np.full((2, k), np.nan)
    np.testing.assert_allclose(model.predict(nothing), y.mean())


def test_a_column_that_is_never_known_or_constant_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 1))
    y = 2 * x[:, 0] + rng.normal(size=100)
    plain = LinearRegression.fit(x, y).predict(x)
    more = np.c_[x, np.full(100, np.nan), np.full(100, 7.0)]
    np.testing.assert_allclose(LinearRegression.fit(more, y).predict(more), plain, atol=1e-6)
