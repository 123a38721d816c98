"""`TaskSpec`: how the tasks of a model are made from data; kept with the model.

It is taken from the training data once. Later data must have the same names; `sampler` and
`assembler` then make the model's tasks from them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from gridtnp.config import Part
from gridtnp.data.coast import LAND, Coast
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.grid import Grid
from gridtnp.tasks.area import on_grid, warn_outside
from gridtnp.tasks.assembly import Assembler
from gridtnp.tasks.sampling import NOW, Sampler, default_context
from gridtnp.tasks.selection import Selection


class ContextSet(Part):
    """One context set of a model: its variables in order, and its own time window."""

    source: str
    variables: tuple[str, ...]
    window: str | None = None

    @property
    def of(self) -> str:
        """Its name in a `Dataset`: `"source"` or `"source.variable"`."""
        return self.source if len(self.variables) != 1 else f"{self.source}.{self.variables[0]}"


class TaskSpec(Part):
    """Names, time windows and features; see `Sampler`. `target` holds `"source.variable"` names.

    `west` is the western end of the range of longitudes, `errors` are those of `Dataset`. With
    `own_land`, the share of land was given with the data, not computed.
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
    errors: dict[str, float | str] = Field(default_factory=dict)
    own_land: bool = False

    @classmethod
    def of(
        cls,
        data: Dataset,
        *,
        coordinates: tuple[str, ...] = ("lat", "lon"),
        windows: Mapping[str, str] | None = None,
        **times: Any,
    ) -> TaskSpec:
        """Everything in a dataset; `windows` are those of single context sets."""
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
            errors=dict(data.errors),
            own_land=LAND in data.statics and not isinstance(data.statics[LAND].field, Coast),
            **times,
        )

    def aligned(self, data: Dataset, grid: Grid | None = None) -> Dataset:
        """The data with the features and longitudes that the model was trained with.

        The share of land is computed if it was in training. With a `grid`, without the locations
        outside of it.
        """
        if self.statics != self.given_statics and LAND not in data.statics:
            data = data.with_land_fraction()
        features = (*self.statics, *self.computed)
        given = (*data.statics, *data.computed)
        if given != features:
            raise ValueError(
                f"The data have features {list(given)}, but the model was trained with "
                f"{list(features)}; give them in this order: static=, features=."
            )
        given_errors = {k for k in data.errors if k.partition(".")[0] in data.sources}
        wanted = {k for k in self.errors if k.partition(".")[0] in data.sources}
        if given_errors != wanted:
            raise ValueError(
                f"The data have errors of {sorted(given_errors)}, but the model was trained with "
                f"those of {sorted(wanted)}; give them: error=."
            )
        if data.west != self.west:
            data = copy.copy(data)
            data.west = self.west
        return data if grid is None else on_grid(data, grid)

    def warn_outside(self, parts: Iterable[Dataset], grid: Grid | None, stacklevel: int) -> None:
        """Warn once of all observations outside of the grid, in space or time."""
        if grid is None:
            return
        sources = {held.source for held in self.contexts.values()} | {self.target_source}
        windows = {name: held.window or self.window for name, held in self.contexts.items()}
        aligned = [self.aligned(data) for data in parts]
        warn_outside(aligned, grid, sorted(sources), windows, stacklevel + 1)

    @property
    def sets_with_errors(self) -> tuple[str, ...]:
        """The context sets with a variable whose reading error is known."""
        return tuple(
            name
            for name, held in self.contexts.items()
            if any(f"{held.source}.{variable}" in self.errors for variable in held.variables)
        )

    @property
    def given_statics(self) -> tuple[str, ...]:
        """The static features that come with the data; the others are computed."""
        return tuple(name for name in self.statics if name != LAND or self.own_land)

    @property
    def target_source(self) -> str:
        return self.target[0].partition(".")[0]

    @property
    def target_names(self) -> tuple[str, ...]:
        return tuple(name.partition(".")[2] for name in self.target)

    def sampler(
        self,
        data: Dataset,
        normaliser: Normaliser | None,
        selection: Mapping[str, Selection] | None = None,
        *,
        grid: Grid | None = None,
        **options: Any,
    ) -> Sampler:
        """The sampler of the model's tasks; `options` are those of `Sampler`.

        `selection` says which observations of a context set are used; see `default_context`.
        Locations outside of the `grid` are dropped.
        """
        data = self.aligned(data, grid)
        selections = selection or {}
        context = {
            name: replace(
                default_context(data, held.source, selections.get(name)),
                of=held.of,
                window=held.window,
                variables=held.variables,
            )
            for name, held in self.contexts.items()
        }
        return Sampler(
            data,
            context,
            window=self.window,
            target_window=self.target_window,
            lead=self.lead,
            every=self.every,
            coordinates=self.coordinates,
            normaliser=normaliser,
            grid=grid,
            **options,
        )

    def assembler(self, data: Dataset, normaliser: Normaliser, grid: Grid | None) -> Assembler:
        return Assembler(self.aligned(data), self.coordinates, normaliser, grid)
