"""One batch over several processes, in pieces, with the result that one process would have.

The loss is a mean over the targets of the whole batch. So every piece adds up its targets, and the
sum is divided by the number of targets in all.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gridtnp.model import NeuralProcess
from gridtnp.processor import require_bfloat16
from gridtnp.task import PointSet, Task


class SummedLoss(nn.Module):
    """The network as processes share it: a task's negative log-likelihood, summed over targets."""

    def __init__(self, network: NeuralProcess, precision: str = "float32") -> None:
        super().__init__()
        self.network = network
        self.low_precision = precision == "bfloat16"

    def forward(self, task: Task) -> Float[Tensor, ""]:
        if task.target.y is None:
            raise ValueError("The targets must have outputs y to compute a loss, got none.")
        device = task.target.x.device.type
        if self.low_precision and device == "cpu":
            require_bfloat16()
        with torch.autocast(device, torch.bfloat16, enabled=self.low_precision):
            log_density = self.network(task).log_prob(task.target.y).sum(-1)
        if task.target.mask is not None:
            log_density = log_density * task.target.mask
        return -log_density.sum()


def share(task: Task, number: int, of: int) -> Task:
    """Piece `number` of a batch that is cut in `of` pieces, each at least one task."""
    batch = task.target.batch
    if of > batch:
        raise ValueError(
            f"A batch must have at least one task for each of {of} pieces (processes times "
            f"accumulate), got {batch}; make it larger or use fewer."
        )
    if of == 1:
        return task
    rows = slice(number * batch // of, (number + 1) * batch // of)
    context = {name: _rows(points, rows) for name, points in task.context.items()}
    return Task(context, _rows(task.target, rows))


def targets_of(task: Task) -> int:
    """How many there are in the batch."""
    return count(task.target)


def points_of(task: Task) -> int:
    """Observations and targets in the batch."""
    return sum(map(count, task.context.values())) + count(task.target)


def count(points: PointSet) -> int:
    return points.batch * points.n if points.mask is None else int(points.mask.sum())


def _rows(points: PointSet, rows: slice) -> PointSet:
    y, mask, features = (
        None if v is None else v[rows] for v in (points.y, points.mask, points.features)
    )
    return PointSet(points.x[rows], y, mask, features)
