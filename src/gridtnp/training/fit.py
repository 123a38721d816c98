"""Fitting a model to data: `loop.py` on sampled tasks, with run folder, display and trackers."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.tracking import (
    LOGGER_TYPE_TO_CLASS,
    GeneralTracker,
    get_available_trackers,
)
from accelerate.utils import broadcast_object_list

from gridtnp.config import GriddedConfig
from gridtnp.contents import ModelContents
from gridtnp.data.dataset import Dataset
from gridtnp.errors import require_known
from gridtnp.files import locked
from gridtnp.network.kriging import KrigedNetwork
from gridtnp.processor import require_bfloat16
from gridtnp.recipes import Recipe
from gridtnp.recipes import recipe as to_recipe
from gridtnp.saving import save
from gridtnp.task import Task
from gridtnp.tasks.augmentation import shifted, shifted_apart
from gridtnp.tasks.prefetch import prefetch
from gridtnp.tasks.sampling import Sampler
from gridtnp.tasks.selection import Selection
from gridtnp.training.calibration import (
    calibrate,
    fit_prior,
    with_pretrained_process,
    without_pretrained,
)
from gridtnp.training.distributed import in_main_process, make_accelerator, share_of
from gridtnp.training.estimates import cpu_threads, estimate
from gridtnp.training.loop import Progress, train
from gridtnp.training.progress import Display
from gridtnp.training.resuming import recipe_of_run, require_same, run_config
from gridtnp.training.run_folder import RunFolder

MAX_VALIDATION = 64
"""Maximum number of validation tasks; a random subset of the times is used if there are more."""
SHIFT_SEED = 1
"""Seed of the shift augmentation, in addition to the run's seed."""
MEASURED = 100
"""Steps of a training for which it pays to measure the fastest number of threads."""
UNJUDGED = 300
"""Steps of the recipe `quick` for a network that corrects kriging, without a validation part."""
LONGEST = 10.0
"""Minutes that the recipe `quick` takes at most."""
PRIOR = 0.4
"""Part of the `minutes` of a training after which nothing optional of the prior is fitted."""
Tracker = str | GeneralTracker
"""`"tensorboard"`, `"wandb"`, …, or a tracker object of accelerate."""


def fit(
    model: ModelContents,
    data: Dataset,
    val: Dataset | None = None,
    *,
    recipe: Recipe | str | None = None,
    minutes: float | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    seed: int = 0,
    selection: Mapping[str, Selection] | None = None,
    trackers: Sequence[Tracker] = (),
    workers: int = 1,
    shard: bool = False,
    quiet: bool = False,
) -> ModelContents:
    """Train the model's network in place; see `GriddedTNP.fit`.

    Returns the model with the recipe followed.
    """
    started = time.perf_counter()
    model = without_pretrained(model)
    keep_recipe = recipe is None or minutes is not None
    recipe = to_recipe(model.recipe if recipe is None else recipe)
    if resume and out is None:
        raise ValueError("resume=True needs the folder of the run; give out='runs/...'.")
    _require_trackers(trackers, out)
    accelerator = make_accelerator(trackers, out)
    run, resumed = (None, False) if out is None else RunFolder.opened(out, resume=resume)
    accelerator.wait_for_everyone()  # before the main process writes to the folder
    if resumed and run is not None:
        recipe = recipe_of_run(run, None if keep_recipe else recipe)
    if recipe.precision == "bfloat16" and accelerator.device.type == "cpu":
        require_bfloat16()  # before anything is written
    sampler = model.sampler(data, selection, batch=recipe.batch, seed=seed)
    if not resumed:
        if val is None and isinstance(model.network, KrigedNetwork) and _is_quick(recipe):
            recipe = replace(recipe, steps=UNJUDGED)
        recipe = _recipe_here(recipe, minutes, model, sampler, accelerator)
    config = {} if run is None else run_config(model, recipe, sampler, val)
    if resumed and run is not None:
        require_same(run, config, seed, data)
    validation = () if val is None else validation_tasks(model, val)
    begun = resumed and run is not None and run.files.exist  # a checkpoint holds its prior
    until = math.inf if recipe.minutes is None else started + 60 * PRIOR * recipe.minutes
    prior = "" if begun else fit_prior(model, sampler, validation, until)
    main = accelerator.is_main_process
    if main and not quiet:
        if prior:
            print(prior)
        if to_recipe(model.recipe).differences(recipe):
            print(f"recipe: {recipe.summary}")

    def start(run: RunFolder) -> None:
        held.enter_context(locked(run.path))
        if not resumed:
            run.begin(config, seed)
        run.describe(data, seed)

    def tasks(start: int) -> Iterator[Task]:
        if run is not None and main and resumed:
            run.drop_metrics_after(start)
        rank, world = accelerator.process_index, accelerator.num_processes
        maker = _task_maker(model, sampler, seed, rank, world)
        return prefetch(maker, start, workers=workers)

    def report(progress: Progress) -> None:
        display(progress)
        values = {k: v for k, v in asdict(progress).items() if v is not None}
        if run is not None and main:
            run.add_metrics(values)
        if trackers:
            accelerator.log({k: v for k, v in values.items() if k != "step"}, progress.step)

    with ExitStack() as held:
        if run is not None:
            in_main_process(accelerator, lambda: start(run))
        if trackers:
            accelerator.init_trackers("gridtnp", asdict(recipe))
        try:
            with (
                cpu_threads(recipe.threads),
                Display(recipe.steps, minutes=recipe.minutes, quiet=quiet or not main) as display,
            ):
                progress = train(
                    model.network,
                    tasks,
                    recipe,
                    None if run is None else run.files,
                    validation=validation,
                    columns=_columns(model),
                    accelerator=accelerator,
                    shard=shard,
                    apart=sampler.independent,
                    report=report,
                    report_every=min(100, max(1, recipe.steps // 200)),
                    save_every=min(recipe.validate_every, 500),
                    spent=time.perf_counter() - started,
                )
        except KeyboardInterrupt as stopped:
            again = (
                "" if out is None else f" Continue with fit(..., out={str(out)!r}, resume=True)."
            )
            raise KeyboardInterrupt(f"{stopped}{again}") from None
        finally:
            for tracker in accelerator.trackers:
                tracker.finish()
        model = with_pretrained_process(model)
        notes = [early_end(progress, recipe), calibrate(model, validation)]
        if main and not quiet:
            for note in filter(None, notes):
                print(note)
        # other machines have other threads
        fitted = replace(model, recipe=replace(recipe, threads=None))
        if run is not None and main:
            save(fitted, run.model)
        accelerator.wait_for_everyone()
    return fitted


def early_end(progress: Progress, recipe: Recipe) -> str:
    """Says that training ended before its steps or its time were over, if it did."""
    if recipe.minutes is None:
        early = progress.step < recipe.steps
    else:
        early = progress.seconds < 54 * recipe.minutes  # validation may end it a little early
    return f"stopped at step {progress.step:,}: validation no longer improves" if early else ""


def _task_maker(
    model: ModelContents, sampler: Sampler, seed: int, rank: int, world: int
) -> Callable[[int], Task]:
    """Training batches by index, with shift augmentation if positions are relative.

    Not if the network knows its places, which would not be theirs. Of batches that are read from
    disk, the share of this process.
    """
    a, network = model.config.architecture, model.network
    grid = a.grid if isinstance(a, GriddedConfig) and a.positions == "relative" else None
    if isinstance(network, KrigedNetwork) and network.knows_places:
        grid = None
    if sampler.independent:
        mine = share_of(sampler.batch, rank, world)

        def own(index: int) -> Task:
            task = sampler.draw(index, mine)
            if grid is None:
                return task
            each = [np.random.default_rng([seed, index, SHIFT_SEED, i]) for i in mine]
            return shifted_apart(task, grid, each)

        return own
    if grid is None:
        return sampler.draw
    return lambda index: shifted(
        sampler.draw(index), grid, np.random.default_rng([seed, index, SHIFT_SEED])
    )


def validation_tasks(model: ModelContents, val: Dataset, batch: int = 8) -> list[Task]:
    """A fixed set of tasks: all times of the validation part, at most `MAX_VALIDATION`."""
    sampler = model.sampler(val, batch=batch, seed=0)
    if sampler.times is None or len(sampler.times) <= MAX_VALIDATION:
        return list(sampler.in_order())
    return [sampler.draw(index) for index in range(MAX_VALIDATION // batch)]


def _require_trackers(trackers: Sequence[Tracker], out: str | os.PathLike[str] | None) -> None:
    """Raise for a tracker that is unknown, not installed, or has no folder to write to."""
    for name in (tracker for tracker in trackers if isinstance(tracker, str)):
        require_known(name, LOGGER_TYPE_TO_CLASS, "tracker")
        if name not in map(str, get_available_trackers()):
            raise ValueError(f"Tracker {name!r} is not installed; pip install {name}.")
        if out is None and LOGGER_TYPE_TO_CLASS[name].requires_logging_directory:
            raise ValueError(
                f"Tracker {name!r} writes to the folder of the run; give out='runs/...'."
            )


def _recipe_here(
    recipe: Recipe,
    minutes: float | None,
    model: ModelContents,
    sampler: Sampler,
    accelerator: Accelerator,
) -> Recipe:
    """The recipe with the number of threads for this machine and, with `minutes`, for that time.

    The estimated number of steps only says how often to report and to save.
    """
    if minutes is not None and not (isinstance(minutes, int | float) and minutes > 0):
        raise ValueError(f"minutes={minutes!r}: must be a positive number.")
    minutes = recipe.minutes if minutes is None else minutes
    quick = minutes is None and _is_quick(recipe)
    measured = recipe.steps >= MEASURED and torch.get_num_threads() > 1
    if minutes is None and not (quick or measured):
        return recipe
    task, processes = sampler.draw(0), accelerator.num_processes
    found = estimate(model.network, task, recipe, accelerator.device, processes)
    shared: list[Any] = [found.seconds_per_step, found.threads]
    broadcast_object_list(shared)
    recipe = replace(recipe, threads=recipe.threads or shared[1])
    if quick and recipe.steps * shared[0] > 60 * LONGEST:
        minutes = LONGEST
    if minutes is None:
        return recipe
    steps = max(1, round(60 * minutes / shared[0]))
    often = min(recipe.validate_every, max(1, steps // 6))
    return replace(recipe, steps=steps, minutes=minutes, validate_every=often)


def _is_quick(recipe: Recipe) -> bool:
    """Whether it is the default of tiny models, whose length follows the data."""
    quick = to_recipe("quick")
    return recipe in (
        replace(quick, precision=recipe.precision, steps=n) for n in (quick.steps, UNJUDGED)
    )


def _columns(model: ModelContents) -> dict[str, Sequence[str]]:
    """Names of the variables of each context set, of the target and of the features."""
    names: dict[str, Sequence[str]] = {k: v.variables for k, v in model.spec.contexts.items()}
    return names | {"target": model.spec.target_names, "features": model.config.features}
