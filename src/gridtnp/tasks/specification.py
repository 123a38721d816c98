"""How a model's tasks are cut from data: names, windows and features, kept with the model.

A `Setting` is taken from the training data once. Later data, fresh from a file or years older, must
have the same names; then `sampler` and `assembler` make the model's tasks of them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from gridtnp.config import Part
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.tasks.assembly import Assembler
from gridtnp.tasks.sampling import NOW, Context, Sampler
from gridtnp.tasks.selection import Fraction, Pick, Whole


class ContextSet(Part):
    """One context set of a model: the variables it holds, in their order, and its own window."""

    source: str
    variables: tuple[str, ...]
    window: str | None = None

    @property
    def of(self) -> str:
        """As `Dataset` names it."""
        return self.source if len(self.variables) != 1 else f"{self.source}.{self.variables[0]}"


class Setting(Part):
    """Windows and names are those of `Sampler`; `target` holds `"source.variable"` names.

    `west` is where the circle of longitudes is cut.
    """

    coordinates: tuple[str, ...]
    contexts: dict[str, ContextSet]
    target: tuple[str, ...]
    statics: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    units: dict[str, str | None] = Field(default_factory=dict)
    window: str = NOW
    target_window: str = NOW
    lead: str = "0h"
    every: str | None = None
    west: float = -180.0

    @classmethod
    def of(
        cls,
        data: Dataset,
        *,
        coordinates: tuple[str, ...] = ("lat", "lon"),
        windows: Mapping[str, str] | None = None,
        **times: Any,
    ) -> Setting:
        """All that a dataset holds; `windows` are those of single context sets."""
        contexts = {}
        for name in data.contexts:
            source, variables = data.variables_of(name)
            window = (windows or {}).get(name)
            contexts[name] = ContextSet(source=source.name, variables=variables, window=window)
        return cls(
            coordinates=coordinates,
            contexts=contexts,
            target=tuple(f"{data.target_source}.{name}" for name in data.target_names),
            statics=tuple(data.statics),
            computed=data.computed,
            units={
                f"{name}.{v.name}": v.units
                for name, source in data.sources.items()
                for v in source.variables
            },
            west=data.west,
            **times,
        )

    def view(self, data: Dataset) -> Dataset:
        """Data as the model sees them: longitudes cut where they were when it was trained."""
        features = (*self.statics, *self.computed)
        given = (*data.statics, *data.computed)
        if given != features:
            raise ValueError(
                f"The data must have the features that the model was trained with, "
                f"{list(features)}, got {list(given)}; give them in this order: static=, features=."
            )
        if data.west == self.west:
            return data
        turned = copy.copy(data)
        turned.west = self.west
        return turned

    @property
    def target_source(self) -> str:
        return self.target[0].partition(".")[0]

    @property
    def target_names(self) -> tuple[str, ...]:
        return tuple(name.partition(".")[2] for name in self.target)

    def sampler(
        self,
        data: Dataset,
        normaliser: Normaliser,
        picks: Mapping[str, Pick] | None = None,
        **choices: Any,
    ) -> Sampler:
        """Tasks of the model from a dataset; `choices` are those of `Sampler`.

        Where nothing is picked, the context is everything if the targets are held out; else it is a
        random part of the target's own source and all of the others.
        """
        own = Whole() if data.held_out else Fraction(0.05, 0.95, spare=True)
        context = {}
        for name, held in self.contexts.items():
            mine = held.source == self.target_source
            pick = (picks or {}).get(name, own if mine else Whole())
            group = held.source if mine else None
            context[name] = Context(pick, window=held.window, of=held.of, group=group)
        return Sampler(
            self.view(data),
            context,
            window=self.window,
            target_window=self.target_window,
            lead=self.lead,
            every=self.every,
            coordinates=self.coordinates,
            normaliser=normaliser,
            **choices,
        )

    def assembler(self, data: Dataset, normaliser: Normaliser) -> Assembler:
        return Assembler(self.view(data), self.coordinates, normaliser)
