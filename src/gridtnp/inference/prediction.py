"""Predictions anywhere: mean, standard deviation, quantiles and support in the form of the query.

The context of each time is encoded once. Points are decoded in chunks, so that memory is bounded,
and predictions for many times can be written to disk time by time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributions import Distribution

from gridtnp.contents import ModelContents
from gridtnp.distributions.marginals import outputs_of
from gridtnp.errors import require_known
from gridtnp.inference.conditioning import Conditioner, Context, Unusable
from gridtnp.inference.context_reader import ContextReader, Static
from gridtnp.inference.forecasts import Advance, Forecaster, above, read_levels
from gridtnp.inference.queries import Answer, Places, Query, column
from gridtnp.inference.regions import Regions
from gridtnp.inference.running import Output, answer_query
from gridtnp.inference.stores import hash_text
from gridtnp.inference.tiles import Cells, network_on, require_tiles, tile
from gridtnp.inference.wind import Wind
from gridtnp.network.model import PIECE, NeuralProcess
from gridtnp.sources.coordinates import unit_vectors, wrap
from gridtnp.tasks.specification import TaskSpec

CHUNK = 8 * PIECE
"""Points assembled and decoded at once."""
Exceed = float | Sequence[float] | Mapping[str, float | Sequence[float]]
"""Thresholds whose probability of being exceeded is asked for, by variable if there are several."""


@dataclass(frozen=True, eq=False)
class ModelForecaster(Forecaster):
    """Predictions of a model, decoded `step` points at once, and the `wind` derived from them.

    If queries are `tiled`, each is answered by the network on the cells that it depends on.
    """

    conditioner: Conditioner
    step: int
    wind: Wind | None = None
    tiled: bool = False
    _tiles: dict[Cells, NeuralProcess] = field(default_factory=dict)

    @property
    def spec(self) -> TaskSpec:
        return self.conditioner.spec

    @property
    def reader(self) -> ContextReader:
        return self.conditioner.reader

    def about(self) -> dict[str, dict[str, Any]]:
        return super().about() | ({} if self.wind is None else self.wind.columns())

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"model": _digest(self.conditioner.model)}

    def fresh(self) -> ModelForecaster:
        return replace(self, conditioner=self.conditioner.fresh(), _tiles={})

    def for_regions(self, regions: Regions) -> ModelForecaster:
        if regions.tiled:
            require_tiles(self.conditioner.model.config)
        return replace(self, tiled=regions.tiled)

    def counts(self) -> Unusable:
        return self.conditioner.unusable

    def require_points(self, counts: Unusable) -> None:
        counts.require_points(self.conditioner.model.network.grid, self.spec.statics)

    def warn(self, counts: Unusable, stacklevel: int) -> None:
        grid = self.conditioner.model.network.grid
        counts.warn(grid, self.spec.statics, stacklevel + 1)

    @contextmanager
    def ready(self) -> Iterator[None]:
        with self.conditioner.model.inference():
            yield

    def _network(self, query: Query) -> NeuralProcess:
        model = self.conditioner.model
        if not self.tiled:
            return model.network
        spans = {"lat": query.lat, "lon": wrap(query.lon, self.reader.data.west)}
        ends = [spans.get(name, np.zeros(1)) for name in self.spec.coordinates]
        x = torch.tensor([[f(values) for values in ends] for f in (np.min, np.max)])
        cells = tile(model.config, x)
        if cells not in self._tiles:
            self._tiles.clear()
            self._tiles[cells] = network_on(model, cells)
        return self._tiles[cells]

    def columns(self, query: Query, advance: Advance) -> dict[str, np.ndarray]:
        """Encode time by time, decode chunk by chunk."""
        conditioner = self.conditioner
        spec, normaliser = self.spec, conditioner.model.normaliser
        columns = {name: np.full(len(query.lat), np.nan) for name in self.names}
        known, network = self.reader.known(query), self._network(query)
        for task_time, rows in self.reader.steps(query):
            for start in range(0, len(rows), self.step):
                some = rows[start : start + self.step]
                target = conditioner.targets(query, known, some, task_time)
                conditioning, encoding = conditioner.encoded(task_time, target, network)
                predicted = network.decode(encoding, target)
                usable = slice(None) if target.mask is None else target.mask[0].cpu().numpy()
                results: dict[str | float, np.ndarray] = {
                    "mean": normaliser.restore(spec.target, _to_numpy(predicted.mean)),
                    "std": _to_numpy(predicted.stddev) * normaliser.scale(spec.target),
                }
                for q in self.quantiles:
                    level = predicted.icdf(predicted.mean.new_full((), q))
                    results[q] = normaliser.restore(spec.target, _to_numpy(level))
                derived = {} if self.wind is None else self.wind.at(predicted)
                for name, values in derived.items():
                    columns[name][some[usable]] = values[usable]
                places = unit_vectors(query.lat[some], query.lon[some])[usable]
                for i, name in enumerate(spec.target_names):
                    for statistic, values in results.items():
                        columns[column(name, statistic)][some[usable]] = values[usable, i]
                    for level in self.exceed[name]:
                        chance = _chance(conditioner.model, predicted, i, level)
                        columns[column(name, above(level))][some[usable]] = chance[usable]
                    distance = conditioning.distance(self.reader.sets_of(name), places)
                    columns[column(name, "support")][some[usable]] = distance
                advance(len(some))
        return columns


def predict(
    model: ModelContents,
    context: Context,
    at: Places,
    *,
    quantiles: Sequence[float] = (0.05, 0.95),
    exceed: Exceed = (),
    derive: Sequence[str] = (),
    times: Iterable[Any] | None = None,
    static: Static = None,
    chunk: int = CHUNK,
    output: Output | None = None,
) -> Answer | Path:
    """See `GriddedTNP.predict`."""
    if chunk < 1:
        raise ValueError(f"chunk={chunk}: a chunk needs at least one point.")
    require_quantiles(model.spec, quantiles)
    fast = ()
    if isinstance(exceed, Mapping) and "speed" not in model.spec.target_names:
        fast = read_levels(exceed.get("speed", ()))
        exceed = {name: levels for name, levels in exceed.items() if name != "speed"}
    wind = Wind.of(model, derive, quantiles, fast)
    wanted = thresholds(model.spec, exceed, model.limits)
    conditioner = Conditioner.of(model, context, static)
    step = -(-chunk // PIECE) * PIECE  # whole pieces, so that chunks do not change the numbers
    forecaster = ModelForecaster(tuple(quantiles), wanted, conditioner, step, wind)
    return answer_query(forecaster, at, times, output or Output())


def require_quantiles(spec: TaskSpec, quantiles: Sequence[float]) -> None:
    """Raise for impossible quantiles."""
    for name in spec.target_names:
        _ = [column(name, quantile) for quantile in quantiles]


def thresholds(
    spec: TaskSpec, exceed: Exceed, limits: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, tuple[float, ...]]:
    """The thresholds of every target variable; raises for those without meaning.

    `limits` are the lowest and the highest possible value.
    """
    if not isinstance(exceed, Mapping):
        levels = list(read_levels(exceed))
        if levels and len(spec.target) > 1:
            raise ValueError(
                f"exceed={levels} does not say which of {list(spec.target_names)}; give "
                f"exceed={{{spec.target_names[0]!r}: {levels}}}."
            )
        exceed = {spec.target_names[0]: levels}
    wanted = {name: read_levels(levels) for name, levels in exceed.items()}
    for name, levels in wanted.items():
        require_known(name, spec.target_names, "target", "in exceed=")
        low, high = (limits or {}).get(name, (-np.inf, np.inf))
        for level in levels:
            if not np.isfinite(level):
                raise ValueError(f"exceed={level}: a threshold must be a finite number.")
            if not low <= level < high:
                certain = "always" if level < low else "never"
                raise ValueError(
                    f"exceed={level:g}: {name} is {certain} higher, because its values are from "
                    f"{low:g} to {high:g}; give a threshold between them."
                )
    return {name: wanted.get(name, ()) for name in spec.target_names}


def _chance(model: ModelContents, predicted: Distribution, output: int, level: float) -> np.ndarray:
    """The probability that an output is higher than a level in the units of the data."""
    name, marginal = model.spec.target[output], outputs_of(predicted)[output]
    normalised = model.normaliser.normalise([name], np.array([[float(level)]])).item()
    return 1 - _to_numpy(marginal.cdf(torch.full_like(marginal.mean, normalised)))


def _to_numpy(values: torch.Tensor) -> np.ndarray:
    """The only task of a batch, in double precision."""
    return values[0].double().cpu().numpy()


def _digest(model: ModelContents) -> str:
    """A hash of everything that decides what a model predicts."""
    state = model.network.state_dict()
    weights = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in state.values()]
    about = (model.config, model.spec, model.normaliser, list(state))
    return hash_text(repr(about).encode(), *(t.numpy().tobytes() for t in weights))
