"""Rows of a table: each is trained or continued, scored, and timed in one go with all others.

An `Experiment` says what the rows are and which tasks they get; the rest is the same for the
paper's three experiments. Every row has a folder with its checkpoints and `result.json`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console

from gridtnp.config import ModelConfig
from gridtnp.files import read_tensors, write_text
from gridtnp.network.build import build_model
from gridtnp.network.model import NeuralProcess
from gridtnp.recipes import Recipe
from gridtnp.task import Task
from gridtnp.training.checkpoints import CheckpointFiles, weights_of
from gridtnp.training.distributed import in_main_process, make_accelerator
from gridtnp.training.loop import Progress, train
from gridtnp.training.run_folder import commit

TRIAL = 0.125
"""Part of a row's training that each learning rate is tried for."""
Result = dict[str, Any]
"""What `result.json` holds."""


@dataclass(frozen=True)
class Tasks:
    """A stream of training batches from any number on; see `train`."""

    start: Callable[[int], Iterator[Task]]
    apart: bool = False


class Experiment(ABC):
    """One table of the paper, on some data and at some scale.

    `rows` maps the rows to their labels. With `keeps_best`, the weights are those with the best
    score on the validation tasks, else the last ones.
    """

    keeps_best: bool = False
    repeats: int = 5
    """Timed forward passes of a row."""

    @property
    @abstractmethod
    def rows(self) -> Mapping[str, str]: ...

    @property
    @abstractmethod
    def recipe(self) -> Recipe: ...

    @abstractmethod
    def name_of(self, row: str) -> str:
        """Name of a row's folder, which tells it from those of other tables beside it."""

    @abstractmethod
    def about(self) -> Result:
        """The table, its data and its scale, as the results tell them."""

    @abstractmethod
    def configuration(self, row: str) -> ModelConfig: ...

    @abstractmethod
    def training(self, row: str, recipe: Recipe, seed: int, accelerator: Accelerator) -> Tasks: ...

    @abstractmethod
    def validation(self, row: str) -> Sequence[Task]:
        """Tasks by which learning rates, and weights if it `keeps_best`, are chosen."""

    def prepare(self, row: str, model: NeuralProcess) -> float:  # noqa: ARG002
        """Fit what is fitted before training; returns the seconds that it took, part of it."""
        return 0.0

    @abstractmethod
    def score(self, row: str, model: NeuralProcess, folder: Path) -> Result:
        """Scores on test tasks; what figures need of them is left in the folder."""

    @abstractmethod
    def timed(self, row: str) -> Task:
        """The batch whose forward pass is timed."""


@dataclass(frozen=True)
class Plan:
    """Where results go, and how rows are trained: from which seeds, at which learning rates.

    Without `rates`, the rate is that of the recipe; else each is tried for a part of the training
    and the one with the best score on the validation tasks is used, for all seeds. `command` is the
    one that is running.
    """

    out: Path
    command: str
    seeds: tuple[int, ...] = (0,)
    rates: tuple[float, ...] = ()


def run_row(experiment: Experiment, row: str, plan: Plan, console: Console) -> list[Result]:
    """Train one row from every seed, or continue it, and score it; finished ones stay as they are,
    if they were scored on the same test tasks.

    With several processes, the first one scores and writes.
    """
    accelerator = make_accelerator()
    recipe, tried = experiment.recipe, {}
    if plan.rates:
        tried = _known_rates(experiment, row, plan)
        tried = tried or _try_rates(experiment, row, plan, accelerator, console)
        recipe = replace(recipe, rate=_best(tried, row))
    found = []
    for seed in plan.seeds:
        path = result_path(experiment, row, plan, seed)
        folder, before = path.parent, _read(experiment, path)
        if before.get("recipe") == asdict(recipe) and same_tests(before, experiment):
            found.append(before)
            continue
        model, done = _train(experiment, row, recipe, seed, folder, accelerator, console)
        result = {
            "row": row,
            "seed": seed,
            **experiment.about(),
            "recipe": asdict(recipe),
            "rates": {f"{rate:g}": score for rate, score in tried.items()},
            "parameters": sum(p.numel() for p in model.parameters()),
            "steps": done.step,
            "minutes": done.seconds / 60,
            "threads": torch.get_num_threads(),
            "processes": accelerator.num_processes,
            "machine": f"{platform.system()}, {platform.machine()}, {os.cpu_count()} cores",
            "commit": commit(),
            "command": plan.command,
        }

        finish = partial(_finish, experiment, row, model.to(accelerator.device), path, result)
        in_main_process(accelerator, finish)
        found.append(result)
    return found


def result_path(experiment: Experiment, row: str, plan: Plan, seed: int) -> Path:
    """The result of a row."""
    return plan.out / (experiment.name_of(row) + f"-seed{seed}" * (seed > 0)) / "result.json"


def _read(experiment: Experiment, path: Path) -> Result:
    """A result, which must be on the same data; nothing if there is none."""
    if not path.exists():
        return {}
    before, data = json.loads(path.read_text()), experiment.about()["data"]
    if before["data"] != data:
        raise ValueError(
            f"{path.parent} has results on {before['data']!r}, not on {data!r}; give another --out."
        )
    return before


def same_tests(result: Result, experiment: Experiment) -> bool:
    """Whether a result is on the data and the test tasks of an experiment."""
    about = experiment.about()
    return all(result.get(key) == about.get(key) for key in ("data", "test"))


def _known_rates(experiment: Experiment, row: str, plan: Plan) -> dict[float, float | None]:
    """The scores of learning rates in a result of the same training, if there is one."""
    for seed in plan.seeds:
        before = _read(experiment, result_path(experiment, row, plan, seed))
        tried = {float(rate): score for rate, score in before.get("rates", {}).items()}
        recipe = before.get("recipe", {}) | {"rate": experiment.recipe.rate}
        if set(tried) == set(plan.rates) and recipe == asdict(experiment.recipe):
            return tried
    return {}


def _finish(
    experiment: Experiment, row: str, model: NeuralProcess, path: Path, result: Result
) -> None:
    """Score a trained row and write its result."""
    result |= experiment.score(row, model.eval(), path.parent)
    write_text(path, json.dumps(result) + "\n")


def _try_rates(
    experiment: Experiment, row: str, plan: Plan, accelerator: Accelerator, console: Console
) -> dict[float, float | None]:
    """The score of every learning rate on the validation tasks after a short training, if any."""
    recipe = experiment.recipe
    scores: dict[float, float | None] = dict.fromkeys(plan.rates)
    short = replace(recipe, steps=max(1, round(TRIAL * recipe.steps)))
    if recipe.minutes is not None:
        short = replace(short, minutes=TRIAL * recipe.minutes)
    for rate in plan.rates:
        folder = plan.out / experiment.name_of(row) / f"rate-{rate:g}"
        trial = replace(short, rate=rate, validate_every=short.steps)
        try:
            _, done = _train(experiment, row, trial, 0, folder, accelerator, console, judged=True)
        except ValueError as error:
            if "not finite" not in str(error):
                raise
            console.print(f"{row} diverges at rate {rate:g}", highlight=False)
            continue
        if done.best is not None and math.isfinite(done.best):
            scores[rate] = done.best
    return scores


def _best(tried: Mapping[float, float | None], row: str) -> float:
    """The learning rate with the best score."""
    scores = {rate: score for rate, score in tried.items() if score is not None}
    if not scores:
        raise ValueError(f"Row {row!r} diverges at all rates {list(tried)}; give lower ones.")
    return max(scores, key=lambda rate: scores[rate])


def _train(
    experiment: Experiment,
    row: str,
    recipe: Recipe,
    seed: int,
    folder: Path,
    accelerator: Accelerator,
    console: Console,
    judged: bool = False,
) -> tuple[NeuralProcess, Progress]:
    """A trained row; it is `judged` on validation tasks, and always if the best is kept."""
    torch.manual_seed(seed)
    model = build_model(experiment.configuration(row))
    spent = experiment.prepare(row, model)
    tasks = experiment.training(row, recipe, seed, accelerator)

    def report(p: Progress) -> None:
        left = p.seconds / p.step * (recipe.steps - p.step) / 60
        if recipe.minutes is not None:
            left = recipe.minutes - p.seconds / 60
        console.print(
            f"{folder.name}  {p.step:>7,} steps  log-likelihood {-p.loss:7.3f}  "
            + (f"validation {p.validation:7.3f}  " if p.validation is not None else "")
            + f"{p.step / p.seconds:5.1f} steps/s  {max(0.0, left):5.1f} min left",
            highlight=False,
            soft_wrap=True,
        )

    done = train(
        model,
        tasks.start,
        recipe,
        folder,
        validation=experiment.validation(row) if judged or experiment.keeps_best else (),
        accelerator=accelerator,
        apart=tasks.apart,
        report=report if accelerator.is_main_process else lambda _: None,
        report_every=max(1, recipe.steps // 60),
        save_every=min(500, recipe.steps),
        spent=0.0 if judged else spent,
        clock=_clock(recipe, accelerator),
    )
    return model, done


def _clock(recipe: Recipe, accelerator: Accelerator) -> Callable[[], float]:
    """Minutes on a CPU are those of the processor, so that a busy machine changes nothing."""
    by_processor = recipe.minutes is not None and accelerator.device.type == "cpu"
    return time.process_time if by_processor else time.perf_counter


def load_row(config: ModelConfig, folder: Path) -> NeuralProcess:
    """A trained row from its folder."""
    files = CheckpointFiles.in_folder(folder)
    model = build_model(config).eval()
    path = files.best if files.best.exists() else files.last
    model.load_state_dict(weights_of(read_tensors(path)[0]))
    return model


def read_results(out: Path) -> list[tuple[Path, Result]]:
    """The results of all rows in a folder, and their paths."""
    found = [(path, json.loads(path.read_text())) for path in sorted(out.glob("*/result.json"))]
    if not found:
        raise ValueError(f"No results in {str(out)!r}; train a row first.")
    return found


def measure_times(out: Path, experiment_of: Callable[[Result], Experiment]) -> list[Result]:
    """Time a forward pass of every row in a folder, in one go, so that they are comparable.

    The weights do not matter, so that a folder needs no checkpoints.
    """
    results = []
    for path, result in read_results(out):
        experiment = experiment_of(result)
        model = build_model(experiment.configuration(result["row"])).eval()
        task = experiment.timed(result["row"])
        result["forward_ms"] = forward_milliseconds(model, task, experiment.repeats)
        result["forward_threads"] = torch.get_num_threads()
        write_text(path, json.dumps(result) + "\n")
        results.append(result)
    return results


@torch.no_grad()
def forward_milliseconds(model: NeuralProcess, task: Task, repeats: int = 5) -> float:
    """Median time of a forward pass, after one to warm up."""
    device = make_accelerator().device
    model, task = model.to(device), task.to(device)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        model(task).mean.sum().item()  # waits for a GPU
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[1:])
