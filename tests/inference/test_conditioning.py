"""Training, evaluation and prediction give a model the same context at the same time."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import small
import torch
import xarray as xr
from exploring import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gridtnp.contents import ModelContents
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.grid import Axis, Grid
from gridtnp.inference.conditioning import Conditioner
from gridtnp.task import PointSet
from gridtnp.tasks.selection import Whole
from gridtnp.tasks.specification import TaskSpec

GRID = Grid((Axis.cells("lat", 47.0, 56.0, 8), Axis.cells("lon", -5.0, 5.0, 8)), "sphere")
TIMES = pd.date_range("2019-03-01", periods=20, freq="3h")
NO_TASK = ("leaves no target", "No observation of target source", "has no time for a task")


def stations(rng: np.random.Generator) -> pd.DataFrame:
    """Two variables with gaps at irregular times; some stations lie outside of the grid."""
    number = 14
    sites = pd.DataFrame(
        {
            "station": [f"S{i:02d}" for i in range(number)],
            "lat": rng.uniform(44, 57, number),
            "lon": rng.uniform(-6, 6, number),
            "elevation": np.where(rng.random(number) < 0.2, np.nan, rng.uniform(0, 900, number)),
        }
    )
    rows = sites.merge(pd.DataFrame({"time": TIMES}), how="cross")
    rows["time"] += pd.to_timedelta(rng.integers(0, 2, len(rows)) * 40, unit="min")
    for name in ("t2m", "rain"):
        rows[name] = np.where(rng.random(len(rows)) < 0.3, np.nan, rng.normal(280, 5, len(rows)))
    return rows[rng.random(len(rows)) < 0.8]


def field(rng: np.random.Generator) -> xr.Dataset:
    lat, lon = np.arange(45.0, 58.0, 1.5), np.arange(-6.0, 6.1, 1.5)
    values = rng.normal(281, 4, (len(TIMES), len(lat), len(lon)))
    values[rng.random(values.shape) < 0.1] = np.nan
    return xr.Dataset(
        {"t2m": (("time", "lat", "lon"), values)}, {"time": TIMES, "lat": lat, "lon": lon}
    )


def relief(rng: np.random.Generator) -> xr.DataArray:
    """A field that does not cover all stations."""
    lat, lon = np.arange(46.0, 56.0), np.arange(-5.0, 8.0)
    values = rng.uniform(0, 900, (len(lat), len(lon)))
    return xr.DataArray(values, {"lat": lat, "lon": lon}, ("lat", "lon"))


@cache
def model() -> ModelContents:
    return small.model().contents


def with_grid(grid: Grid, spec: TaskSpec, data: Dataset) -> ModelContents:
    """Nothing of the network but its grid is looked at."""
    network = copy.copy(model().network)
    network.grid = grid
    return replace(model(), spec=spec, normaliser=Normaliser.fit(data), network=network)


def sorted_points(points: PointSet) -> np.ndarray:
    """x, y and features of the points in use, in an order of their own."""
    used = slice(None) if points.mask is None else points.mask[0]
    parts = [p[0][used].double() for p in (points.x, points.y, points.features) if p is not None]
    rows = torch.cat(parts, -1).numpy()
    return rows[np.lexsort(rows.T)]


@settings(max_examples=examples(50))
@given(
    seed=st.integers(0, 10_000),
    window=st.sampled_from(["[0h, 0h]", "(-6h, 0h]", "[-12h, 3h)", "(-24h, 24h]"]),
    own=st.sampled_from([None, "(-9h, 6h]"]),
    lead=st.sampled_from(["0h", "3h"]),
    timed=st.booleans(),
    held_out=st.booleans(),
    by_time=st.booleans(),
    column=st.booleans(),
    fraction=st.floats(0, 1, exclude_max=True),
)
def test_all_give_the_model_the_same_context(
    seed: int,
    window: str,
    own: str | None,
    lead: str,
    timed: bool,
    held_out: bool,
    by_time: bool,
    column: bool,
    fraction: float,
) -> None:
    rng = np.random.default_rng(seed)
    rows = stations(rng)
    data = Dataset(
        {"stations": rows if column else rows.drop(columns="elevation"), "era5": field(rng)},
        target=["stations.t2m", "stations.rain"],
        static={"elevation": relief(rng)},
        features=("hour", "solar_elevation"),
    )
    test = data
    if held_out or by_time:
        times = ["2019-03-02", "2019-03-02T12:00"] if by_time else None
        test = data.split(times, hold_out_stations=0.5 if held_out else None, seed=seed)[2]
    coordinates = ("time", "lat", "lon") if timed else ("lat", "lon")
    grid = GRID
    if timed:
        grid = Grid((Axis.cells("time", -24.0, 24.0, 4), *GRID.axes), "sphere")
    spec = TaskSpec.of(
        data,
        coordinates=coordinates,
        windows={} if own is None else {"era5": own},
        window=window,
        lead=lead,
    )
    contents = with_grid(grid, spec, data)
    selection = dict.fromkeys(spec.contexts, Whole())
    try:
        sampler = replace(contents.sampler(test, selection), targets=Whole())
        assert sampler.times is not None
        time = sampler.times[int(fraction * len(sampler.times))]
        task = sampler.at(time)
    except ValueError as error:
        assume(not any(reason in str(error) for reason in NO_TASK))
        raise
    conditioning = Conditioner.of(contents, test).at(time)
    assert set(task.context) == set(conditioning.context) == set(spec.contexts)
    for name, points in task.context.items():
        other = conditioning.context[name]
        assert other.mask is None
        np.testing.assert_array_equal(sorted_points(points), sorted_points(other))
        assert len(conditioning.places[name]) == other.n


@pytest.mark.parametrize("name", ["stations.t2m", "era5"])
def test_the_property_is_not_empty(name: str) -> None:
    """Some points are context, and some are left out for each of the reasons above."""
    rng = np.random.default_rng(0)
    data = Dataset(
        {"stations": stations(rng).drop(columns="elevation"), "era5": field(rng)},
        target="stations.t2m",
        static={"elevation": relief(rng)},
    )
    conditioner = Conditioner.of(with_grid(GRID, TaskSpec.of(data), data), data)
    found = conditioner.at(np.datetime64(TIMES[3], "ms")).context[name]
    assert found.n > 1
    assert conditioner.unusable.observations > 0
