"""Checkpoints: tensors in files that are whole or not there, and the state of a training run.

No pickle: safetensors for tensors, JSON in their header for everything else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import Tensor

from gridtnp.files import read_tensors, write_tensors
from gridtnp.recipes import Recipe, read_recipe

FORMAT = 1
"""Raised when older versions can no longer read what is written."""


@dataclass(frozen=True)
class Files:
    """Where checkpoints go."""

    last: Path
    best: Path

    @classmethod
    def beside(cls, folder: Path) -> Files:
        return cls(folder / "checkpoint.safetensors", folder / "best.safetensors")


@dataclass
class State:
    """Where a run is: all that the next step depends on but tensors, which are kept beside it.

    `best` is the best validation so far, `waiting` the validations since.
    """

    step: int = 0
    seconds: float = 0.0
    best: float | None = None
    waiting: int = 0
    stopped: bool = False
    """Whether it ended before its recipe did, because nothing got better."""
    tensors: dict[str, Tensor] = field(default_factory=dict, repr=False)


def save_checkpoint(path: Path, state: State, recipe: Recipe) -> None:
    """Whole or not at all: a kill while writing leaves the one before."""
    plain = {k: v for k, v in vars(state).items() if k != "tensors"}
    about = {k: json.dumps(v) for k, v in plain.items()}
    about |= {"recipe": json.dumps(asdict(recipe)), "format": str(FORMAT)}
    write_tensors(path, state.tensors, about)


def load_checkpoint(path: Path, recipe: Recipe) -> State:
    """Where a run was, if it had the same recipe."""
    tensors, about = read_tensors(path)
    if int(about.get("format", 0)) > FORMAT:
        raise ValueError(
            f"{path} must be of format {FORMAT} or older, but it is of {about['format']}; "
            "update gridtnp."
        )
    if "recipe" not in about:
        raise ValueError(f"{path} must be a checkpoint of a run, but it holds no recipe.")
    changed = recipe.differences(read_recipe(json.loads(about["recipe"])))
    if changed:
        raise ValueError(
            f"{path} was made with another recipe ({', '.join(changed)} differ); train into "
            "another folder or remove it."
        )
    known = ("step", "seconds", "best", "waiting", "stopped")
    plain = {k: json.loads(about[k]) for k in known if k in about}
    return State(**plain, tensors=tensors)


def recipe_of(path: Path) -> Recipe:
    """The recipe that a checkpoint was made with."""
    return read_recipe(json.loads(read_tensors(path)[1]["recipe"]))


def named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under a common name."""
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def part(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `named`: those under a common name."""
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}


def weights_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The network's part of a checkpoint, as trained last."""
    return part("model", tensors)


def kept_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights to predict with: their moving average where there is one."""
    return weights_of(tensors) | part("ema", tensors)
