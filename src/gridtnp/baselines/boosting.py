"""Gradient boosting on place, features, gridded fields and the nearest observations.

Trees cannot extrapolate, so they correct the inverse-distance mean of the residuals of a linear
regression, and see its neighbours' residuals as differences from it. It needs scikit-learn:
`pip install 'gridtnp[rivals]'`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.spatial import KDTree

from gridtnp.baselines.interpolation import Baseline, Forecast, RawTask
from gridtnp.baselines.regression import Regression, Regressors
from gridtnp.sources.reading import require_installed

NEIGHBOURS = 8
"""Nearest observations that are inputs."""
FOLDS = 5
"""Parts of the training stations, or times, for errors at places and times not trained on."""
OPTIONS = {"max_iter": 200, "learning_rate": 0.05, "min_samples_leaf": 20, "l2_regularization": 1.0}
SPREAD_OPTIONS = {"max_iter": 60, "learning_rate": 0.05, "min_samples_leaf": 100}


@dataclass(frozen=True, eq=False)
class Boosting(Baseline):
    """Gradient boosting of every variable, and of its squared error for the standard deviation."""

    regression: Regression
    means: tuple[Any, ...]
    variances: tuple[Any, ...]

    @classmethod
    def fit(
        cls,
        raw_tasks: Iterable[RawTask],
        names: Sequence[str],
        regressors: Regressors,
        *,
        held_out: bool,
    ) -> Boosting:
        """Fit to targets, and to every observation as predicted from the others.

        Standard deviations are fitted to errors at training stations left out, if the test is at
        `held_out` stations, else at times left out.
        """
        ensemble = require_installed("sklearn.ensemble", "rivals", "Baseline 'boosting'")
        regression, residuals = Regression.fit(raw_tasks, names, regressors)
        means, variances = [], []
        for v in range(len(names)):
            pieces = []
            for number, (task, x) in enumerate(residuals):
                observed = len(task.values)
                values = np.concatenate([task.values, task.truth])[:, v]
                at = np.arange(len(values))
                base, inputs = _inputs(task, x, values[:observed], at)
                who = np.concatenate([task.observed.station, task.targets.station])
                group = who if held_out else np.full(len(values), number)
                used = np.isfinite(values) & np.isfinite(base)
                pieces.append((inputs[used], (values - base)[used], group[used]))
            x, y, group = (np.concatenate(piece) for piece in zip(*pieces, strict=True))
            fold = np.unique(group.astype(str), return_inverse=True)[1] % FOLDS
            errors = np.zeros(len(y))
            for number in np.unique(fold):
                rest, left = fold != number, fold == number
                if rest.any():
                    model = ensemble.HistGradientBoostingRegressor(random_state=0, **OPTIONS)
                    errors[left] = model.fit(x[rest], y[rest]).predict(x[left])
            squares = np.maximum((y - errors) ** 2, 1e-8 * max(float(y.var()), 1e-12))
            means.append(
                ensemble.HistGradientBoostingRegressor(random_state=0, **OPTIONS).fit(x, y)
            )
            spread = ensemble.HistGradientBoostingRegressor(
                loss="gamma", random_state=0, **SPREAD_OPTIONS
            )
            variances.append(spread.fit(x, squares))
        return cls(regression, tuple(means), tuple(variances))

    def predict(self, raw_task: RawTask) -> Forecast:
        task = self.regression.residuals(raw_task)
        both = (raw_task.observed, raw_task.targets)
        x = np.concatenate([self.regression.regressors.at(raw_task, points) for points in both])
        observed = len(task.values)
        mean = self.regression.of(x[observed:])
        std = np.full(mean.shape, np.nan)
        at = np.arange(observed, len(x))
        for v, (model, spread) in enumerate(zip(self.means, self.variances, strict=True)):
            base, inputs = _inputs(task, x, task.values[:, v], at)
            mean[:, v] += base + model.predict(inputs)
            std[:, v] = np.sqrt(spread.predict(inputs))
        return mean, std


def _inputs(
    task: RawTask,
    x: Float[np.ndarray, "n k"],
    values: Float[np.ndarray, " o"],
    at: np.ndarray,
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m d"]]:
    """The inverse-distance mean of the neighbours of each point `at`, and all inputs.

    Points are numbered: first the observations, then the targets. No point is its own neighbour.
    """
    both = (task.observed, task.targets)
    places = np.concatenate([points.kilometres(task.time) for points in both])
    known = np.flatnonzero(np.isfinite(values))
    number = NEIGHBOURS
    distance = np.full((len(at), number + 1), np.inf)
    index = np.zeros((len(at), number + 1), int)
    if len(known):
        found, near = KDTree(places[known]).query(places[at], min(number + 1, len(known)))
        found, near = (a.reshape(len(at), -1) for a in (found, near))
        distance[:, : found.shape[1]], index[:, : found.shape[1]] = found, known[near]
        distance[index == at[:, None]] = np.inf  # a point itself
    order = np.argsort(distance, 1, kind="stable")[:, :number]
    distance, index = (np.take_along_axis(a, order, 1) for a in (distance, index))
    there = np.isfinite(distance)
    weight = np.where(there, np.maximum(distance, 1e-3) ** -2.0, 0.0)
    neighbour = np.where(there, values[index] if len(values) else 0.0, np.nan)
    total = np.maximum(weight.sum(1), 1e-300)
    base = np.where(there, weight * np.nan_to_num(neighbour), 0.0).sum(1) / total
    differences = np.where(there[..., None], x[index] - x[at][:, None], np.nan)
    inputs = [
        places[at, :3],
        x[at],
        neighbour - base[:, None],
        np.where(there, distance, np.nan),
        differences.reshape(len(at), -1),
    ]
    return base, np.concatenate(inputs, -1)
