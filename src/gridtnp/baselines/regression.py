"""Regression kriging: a linear regression on features and gridded fields, its residuals kriged.

The regressors are the static features, the calendar, and every gridded variable of the context,
interpolated to the place. The regression is fitted to training tasks; in every task, the residuals
of the observations are kriged. With a gridded source, it is the strongest classical baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from gridtnp.baselines.interpolation import (
    Baseline,
    Forecast,
    GriddedVariable,
    Points,
    RawTask,
    gridded_variables,
)
from gridtnp.baselines.kriging import TIMES, Kriging
from gridtnp.data.dataset import Dataset
from gridtnp.data.features import COMPUTED
from gridtnp.tasks.specification import TaskSpec

RIDGE = 1e-3
"""Penalty of a coefficient of a regressor with unit variance, per observation."""
YEAR = np.timedelta64(330, "D")
"""Shortest training period with a season."""
EXACT = 1e-6
"""Residuals below this fraction of a variable's standard deviation are not kriged."""


@dataclass(frozen=True, eq=False)
class Regressors:
    """What is known at any point of a task: `computed` are names of features of the calendar."""

    names: tuple[str, ...]
    computed: tuple[str, ...]
    fields: tuple[GriddedVariable, ...]

    @classmethod
    def of(cls, train: Dataset, spec: TaskSpec) -> Regressors:
        """Those of a dataset. If it has no computed features, season and time of day are used, as
        far as the training period shows them.
        """
        computed = spec.computed or _calendar(train.times())
        fields = {
            name: field
            for name, field in gridded_variables(train, spec).items()
            if field.source != spec.target_source
        }
        columns = [column for name in computed for column in COMPUTED[name][0]]
        names = (*spec.statics, *columns, *fields)
        return cls(names, computed, tuple(fields.values()))

    def at(self, raw_task: RawTask, points: Points) -> Float[np.ndarray, "n k"]:
        """A column per regressor, NaN where unknown."""
        columns = [points.static.astype(np.float64)]
        for name in self.computed:
            found = np.full((len(points.lat), len(COMPUTED[name][0])), np.nan)
            if points.time is not None:
                found[:] = COMPUTED[name][1](points.time, points.lat, points.lon)
            columns.append(found)
        columns += [field.at(raw_task, points)[:, None] for field in self.fields]
        return np.concatenate(columns, -1)


def _calendar(times: np.ndarray | None) -> tuple[str, ...]:
    if times is None or not len(times):
        return ()
    hours = np.unique(times.astype("datetime64[h]").astype(int) % 24)
    season = times[-1] - times[0] >= YEAR
    return (*("day_of_year",) * bool(season), *("local_hour",) * bool(len(hours) > 1))


@dataclass(frozen=True, eq=False)
class LinearRegression:
    """Ridge regression of one variable on standardised regressors.

    It keeps the moments instead of coefficients: where regressors are unknown, it is the regression
    on the others. `rmse` is the RMSE in training, `std` the variable's standard deviation.
    """

    mean: float
    std: float
    centre: Float[np.ndarray, " k"]
    scale: Float[np.ndarray, " k"]
    gram: Float[np.ndarray, "k k"]
    cross: Float[np.ndarray, " k"]
    rmse: float = 0.0

    @classmethod
    def fit(cls, x: Float[np.ndarray, "n k"], y: Float[np.ndarray, " n"]) -> LinearRegression:
        """Least squares on the rows where all regressors are known, if these are most of them; else
        unknown ones are replaced by their mean.
        """
        complete = np.isfinite(x).all(1)
        if complete.mean() > 0.5:
            x, y = x[complete], y[complete]
        known = np.isfinite(x)
        number = np.maximum(known.sum(0), 1)
        centre = np.where(known, x, 0.0).sum(0) / number
        deviation = np.where(known, x - centre, 0.0)
        scale = np.sqrt((deviation**2).sum(0) / number)
        scale = np.where(scale > 1e-9 * np.abs(centre), scale, 1.0)
        z, mean = deviation / scale, float(y.mean())
        moments = z.T @ z / len(z), z.T @ (y - mean) / len(z)
        made = cls(mean, float(y.std()), centre, scale, *moments)
        return replace(made, rmse=float(np.sqrt(((y - made.predict(x)) ** 2).mean())))

    def predict(self, x: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"]:
        z, found = (x - self.centre) / self.scale, np.full(len(x), self.mean)
        patterns, pattern = np.unique(np.isfinite(x), axis=0, return_inverse=True)
        for i, known in enumerate(patterns):
            here = np.ix_(pattern.ravel() == i, known)
            gram = self.gram[np.ix_(known, known)] + RIDGE * np.eye(known.sum())
            found[pattern.ravel() == i] += z[here] @ np.linalg.solve(gram, self.cross[known])
        return found


@dataclass(frozen=True, eq=False)
class Regression:
    """A linear regression per variable."""

    regressors: Regressors
    models: tuple[LinearRegression, ...]

    def predict(self, raw_task: RawTask, points: Points) -> Float[np.ndarray, "n dy"]:
        return self.of(self.regressors.at(raw_task, points))

    def of(self, x: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n dy"]:
        return np.stack([model.predict(x) for model in self.models], -1)

    def residuals(self, raw_task: RawTask) -> RawTask:
        """The task with the residuals of the observations; the truth stays."""
        return replace(raw_task, values=raw_task.values - self.predict(raw_task, raw_task.observed))

    @property
    def rmse(self) -> Float[np.ndarray, " dy"]:
        return np.array([model.rmse for model in self.models])

    @classmethod
    def fit(
        cls, raw_tasks: Iterable[RawTask], names: Sequence[str], regressors: Regressors
    ) -> tuple[Regression, list[tuple[RawTask, Float[np.ndarray, "n k"]]]]:
        """Fit to observations and targets of training tasks.

        Also returns the tasks with residuals in place of the values, without their context, and the
        regressors of their observations and targets.
        """
        tasks, inputs = [], []
        for raw_task in raw_tasks:
            both = (raw_task.observed, raw_task.targets)
            inputs.append([regressors.at(raw_task, points) for points in both])
            tasks.append(replace(raw_task, context={}))  # fields can be large
        if not tasks:
            raise ValueError("There are no training tasks to fit a regression to.")
        x = np.concatenate([piece for pieces in inputs for piece in pieces])
        y = np.concatenate([piece for task in tasks for piece in (task.values, task.truth)])
        models = []
        for v, name in enumerate(names):
            known = np.isfinite(y[:, v])
            if not known.any():
                raise ValueError(f"No training task has a value of {name!r} to fit a regression.")
            models.append(LinearRegression.fit(x[known], y[known, v]))
        made = cls(regressors, tuple(models))
        residuals = [
            (
                replace(task, values=task.values - made.of(a), truth=task.truth - made.of(b)),
                np.concatenate([a, b]),
            )
            for task, (a, b) in zip(tasks, inputs, strict=True)
        ]
        return made, residuals


@dataclass(frozen=True, eq=False)
class RegressionKriging(Baseline):
    """A regression, and kriging of its residuals; without `kriging` the regression alone, with its
    RMSE in training as standard deviation.
    """

    regression: Regression
    kriging: Kriging | None

    @classmethod
    def fit(
        cls,
        raw_tasks: Iterable[RawTask],
        names: Sequence[str],
        regressors: Regressors,
        *,
        drift: bool,
        observed: bool,
    ) -> RegressionKriging:
        """With `drift`, static features are a drift and distances of the residuals too: their
        coefficients differ from time to time. Unless `observed`, there is nothing to krige.
        """
        regression, residuals = Regression.fit(raw_tasks, names, regressors)
        exact = any(model.rmse <= EXACT * model.std for model in regression.models)
        if exact or not observed:
            return cls(regression, None)
        return cls(
            regression, Kriging.fit([task for task, _ in residuals[:TIMES]], names, drift=drift)
        )

    @property
    def of_readings(self) -> bool:
        return self.kriging is None

    def notes(self) -> tuple[str, ...]:
        return () if self.kriging is None else self.kriging.notes()

    def predict(self, raw_task: RawTask) -> Forecast:
        mean = self.regression.predict(raw_task, raw_task.targets)
        if self.kriging is None:
            return mean, np.broadcast_to(self.regression.rmse, mean.shape)
        residual, std = self.kriging.predict(self.regression.residuals(raw_task))
        return mean + residual, std
