"""`Likelihood`: the kind of an output's distribution, as plain data of a model's configuration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gridtnp.errors import in_sentences

Kind = Literal[
    "gaussian",
    "bivariate-gaussian",
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


@in_sentences
class Likelihood(BaseModel):
    """The distribution of an output (docs/likelihoods.md).

    Two outputs in a row that are `bivariate-gaussian` have a correlation, such as the eastward and
    the northward wind.

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
    def is_normal(self) -> bool:
        return self.kind in ("gaussian", "bivariate-gaussian")

    @property
    def size(self) -> int:
        """The number of components."""
        return self.components or COMPONENTS.get(self.kind, 1)


def second_of_pairs(likelihoods: Sequence[Likelihood]) -> tuple[bool, ...]:
    """True for the second output of every bivariate normal pair; raises if one has no partner."""
    found: list[bool] = []
    for one in likelihoods:
        paired = one.kind == "bivariate-gaussian"
        follows = bool(found) and likelihoods[len(found) - 1].kind == "bivariate-gaussian"
        found.append(paired and follows and not found[-1])
    if 2 * sum(found) != sum(one.kind == "bivariate-gaussian" for one in likelihoods):
        raise ValueError(
            "A bivariate-gaussian likelihood is for two targets in a row, but one has no partner; "
            "put both components next to each other in target=, and name both in likelihood=."
        )
    return tuple(found)


def limits(likelihood: Likelihood) -> tuple[float, float]:
    """The lowest and the highest possible value, in normalised units."""
    if likelihood.is_normal or likelihood.kind in ("student-t", "normal-mixture", "quantiles"):
        return -math.inf, math.inf
    highest = {"spiked-beta": 1.0, "bernoulli": 1.0, "categorical": likelihood.size - 1.0}
    return 0.0, highest.get(likelihood.kind, math.inf)
