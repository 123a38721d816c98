"""The observations of a source that a task at a given time may use.

Training, evaluation and prediction all ask `SourceVariables.available`: rows in the time window,
within the period of this part of the data, at its locations whose static features are known, where
all wanted variables are observed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gridtnp.data.dataset import Dataset
from gridtnp.sources.quality import Error, errors_at
from gridtnp.sources.source import Source
from gridtnp.sources.times import Window

TaskTime = np.datetime64 | None
"""The time of a task; None where the data have no times."""


@dataclass(frozen=True, eq=False)
class Observations:
    """Rows of a source in a task at `time`, and the values of its variables there.

    `errors` are standard deviations of reading errors, if any variable has some.
    """

    rows: np.ndarray
    values: np.ndarray
    time: TaskTime
    errors: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class SourceVariables:
    """Some variables of a source, in a time window, at the locations that a task may use."""

    name: str
    source: Source
    variables: tuple[str, ...]
    window: Window
    period: tuple[np.datetime64, np.datetime64] | None
    locations: np.ndarray | None
    """True at locations that may be used; None means all."""
    errors: Mapping[str, Error] = field(default_factory=dict)

    @classmethod
    def of(
        cls, data: Dataset, name: str, of: str, window: Window, kept: np.ndarray | None
    ) -> SourceVariables:
        """`of` is a source or `"source.variable"`; `kept` marks its locations in this part."""
        source, variables = data.variables_of(of)
        known = np.all(np.isfinite(data.static_at(source.name)), axis=-1)
        if not known.all():
            kept = known if kept is None else known & kept
        return cls(name, source, variables, window, data.period, kept, data.errors)

    def available(self, time: TaskTime) -> Available:
        """What a task at `time` may use."""
        start, stop = (None, None) if time is None else self.window.around(time)
        if start is not None and stop is not None and self.period is not None:
            start, stop = max(start, self.period[0]), min(stop, self.period[1])
        first, last = self.source.rows(start, stop)
        rows = np.arange(first, last)
        if self.locations is not None:
            rows = rows[self.locations[self.source.places(rows)]]
        columns = self.source.index(self.variables)
        values = self.source.values(first, last)
        errors = errors_at(self.source, values, self.variables, self.errors)
        if all(self.source.variables[i].missing == 0.0 for i in columns):
            return Available(rows, None, first, values, columns, errors)
        observed = np.all(np.isfinite(values[:, columns]), axis=1)
        return Available(rows, observed, first, values, columns, errors)


@dataclass(frozen=True, eq=False)
class Available:
    """Rows that a task may use; `observed` and `values` start at row `first`."""

    rows: np.ndarray
    observed: np.ndarray | None
    first: int
    values: np.ndarray
    columns: list[int]
    errors: np.ndarray | None = None

    @cached_property
    def complete(self) -> np.ndarray:
        """Rows where all variables are observed."""
        return self.complete_of(self.rows)

    def complete_of(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.observed is None else rows[self.observed[rows - self.first]]

    def observations(self, rows: np.ndarray, time: TaskTime) -> Observations:
        """Some of the rows with the values of the wanted variables."""
        values = np.take(self.values, rows - self.first, 0)
        if self.columns != list(range(values.shape[1])):
            values = values[:, self.columns]
        errors = None if self.errors is None else self.errors[rows - self.first]
        return Observations(rows, values, time, errors)
