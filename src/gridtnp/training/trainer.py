"""A network in training: what one step does, what is validated, and what a checkpoint holds.

Everything that the next step depends on is in the checkpoint: weights, the optimiser's moments, the
moving average and the number of steps taken.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor

from gridtnp.network.model import NeuralProcess
from gridtnp.recipes import Recipe
from gridtnp.task import Task
from gridtnp.training.checkpoints import (
    Files,
    State,
    kept_weights,
    load_checkpoint,
    named,
    part,
    save_checkpoint,
    weights_of,
)
from gridtnp.training.diagnostics import suspect
from gridtnp.training.distributed import SummedLoss, like, share, spread, targets_of, whole
from gridtnp.training.optimisers import STATE, restore, state_of


@dataclass
class Trainer:
    """A network in training: a copy of the caller's, its optimisers and where they are.

    Several processes each have one and do the same steps together.
    """

    network: NeuralProcess
    recipe: Recipe
    files: Files | None
    accelerator: Accelerator
    sharded: bool = False
    state: State = field(default_factory=State)
    average: dict[str, Tensor] = field(default_factory=dict)
    best: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shell = SummedLoss(copy.deepcopy(self.network), self.recipe.precision)
        self.shell, self.optimisers = spread(self.accelerator, shell, self.recipe, self.sharded)
        inner = self.accelerator.unwrap_model(self.shell)
        assert isinstance(inner, SummedLoss)
        self.trained = inner.network.train()
        self.device = self.accelerator.device
        if self.recipe.ema:
            self.average = {k: p.detach().clone() for k, p in self.trained.named_parameters()}

    # ---- one step --------------------------------------------------------------------------------

    def step(self, task: Task, columns: Mapping[str, Sequence[str]]) -> Tensor:
        """Learn from one batch; this process' share of its loss."""
        recipe, world, pieces = self.recipe, self.accelerator.num_processes, self.recipe.accumulate
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate_at(self.state.step)
        total = max(1, targets_of(task))
        loss = torch.zeros((), device=self.device)
        for i in range(pieces):
            mine = share(task, self.accelerator.process_index * pieces + i, world * pieces)
            last = i == pieces - 1
            with nullcontext() if last else self.accelerator.no_sync(self.shell):
                piece = self.shell(mine.to(self.device)) / total
                self.accelerator.backward(piece * world)  # their mean over processes is taken
            loss += piece.detach()
        parameters = list(self.shell.parameters())
        norm = self.accelerator.clip_grad_norm_(parameters, recipe.clip)
        assert norm is not None
        if not math.isfinite(whole(norm).item()):
            self._refuse(task, columns)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        self.state.step += 1
        if self.average:
            decay = min(recipe.ema, self.state.step / (self.state.step + 9))
            for name, p in self.trained.named_parameters():
                self.average[name].lerp_(p.detach(), 1 - decay)
        return loss

    def _refuse(self, task: Task, columns: Mapping[str, Sequence[str]]) -> None:
        kept = ""
        if all(bool(whole(p).isfinite().all()) for p in self.trained.parameters()):
            self.save()
        if self.files is not None and self.files.last.exists():
            kept = f" The last good weights are in {self.files.last}."
        raise ValueError(
            f"The loss is no longer a number at step {self.state.step + 1}: "
            f"{suspect(task, columns, self.recipe.rate)}{kept}"
        )

    # ---- validation ------------------------------------------------------------------------------

    @torch.no_grad()
    def validate(self, tasks: Sequence[Task]) -> float:
        """The log-likelihood per target, by the moving average of the weights if there is one."""
        latest = {k: p.detach().clone() for k, p in self.trained.named_parameters()}
        self._set(self.average)
        self.shell.eval()
        world, me = self.accelerator.num_processes, self.accelerator.process_index
        total, targets = torch.zeros((), dtype=torch.float64, device=self.device), 0
        for task in tasks:
            of = min(world, task.target.batch)  # the same number of turns for everyone
            piece = self.shell(share(task, min(me, of - 1), of).to(self.device)).double()
            total += piece if me < of else 0.0
            targets += targets_of(task)
        self.shell.train()
        self._set(latest if self.average else {})
        return -self.total(total) / max(1, targets)

    def judge(self, score: float) -> None:
        """Keep the weights if they are the best so far; stop if they have not been for long."""
        if self.state.best is None or score > self.state.best:
            self.state.best, self.state.waiting = score, 0
            self.best = {k: v.cpu() for k, v in self._kept().items()}
            if self.files is not None and self.accelerator.is_main_process:
                about = State(self.state.step, self.state.seconds, score)
                about.tensors = named("model", self.best)
                save_checkpoint(self.files.best, about, self.recipe)
            return
        self.state.waiting += 1
        self.state.stopped = 0 < self.recipe.patience <= self.state.waiting

    # ---- to and from the disk --------------------------------------------------------------------

    def save(self) -> None:
        """The last checkpoint, by the first process; all take part."""
        tensors = named("model", {k: whole(v) for k, v in self.trained.state_dict().items()})
        tensors |= named("ema", {k: whole(v) for k, v in self.average.items()})
        moments = state_of(self.trained.named_parameters(), self.optimisers)
        tensors |= {k: whole(v) for k, v in moments.items()} | {"rng.cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        if self.files is not None and self.accelerator.is_main_process:
            saved = copy.copy(self.state)
            saved.tensors = {k: v.cpu() for k, v in tensors.items()}
            save_checkpoint(self.files.last, saved, self.recipe)

    def load(self, path: Path) -> None:
        """Go back to where a checkpoint was."""
        self.state = load_checkpoint(path, self.recipe)
        tensors = self.state.tensors
        self._set(weights_of(tensors))
        self.average = {
            k: like(p, part("ema", tensors)[k]).clone()
            for k, p in self.trained.named_parameters()
            if self.average
        }
        moments = {
            f"{key}.{name}": like(p, v) if v.shape == p.shape else v
            for name, p in self.trained.named_parameters()
            for key in STATE
            if (v := tensors.get(f"{key}.{name}")) is not None
        }
        restore(self.trained.named_parameters(), self.optimisers, moments)
        if self.files is not None and self.state.best is not None and self.files.best.exists():
            self.best = weights_of(load_checkpoint(self.files.best, self.recipe).tensors)

    def restore_luck(self) -> None:
        if "rng.cpu" in self.state.tensors:
            torch.set_rng_state(self.state.tensors["rng.cpu"])
        if self.device.type == "cuda" and "rng.cuda" in self.state.tensors:
            torch.cuda.set_rng_state(self.state.tensors["rng.cuda"], self.device)
        self.state.tensors = {}

    def hand_over(self) -> None:
        """Give the caller's network the weights to keep."""
        weights = self.best or {k: v.cpu() for k, v in self._kept().items()}
        self.network.load_state_dict(weights)
        self.network.eval()

    def stopped_at(self) -> str:
        where = "" if self.files is None else f"; {self.files.last} holds everything to go on"
        return f"Stopped after step {self.state.step} of {self.recipe.steps}{where}."

    # ---- all together ----------------------------------------------------------------------------

    def anyone(self, flag: bool) -> bool:
        """Whether it is so for any process."""
        if self.accelerator.num_processes == 1:
            return flag
        return self.total(torch.tensor(float(flag), device=self.device)) > 0

    def total(self, mine: Tensor) -> float:
        """A number summed over processes."""
        summed = self.accelerator.reduce(mine)
        assert isinstance(summed, Tensor)
        return summed.item()

    def _kept(self) -> dict[str, Tensor]:
        tensors = named("model", {k: whole(v) for k, v in self.trained.state_dict().items()})
        tensors |= named("ema", {k: whole(v) for k, v in self.average.items()})
        return {k: v.detach().clone() for k, v in kept_weights(tensors).items()}

    @torch.no_grad()
    def _set(self, weights: Mapping[str, Tensor]) -> None:
        """Parameters and buffers, whole or spread as the network's own."""
        mine = dict(self.trained.named_parameters()) | dict(self.trained.named_buffers())
        for name, value in weights.items():
            mine[name].copy_(like(mine[name], value))
