"""Predictions anywhere: a query in, the same with a mean, a spread, quantiles and support out.

The context of each time is encoded once. The points are decoded in chunks, so that memory is
bounded however many there are, and answers for many times can go straight to disk.
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
from torch import nn

from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.data.reading import Data
from gridtnp.data.sources import Variable
from gridtnp.data.times import duration, to_times
from gridtnp.inference.conditioning import Static, View, on_sphere
from gridtnp.inference.queries import Answer, Places, Query, attributes_of, column
from gridtnp.inference.writers import growing
from gridtnp.network.model import PIECE, NeuralProcess
from gridtnp.tasks.specification import Setting

CHUNK = 8 * PIECE
"""Points that are prepared and decoded at once."""
Advance = Callable[[int], None]


def predict(
    network: NeuralProcess,
    setting: Setting,
    normaliser: Normaliser,
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
    """What `GriddedTNP.predict` says."""
    if chunk < 1:
        raise ValueError(f"A chunk must hold at least one point, got {chunk}.")
    whats = ["mean", "std", *quantiles]
    for name in setting.target_names:
        _ = [column(name, what) for what in whats]  # a wrong quantile is told at once
    view = View.of(network, setting, normaliser, context, static)
    query, when = Query.of(at), chosen_times(times)
    total = len(query.lat) * (1 if when is None else len(when))
    step = -(-chunk // PIECE) * PIECE  # whole pieces: the same numbers whatever the chunk
    with quiet(network), bar(total, "predicting", progress) as advance:
        if to is None:
            whole = query if when is None else query.at_times(when)
            answer = _answer(view, whole, quantiles, step, advance)
        else:
            pieces = query.by_time() if when is None else (query.at_times(t[None]) for t in when)
            dim = "time" if when is not None else query.time_dim
            with growing(to, dim, overwrite=overwrite) as file:
                for piece in pieces:
                    file.add(_answer(view, piece, quantiles, step, advance))
                view.tell()
            return file.path
    view.tell()
    return answer


def _answer(
    view: View, query: Query, quantiles: Sequence[float], step: int, advance: Advance
) -> Answer:
    """One query whole: encoded time by time, decoded chunk by chunk."""
    setting, normaliser = view.setting, view.assembler.normaliser
    assert normaliser is not None
    whats = ["mean", "std", *quantiles, "support"]
    columns = {
        column(name, what): np.full(len(query.lat), np.nan)
        for name in setting.target_names
        for what in whats
    }
    known, moment = view.known(query), None
    for moment, rows in view.groups(query):
        evidence, encoding = view.evidence(moment), None
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            target = view.targets(query, known, some, moment)
            if encoding is None:
                encoding = view.network.encode(view.complete(evidence, target))
            made = view.network.decode(encoding, target)
            there = slice(None) if target.mask is None else target.mask[0].cpu().numpy()
            results: dict[str | float, np.ndarray] = {
                "mean": normaliser.restore(setting.target, _numbers(made.mean)),
                "std": _numbers(made.stddev) * normaliser.scale(setting.target),
            }
            for q in quantiles:
                level = made.icdf(made.mean.new_full((), q))
                results[q] = normaliser.restore(setting.target, _numbers(level))
            places = on_sphere(query.lat[some], query.lon[some])[there]
            for i, name in enumerate(setting.target_names):
                for what, values in results.items():
                    columns[column(name, what)][some[there]] = values[there, i]
                near = evidence.distance(view.sets_of(name), places)
                columns[column(name, "support")][some[there]] = near
            advance(len(some))
    about = {
        column(name, what): attributes(view, name, what)
        for name in setting.target_names
        for what in whats
    }
    answer = query.answer(columns, about)
    if isinstance(answer, xr.Dataset):
        answer = stamped(answer, setting, query, moment)
    return answer


def chosen_times(times: Iterable[Any] | None) -> np.ndarray | None:
    """Those asked for beside the places."""
    if times is None:
        return None
    wanted = list(times)
    if not wanted:
        raise ValueError("There must be at least one time to predict at, got times=[].")
    return to_times(wanted, "times")


def stamped(
    answer: xr.Dataset, setting: Setting, query: Query, moment: np.datetime64 | None
) -> xr.Dataset:
    """With the time for which it holds and, for a forecast, the time at which it was made."""
    lead = duration(setting.lead)
    if query.time is None and moment is not None and "time" not in answer.variables:
        answer = answer.assign_coords(time=((), moment + lead, {"standard_name": "time"}))
    if lead and "time" in answer.coords:
        made = {"standard_name": "forecast_reference_time"}
        init = (answer["time"].dims, answer["time"].values - lead, made)
        answer = answer.assign_coords(init_time=init)
        answer.attrs["lead_time"] = setting.lead
    return answer


def attributes(view: View, name: str, what: str | float) -> dict[str, Any]:
    """CF attributes of a result."""
    if what == "support":
        return {"long_name": f"{name}: distance to the nearest observation", "units": "km"}
    source = view.data.sources.get(view.setting.target_source)
    units = view.setting.units.get(f"{view.setting.target_source}.{name}")
    variable = Variable(name, units)
    if source is not None and name in source.names:
        told = source.variable(name)
        variable = Variable(name, units or told.units, told.attributes)
    return attributes_of(variable, what)


def _numbers(values: torch.Tensor) -> np.ndarray:
    """Of the one task, in double precision."""
    return values[0].double().cpu().numpy()


@contextmanager
def quiet(network: nn.Module) -> Iterator[None]:
    """As a network is used, not trained: without gradients; afterwards as before."""
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(training)


@contextmanager
def bar(total: int, what: str, wanted: bool) -> Iterator[Advance]:
    """A progress bar where there is a terminal to see it."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    shown = wanted and console.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not shown
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda number: progress.advance(task, number)
