"""Predictions anywhere: mean, standard deviation, quantiles and support in the form of the query.

The context of each time is encoded once. Points are decoded in chunks, so that memory is bounded,
and predictions for many times can be written to disk time by time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gridtnp.contents import ModelContents
from gridtnp.data.coordinates import unit_vectors
from gridtnp.data.dataset import Dataset
from gridtnp.data.reading import Data
from gridtnp.data.sources import Variable
from gridtnp.data.times import duration, to_times
from gridtnp.inference.conditioning import Conditioner, Static
from gridtnp.inference.queries import Answer, Places, Query, attributes_of, column
from gridtnp.inference.writers import growing
from gridtnp.network.model import PIECE
from gridtnp.tasks.specification import TaskSpec

CHUNK = 8 * PIECE
"""Points assembled and decoded at once."""
Advance = Callable[[int], None]


def predict(
    model: ModelContents,
    context: Dataset | Mapping[str, Data],
    at: Places,
    *,
    quantiles: Sequence[float] = (0.05, 0.95),
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
    whats = ["mean", "std", *quantiles]
    for name in model.spec.target_names:
        _ = [column(name, what) for what in whats]  # raises for impossible quantiles
    conditioner = Conditioner.of(model, context, static)
    query, when = Query.of(at), chosen_times(times)
    total = len(query.lat) * (1 if when is None else len(when))
    step = -(-chunk // PIECE) * PIECE  # whole pieces: the same numbers whatever the chunk
    with model.inference(), bar(total, "predicting", progress) as advance:
        if to is None:
            whole = query if when is None else query.at_times(when)
            answer = _answer(conditioner, whole, quantiles, step, advance)
        else:
            pieces = query.by_time() if when is None else (query.at_times(t[None]) for t in when)
            dim = "time" if when is not None else query.time_dim
            with growing(to, dim, overwrite=overwrite) as file:
                for piece in pieces:
                    file.add(_answer(conditioner, piece, quantiles, step, advance))
                conditioner.warn()
            return file.path
    conditioner.warn()
    return answer


def _answer(
    conditioner: Conditioner, query: Query, quantiles: Sequence[float], step: int, advance: Advance
) -> Answer:
    """One query in memory: encoded time by time, decoded chunk by chunk."""
    model = conditioner.model
    spec, normaliser, network = model.spec, model.normaliser, model.network
    whats = ["mean", "std", *quantiles, "support"]
    columns = {
        column(name, what): np.full(len(query.lat), np.nan)
        for name in spec.target_names
        for what in whats
    }
    known, task_time = conditioner.known(query), None
    for task_time, rows in conditioner.groups(query):
        conditioning, encoding = conditioner.at(task_time), None
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            target = conditioner.targets(query, known, some, task_time)
            if encoding is None:
                encoding = network.encode(conditioner.complete(conditioning, target))
            made = network.decode(encoding, target)
            there = slice(None) if target.mask is None else target.mask[0].cpu().numpy()
            results: dict[str | float, np.ndarray] = {
                "mean": normaliser.restore(spec.target, _numbers(made.mean)),
                "std": _numbers(made.stddev) * normaliser.scale(spec.target),
            }
            for q in quantiles:
                level = made.icdf(made.mean.new_full((), q))
                results[q] = normaliser.restore(spec.target, _numbers(level))
            places = unit_vectors(query.lat[some], query.lon[some])[there]
            for i, name in enumerate(spec.target_names):
                for what, values in results.items():
                    columns[column(name, what)][some[there]] = values[there, i]
                near = conditioning.distance(conditioner.sets_of(name), places)
                columns[column(name, "support")][some[there]] = near
            advance(len(some))
    about = {
        column(name, what): attributes(conditioner, name, what)
        for name in spec.target_names
        for what in whats
    }
    answer = query.answer(columns, about)
    if isinstance(answer, xr.Dataset):
        answer = stamped(answer, spec, query, task_time)
    return answer


def chosen_times(times: Iterable[Any] | None) -> np.ndarray | None:
    """Times given beside the places."""
    if times is None:
        return None
    wanted = list(times)
    if not wanted:
        raise ValueError("times=[] is empty; give at least one time, or leave it out.")
    return to_times(wanted, "times")


def stamped(
    answer: xr.Dataset, spec: TaskSpec, query: Query, task_time: np.datetime64 | None
) -> xr.Dataset:
    """With its valid time and, for a forecast, its reference time."""
    lead = duration(spec.lead)
    if query.time is None and task_time is not None and "time" not in answer.variables:
        answer = answer.assign_coords(time=((), task_time + lead, {"standard_name": "time"}))
    if lead and "time" in answer.coords:
        made = {"standard_name": "forecast_reference_time"}
        init = (answer["time"].dims, answer["time"].values - lead, made)
        answer = answer.assign_coords(init_time=init)
        answer.attrs["lead_time"] = spec.lead
    return answer


def attributes(conditioner: Conditioner, name: str, what: str | float) -> dict[str, Any]:
    """CF attributes of a predicted variable."""
    if what == "support":
        return {"long_name": f"{name}: distance to the nearest observation", "units": "km"}
    source = conditioner.data.sources.get(conditioner.spec.target_source)
    units = conditioner.spec.units.get(f"{conditioner.spec.target_source}.{name}")
    variable = Variable(name, units)
    if source is not None and name in source.names:
        told = source.variable(name)
        variable = Variable(name, units or told.units, told.attributes)
    return attributes_of(variable, what)


def _numbers(values: torch.Tensor) -> np.ndarray:
    """The one task of a batch, in double precision."""
    return values[0].double().cpu().numpy()


@contextmanager
def bar(total: int, what: str, wanted: bool) -> Iterator[Advance]:
    """A progress bar on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    shown = wanted and console.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not shown
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda number: progress.advance(task, number)
