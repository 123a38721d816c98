"""`Trainer`: one optimisation step, validation, and saving and restoring checkpoints.

A checkpoint has everything that the next step depends on: weights, optimiser state, the moving
average of the weights (EMA), the random state and the number of steps taken.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor

from gridtnp.files import DamagedFile
from gridtnp.network.kriging import KrigedNetwork
from gridtnp.network.model import NeuralProcess
from gridtnp.recipes import Recipe
from gridtnp.task import Task
from gridtnp.training.calibration import calibration_gain
from gridtnp.training.checkpoints import (
    CheckpointFiles,
    State,
    add_prefix,
    averaged_weights,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
    weights_of,
    with_prefix,
)
from gridtnp.training.diagnostics import explain_divergence
from gridtnp.training.distributed import (
    SummedLoss,
    distribute,
    gathered,
    match_layout,
    share,
    targets_of,
)
from gridtnp.training.optimisers import STATE, optimiser_state, restore_optimiser_state

FALL = 0.02
"""How far below the best score a second validation without improvement ends training."""
GAIN = 0.001
"""Smallest improvement of the best score that is worth waiting for."""


@dataclass
class Trainer:
    """Trains a copy of a network; in a job of several processes, each has one.

    `average` is the moving average of the weights, `best` the best weights so far, `newest` the
    path of the newest checkpoint. With `apart`, the tasks of a step are this process's share of the
    batch, else the whole batch.
    """

    network: NeuralProcess
    recipe: Recipe
    files: CheckpointFiles | None
    accelerator: Accelerator
    sharded: bool = False
    apart: bool = False
    state: State = field(default_factory=State)
    average: dict[str, Tensor] = field(default_factory=dict)
    best: dict[str, Tensor] = field(default_factory=dict)
    newest: Path | None = None

    def __post_init__(self) -> None:
        loss = SummedLoss(copy.deepcopy(self.network), self.recipe.precision)
        self.loss, self.optimisers = distribute(self.accelerator, loss, self.recipe, self.sharded)
        unwrapped = self.accelerator.unwrap_model(self.loss)
        assert isinstance(unwrapped, SummedLoss)
        self.trained = unwrapped.network.train()
        self.device = self.accelerator.device
        if self.recipe.ema:
            self.average = {k: p.detach().clone() for k, p in self.trained.named_parameters()}

    # ---- one step --------------------------------------------------------------------------------

    def step(self, task: Task, rate: float, columns: Mapping[str, Sequence[str]]) -> Tensor:
        """Take one step at a learning rate; returns this process's share of the loss."""
        recipe, world, pieces = self.recipe, self.accelerator.num_processes, self.recipe.accumulate
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
        first, of, targets = (
            self.accelerator.process_index * pieces,
            world * pieces,
            targets_of(task),
        )
        if self.apart:
            number = torch.tensor(targets, device=self.device)
            first, of, targets = 0, pieces, int(self._reduced(number))
        total = max(1, targets)
        loss = torch.zeros((), device=self.device)
        for i in range(pieces):
            mine = share(task, first + i, of)
            last = i == pieces - 1
            with nullcontext() if last else self.accelerator.no_sync(self.loss):
                piece = self.loss(mine.to(self.device)) / total
                self.accelerator.backward(piece * world)  # gradients are averaged over processes
            loss += piece.detach()
        parameters = list(self.loss.parameters())
        norm = self.accelerator.clip_grad_norm_(parameters, recipe.clip)
        assert norm is not None
        if not math.isfinite(gathered(norm).item() + self.sum_over_processes(loss)):
            self._raise_diverged(task, columns)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        self.state.step += 1
        if self.average:
            decay = min(recipe.ema, self.state.step / (self.state.step + 9))
            for name, p in self.trained.named_parameters():
                self.average[name].lerp_(p.detach(), 1 - decay)
        return loss

    def _raise_diverged(self, task: Task, columns: Mapping[str, Sequence[str]]) -> None:
        saved = ""
        if all(bool(gathered(p).isfinite().all()) for p in self.trained.parameters()):
            self.save()
        if self.files is not None and self.files.last.exists():
            saved = f" The last good weights are in {self.files.last}."
        raise ValueError(
            f"The loss or its gradient is not finite at step {self.state.step + 1}: "
            f"{explain_divergence(task, columns, self.recipe.rate)}{saved}"
        )

    # ---- validation ------------------------------------------------------------------------------

    @torch.no_grad()
    def validate(self, tasks: Sequence[Task]) -> float:
        """Mean log-likelihood per target, with the moving average of the weights if any.

        If the spread will be calibrated, it is the log-likelihood after that: weights with a better
        mean are often too sure at new places.
        """
        latest = {k: p.detach().clone() for k, p in self.trained.named_parameters()}
        self._set(self.average)
        self.loss.eval()
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        sums = 1 + self.trained.signature.dim_y
        total, targets = torch.zeros(sums, dtype=torch.float64, device=self.device), 0
        for task in tasks:
            pieces = min(world, task.target.batch)
            # with fewer tasks than processes, the others repeat one: collectives need every process
            mine = share(task, min(rank, pieces - 1), pieces)
            piece = self.loss(mine.to(self.device)).double()
            total += piece if rank < pieces else 0.0
            targets += targets_of(task)
        self.loss.train()
        self._set(latest if self.average else {})
        loss, *squares = (self._reduced(total) / max(1, targets)).tolist()
        if not isinstance(self.trained, KrigedNetwork):
            return -loss
        pairs = zip(squares, self.trained.gaussian, strict=True)
        return -loss + calibration_gain([square for square, normal in pairs if normal])

    def record_score(self, score: float) -> None:
        """Keep the weights if they are the best so far; stop early if the patience is exhausted.

        It is after the second score that does not improve if that is well below the best: the
        network then learns the training part by heart.
        """
        best = -math.inf if self.state.best is None else self.state.best
        if score > best:
            self.state.best = score
            self.best = {k: v.cpu() for k, v in self._weights_to_keep().items()}
            if self.files is not None and self.accelerator.is_main_process:
                state = State(self.state.step, self.state.seconds, score)
                state.tensors = add_prefix("model", self.best)
                save_checkpoint(self.files.best, state, self.recipe)
        if score > best + GAIN:
            self.state.waiting = 0
            return
        self.state.waiting += 1
        patience = min(self.recipe.patience, 2) if score < best - FALL else self.recipe.patience
        self.state.stopped = 0 < patience <= self.state.waiting

    # ---- checkpoints -----------------------------------------------------------------------------

    def save(self) -> None:
        """Write the last checkpoint in the main process; all processes must call it."""
        tensors = self._gathered_weights()
        moments = optimiser_state(self.trained.named_parameters(), self.optimisers)
        tensors |= {k: gathered(v) for k, v in moments.items()}
        tensors["rng.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        if self.files is not None and self.accelerator.is_main_process:
            saved = copy.copy(self.state)
            saved.tensors = {k: v.cpu() for k, v in tensors.items()}
            # only a checkpoint that is known to be whole becomes the previous one
            previous = self.files.previous if self.newest == self.files.last else None
            save_checkpoint(self.files.last, saved, self.recipe, previous)
            self.newest = self.files.last

    def load(self) -> None:
        """Restore the newest checkpoint, if there is one, except for the random state."""
        found = None if self.files is None else newest_checkpoint(self.files, self.recipe)
        if found is None:
            return
        self.state, self.newest = found
        tensors = self.state.tensors
        self._set(weights_of(tensors))
        fitted = {k: v.cpu() for k, v in self.trained.named_buffers()}
        self.network.load_state_dict(fitted, strict=False)  # training tasks depend on the prior
        self.average = {
            k: match_layout(with_prefix("ema", tensors)[k], p).clone()
            for k, p in self.trained.named_parameters()
            if self.average
        }
        moments = {
            f"{key}.{name}": match_layout(v, p) if v.shape == p.shape else v
            for name, p in self.trained.named_parameters()
            for key in STATE
            if (v := tensors.get(f"{key}.{name}")) is not None
        }
        restore_optimiser_state(self.trained.named_parameters(), self.optimisers, moments)
        if self.state.best is not None:
            self._load_best()

    def _load_best(self) -> None:
        assert self.files is not None
        try:
            self.best = weights_of(load_checkpoint(self.files.best, self.recipe).tensors)
        except DamagedFile as error:
            self.state.best = None
            warnings.warn(
                f"{error}; the best weights from step {self.state.step} on are kept instead.",
                stacklevel=2,
            )

    def restore_random_state(self) -> None:
        """Restore the random state of a loaded checkpoint."""
        if "rng.cpu" in self.state.tensors:
            torch.set_rng_state(self.state.tensors["rng.cpu"])
        if self.device.type == "cuda" and "rng.cuda" in self.state.tensors:
            torch.cuda.set_rng_state(self.state.tensors["rng.cuda"], self.device)
        self.state.tensors = {}

    def copy_back(self) -> None:
        """Copy the weights to keep into the caller's network."""
        weights = self.best or {k: v.cpu() for k, v in self._weights_to_keep().items()}
        self.network.load_state_dict(weights)
        self.network.eval()

    def interruption_message(self) -> str:
        where = "" if self.files is None else f"; the checkpoint is {self.files.last}"
        of = "" if self.recipe.minutes is not None else f" of {self.recipe.steps}"
        return f"Stopped after step {self.state.step}{of}{where}."

    # ---- collective operations and weights -------------------------------------------------------

    def agree(self, interrupted: bool, seconds: float) -> tuple[bool, float]:
        """Whether any process was interrupted, and the seconds of the main process."""
        if self.accelerator.num_processes == 1:
            return interrupted, seconds
        mine = seconds if self.accelerator.is_main_process else 0.0
        both = torch.tensor([float(interrupted), mine], dtype=torch.float64, device=self.device)
        total = self.accelerator.reduce(both)
        assert isinstance(total, Tensor)
        return bool(total[0] > 0), total[1].item()

    def sum_over_processes(self, value: Tensor) -> float:
        return self._reduced(value).item()

    def _reduced(self, value: Tensor) -> Tensor:
        total = self.accelerator.reduce(value)
        assert isinstance(total, Tensor)
        return total

    def _weights_to_keep(self) -> dict[str, Tensor]:
        """A copy of the weights to predict with."""
        weights = averaged_weights(self._gathered_weights())
        return {k: v.detach().clone() for k, v in weights.items()}

    def _gathered_weights(self) -> dict[str, Tensor]:
        """The weights and their moving average, as in a checkpoint."""
        weights = add_prefix(
            "model", {k: gathered(v) for k, v in self.trained.state_dict().items()}
        )
        return weights | add_prefix("ema", {k: gathered(v) for k, v in self.average.items()})

    @torch.no_grad()
    def _set(self, weights: Mapping[str, Tensor]) -> None:
        """Set parameters and buffers from full or sharded tensors."""
        own = dict(self.trained.named_parameters()) | dict(self.trained.named_buffers())
        for name, value in weights.items():
            own[name].copy_(match_layout(value, own[name]))
