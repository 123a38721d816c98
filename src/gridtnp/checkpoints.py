"""Checkpoints: tensors in files that are whole or not there, and the state of a training run.

No pickle: safetensors for tensors, JSON in their header for everything else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

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


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: dict[str, str]) -> None:
    """A safetensors file, written beside its place and then moved there."""
    whole = {name: t.detach().contiguous() for name, t in tensors.items()}
    replace_file(path, lambda temporary: save_file(whole, temporary, metadata=about))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            names = file.keys()
            return {k: file.get_tensor(k) for k in names}, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} must be a whole file of tensors, but it cannot be read ({error}); it may have "
            "been cut short or changed."
        ) from error


def write_text(path: Path, text: str) -> None:
    """A text file, written beside its place and then moved there."""
    replace_file(path, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))


def replace_file(path: Path, write: Callable[[str], Any]) -> None:
    """What `write` makes of a temporary name beside it, once it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.touch()  # as everyone may read files here; some writers make private ones
        mode = temporary.stat().st_mode
        write(str(temporary))
        os.chmod(temporary, mode)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"{path} must be written whole, but that failed ({error}); what was there before is "
            "still there. Make room, then go on."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
