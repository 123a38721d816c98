"""Joint samples: coherent fields from a model that predicts every point separately.

First, values at a subset of points are drawn autoregressively: each becomes an observation for
those after it (Bruinsma et al., 2023). They carry all structure wider than their spacing. A sample
is then the predicted mean given these points, plus the predicted standard deviation times a smooth
random function with the length-scale of their spacing; where the prediction is not Gaussian, it is
the quantile at the level of that function (a Gaussian copula). By the law of total variance,
Gaussian samples have the standard deviation of `predict` at every point for any size of the subset;
a larger one makes the structure between its points more accurate.

Approximations: points of one small group are drawn independently, and so are several variables at
one point; the fine part, measurement noise included, has one length-scale everywhere; tasks at
different times are sampled independently.
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
from gridtnp.data.dataset import Dataset
from gridtnp.distributions.marginals import from_normal
from gridtnp.inference.conditioning import Conditioner, Conditioning
from gridtnp.inference.context_reader import Static
from gridtnp.inference.forecasts import Advance, attributes, with_times
from gridtnp.inference.queries import Answer, Places, Query
from gridtnp.inference.regions import requested_times
from gridtnp.inference.running import progress_bar
from gridtnp.inference.writers import write
from gridtnp.network.model import PIECE
from gridtnp.sources.coordinates import unit_vectors
from gridtnp.sources.reading import Data
from gridtnp.sources.times import duration
from gridtnp.task import PointSet
from gridtnp.tasks.observations import TaskTime
from gridtnp.tasks.specification import TaskSpec

SUBSET = 128
"""Points drawn autoregressively."""
GROUP_FRACTION = 8
"""A group has at most 1/8 of the points drawn before it."""
BATCH_POINTS = 2**20
"""Context points, over all samples, of one batch of samples."""
BATCH_SAMPLES = 32
WAVES = 256
"""Random Fourier features of the smooth random function."""


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
    for name, number in (("n", n), ("subset", subset)):
        if number < 1:
            raise ValueError(f"{name}={number}: must be at least 1.")
    spec = model.spec
    conditioner = Conditioner.of(model, context, static)
    _require_feedback(spec)
    query, when = Query.of(at), requested_times(times)
    if when is not None:
        query = query.at_times(when)
    values = np.full((n, len(query.lat), len(spec.target)), np.nan)
    known = conditioner.reader.known(query)
    with model.inference(), progress_bar(n * len(query.lat), "sampling", progress) as advance:
        for number, (task_time, rows) in enumerate(conditioner.reader.groups(query)):
            random = _RandomState(seed, number)
            task = _TaskSampler.of(conditioner, query, known, task_time, rows, subset, random)
            for samples in _batches(n, task.size):
                for some, drawn in task.fields(samples, advance):
                    values[samples.start : samples.stop, some] = drawn
    grid = model.network.grid
    conditioner.unusable.require_points(grid, spec.statics)
    conditioner.unusable.warn(grid, spec.statics, stacklevel=4)
    values = model.normaliser.restore(spec.target, values.reshape(-1, values.shape[-1]))
    answer = _answer(conditioner, query, values.reshape(n, len(query.lat), -1))
    if to is None:
        return answer
    return write(answer, to, overwrite=overwrite)


@dataclass(frozen=True)
class _RandomState:
    """Random numbers of one task; those of a sample do not depend on the number of samples."""

    seed: int
    task: int

    def shared(self) -> np.random.Generator:
        """For what all samples have in common."""
        return np.random.default_rng([self.seed, self.task])

    def normal(self, samples: range, stream: int, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal numbers for each sample; streams are independent."""
        each = [np.random.default_rng([self.seed, self.task, stream, i]) for i in samples]
        return np.stack([rng.standard_normal(shape) for rng in each])


@dataclass(frozen=True, eq=False)
class _TaskSampler:
    """Draws fields of one task.

    `subset` are the points drawn autoregressively, `space` the coordinates of all rows of the
    query, and `waves` the frequencies of the smooth random function.
    """

    conditioner: Conditioner
    query: Query
    known: Mapping[str, np.ndarray]
    task_time: TaskTime
    rows: np.ndarray
    conditioning: Conditioning
    subset: PointSet
    space: Float[np.ndarray, "n dx"]
    waves: Float[np.ndarray, "dx k"]
    random: _RandomState

    @classmethod
    def of(
        cls,
        conditioner: Conditioner,
        query: Query,
        known: Mapping[str, np.ndarray],
        task_time: TaskTime,
        rows: np.ndarray,
        subset: int,
        random: _RandomState,
    ) -> _TaskSampler:
        rng, space = random.shared(), _space(query, rows)
        pool = rng.permutation(len(rows))[: 16 * subset]
        points = conditioner.targets(query, known, rows[pool], task_time, count=False)
        if points.mask is not None:
            usable = points.mask[0].cpu().numpy()
            pool, points = pool[usable], points.select(torch.from_numpy(usable))
            points = PointSet(points.x, None, None, points.features)
        order, spacing = farthest_points(space[pool], subset)
        waves = rng.standard_normal((space.shape[1], WAVES)) / max(spacing / 2, 1e-9)
        conditioning, drawn = conditioner.at(task_time), points.select(torch.from_numpy(order))
        return cls(
            conditioner, query, known, task_time, rows, conditioning, drawn, space, waves, random
        )

    @property
    def size(self) -> int:
        """Context points of one sample in the end."""
        return self.subset.n + sum(points.n for points in self.conditioning.context.values())

    def fields(self, samples: range, advance: Advance) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows of the query, chunk by chunk, and their values in every sample."""
        network, spec = self.conditioner.model.network, self.conditioner.spec
        number, outputs = len(samples), len(spec.target)
        encoding = network.encode(self._context(self._draw_subset(samples)))
        weights = self.random.normal(samples, 1, (2 * WAVES, outputs))
        step = max(8 // number, 1) * PIECE
        for start in range(0, len(self.rows), step):
            some = self.rows[start : start + step]
            target = self.conditioner.targets(
                self.query, self.known, some, self.task_time, count=samples.start == 0
            )
            predicted = network.decode(encoding, repeat(target, number))
            phase = self.space[start : start + step] @ self.waves
            smooth = np.concatenate([np.cos(phase), np.sin(phase)], 1) @ weights / WAVES**0.5
            normal = torch.from_numpy(smooth).to(predicted.mean.device)
            values = _to_numpy(from_normal(predicted, normal))
            if target.mask is not None:
                values[:, ~target.mask[0].cpu().numpy()] = np.nan
            yield some, values
            advance(number * len(some))

    def _draw_subset(self, samples: range) -> Float[Tensor, "batch m dy"]:
        """Values at the subset, group by group, each group given all groups before it."""
        network, outputs = self.conditioner.model.network, len(self.conditioner.spec.target)
        normal = torch.from_numpy(self.random.normal(samples, 0, (self.subset.n, outputs)))
        drawn = self.subset.x.new_zeros((len(samples), 0, outputs))
        while drawn.shape[1] < self.subset.n:
            first = drawn.shape[1]
            last = min(first + max(1, first // GROUP_FRACTION), self.subset.n)
            target = repeat(self.subset.select(slice(first, last)), len(samples))
            predicted = network.decode(network.encode(self._context(drawn)), target)
            values = from_normal(predicted, normal[:, first:last].to(predicted.mean))
            drawn = torch.cat([drawn, values.to(drawn)], 1)
        return drawn

    def _context(self, drawn: Float[Tensor, "batch m dy"]) -> dict[str, PointSet]:
        """The observations, and the values drawn so far as further observations."""
        spec, number = self.conditioner.spec, drawn.shape[0]
        points = repeat(self.subset.select(slice(0, drawn.shape[1])), number)
        context = {k: repeat(p, number) for k, p in self.conditioning.context.items()}
        for name, variables in feedback_sets(spec).items():
            columns = [spec.target_names.index(v) for v in variables]
            more = PointSet(points.x, drawn[..., columns], None, points.features)
            context[name] = concatenate(context[name], more) if name in context else more
        complete = Conditioning(context, self.conditioning.places)
        return self.conditioner.complete(complete, repeat(self.subset, number))


def farthest_points(places: Float[np.ndarray, "n dx"], number: int) -> tuple[np.ndarray, float]:
    """Farthest-point sampling: indices in order, and the distance of the last from those before."""
    order: list[int] = []
    distance, spacing = np.full(len(places), np.inf), 0.0
    while len(order) < min(number, len(places)):
        order.append(int(distance.argmax()))
        spacing = float(distance[order[-1]])
        distance = np.minimum(distance, np.linalg.norm(places - places[order[-1]], axis=1))
        distance[order] = -1.0  # never again, even among identical places
    return np.array(order, int), spacing if np.isfinite(spacing) else 1.0


def feedback_sets(spec: TaskSpec) -> dict[str, tuple[str, ...]]:
    """The context sets that drawn values can be added to, and the variables of each."""
    return {
        name: held.variables
        for name, held in spec.contexts.items()
        if held.source == spec.target_source and set(held.variables) <= set(spec.target_names)
    }


def repeat(points: PointSet, number: int) -> PointSet:
    """A batch of `number` times the same set."""
    values = (points.x, points.y, points.mask, points.features, points.error)
    repeated = [None if v is None else v.expand(number, *v.shape[1:]) for v in values]
    return PointSet(*repeated)  # pyright: ignore[reportArgumentType]


def concatenate(a: PointSet, b: PointSet) -> PointSet:
    """The points of two sets without masks."""
    assert a.y is not None
    assert b.y is not None
    features = None
    if a.features is not None and b.features is not None:
        features = torch.cat([a.features, b.features], 1)
    error = None
    if a.error is not None:  # what is drawn has none
        own = torch.zeros_like(b.y) if b.error is None else b.error
        error = torch.cat([a.error, own], 1)
    return PointSet(torch.cat([a.x, b.x], 1), torch.cat([a.y, b.y], 1), None, features, error)


def _require_feedback(spec: TaskSpec) -> None:
    """Raise if drawn values cannot become observations."""
    if duration(spec.lead):
        raise ValueError(
            f"Joint samples need a model without lead time, but this one predicts {spec.lead} "
            "ahead; use predict."
        )
    covered = {name for variables in feedback_sets(spec).values() for name in variables}
    lacking = sorted(set(spec.target_names) - covered)
    if lacking:
        raise ValueError(
            f"Joint samples need context sets of target variables only, but {lacking} of source "
            f"{spec.target_source!r} share theirs with other variables; train with all of them as "
            "targets, or leave the others out of the source."
        )


def _batches(n: int, size: int) -> Iterator[range]:
    """Samples to draw in one batch each."""
    step = min(max(BATCH_POINTS // max(size, 1), 1), BATCH_SAMPLES)
    return (range(start, min(start + step, n)) for start in range(0, n, step))


def _space(query: Query, rows: np.ndarray) -> Float[np.ndarray, "n dx"]:
    """Coordinates to measure distances in; the range of times is scaled to that of the places."""
    places = unit_vectors(query.lat[rows], query.lon[rows])
    if query.time is None or len(rows) < 2:
        return places
    time = query.time[rows].astype("datetime64[ms]").astype(np.float64)
    if np.ptp(time) == 0:
        return places
    extent = np.linalg.norm(np.ptp(places, axis=0)) or 1.0
    return np.concatenate([places, ((time - time.min()) / np.ptp(time) * extent)[:, None]], 1)


def _to_numpy(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()


def _answer(
    conditioner: Conditioner,
    query: Query,
    values: Float[np.ndarray, "batch n dy"],
) -> Answer:
    """Samples in the form of the query.

    Grids and arrays get a dimension `sample`, tables a column per sample.
    """
    names, number = conditioner.spec.target_names, len(values)
    flat = {
        f"{name}_sample{i}": values[i, :, j] for j, name in enumerate(names) for i in range(number)
    }
    about = {name: attributes(conditioner.reader, name, "sample") for name in names}
    if isinstance(query.form, tuple):
        arrays = query.answer(flat)
        assert isinstance(arrays, dict)
        return {k: np.stack([arrays[f"{k}_sample{i}"] for i in range(number)]) for k in names}
    answer = query.answer({})
    if isinstance(query.form, pd.DataFrame):
        return query.answer(flat, {key: about[key.rpartition("_")[0]] for key in flat})
    assert isinstance(answer, xr.Dataset)
    shape, dims = (number, *query.dims.values()), ("sample", *query.dims)
    fields = {k: (dims, values[..., j].reshape(shape), about[k]) for j, k in enumerate(names)}
    answer = answer.assign(fields).assign_coords(sample=np.arange(number))
    return with_times(answer, conditioner.reader, timed=query.time is not None)
