"""Attention windows wide enough that observations reach the targets, in space and in time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gridtnp.config import GriddedConfig
from gridtnp.design.receptive_field import reaches
from gridtnp.grid import Axis, divisors
from gridtnp.task import PointSet, Task

NEAR = 8
"""Observations that a target should see, if there are as many."""
SHARE = 0.9
"""Share of the targets that should."""
CHECKED = 256
"""Most targets and observations of a task that are checked."""


def window_size(axis: Axis, side: int) -> int:
    """All of the time axis, which is short; else the largest divisor that is at most `side`."""
    if axis.name == "time":
        return axis.size
    return max(d for d in divisors(axis.size) if d <= side)


def sees_enough(a: GriddedConfig, tasks: Sequence[Task]) -> bool:
    """Whether most targets are in reach of `NEAR` observations, or of all if there are fewer."""
    enough: list[Tensor] = []
    for task in tasks:
        for i in range(task.target.batch):
            observed = torch.cat([_points(points, i) for points in task.context.values()])
            targets = _points(task.target, i)
            share = max(1.0, len(observed) / CHECKED)  # of which a part is checked
            seen = _reached(a, _thinned(observed), _thinned(targets)).sum(1) * share
            enough.append(seen >= min(NEAR, len(observed)))
    return bool(torch.cat(enough).double().mean() >= SHARE) if enough else True


def require_reach_in_time(a: GriddedConfig, tasks: Sequence[Task]) -> None:
    """Raise if no observation can reach any target along the time axis."""
    if "time" not in a.grid.names:
        return
    column = a.grid.names.index("time")
    first, last = [], []
    for task in tasks:
        for i in range(task.target.batch):
            sets = [_points(points, i)[:, column] for points in task.context.values()]
            observed, targets = (
                torch.cat(sets).unique(),
                _points(task.target, i)[:, column].unique(),
            )
            if len(observed) == 0 or len(targets) == 0:
                continue
            if bool(reaches(a, "time", observed, targets).any()):
                return
            first.append(float(observed.max()))
            last.append(float(targets.min()))
    if first:
        window = getattr(a.processor, "window", None)
        raise ValueError(
            f"No observation reaches a target: with attention windows of {window} cells, what is "
            f"observed at {max(first):+.3g} h or before cannot change a prediction for "
            f"{min(last):+.3g} h; use a window of {a.grid.axis('time').size} along time, or more "
            "layers."
        )


def _reached(a: GriddedConfig, observed: Tensor, targets: Tensor) -> Tensor:
    found = torch.ones(len(targets), len(observed), dtype=torch.bool)
    for column, axis in enumerate(a.grid.axes):
        found &= reaches(a, axis.name, observed[:, column], targets[:, column])
    return found


def _points(points: PointSet, number: int) -> Tensor:
    x = points.x[number]
    return x if points.mask is None else x[points.mask[number]]


def _thinned(x: Tensor) -> Tensor:
    return x[:: max(1, -(-len(x) // CHECKED))]
