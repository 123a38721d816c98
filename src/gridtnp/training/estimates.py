"""Estimates of parameters, memory and training time, measured on a few steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gridtnp.network.model import NeuralProcess
from gridtnp.recipes import Recipe
from gridtnp.task import Task
from gridtnp.training.distributed import SummedLoss, share, targets_of
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
    threads: int | None = None

    @property
    def minutes(self) -> float:
        return self.steps * self.seconds_per_step / 60

    def __str__(self) -> str:
        memory = self.bytes / 2**20
        size = f"{memory:,.0f} MB" if memory < 1024 else f"{memory / 1024:,.1f} GB"
        minutes = "less than a minute" if self.minutes < 1 else f"about {self.minutes:,.0f} minutes"
        if self.minutes >= 120:
            minutes = f"about {self.minutes / 60:,.0f} hours"
        threads = "" if self.threads is None else f" on {self.threads} of the CPU threads"
        return (
            f"{self.parameters:,} parameters, about {size} of memory and {minutes} for "
            f"{self.steps:,} steps{threads}"
        )


def estimate(
    network: NeuralProcess, task: Task, recipe: Recipe, device: torch.device, processes: int = 1
) -> Estimate:
    """Measure a few training steps on a copy of the network, with one CPU thread and with all.

    Only what one of the processes computes at once is computed. On a busy machine one thread is
    often faster for small networks; the faster number is kept in the estimate, unless the recipe
    has one or there is no choice.
    """
    task = share(task, 0, processes * recipe.accumulate)
    available = torch.get_num_threads()
    if recipe.threads is not None or device.type != "cpu" or available == 1:
        with cpu_threads(recipe.threads):
            return _measured(network, task, recipe, device)
    found = []
    for threads in (1, available):
        with cpu_threads(threads):
            found.append(replace(_measured(network, task, recipe, device), threads=threads))
    return min(found, key=lambda e: e.seconds_per_step)


@contextmanager
def cpu_threads(number: int | None) -> Iterator[None]:
    """Compute with this number of CPU threads; None leaves it alone."""
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _measured(network: NeuralProcess, task: Task, recipe: Recipe, device: torch.device) -> Estimate:
    """Memory counts weights, gradients, optimiser state and the activations saved for the backward
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
    fastest = recipe.accumulate * min(seconds[1:])  # other programs only make it slower
    return Estimate(count, 4 * weights + sum(saved.values()), fastest, recipe.steps)


def _same(tensor: Tensor) -> Tensor:
    return tensor
