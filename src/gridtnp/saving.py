"""Models on disk: weights in safetensors, everything else in JSON, whole and self-contained.

model.safetensors   weights
normaliser.json     the size of every variable
config.json         network, spec, format number, checksums of all three
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gridtnp import __version__
from gridtnp.config import ModelConfig
from gridtnp.contents import ModelContents
from gridtnp.data.normalisation import Normaliser
from gridtnp.files import read_tensors, write_tensors, write_text
from gridtnp.network.build import build_model
from gridtnp.recipes import read_recipe, recipe
from gridtnp.tasks.specification import TaskSpec

FORMAT = 2
"""Raised when older versions can no longer read what is written."""
WEIGHTS, NORMALISER, CONFIG = "model.safetensors", "normaliser.json", "config.json"


def save(model: ModelContents, folder: str | os.PathLike[str]) -> Path:
    """Write a model; one that is there already is replaced when the new one is whole."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not _is_model(path))):
        raise ValueError(
            f"A model needs a folder of its own, but {path} holds something else; choose another "
            "name."
        )
    fresh, old = path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        _write(model, fresh)
        if path.exists():
            os.replace(path, old)
        os.replace(fresh, path)
    finally:
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)
    return path


def load(folder: str | os.PathLike[str]) -> ModelContents:
    """Read a model from its own folder or from that of a run."""
    path = Path(folder)
    if not _is_model(path) and _is_model(path / "model"):
        path = path / "model"
    if not _is_model(path):
        raise ValueError(_why_not(path))
    record = _read(path / CONFIG)
    if not isinstance(record.get("format"), int):
        raise ValueError(f"{path / CONFIG} must be that of a model, but it has no format number.")
    if record["format"] > FORMAT:
        raise ValueError(
            f"{path} must be of format {FORMAT} or older, but it is of {record['format']}, written "
            f"by gridtnp {record.get('gridtnp', '?')}; update gridtnp."
        )
    sums = record.pop("sha256", {})
    found = {CONFIG: _digest(json.dumps(record, sort_keys=True).encode())}
    for name in (WEIGHTS, NORMALISER):
        if not (path / name).is_file():
            raise ValueError(
                f"A model must have a file {name}, but {path} has none; copy it again."
            )
        found[name] = _digest((path / name).read_bytes())
    for name, checksum in found.items():
        if sums.get(name) != checksum:
            raise ValueError(
                f"{path / name} must be as it was saved, but its checksum differs: it was cut "
                "short or changed; copy or save the model again."
            )
    config = ModelConfig.model_validate(record["config"])
    network = build_model(config)
    network.load_state_dict(read_tensors(path / WEIGHTS)[0])
    return ModelContents(
        config,
        TaskSpec.model_validate(record["task" if record["format"] > 1 else "setting"]),
        Normaliser.from_json(path / NORMALISER),
        network.eval(),
        read_recipe(record["recipe"]) if "recipe" in record else "default",
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
        "recipe": asdict(recipe(model.recipe)),
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
            f"{path} must be that of a model, but it cannot be read: it was cut short or changed; "
            "copy or save the model again."
        )
    return found


def _is_model(path: Path) -> bool:
    return (path / CONFIG).is_file()


def _why_not(path: Path) -> str:
    if not path.exists():
        return f"A model must be a folder that `save` or `fit` has made, but {path} does not exist."
    if (path / "config.yaml").is_file():
        return (
            f"A run must have ended to be loaded, but {path} has no model yet; go on with "
            f"fit(..., out={str(path)!r}, resume=True)."
        )
    return (
        f"A model must be a folder that `save` or `fit` has made, but {path} has no {CONFIG}; "
        "give the folder of a model or of a run."
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
