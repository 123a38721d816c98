"""`Likelihood`: the kind of an output's distribution, as plain data of a model's configuration."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal[
    "gaussian",
    "student-t",
    "lognormal",
    "bernoulli-gamma",
    "censored-gamma",
    "spiked-beta",
    "normal-mixture",
    "quantiles",
    "bernoulli",
    "categorical",
    "poisson",
    "negative-binomial",
]
COMPONENTS = {"normal-mixture": 3, "quantiles": 15, "categorical": 0}
"""Likelihoods with components, and the default number of them."""


class Likelihood(BaseModel):
    """The distribution of an output (docs/likelihoods.md).

    `components` is the number of normals in a mixture (by default 3), of classes, or of quantiles
    (by default 15); other kinds have none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = "gaussian"
    components: int | None = Field(default=None, ge=2, le=1000)

    @model_validator(mode="after")
    def _components_fit(self) -> Likelihood:
        if self.kind == "categorical" and self.components is None:
            raise ValueError("A categorical likelihood has no number of classes; give components=.")
        if self.kind not in COMPONENTS and self.components is not None:
            raise ValueError(
                f"components={self.components}: a {self.kind} likelihood has no components; leave "
                "it out."
            )
        return self

    @property
    def size(self) -> int:
        """The number of components."""
        return self.components or COMPONENTS.get(self.kind, 1)


def limits(likelihood: Likelihood) -> tuple[float, float]:
    """The lowest and the highest possible value, in normalised units."""
    if likelihood.kind in ("gaussian", "student-t", "normal-mixture", "quantiles"):
        return -math.inf, math.inf
    highest = {"spiked-beta": 1.0, "bernoulli": 1.0, "categorical": likelihood.size - 1.0}
    return 0.0, highest.get(likelihood.kind, math.inf)
