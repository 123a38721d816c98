"""Which of the available observations a task gets: all, some, or those in or out of a region."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gridtnp.data.sources import Source

ROUNDING = 1e-6
"""Of a share that should give a whole number."""


@dataclass(frozen=True, eq=False)
class Draw:
    """The luck of one task: a generator, a number from 0 to 1 that all tasks of the batch share,
    and the place that its regions are around.
    """

    rng: np.random.Generator
    of_batch: float
    centre: tuple[float, float]


class Pick(ABC):
    """Chooses among the observations that a task may use."""

    spare: bool = False

    @abstractmethod
    def choose(self, source: Source, rows: np.ndarray, draw: Draw) -> np.ndarray:
        """Some of the rows of a source."""


@dataclass(frozen=True)
class Whole(Pick):
    """All of them."""

    def choose(self, source: Source, rows: np.ndarray, draw: Draw) -> np.ndarray:  # noqa: ARG002
        return rows


@dataclass(frozen=True)
class Fraction(Pick):
    """A random share, itself random between `low` and `high`, at least one observation.

    `per="batch"` gives all tasks of a batch, and all sources with this range, the same share: sets
    of one size, as in the paper. With `spare`, it never takes all that could be targets.
    """

    low: float
    high: float | None = None
    per: Literal["task", "batch"] = "task"
    spare: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.low <= (self.low if self.high is None else self.high) <= 1:
            raise ValueError(
                "A fraction must be from a low to a higher share between 0 and 1, got "
                f"{self.low} and {self.high}."
            )

    def choose(self, source: Source, rows: np.ndarray, draw: Draw) -> np.ndarray:  # noqa: ARG002
        high = self.low if self.high is None else self.high
        luck = draw.of_batch if self.per == "batch" else draw.rng.random()
        share = self.low + (high - self.low) * luck
        return _some(rows, int(np.ceil(share * len(rows) - ROUNDING)), draw.rng)


@dataclass(frozen=True)
class Count(Pick):
    """So many at random, or a number between `low` and `high`; all if there are fewer."""

    low: int
    high: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.low <= (self.low if self.high is None else self.high):
            raise ValueError(
                f"A count must be from a low to a higher number, got {self.low} and {self.high}."
            )

    def choose(self, source: Source, rows: np.ndarray, draw: Draw) -> np.ndarray:  # noqa: ARG002
        high = self.low if self.high is None else self.high
        return _some(rows, int(draw.rng.integers(self.low, high + 1)), draw.rng)


@dataclass(frozen=True)
class Block(Pick):
    """Those within `radius` degrees of the task's centre, a random place of the target."""

    radius: float
    of: Pick = field(default_factory=Whole)

    def choose(self, source: Source, rows: np.ndarray, draw: Draw) -> np.ndarray:
        places = source.places(rows)
        inside = within(source.lat[places], source.lon[places], draw.centre, self.radius)
        return self.of.choose(source, rows[inside], draw)


@dataclass(frozen=True)
class Gap(Pick):
    """Those outside of `radius` degrees around the task's centre: what `Block` leaves out."""

    radius: float
    of: Pick = field(default_factory=Whole)

    def choose(self, source: Source, rows: np.ndarray, draw: Draw) -> np.ndarray:
        places = source.places(rows)
        inside = within(source.lat[places], source.lon[places], draw.centre, self.radius)
        return self.of.choose(source, rows[~inside], draw)


@dataclass(frozen=True)
class Rest(Pick):
    """For targets: those that the task's context does not hold."""

    of: Pick = field(default_factory=Whole)

    def choose(self, source: Source, rows: np.ndarray, draw: Draw) -> np.ndarray:
        return self.of.choose(source, rows, draw)


def within(
    lat: np.ndarray, lon: np.ndarray, centre: tuple[float, float], radius: float
) -> np.ndarray:
    """Which places are within so many degrees of great circle."""
    phi, middle = np.deg2rad(lat), np.deg2rad(centre[0])
    turn = np.deg2rad(lon - centre[1])
    half = np.sin((phi - middle) / 2) ** 2
    half = half + np.cos(phi) * np.cos(middle) * np.sin(turn / 2) ** 2
    return half <= np.sin(np.deg2rad(min(radius, 180.0)) / 2) ** 2


def _some(rows: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    if number >= len(rows):
        return rows
    return rows[rng.choice(len(rows), number, replace=False, shuffle=False)]
