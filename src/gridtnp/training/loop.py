"""The training loop, on `accelerate`; it resumes exactly from the last checkpoint.

Batches are numbered, so that a resumed run continues with the next one. The same loop serves one
process and many, datasets and synthetic tasks.
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
from gridtnp.training.checkpoints import CheckpointFiles
from gridtnp.training.distributed import explain_lost_process, make_accelerator, points_of
from gridtnp.training.schedules import schedule_of
from gridtnp.training.trainer import Trainer


@dataclass(frozen=True)
class Progress:
    """Progress after a step.

    `loss` is the mean since the last report, `seconds` the total training time, `speed` in points
    per second; `validation` is the log-likelihood per target, if this step was validated.
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
    files: CheckpointFiles | Path | None,
    *,
    validation: Sequence[Task] = (),
    columns: Mapping[str, Sequence[str]] | None = None,
    accelerator: Accelerator | None = None,
    shard: bool = False,
    apart: bool = False,
    report: Callable[[Progress], None] = lambda _: None,
    report_every: int = 100,
    save_every: int = 1000,
    spent: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Progress:
    """Train a network by a recipe, resuming from the newest checkpoint in `files` if there is one.

    `tasks(n)` streams batches starting with number n, the same in every process, or, with `apart`,
    the process's share of them; `columns` names
    the variables of each source, for error messages; `shard` shards weights and optimiser state
    over processes instead of replicating them. The network ends up with the weights that scored
    best on the `validation` tasks, or with the last ones if there are none. `spent` seconds of a
    recipe's minutes have passed before a run starts; `clock` measures them.
    """
    files = CheckpointFiles.in_folder(files) if isinstance(files, Path) else files
    trainer = Trainer(network, recipe, files, accelerator or make_accelerator(), shard, apart)
    trainer.load()
    state = trainer.state
    if recipe.minutes is not None and state.step == 0:
        state.seconds = spent
    progress = Progress(state.step, math.nan, state.seconds, best=state.best)
    stream = tasks(state.step)
    # fork_rng: the caller's random state must not change
    with torch.random.fork_rng(), Interruption() as interrupted, explain_lost_process():
        trainer.restore_random_state()
        losses, points, since = torch.zeros((), device=trainer.device), 0, state.step
        last_report = clock()
        start = last_report - state.seconds
        schedule = schedule_of(recipe, state)
        while not (schedule.ended(state) or state.stopped):
            task = next(stream)
            losses += trainer.step(task, schedule.rate(state), columns or {})
            points += points_of(task) * (trainer.accelerator.num_processes if apart else 1)
            stop, state.seconds = trainer.agree(bool(interrupted), clock() - start)
            ends, score = schedule.ended(state), None
            if validation and (ends or schedule.validation_due(state)):
                before = state.seconds
                score = trainer.validate(validation)
                trainer.record_score(score)
                _, state.seconds = trainer.agree(False, clock() - start)
                schedule.validated(state, state.seconds - before)
            state.stopped = state.stopped or (ends and recipe.minutes is not None)
            ends = ends or state.stopped
            if score is not None or state.step % report_every == 0 or ends or stop:
                now = clock()
                mean = trainer.sum_over_processes(losses) / (state.step - since)
                speed = points / max(now - last_report, 1e-9)
                progress = Progress(state.step, mean, state.seconds, speed, score, state.best)
                report(progress)
                losses, points, since, last_report = torch.zeros_like(losses), 0, state.step, now
            if state.step % save_every == 0 or ends or stop:
                trainer.save()
            if stop and not ends:
                trainer.copy_back()
                raise KeyboardInterrupt(trainer.interruption_message())
        trainer.copy_back()
    close = getattr(stream, "close", None)
    if close is not None:
        close()
    return progress


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """True once Ctrl-C or SIGTERM was received: `with Interruption() as interrupted:`.

    The step at hand can then be finished; a second signal raises at once.
    """

    def __init__(self) -> None:
        self.received = False
        self._before: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self.received

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # only it receives signals
            self._before = {s: signal.signal(s, self._handle) for s in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.received:
            raise KeyboardInterrupt
        self.received = True
