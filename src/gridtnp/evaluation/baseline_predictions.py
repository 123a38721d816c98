"""Baselines that predict anywhere, in the form of `GriddedTNP.predict`: maps to compare with.

`gt.baseline("regression-kriging", train).predict(context, at=grid)`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gridtnp.baselines.interpolation import Points, RawTask, observed_targets
from gridtnp.data.dataset import Dataset
from gridtnp.errors import require_known
from gridtnp.evaluation.baselines import (
    BASELINES,
    BaselineTraining,
    FittedBaseline,
    fit_baseline,
)
from gridtnp.evaluation.scores import Forecasts
from gridtnp.inference.conditioning import Conditioning
from gridtnp.inference.context_reader import ContextReader, Static
from gridtnp.inference.forecasts import Advance, Forecaster, above
from gridtnp.inference.prediction import Exceed, require_quantiles, thresholds
from gridtnp.inference.queries import Answer, Places, Query, column
from gridtnp.inference.running import Output, answer_query
from gridtnp.sources.coordinates import unit_vectors
from gridtnp.sources.quality import DataWarning
from gridtnp.sources.reading import Data
from gridtnp.sources.times import duration
from gridtnp.tasks.observations import Observations, TaskTime
from gridtnp.tasks.specification import TaskSpec

CHUNK = 8192
"""Points predicted at once."""


@runtime_checkable
class HasSpec(Protocol):
    """A model, as far as it says what tasks look like."""

    @property
    def spec(self) -> TaskSpec: ...


def baseline(
    name: str,
    train: Dataset | None = None,
    *,
    like: HasSpec | TaskSpec | None = None,
    seed: int = 0,
) -> BaselinePredictor:
    """Fit a baseline of `evaluate` to training data, to predict with it.

    `like` is a model, or its `spec`, with the same tasks (context sets, time windows, lead); by
    default a task has all sources at one time.
    """
    require_known(name.partition(":")[0], BASELINES, "baseline")
    if not isinstance(train, Dataset):
        raise ValueError(
            f"Baseline {name!r} has no training data; give a Dataset, such as the training part of "
            f"a split: gt.baseline({name!r}, train)."
        )
    spec = TaskSpec.of(train) if like is None else like if isinstance(like, TaskSpec) else like.spec
    data = spec.aligned(train)
    return BaselinePredictor(
        name, spec, fit_baseline(name, BaselineTraining(spec, data, seed=seed), data)
    )


@dataclass(frozen=True, eq=False)
class BaselinePredictor:
    """A fitted baseline, and the tasks that it is for."""

    name: str
    spec: TaskSpec
    fitted: FittedBaseline

    def predict(
        self,
        context: Dataset | Mapping[str, Data],
        at: Places,
        *,
        quantiles: Sequence[float] = (0.05, 0.95),
        exceed: Exceed = (),
        times: Iterable[Any] | None = None,
        static: Static = None,
        to: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        progress: bool = True,
    ) -> Answer | Path:
        """Predict at any places and times, in the form of the query; see `GriddedTNP.predict`.

        Points that the baseline cannot predict are NaN; a warning counts them.
        """
        require_quantiles(self.spec, quantiles)
        wanted = thresholds(self.spec, exceed)
        reader = ContextReader.of(self.spec, context, static)
        forecaster = BaselineForecaster(tuple(quantiles), wanted, self, reader)
        return answer_query(forecaster, at, times, Output(to, overwrite, progress=progress))


@dataclass(eq=False)
class Unpredicted:
    """Counts of points that were asked for, and of those that could not be predicted."""

    asked: int = 0
    unknown: int = 0


@dataclass(frozen=True, eq=False)
class BaselineForecaster(Forecaster):
    """Predictions of a baseline from some data."""

    baseline: BaselinePredictor
    data_reader: ContextReader
    unpredicted: Unpredicted = field(default_factory=Unpredicted)

    @property
    def spec(self) -> TaskSpec:
        return self.baseline.spec

    @property
    def reader(self) -> ContextReader:
        return self.data_reader

    def fresh(self) -> BaselineForecaster:
        return replace(self, unpredicted=Unpredicted())

    def counts(self) -> Unpredicted:
        return self.unpredicted

    def require_points(self, counts: Unpredicted) -> None:
        if counts.asked and counts.unknown == counts.asked:
            raise ValueError(
                f"Baseline {self.baseline.name!r} cannot predict any of the {counts.asked:,} "
                "points; give it observations and features there."
            )

    def warn(self, counts: Unpredicted, stacklevel: int) -> None:
        if counts.unknown:
            warnings.warn(
                f"{counts.unknown:,} of {counts.asked:,} points cannot be predicted by "
                f"{self.baseline.name!r} and are NaN.",
                DataWarning,
                stacklevel=stacklevel,
            )

    def columns(self, query: Query, advance: Advance) -> dict[str, np.ndarray]:
        found = {name: np.full(len(query.lat), np.nan) for name in self.names}
        names, reader = self.spec.target_names, self.reader
        known = reader.known(query)
        for task_time, rows in reader.steps(query):
            context = reader.observations(task_time)
            places = {name: self._places(name, of) for name, of in context.items()}
            conditioning = Conditioning({}, places)
            for some in np.array_split(rows, max(1, -(-len(rows) // CHUNK))):
                raw_task = self._raw_task(context, query, known, some, task_time)
                predicted = self.baseline.fitted.predict(raw_task)
                usable = np.isfinite(raw_task.targets.static).all(1)
                here = unit_vectors(query.lat[some], query.lon[some])
                for v, name in enumerate(names):
                    mean, std = predicted.mean[:, v], predicted.std[:, v]
                    marginal = predicted.marginals[v] if predicted.marginals else None
                    unknown = np.full(len(some), np.nan)
                    of = Forecasts(unknown, mean, std, marginal, unknown)
                    support = conditioning.distance(reader.sets_of(name), here)
                    results: dict[str | float, np.ndarray] = {"mean": mean, "std": std}
                    results |= {q: of.quantile(q) for q in self.quantiles}
                    results |= {above(t): of.exceedance(t) for t in self.exceed[name]}
                    results["support"] = support
                    known_here = usable & np.isfinite(mean)
                    for statistic, values in results.items():
                        found[column(name, statistic)][some] = np.where(known_here, values, np.nan)
                advance(len(some))
        mean = found[column(names[0], "mean")]
        self.unpredicted.asked += len(mean)
        self.unpredicted.unknown += int(np.isnan(mean).sum())
        return found

    def _places(self, name: str, of: Observations) -> np.ndarray:
        source = self.reader.variables[name].source
        places = source.places(of.rows)
        return unit_vectors(source.lat[places], source.lon[places])

    def _raw_task(
        self,
        context: Mapping[str, Observations],
        query: Query,
        known: Mapping[str, np.ndarray],
        rows: np.ndarray,
        task_time: TaskTime,
    ) -> RawTask:
        """A task whose targets are rows of the query, with unknown truth."""
        data, spec = self.reader.data, self.spec
        time = None if query.time is None else query.time[rows]
        if time is None and task_time is not None:
            time = np.full(len(rows), task_time + duration(spec.lead))
        lat, lon = query.lat[rows], query.lon[rows]
        static = [
            feature.at(lat, lon, known[name][rows] if name in known else None)[:, None]
            for name, feature in data.statics.items()
        ]
        features = np.concatenate([np.zeros((len(rows), 0), np.float32), *static], -1)
        source = data.sources.get(spec.target_source)
        nowhere = np.full(len(rows), -1)
        targets = Points(lat, lon, time, nowhere, features)
        if source is None or source.labels is not None:
            targets = Points(lat, lon, time, nowhere.astype(str).astype(object), features)
        observed, values, extra = observed_targets(spec, context)
        if source is None:  # only other sources are given
            points = Points(lat[:0], lon[:0], None, nowhere[:0], features[:0])
        else:
            points = Points.of(data, source, observed)
        truth = np.full((len(rows), len(spec.target)), np.nan)
        return RawTask(data, task_time, points, values, targets, truth, context, extra)
