"""Fitting what the network corrects, and calibrating the result."""

from __future__ import annotations

from collections.abc import Sequence

from gridtnp.contents import ModelContents
from gridtnp.network.kriging import KrigedNetwork
from gridtnp.task import Task
from gridtnp.tasks.sampling import Sampler

TASKS = 16
"""Training tasks that hyper-parameters are fitted to."""


def fit_prior(model: ModelContents, sampler: Sampler) -> None:
    """Fit the prior of a network, if it has one, to training tasks."""
    if isinstance(model.network, KrigedNetwork):
        model.network.fit_prior([sampler.draw(i) for i in range(-(-TASKS // sampler.batch))])


def calibrate(model: ModelContents, validation: Sequence[Task]) -> None:
    """Calibrate the standard deviations of a network with a prior on validation tasks."""
    if isinstance(model.network, KrigedNetwork) and validation:
        with model.inference():
            model.network.calibrate([task.to(model.device) for task in validation])
