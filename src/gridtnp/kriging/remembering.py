"""Learning what persists: deviations of places from the regression, from all training tasks.

Given the process of single tasks, generalised least squares estimates the deviation of every place.
The process is then fitted again to what they leave. Tasks that are near each other in time share
their weather and may count as fewer: the validation part decides, also whether anything is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gridtnp.kriging.fitting import fit, plausible, restore, trained, values_of
from gridtnp.kriging.gaussian_process import Inputs, KrigingProcess
from gridtnp.kriging.persistent import PersistentField

COUNTED = (1.0, 0.2)
"""Candidates for how many independent tasks a training task counts as."""
AMPLITUDE, OWN = 0.3, 0.1
"""Standard deviations that the search starts from, of the field and of effects of single places."""
SEARCH = 40
"""Iterations of the search."""
WEAK = 1e-3
"""Penalty that keeps hyper-parameters that the data do not determine near their start."""
RIDGE = 1e-8
"""Of the information about all places, relative to the largest."""
DIGITS = 1e6
"""Coordinates that agree after rounding to this fraction of a unit are of one place."""


@dataclass(frozen=True, eq=False)
class Tasks:
    """Observations of training tasks; `number` is that of the place of each, -1 for none."""

    inputs: Inputs
    y: Float[Tensor, "batch n"]
    mask: Bool[Tensor, "batch n"]
    places: Float[Tensor, "s d"]
    number: Int[Tensor, "batch n"]

    @classmethod
    def of(cls, process: KrigingProcess, inputs: Inputs, y: Tensor, mask: Tensor) -> Tasks:
        """The places that were observed most often, as many as the process can keep."""
        assert process.persistent is not None
        x = process.coordinates(inputs)
        rounded = (x[mask] * DIGITS).round()
        _, inverse, counts = rounded.unique(dim=0, return_inverse=True, return_counts=True)
        most = counts.argsort(descending=True, stable=True)[: len(process.persistent.used)]
        rank = torch.full_like(counts, -1)
        rank[most] = torch.arange(len(most), device=rank.device)
        number = torch.full(y.shape, -1, device=y.device)
        number[mask] = rank[inverse]
        places = x.new_zeros(len(most), x.shape[-1])
        places[number[number >= 0]] = x[number >= 0]
        return cls(inputs, y, mask, places, number)

    def rest(self, process: KrigingProcess) -> Float[Tensor, "batch n"]:
        """What the deviations of their places, as far as they are known, leave of observations."""
        assert process.persistent is not None
        known = process.persistent.at(
            process.coordinates(self.inputs), process.persistent.posterior()
        )
        return self.y - known.mean


@torch.no_grad()
def remember(
    process: KrigingProcess, tasks: Tasks, scores: Callable[[], Float[Tensor, " places"]]
) -> float:
    """Learn what persists, if that lowers the mean score of places.

    Returns how many independent tasks a training task counts as, 0 if nothing is kept.
    """
    best, kept, counted = scores().mean(), values_of(process), 0.0
    start = kept
    for count in COUNTED:
        restore(process, start)
        learn(process, tasks, count)
        fit(process, tasks.inputs, tasks.rest(process), tasks.mask)
        learn(process, tasks, count)
        if (found := scores().mean()) < best:
            best, kept, counted = found, values_of(process), count
    restore(process, kept)
    return counted


@torch.no_grad()
def learn(process: KrigingProcess, tasks: Tasks, count: float) -> None:
    """Estimate what persists, given the process of single tasks."""
    field = process.persistent
    assert field is not None
    value, error = _estimates(process, tasks, count)
    n = len(value)
    for buffer in (field.places, field.value, field.error, field.used):
        buffer.zero_()
    field.places[:n], field.value[:n], field.error[:n, :n] = tasks.places, value, error
    field.used[:n] = 1.0
    _maximise(field, process, tasks.places, value, error)


def _estimates(process: KrigingProcess, tasks: Tasks, count: float) -> tuple[Tensor, Tensor]:
    """Generalised least squares: the deviation of every place, and the covariance of the errors."""
    rest = tasks.rest(process)  # without it, a place that deviates would be an outlier
    mask = plausible(process, tasks.inputs, rest, tasks.mask) & (tasks.number >= 0)
    given = process.condition(tasks.inputs, tasks.y, mask)
    used = mask[:, :, None] & mask[:, None]
    inverse = torch.cholesky_inverse(given.factor)
    rows, columns = (
        v.expand(inverse.shape)[used] for v in (tasks.number[:, :, None], tasks.number[:, None])
    )
    size = len(tasks.places)
    information = inverse.new_zeros(size, size)
    information.index_put_((rows, columns), inverse[used], accumulate=True)
    sums = inverse.new_zeros(size)
    sums.index_put_((tasks.number[mask],), given.weights[mask], accumulate=True)
    diagonal = information.diagonal()
    diagonal += RIDGE * diagonal.amax()
    factor = torch.linalg.cholesky(information)
    value = torch.cholesky_solve(sums[:, None], factor)[:, 0]
    return value, torch.cholesky_inverse(factor) / count


def _maximise(
    field: PersistentField, process: KrigingProcess, places: Tensor, value: Tensor, error: Tensor
) -> None:
    """Fit the covariance of the deviations to their estimates, by maximum likelihood."""
    dimensions = places.shape[-1] - len(process.feature_length)
    field.amplitude.fill_(AMPLITUDE).log_()
    field.own.fill_(OWN).log_()
    lengths = torch.cat([process.length.expand(dimensions), process.feature_length])
    field.length.copy_(lengths)
    parameters = field.hyper_parameters()
    start = [p.clone() for p in parameters]
    search = torch.optim.LBFGS(parameters, max_iter=SEARCH, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        x = field.scaled(places)
        factor = torch.linalg.cholesky(field.kernel(x, x) + error)
        fitted = torch.linalg.solve_triangular(factor, value[:, None], upper=False)
        total = factor.diagonal().log().sum() + 0.5 * fitted.square().sum()
        pulls = ((p - s).square().sum() for p, s in zip(parameters, start, strict=True))
        total = total / len(value) + WEAK * sum(pulls)
        total.backward()
        return total

    with torch.enable_grad(), trained(parameters):
        search.step(loss)
