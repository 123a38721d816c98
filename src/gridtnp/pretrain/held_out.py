"""Held-out tasks: how far the model is from a fitted process and from the exact posterior."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gridtnp.amortised.network import Encoding, Interpolator
from gridtnp.distributions.continuous import NormalMixture
from gridtnp.network.model import NeuralProcess, Signature
from gridtnp.pretrain.fields import KINDS, SOURCE, FieldPrior, FieldTasks, draw_at
from gridtnp.pretrain.reference import FittedProcess
from gridtnp.task import PointSet

VALIDATION_SEED, TEST_SEED = 2, 3
TARGETS = 200


class InterpolatorProcess(NeuralProcess):
    """The network of the model in the box as a neural process, which is what training takes."""

    def __init__(self, network: Interpolator) -> None:
        super().__init__(Signature(("x1", "x2"), (), {SOURCE: 1}, 1))
        self.network = network

    def encode(self, context: Mapping[str, PointSet]) -> Encoding:
        return self.network.encode(context)

    def decode(self, encoding: Encoding, target: PointSet) -> NormalMixture:
        return self.network.decode(encoding, target)


@dataclass(frozen=True)
class References:
    """Log-likelihoods per target, of one task."""

    kind: str
    observed: int
    number: int
    fitted: float
    exact: float
    """NaN where there is no exact posterior."""


def tasks_of(seed: int, kind: str, observed: int, number: int) -> FieldTasks:
    """One held-out task."""
    where = (seed, KINDS.index(kind), observed, number)
    return draw_at(FieldPrior(kind), where, 1, observed, TARGETS)


def every_task(observed: Iterable[int], number: int) -> Iterator[tuple[str, int, int]]:
    for n in observed:
        for kind in KINDS:
            for i in range(number):
                yield kind, n, i


def references(seed: int, observed: Sequence[int], number: int, cache: Path) -> list[References]:
    """Scores of the fitted process and the exact posterior, computed once and kept in a file."""
    known: dict[tuple[Any, ...], References] = {}
    if cache.exists():
        for line in cache.read_text().splitlines():
            r = References(**json.loads(line))
            known[r.kind, r.observed, r.number] = r
    cache.parent.mkdir(parents=True, exist_ok=True)
    found = []
    with cache.open("a") as file:
        for key in every_task(observed, number):
            if key not in known:
                known[key] = _reference(seed, *key)
                print(json.dumps(asdict(known[key])), file=file, flush=True)
            found.append(known[key])
    return found


def _reference(seed: int, kind: str, observed: int, number: int) -> References:
    tasks = tasks_of(seed, kind, observed, number)
    context, target = tasks.task.context[SOURCE], tasks.task.target
    assert context.y is not None
    assert target.y is not None
    fitted = FittedProcess.fit(context.x[0], context.y[0, :, 0]).predict(target.x[0])
    exact = math.nan
    if tasks.exact.all():
        exact = tasks.posterior().log_prob(target.y.double()).mean().item()
    score = fitted.log_prob(target.y[0, :, 0].double()).mean().item()
    return References(kind, observed, number, score, exact)


@torch.no_grad()
def scores(network: Interpolator, seed: int, given: Sequence[References]) -> list[float]:
    """Log-likelihoods per target of a network on the same tasks."""
    model = InterpolatorProcess(network).eval()
    return [-model.loss(tasks_of(seed, r.kind, r.observed, r.number).task).item() for r in given]
