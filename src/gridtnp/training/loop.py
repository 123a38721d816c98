"""The training loop: readable, on `accelerate`, and killed at any moment it goes on where it was.

Tasks are numbered, so that the stream goes on with the right one. The same loop serves one process
and many, data sets and synthetic tasks.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator

from gridtnp.network.model import NeuralProcess
from gridtnp.recipes import Recipe
from gridtnp.task import Task
from gridtnp.training.checkpoints import Files
from gridtnp.training.distributed import points_of, processes, together
from gridtnp.training.trainer import Trainer


@dataclass(frozen=True)
class Progress:
    """After a step: how many, the mean loss since the last report, seconds of training in all,
    points per second, and where it was validated the log-likelihood per target.
    """

    step: int
    loss: float
    seconds: float
    speed: float = math.nan
    validation: float | None = None
    best: float | None = None


def train(
    network: NeuralProcess,
    tasks: Callable[[int], Iterator[Task]],
    recipe: Recipe,
    files: Files | Path | None,
    *,
    validation: Sequence[Task] = (),
    columns: Mapping[str, Sequence[str]] | None = None,
    accelerator: Accelerator | None = None,
    shard: bool = False,
    report: Callable[[Progress], None] = lambda _: None,
    report_every: int = 100,
    save_every: int = 1000,
) -> Progress:
    """Train to the end of the recipe, from the last checkpoint in `files` if there is one.

    `tasks(n)` gives the stream from its n-th batch on, the same one in every process; `columns`
    names the variables of sources for messages; `shard` spreads weights and moments over
    processes instead of copying them. In the end the network has the weights that were
    best on the `validation` tasks, or without any the last ones.
    """
    files = Files.beside(files) if isinstance(files, Path) else files
    run = Trainer(network, recipe, files, accelerator or processes(), shard)
    if files is not None and files.last.exists():
        run.load(files.last)
    state = run.state
    progress = Progress(state.step, math.nan, state.seconds, best=state.best)
    stream = tasks(state.step)
    # nothing here may disturb the random numbers of whoever calls
    with torch.random.fork_rng(), Interruption() as interrupted, together():
        run.restore_luck()
        losses, points, since = torch.zeros((), device=run.device), 0, state.step
        mark = time.perf_counter()
        begun = mark - state.seconds
        while state.step < recipe.steps and not state.stopped:
            task = next(stream)
            losses += run.step(task, columns or {})
            points += points_of(task)
            ends, score = state.step == recipe.steps, None
            if validation and (state.step % recipe.validate_every == 0 or ends):
                score = run.validate(validation)
                run.judge(score)
            now = time.perf_counter()
            state.seconds = now - begun
            stop = run.anyone(bool(interrupted))
            ends = ends or state.stopped
            if score is not None or state.step % report_every == 0 or ends or stop:
                mean, speed = run.total(losses) / (state.step - since), points / (now - mark)
                progress = Progress(state.step, mean, state.seconds, speed, score, state.best)
                report(progress)
                losses, points, since, mark = torch.zeros_like(losses), 0, state.step, now
            if state.step % save_every == 0 or ends or stop:
                run.save()
            if stop and not ends:
                run.hand_over()
                raise KeyboardInterrupt(run.stopped_at())
        run.hand_over()
    close = getattr(stream, "close", None)
    if close is not None:
        close()
    return progress


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """`with Interruption() as asked:` then `if asked:`. A second Ctrl-C does not wait."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self.asked

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # only it gets signals
            self._before = {s: signal.signal(s, self._note) for s in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
