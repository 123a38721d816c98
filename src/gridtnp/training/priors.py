"""Fitting what the network corrects: regression, kriging, and persistent effects of stations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from gridtnp.contents import ModelContents
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import TERMS, StationEffects, terms
from gridtnp.data.sources import Panel
from gridtnp.network.kriging import KrigedNetwork
from gridtnp.network.kriging import Observations as Kriged
from gridtnp.task import Task
from gridtnp.tasks.selection import Fraction

TASKS, BATCH = 16, 4
"""Training tasks that hyper-parameters are fitted to, and how many are drawn at once."""
TIMES = 200
"""Training times that station effects are estimated from."""
OFTEN = 5
"""Times that a location must have been observed at, on average, to be a station."""
ROUNDS = 2
"""Rounds of estimating station effects given the hyper-parameters, and the other way round."""
INITIAL = 0.1
"""Standard deviation of station effects in the first round, in normalised units."""


def fit_prior(model: ModelContents, data: Dataset, seed: int) -> ModelContents:
    """Fit the prior of a model to training tasks; models without one are returned unchanged."""
    network = model.network
    if not isinstance(network, KrigedNetwork):
        return model
    network.fit_prior(_tasks(model, data, seed))
    for _ in range(ROUNDS):
        effects = _station_effects(model, network, data, seed)
        if effects is None:
            break
        model = replace(model, normaliser=replace(model.normaliser, stations=effects))
        network.fit_prior(_tasks(model, data, seed))
    return model


def calibrate(model: ModelContents, validation: Sequence[Task]) -> None:
    """Calibrate the standard deviations of a network with a prior on validation tasks."""
    if isinstance(model.network, KrigedNetwork) and validation:
        with model.inference():
            model.network.calibrate([task.to(model.device) for task in validation])


def _tasks(model: ModelContents, data: Dataset, seed: int) -> list[Task]:
    sampler = model.sampler(data, batch=BATCH, seed=seed)
    return [sampler.draw(index) for index in range(TASKS // BATCH)]


@dataclass(frozen=True, eq=False)
class _Time:
    """All observations of an output at one time, and their locations and times."""

    observed: Kriged
    place: np.ndarray
    terms: np.ndarray


def _station_effects(
    model: ModelContents, network: KrigedNetwork, data: Dataset, seed: int
) -> StationEffects | None:
    """Effects from the leave-one-out errors of kriging; None if there are no fixed stations."""
    spec, source = model.spec, data.sources[model.spec.target_source]
    gridded = isinstance(source, Panel) and source.shape is not None
    if gridded or source.times is None:
        return None
    rounded = np.round(np.stack([source.lat, source.lon], -1), 3)
    _, first, station = np.unique(rounded, axis=0, return_index=True, return_inverse=True)
    station = station.reshape(-1)
    before = model.normaliser.stations
    raw = replace(model, normaliser=replace(model.normaliser, stations=None))
    coefficients = np.zeros((len(first), TERMS, len(spec.target)))
    for j, variable in enumerate(spec.target_names):
        if network.outputs[j] is None:
            continue
        known = np.zeros((len(first), TERMS))
        if before is not None:
            found = before.at(source.lat[first], source.lon[first])
            known = found[..., before.variables.index(variable)]
        found = _effects_of(network, j, list(_times(raw, network, j, data, seed)), station, known)
        if found is None:
            return None
        coefficients[..., j] = found
    used = np.abs(coefficients).sum((1, 2)) > 0
    return StationEffects(
        spec.target_source,
        spec.target_names,
        source.lat[first][used],
        source.lon[first][used],
        coefficients[used],
    )


def _times(
    model: ModelContents, network: KrigedNetwork, j: int, data: Dataset, seed: int
) -> Iterator[_Time]:
    """The observations of output `j` at random training times."""
    spec, of = model.spec, network.outputs[j]
    assert of is not None
    own = [name for name, held in spec.contexts.items() if held.source == spec.target_source]
    sampler = model.sampler(data, dict.fromkeys(own, Fraction(0.5)), batch=1, seed=seed)
    source = sampler.data.sources[spec.target_source]
    assert sampler.times is not None
    times = np.random.default_rng(seed).permutation(sampler.times)[:TIMES]
    for raw in sampler.raw_batches(times):
        observed = network.all_observations(sampler.assemble(raw), j)
        rows = np.concatenate([raw.target[0].rows, raw.context[of[0]][0].rows])
        yield _Time(observed, source.places(rows), terms(source.times_of(rows), len(rows)))


@torch.no_grad()
def _effects_of(
    network: KrigedNetwork, j: int, times: list[_Time], station: np.ndarray, known: np.ndarray
) -> np.ndarray | None:
    """Ridge regression of every station's errors on the terms, with the variance of the last."""
    size = len(known)
    precision, projected = np.zeros((size, TERMS, TERMS)), np.zeros((size, TERMS))
    count = np.zeros(size)
    for one in times:
        at = station[one.place]
        effect = (one.terms * known[at]).sum(1)
        y = one.observed.y - torch.from_numpy(effect)[None].to(one.observed.y.device)
        error, std = network.leave_one_out(j, replace(one.observed, y=y))
        total = error[0].cpu().numpy() + effect
        weight = 1 / np.square(std[0].cpu().numpy())
        square = one.terms[:, :, None] * one.terms[:, None]
        np.add.at(precision, at, weight[:, None, None] * square)
        np.add.at(projected, at, (weight * total)[:, None] * one.terms)
        np.add.at(count, at, 1)
    if count.sum() < OFTEN * max((count > 0).sum(), 1):
        return None
    variance = np.square(known[count > 0]).mean(0) if np.any(known) else INITIAL**2
    ridge = np.eye(TERMS) / np.maximum(variance, 1e-6)
    return np.linalg.solve(precision + ridge, projected[..., None])[..., 0]
