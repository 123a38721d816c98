"""Training tasks are moved over the grid by less than a cell, each as a whole.

A network that knows places relative to their cell could otherwise learn stations by heart: each
lies at its own place within its cell, always the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from gridtnp.grid import Grid
from gridtnp.task import Task


def moved(task: Task, grid: Grid, rng: np.random.Generator) -> Task:
    """All points by the same way, at most half a cell along each axis but time, and none off the
    grid.
    """
    sets = [task.target, *task.context.values()]
    used = [p.x.flatten(0, 1) if p.mask is None else p.x[p.mask] for p in sets]
    x = torch.cat(used)
    way = torch.tensor(
        [0.0 if a.name == "time" else a.step * rng.uniform(-0.5, 0.5) for a in grid.axes],
        dtype=x.dtype,
    )
    for i in range(len(way)):
        one = torch.zeros_like(way)
        one[i] = way[i]
        if bool((grid.covers(x) & ~grid.covers(x + one)).any()):
            way[i] = 0.0
    context = {name: replace(p, x=p.x + way) for name, p in task.context.items()}
    return Task(context, replace(task.target, x=task.target.x + way))
