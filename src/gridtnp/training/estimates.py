"""Estimates of parameters, memory and training time, measured on a few steps."""

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
"""Timed steps, after one to warm up."""


@dataclass(frozen=True)
class Estimate:
    """Cost of training a network by a recipe in one process on this machine."""

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
    """Measure a few training steps on a copy of the network.

    Memory counts weights, gradients, optimiser state and the activations saved for the backward
    pass.
    """
    trial = SummedLoss(copy.deepcopy(network).train(), recipe.precision).to(device)
    task = task.to(device)
    optimisers = make_optimisers(trial.network, recipe)
    saved: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    seconds = []
    for number in range(1 + TRIALS):
        start = time.perf_counter()
        with torch.autograd.graph.saved_tensors_hooks(record if not number else _same, _same):
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
    fastest = min(seconds[1:])  # other processes only make it slower
    return Estimate(count, 4 * weights + sum(saved.values()), fastest, recipe.steps)


def _same(tensor: Tensor) -> Tensor:
    return tensor
