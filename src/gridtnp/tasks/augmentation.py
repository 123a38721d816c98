"""Shift augmentation: each training task is translated as a whole by a fraction of a grid cell.

Stations do not move, so each lies at a fixed position within its cell. A network with relative
positions could otherwise identify stations by it and overfit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gridtnp.grid import Grid
from gridtnp.task import PointSet, Task


def shifted(task: Task, grid: Grid, rng: np.random.Generator) -> Task:
    """Translate all points by one random offset of at most half a cell along each axis but time.

    An axis along which a point would leave the grid keeps its coordinates.
    """
    offset = _offset(task, grid, rng)
    context = {name: replace(p, x=p.x + offset) for name, p in task.context.items()}
    return Task(context, replace(task.target, x=task.target.x + offset))


def shifted_apart(task: Task, grid: Grid, rngs: Sequence[np.random.Generator]) -> Task:
    """The same with an offset of its own for every task of a batch."""
    each = []
    for i, rng in enumerate(rngs):
        context = {name: _element(p, i) for name, p in task.context.items()}
        each.append(_offset(Task(context, _element(task.target, i)), grid, rng))
    offset = torch.stack(each)[:, None]
    context = {name: replace(p, x=p.x + offset) for name, p in task.context.items()}
    return Task(context, replace(task.target, x=task.target.x + offset))


def _offset(task: Task, grid: Grid, rng: np.random.Generator) -> Tensor:
    sets = [task.target, *task.context.values()]
    used = [p.x.flatten(0, 1) if p.mask is None else p.x[p.mask] for p in sets]
    x = torch.cat(used)
    offset = torch.tensor(
        [0.0 if a.name == "time" else a.step * rng.uniform(-0.5, 0.5) for a in grid.axes],
        dtype=x.dtype,
    )
    for i in range(len(offset)):
        one = torch.zeros_like(offset)
        one[i] = offset[i]
        if bool((grid.covers(x) & ~grid.covers(x + one)).any()):
            offset[i] = 0.0
    return offset


def _element(points: PointSet, i: int) -> PointSet:
    values = (points.x, points.y, points.mask, points.features)
    return PointSet(*(None if v is None else v[i : i + 1] for v in values))  # pyright: ignore[reportArgumentType]
