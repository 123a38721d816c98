"""Recipes: how to train, as plain data. Some have names, the paper's settings among them."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from gridtnp.errors import require_known


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Recipe:
    """How to train: an optimiser, a learning rate over time, clipped gradients.

    The defaults are the paper's. `batch` counts the tasks of a step over all processes;
    `accumulate` says in how many pieces each process takes its share of them, which saves memory
    and changes nothing else. `optimiser="muon"` makes orthogonal steps for the matrices inside the
    network and AdamW's for the rest. `schedule="cosine"` warms up over the share `warm_up` of the
    steps and then falls to zero. `ema` is the decay of a moving average of the weights, which is
    then what is validated and kept (0: none). Training stops early after `patience` validations
    without a better one (0: never).
    """

    steps: PositiveInt
    batch: PositiveInt = 8
    rate: PositiveFloat = 5e-4
    schedule: Literal["constant", "cosine"] = "constant"
    clip: PositiveFloat = 0.5
    weight_decay: NonNegativeFloat = 0.01
    optimiser: Literal["adamw", "muon"] = "adamw"
    warm_up: float = Field(default=0.05, ge=0.0, le=1.0)
    accumulate: PositiveInt = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    ema: float = Field(default=0.0, ge=0.0, lt=1.0)
    validate_every: PositiveInt = 1000
    patience: int = Field(default=0, ge=0)

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if self.schedule == "constant":
            return self.rate
        warm_up = max(1, int(self.steps * self.warm_up))
        rest = max(0, step - warm_up) / max(1, self.steps - warm_up)
        return self.rate * min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * rest)))

    @property
    def summary(self) -> str:
        """In a few words."""
        return f"{self.steps:,} steps of {self.batch} tasks, {self.optimiser}"

    def differences(self, other: Recipe) -> list[str]:
        """The names of all that differs."""
        mine, theirs = asdict(self), asdict(other)
        return [name for name, value in mine.items() if theirs[name] != value]


RECIPES = {
    "quick": Recipe(
        600, 4, 5e-3, "cosine", optimiser="muon", ema=0.99, validate_every=100, patience=0
    ),
    "default": Recipe(
        20_000, 16, 2e-3, "cosine", optimiser="muon", ema=0.999, validate_every=500, patience=10
    ),
    "gp": Recipe(500_000, validate_every=10_000),
    "stations": Recipe(300_000, validate_every=10_000),
    "wind": Recipe(300_000, validate_every=10_000),
}
"""`gp`, `stations` and `wind` are the paper's: AdamW at a constant rate, 8 tasks a step, validated
every 80,000 tasks."""


def recipe(name: str | Recipe) -> Recipe:
    """A recipe by name; one of your own is that one."""
    if isinstance(name, Recipe):
        return name
    require_known(name, RECIPES, "recipe")
    return RECIPES[name]


def read_recipe(values: dict[str, Any]) -> Recipe:
    """From plain values, as a file holds them; an unknown name is told in a sentence."""
    for name in values:
        require_known(name, Recipe.__dataclass_fields__, "setting", "of a recipe")
    return Recipe(**values)
