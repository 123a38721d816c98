"""Training recipes as plain data; some have names, the paper's among them."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
)
from pydantic.dataclasses import dataclass

from gridtnp.errors import in_sentences, require_known


@in_sentences
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Recipe:
    """Optimiser, learning-rate schedule, gradient clipping, precision and early stopping.

    The defaults are the paper's. `batch` is the number of tasks per step over all processes;
    `accumulate` splits each process's share into that many pieces (gradient accumulation).
    `optimiser="muon"` uses Muon for the hidden weight matrices and AdamW for all other parameters.
    `schedule="cosine"` warms up linearly over the fraction `warm_up` of the steps, then decays to
    zero. `ema` is the decay of a moving average of the weights, which is then validated and kept
    (0: none). Training stops early after `patience` validations that do not improve the
    log-likelihood per target by 0.001 (0: never), or after two if it is then 0.02 below its best.
    With `minutes`, the clock decides: training ends after that time, validation included, and the
    schedule follows the elapsed time; `steps` is then an estimate. `threads` are CPU threads.
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
    minutes: PositiveFloat | None = None
    threads: PositiveInt | None = None

    def rate_at(self, step: int) -> float:
        """The learning rate at a step, counted from 0."""
        if self.schedule == "constant":
            return self.rate
        warm_up = max(1, int(self.steps * self.warm_up))
        rest = max(0, step - warm_up) / max(1, self.steps - warm_up)
        return self.rate * min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * rest)))

    def rate_after(self, progress: float) -> float:
        """The learning rate after a fraction of the training time."""
        if self.schedule == "constant":
            return self.rate
        warm_up = max(1e-3, self.warm_up)
        rest = max(0.0, min(1.0, progress) - warm_up) / max(1e-3, 1 - warm_up)
        rising = max(0.01, progress / warm_up)
        return self.rate * min(rising, 0.5 * (1 + math.cos(math.pi * min(1.0, rest))))

    @property
    def summary(self) -> str:
        """One line: steps or minutes, batch size and optimiser."""
        steps = f"{self.steps:,} steps of {self.batch} tasks, {self.optimiser}"
        return steps if self.minutes is None else f"{self.minutes:g} minutes, about {steps}"

    def differences(self, other: Recipe) -> list[str]:
        """Names of the fields that differ; a number of threads that was not given does not."""
        mine, theirs = asdict(self), asdict(other)
        if self.threads is None:
            mine["threads"] = theirs["threads"]
        return [name for name, value in mine.items() if theirs[name] != value]


RECIPES = {
    "quick": Recipe(
        1_000, 8, 3e-3, "cosine", optimiser="muon", ema=0.99, validate_every=50, patience=4
    ),
    "default": Recipe(
        20_000, 16, 2e-3, "cosine", optimiser="muon", ema=0.999, validate_every=500, patience=5
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
    return TypeAdapter(Recipe).validate_python(values)
