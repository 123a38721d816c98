"""Training recipes as plain data; some have names, the paper's among them."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from gridtnp.errors import require_known


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Recipe:
    """Optimiser, learning-rate schedule, gradient clipping, precision and early stopping.

    The defaults are the paper's. `batch` is the number of tasks per step over all processes;
    `accumulate` splits each process's share into that many pieces (gradient accumulation).
    `optimiser="muon"` uses Muon for the hidden weight matrices and AdamW for all other parameters.
    `schedule="cosine"` warms up linearly over the fraction `warm_up` of the steps, then decays to
    zero. `ema` is the decay of a moving average of the weights, which is then validated and kept
    (0: none). Training stops early after `patience` validations without improvement (0: never).
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
        """The learning rate at a step, counted from 0."""
        if self.schedule == "constant":
            return self.rate
        warm_up = max(1, int(self.steps * self.warm_up))
        rest = max(0, step - warm_up) / max(1, self.steps - warm_up)
        return self.rate * min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * rest)))

    @property
    def summary(self) -> str:
        """One line: steps, batch size and optimiser."""
        return f"{self.steps:,} steps of {self.batch} tasks, {self.optimiser}"

    def differences(self, other: Recipe) -> list[str]:
        """Names of the fields that differ."""
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
"""`gp`, `stations` and `wind` are the paper's: AdamW at a constant learning rate, 8 tasks per step,
validated every 80,000 tasks."""


def recipe(name: str | Recipe) -> Recipe:
    """The recipe of that name; a `Recipe` is returned unchanged."""
    if isinstance(name, Recipe):
        return name
    require_known(name, RECIPES, "recipe")
    return RECIPES[name]


def read_recipe(values: dict[str, Any]) -> Recipe:
    """The recipe that a file holds as plain values."""
    for name in values:
        require_known(name, Recipe.__dataclass_fields__, "setting", "of a recipe")
    return Recipe(**values)
