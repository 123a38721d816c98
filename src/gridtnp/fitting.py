"""Fitting a model to data: tasks from the training part, scored on the validation part.

The run's folder, the display and trackers hang on the loop of `training.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from accelerate.tracking import (
    LOGGER_TYPE_TO_CLASS,
    GeneralTracker,
    get_available_trackers,
)
from accelerate.utils import broadcast_object_list

from gridtnp.background import prepared
from gridtnp.config import GriddedConfig
from gridtnp.dataset import Dataset
from gridtnp.errors import require_known
from gridtnp.estimates import estimate
from gridtnp.moving import moved
from gridtnp.picks import Pick
from gridtnp.processes import processes
from gridtnp.processor import require_bfloat16
from gridtnp.recipes import Recipe, read_recipe
from gridtnp.recipes import recipe as made
from gridtnp.runs import RunFolder
from gridtnp.sampling import Sampler
from gridtnp.saving import Contents, save
from gridtnp.task import Task
from gridtnp.training import Progress, train
from gridtnp.watching import Display

VALIDATION = 64
"""Tasks to validate with: all times of the validation part, or so many of them at random."""
MOVES = 1
"""Random numbers of their own for moving tasks."""
Tracker = str | GeneralTracker
"""`"tensorboard"`, `"wandb"`, … or one of your own."""


def fit(
    model: Contents,
    data: Dataset,
    val: Dataset | None = None,
    *,
    recipe: Recipe | str | None = None,
    chosen: Recipe | str = "default",
    minutes: float | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    seed: int = 0,
    picks: Mapping[str, Pick] | None = None,
    trackers: Sequence[Tracker] = (),
    workers: int = 1,
    shard: bool = False,
    quiet: bool = False,
) -> Progress:
    """Train the model's network in place; see `GriddedTNP.fit`. `chosen` is the recipe that is
    followed, and was told before, if there is no other.
    """
    wanted = made(chosen if recipe is None else recipe)
    if resume and out is None:
        raise ValueError("To go on with a run, its folder must be known; give out='runs/...'.")
    _require_trackers(trackers, out)
    accelerator = processes(trackers, out)
    run, begun = (None, False) if out is None else RunFolder.opened(out, resume=resume)
    accelerator.wait_for_everyone()  # before the first one writes there
    if begun and run is not None:
        run.require_same_data(data)
        free = recipe is None or minutes is not None
        wanted = _recipe_to_go_on_with(run, model, None if free else wanted, seed)
    if wanted.precision == "bfloat16" and accelerator.device.type == "cpu":
        require_bfloat16()  # before anything is written
    sampler = model.setting.sampler(data, model.normaliser, picks, batch=wanted.batch, seed=seed)
    if minutes is not None and not begun:
        wanted = _as_long_as(minutes, wanted, model, sampler, accelerator.device)
    validation = () if val is None else validation_tasks(model, val)
    main = accelerator.is_main_process
    if main and not quiet and wanted != made(chosen):
        print(f"recipe: {wanted.summary}")
    if run is not None and main and not begun:
        run.begin(_settings(model, wanted), data, seed)
    if run is not None and main and begun:
        run.forget_after(_steps_done(run))
    accelerator.wait_for_everyone()
    if trackers:
        accelerator.init_trackers("gridtnp", asdict(wanted))

    def report(progress: Progress) -> None:
        display(progress)
        values = {k: v for k, v in asdict(progress).items() if v is not None}
        if run is not None and main:
            run.note(values)
        if trackers:
            accelerator.log({k: v for k, v in values.items() if k != "step"}, progress.step)

    try:
        with Display(wanted.steps, quiet=quiet or not main) as display:
            done = train(
                model.network,
                lambda start: prepared(_maker(model, sampler, seed), start, workers=workers),
                wanted,
                None if run is None else run.files,
                validation=validation,
                columns=_columns(model),
                accelerator=accelerator,
                shard=shard,
                report=report,
                report_every=min(100, max(1, wanted.steps // 200)),
                save_every=min(wanted.validate_every, 500),
            )
    except KeyboardInterrupt as stopped:
        again = "" if out is None else f" Go on with fit(..., out={str(out)!r}, resume=True)."
        raise KeyboardInterrupt(f"{stopped}{again}") from None
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()
    if run is not None and main:
        save(model, run.model)
    accelerator.wait_for_everyone()
    return done


def _maker(model: Contents, sampler: Sampler, seed: int) -> Callable[[int], Task]:
    """What makes the training task of a number."""
    a = model.config.architecture
    if not isinstance(a, GriddedConfig) or a.positions == "absolute":
        return sampler.draw
    return lambda index: moved(
        sampler.draw(index), a.grid, np.random.default_rng([seed, index, MOVES])
    )


def validation_tasks(model: Contents, val: Dataset, batch: int = 8) -> list[Task]:
    """The same ones every time."""
    sampler = model.setting.sampler(val, model.normaliser, batch=batch, seed=0)
    if sampler.times is None or len(sampler.times) <= VALIDATION:
        return list(sampler.in_order())
    return [sampler.draw(index) for index in range(VALIDATION // batch)]


def _require_trackers(trackers: Sequence[Tracker], out: str | os.PathLike[str] | None) -> None:
    """Raise for a name that is unknown, not installed, or has no folder to write to."""
    for name in (tracker for tracker in trackers if isinstance(tracker, str)):
        require_known(name, LOGGER_TYPE_TO_CLASS, "A tracker must be one that accelerate knows")
        if name not in map(str, get_available_trackers()):
            raise ValueError(
                f"The tracker {name!r} must be installed, but it is not: pip install {name}."
            )
        if out is None and LOGGER_TYPE_TO_CLASS[name].requires_logging_directory:
            raise ValueError(
                f"The tracker {name!r} writes into the folder of the run; give out='runs/...'."
            )


def _recipe_to_go_on_with(
    run: RunFolder, model: Contents, wanted: Recipe | None, seed: int
) -> Recipe:
    """The run's own, unless another one is asked for, which is refused."""
    before = run.read_config()
    own = read_recipe(before["recipe"])
    now = _settings(model, own)
    for what in ("model", "setting"):
        if before[what] != now[what]:
            raise ValueError(
                f"A run goes on with the model that it began with, but the {what} differs from "
                f"that in {run.config}; load it with GriddedTNP.load or train into another folder."
            )
    if before["seed"] != seed:
        raise ValueError(
            f"A run goes on with the seed that it began with, {before['seed']}, got {seed}."
        )
    changed = [] if wanted is None else wanted.differences(own)
    if changed:
        raise ValueError(
            f"{run.path} was made with another recipe ({', '.join(changed)} differ); train into "
            "another folder or leave the recipe out."
        )
    return own


def _as_long_as(
    minutes: float, wanted: Recipe, model: Contents, sampler: Sampler, device: torch.device
) -> Recipe:
    """The recipe with as many steps as fit into the time, the same number in all processes."""
    if not minutes > 0:
        raise ValueError(f"Training must be given some time, got minutes={minutes:g}.")
    step = estimate(model.network, sampler.draw(0), wanted, device).seconds_per_step
    agreed: list[Any] = [max(1, round(60 * minutes / step))]
    broadcast_object_list(agreed)
    return replace(
        wanted, steps=agreed[0], validate_every=min(wanted.validate_every, max(1, agreed[0] // 6))
    )


def _steps_done(run: RunFolder) -> int:
    from gridtnp.checkpoints import read_tensors

    return int(read_tensors(run.files.last)[1]["step"]) if run.files.last.exists() else 0


def _settings(model: Contents, chosen: Recipe) -> dict[str, Any]:
    return {
        "setting": model.setting.model_dump(mode="json"),
        "model": model.config.model_dump(mode="json"),
        "recipe": asdict(chosen),
    }


def _columns(model: Contents) -> dict[str, Sequence[str]]:
    names: dict[str, Sequence[str]] = {k: v.variables for k, v in model.setting.contexts.items()}
    return names | {"target": model.setting.target_names, "features": model.config.features}
