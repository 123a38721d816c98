"""Which of the available observations a task gets: all, some, or those in or out of a region."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

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
    """Chooses among observations at some places."""

    @abstractmethod
    def choose(self, lat: np.ndarray, lon: np.ndarray, draw: Draw) -> np.ndarray | None:
        """The positions of the chosen ones; None for all."""


@dataclass(frozen=True)
class Whole(Pick):
    """All of them."""

    def choose(self, lat: np.ndarray, lon: np.ndarray, draw: Draw) -> np.ndarray | None:  # noqa: ARG002
        return None


@dataclass(frozen=True)
class Fraction(Pick):
    """A random share, itself random between `low` and `high`, at least one observation.

    `per="batch"` gives all tasks of a batch, and all sources with this range, the same share: sets
    of one size, as in the paper.
    """

    low: float
    high: float | None = None
    per: Literal["task", "batch"] = "task"

    def __post_init__(self) -> None:
        if not 0 <= self.low <= (self.low if self.high is None else self.high) <= 1:
            raise ValueError(
                "A fraction must be from a low to a higher share between 0 and 1, got "
                f"{self.low} and {self.high}."
            )

    def choose(self, lat: np.ndarray, lon: np.ndarray, draw: Draw) -> np.ndarray | None:  # noqa: ARG002
        high = self.low if self.high is None else self.high
        luck = draw.of_batch if self.per == "batch" else draw.rng.random()
        share = self.low + (high - self.low) * luck
        return _some(len(lat), int(np.ceil(share * len(lat) - ROUNDING)), draw.rng)


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

    def choose(self, lat: np.ndarray, lon: np.ndarray, draw: Draw) -> np.ndarray | None:  # noqa: ARG002
        high = self.low if self.high is None else self.high
        return _some(len(lat), int(draw.rng.integers(self.low, high + 1)), draw.rng)


@dataclass(frozen=True)
class Block(Pick):
    """Those within `radius` degrees of the task's centre, a random place of the target."""

    radius: float
    of: Pick = field(default_factory=Whole)

    def choose(self, lat: np.ndarray, lon: np.ndarray, draw: Draw) -> np.ndarray | None:
        inside = within(lat, lon, draw.centre, self.radius)
        return _of(self.of, np.flatnonzero(inside), lat, lon, draw)


@dataclass(frozen=True)
class Gap(Pick):
    """Those outside of `radius` degrees around the task's centre: what `Block` leaves out."""

    radius: float
    of: Pick = field(default_factory=Whole)

    def choose(self, lat: np.ndarray, lon: np.ndarray, draw: Draw) -> np.ndarray | None:
        outside = ~within(lat, lon, draw.centre, self.radius)
        return _of(self.of, np.flatnonzero(outside), lat, lon, draw)


@dataclass(frozen=True)
class Rest(Pick):
    """For targets: those that the task's context does not hold."""

    of: Pick = field(default_factory=Whole)

    def choose(self, lat: np.ndarray, lon: np.ndarray, draw: Draw) -> np.ndarray | None:
        return self.of.choose(lat, lon, draw)


def within(
    lat: np.ndarray, lon: np.ndarray, centre: tuple[float, float], radius: float
) -> np.ndarray:
    """Which places are within so many degrees of great circle."""
    phi, middle = np.deg2rad(lat), np.deg2rad(centre[0])
    turn = np.deg2rad(lon - centre[1])
    half = np.sin((phi - middle) / 2) ** 2
    half = half + np.cos(phi) * np.cos(middle) * np.sin(turn / 2) ** 2
    return half <= np.sin(np.deg2rad(min(radius, 180.0)) / 2) ** 2


def _some(available: int, number: int, rng: np.random.Generator) -> np.ndarray | None:
    if number >= available:
        return None
    return rng.choice(available, number, replace=False, shuffle=False)


def _of(pick: Pick, index: np.ndarray, lat: np.ndarray, lon: np.ndarray, draw: Draw) -> np.ndarray:
    chosen = pick.choose(lat[index], lon[index], draw)
    return index if chosen is None else index[chosen]
