"""GPBoost's Gaussian process with Vecchia's approximation, around a linear regression.

A Matérn-3/2 covariance in space, and in space and time if observations have several times; the mean
is the regression of `regression.py` plus the mean residual of the task. It needs GPBoost:
`pip install 'gridtnp[rivals]'`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from gridtnp.baselines.interpolation import KM_PER_HOUR, Baseline, Forecast, Points, RawTask
from gridtnp.baselines.kriging import TIMES
from gridtnp.baselines.regression import Regression, Regressors
from gridtnp.sources.reading import require_installed

NEIGHBOURS = 30
"""Neighbours of Vecchia's approximation."""
POINTS = 500
"""Most observations of a training time to fit the covariance to."""


@dataclass(frozen=True, eq=False)
class Vecchia(Baseline):
    """A Gaussian process of the regression's residuals per variable.

    `parameters` are GPBoost's covariance parameters; `timed` whether time is a coordinate.
    """

    regression: Regression
    parameters: tuple[Float[np.ndarray, " p"], ...]
    timed: bool

    @classmethod
    def fit(
        cls, raw_tasks: Iterable[RawTask], names: Sequence[str], regressors: Regressors
    ) -> Vecchia:
        """Fit the covariance by maximum likelihood, with training tasks independent."""
        require_installed("gpboost", "rivals", "Baseline 'gpboost'")
        regression, residuals = Regression.fit(raw_tasks, names, regressors)
        tasks = [task for task, _ in residuals[:TIMES]]
        timed = any(np.ptp(_places(t.observed, t, True)[:, 0]) > 0 for t in tasks if len(t.values))
        rng, fitted = np.random.default_rng(0), []
        for v, name in enumerate(names):
            places, values, clusters = [], [], []
            for number, task in enumerate(tasks):
                both = (task.observed, task.targets)
                here = np.concatenate([_places(points, task, timed) for points in both])
                y = np.concatenate([task.values, task.truth])[:, v]
                some = rng.permutation(np.flatnonzero(np.isfinite(y)))[:POINTS]
                if len(some) > 1:
                    places.append(here[some])
                    values.append(y[some] - y[some].mean())
                    clusters.append(np.full(len(some), number))
            if not places:
                raise ValueError(
                    f"No training time has two observations of {name!r}, which 'gpboost' needs; "
                    "leave it out."
                )
            model = _model(np.concatenate(places), timed, np.concatenate(clusters))
            model.fit(y=np.concatenate(values))
            fitted.append(np.asarray(model.get_cov_pars(), float).ravel())
        return cls(regression, tuple(fitted), timed)

    def predict(self, raw_task: RawTask) -> Forecast:
        task = self.regression.residuals(raw_task)
        mean = self.regression.predict(raw_task, raw_task.targets)
        std = np.broadcast_to(self.regression.rmse, mean.shape).copy()
        x, at = (_places(points, task, self.timed) for points in (task.observed, task.targets))
        for v, parameters in enumerate(self.parameters):
            known = np.isfinite(task.values[:, v])
            if known.sum() < 2:
                continue
            values = task.values[known, v]
            level = values.mean()
            found = _model(x[known], self.timed, None).predict(
                y=values - level,
                gp_coords_pred=at,
                cov_pars=parameters,
                predict_var=True,
                predict_response=True,
            )
            mean[:, v] += level + found["mu"]
            std[:, v] = np.sqrt(np.maximum(found["var"], 1e-12))
        return mean, std


def _model(places: np.ndarray, timed: bool, clusters: np.ndarray | None) -> Any:
    gpboost = require_installed("gpboost", "rivals", "Baseline 'gpboost'")
    smallest = (
        len(places) if clusters is None else int(np.unique(clusters, return_counts=True)[1].min())
    )
    return gpboost.GPModel(
        gp_coords=places,
        cov_function="matern_space_time" if timed else "matern",
        cov_fct_shape=1.5,
        gp_approx="vecchia",
        num_neighbors=min(NEIGHBOURS, smallest - 1),  # else it prints
        cluster_ids=clusters,
        likelihood="gaussian",
        seed=0,
    )


def _places(points: Points, task: RawTask, timed: bool) -> Float[np.ndarray, "n d"]:
    """Hours, if `timed`, and kilometres."""
    places = points.kilometres(task.time)
    return np.c_[places[:, 3] / KM_PER_HOUR, places[:, :3]] if timed else places[:, :3]
