"""Fitting what the network corrects, and calibrating the result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Normal

from gridtnp.contents import ModelContents
from gridtnp.distributions.marginals import of_readings
from gridtnp.kriging.gaussian_process import crps
from gridtnp.network.kriging import LIKELIHOOD, KrigedNetwork
from gridtnp.task import Task
from gridtnp.tasks.sampling import Sampler

TASKS, MORE_TASKS = LIKELIHOOD, 96
"""Training tasks that hyper-parameters are fitted to, without and with a validation part."""
CALIBRATED = 100
"""Fewest targets to calibrate on."""
TRUSTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Candidates for how much of the network's correction is kept."""
SHARES, WORTH = (0.25, 0.5, 0.75, 1.0), 0.01
"""Candidates for the share of a pretrained process, and the part of the CRPS that it must save."""
SPREADS = (0.8, 1.5)
"""Limits of the factor that calibrates standard deviations."""
WITHIN_90 = 1.6448536
"""Standard deviations on each side of the mean that hold 90 % of a normal distribution."""


def fit_prior(model: ModelContents, sampler: Sampler, validation: Sequence[Task]) -> str:
    """Fit the prior of a network, if it has one, to training tasks; returns what was chosen.

    The validation tasks decide how far its covariance differs from place to place.
    """
    if not isinstance(model.network, KrigedNetwork):
        return ""
    batches = -(-(MORE_TASKS if validation else TASKS) // sampler.batch)
    saved = model.network.fit_prior((sampler.draw(i) for i in range(batches)), validation)
    chosen = [
        f"{name}: covariance that differs from place to place, validation CRPS -{share:.0%}"
        for name, share in zip(model.spec.target, saved, strict=True)
        if share > 0
    ]
    return f"kriging: {'; '.join(chosen)}" if chosen else ""


def calibrate(model: ModelContents, validation: Sequence[Task]) -> str:
    """Calibrate a network with a prior on validation tasks; returns what was chosen."""
    network = model.network
    if not isinstance(network, KrigedNetwork) or not validation:
        return ""
    with model.inference():
        calibrate_network(network, [task.to(model.device) for task in validation])
    chosen = [
        f"{name}: {trust:.0%} of the network's correction, "
        + f"{share:.0%} of the pretrained process, " * (network.pretrained is not None)
        + f"spread × {spread:.2f}"
        for name, trust, share, spread, normal in zip(
            model.spec.target,
            network.trust.tolist(),
            network.share.tolist(),
            network.log_spread.exp().tolist(),
            network.gaussian,
            strict=True,
        )
        if normal
    ]
    return f"chosen on the validation part: {'; '.join(chosen)}" if chosen else ""


@torch.no_grad()
def calibrate_network(network: KrigedNetwork, tasks: Sequence[Task]) -> None:
    """Choose how far to trust the network, and the spread with which 90 % intervals hold 90 %.

    A network knows the places that it was trained on and is too sure of others. The choice has the
    lowest CRPS on these tasks, where a trust of 0 is the prior alone. So has the share of a
    pretrained process, which must be worth its time.
    """
    network.log_spread.zero_()
    network.share.zero_()
    network.trust.fill_(0.0)
    y, prior = _predict(network, tasks)
    network.trust.fill_(1.0)
    if len(y) < CALIBRATED:
        return
    _, full = _predict(network, tasks)
    other, shares = full, (0.0,)
    if network.pretrained is not None:
        network.share.fill_(1.0)
        other, shares = _predict(network, tasks)[1], (0.0, *SHARES)
        network.share.zero_()
    best = torch.full_like(network.trust, math.inf, dtype=torch.float64)
    for share, trust in itertools.product(shares, TRUSTS):
        mean = prior.mean.lerp(full.mean, trust).lerp(other.mean, share)
        log_std = prior.stddev.log().lerp(full.stddev.log(), trust)
        std = log_std.lerp(other.stddev.log(), share).exp()
        factor = ((y - mean) / std).abs().quantile(0.9, dim=0).div(WITHIN_90).clamp(*SPREADS)
        score = crps(y - mean, std * factor).mean(0) / (1 - WORTH if share else 1)
        better = score < best
        best = torch.where(better, score, best)
        network.trust.masked_fill_(better, trust)
        network.share.masked_fill_(better, share)
        network.log_spread.copy_(torch.where(better, factor.log(), network.log_spread.double()))
    others = ~torch.tensor(network.gaussian, device=network.trust.device)
    network.trust.masked_fill_(others, 1.0)  # is not used
    network.log_spread.masked_fill_(others, 0.0)
    network.share.masked_fill_(others, 0.0)


def calibration_gain(squares: Sequence[float]) -> float:
    """What scaling the standard deviations adds to the mean log-likelihood per target.

    `squares` are the mean squared standardised errors of every output.
    """
    gain = 0.0
    for z in squares:
        factor = min(max(math.sqrt(z), SPREADS[0]), SPREADS[1])
        gain += 0.5 * z * (1 - factor**-2) - math.log(factor)
    return gain


def _predict(network: KrigedNetwork, tasks: Sequence[Task]) -> tuple[Tensor, Normal]:
    """Observations of all targets and their forecast, (n, dy) each, in double precision."""
    found = []
    for task in tasks:
        made = of_readings(network(task), task.target.error)
        y, mask = task.target.y, task.target.mask
        assert y is not None
        used = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device) if mask is None else mask
        found.append([v[used].double() for v in (y, made.mean, made.stddev)])
    y, mean, std = (torch.cat(columns) for columns in zip(*found, strict=True))
    return y, Normal(mean, std)
