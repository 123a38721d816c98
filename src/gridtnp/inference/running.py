"""Answering a query: in memory, into a file region by region, or one part of a Zarr store.

A prediction of one process is that of all regions. Processes that share a store lay it out, or
find it laid out, and each answers the regions of its part that are not done yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gridtnp.files import reporting, staged
from gridtnp.inference.forecasts import Advance, Forecaster
from gridtnp.inference.queries import Answer, Places
from gridtnp.inference.regions import Part, Regions, share
from gridtnp.inference.stores import RegionStore, lay_out, require_new_store, require_store
from gridtnp.inference.writers import open_stream
from gridtnp.sources.reading import kind_of
from gridtnp.sources.source import hash_arrays

Address = str | os.PathLike[str]


@dataclass(frozen=True)
class Output:
    """Where an answer goes, and which part of it is wanted; see `GriddedTNP.predict`.

    `progress` may be a function that is called with numbers of points that are done.
    """

    to: Address | None = None
    overwrite: bool = False
    layout: Address | None = None
    part: Part | None = None
    resume: bool = False
    regions: Mapping[str, int] | None = None
    client: Any = None
    progress: bool | Advance = True

    def __post_init__(self) -> None:
        if self.layout is not None and self.to is not None:
            raise ValueError("to= and layout= exclude each other; lay a store out, then fill it.")
        shared = self.part is not None or self.resume
        if (shared or self.client is not None) and self.to is None:
            raise ValueError(
                "part=, resume= and client= need a store to write to; give to='out.zarr'."
            )
        if self.part is not None and self.client is not None:
            raise ValueError("part= and client= exclude each other; give one of them.")
        if shared and self.overwrite:
            raise ValueError(
                "overwrite=True would delete what other parts have done; lay the store out again "
                "with layout= and overwrite=True first."
            )


def answer_query(
    forecaster: Forecaster, at: Places, times: Iterable[Any] | None, output: Output
) -> Answer | Path:
    """Answer a query as asked."""
    if output.layout is None and output.to is None:
        return _in_memory(forecaster, Regions.of(at, times), output.progress)
    path = output.layout if output.to is None else output.to
    assert path is not None
    if output.layout is None and kind_of(os.fspath(path)) != "zarr":
        return _in_order(forecaster, Regions.of(at, times, values=0), output)
    regions = Regions.of(at, times, output.regions)
    if not isinstance(at, xr.Dataset | xr.DataArray):
        form = "arrays" if isinstance(at, tuple) else "a table"
        raise ValueError(f"{str(path)!r} cannot hold {form}; ask for a grid, or use .parquet.")
    forecaster = forecaster.for_regions(regions)
    if output.layout is not None:
        return shared_store(forecaster, regions, path, output.overwrite).path
    if output.part is None and not output.resume and output.client is None:
        return _new_store(forecaster, regions, output)
    mine = share(len(regions), output.part or (0, 1))
    if output.client is not None and not output.resume:
        require_new_store(path, output.overwrite)
    store = shared_store(forecaster, regions, path, output.overwrite)
    missing = [number for number in store.missing() if number in mine]
    with progress_bar(len(mine) * _mean(regions), "predicting", output.progress) as advance:
        advance((len(mine) - len(missing)) * _mean(regions))
        if output.client is None:
            _fill(forecaster, regions, store, missing, advance, store.path)
        else:
            from gridtnp.inference.cluster import fill_on_workers

            counts = fill_on_workers(output.client, forecaster, regions, store, missing, advance)
            forecaster.require_points(counts)
            forecaster.warn(counts, stacklevel=6)
        store.finish()
    return store.path


def shared_store(
    forecaster: Forecaster, regions: Regions, path: Address, overwrite: bool = False
) -> RegionStore:
    """The store of a prediction in parts, laid out if it is not there."""
    outline = forecaster.outline(regions)
    arrays = [np.asarray(outline[name]) for name in sorted(map(str, outline.coords))]
    settings = forecaster.settings() | {"coordinates": f"#{hash_arrays(*arrays)}"}
    columns = forecaster.about()
    return lay_out(path, outline, columns, regions, settings, overwrite=overwrite)


def _in_memory(forecaster: Forecaster, regions: Regions, progress: bool | Advance) -> Answer:
    with progress_bar(regions.points, "predicting", progress) as advance:
        found = forecaster.answer(regions.all_points(), advance)
        forecaster.require_points(forecaster.counts())
        forecaster.warn(forecaster.counts(), stacklevel=6)
        return found


def _in_order(forecaster: Forecaster, regions: Regions, output: Output) -> Path:
    """Into a file that grows along time."""
    assert output.to is not None
    if output.resume or any(v is not None for v in (output.part, output.regions, output.client)):
        require_store(output.to)
    with (
        progress_bar(regions.points, "predicting", output.progress) as advance,
        open_stream(output.to, regions.time_dim, overwrite=output.overwrite) as writer,
    ):
        for number in range(len(regions)):
            writer.add(forecaster.answer(regions.query(number), advance))
        forecaster.require_points(forecaster.counts())
        forecaster.warn(forecaster.counts(), stacklevel=6)
    return writer.path


def _new_store(forecaster: Forecaster, regions: Regions, output: Output) -> Path:
    """All regions of a store, which appears when they are done."""
    assert output.to is not None
    path = require_new_store(output.to, output.overwrite)
    with (
        progress_bar(regions.points, "predicting", output.progress) as advance,
        staged(path) as new,
    ):
        with reporting(path):
            outline, columns = forecaster.outline(regions), forecaster.about()
            store = RegionStore.create(new, outline, columns, regions, {})
        _fill(forecaster, regions, store, range(len(regions)), advance, path)
        forecaster.require_points(forecaster.counts())
        store.finish()
    return path


def _fill(
    forecaster: Forecaster,
    regions: Regions,
    store: RegionStore,
    numbers: Iterable[int],
    advance: Advance,
    path: Path,
) -> None:
    """Answer some regions, and warn at the end; `path` is the name of the store in messages."""
    for number in numbers:
        answer = region_answer(forecaster, regions, number, advance)
        with reporting(path):
            store.write(regions, number, answer)
    forecaster.warn(forecaster.counts(), stacklevel=7)


def region_answer(
    forecaster: Forecaster, regions: Regions, number: int, advance: Advance
) -> xr.Dataset:
    """The answer to a region; raises if no region could be predicted."""
    answer = forecaster.answer(regions.query(number), advance)
    if not regions.tiled:  # all regions have the same places
        forecaster.require_points(forecaster.counts())
    assert isinstance(answer, xr.Dataset)
    return answer


def _mean(regions: Regions) -> int:
    """Points of a region, on average."""
    return max(1, regions.points // len(regions))


@contextmanager
def progress_bar(total: int, what: str, wanted: bool | Advance) -> Iterator[Advance]:
    """A progress bar, if stderr is a terminal; or else what is called instead."""
    if not isinstance(wanted, bool):
        yield wanted
        return
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    disable = not (wanted and console.is_terminal)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=disable
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda number: progress.advance(task, number)
