"""Experiments in YAML: data, split, model, training and evaluation of a run.

Paths are relative to the file. Options of the command line replace keys: `--train.lr 1e-3`.
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

from gridtnp.cli.wind import wind_components
from gridtnp.config import Part
from gridtnp.data.dataset import Dataset
from gridtnp.design.models import SIZES, ModelOptions
from gridtnp.errors import explain, require_known
from gridtnp.files import write_text
from gridtnp.recipes import Recipe, read_recipe, recipe
from gridtnp.sources.reading import Data, open_data

ALIASES = {"lr": "rate", "learning_rate": "rate"}
"""Other names for fields of a recipe."""
FILE_NAME = "experiment.yaml"
"""Name of the experiment in the folder of its run."""


class Sources(Part):
    """The data; see `Dataset`.

    `wind` names speed and direction of sources; they are turned into the components u and v.
    """

    sources: dict[str, str] = Field(min_length=1)
    target: str | tuple[str, ...]
    static: dict[str, str] = Field(default_factory=dict)
    features: tuple[str, ...] = ()
    units: dict[str, str] = Field(default_factory=dict)
    na_values: tuple[float | str, ...] = ()
    crs: dict[str, str] = Field(default_factory=dict)
    error: dict[str, float | str] = Field(default_factory=dict)
    wind: dict[str, tuple[str, str]] = Field(default_factory=dict)

    def opened(self) -> dict[str, Data]:
        """The sources, with the components of the wind where they are asked for."""
        for name in self.wind:
            require_known(name, self.sources, "source", "in wind")
        return self.with_components(self.sources)

    def with_components(self, paths: Mapping[str, str]) -> dict[str, Data]:
        """These or fresh sources, with the components of the wind as in `opened`."""
        return {
            name: wind_components(open_data(path), *self.wind[name]) if name in self.wind else path
            for name, path in paths.items()
        }


class Split(Part):
    """What is held out for validation and test; see `Dataset.split`."""

    time: tuple[str, str] | None = None
    gap: str = "0h"
    hold_out_stations: float | tuple[str, ...] | None = None
    blocks: PositiveFloat | None = None
    seed: int = 0

    @field_validator("time", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        """Undo YAML's reading of 1990 as a number and of 1990-01-01 as a date."""
        return [str(v) for v in value] if isinstance(value, list | tuple) else value


class Training(BaseModel):
    """How to train: a recipe by name, and fields of it to replace (`steps`, `lr`, …)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    recipe: str | None = None
    minutes: PositiveFloat | None = None
    seed: int = 0
    workers: PositiveInt = 1

    def recipe_for(self, options: ModelOptions) -> Recipe | str | None:
        """The recipe by name, or with some of its fields replaced; None is the size's default."""
        name = self.recipe or options.recipe
        own = {
            ALIASES.get(field, field): value for field, value in (self.model_extra or {}).items()
        }
        base = recipe(name or SIZES[options.size].recipe)  # raises for an unknown name
        return read_recipe(asdict(base) | own) if own else name


class Scoring(Part):
    """Baselines of `evaluate`, by default the strongest; `limit` is the maximum number of times."""

    baselines: tuple[str, ...] | None = None
    limit: PositiveInt | None = None


class Experiment(Part):
    """All settings of a run."""

    data: Sources
    split: Split = Field(default_factory=Split)
    model: ModelOptions = Field(default_factory=ModelOptions)
    train: Training = Field(default_factory=Training)
    evaluate: Scoring = Field(default_factory=Scoring)
    out: str = "runs/model"

    def options(self) -> ModelOptions:
        """Options of the model, with the recipe of its training."""
        return self.model.model_copy(update={"recipe": self.train.recipe_for(self.model)})

    def dataset(self) -> Dataset:
        data = self.data
        return Dataset(
            data.opened(),
            target=data.target if isinstance(data.target, str) else list(data.target),
            static=data.static or None,
            features=data.features,
            units=data.units,
            na_values=data.na_values,
            error=data.error,
            crs=data.crs,
        )

    def parts(self) -> tuple[Dataset, Dataset | None, Dataset]:
        """Training, validation and test part; all data and no validation without a split."""
        split, data = self.split, self.dataset()
        held = None if split.hold_out_stations == 0 else split.hold_out_stations
        if split.time is None and held is None:
            return data, None, data
        return data.split(
            time=split.time,
            hold_out_stations=list(held) if isinstance(held, tuple) else held,
            blocks=split.blocks,
            gap=split.gap,
            seed=split.seed,
        )

    def write(self, path: Path) -> None:
        """Write to a file, including all defaults."""
        values = self.model_dump(mode="json", exclude_none=True)
        write_text(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def read_experiment(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Experiment:
    """Read a file, with `overrides` from the command line; paths become absolute."""
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(
            f"No such file: {str(place)!r}; write an experiment with `gridtnp init FILES -o "
            "exp.yaml`."
        )
    try:
        values = yaml.safe_load(place.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{str(place)!r} is not valid YAML: {reason}.") from None
    if not isinstance(values, dict):
        found = "is empty" if values is None else f"holds a {type(values).__name__}"
        raise ValueError(f"{str(place)!r} {found}: must hold keys and values.")
    for key, value in parse_overrides(overrides):
        _set(values, key, value)
    _require_keys(values, Experiment, str(place))
    try:
        experiment = Experiment.model_validate(values)
    except ValidationError as error:
        raise ValueError(explain(error, str(place))) from None
    try:
        experiment.train.recipe_for(experiment.model)
    except ValidationError as error:
        raise ValueError(explain(error, str(place), "train.")) from None
    data = experiment.data
    known = set(data.sources)
    sources = {name: _absolute(place, where) for name, where in data.sources.items()}
    static = {
        name: where
        if where.partition(".")[0] in known and not (place.parent / where).exists()
        else _absolute(place, where)
        for name, where in data.static.items()
    }
    data = data.model_copy(update={"sources": sources, "static": static})
    return experiment.model_copy(update={"data": data})


def parse_overrides(tokens: Sequence[str]) -> list[tuple[str, Any]]:
    """Keys and values of `--train.lr 1e-3 --model.size=small`."""
    found, rest = [], list(tokens)
    while rest:
        token = rest.pop(0)
        key, equals, value = token.partition("=")
        if not key.startswith("--"):
            raise ValueError(
                f"Unexpected argument {token!r}; options are a key and a value, such as --train.lr "
                "1e-3."
            )
        if not equals:
            if not rest:
                raise ValueError(f"{key} has no value; give one, such as {key} 1.")
            value = rest.pop(0)
        found.append((key[2:].replace("-", "_"), _value(value)))
    return found


def _value(text: str) -> Any:
    """A value as YAML reads it, except that 1e-3 is a number."""
    try:
        read = yaml.safe_load(text)
        return float(read) if isinstance(read, str) else read
    except (ValueError, yaml.YAMLError):
        return text


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ValueError(f"Unknown key {key!r}; {section!r} holds a value, not keys.")
        values = inner
    values[last] = value


def _require_keys(values: Mapping[str, Any], of: type[BaseModel], where: str) -> None:
    """Raise for unknown keys."""
    fields = of.model_fields
    known = set(fields)
    if of is Training:
        known |= set(Recipe.__dataclass_fields__) | set(ALIASES)
    for name, value in values.items():
        require_known(str(name), known, "key", f"in {where}")
        inner = fields[name].annotation if name in fields else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            if not isinstance(value, Mapping):
                raise ValueError(f"{name} in {where} is {value!r}: must hold keys and values.")
            _require_keys(value, inner, f"{name} of {where}")


def _absolute(place: Path, where: str) -> str:
    return where if "://" in where else str((place.parent / where).resolve())
