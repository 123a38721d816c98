"""Fitting the Gaussian processes inside a network to tasks, before the network is trained.

Hyper-parameters have maximum likelihood, as in kriging. What persists at places and how far the
covariance differs from place to place is kept as far as validation tasks support it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gridtnp.kriging.fitting import deform, fit, restore, values_of
from gridtnp.kriging.gaussian_process import Inputs, crps
from gridtnp.kriging.remembering import Tasks, learn, remember
from gridtnp.network.fields import rasters, sample
from gridtnp.network.kriging import KrigedNetwork, Observations
from gridtnp.task import Task

FITTED = 200
"""Observations of a task that hyper-parameters are fitted to."""
SCORED = 100
"""Fewest validation targets that can support a choice."""


@dataclass(frozen=True)
class PriorFit:
    """The fractions of the validation CRPS that the choices for one output save."""

    persistent: float = 0.0
    deformed: float = 0.0


@torch.no_grad()
def fit_prior(
    network: KrigedNetwork,
    tasks: Iterable[Task],
    validation: Sequence[Task] = (),
    until: float = math.inf,
) -> list[PriorFit]:
    """Fit the hyper-parameters to training tasks; returns what was chosen for each output.

    Nothing that validation tasks decide on is begun after `until`, of `time.perf_counter`.
    """
    for chosen in (network.forgets, network.log_spread):
        chosen.zero_()  # when the network is trained
    network.trust.fill_(1.0)
    count = len(network.outputs)
    generators = [torch.Generator().manual_seed(0) for _ in range(count)]
    pieces: list[list[tuple[Inputs, Tensor]]] = [[] for _ in range(count)]
    for task in tasks:
        for j, generator in enumerate(generators):
            found = _all_observations(network, task, j)
            for b in range(task.target.batch):
                rows = torch.nonzero(found.mask[b].cpu())[:, 0]
                order = torch.randperm(len(rows), generator=generator)[:FITTED]
                some = rows[order].to(found.y.device)
                pieces[j].append((found.inputs[b, some], found.y[b, some]))
    scorers = [Scorer.of(network, j, validation) for j in range(count)]
    padded = [_padded(data) for data in pieces]
    for j, data in enumerate(padded):
        network.process(j).forget()
        fit(network.process(j), *data)
    found = zip(padded, scorers, strict=True)
    return [_extend(network, j, *data, scorer, until) for j, (data, scorer) in enumerate(found)]


def _extend(
    network: KrigedNetwork,
    j: int,
    inputs: Inputs,
    y: Tensor,
    mask: Tensor,
    scorer: Scorer | None,
    until: float,
) -> PriorFit:
    """What persists at places, and a deformation, for a fitted process."""
    process = network.process(j)
    if scorer is None or time.perf_counter() > until:
        return PriorFit()

    def deformed(rest: Tensor) -> float:
        late = time.perf_counter() > until
        return 0.0 if late else deform(process, inputs, rest, mask, scorer.scores)

    if process.persistent is None:
        return PriorFit(deformed=deformed(y))
    tasks, before = Tasks.of(process, inputs, y, mask), scorer.scores().mean()
    counted = remember(process, tasks, scorer.scores)
    if not counted:
        return PriorFit(deformed=deformed(y))
    persistent = 1 - (scorer.scores().mean() / before).item()
    network.forgets[j] = float(scorer.unknown_places())
    saved = deformed(tasks.rest(process))
    if saved:
        kept, score = values_of(process), scorer.scores().mean()
        learn(process, tasks, counted)
        if not scorer.scores().mean() < score:
            restore(process, kept)
    return PriorFit(persistent, saved)


@dataclass(frozen=True, eq=False)
class Scorer:
    """Validation tasks of one output: its observations in the context, if any, and the targets."""

    network: KrigedNetwork
    output: int
    tasks: Sequence[tuple[Observations | None, Observations]]

    @classmethod
    def of(cls, network: KrigedNetwork, j: int, tasks: Sequence[Task]) -> Scorer | None:
        """None if they have too few targets."""
        of, found = network.outputs[j], []
        for task in tasks:
            context = network.signature.complete(task.context, task.target)
            fields, seen = rasters(network.fields, context), None
            if of is not None:
                points = context[of[0]]
                seen = network.observed(j, points, of[1], sample(fields, points.x, skip=of[0]))
            target = network.observed(j, task.target, j, sample(fields, task.target.x))
            found.append((seen, target))
        if sum(int(target.mask.sum()) for _, target in found) < SCORED:
            return None
        return cls(network, j, found)

    def scores(self) -> Float[Tensor, " places"]:
        """The mean CRPS of kriging at each place."""
        where = torch.cat([target.inputs.place[target.mask] for _, target in self.tasks])
        _, place, counts = where.unique(dim=0, return_inverse=True, return_counts=True)
        each = []
        for seen, target in self.tasks:
            given, persistent = self.network.posterior(self.output, seen)
            mean, std = self.network.kriged(self.output, given, target.inputs, persistent)
            each.append(crps(target.y - mean, std)[target.mask])
        total = torch.zeros_like(counts, dtype=each[0].dtype)
        return total.index_add(0, place, torch.cat(each)) / counts

    def unknown_places(self) -> bool:
        """Whether most targets are at places that the training tasks do not have."""
        process = self.network.process(self.output)
        assert process.persistent is not None
        known = [
            process.persistent.is_place(process.coordinates(target.inputs))[target.mask]
            for _, target in self.tasks
        ]
        return bool(torch.cat(known).double().mean() < 0.5)


def _all_observations(network: KrigedNetwork, task: Task, j: int) -> Observations:
    """Observations of an output in a task: the targets, followed by the context."""
    context = network.signature.complete(task.context, task.target)
    fields, of = rasters(network.fields, context), network.outputs[j]
    found = [network.observed(j, task.target, j, sample(fields, task.target.x))]
    if of is not None:
        points = context[of[0]]
        found.append(network.observed(j, points, of[1], sample(fields, points.x, skip=of[0])))
    times = [one.inputs.time for one in found if one.inputs.time is not None]
    inputs = Inputs(
        torch.cat([one.inputs.place for one in found], 1),
        torch.cat(times, 1) if times else None,
        torch.cat([one.inputs.regressors for one in found], 1),
        _joined([one.inputs.error for one in found], [one.y for one in found]),
    )
    y, mask = (torch.cat(c, 1) for c in ([o.y for o in found], [o.mask for o in found]))
    return Observations(inputs, y, mask)


def _padded(pieces: Sequence[tuple[Inputs, Tensor]]) -> tuple[Inputs, Tensor, Tensor]:
    """Observations of several tasks as a batch: inputs, values and mask."""

    def pad(values: Sequence[Tensor]) -> Tensor:
        return nn.utils.rnn.pad_sequence(list(values), batch_first=True)

    times = [inputs.time for inputs, _ in pieces if inputs.time is not None]
    errors = [inputs.error for inputs, _ in pieces if inputs.error is not None]
    inputs = Inputs(
        pad([inputs.place for inputs, _ in pieces]),
        pad(times) if times else None,
        pad([inputs.regressors for inputs, _ in pieces]),
        pad(errors) if errors else None,
    )
    mask = pad([torch.ones_like(y, dtype=torch.bool) for _, y in pieces])
    return inputs, pad([y for _, y in pieces]), mask


def _joined(errors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor | None:
    """Variances of readings of several sets, zero where they are unknown; None without any."""
    if all(error is None for error in errors):
        return None
    pairs = zip(errors, like, strict=True)
    return torch.cat([torch.zeros_like(y) if e is None else e for e, y in pairs], 1)
