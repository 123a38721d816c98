"""Joint samples: whole fields that could have been, from a model that predicts point by point.

A model gives a distribution at every point by itself. To draw a field, some points spread over
the question are drawn one after the other, each as an observation for those that come after it
(Bruinsma et al., 2023). They carry everything that is wider than the space between them. A sample
of the field is then the mean given these points, plus what is left of the spread as a smooth random
function that is as wide as that space. By the law of total variance, samples have the spread that
`predict` gives at every point, however many points are drawn; more of them make what is between
them truer.

Approximations: points of one small group are drawn as if independent, and so are several variables
at one point; the fine part, noise of instruments included, has one length everywhere; tasks at
different times are drawn apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from gridtnp.contents import ModelContents
from gridtnp.data.coordinates import unit_vectors
from gridtnp.data.dataset import Dataset
from gridtnp.data.reading import Data
from gridtnp.data.times import duration
from gridtnp.inference.conditioning import Conditioner, Conditioning, Static
from gridtnp.inference.prediction import Advance, attributes, bar, chosen_times, stamped
from gridtnp.inference.queries import Answer, Places, Query
from gridtnp.inference.writers import growing
from gridtnp.network.model import PIECE
from gridtnp.task import PointSet
from gridtnp.tasks.observations import TaskTime
from gridtnp.tasks.specification import TaskSpec

SUBSET = 128
"""Points that are drawn one after the other."""
GROWTH = 8
"""A group may have this part of the points drawn before it."""
TOGETHER = 2**20
"""Context points of samples that are drawn side by side."""
WAVES = 256


def sample(
    model: ModelContents,
    n: int,
    context: Dataset | Mapping[str, Data],
    at: Places,
    *,
    times: Iterable[Any] | None = None,
    static: Static = None,
    subset: int = SUBSET,
    seed: int = 0,
    to: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Answer | Path:
    """See `GriddedTNP.sample`."""
    for number, what in ((n, "sample"), (subset, "point of the subset")):
        if number < 1:
            raise ValueError(f"There must be at least one {what}, got {number}.")
    spec = model.spec
    conditioner = Conditioner.of(model, context, static)
    _require_a_way_back(spec)
    query, when = Query.of(at), chosen_times(times)
    if when is not None:
        query = query.at_times(when)
    values = np.full((n, len(query.lat), len(spec.target)), np.nan)
    known, task_time = conditioner.known(query), None
    with model.inference(), bar(n * len(query.lat), "sampling", progress) as advance:
        for number, (task_time, rows) in enumerate(conditioner.groups(query)):
            luck = _Luck(seed, number)
            draw = _Draw.of(conditioner, query, known, task_time, rows, subset, luck)
            for samples in _batches(n, draw.size):
                for some, made in draw.fields(samples, advance):
                    values[samples.start : samples.stop, some] = made
    conditioner.warn()
    values = model.normaliser.restore(spec.target, values.reshape(-1, values.shape[-1]))
    answer = _answer(conditioner, query, values.reshape(n, len(query.lat), -1), task_time)
    if to is None:
        return answer
    with growing(to, None, overwrite=overwrite) as file:
        file.add(answer)
    return file.path


@dataclass(frozen=True)
class _Luck:
    """Random numbers of one task; those of a sample do not depend on how many there are."""

    seed: int
    task: int

    def shared(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.task])

    def normal(self, samples: range, what: int, shape: tuple[int, ...]) -> np.ndarray:
        draws = [np.random.default_rng([self.seed, self.task, what, i]) for i in samples]
        return np.stack([rng.standard_normal(shape) for rng in draws])


@dataclass(frozen=True, eq=False)
class _Draw:
    """All it takes to draw fields of one task."""

    conditioner: Conditioner
    query: Query
    known: Mapping[str, np.ndarray]
    task_time: TaskTime
    rows: np.ndarray
    conditioning: Conditioning
    chosen: PointSet
    space: Float[np.ndarray, "n dx"]
    waves: Float[np.ndarray, "dx k"]
    luck: _Luck

    @classmethod
    def of(
        cls,
        conditioner: Conditioner,
        query: Query,
        known: Mapping[str, np.ndarray],
        task_time: TaskTime,
        rows: np.ndarray,
        subset: int,
        luck: _Luck,
    ) -> _Draw:
        rng, space = luck.shared(), _space(query, rows)
        pool = rng.permutation(len(rows))[: 16 * subset]
        points = conditioner.targets(query, known, rows[pool], task_time, count=False)
        if points.mask is not None:
            usable = points.mask[0].cpu().numpy()
            pool, points = pool[usable], points.select(torch.from_numpy(usable))
            points = PointSet(points.x, None, None, points.features)
        order, width = spread(space[pool], subset)
        waves = rng.standard_normal((space.shape[1], WAVES)) / max(width / 2, 1e-9)
        conditioning, chosen = conditioner.at(task_time), points.select(torch.from_numpy(order))
        return cls(
            conditioner, query, known, task_time, rows, conditioning, chosen, space, waves, luck
        )

    @property
    def size(self) -> int:
        return self.chosen.n + sum(points.n for points in self.conditioning.context.values())

    def fields(self, samples: range, advance: Advance) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Points of the query, some at a time, and their values in every sample."""
        network, number, outputs = (
            self.conditioner.model.network,
            len(samples),
            len(self.conditioner.spec.target),
        )
        drawn = self._drawn(samples)
        encoding = network.encode(self._context(drawn))
        weights = self.luck.normal(samples, 1, (2 * WAVES, outputs))
        step = max(8 // number, 1) * PIECE
        for start in range(0, len(self.rows), step):
            some = self.rows[start : start + step]
            target = self.conditioner.targets(
                self.query, self.known, some, self.task_time, count=samples.start == 0
            )
            made = network.decode(encoding, repeated(target, number))
            phase = self.space[start : start + step] @ self.waves
            ripples = np.concatenate([np.cos(phase), np.sin(phase)], 1) @ weights / WAVES**0.5
            values = _numbers(made.mean) + _numbers(made.stddev) * ripples
            if target.mask is not None:
                values[:, ~target.mask[0].cpu().numpy()] = np.nan
            yield some, values
            advance(number * len(some))

    def _drawn(self, samples: range) -> Float[Tensor, "batch m dy"]:
        """Values at the chosen points, group after group, each given all before it."""
        network, outputs = self.conditioner.model.network, len(self.conditioner.spec.target)
        luck = torch.from_numpy(self.luck.normal(samples, 0, (self.chosen.n, outputs)))
        drawn = self.chosen.x.new_zeros((len(samples), 0, outputs))
        while drawn.shape[1] < self.chosen.n:
            first = drawn.shape[1]
            last = min(first + max(1, first // GROWTH), self.chosen.n)
            target = repeated(self.chosen.select(slice(first, last)), len(samples))
            made = network.decode(network.encode(self._context(drawn)), target)
            more = made.mean + made.stddev * luck[:, first:last].to(made.mean)
            drawn = torch.cat([drawn, more.to(drawn)], 1)
        return drawn

    def _context(self, drawn: Float[Tensor, "batch m dy"]) -> dict[str, PointSet]:
        """What was observed and, beside it, what was drawn."""
        spec, number = self.conditioner.spec, drawn.shape[0]
        told = self.chosen.select(slice(0, drawn.shape[1]))
        context = {k: repeated(points, number) for k, points in self.conditioning.context.items()}
        for name, variables in returning(spec).items():
            columns = [spec.target_names.index(v) for v in variables]
            own = repeated(told, number)
            own = PointSet(own.x, drawn[..., columns], None, own.features)
            context[name] = joined(context[name], own) if name in context else own
        complete = Conditioning(context, self.conditioning.places)
        return self.conditioner.complete(complete, repeated(self.chosen, number))


def spread(places: Float[np.ndarray, "n dx"], number: int) -> tuple[np.ndarray, float]:
    """Some places in an order in which each is as far as can be from those before it, and how far
    the last one is.
    """
    order: list[int] = []
    apart, width = np.full(len(places), np.inf), 0.0
    while len(order) < min(number, len(places)):
        order.append(int(apart.argmax()))
        width = float(apart[order[-1]])
        apart = np.minimum(apart, np.linalg.norm(places - places[order[-1]], axis=1))
        apart[order] = -1.0  # never twice, also where places are the same
    return np.array(order, int), width if np.isfinite(width) else 1.0


def returning(spec: TaskSpec) -> dict[str, tuple[str, ...]]:
    """The context sets that drawn values can go into, and the variables of each."""
    return {
        name: held.variables
        for name, held in spec.contexts.items()
        if held.source == spec.target_source and set(held.variables) <= set(spec.target_names)
    }


def repeated(points: PointSet, number: int) -> PointSet:
    """One set as a batch of equal ones."""
    values = (points.x, points.y, points.mask, points.features)
    pick = [None if v is None else v.expand(number, *v.shape[1:]) for v in values]
    return PointSet(*pick)  # pyright: ignore[reportArgumentType]


def joined(a: PointSet, b: PointSet) -> PointSet:
    """The points of both; neither has a mask."""
    assert a.y is not None
    assert b.y is not None
    features = None
    if a.features is not None and b.features is not None:
        features = torch.cat([a.features, b.features], 1)
    return PointSet(torch.cat([a.x, b.x], 1), torch.cat([a.y, b.y], 1), None, features)


def _require_a_way_back(spec: TaskSpec) -> None:
    """Raise where drawn values cannot become observations for those that follow."""
    if duration(spec.lead):
        raise ValueError(
            "Joint samples need a model whose targets are of the time of its context, but this "
            f"one predicts {spec.lead} ahead; use predict."
        )
    covered = {name for variables in returning(spec).values() for name in variables}
    lacking = sorted(set(spec.target_names) - covered)
    if lacking:
        raise ValueError(
            f"Joint samples need context sets of the target's variables alone, but {lacking} of "
            f"source {spec.target_source!r} share theirs with others; train with all of them as "
            "targets, or leave the others out of the source."
        )


def _batches(n: int, size: int) -> Iterator[range]:
    """Samples that are drawn side by side."""
    step = min(max(TOGETHER // max(size, 1), 1), 32)
    return (range(start, min(start + step, n)) for start in range(0, n, step))


def _space(query: Query, rows: np.ndarray) -> Float[np.ndarray, "n dx"]:
    """Where points are, to tell near from far; all times together are as wide as the area."""
    places = unit_vectors(query.lat[rows], query.lon[rows])
    if query.time is None or len(rows) < 2:
        return places
    time = query.time[rows].astype("datetime64[ms]").astype(np.float64)
    if np.ptp(time) == 0:
        return places
    extent = np.linalg.norm(np.ptp(places, axis=0)) or 1.0
    return np.concatenate([places, ((time - time.min()) / np.ptp(time) * extent)[:, None]], 1)


def _numbers(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()


def _answer(
    conditioner: Conditioner,
    query: Query,
    values: Float[np.ndarray, "batch n dy"],
    task_time: TaskTime,
) -> Answer:
    """A dimension `sample` for grids and arrays, a column per sample for tables."""
    names, number = conditioner.spec.target_names, len(values)
    flat = {
        f"{name}_sample{i}": values[i, :, j] for j, name in enumerate(names) for i in range(number)
    }
    about = {name: attributes(conditioner, name, "sample") for name in names}
    if isinstance(query.form, tuple):
        given = query.answer(flat)
        assert isinstance(given, dict)
        return {k: np.stack([given[f"{k}_sample{i}"] for i in range(number)]) for k in names}
    answer = query.answer({})
    if isinstance(query.form, pd.DataFrame):
        return query.answer(flat, {key: about[key.rpartition("_")[0]] for key in flat})
    assert isinstance(answer, xr.Dataset)
    shape, dims = (number, *query.dims.values()), ("sample", *query.dims)
    made = {k: (dims, values[..., j].reshape(shape), about[k]) for j, k in enumerate(names)}
    answer = answer.assign(made).assign_coords(sample=np.arange(number))
    return stamped(answer, conditioner.spec, query, task_time)
