"""What training will take: parameters, memory and minutes, from one or two real steps."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from gridtnp.network.model import NeuralProcess
from gridtnp.recipes import Recipe
from gridtnp.task import Task
from gridtnp.training.distributed import SummedLoss, targets_of
from gridtnp.training.optimisers import make_optimisers

TRIALS = 2


@dataclass(frozen=True)
class Estimate:
    """Of training a network by a recipe on this machine, in one process."""

    parameters: int
    bytes: int
    seconds_per_step: float
    steps: int

    @property
    def minutes(self) -> float:
        return self.steps * self.seconds_per_step / 60

    def __str__(self) -> str:
        memory = self.bytes / 2**20
        size = f"{memory:,.0f} MB" if memory < 1024 else f"{memory / 1024:,.1f} GB"
        minutes = "less than a minute" if self.minutes < 1 else f"about {self.minutes:,.0f} minutes"
        if self.minutes >= 120:
            minutes = f"about {self.minutes / 60:,.0f} hours"
        return (
            f"{self.parameters:,} parameters, about {size} of memory and {minutes} for "
            f"{self.steps:,} steps"
        )


def estimate(network: NeuralProcess, task: Task, recipe: Recipe, device: torch.device) -> Estimate:
    """Some steps with one of its batches, on a copy on the device.

    Memory is that of weights, gradients, moments and of what a forward pass keeps for the backward
    one.
    """
    trial = SummedLoss(copy.deepcopy(network).train(), recipe.precision).to(device)
    task = task.to(device)
    optimisers = make_optimisers(trial.network, recipe)
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    seconds = []
    for number in range(1 + TRIALS):
        start = time.perf_counter()
        with torch.autograd.graph.saved_tensors_hooks(note if not number else _same, _same):
            loss = trial(task) / max(1, targets_of(task))
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - start)
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    count = sum(p.numel() for p in network.parameters())
    fastest = min(seconds[1:])  # whatever else runs only makes it slower
    return Estimate(count, 4 * weights + sum(kept.values()), fastest, recipe.steps)


def _same(tensor: Tensor) -> Tensor:
    return tensor
