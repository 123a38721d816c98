"""The baselines that a model is compared with, by name, ready to predict.

Each gets the same observations as the model, task by task, and learns from the training part alone.
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
"""`"bilinear:source.variable"` names a field; `"kriging-drift"` uses the static features too."""
TRAINING_TASKS = 64
"""Training times at which the errors of a baseline without a spread of its own are measured."""


@dataclass(frozen=True, eq=False)
class FittedBaseline:
    """A baseline, and the spread of its errors in training if it has none of its own."""

    baseline: Baseline
    error: Float[np.ndarray, " dy"] | None

    def predict(self, raw_task: RawTask) -> Prediction:
        mean, std = self.baseline.predict(raw_task)
        if std is not None:
            return Prediction(mean, std)
        if self.error is None:
            return Prediction(mean, np.zeros(mean.shape), "none")
        return Prediction(mean, np.broadcast_to(self.error, mean.shape), "training errors")


def fit_baseline(
    name: str,
    model: ModelContents,
    test: Dataset,
    train: Dataset | None,
    selection: Mapping[str, Selection] | None,
    seed: int,
) -> FittedBaseline:
    """A baseline by name, having learned what it can from `train`."""
    spec = model.spec
    bare = "bilinear" if name.startswith("bilinear:") else name
    require_known(bare, BASELINES, "baseline")

    def training_tasks() -> Iterator[RawTask]:
        if train is not None:
            yield from _training_tasks(model, train, test.held_out, selection, seed)

    if name != "climatology" and not name.startswith("bilinear"):
        _require_observations(name, spec)
    if train is None and name in ("climatology", "kriging", "kriging-drift"):
        raise ValueError(
            f"Baseline {name!r} learns from training data, but part {test.part!r} was not made by "
            "split; give them: evaluate(test, ..., train=train)."
        )
    if name == "kriging-drift" and not test.statics:
        raise ValueError(
            "Kriging with a drift needs static features such as elevation, but the data have none; "
            "use 'kriging'."
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
    return FittedBaseline(baseline, _training_error(baseline, training_tasks()))


def _training_tasks(
    model: ModelContents,
    train: Dataset,
    held_out: bool,
    selection: Mapping[str, Selection] | None,
    seed: int,
) -> Iterator[RawTask]:
    """Tasks like those of the test at random training times; held-out stations are stood in for by
    a tenth of the others.
    """
    spec = model.spec
    if held_out and selection is None:
        own = [n for n, of in spec.contexts.items() if of.source == spec.target_source]
        selection = dict.fromkeys(own, Fraction(0.9))
    sampler = model.sampler(train, selection, batch=1, seed=seed)
    times = sampler.times
    if times is not None:
        times = np.random.default_rng(seed).permutation(times)[:TRAINING_TASKS]
    for raw in sampler.raw_batches(times):
        yield from RawTask.each(train, spec, raw)


def _training_error(
    baseline: Baseline, raw_tasks: Iterator[RawTask]
) -> Float[np.ndarray, " dy"] | None:
    """Root-mean-square error of every variable; None if none was measured."""
    errors = [baseline.predict(raw_task)[0] - raw_task.truth for raw_task in raw_tasks]
    every = np.concatenate(errors) if errors else np.zeros((0, 0))
    every = every[np.isfinite(every).all(1)]
    return np.sqrt((every**2).mean(0)) if len(every) else None


def _require_observations(name: str, spec: TaskSpec) -> None:
    held = {
        v for c in spec.contexts.values() if c.source == spec.target_source for v in c.variables
    }
    missing = sorted(set(spec.target_names) - held)
    if missing:
        raise ValueError(
            f"Baseline {name!r} needs observations of what is predicted, but the model's context "
            f"{sorted(spec.contexts)} has none of {missing}; leave it out."
        )
