"""What a source of observations is, once it is understood: a long table in the order of time.

`Records` writes that table down row by row: stations that come and go, ships, buoys, satellites.
`Panel` has the same places at every time (a grid, or stations with a common clock), so that row
`t * places + p` is place p at time t, and its values may stay on disk. Rows are in the order of
time, latitude, longitude and station, and variables in that of their names, whatever the order
they came in.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from gridtnp.data.times import rows_between
from gridtnp.errors import require_known


@dataclass(frozen=True)
class Variable:
    """One column of values; `missing` is the share of them that are, None if never looked at."""

    name: str
    units: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    missing: float | None = 0.0
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class Source(ABC):
    """Observations of some variables; `columns` holds what is known about a place at all times.

    `lat`, `lon`, `labels` and `columns` are indexed by what `places` gives.
    """

    name: str
    variables: tuple[Variable, ...]
    times: np.ndarray | None
    lat: np.ndarray
    lon: np.ndarray
    labels: np.ndarray | None
    columns: Mapping[str, np.ndarray]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(variable.name for variable in self.variables)

    def variable(self, name: str) -> Variable:
        require_known(name, self.names, "variable", f"of source {self.name!r}")
        return self.variables[self.names.index(name)]

    def index(self, names: tuple[str, ...]) -> list[int]:
        """The columns of `values` that hold these variables."""
        return [self.names.index(self.variable(name).name) for name in names]

    @property
    @abstractmethod
    def size(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def rows(self, start: np.datetime64 | None, stop: np.datetime64 | None) -> tuple[int, int]:
        """The rows with `start <= time < stop`; all of them if there are no times."""

    @abstractmethod
    def values(self, first: int, last: int) -> Float[np.ndarray, "n dy"]:
        """All variables of a range of rows, (rows, variables); missing ones are NaN."""

    @abstractmethod
    def places(self, rows: np.ndarray) -> np.ndarray:
        """Where rows are found in `lat`, `lon`, `labels` and `columns`."""

    @abstractmethod
    def times_of(self, rows: np.ndarray) -> np.ndarray | None:
        """When rows were observed."""


@dataclass(frozen=True, eq=False)
class Records(Source):
    """A row for every observation, with its own place and time."""

    table: np.ndarray

    @property
    def size(self) -> int:
        return len(self.table)

    def rows(self, start: np.datetime64 | None, stop: np.datetime64 | None) -> tuple[int, int]:
        if self.times is None or start is None or stop is None:
            return 0, self.size
        return rows_between(self.times, start, stop)

    def values(self, first: int, last: int) -> Float[np.ndarray, "n dy"]:
        return self.table[first:last]

    def places(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def times_of(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.times is None else self.times[rows]


@dataclass(frozen=True, eq=False)
class Panel(Source):
    """The same places at every time; `shape` is (latitudes, longitudes) if they form a grid."""

    store: Store
    shape: tuple[int, int] | None

    @property
    def size(self) -> int:
        return self.steps * len(self.lat)

    @property
    def steps(self) -> int:
        return 1 if self.times is None else len(self.times)

    def rows(self, start: np.datetime64 | None, stop: np.datetime64 | None) -> tuple[int, int]:
        if self.times is None or start is None or stop is None:
            return 0, self.size
        first, last = rows_between(self.times, start, stop)
        return first * len(self.lat), last * len(self.lat)

    def values(self, first: int, last: int) -> Float[np.ndarray, "n dy"]:
        places = len(self.lat)
        start, stop = first // places, -(-last // places)
        flat = self.store.read(start, stop).reshape(-1, len(self.variables))
        return flat[first - start * places : last - start * places]

    def places(self, rows: np.ndarray) -> np.ndarray:
        return rows % len(self.lat)

    def times_of(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.times is None else self.times[rows // len(self.lat)]


class Store(ABC):
    """Values by time step."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Float[np.ndarray, "t n dy"]:
        """A range of steps, (steps, places, variables) in single precision."""


@dataclass(frozen=True, eq=False)
class Loaded(Store):
    """All in memory."""

    array: np.ndarray

    def read(self, start: int, stop: int) -> Float[np.ndarray, "t n dy"]:
        return self.array[start:stop]


class Lazy(Store):
    """Left where it is and fetched in blocks of steps; the last used ones are kept.

    `fetch(start, stop)` reads steps; at most `memory` bytes of them are kept. Safe to be read from
    several threads.
    """

    def __init__(
        self, fetch: Callable[[int, int], np.ndarray], steps: int, block: int, memory: int
    ) -> None:
        self.fetch, self.steps, self.block, self.memory = fetch, steps, max(1, block), memory
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> Float[np.ndarray, "t n dy"]:
        if start >= stop:
            return self._get(min(start, self.steps - 1) // self.block)[:0]
        numbers = range(start // self.block, (stop - 1) // self.block + 1)
        blocks = [self._get(number) for number in numbers]
        joined = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        offset = numbers[0] * self.block
        return joined[start - offset : stop - offset]

    def _get(self, number: int) -> np.ndarray:
        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
                return self._kept[number]
        start = number * self.block
        values = self.fetch(start, min(start + self.block, self.steps))
        with self._lock:
            self._kept[number] = values
            while len(self._kept) > 1 and self.kept_bytes > self.memory:
                self._kept.popitem(last=False)
        return values

    @property
    def kept_bytes(self) -> int:
        return sum(block.nbytes for block in self._kept.values())
