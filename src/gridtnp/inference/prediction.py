"""Predictions anywhere: mean, standard deviation, quantiles and support in the form of the query.

The context of each time is encoded once. Points are decoded in chunks, so that memory is bounded,
and predictions for many times can be written to disk time by time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch.distributions import Distribution

from gridtnp.contents import ModelContents
from gridtnp.data.coordinates import unit_vectors
from gridtnp.data.dataset import Dataset
from gridtnp.data.reading import Data
from gridtnp.data.sources import Variable
from gridtnp.data.times import duration, to_times
from gridtnp.distributions.kinds import limits as kind_limits
from gridtnp.distributions.marginals import outputs_of
from gridtnp.errors import require_known
from gridtnp.inference.conditioning import Conditioner, ContextReader, Static
from gridtnp.inference.queries import Answer, Places, Query, attributes_of, column
from gridtnp.inference.wind import Wind
from gridtnp.inference.writers import open_stream
from gridtnp.network.model import PIECE
from gridtnp.tasks.specification import TaskSpec

CHUNK = 8 * PIECE
"""Points assembled and decoded at once."""
Advance = Callable[[int], None]
Exceed = Sequence[float] | Mapping[str, Sequence[float]]
"""Thresholds whose probability of being exceeded is asked for, by variable if there are several."""


def predict(
    model: ModelContents,
    context: Dataset | Mapping[str, Data],
    at: Places,
    *,
    quantiles: Sequence[float] = (0.05, 0.95),
    exceed: Exceed = (),
    derive: Sequence[str] = (),
    times: Iterable[Any] | None = None,
    static: Static = None,
    to: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    chunk: int = CHUNK,
    progress: bool = True,
) -> Answer | Path:
    """See `GriddedTNP.predict`."""
    if chunk < 1:
        raise ValueError(f"chunk={chunk}: a chunk needs at least one point.")
    require_quantiles(model.spec, quantiles)
    fast = ()
    if isinstance(exceed, Mapping) and "speed" not in model.spec.target_names:
        fast = exceed.get("speed", ())
        exceed = {name: levels for name, levels in exceed.items() if name != "speed"}
    wind = Wind.of(model, derive, quantiles, fast)
    wanted = thresholds(model.spec, exceed, _limits(model))
    conditioner = Conditioner.of(model, context, static)
    step = -(-chunk // PIECE) * PIECE  # whole pieces, so that chunks do not change the numbers

    def answer(query: Query, advance: Advance) -> Answer:
        return _answer(conditioner, query, quantiles, wanted, wind, step, advance)

    finish = partial(conditioner.warn, stacklevel=6)
    with model.inference():
        return answer_query(answer, at, times, to, overwrite, progress, finish)


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
        if exceed and len(spec.target) > 1:
            raise ValueError(
                f"exceed={list(exceed)} does not say which of {list(spec.target_names)}; give "
                f"exceed={{{spec.target_names[0]!r}: {list(exceed)}}}."
            )
        exceed = {spec.target_names[0]: exceed}
    for name, levels in exceed.items():
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
    return {name: tuple(exceed.get(name, ())) for name in spec.target_names}


def _limits(model: ModelContents) -> dict[str, tuple[float, float]]:
    """The lowest and the highest possible value of every target, in the units of the data."""
    if not model.config.likelihood:
        return {}
    ends = np.array([kind_limits(one) for one in model.config.likelihood]).T
    low, high = (model.normaliser.restore(model.spec.target, end[None])[0] for end in ends)
    pairs = zip(model.spec.target_names, low.tolist(), high.tolist(), strict=True)
    return {name: (a, b) for name, a, b in pairs}


def above(threshold: float) -> str:
    """The name of the statistic P(Y > threshold)."""
    return f"above_{threshold:.10g}"


def answer_query(
    answer: Callable[[Query, Advance], Answer],
    at: Places,
    times: Iterable[Any] | None,
    to: str | os.PathLike[str] | None,
    overwrite: bool,
    progress: bool,
    finish: Callable[[], None],
) -> Answer | Path:
    """Answer a query in memory, or time by time in a file; `finish` is called before it is kept."""
    query, when = Query.of(at), requested_times(times)
    total = len(query.lat) * (1 if when is None else len(when))
    with progress_bar(total, "predicting", progress) as advance:
        if to is None:
            found = answer(query if when is None else query.at_times(when), advance)
            finish()
            return found
        pieces = query.by_time() if when is None else (query.at_times(t[None]) for t in when)
        dim = "time" if when is not None else query.time_dim
        with open_stream(to, dim, overwrite=overwrite) as writer:
            for piece in pieces:
                writer.add(answer(piece, advance))
            finish()
        return writer.path


def _answer(
    conditioner: Conditioner,
    query: Query,
    quantiles: Sequence[float],
    exceed: Mapping[str, tuple[float, ...]],
    wind: Wind | None,
    step: int,
    advance: Advance,
) -> Answer:
    """Answer a query in memory: encode time by time, decode chunk by chunk."""
    model = conditioner.model
    spec, normaliser, network = model.spec, model.normaliser, model.network
    statistics = statistics_of(quantiles, exceed)
    names = [column(name, one) for name, own in statistics.items() for one in own]
    names += [] if wind is None else wind.columns()
    columns = {name: np.full(len(query.lat), np.nan) for name in names}
    known, task_time = conditioner.reader.known(query), None
    for task_time, rows in conditioner.reader.groups(query):
        conditioning, encoding = conditioner.at(task_time), None
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            target = conditioner.targets(query, known, some, task_time)
            if encoding is None:
                encoding = network.encode(conditioner.complete(conditioning, target))
            predicted = network.decode(encoding, target)
            usable = slice(None) if target.mask is None else target.mask[0].cpu().numpy()
            results: dict[str | float, np.ndarray] = {
                "mean": normaliser.restore(spec.target, _to_numpy(predicted.mean)),
                "std": _to_numpy(predicted.stddev) * normaliser.scale(spec.target),
            }
            for q in quantiles:
                level = predicted.icdf(predicted.mean.new_full((), q))
                results[q] = normaliser.restore(spec.target, _to_numpy(level))
            for name, values in ({} if wind is None else wind.at(predicted)).items():
                columns[name][some[usable]] = values[usable]
            places = unit_vectors(query.lat[some], query.lon[some])[usable]
            for i, name in enumerate(spec.target_names):
                for statistic, values in results.items():
                    columns[column(name, statistic)][some[usable]] = values[usable, i]
                for level in exceed[name]:
                    chance = _chance(model, predicted, i, level)
                    columns[column(name, above(level))][some[usable]] = chance[usable]
                distance = conditioning.distance(conditioner.reader.sets_of(name), places)
                columns[column(name, "support")][some[usable]] = distance
            advance(len(some))
    about = {
        column(name, statistic): attributes(conditioner.reader, name, statistic)
        for name, own in statistics.items()
        for statistic in own
    }
    about |= {} if wind is None else wind.columns()
    answer = query.answer(columns, about)
    if isinstance(answer, xr.Dataset):
        answer = with_times(answer, spec, query, task_time)
    return answer


def statistics_of(
    quantiles: Sequence[float], exceed: Mapping[str, tuple[float, ...]]
) -> dict[str, list[str | float]]:
    """What is predicted of every target variable."""
    return {
        name: ["mean", "std", *quantiles, *map(above, levels), "support"]
        for name, levels in exceed.items()
    }


def _chance(model: ModelContents, predicted: Distribution, output: int, level: float) -> np.ndarray:
    """The probability that an output is higher than a level in the units of the data."""
    name, marginal = model.spec.target[output], outputs_of(predicted)[output]
    normalised = model.normaliser.normalise([name], np.array([[float(level)]])).item()
    return 1 - _to_numpy(marginal.cdf(torch.full_like(marginal.mean, normalised)))


def requested_times(times: Iterable[Any] | None) -> np.ndarray | None:
    """The `times=` of a query."""
    if times is None:
        return None
    wanted = list(times)
    if not wanted:
        raise ValueError("times=[] is empty; give at least one time, or leave it out.")
    return to_times(wanted, "times")


def with_times(
    answer: xr.Dataset, spec: TaskSpec, query: Query, task_time: np.datetime64 | None
) -> xr.Dataset:
    """Add the valid time and, for a forecast, the reference time."""
    lead = duration(spec.lead)
    if query.time is None and task_time is not None and "time" not in answer.variables:
        answer = answer.assign_coords(time=((), task_time + lead, {"standard_name": "time"}))
    if lead and "time" in answer.coords:
        about = {"standard_name": "forecast_reference_time"}
        init = (answer["time"].dims, answer["time"].values - lead, about)
        answer = answer.assign_coords(init_time=init)
        answer.attrs["lead_time"] = spec.lead
    return answer


def attributes(reader: ContextReader, name: str, statistic: str | float) -> dict[str, Any]:
    """CF attributes of a statistic of a predicted variable."""
    if statistic == "support":
        return {"long_name": f"{name}: distance to the nearest observation", "units": "km"}
    source = reader.data.sources.get(reader.spec.target_source)
    if isinstance(statistic, str) and statistic.startswith("above_"):
        own = reader.spec.units.get(f"{reader.spec.target_source}.{name}")
        text = f"{statistic.removeprefix('above_')} {own or ''}".rstrip()
        return {"long_name": f"probability of {name} > {text}", "units": "1"}
    units = reader.spec.units.get(f"{reader.spec.target_source}.{name}")
    variable = Variable(name, units)
    if source is not None and name in source.names:
        observed = source.variable(name)
        variable = Variable(name, units or observed.units, observed.attributes)
    return attributes_of(variable, statistic)


def _to_numpy(values: torch.Tensor) -> np.ndarray:
    """The only task of a batch, in double precision."""
    return values[0].double().cpu().numpy()


@contextmanager
def progress_bar(total: int, what: str, wanted: bool) -> Iterator[Advance]:
    """A progress bar, if stderr is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    disable = not (wanted and console.is_terminal)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=disable
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda number: progress.advance(task, number)
