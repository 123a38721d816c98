"""Which of the available observations a task uses: all, a random subset, or a region."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gridtnp.sources.source import Source

ROUNDING = 1e-6
"""Tolerance for a fraction that should give a whole number of observations."""


@dataclass(frozen=True, eq=False)
class TaskRandom:
    """The random state of one task.

    `shared` is one uniform number for all tasks of a batch, `centre` the (lat, lon) of its regions.
    """

    rng: np.random.Generator
    shared: float
    centre: tuple[float, float]


class Selection(ABC):
    """Selects from the observations that a task may use.

    With `spare`, at least one observation is left to be a target.
    """

    spare: bool = False

    @abstractmethod
    def select(self, source: Source, rows: np.ndarray, random: TaskRandom) -> np.ndarray:
        """A subset of the rows of a source."""


@dataclass(frozen=True)
class Whole(Selection):
    """All observations."""

    def select(self, source: Source, rows: np.ndarray, random: TaskRandom) -> np.ndarray:  # noqa: ARG002
        return rows


@dataclass(frozen=True)
class Fraction(Selection):
    """A random fraction, uniform between `low` and `high`, at least one observation unless it is 0.

    `per="batch"` draws one fraction for all tasks of a batch and all sources with this range, so
    that sets have equal sizes, as in the paper. With `spare`, at least one target is left.
    """

    low: float
    high: float | None = None
    per: Literal["task", "batch"] = "task"
    spare: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.low <= (self.low if self.high is None else self.high) <= 1:
            raise ValueError(
                f"Fraction({self.low}, {self.high}) is not a range within 0 to 1; give the lower "
                "end first."
            )

    def select(self, source: Source, rows: np.ndarray, random: TaskRandom) -> np.ndarray:  # noqa: ARG002
        high = self.low if self.high is None else self.high
        uniform = random.shared if self.per == "batch" else random.rng.random()
        fraction = self.low + (high - self.low) * uniform
        return _subset(rows, int(np.ceil(fraction * len(rows) - ROUNDING)), random.rng)


@dataclass(frozen=True)
class Count(Selection):
    """A random subset of `low` to `high` observations; all if there are fewer."""

    low: int
    high: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.low <= (self.low if self.high is None else self.high):
            raise ValueError(
                f"Count({self.low}, {self.high}) is not a range of counts; give the lower end "
                "first."
            )

    def select(self, source: Source, rows: np.ndarray, random: TaskRandom) -> np.ndarray:  # noqa: ARG002
        high = self.low if self.high is None else self.high
        return _subset(rows, int(random.rng.integers(self.low, high + 1)), random.rng)


@dataclass(frozen=True)
class Block(Selection):
    """Observations within `radius` degrees of the task's centre, a random target."""

    radius: float
    of: Selection = field(default_factory=Whole)

    def select(self, source: Source, rows: np.ndarray, random: TaskRandom) -> np.ndarray:
        places = source.places(rows)
        inside = within(source.lat[places], source.lon[places], random.centre, self.radius)
        return self.of.select(source, rows[inside], random)


@dataclass(frozen=True)
class Gap(Selection):
    """Observations farther than `radius` degrees from the task's centre: the rest of `Block`."""

    radius: float
    of: Selection = field(default_factory=Whole)

    def select(self, source: Source, rows: np.ndarray, random: TaskRandom) -> np.ndarray:
        places = source.places(rows)
        inside = within(source.lat[places], source.lon[places], random.centre, self.radius)
        return self.of.select(source, rows[~inside], random)


@dataclass(frozen=True)
class Rest(Selection):
    """For targets: observations that are not in the task's context."""

    of: Selection = field(default_factory=Whole)

    def select(self, source: Source, rows: np.ndarray, random: TaskRandom) -> np.ndarray:
        return self.of.select(source, rows, random)


def within(
    lat: np.ndarray, lon: np.ndarray, centre: tuple[float, float], radius: float
) -> np.ndarray:
    """Which locations are within `radius` degrees of great circle (haversine formula)."""
    phi, middle = np.deg2rad(lat), np.deg2rad(centre[0])
    turn = np.deg2rad(lon - centre[1])
    half = np.sin((phi - middle) / 2) ** 2
    half = half + np.cos(phi) * np.cos(middle) * np.sin(turn / 2) ** 2
    return half <= np.sin(np.deg2rad(min(radius, 180.0)) / 2) ** 2


def _subset(rows: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    if number >= len(rows):
        return rows
    return rows[rng.choice(len(rows), number, replace=False, shuffle=False)]
