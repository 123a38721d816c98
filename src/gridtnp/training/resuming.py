"""What a run starts from, and that it is resumed with the same: model, tasks, data and recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from gridtnp.config import ModelConfig
from gridtnp.contents import ModelContents
from gridtnp.data.dataset import Dataset
from gridtnp.recipes import Recipe, read_recipe
from gridtnp.tasks.sampling import Context, Sampler
from gridtnp.tasks.specification import TaskSpec
from gridtnp.training.run_folder import RunFolder

ROUNDING = 1e-6
"""Means and standard deviations computed on other machines differ by less, in units of σ."""


def run_config(
    model: ModelContents, recipe: Recipe, sampler: Sampler, val: Dataset | None
) -> dict[str, Any]:
    """The contents of `config.yaml`, apart from its header."""
    return {
        "task": model.spec.model_dump(mode="json"),
        "model": model.config.model_dump(mode="json"),
        "recipe": asdict(recipe),
        "data": _trained_on(model, sampler, val),
    }


def recipe_of_run(run: RunFolder, given: Recipe | None) -> Recipe:
    """The recipe of a run to resume, which any given one must match."""
    recipe = read_recipe(run.read_config()["recipe"])
    changed = [] if given is None else given.differences(recipe)
    if changed:
        raise ValueError(
            f"{run.path} has another recipe ({', '.join(changed)} differ); leave the recipe out to "
            "resume with that of the run, or train into another folder."
        )
    return recipe


def require_same(run: RunFolder, now: Mapping[str, Any], seed: int, data: Dataset) -> None:
    """Raise, naming the difference, unless a run was started with the same data, model and seed."""
    before = run.read_config()
    if "data" in before:
        _require_same_data(run, before["data"], now["data"])
    else:  # written by an earlier version
        run.require_same_fingerprint(data)
    for what, kind in (("model", ModelConfig), ("task", TaskSpec)):
        # fields that an earlier version did not have were what is now their default
        if kind.model_validate(before[what]).model_dump(mode="json") != now[what]:
            raise ValueError(
                f"The {what} differs from that in {run.config}; resume with the model that the run "
                "started with, or train into another folder."
            )
    if before["seed"] != seed:
        raise ValueError(
            f"seed={seed}: the run started with seed={before['seed']}; resume with that, or train "
            "into another folder."
        )


def _trained_on(model: ModelContents, sampler: Sampler, val: Dataset | None) -> dict[str, Any]:
    """All that decides what is trained on and validated with, by name.

    The names are those of `config.yaml`: with other ones, older runs could not be resumed.
    """
    found: dict[str, Any] = {}
    for part, data in (("training", sampler.data), ("validation", val)):
        identity = {} if data is None else data.identity()
        found |= {f"{name} of the {part} part": value for name, value in identity.items()}
    for name, mean in model.normaliser.mean.items():
        found[f"normaliser of {name!r}"] = [float(mean), float(model.normaliser.std[name])]
    for name, given in (sampler.context or {}).items():
        selection = given.selection if isinstance(given, Context) else given
        text = repr(selection) if is_dataclass(selection) else type(selection).__qualname__
        found[f"selection of {name!r}"] = text
    return found


def _require_same_data(run: RunFolder, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if not _same(old, new):
            old, new = ("none" if value is None else value for value in (old, new))
            raise ValueError(
                f"The {name} differs from that of the run in {run.path} ({old}, now {new}); resume "
                "with what the run started with, or train into another folder."
            )


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, list) and isinstance(new, list):  # mean and standard deviation
        return all(abs(a - b) <= ROUNDING * old[1] for a, b in zip(old, new, strict=True))
    return old == new
