"""Gridded sources as features: bilinear interpolation, missing points, shifted tasks."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import RegularGridInterpolator

from gridtnp import Axis, Grid, PointSet
from gridtnp.config import GriddedField
from gridtnp.design.grids import MAX_TIMES, source_time_axis
from gridtnp.network.fields import Raster, sample
from gridtnp.sources.reading import read_source

LAT, LON = Axis("lat", 40.0, 0.5, 7), Axis("lon", -3.0, 0.75, 9)
GRID = Grid((LAT, LON), "sphere")
FIELD = GriddedField(source="era5", columns=(1,), grid=GRID)


def source(seed: int, shift: tuple[float, float] = (0.0, 0.0)) -> PointSet:
    g = torch.Generator().manual_seed(seed)
    x = GRID.points(dtype=torch.float64).flatten(0, 1)[None].repeat(2, 1, 1)
    return PointSet(x + torch.tensor(shift), torch.randn(2, 63, 2, generator=g).double())


def places(seed: int, n: int = 20) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    low, extent = torch.tensor([40.0, -3.0]), torch.tensor([3.0, 6.0])
    return (low + extent * torch.rand(2, n, 2, generator=g)).double()


@given(st.integers(0, 10**6), st.tuples(st.floats(-2, 2), st.floats(-2, 2)), st.booleans())
@settings(max_examples=examples(20))
def test_it_interpolates_bilinearly_wherever_the_task_is_shifted(
    seed: int, shift: tuple[float, float], permuted: bool
) -> None:
    points, at = source(seed, shift), places(seed)
    if permuted:
        points = points.permuted(torch.randperm(63).expand(2, -1))
    found = Raster.of(FIELD, points).at(at + torch.tensor(shift))
    for b in range(2):
        values = source(seed).y
        assert values is not None
        axes = [40 + 0.5 * np.arange(7), -3 + 0.75 * np.arange(9)]
        exact = RegularGridInterpolator(axes, values[b, :, 1].reshape(7, 9).numpy())
        np.testing.assert_allclose(found[b, :, 0], exact(at[b].numpy()), atol=1e-9)


def test_missing_points_are_left_out_and_beyond_the_edge_its_value_holds() -> None:
    points = source(0)
    assert points.y is not None
    hidden = torch.ones(2, 63, dtype=torch.bool)
    hidden[:, 10] = False
    masked = replace(points, mask=hidden, y=torch.where(hidden[..., None], points.y, torch.nan))
    masked = replace(masked, y=torch.nan_to_num(points.y))
    at = points.x[:, 10:11] + torch.tensor([1e-9, 1e-9])
    found = Raster.of(FIELD, masked).at(at)
    neighbours = points.y[:, [11, 19, 20], 1]
    assert ((found[:, 0, 0] <= neighbours.amax(1)) & (found[:, 0, 0] >= neighbours.amin(1))).all()
    corner = points.x[:, :1] - 5.0
    torch.testing.assert_close(Raster.of(FIELD, points).at(corner)[:, 0, 0], points.y[:, 0, 1])


def test_around_the_globe_there_is_no_seam() -> None:
    lat, lon = Axis("lat", -60.0, 30.0, 5), Axis.circle("lon", 0.0, 360.0, 12)
    field = GriddedField(source="era5", columns=(0,), grid=Grid((lat, lon), "sphere"))
    x = field.grid.points(dtype=torch.float64).flatten(0, 1)[None]
    raster = Raster.of(field, PointSet(x, torch.cos(torch.deg2rad(x[..., 1:]))))
    found = raster.at(torch.tensor([[[0.0, 359.999999], [0.0, 0.0], [0.0, 345.0]]]).double())[
        0, :, 0
    ]
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=0)
    assert found[2].item() == pytest.approx((1 + np.cos(np.deg2rad(330))) / 2)


def test_the_nearest_time_counts_and_another_where_there_is_none() -> None:
    grid = Grid((Axis("time", -6.0, 6.0, 2), LAT, LON), "sphere")
    field = GriddedField(source="era5", columns=(0,), grid=grid)
    x = grid.points(dtype=torch.float64).flatten(0, 2)[None]
    points = PointSet(x, x[..., :1].clone())
    at = torch.tensor([[[-5.0, 41.0, 0.0], [-1.0, 41.0, 0.0], [3.0, 41.0, 0.0]]]).double()
    assert Raster.of(field, points).at(at)[0, :, 0].tolist() == [-6.0, 0.0, 0.0]
    early = Raster.of(field, points.select(x[0, :, 0] < -1))
    assert early.at(at)[0, :, 0].tolist() == [-6.0, -6.0, -6.0]


@settings(max_examples=examples(20))
@given(st.lists(st.booleans(), min_size=7, max_size=7).filter(any))
def test_where_steps_are_missing_the_nearest_counts(known: list[bool]) -> None:
    grid = Grid((Axis("time", -6.0, 1.0, 7), LAT, LON), "sphere")
    field = GriddedField(source="era5", columns=(0,), grid=grid)
    x = grid.points(dtype=torch.float64).flatten(0, 2)[None]
    there = torch.tensor(known).repeat_interleave(63)
    raster = Raster.of(field, PointSet(x, x[..., :1].clone()).select(there))
    times = [t for t, there in zip(range(-6, 1), known, strict=True) if there]
    at = torch.tensor([[[t, 41.0, 0.0] for t in range(-6, 1)]]).double()
    found = raster.at(at)[0, :, 0].tolist()
    assert found == [min(times, key=lambda s: (abs(s - t), s)) for t in range(-6, 1)]


def test_of_a_long_window_the_latest_steps_are_kept_apart() -> None:
    times = pd.date_range("2020-01-01", periods=200, freq="h")
    field = xr.Dataset(
        {"t": (("time", "lat", "lon"), np.zeros((200, 2, 2)))},
        {"time": times, "lat": [0.0, 1.0], "lon": [0.0, 1.0]},
    )
    source = read_source("era5", field)[0]
    axis = source_time_axis(source, "(-96h, 0h]")
    assert axis.size == MAX_TIMES
    assert axis.step == 1.0
    assert axis.low + axis.step * (axis.size - 1) == pytest.approx(0.0, abs=0.01)
    assert source_time_axis(source, "(-6h, 0h]").low == pytest.approx(-6.0, abs=0.01)


def test_without_observations_it_is_zero() -> None:
    points = source(0).select(slice(0, 0))
    assert sample([Raster.of(FIELD, points)], places(0)).abs().max().item() == 0.0
    assert sample([], places(0)).shape == (2, 20, 0)
    assert sample([Raster.of(FIELD, source(0))], places(0), skip="era5").abs().max().item() == 0.0
