"""Several processes that train one network: how it is spread over them, and what they share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from gridtnp.network.model import NeuralProcess
from gridtnp.recipes import Recipe
from gridtnp.task import PointSet, Task
from gridtnp.training.optimisers import make_optimisers


def processes(
    trackers: Sequence[Any] = (), folder: str | os.PathLike[str] | None = None
) -> Accelerator:
    """All processes that were started together, by `accelerate launch` or `torchrun`.

    Without being told that there is nothing but processors, it would take each for the only one.
    Precision is the recipe's affair, whatever the launcher was told.
    """
    return Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision="no",
        log_with=list(trackers) or None,
        project_dir=folder,
    )


def spread(
    accelerator: Accelerator, shell: SummedLoss, recipe: Recipe, sharded: bool
) -> tuple[torch.nn.Module, list[Optimizer]]:
    """The network and its optimisers on their devices: copied to every process, or in shards."""
    if not sharded:
        shell, *optimisers = accelerator.prepare(shell, *make_optimisers(shell.network, recipe))
        return shell, optimisers
    if accelerator.num_processes == 1:
        raise ValueError(
            "A network can be in shards over several processes, but there is only one; start more "
            "with `torchrun` or leave out shard=True."
        )
    if recipe.optimiser == "muon":
        raise ValueError(
            'A network in shards needs optimiser="adamw", got "muon", whose steps need whole '
            "matrices."
        )
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    # as a whole, because its parts call each other by other ways than `forward`
    fully_shard(shell.to(accelerator.device), mesh=mesh, reshard_after_forward=True)
    return shell, make_optimisers(shell.network, recipe)


@contextmanager
def together() -> Iterator[None]:
    """Turns the failure of a message between processes into a sentence."""
    try:
        yield
    except RuntimeError as error:
        lost = ("Connection closed", "Connection reset", "Broken pipe", "NCCL", "gloo", "Gloo")
        if torch.distributed.is_initialized() and any(word in str(error) for word in lost):
            raise RuntimeError(
                "All processes of a training must live to its end, but another one has stopped; "
                f"start them again with resume=True to go on ({str(error).splitlines()[0]})."
            ) from error
        raise


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be in shards, gathered; all processes must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(mine: Tensor, value: Tensor) -> Tensor:
    """A whole tensor on the device and in the shards of another one."""
    if isinstance(mine, DTensor) and not isinstance(value, DTensor):
        return distribute_tensor(value.to(mine.device), mine.device_mesh, mine.placements)
    return value.to(mine.device)


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
