"""Checkpoints: the full state of a training run, so that it can be resumed exactly.

No pickle: tensors are in safetensors, everything else is JSON in their header, with a checksum of
both. The checkpoint before the last is kept, in case the last one is damaged.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import Tensor

from gridtnp.files import CHECKSUM, DamagedFile, read_tensors, write_tensors
from gridtnp.recipes import Recipe, read_recipe

FORMAT = 2
"""Increased when older versions can no longer read what is written, or more can be relied on.

1: no checksum. 2: the current one.
"""


@dataclass(frozen=True)
class CheckpointFiles:
    """Paths of the last checkpoint, of the one before it, and of the best."""

    last: Path
    previous: Path
    best: Path

    @classmethod
    def in_folder(cls, folder: Path) -> CheckpointFiles:
        names = ("checkpoint", "previous", "best")
        return cls(*(folder / f"{name}.safetensors" for name in names))

    @property
    def exist(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.last.exists() or self.previous.exists()


@dataclass
class State:
    """The state of a run.

    `best` is the best validation score so far, `waiting` the number of validations since then.
    """

    step: int = 0
    seconds: float = 0.0
    best: float | None = None
    waiting: int = 0
    stopped: bool = False
    """Whether training ended for lack of improvement, or of time."""
    tensors: dict[str, Tensor] = field(default_factory=dict, repr=False)


def save_checkpoint(path: Path, state: State, recipe: Recipe, previous: Path | None = None) -> None:
    """Write a checkpoint atomically; the one that it replaces is moved to `previous`, if given."""
    plain = {k: v for k, v in vars(state).items() if k != "tensors"}
    about = {k: json.dumps(v) for k, v in plain.items()}
    about |= {"recipe": json.dumps(asdict(recipe)), "format": str(FORMAT)}
    write_tensors(path, state.tensors, about, previous)


def newest_checkpoint(files: CheckpointFiles, recipe: Recipe) -> tuple[State, Path] | None:
    """The last checkpoint and its path, or the one before it if that is damaged or missing."""
    damaged = None
    for path in (files.last, files.previous):
        if not path.exists():
            continue
        try:
            state = load_checkpoint(path, recipe)
        except DamagedFile as error:
            damaged = error
            continue
        if damaged is not None:
            warnings.warn(f"{damaged}; resuming from {path}, step {state.step}.", stacklevel=2)
        return state, path
    if damaged is not None:
        raise DamagedFile(
            f"{damaged}; remove {files.last} and {files.previous} to start the run from step 0."
        )
    return None


def load_checkpoint(path: Path, recipe: Recipe) -> State:
    """The state in a checkpoint, which must be of the same recipe."""
    tensors, about = read_tensors(path)
    number = int(about.get("format", 0))
    if number > FORMAT:
        raise ValueError(
            f"{path} has format {number}, but this version reads formats up to {FORMAT}; "
            "update gridtnp."
        )
    if number > 1 and CHECKSUM not in about:
        raise DamagedFile(f"{path} was changed (it has no checksum)")
    if "recipe" not in about:
        raise ValueError(f"{path} has no recipe; is it a checkpoint of a run?")
    changed = recipe.differences(read_recipe(json.loads(about["recipe"])))
    if changed:
        raise ValueError(
            f"{path} was made with another recipe ({', '.join(changed)} differ); train into "
            "another folder, or remove it."
        )
    known = ("step", "seconds", "best", "waiting", "stopped")
    plain = {k: json.loads(about[k]) for k in known if k in about}
    return State(**plain, tensors=tensors)


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename every tensor `name` to `prefix.name`."""
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `add_prefix`: the tensors called `prefix.name`, by `name`."""
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}


def weights_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The latest weights of the network in a checkpoint."""
    return with_prefix("model", tensors)


def averaged_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights to predict with: the moving average, where the recipe keeps one."""
    return weights_of(tensors) | with_prefix("ema", tensors)
