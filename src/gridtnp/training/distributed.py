"""Data-parallel and sharded training over several processes, on `accelerate`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer

from gridtnp.distributions.marginals import of_readings
from gridtnp.network.model import NeuralProcess
from gridtnp.processor import require_bfloat16
from gridtnp.recipes import Recipe
from gridtnp.task import PointSet, Task
from gridtnp.training.optimisers import make_optimisers

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def device_here() -> torch.device:
    """The device to train on: an accelerator if there is one that has double precision, which
    kriging needs; Apple's have none.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if found is None or found.type == "mps" else found


def make_accelerator(
    trackers: Sequence[Any] = (), folder: str | os.PathLike[str] | None = None
) -> Accelerator:
    """The `Accelerator` of one process or of all started by `torchrun` or `accelerate launch`."""
    return Accelerator(
        cpu=device_here().type == "cpu",  # else CPU processes would not form a group
        mixed_precision="no",  # the recipe decides, not the launcher
        log_with=list(trackers) or None,
        project_dir=folder,
    )


def distribute(
    accelerator: Accelerator, loss: SummedLoss, recipe: Recipe, sharded: bool
) -> tuple[torch.nn.Module, list[Optimizer]]:
    """The network and its optimisers, replicated in every process (DDP) or sharded (FSDP)."""
    if not sharded:
        loss, *optimisers = accelerator.prepare(loss, *make_optimisers(loss.network, recipe))
        return loss, optimisers
    if accelerator.num_processes == 1:
        raise ValueError(
            "shard=True needs several processes, but there is only one; start more with `torchrun` "
            "or leave shard=True out."
        )
    if recipe.optimiser == "muon":
        raise ValueError(
            'shard=True does not work with optimiser="muon", which needs unsharded matrices; use '
            'optimiser="adamw".'
        )
    from torch.distributed.fsdp import fully_shard  # slow to import, and rarely needed

    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    # one unit, because submodules also call methods of each other that FSDP does not hook
    fully_shard(loss.to(accelerator.device), mesh=mesh, reshard_after_forward=True)
    return loss, make_optimisers(loss.network, recipe)


def in_main_process(accelerator: Accelerator, action: Callable[[], Any]) -> None:
    """Run an action in the main process; if it fails, all processes raise its error."""
    failure: list[Any] = [None]
    if accelerator.is_main_process:
        try:
            action()
        except (ValueError, OSError) as error:
            failure = [error]
    broadcast_object_list(failure)
    if failure[0] is not None:
        raise failure[0]


@contextmanager
def explain_lost_process() -> Iterator[None]:
    """Turn a communication failure into an error that says what to do."""
    try:
        yield
    except RuntimeError as error:
        lost = ("Connection closed", "Connection reset", "Broken pipe", "NCCL", "gloo", "Gloo")
        if torch.distributed.is_initialized() and any(word in str(error) for word in lost):
            raise RuntimeError(
                f"Another process has stopped ({str(error).splitlines()[0]}); start all processes "
                "again with resume=True."
            ) from error
        raise


def gathered(tensor: Tensor) -> Tensor:
    """The full tensor of a shard; a collective operation, which all processes must call."""
    return tensor.full_tensor() if _sharded(tensor) else tensor


def match_layout(value: Tensor, reference: Tensor) -> Tensor:
    """A full tensor on the device of another one, and sharded as it is."""
    if _sharded(reference) and not _sharded(value):
        from torch.distributed.tensor import distribute_tensor

        mesh, placements = reference.device_mesh, reference.placements
        return distribute_tensor(value.to(reference.device), mesh, placements)
    return value.to(reference.device)


def _sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is a shard; where nobody has imported these, which takes long, none is."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


class SummedLoss(nn.Module):
    """The module that is distributed: a network's negative log-likelihood, summed over targets.

    The sum, unlike the mean, can be split over processes with different numbers of targets. In
    evaluation mode it is followed by the sum of squared standardised errors of every output.
    """

    def __init__(self, network: NeuralProcess, precision: str = "float32") -> None:
        super().__init__()
        self.network = network
        self.low_precision = precision == "bfloat16"

    def forward(self, task: Task) -> Float[Tensor, "*sums"]:
        if task.target.y is None:
            raise ValueError("The targets have no outputs y, which the loss needs.")
        device = task.target.x.device.type
        if self.low_precision and device == "cpu":
            require_bfloat16()
        with torch.autocast(device, torch.bfloat16, enabled=self.low_precision):
            forecast = of_readings(self.network(task), task.target.error)
            log_density = forecast.log_prob(task.target.y).sum(-1)
        loss = -task.target.used(log_density).sum()
        if self.training:
            return loss
        squares = ((task.target.y - forecast.mean) / forecast.stddev).square()
        return torch.cat([loss[None], task.target.used(squares).sum((0, 1))])


def share(task: Task, number: int, of: int) -> Task:
    """Piece `number` of a batch that is split into `of` pieces of at least one task each."""
    numbers = share_of(task.target.batch, number, of)
    if of == 1:
        return task
    rows = slice(numbers.start, numbers.stop)
    context = {name: _rows(points, rows) for name, points in task.context.items()}
    return Task(context, _rows(task.target, rows))


def share_of(batch: int, number: int, of: int) -> range:
    """The tasks of piece `number` of a batch."""
    if of > batch:
        raise ValueError(
            f"A batch of {batch} cannot be split into {of} pieces (processes × accumulate); use a "
            "larger batch or fewer pieces."
        )
    return range(number * batch // of, (number + 1) * batch // of)


def targets_of(task: Task) -> int:
    """Number of targets in the batch."""
    return count(task.target)


def points_of(task: Task) -> int:
    """Number of observations and targets in the batch."""
    return sum(map(count, task.context.values())) + count(task.target)


def count(points: PointSet) -> int:
    """Number of points that are not masked."""
    return points.batch * points.n if points.mask is None else int(points.mask.sum())


def _rows(points: PointSet, rows: slice) -> PointSet:
    y, mask, features, error = (
        None if v is None else v[rows]
        for v in (points.y, points.mask, points.features, points.error)
    )
    return PointSet(points.x[rows], y, mask, features, error)
