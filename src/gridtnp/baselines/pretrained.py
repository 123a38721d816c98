"""The model in the box as a baseline: each time interpolated from its own observations, untrained.

Static features and gridded variables of the context are its covariates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from gridtnp.amortised.predictor import Interpolation, mean_and_interval_std
from gridtnp.baselines.interpolation import Baseline, Forecast, Points, RawTask, gridded_variables
from gridtnp.baselines.regression import Regressors
from gridtnp.data.dataset import Dataset
from gridtnp.interpolation.places import Sphere
from gridtnp.tasks.specification import TaskSpec

FEWEST = 3
"""Observations that are interpolated; with fewer, nothing is known."""


@dataclass(frozen=True, eq=False)
class Pretrained(Baseline):
    """Interpolates the observations at the time of a task, or all if there are none at it."""

    regressors: Regressors

    @classmethod
    def of(cls, data: Dataset, spec: TaskSpec) -> Pretrained:
        fields = {
            name: field
            for name, field in gridded_variables(data, spec).items()
            if field.source != spec.target_source
        }
        return cls(Regressors((*spec.statics, *fields), (), tuple(fields.values())))

    def predict(self, raw_task: RawTask) -> Forecast:
        mean, std = (np.full(raw_task.truth.shape, np.nan) for _ in range(2))
        observed, at = raw_task.observed, raw_task.targets
        now = np.ones(len(observed.lat), bool)
        if observed.time is not None and raw_task.time is not None:
            same = observed.time == raw_task.time
            now = same if same.sum() >= FEWEST else now
        here, there = (self.regressors.at(raw_task, points) for points in (observed, at))
        useful = np.isfinite(here[now]).mean(0) > 0.5
        here, there = here[:, useful], there[:, useful]
        answered = np.isfinite(there).all(1)
        for v in range(raw_task.truth.shape[1]):
            rows = now & np.isfinite(raw_task.values[:, v]) & np.isfinite(here).all(1)
            values = raw_task.values[rows, v]
            if rows.sum() < FEWEST or np.ptp(values) == 0 or not answered.any():
                continue
            sphere = Sphere.around(observed.lat[rows], observed.lon[rows])
            found = Interpolation.of(
                _tensor(_places(sphere, observed)[rows]),
                _tensor(values),
                torch.ones(1, len(values), dtype=torch.bool),
                _tensor(here[rows]),
            )
            x, covariates = _tensor(_places(sphere, at)[answered]), _tensor(there[answered])
            for piece, moments in found.at(x, covariates, mean_and_interval_std):
                part = np.flatnonzero(answered)[piece]
                mean[part, v], std[part, v] = (moment[0].numpy() for moment in moments)
        return mean, std


def _places(sphere: Sphere, points: Points) -> Float[np.ndarray, "n 3"]:
    return sphere.places(points.lat, points.lon)


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.float64))[None]
