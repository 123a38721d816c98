"""Fitting what the network corrects, and calibrating the result."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gridtnp.contents import ModelContents
from gridtnp.distributions.marginals import Marginal, concatenate, of_readings, outputs_of
from gridtnp.kriging.fitting import LIKELIHOOD
from gridtnp.kriging.gaussian_process import crps
from gridtnp.network.kriging import KrigedNetwork
from gridtnp.network.likelihoods import ProductLikelihood
from gridtnp.network.pretrained import SHARE, why_not, with_pretrained
from gridtnp.task import PointSet, Task
from gridtnp.tasks.sampling import Sampler
from gridtnp.training import prior_fitting

TASKS, MORE_TASKS = LIKELIHOOD, 96
"""Training tasks that hyper-parameters are fitted to, without and with a validation part."""
CALIBRATED = 100
"""Fewest targets to calibrate on."""
TRUSTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Candidates for how much of the network's correction is kept."""
SPREADS = (0.8, 1.5)
"""Limits of the factor that calibrates standard deviations."""
EXPECTED = 0.1
"""Standard deviation of its logarithm that is expected before any data are seen."""
WITHIN_90 = 1.6448536
"""Standard deviations on each side of the mean that hold 90 % of a normal distribution."""


def fit_prior(
    model: ModelContents, sampler: Sampler, validation: Sequence[Task], until: float = math.inf
) -> str:
    """Fit the prior of a network, if it has one, to training tasks; returns what was chosen.

    The validation tasks decide what persists at places, and how far its covariance differs from
    place to place, if there is time: `until` is that of `time.perf_counter`.
    """
    if not isinstance(model.network, KrigedNetwork):
        return ""
    batches = -(-(MORE_TASKS if validation else TASKS) // sampler.batch)
    tasks = (sampler.draw(i) for i in range(batches))
    with model.inference():  # training may forget places
        found = prior_fitting.fit_prior(model.network, tasks, validation, until)
    chosen = [
        f"{name}: {what}, validation CRPS -{share:.1%}"
        for name, fit in zip(model.spec.target, found, strict=True)
        for what, share in (
            ("deviations of places that persist", fit.persistent),
            ("covariance that differs from place to place", fit.deformed),
        )
        if share > 0
    ]
    if validation and time.perf_counter() > until:
        chosen.append("no time for all that could be fitted; more minutes may give better kriging")
    return f"kriging: {'; '.join(chosen)}" if chosen else ""


def without_pretrained(model: ModelContents) -> ModelContents:
    """A model as it is trained: without the pretrained process, unless that is ruled out anyway."""
    if not isinstance(model.network, KrigedNetwork) or model.network.pretrained is None:
        return model
    model.network.blend(None)
    return replace(model, config=with_pretrained(model.config, None))


def with_pretrained_process(model: ModelContents) -> ModelContents:
    """A trained model beside the pretrained process, where that is possible and not ruled out.

    Where training knows the places of the targets, it has no share: their own past says more.
    """
    network, prior = model.network, model.config.prior
    if not isinstance(network, KrigedNetwork) or prior is None or prior.pretrained is False:
        return model
    if why_not(model.config) is not None:
        return model
    pairs = enumerate(network.gaussian)
    share = [SHARE * (normal and not network.knows_targets(j)) for j, normal in pairs]
    if not any(share):
        return model
    network.blend(share)
    return replace(model, config=with_pretrained(model.config, True))


def calibrate(model: ModelContents, validation: Sequence[Task]) -> str:
    """Calibrate a network with a prior on validation tasks; returns what was chosen."""
    network = model.network
    if not isinstance(network, KrigedNetwork) or not validation:
        return ""
    with model.inference():
        found = calibrate_network(network, [task.to(model.device) for task in validation])
    chosen = [
        f"{model.spec.target[j]}: {trust:.0%} of the network's correction, "
        f"spread × {math.exp(log_spread):.2f}"
        for j, (trust, log_spread) in sorted(found.items())
    ]
    return f"chosen on the validation part: {'; '.join(chosen)}" if chosen else ""


@torch.no_grad()
def calibrate_network(
    network: KrigedNetwork, tasks: Sequence[Task]
) -> dict[int, tuple[float, float]]:
    """Choose how far to trust the network, and the spread with which 90 % intervals hold 90 %.

    A network knows the places that it was trained on and is too sure of others. The choice has the
    lowest CRPS on these tasks, where a trust of 0 is the prior alone. What it saves beyond the
    prior must be more than chance explains, the standard error over places. Returns the trust and
    the logarithm of the spread of every output for which they could be chosen.
    """
    share = network.share.clone()
    network.log_spread.zero_()
    network.share.zero_()
    network.trust.fill_(0.0)
    y, prior = _predict(network, tasks)
    network.trust.fill_(1.0)
    found = {}
    if len(y) >= CALIBRATED:
        _, full = _predict(network, tasks)
        network.share.copy_(share > 0)
        _, other = _predict(network, tasks) if share.any() else (y, full)
        place, moment = _blocks(network, tasks)
        for j, normal in enumerate(network.gaussian):
            if normal:
                forecasts = prior[j], full[j], other[j]
                found[j] = _choose(y[:, j], forecasts, share[j].item(), place, moment)
                network.trust[j], network.log_spread[j] = found[j]
            elif full[j].corrects_prior:
                found[j] = _choose_in_weights(network, tasks, j, place, moment)
    network.share.copy_(share)
    return found


Candidate = tuple[Float[Tensor, " places"], tuple[float, float]]
"""The mean CRPS at every place with some trust and logarithm of the spread."""


def _choose(
    y: Float[Tensor, " n"],
    forecasts: tuple[Marginal, Marginal, Marginal],
    share: float,
    place: Int[Tensor, " n"],
    moment: Int[Tensor, " n"],
) -> tuple[float, float]:
    """Of normal forecasts by the prior, by the corrected one and by the pretrained process, which
    has a share.
    """
    prior, full, other = forecasts
    found = []
    for trust in TRUSTS:
        mean = prior.mean.lerp(full.mean, trust).lerp(other.mean, share)
        log_std = prior.stddev.log().lerp(full.stddev.log(), trust)
        std = log_std.lerp(other.stddev.log(), share).exp()
        log_spread = calibrated_spread((y - mean) / std, place, moment)
        scores = _means(crps(y - mean, std * math.exp(log_spread)), place)
        found.append((scores, (trust, log_spread)))
    return _best(found)


def _choose_in_weights(
    network: KrigedNetwork,
    tasks: Sequence[Task],
    j: int,
    place: Int[Tensor, " n"],
    moment: Int[Tensor, " n"],
) -> tuple[float, float]:
    """The same for an output that is not normal: the last layer's weights are scaled."""
    likelihood = network.network.likelihood
    assert isinstance(likelihood, ProductLikelihood)
    learned = {k: v.clone() for k, v in likelihood.state_dict().items()}
    width, found = likelihood.families[j].width, []
    for trust in TRUSTS:
        likelihood.load_state_dict(learned)
        likelihood.calibrate(j, trust, 0.0)
        y, made = _predict(network, tasks)
        log_spread = 0.0
        if width is not None:
            log_spread = calibrated_spread(_normal_scores(y[:, j], made[j]), place, moment)
            likelihood.calibrate(j, 1.0, log_spread)
            y, made = _predict(network, tasks)
        found.append((_means(made[j].crps(y[:, j]), place), (trust, log_spread)))
    likelihood.load_state_dict(learned)
    best = _best(found)
    likelihood.calibrate(j, *best)
    return best


def _best(found: Sequence[Candidate]) -> tuple[float, float]:
    """The candidate with the lowest CRPS; the first one is the prior alone."""
    alone = found[0][0]
    certain = [one for one in found[1:] if _is_certain(alone - one[0])]
    return min([found[0], *certain], key=lambda one: one[0].mean().item())[1]


def _normal_scores(y: Float[Tensor, " n"], made: Marginal) -> Float[Tensor, " n"]:
    """Standard normal if the forecast is calibrated; at point masses, drawn at random."""
    g = torch.Generator().manual_seed(0)
    level = torch.rand(len(y), generator=g, dtype=torch.float64).to(y.device)
    below, up_to = made.below(y), made.cdf(y)
    return torch.special.ndtri((below + level * (up_to - below)).clamp(1e-6, 1 - 1e-6))


def calibrated_spread(
    z: Float[Tensor, " n"], place: Int[Tensor, " n"], time: Int[Tensor, " n"]
) -> float:
    """Logarithm of the factor of standard deviations with which 90 % intervals hold 90 %.

    `z` are standardised errors at places and times. The fewer there are, and the more they differ,
    the less is known of the factor at others, and the nearer it stays to 1, the prior's own.
    """
    if len(time.unique()) < 2:
        return 0.0
    factor = z.abs().quantile(0.9).div(WITHIN_90).clamp(*SPREADS).log().item()
    variance = 0.0
    for block in (place, time):
        each = _means(z.abs(), block)
        if len(each) > 1:
            variance += (each.var() / len(each) / each.mean().square()).item()
    return factor * EXPECTED**2 / (EXPECTED**2 + variance)


def calibration_gain(squares: Sequence[float]) -> float:
    """What scaling the standard deviations adds to the mean log-likelihood per target.

    `squares` are the mean squared standardised errors of every output.
    """
    gain = 0.0
    for z in squares:
        factor = min(max(math.sqrt(z), SPREADS[0]), SPREADS[1])
        gain += 0.5 * z * (1 - factor**-2) - math.log(factor)
    return gain


def _predict(network: KrigedNetwork, tasks: Sequence[Task]) -> tuple[Tensor, list[Marginal]]:
    """Observations of all targets, (n, dy), and the forecast of every output; in doubles."""
    y, found = [], []
    for task in tasks:
        made = outputs_of(of_readings(network(task), task.target.error))
        assert task.target.y is not None
        used = _used(task.target)
        y.append(task.target.y[used].double())
        found.append([one.map(lambda v, used=used: v[used].double()) for one in made])
    return torch.cat(y), [concatenate(pieces) for pieces in zip(*found, strict=True)]


def _used(points: PointSet) -> Bool[Tensor, "batch n"]:
    every = torch.ones(points.x.shape[:2], dtype=torch.bool, device=points.x.device)
    return every if points.mask is None else points.mask


def _is_certain(saved: Float[Tensor, " places"]) -> bool:
    """Whether a mean is larger than its standard error; that of one place is unknown."""
    return len(saved) < 2 or bool(saved.mean() > saved.std() / len(saved) ** 0.5)


def _blocks(
    network: KrigedNetwork, tasks: Sequence[Task]
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """The number of the place and of the time of every target, in the order of `_predict`."""
    spatial = [i for i, name in enumerate(network.signature.coordinates) if name != "time"]
    places, times, first = [], [], 0
    for task in tasks:
        x, used = task.target.x, _used(task.target)
        number = torch.arange(first, first + len(x), device=x.device)[:, None].expand(x.shape[:2])
        places.append(x[used][:, spatial])
        times.append(number[used])
        first += len(x)
    return torch.cat(places).unique(dim=0, return_inverse=True)[1], torch.cat(times)


def _means(values: Float[Tensor, " n"], block: Int[Tensor, " n"]) -> Float[Tensor, " blocks"]:
    """The mean of every block."""
    number = block.unique(return_inverse=True)[1]
    counts = number.bincount().to(values)
    return torch.zeros_like(counts).index_add(0, number, values) / counts
