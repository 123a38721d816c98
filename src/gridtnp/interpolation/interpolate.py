"""`gt.interpolate`: observations of anything to a calibrated map, at once.

Each time is interpolated by itself from its own observations. Answers have the form of the query.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from gridtnp.amortised.predictor import Interpolation
from gridtnp.distributions.continuous import NormalMixture
from gridtnp.inference.forecasts import above, read_levels
from gridtnp.inference.queries import Answer, Query, column
from gridtnp.interpolation.joint import sample
from gridtnp.interpolation.places import (
    Covariates,
    Errors,
    Observed,
    read_covariates,
    read_observations,
    read_places,
)
from gridtnp.sources.quality import sentinels
from gridtnp.sources.source import NEAR_ZERO, Variable
from gridtnp.sources.times import show

FEWEST = 3
"""Observations that say something about the spread."""


def interpolate(
    observations: Any,
    at: Any,
    *,
    value: str | None = None,
    covariates: Covariates = None,
    error: Errors = None,
    quantiles: Sequence[float] = (0.05, 0.95),
    exceed: float | Sequence[float] = (),
    samples: int = 0,
    seed: int = 0,
) -> Answer:
    """Interpolate observations with the pretrained model, without training.

    `observations` is a table or xarray dataset with latitudes and longitudes in degrees, or with x
    and y, and one variable (or `value=` names it); or a tuple of arrays: places (n, 2) and values.
    `at` is a table, an xarray grid, a tuple (lat, lon), or an array like the places. The answer has
    its form, with the columns `<variable>_mean`, `_std`, quantiles such as `_q05` and probabilities
    of more than the thresholds `exceed`, such as `_above_1`. Values that are never negative and
    near zero are predicted so (docs/interpolate.md).

    If observations have times, each is interpolated by itself; the answer is at the times of `at`,
    or at all of them. `covariates` are names of columns of both, a field on a latitude-longitude
    grid, or a tuple of arrays. `error` is the standard deviation of reading errors, in the units of
    the values: a number, the name of a column, or one per observation; the answer is then for new
    observations without such errors. With `samples`, that many joint samples are drawn as well.
    """
    if samples < 0:
        raise ValueError(f"samples={samples}: must be the number of samples, from 0 on.")
    levels = read_levels(exceed)
    observed = read_observations(observations, value, covariates, error)
    query, places = read_places(at, observed)
    known = read_covariates(covariates, observed, query)
    here, there = (None, None) if known is None else known
    usable = _usable(observed, here)
    times = None
    if observed.time is not None:
        empty = observed.time[:0] if observed.empty is None else observed.empty
        times = np.union1d(observed.time, empty)
    if times is not None and len(times) > 1 and query.time is None:
        query = query.at_times(times)
        places = np.tile(places, (len(times), 1))
        there = None if there is None else np.tile(there, (len(times), 1))
    statistics = _Statistics(tuple(quantiles), levels, _is_positive(observed, usable))
    names = {
        what: _column(observed.name, what)
        for what in ("mean", "std", *quantiles, *map(above, levels))
    }
    drawn = [_column(observed.name, f"sample{i + 1}") for i in range(samples)]
    columns = {name: np.full(len(places), np.nan) for name in (*names.values(), *drawn)}
    answered = _answered(there, len(places))
    for time, rows, targets in _tasks(observed, usable, times, query, answered):
        problem = _problem(observed, rows, here)
        if problem is not None:
            if times is None or len(times) == 1:
                raise ValueError(problem)
            warnings.warn(f"{show(time)}: {problem} The answer is NaN.", stacklevel=2)
            continue
        found = Interpolation.of(
            _tensor(observed.places[rows]),
            _tensor(observed.values[rows]),
            torch.ones(1, len(rows), dtype=torch.bool),
            None if here is None else _tensor(here[rows]),
            None if observed.error is None else _tensor(observed.error[rows]),
        )
        x = _tensor(places[targets])
        extra = None if there is None else _tensor(there[targets])
        for piece, numbers in found.at(x, extra, statistics.of):
            for name, values in zip(names.values(), numbers, strict=True):
                columns[name][targets[piece]] = values
        if samples:
            fields = statistics.clip(sample(found, samples, x, extra, seed=seed)[:, 0]).numpy()
            for name, values in zip(drawn, fields, strict=True):
                columns[name][targets] = values
    return _answer(query, observed, columns, drawn)


@dataclass(frozen=True)
class _Statistics:
    """What is answered of a predicted variable Y, or of max(Y, 0) if it is `positive`."""

    quantiles: tuple[float, ...]
    thresholds: tuple[float, ...]
    positive: bool

    def of(self, y: NormalMixture) -> list[np.ndarray]:
        """Mean, standard deviation, quantiles and probabilities of a batch of one."""
        mean, std = y.positive_part() if self.positive else (y.mean, y.stddev)
        levels = [torch.full_like(mean, q) for q in self.quantiles]
        found = [mean, std, *(self.clip(y.icdf(level)) for level in levels)]
        for threshold in self.thresholds:
            certain = self.positive and threshold < 0
            chance = 1 - y.cdf(torch.full_like(mean, threshold))
            found.append(torch.ones_like(mean) if certain else chance)
        return [part[0].numpy() for part in found]

    def clip(self, y: torch.Tensor) -> torch.Tensor:
        return y.clamp_min(0.0) if self.positive else y


def _is_positive(observed: Observed, usable: np.ndarray) -> bool:
    """Whether the values are never negative and near zero, as those of rain."""
    y = observed.values[usable]
    variable = Variable(observed.name, observed.attributes.get("units"))
    return bool(len(y) and 0 <= y.min() < NEAR_ZERO * y.std()) and not variable.in_degrees


def _column(name: str, what: str | float) -> str:
    return column(name, what).lstrip("_") if not name else column(name, what)


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.float64))[None]


def _usable(observed: Observed, covariates: np.ndarray | None) -> np.ndarray:
    """Rows without missing numbers; says how many are left out, and what else may be missing."""
    if not np.isfinite(observed.places).all():
        raise ValueError("Some observations have no place (NaN); drop them.")
    usable = np.isfinite(observed.values)
    if len(usable) and not usable.all():
        lost = observed.values[~usable]
        kinds = {"NaN": np.isnan(lost), "infinite": np.isinf(lost)}
        what = " or ".join(kind for kind, found in kinds.items() if found.any())
        text = f"{len(lost)} of {len(usable)} observations are {what} and are left out."
        warnings.warn(text, stacklevel=3)
    notes = sentinels("", observed.name or "the value", observed.values[usable])
    if notes:
        note = max(notes, key=lambda note: note.count)
        what = note.why.partition(";")[0]
        text = f"{note.count} of {note.total} observations: {what}; make it NaN."
        warnings.warn(text, stacklevel=3)
    if covariates is not None:
        known = np.isfinite(covariates).all(1)
        if (usable & ~known).any():
            text = f"{(usable & ~known).sum()} observations have no covariate and are left out."
            warnings.warn(text, stacklevel=3)
        usable &= known
    return usable


def _answered(covariates: np.ndarray | None, number: int) -> np.ndarray:
    """Places with all covariates; says how many have not."""
    if covariates is None:
        return np.ones(number, bool)
    known = np.asarray(np.isfinite(covariates).all(1))
    if not known.any() and number:
        raise ValueError(
            "No place has all covariates; give a field that covers the places, or leave "
            "covariates out."
        )
    if not known.all():
        text = f"{(~known).sum()} of {number} places have no covariate; their answer is NaN."
        warnings.warn(text, stacklevel=3)
    return known


def _tasks(
    observed: Observed,
    usable: np.ndarray,
    times: np.ndarray | None,
    query: Query,
    answered: np.ndarray,
) -> Any:
    """Each time with the rows of its observations and targets."""
    if times is None or (len(times) == 1 and query.time is None):
        yield None, np.flatnonzero(usable), np.flatnonzero(answered)
        return
    assert query.time is not None
    assert observed.time is not None
    absent = ~np.isin(query.time, times)
    if absent.any():
        text = f"{absent.sum()} places are at times without observations; their answer is NaN."
        warnings.warn(text, stacklevel=3)
    for time in times:
        rows = np.flatnonzero(usable & (observed.time == time))
        targets = np.flatnonzero(answered & (query.time == time))
        if len(targets):
            yield time, rows, targets


def _problem(observed: Observed, rows: np.ndarray, covariates: np.ndarray | None) -> str | None:
    """Why these observations cannot be interpolated."""
    values, places = observed.values[rows], observed.places[rows]
    if len(rows) < FEWEST:
        return f"{len(rows)} observations are too few to interpolate; at least {FEWEST} are needed."
    number = 0 if covariates is None else covariates.shape[1]
    if len(rows) < FEWEST + number:
        return (
            f"{len(rows)} observations are too few for {number} covariates; give at least "
            f"{FEWEST + number}, or fewer covariates."
        )
    if (places == places[0]).all():
        return f"All {len(rows)} observations are at one place; at least two places are needed."
    if np.ptp(values) == 0:
        return f"All {len(rows)} observations are {values[0]:g}, which says nothing of the spread."
    return None


def _answer(
    query: Query, observed: Observed, columns: dict[str, np.ndarray], drawn: list[str]
) -> Answer:
    attributes = {name: dict(observed.attributes) for name in columns}
    for name in columns:
        if "above_" in name:
            threshold = name.rpartition("above_")[2]
            text = f"probability of {observed.name or 'the value'} > {threshold}"
            attributes[name] = {"long_name": text, "units": "1"}
    found = query.answer(columns, attributes)
    if isinstance(found, xr.Dataset) and drawn:
        joined = xr.concat([found[name] for name in drawn], "sample").rename(
            f"{observed.name}_sample"
        )
        found = found.drop_vars(drawn).assign({f"{observed.name}_sample": joined})
    return found
