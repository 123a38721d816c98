"""A training loop that can be killed at any moment and goes on where it was.

Everything that the next step depends on is in the checkpoint: weights, the optimiser's moments and
the number of steps taken. Tasks are numbered, so that the stream goes on with the right one.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from gridtnp.model import NeuralProcess
from gridtnp.optimisers import OptimiserName, optimisers_for
from gridtnp.task import Task

STATE = ("step", "exp_avg", "exp_avg_sq", "momentum")
"""What optimisers remember of a weight."""


@dataclass(frozen=True)
class Recipe:
    """How to train: the optimiser, a learning rate over time, clipped gradients.

    The defaults are the paper's. `schedule="cosine"` warms up over a twentieth of the steps and
    then falls to zero.
    """

    steps: int
    batch: int = 8
    rate: float = 5e-4
    schedule: Literal["constant", "cosine"] = "constant"
    clip: float = 0.5
    weight_decay: float = 0.01
    optimiser: OptimiserName = "adamw"

    def rate_at(self, step: int) -> float:
        if self.schedule == "constant":
            return self.rate
        warm_up = max(1, self.steps // 20)
        rest = max(0, step - warm_up) / max(1, self.steps - warm_up)
        return self.rate * min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * rest)))


@dataclass(frozen=True)
class Progress:
    """After a step: how many, the mean loss since the last report, seconds of training in all."""

    step: int
    loss: float
    seconds: float


def train(
    model: NeuralProcess,
    tasks: Callable[[int], Iterator[Task]],
    recipe: Recipe,
    folder: Path,
    *,
    report: Callable[[Progress], None] = lambda _: None,
    report_every: int = 100,
    save_every: int = 1000,
) -> Progress:
    """Train to the end of the recipe, from the checkpoint in `folder` if there is one.

    `tasks(n)` gives the stream from its n-th batch on.
    """
    optimisers = optimisers_for(
        model, recipe.optimiser, rate=recipe.rate, weight_decay=recipe.weight_decay
    )
    checkpoint = folder / "checkpoint.safetensors"
    step, seconds = 0, 0.0
    if checkpoint.exists():
        step, seconds = load_checkpoint(checkpoint, model, optimisers, recipe)
    model.train()
    progress = Progress(step, math.nan, seconds)
    total, since = torch.zeros(()), step
    before = time.perf_counter()
    stream = tasks(step)
    while step < recipe.steps:
        loss = model.loss(next(stream))
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate_at(step)
            optimiser.step()
        step += 1
        total = total + loss.detach()
        if step % report_every == 0 or step == recipe.steps:
            mean = total.item() / (step - since)
            if not math.isfinite(mean):
                raise ValueError(
                    f"The loss is no longer a number at step {step}; the last good weights are in "
                    f"{checkpoint}. Try a lower learning rate than {recipe.rate:g}."
                )
            progress = Progress(step, mean, seconds + time.perf_counter() - before)
            report(progress)
            total, since = torch.zeros(()), step
        if step % save_every == 0 or step == recipe.steps:
            now = seconds + time.perf_counter() - before
            save_checkpoint(checkpoint, model, optimisers, recipe, step, now)
    stream_close = getattr(stream, "close", None)
    if stream_close is not None:
        stream_close()
    model.eval()
    return progress


def save_checkpoint(
    path: Path,
    model: NeuralProcess,
    optimisers: Sequence[torch.optim.Optimizer],
    recipe: Recipe,
    step: int,
    seconds: float,
) -> None:
    """Whole or not at all: a kill while writing leaves the one before."""
    tensors = {f"model.{name}": t.contiguous() for name, t in model.state_dict().items()}
    for name, p in model.named_parameters():
        for optimiser in optimisers:
            for key, value in optimiser.state.get(p, {}).items():
                tensors[f"{key}.{name}"] = torch.as_tensor(value).contiguous()
    about = {"recipe": json.dumps(asdict(recipe)), "step": str(step), "seconds": str(seconds)}
    write_tensors(path, tensors, about)


def load_checkpoint(
    path: Path,
    model: NeuralProcess,
    optimisers: Sequence[torch.optim.Optimizer],
    recipe: Recipe,
) -> tuple[int, float]:
    """Set the model and its optimisers back to where they were; the steps and seconds so far."""
    tensors, about = read_tensors(path)
    before = json.loads(about["recipe"])
    if before != asdict(recipe):
        changed = [k for k, v in asdict(recipe).items() if before.get(k) != v]
        raise ValueError(
            f"{path} was made with another recipe ({', '.join(changed)} differ); train into "
            "another folder or remove it."
        )
    model.load_state_dict(weights_of(tensors))
    names = {p: name for name, p in model.named_parameters()}
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            for p in group["params"]:
                found = {key: tensors.get(f"{key}.{names[p]}") for key in STATE}
                optimiser.state[p] = {key: t for key, t in found.items() if t is not None}
    return int(about["step"]), float(about["seconds"])


def weights_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The model's part of a checkpoint."""
    prefix = "model."
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    """A safetensors file, written beside its place and then moved there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        save_file(tensors, temporary, metadata=about)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, "pt") as file:
        return {k: file.get_tensor(k) for k in file.keys()}, file.metadata() or {}  # noqa: SIM118
