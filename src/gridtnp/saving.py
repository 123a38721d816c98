"""Saving and loading models: weights in safetensors, everything else in JSON.

model.safetensors   weights
normaliser.json     mean and standard deviation of every variable
config.json         format number, network, task specification, recipe, checksums of all files
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from gridtnp import __version__
from gridtnp.config import ModelConfig
from gridtnp.contents import ModelContents
from gridtnp.data.normalisation import Normaliser
from gridtnp.errors import explain
from gridtnp.files import (
    DamagedFile,
    read_folder,
    read_tensors,
    replacing,
    tensor_shapes,
    write_tensors,
    write_text,
)
from gridtnp.network.build import build_model
from gridtnp.recipes import read_recipe
from gridtnp.recipes import recipe as to_recipe
from gridtnp.tasks.specification import TaskSpec

FORMAT = 2
"""Increased when older versions can no longer read what is written.

1: "setting" instead of "task", no "recipe". 2: the current one.
"""
WEIGHTS, NORMALISER, CONFIG = "model.safetensors", "normaliser.json", "config.json"


def save(model: ModelContents, folder: str | os.PathLike[str]) -> Path:
    """Write a model to a folder; a model that is already there is replaced in one step."""
    path = Path(folder)
    _require_replaceable(path)
    with replacing(path) as new:
        new.mkdir()
        _write(model, new)
    return path


def load(folder: str | os.PathLike[str]) -> ModelContents:
    """Read a model from its folder or from the folder of a run."""
    path = Path(folder)
    if not _is_model(path) and (path / "model").exists():
        path = path / "model"
    return read_folder(path, _load)


def _load(path: Path) -> ModelContents:
    if not _is_model(path):
        raise ValueError(_explain_missing(path))
    record = _read(path / CONFIG)
    if not isinstance(record.get("format"), int):
        raise ValueError(f"{path / CONFIG} has no format number; is it the config of a model?")
    if record["format"] > FORMAT:
        raise ValueError(
            f"{path} has format {record['format']}, written by gridtnp "
            f"{record.get('gridtnp', '?')}, but this version reads formats up to {FORMAT}; update "
            "gridtnp."
        )
    sums = record.pop("sha256", {})
    found = {CONFIG: _digest(json.dumps(record, sort_keys=True).encode())}
    for name in (WEIGHTS, NORMALISER):
        if not (path / name).is_file():
            raise ValueError(f"{path} has no file {name}; copy or save the model again.")
        found[name] = _digest((path / name).read_bytes())
    for name, checksum in found.items():
        if sums.get(name) != checksum:
            raise ValueError(
                f"{path / name} was cut short or changed (its checksum differs); copy or save the "
                "model again."
            )
    task = record.get("task" if record["format"] > 1 else "setting")
    with _explained(path / CONFIG):
        config = ModelConfig.model_validate(record.get("config"))
        spec = TaskSpec.model_validate(task)
        recipe = read_recipe(record["recipe"]) if "recipe" in record else "default"
        expected = _outline(config, len(tensor_shapes(path / WEIGHTS)))
    with _explained(path / NORMALISER):
        normaliser = Normaliser.from_json(path / NORMALISER)
    weights = _weights(path / WEIGHTS, expected)
    network = build_model(config)
    network.load_state_dict(weights)
    return ModelContents(config, spec, normaliser, network.eval(), recipe)


def _outline(config: ModelConfig, found: int) -> dict[str, Tensor]:
    """The tensors of a network by name, without values; raises if they are many more than found."""
    number, mine = 0, threading.get_ident()

    def count(*_: object) -> None:
        nonlocal number
        number += threading.get_ident() == mine
        if number > 2 * found:  # before there are too many even without values
            raise ValueError(f"the network has more than {2 * found} tensors, {WEIGHTS} {found}")

    counting = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):  # no memory, however large it is
            return build_model(config).state_dict()
    finally:
        counting.remove()


def _weights(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file, which must be those of the network."""
    found = tensor_shapes(path)
    for name in expected.keys() ^ found.keys():
        finding = "lacks" if name in expected else "has an unknown"
        raise ValueError(f"{path} {finding} tensor {name!r}; copy or save the model again.")
    for name, (kind, shape) in found.items():
        wanted = expected[name]
        if shape != tuple(wanted.shape) or "F" not in kind:  # F32, BF16, …
            raise ValueError(
                f"Tensor {name!r} of {path} has type {kind} and shape {shape}, but the network has "
                f"floating-point numbers and shape {tuple(wanted.shape)}; copy or save the model "
                "again."
            )
    tensors = read_tensors(path)[0]
    for name, values in tensors.items():
        if not values.isfinite().all():
            raise ValueError(f"Tensor {name!r} of {path} has NaN or inf; train the model again.")
    return tensors


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn whatever is wrong with the contents of a file into one sentence."""
    try:
        yield
    except DamagedFile:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError) as error:
        reason = f"{type(error).__name__} {error}"
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            reason = explain(error)
    else:
        return
    raise ValueError(
        f"{path} does not describe a model ({shorten(reason.splitlines()[0].rstrip('.'), 200)}); "
        "copy or save the model again."
    )


def _write(model: ModelContents, folder: Path) -> None:
    weights = {name: value.cpu() for name, value in model.network.state_dict().items()}
    write_tensors(folder / WEIGHTS, weights, {})
    model.normaliser.to_json(folder / NORMALISER)
    record = {
        "format": FORMAT,
        "gridtnp": __version__,
        "config": model.config.model_dump(mode="json"),
        "task": model.spec.model_dump(mode="json"),
        "recipe": asdict(to_recipe(model.recipe)),
    }
    sums = {name: _digest((folder / name).read_bytes()) for name in (WEIGHTS, NORMALISER)}
    sums[CONFIG] = _digest(json.dumps(record, sort_keys=True).encode())
    write_text(folder / CONFIG, json.dumps(record | {"sha256": sums}, indent=2) + "\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(
            f"Cannot read {path}: it was cut short or changed; copy or save the model again."
        )
    return found


def _require_replaceable(path: Path) -> None:
    """Raise unless a folder is empty or not there, or has a model and nothing else."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    written = {"format", "gridtnp", "config", "sha256"}
    try:
        ours = written <= json.loads((path / CONFIG).read_text(encoding="utf-8")).keys()
    except (OSError, ValueError, AttributeError):
        ours = False
    if not ours:
        raise ValueError(f"{path} exists and is not a model; save to another folder.")
    files = (WEIGHTS, NORMALISER, CONFIG)
    others = sorted(p.name for p in path.iterdir() if p.name not in files or not p.is_file())
    if others:
        raise ValueError(
            f"{path} has files besides those of a model ({', '.join(others)}); move them, or save "
            "to another folder."
        )


def _is_model(path: Path) -> bool:
    return (path / CONFIG).is_file()


def _explain_missing(path: Path) -> str:
    if not path.exists():
        return f"No such model: {path} does not exist."
    if (path / "config.yaml").is_file():
        return (
            f"The run in {path} has no model yet; continue it with fit(..., out={str(path)!r}, "
            "resume=True)."
        )
    return (
        f"No such model: {path} has no {CONFIG}; give a folder written by `save`, or the `out` "
        "folder of `fit`."
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
