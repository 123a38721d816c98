"""Tasks shifted as a whole, by less than a cell, and never off the grid."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from gridtnp import Axis, Grid, PointSet, Task
from gridtnp.tasks.augmentation import shifted

GRID = Grid(
    (
        Axis.span("time", -3, 3, 4),
        Axis.cells("lat", 80, 90, 5),
        Axis.circle("lon", 0, 360, 8),
    ),
    "sphere",
)


def task(seed: int) -> Task:
    generator = torch.Generator().manual_seed(seed)
    low, wide = torch.tensor([-3.0, 80.0, 0.0]), torch.tensor([6.0, 10.0, 360.0])
    x = low + wide * torch.rand(2, 6, 3, generator=generator)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    x[~mask] = 0.0  # filled up with what is nowhere
    return Task({"s": PointSet(x, x[..., :1], mask)}, PointSet(x[:, :4], x[:, :4, :1]))


@given(st.integers(0, 200))
def test_all_points_go_the_same_way_and_stay_on_the_grid(seed: int) -> None:
    before = task(seed)
    after = shifted(before, GRID, np.random.default_rng(seed))
    way = after.target.x - before.target.x
    torch.testing.assert_close(way, way[:1, :1].expand_as(way), rtol=0, atol=1e-4)
    context = after.context["s"]
    both = (context.x - before.context["s"].x)[context.mask]
    torch.testing.assert_close(both, way[0, :1].expand_as(both), rtol=0, atol=1e-4)
    assert way[..., 0].abs().max() == 0  # time stays
    assert (way[0, 0].abs() <= torch.tensor([0.0, 1.0, 22.5]) + 1e-4).all()
    assert GRID.covers(after.target.x).all()
    assert torch.equal(after.context["s"].y, before.context["s"].y)


def test_tasks_do_move_and_the_same_ones_the_same_way() -> None:
    first, again = (shifted(task(0), GRID, np.random.default_rng(3)).target.x for _ in range(2))
    assert torch.equal(first, again)
    assert (first - task(0).target.x)[..., 2].abs().min() > 0
