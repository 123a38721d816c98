"""Shift augmentation: each training task is translated as a whole by a fraction of a grid cell.

Stations do not move, so each lies at a fixed position within its cell. A network with relative
positions could otherwise identify stations by it and overfit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from gridtnp.grid import Grid
from gridtnp.task import Task


def shifted(task: Task, grid: Grid, rng: np.random.Generator) -> Task:
    """Translate all points by one random offset of at most half a cell along each axis but time.

    An axis along which a point would leave the grid keeps its coordinates.
    """
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
    context = {name: replace(p, x=p.x + offset) for name, p in task.context.items()}
    return Task(context, replace(task.target, x=task.target.x + offset))
