"""The baselines that a model is compared with, by name, ready to predict.

Each gets the same observations as the model, task by task, and learns from the training part alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
from jaxtyping import Float

from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.errors import require_known
from gridtnp.evaluation.climatology import Climatology, Persistence
from gridtnp.evaluation.interpolation import Baseline, Bilinear, InverseDistance, Nearest, Scene
from gridtnp.evaluation.kriging import TIMES, Kriging
from gridtnp.evaluation.results import Prediction
from gridtnp.tasks.selection import Fraction, Pick
from gridtnp.tasks.specification import Setting

BASELINES = (
    *("nearest", "idw", "bilinear", "kriging", "kriging-drift", "persistence", "climatology"),
)
"""`"bilinear:source.variable"` names a field; `"kriging-drift"` uses the static features too."""
REHEARSALS = 64
"""Training times at which the errors of a baseline without a spread of its own are measured."""


@dataclass(frozen=True, eq=False)
class Rival:
    """A baseline, and the spread of its errors in training if it has none of its own."""

    baseline: Baseline
    error: Float[np.ndarray, " dy"] | None

    def predict(self, scene: Scene) -> Prediction:
        mean, std = self.baseline.predict(scene)
        if std is not None:
            return Prediction(mean, std)
        if self.error is None:
            return Prediction(mean, np.zeros(mean.shape), "none")
        return Prediction(mean, np.broadcast_to(self.error, mean.shape), "training errors")


def rival(
    name: str,
    setting: Setting,
    normaliser: Normaliser,
    test: Dataset,
    train: Dataset | None,
    picks: Mapping[str, Pick] | None,
    seed: int,
) -> Rival:
    """A baseline by name, having learned what it can from `train`."""
    bare = "bilinear" if name.startswith("bilinear:") else name
    require_known(bare, BASELINES, "A baseline must be known")

    def rehearsals() -> Iterator[Scene]:
        if train is not None:
            yield from _rehearsals(setting, normaliser, train, test.held_out, picks, seed)

    if name != "climatology" and not name.startswith("bilinear"):
        _require_observations(name, setting)
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
        scenes = islice(rehearsals(), TIMES)
        fitted = Kriging.fit(scenes, setting.target_names, drift=name == "kriging-drift")
        return Rival(fitted, None)
    if train is not None and name == "climatology":
        return Rival(Climatology(train), None)
    named = name.partition(":")[2] or None
    baseline: Baseline
    if name.startswith("bilinear"):
        baseline = Bilinear.of(test, setting, named)
    elif name == "persistence":
        baseline = Persistence(None if test.held_out else test)
    else:
        baseline = Nearest() if name == "nearest" else InverseDistance()
    return Rival(baseline, _training_error(baseline, rehearsals()))


def _rehearsals(
    setting: Setting,
    normaliser: Normaliser,
    train: Dataset,
    held_out: bool,
    picks: Mapping[str, Pick] | None,
    seed: int,
) -> Iterator[Scene]:
    """Tasks like those of the test at random training times; held-out stations are stood in for by
    a tenth of the others.
    """
    if held_out and picks is None:
        own = [n for n, of in setting.contexts.items() if of.source == setting.target_source]
        picks = dict.fromkeys(own, Fraction(0.9))
    sampler = setting.sampler(train, normaliser, picks, batch=1, seed=seed)
    times = sampler.times
    if times is not None:
        times = np.random.default_rng(seed).permutation(times)[:REHEARSALS]
    for choice in sampler.choices(times):
        yield from Scene.each(train, setting, choice)


def _training_error(baseline: Baseline, scenes: Iterator[Scene]) -> Float[np.ndarray, " dy"] | None:
    """Root-mean-square error of every variable; None if none was measured."""
    errors = [baseline.predict(scene)[0] - scene.truth for scene in scenes]
    every = np.concatenate(errors) if errors else np.zeros((0, 0))
    every = every[np.isfinite(every).all(1)]
    return np.sqrt((every**2).mean(0)) if len(every) else None


def _require_observations(name: str, setting: Setting) -> None:
    held = {
        v
        for c in setting.contexts.values()
        if c.source == setting.target_source
        for v in c.variables
    }
    missing = sorted(set(setting.target_names) - held)
    if missing:
        raise ValueError(
            f"Baseline {name!r} needs observations of what is predicted, but the model's context "
            f"{sorted(setting.contexts)} has none of {missing}; leave it out."
        )
