"""Fitting a Gaussian process: maximum likelihood, then a deformation of its covariance.

Maximum likelihood resists outliers: observations that all others contradict are left out, if that
predicts better. The deformation maximises the likelihood too. With few stations or times it would
learn them by heart, so its fit stops where validation scores are best, which may be at once. Then
all other hyper-parameters are fitted again, given the deformation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gridtnp.kriging.gaussian_process import (
    CONSTANT,
    JITTER,
    Inputs,
    KrigingProcess,
    Posterior,
    crps,
)

RIDGE = 1e-3
"""Penalty of the coefficients of normalised regressors."""
LIKELIHOOD = 16
"""Tasks whose likelihood is maximised; a deformation is fitted to all."""
SEARCH, REFINEMENT = 30, 10
"""Iterations of the maximum-likelihood search on some of the observations, and on all of them."""
FEW = (8, 100)
"""Most tasks, and observations of each, for the first search and for a step of the deformation."""
WEAK = 1e-3
"""Penalty that keeps hyper-parameters that the data do not determine near their start."""
TOLERATED = 4.0
"""Standardised leave-one-out errors up to this are not outliers, where there are many."""
REFITS = 3
"""Most times that hyper-parameters are fitted again, without outliers."""
TRIMMED = 5.0
"""Observations with larger standardised leave-one-out errors are not fitted to."""
GAIN = 0.01
"""Fraction of the CRPS that leaving outliers out, or a deformation, must save."""
PSEUDO_COUNTS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, CONSTANT)
"""Candidates for the pseudo-count of the local spread."""
STEPS, WARM_UP, SCORED = 240, 20, 40
"""Steps of the deformation's fit; of increasing rate at its start; from one score to the next."""
RATE = 3e-3
"""Largest learning rate of the deformation."""
STIFFNESS = 0.1
"""Penalty of the deformation's mean squared output."""


@torch.no_grad()
def fit(
    process: KrigingProcess,
    inputs: Inputs,
    y: Float[Tensor, "batch n"],
    mask: Bool[Tensor, "batch n"],
) -> None:
    """Maximise the marginal likelihood (empirical Bayes), as kriging does.

    If there are outliers, also without them, which is kept if it predicts every observation better
    from all others.
    """
    inputs, y, mask = inputs[:LIKELIHOOD,], y[:LIKELIHOOD], mask[:LIKELIHOOD]
    process.pseudo_count.fill_(1.0)
    start, everything = values_of(process), mask
    _maximise(process, inputs, y, mask)
    ordinary = values_of(process)
    score = _cross_validated(process, process.condition_robustly(inputs, y, everything))
    for _ in range(REFITS):
        fewer = plausible(process, inputs, y, mask)
        if torch.equal(fewer, mask):
            break
        mask = fewer
        restore(process, start)  # outliers misled the search
        _maximise(process, inputs, y, mask)
    process.tolerance.fill_(TOLERATED)
    robust = _cross_validated(process, process.condition_robustly(inputs, y, everything))
    if not robust < (1 - GAIN) * score:
        restore(process, ordinary)
    _fit_local_spread(process, inputs, y, everything)


@torch.no_grad()
def deform(
    process: KrigingProcess,
    inputs: Inputs,
    y: Float[Tensor, "batch n"],
    mask: Bool[Tensor, "batch n"],
    scores: Callable[[], Float[Tensor, " places"]],
) -> float:
    """Deform the covariance of a fitted process, as far as that lowers the mean score of places.

    What it saves must be more than chance explains: the standard error over the places. Returns the
    fraction of the mean score that it saves, which is 0 if nothing was deformed.
    """
    everything, mask = mask, plausible(process, inputs, y, mask)
    generator = torch.Generator().manual_seed(0)
    before = best = scores()
    if len(before) < 2:
        return 0.0
    kept = start = values_of(process)
    process.deformation.start(process.coordinates(inputs)[mask], generator)
    parameters = [*_hyper_parameters(process), *process.deformation.weights()]
    optimiser = torch.optim.Adam(parameters, lr=RATE)
    for step in range(1, STEPS + 1):
        for group in optimiser.param_groups:
            cosine = 0.5 * (1 + math.cos(math.pi * step / STEPS))
            group["lr"] = RATE * min(1, step / WARM_UP) * cosine
        some = _some(generator, *y.shape)
        _ascend(process, optimiser, inputs[some], y[some], mask[some])
        if step % SCORED == 0 and (found := scores()).mean() < best.mean():
            best, kept = found, values_of(process)
    restore(process, kept)
    if best is before:
        return 0.0
    fit(process, inputs, y, everything)  # the others, given the deformation
    if (found := scores()).mean() < best.mean():
        best, kept = found, values_of(process)
    saved = before - best
    if saved.mean() <= max(GAIN * before.mean(), saved.std() / len(saved) ** 0.5):
        best, kept = before, start
    restore(process, kept)
    return 1 - (best.mean() / before.mean()).item()


def plausible(process: KrigingProcess, inputs: Inputs, y: Tensor, mask: Tensor) -> Tensor:
    """The mask without observations that all others contradict."""
    error, std = process.leave_one_out(process.condition(inputs, y, mask))
    return mask & (error.abs() <= TRIMMED * std)


def _some(generator: torch.Generator, *shape: int) -> tuple[Tensor, Tensor]:
    """Random rows and columns, as an index."""
    drawn = [
        torch.randperm(n, generator=generator)[:most] for n, most in zip(shape, FEW, strict=True)
    ]
    return drawn[0][:, None], drawn[1]


def _ascend(
    process: KrigingProcess,
    optimiser: torch.optim.Optimizer,
    inputs: Inputs,
    y: Tensor,
    mask: Tensor,
) -> None:
    """A step towards a larger likelihood with a small deformation."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    with torch.enable_grad(), trained(parameters):
        optimiser.zero_grad()
        loss = -process.log_likelihood(process.condition(inputs, y, mask)) / mask.sum().clamp_min(1)
        moved = process.deformation.outputs(process.coordinates(inputs))[mask]
        loss = loss + STIFFNESS * moved.square().sum() / max(moved.numel(), 1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()


@contextmanager
def trained(buffers: Sequence[Tensor]) -> Iterator[None]:
    """Buffers have gradients within this block."""
    for p in buffers:
        p.requires_grad_(True)
    try:
        yield
    finally:
        for p in buffers:
            p.requires_grad_(False)
            p.grad = None


def _fit_local_spread(process: KrigingProcess, inputs: Inputs, y: Tensor, mask: Tensor) -> None:
    """Choose the pseudo-count with the lowest cross-validated CRPS.

    Among several times, what is predicted from other times at the same place says little about
    other places or a forecast: the spread stays constant.
    """
    if process.timed:
        process.pseudo_count.fill_(CONSTANT)
        return
    given, scores = process.condition_robustly(inputs, y, mask), []
    for count in PSEUDO_COUNTS:
        process.pseudo_count.fill_(count)
        scores.append(_cross_validated(process, given))
    process.pseudo_count.fill_(PSEUDO_COUNTS[scores.index(min(scores))])


def values_of(process: KrigingProcess) -> list[Tensor]:
    """All hyper-parameters, to be restored."""
    return [p.clone() for p in process.buffers()]


def restore(process: KrigingProcess, values: list[Tensor]) -> None:
    for p, value in zip(process.buffers(), values, strict=True):
        p.copy_(value)


def _hyper_parameters(process: KrigingProcess) -> list[Tensor]:
    """Those that the likelihood determines, without the deformation."""
    others = [process.tolerance, process.pseudo_count, *process.deformation.buffers()]
    others += [] if process.persistent is None else process.persistent.buffers()
    return [p for p in process.buffers() if not any(p is other for other in others)]


def _cross_validated(process: KrigingProcess, given: Posterior) -> float:
    """Mean CRPS of predicting every observation from all others."""
    error, std = process.leave_one_out(given)
    std = (std.square() - given.excess).clamp_min(JITTER).sqrt()  # no target is an outlier
    std = std * process.local_spread(given)
    return crps(error, std)[given.mask].mean().item()


def _maximise(process: KrigingProcess, inputs: Inputs, y: Tensor, mask: Tensor) -> None:
    """Search on some of the observations first, which is many times as fast."""
    _regress(process, inputs, y, mask)
    start = [p.clone() for p in _hyper_parameters(process)]
    some = tuple(slice(0, number) for number in FEW)
    if y.shape != y[some].shape:
        _search(process, inputs[some], y[some], mask[some], start, SEARCH)
    iterations = REFINEMENT if y.shape != y[some].shape else SEARCH
    _search(process, inputs, y, mask, start, iterations)


def _search(
    process: KrigingProcess,
    inputs: Inputs,
    y: Tensor,
    mask: Tensor,
    start: list[Tensor],
    iterations: int,
) -> None:
    parameters = _hyper_parameters(process)
    options = {"max_iter": iterations, "line_search_fn": "strong_wolfe"}
    search = torch.optim.LBFGS(parameters, **options)

    def loss() -> Tensor:
        search.zero_grad()
        value = -process.log_likelihood(process.condition(inputs, y, mask))
        value = value / mask.sum().clamp_min(1)
        value = value + WEAK * sum(
            (p - s).square().sum() for p, s in zip(parameters, start, strict=True)
        )
        value.backward()
        return value

    with torch.enable_grad(), trained(parameters):
        search.step(loss)


def _regress(process: KrigingProcess, inputs: Inputs, y: Tensor, mask: Tensor) -> None:
    """Start from ridge regression."""
    x, target = inputs.regressors[mask], y[mask]
    x = torch.cat([x, torch.ones_like(target)[:, None]], -1)
    ridge = RIDGE * max(len(x), 1) * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    found = torch.linalg.solve(x.mT @ x + ridge, x.mT @ target)
    process.coefficients.copy_(found[:-1])
    process.constant.copy_(found[-1])
