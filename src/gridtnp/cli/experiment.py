"""Experiments: a YAML file that says which data, which split, which model and how to train it.

Paths in it are relative to the file. Unknown keys are refused with the one that was probably meant,
and any key can be replaced from the command line: `--train.lr 1e-3`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
)

from gridtnp.config import Part
from gridtnp.data.dataset import Dataset
from gridtnp.errors import require_known
from gridtnp.files import write_text
from gridtnp.recipes import Recipe, read_recipe, recipe
from gridtnp.training.design import SIZES, ModelOptions

ALIASES = {"lr": "rate", "learning_rate": "rate"}
"""What else settings of a recipe are called."""
NAME = "experiment.yaml"
"""The experiment in the folder of its run."""


class Sources(Part):
    """Which data; see `Dataset`."""

    sources: dict[str, str] = Field(min_length=1)
    target: str | tuple[str, ...]
    static: dict[str, str] = Field(default_factory=dict)
    features: tuple[str, ...] = ()
    units: dict[str, str] = Field(default_factory=dict)


class Split(Part):
    """What is kept apart for validation and for the test; see `Dataset.split`."""

    time: tuple[str, str] | None = None
    gap: str = "0h"
    hold_out_stations: float | tuple[str, ...] | None = None
    blocks: PositiveFloat | None = None
    seed: int = 0

    @field_validator("time", mode="before")
    @classmethod
    def _written_plainly(cls, value: Any) -> Any:
        """YAML takes 1990 for a number and 1990-01-01 for a date."""
        return [str(v) for v in value] if isinstance(value, list | tuple) else value


class Training(BaseModel):
    """How to train: a recipe by name, and any of its settings instead (`steps`, `lr`, …)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    recipe: str | None = None
    minutes: PositiveFloat | None = None
    seed: int = 0
    workers: PositiveInt = 1

    def made(self, options: ModelOptions) -> Recipe | str | None:
        """A recipe by name, or with everything that replaces a part of it; None is the size's."""
        named = self.recipe or options.recipe
        own = {ALIASES.get(name, name): value for name, value in (self.model_extra or {}).items()}
        base = recipe(named or SIZES[options.size].recipe)  # a wrong name is told at once
        return read_recipe(asdict(base) | own) if own else named


class Judging(Part):
    """What `evaluate` compares the model with; `limit` is a number of times to look at."""

    baselines: tuple[str, ...] = ("nearest", "idw")
    limit: PositiveInt | None = None


class Experiment(Part):
    """Everything that a run needs to know."""

    data: Sources
    split: Split = Field(default_factory=Split)
    model: ModelOptions = Field(default_factory=ModelOptions)
    train: Training = Field(default_factory=Training)
    evaluate: Judging = Field(default_factory=Judging)
    out: str = "runs/model"

    def options(self) -> ModelOptions:
        """Those about the model, with the recipe that training will follow."""
        return self.model.model_copy(update={"recipe": self.train.made(self.model)})

    def dataset(self) -> Dataset:
        data = self.data
        return Dataset(
            data.sources,
            target=data.target if isinstance(data.target, str) else list(data.target),
            static=data.static or None,
            features=data.features,
            units=data.units,
        )

    def parts(self) -> tuple[Dataset, Dataset | None, Dataset]:
        """Train, validation and test; without a split all three are the same, and nothing is
        validated.
        """
        split, data = self.split, self.dataset()
        if split.time is None and split.hold_out_stations is None:
            return data, None, data
        held = split.hold_out_stations
        return data.split(
            time=split.time,
            hold_out_stations=list(held) if isinstance(held, tuple) else held,
            blocks=split.blocks,
            gap=split.gap,
            seed=split.seed,
        )

    def write(self, path: Path) -> None:
        """With every default written out."""
        values = self.model_dump(mode="json", exclude_none=True)
        write_text(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def read_experiment(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Experiment:
    """From a file, with what the command line replaces; paths become absolute."""
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(
            f"An experiment must be a YAML file, but {str(place)!r} is not there; make one with "
            "`gridtnp init FILES -o exp.yaml`."
        )
    try:
        values = yaml.safe_load(place.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{place} must be YAML, but it cannot be read: {reason}.") from None
    if not isinstance(values, dict):
        raise ValueError(f"{place} must hold keys and values, got {type(values).__name__}.")
    for key, value in replaced(overrides):
        _put(values, key, value)
    _require_keys(values, Experiment, str(place))
    try:
        made = Experiment.model_validate(values)
        made.train.made(made.model)  # a wrong setting is told at once
    except ValidationError as error:
        raise ValueError(_sentence(str(place), error)) from None
    data = made.data
    known = set(data.sources)
    sources = {name: _absolute(place, where) for name, where in data.sources.items()}
    static = {
        name: where if where.partition(".")[0] in known else _absolute(place, where)
        for name, where in data.static.items()
    }
    data = data.model_copy(update={"sources": sources, "static": static})
    return made.model_copy(update={"data": data})


def replaced(tokens: Sequence[str]) -> list[tuple[str, Any]]:
    """`--train.lr 1e-3 --model.size=small` as keys and values."""
    found, rest = [], list(tokens)
    while rest:
        token = rest.pop(0)
        key, equals, value = token.partition("=")
        if not key.startswith("--"):
            raise ValueError(
                f"What is replaced must be a key and a value, such as --train.lr 1e-3, got "
                f"{token!r}."
            )
        if not equals:
            if not rest:
                raise ValueError(f"{key} must have a value, such as {key} 1.")
            value = rest.pop(0)
        found.append((key[2:].replace("-", "_"), _value(value)))
    return found


def _value(text: str) -> Any:
    """As YAML reads it, and 1e-3 as people do."""
    try:
        read = yaml.safe_load(text)
        return float(read) if isinstance(read, str) else read
    except (ValueError, yaml.YAMLError):
        return text


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ValueError(f"{key} cannot be replaced, because {section} holds no keys.")
        values = inner
    values[last] = value


def _require_keys(values: Mapping[str, Any], of: type[BaseModel], where: str) -> None:
    """Every key is known, or told with the one that was probably meant."""
    fields = of.model_fields
    known = set(fields)
    if of is Training:
        known |= set(Recipe.__dataclass_fields__) | set(ALIASES)
    for name, value in values.items():
        require_known(str(name), known, "key", f"in {where}")
        inner = fields[name].annotation if name in fields else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            if not isinstance(value, Mapping):
                raise ValueError(f"{name} in {where} must hold keys and values, got {value!r}.")
            _require_keys(value, inner, f"{name} in {where}")


def _sentence(where: str, error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if isinstance(part, str))
    if first["type"] == "missing":
        return f"{where} must have the key {key!r}, but it is not there."
    if first["type"] == "value_error":  # a sentence of our own
        return f"{key} in {where} does not fit: {first['msg'].removeprefix('Value error, ')}"
    return f"{key} in {where} does not fit: {first['msg']}, got {first['input']!r}."


def _absolute(place: Path, where: str) -> str:
    return where if "://" in where else str((place.parent / where).resolve())
