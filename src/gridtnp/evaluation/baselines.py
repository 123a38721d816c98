"""Baselines by name, fitted to the training part.

In each task they get the same observations as the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
from jaxtyping import Float

from gridtnp.baselines.boosting import Boosting
from gridtnp.baselines.climatology import (
    Calendar,
    Climatology,
    EmpiricalClimatology,
    Persistence,
)
from gridtnp.baselines.interpolation import (
    Baseline,
    Bilinear,
    DistributionBaseline,
    InverseDistance,
    Nearest,
    RawTask,
)
from gridtnp.baselines.kriging import TIMES, Kriging
from gridtnp.baselines.normal_scores import NormalScoreKriging
from gridtnp.baselines.pretrained import Pretrained
from gridtnp.baselines.regression import RegressionKriging, Regressors
from gridtnp.baselines.vecchia import Vecchia
from gridtnp.data.dataset import Dataset
from gridtnp.errors import require_known
from gridtnp.evaluation.results import Prediction
from gridtnp.grid import Grid
from gridtnp.sources.times import duration
from gridtnp.tasks.selection import Fraction, Selection
from gridtnp.tasks.specification import TaskSpec

BASELINES = (
    *("nearest", "idw", "bilinear", "kriging", "kriging-drift", "regression-kriging"),
    *("gpboost", "boosting", "persistence", "climatology", "pretrained"),
    *("normal-scores", "empirical-climatology"),
)
"""`"bilinear:source.variable"` names a gridded variable; `"kriging-drift"` uses static features."""
NEED_TRAINING = (
    *("kriging", "kriging-drift", "regression-kriging", "gpboost", "boosting", "climatology"),
    *("normal-scores", "empirical-climatology"),
)
"""Baselines that are fitted."""
PREDICT_SPREAD = (*NEED_TRAINING, "pretrained")
"""Baselines with standard deviations; the others have the RMSE in training."""
NEED_OBSERVATIONS = (
    *("nearest", "idw", "kriging", "kriging-drift", "gpboost", "boosting", "persistence"),
    "pretrained",
)
"""Baselines that need the target variables in the context."""
TRAINING_TASKS = 64
"""Training times that baselines are fitted to."""


@dataclass(frozen=True, eq=False)
class FittedBaseline:
    """A baseline, and its RMSE in training if it predicts no standard deviations."""

    baseline: Baseline
    rmse: Float[np.ndarray, " dy"] | None

    def predict(self, raw_task: RawTask) -> Prediction:
        if isinstance(self.baseline, DistributionBaseline):
            return Prediction.of(self.baseline.marginals(raw_task))
        mean, std = self.baseline.predict(raw_task)
        if std is not None:
            error = None if self.baseline.of_readings else raw_task.truth_error
            return Prediction(mean, std if error is None else np.hypot(std, error))
        if self.rmse is None:
            return Prediction(mean, np.zeros(mean.shape), "none")
        return Prediction(mean, np.broadcast_to(self.rmse, mean.shape), "training errors")


@dataclass(frozen=True, eq=False)
class BaselineTraining:
    """What baselines are fitted to: tasks of a model's `spec` and `grid` from `train`.

    If the test is at `held_out` stations, a tenth of the training stations, at least one, are
    targets.
    """

    spec: TaskSpec
    train: Dataset | None
    grid: Grid | None = None
    held_out: bool = True
    selection: Mapping[str, Selection] | None = None
    seed: int = 0

    def tasks(self) -> Iterator[RawTask]:
        """Tasks at random training times."""
        spec, selection = self.spec, self.selection
        if self.train is None:
            return
        if self.held_out and selection is None:
            own = [name for name, of in spec.contexts.items() if of.source == spec.target_source]
            selection = dict.fromkeys(own, Fraction(0.9, spare=True))
        sampler = spec.sampler(self.train, None, selection, grid=self.grid, batch=1, seed=self.seed)
        times = sampler.times
        if times is not None:
            times = np.random.default_rng(self.seed).permutation(times)[:TRAINING_TASKS]
        for raw in sampler.raw_batches(times):
            yield from RawTask.each(self.train, spec, raw)

    @property
    def data(self) -> Dataset:
        """The training data, which are known to be there."""
        assert self.train is not None
        return self.train


def fit_baseline(name: str, training: BaselineTraining, test: Dataset) -> FittedBaseline:
    """Fit a baseline to training tasks, as far as it needs them."""
    kind, _, named = name.partition(":")
    require_known(kind if kind == "bilinear" else name, BASELINES, "baseline")
    spec = training.spec
    if name in NEED_OBSERVATIONS:
        _require_observations(name, spec)
    if name in NEED_TRAINING and training.train is None:
        raise ValueError(
            f"Baseline {name!r} needs training data, but part {test.part!r} was not made by split; "
            "give them: evaluate(test, ..., train=train)."
        )
    if name == "kriging-drift" and not spec.statics:
        raise ValueError(
            "Baseline 'kriging-drift' needs static features such as elevation, but the data have "
            "none; use 'kriging'."
        )
    baseline = _fit(kind, training, test, named or None)
    return FittedBaseline(
        baseline, None if name in PREDICT_SPREAD else _training_rmse(baseline, training.tasks())
    )


def _fit(kind: str, training: BaselineTraining, test: Dataset, named: str | None) -> Baseline:
    spec = training.spec
    match kind:
        case "nearest":
            return Nearest()
        case "idw":
            return InverseDistance()
        case "bilinear":
            return Bilinear.of(test, spec, named)
        case "persistence":
            return Persistence(None if test.held_out else test)
        case "pretrained":
            return Pretrained.of(test, spec)
        case "climatology":
            return Climatology(training.data)
        case "empirical-climatology":
            return EmpiricalClimatology(training.data)
        case "regression-kriging" | "normal-scores":
            options: dict[str, bool] = {
                "drift": bool(spec.statics),
                "observed": len(_unobserved(spec)) < len(spec.target),
            }
            given = spec.target_names, Regressors.of(training.data, spec)
            if kind == "regression-kriging":
                return RegressionKriging.fit(training.tasks(), *given, **options)
            values = _training_values(training.data)
            return NormalScoreKriging.fit(training.tasks(), values, *given, **options)
        case "gpboost":
            regressors = Regressors.of(training.data, spec)
            return Vecchia.fit(training.tasks(), spec.target_names, regressors)
        case "boosting":
            regressors = Regressors.of(training.data, spec)
            return Boosting.fit(
                training.tasks(), spec.target_names, regressors, held_out=training.held_out
            )
        case _:
            tasks = islice(training.tasks(), TIMES)
            return Kriging.fit(tasks, spec.target_names, drift=kind == "kriging-drift")


def _training_values(train: Dataset) -> list[Float[np.ndarray, " n"]]:
    """The values of every target variable in training."""
    found = [values for _, values in Calendar.of(train).training(train)]
    return list(np.concatenate(found).T)


def _training_rmse(
    baseline: Baseline, raw_tasks: Iterator[RawTask]
) -> Float[np.ndarray, " dy"] | None:
    """Root-mean-square error of every variable; None without training tasks."""
    pieces = [baseline.predict(raw_task)[0] - raw_task.truth for raw_task in raw_tasks]
    errors = np.concatenate(pieces) if pieces else np.zeros((0, 0))
    errors = errors[np.isfinite(errors).all(1)]
    return np.sqrt((errors**2).mean(0)) if len(errors) else None


def _unobserved(spec: TaskSpec) -> list[str]:
    """Target variables that are never in the context."""
    held = {
        v for c in spec.contexts.values() if c.source == spec.target_source for v in c.variables
    }
    return sorted(set(spec.target_names) - held)


def _require_observations(name: str, spec: TaskSpec) -> None:
    missing = _unobserved(spec)
    if missing:
        raise ValueError(
            f"Baseline {name!r} needs observations of {missing}, but the model's context "
            f"{sorted(spec.contexts)} has none; leave it out."
        )


def default_baselines(
    spec: TaskSpec, data: Dataset, *, trained: bool = True, gaussian: bool = True
) -> tuple[str, ...]:
    """The strongest baselines that apply: those that `evaluate` uses unless told otherwise.

    Without training data (`trained`), those that need none. Unless all targets are `gaussian`, they
    are distributions that need not be.
    """
    observed, names = not _unobserved(spec), []
    if trained:
        names.append("regression-kriging")
        if not gaussian:
            names += ["normal-scores", "empirical-climatology"]
        elif observed:
            names += [*("kriging-drift",) * bool(spec.statics), "kriging"]
        else:
            names.append("climatology")
    elif observed:
        names += ["nearest", "idw"]
    try:
        Bilinear.of(data, spec)
        names.append("bilinear")
    except ValueError:  # no gridded variable of the target's name and units
        pass
    if observed and duration(spec.lead):
        names.append("persistence")
    return tuple(names)
