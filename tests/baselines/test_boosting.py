"""Baselines of other libraries: gradient boosting, and GPBoost against our exact kriging."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import test_kriging
import test_regression
from test_interpolation import raw_tasks

from gridtnp.baselines import boosting
from gridtnp.baselines.boosting import Boosting
from gridtnp.baselines.interpolation import InverseDistance
from gridtnp.baselines.kriging import Kriging
from gridtnp.baselines.regression import RegressionKriging, Regressors
from gridtnp.baselines.vecchia import Vecchia
from gridtnp.evaluation.baselines import BaselineTraining, fit_baseline

NAMES = ("t",)


def test_trees_learn_what_a_line_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(boosting.OPTIONS, "max_iter", 60)
    data = test_regression.world()
    spec, tasks = raw_tasks(data, 0.7)

    def step(values: np.ndarray, static: np.ndarray) -> np.ndarray:
        return values + 6.0 * (static > 1500)  # a jump at a height

    tasks = [
        replace(
            task,
            values=step(task.values, task.observed.static),
            truth=step(task.truth, task.targets.static),
        )
        for task in tasks
    ]
    regressors = Regressors.of(data, spec)
    trees = Boosting.fit(tasks[:8], NAMES, regressors, held_out=False)
    line = RegressionKriging.fit(tasks[:8], NAMES, regressors, drift=False, observed=False)
    z, error, plain, linear = [], [], [], []
    for task in tasks[8:]:
        mean, std = trees.predict(task)
        assert std is not None
        assert (std > 0).all()
        error.append(task.truth - mean)
        z.append(error[-1] / std)
        plain.append(task.truth - InverseDistance().predict(task)[0])
        linear.append(task.truth - line.predict(task)[0])
    size = np.concatenate(error).std()
    assert size < 0.5 * np.concatenate(plain).std()
    assert size < np.concatenate(linear).std()
    assert 0.6 < np.concatenate(z).std() < 1.6


def test_a_point_is_never_its_own_neighbour() -> None:
    """Else the errors in training would be zero."""
    data = test_regression.world()
    spec, tasks = raw_tasks(data, 0.7)
    task = tasks[0]
    x = np.concatenate(
        [Regressors.of(data, spec).at(task, p) for p in (task.observed, task.targets)]
    )
    values = task.values[:, 0].copy()
    base, inputs = boosting._inputs(task, x, values, np.arange(len(x)))
    for i in (0, 3):
        changed = values.copy()
        changed[i] += 100.0
        again, others = boosting._inputs(task, x, changed, np.arange(len(x)))
        assert again[i] == base[i]
        np.testing.assert_array_equal(others[i], inputs[i])
        assert (again != base).any()


def test_few_or_no_observations_leave_the_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(boosting.OPTIONS, "max_iter", 10)
    data = test_regression.world()
    spec, tasks = raw_tasks(data, 0.7)
    found = Boosting.fit(tasks[:4], NAMES, Regressors.of(data, spec), held_out=True)
    for number in (0, 1, 3):
        values = tasks[5].values.copy()
        values[number:] = np.nan
        mean, std = found.predict(replace(tasks[5], values=values))
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()  # type: ignore[arg-type]


def test_vecchias_approximation_is_close_to_exact_kriging() -> None:
    pytest.importorskip("gpboost")
    data = test_kriging.world(noise=0.3)
    spec, tasks = raw_tasks(data, 0.8)
    exact = Kriging.fit(tasks[:8], NAMES, drift=False)
    other = Vecchia.fit(tasks[:8], NAMES, Regressors(("elevation",), (), ()))
    error = {}
    for name, baseline in (("exact", exact), ("vecchia", other)):
        found = [baseline.predict(task) for task in tasks[8:]]
        error[name] = np.concatenate(
            [task.truth - mean for task, (mean, _) in zip(tasks[8:], found, strict=True)]
        )
        spread = np.concatenate([std for _, std in found if std is not None])
        assert (error[name] / spread).std() == pytest.approx(1.0, abs=0.25)
    assert error["vecchia"].std() == pytest.approx(error["exact"].std(), rel=0.1)
    assert np.corrcoef(error["vecchia"][:, 0], error["exact"][:, 0])[0, 1] > 0.95
    assert spec.statics == ("elevation",)


@pytest.mark.parametrize(("module", "name"), [("gpboost", "gpboost"), ("sklearn", "boosting")])
def test_what_is_not_installed_is_named_with_its_command(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.ensemble", None)
    data = test_regression.world()
    spec, tasks = raw_tasks(data)
    training = BaselineTraining(spec, data)
    with pytest.raises(
        ImportError, match=rf"^Baseline '{name}' needs .*pip install 'gridtnp\[rivals\]'"
    ):
        fit_baseline(name, training, tasks[0].data)
