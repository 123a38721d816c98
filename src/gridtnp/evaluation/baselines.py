"""Baselines by name, fitted to the training part.

In each task they get the same observations as the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
from jaxtyping import Float

from gridtnp.contents import ModelContents
from gridtnp.data.dataset import Dataset
from gridtnp.errors import require_known
from gridtnp.evaluation.climatology import Climatology, Persistence
from gridtnp.evaluation.interpolation import Baseline, Bilinear, InverseDistance, Nearest, RawTask
from gridtnp.evaluation.kriging import TIMES, Kriging
from gridtnp.evaluation.results import Prediction
from gridtnp.tasks.selection import Fraction, Selection
from gridtnp.tasks.specification import TaskSpec

BASELINES = (
    *("nearest", "idw", "bilinear", "kriging", "kriging-drift", "persistence", "climatology"),
)
"""`"bilinear:source.variable"` names a gridded variable; `"kriging-drift"` uses static features."""
TRAINING_TASKS = 64
"""Training times at which the RMSE of a baseline without standard deviations is measured."""


@dataclass(frozen=True, eq=False)
class FittedBaseline:
    """A baseline, and its RMSE in training if it predicts no standard deviations."""

    baseline: Baseline
    rmse: Float[np.ndarray, " dy"] | None

    def predict(self, raw_task: RawTask) -> Prediction:
        mean, std = self.baseline.predict(raw_task)
        if std is not None:
            return Prediction(mean, std)
        if self.rmse is None:
            return Prediction(mean, np.zeros(mean.shape), "none")
        return Prediction(mean, np.broadcast_to(self.rmse, mean.shape), "training errors")


def fit_baseline(
    name: str,
    model: ModelContents,
    test: Dataset,
    train: Dataset | None,
    selection: Mapping[str, Selection] | None,
    seed: int,
) -> FittedBaseline:
    """Fit a baseline to `train`, as far as it needs training data."""
    spec = model.spec
    require_known("bilinear" if name.startswith("bilinear:") else name, BASELINES, "baseline")

    def training_tasks() -> Iterator[RawTask]:
        if train is not None:
            yield from _training_tasks(model, train, test.held_out, selection, seed)

    if name != "climatology" and not name.startswith("bilinear"):
        _require_observations(name, spec)
    if train is None and name in ("climatology", "kriging", "kriging-drift"):
        raise ValueError(
            f"Baseline {name!r} needs training data, but part {test.part!r} was not made by split; "
            "give them: evaluate(test, ..., train=train)."
        )
    if name == "kriging-drift" and not test.statics:
        raise ValueError(
            "Baseline 'kriging-drift' needs static features such as elevation, but the data have "
            "none; use 'kriging'."
        )
    if name.startswith("kriging"):
        raw_tasks = islice(training_tasks(), TIMES)
        fitted = Kriging.fit(raw_tasks, spec.target_names, drift=name == "kriging-drift")
        return FittedBaseline(fitted, None)
    if train is not None and name == "climatology":
        return FittedBaseline(Climatology(train), None)
    named = name.partition(":")[2] or None
    baseline: Baseline
    if name.startswith("bilinear"):
        baseline = Bilinear.of(test, spec, named)
    elif name == "persistence":
        baseline = Persistence(None if test.held_out else test)
    else:
        baseline = Nearest() if name == "nearest" else InverseDistance()
    return FittedBaseline(baseline, _training_rmse(baseline, training_tasks()))


def _training_tasks(
    model: ModelContents,
    train: Dataset,
    held_out: bool,
    selection: Mapping[str, Selection] | None,
    seed: int,
) -> Iterator[RawTask]:
    """Tasks at random training times; if the test is at held-out stations, with a tenth of the
    training stations as targets in their place.
    """
    spec = model.spec
    if held_out and selection is None:
        own = [name for name, of in spec.contexts.items() if of.source == spec.target_source]
        selection = dict.fromkeys(own, Fraction(0.9))
    sampler = model.sampler(train, selection, batch=1, seed=seed)
    times = sampler.times
    if times is not None:
        times = np.random.default_rng(seed).permutation(times)[:TRAINING_TASKS]
    for raw in sampler.raw_batches(times):
        yield from RawTask.each(train, spec, raw)


def _training_rmse(
    baseline: Baseline, raw_tasks: Iterator[RawTask]
) -> Float[np.ndarray, " dy"] | None:
    """Root-mean-square error of every variable; None without training tasks."""
    pieces = [baseline.predict(raw_task)[0] - raw_task.truth for raw_task in raw_tasks]
    errors = np.concatenate(pieces) if pieces else np.zeros((0, 0))
    errors = errors[np.isfinite(errors).all(1)]
    return np.sqrt((errors**2).mean(0)) if len(errors) else None


def _require_observations(name: str, spec: TaskSpec) -> None:
    held = {
        v for c in spec.contexts.values() if c.source == spec.target_source for v in c.variables
    }
    missing = sorted(set(spec.target_names) - held)
    if missing:
        raise ValueError(
            f"Baseline {name!r} needs observations of {missing}, but the model's context "
            f"{sorted(spec.contexts)} has none; leave it out."
        )
