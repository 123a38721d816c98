"""`Source`: observations as a long table sorted by time: `Records`, a `Panel` or an `Archive`.

`Records` has a row for every observation: stations with irregular reports, ships, satellites. An
`Archive` (see `gridtnp.sources.archives`) has the same rows, but they stay on disk.
A `Panel` has the same locations at every time (a grid, or stations that report at the same times):
row `t * places + p` is location p at time t, and values may stay on disk. Rows are sorted by time,
latitude, longitude and station, and variables by name, whatever their order in the input.
"""

from __future__ import annotations

import hashlib
import re
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from gridtnp.errors import require_known
from gridtnp.sources.times import rows_between


@dataclass(frozen=True)
class Variable:
    """A variable of a source; `missing` is the share of missing values.

    Of values that stay on disk, which have no `low` and `high`, it is that of the first time, or
    None if it is zero or unknown.
    """

    name: str
    units: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    missing: float | None = 0.0
    low: float | None = None
    high: float | None = None

    @property
    def in_degrees(self) -> bool:
        """Whether it is a temperature whose zero is not the lowest value, by units or by name."""
        if self.units is None:
            return bool(TEMPERATURE.search(self.name.lower()))
        return re.sub("^degrees?[ _]", "", self.units.lower().rstrip("s")) in DEGREES

    @property
    def is_direction(self) -> bool:
        """Whether it is a direction in degrees, by its name."""
        return bool(DIRECTION.search(self.name.lower()))


NEAR_ZERO = 2.0
"""Values that are never negative are near zero if the lowest is less than this many standard
deviations above it; else predictions, about as low and no wider, stay positive."""
DEGREES = ("c", "°c", "degc", "deg_c", "celsiu", "f", "°f", "degf", "deg_f", "fahrenheit")
"""Without a final s."""
TEMPERATURE = re.compile(r"temp|dew|^(2?t|t2m|2d|d2m|sst|t.?(max|min|mean|avg)|tas(max|min)?)$")
DIRECTION = re.compile(r"direction|azimuth|(^|_)(w?dir|wd|w?dd|drct)(_?10m?)?$")
SYMBOLS = {
    "degC": "°C", "celsius": "°C", "deg_C": "°C", "degF": "°F", "kelvin": "K", "m s-1": "m/s",
    "m s**-1": "m/s", "percent": "%", "kg m-2": "kg/m²", "W m-2": "W/m²", "degrees": "°",
}  # fmt: skip
"""Units as people write them."""


def unit_symbol(units: str | None) -> str:
    """A unit for people; empty if it is unknown."""
    return "" if units is None else SYMBOLS.get(units, units)


@dataclass(frozen=True, eq=False)
class Source(ABC):
    """Observations of some variables; `columns` are static values, such as the elevation.

    `lat`, `lon`, `labels` and `columns` are indexed by location, see `places`.
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

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Locations, times and, unless they stay on disk, values."""
        return tuple(a for a in (self.lat, self.lon, self.times, self.loaded) if a is not None)

    @property
    @abstractmethod
    def loaded(self) -> np.ndarray | None:
        """All values if they are in memory."""

    @cached_property
    def digest(self) -> str:
        """A hash of all the source holds; of values that stay on disk, of the first and last."""
        arrays, places = self.arrays, len(self.lat)
        if self.loaded is None:
            ends = ((0, places), (self.size - places, self.size))
            arrays += tuple(self.values(first, last) for first, last in ends)
        return hash_arrays(*arrays, about=(self.names, self.size))

    def variable(self, name: str) -> Variable:
        require_known(name, self.names, "variable", f"of source {self.name!r}")
        return self.variables[self.names.index(name)]

    def index(self, names: tuple[str, ...]) -> list[int]:
        """The columns of these variables in `values`."""
        return [self.names.index(self.variable(name).name) for name in names]

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of rows."""

    @abstractmethod
    def rows(self, start: np.datetime64 | None, stop: np.datetime64 | None) -> tuple[int, int]:
        """The range of rows with `start <= time < stop`; all rows if there are no times."""

    @abstractmethod
    def values(self, first: int, last: int) -> Float[np.ndarray, "n dy"]:
        """All variables of a range of rows; missing values are NaN."""

    @abstractmethod
    def places(self, rows: np.ndarray) -> np.ndarray:
        """The locations of rows, as indices of `lat`, `lon`, `labels` and `columns`."""

    @abstractmethod
    def times_of(self, rows: np.ndarray) -> np.ndarray | None:
        """The times of rows."""

    def times_at(self, places: np.ndarray | None) -> np.ndarray | None:  # noqa: ARG002
        """All times with a row at some locations, once each, sorted; `places` is a mask."""
        return self.times

    @property
    def rows_per_place(self) -> np.ndarray | None:
        """The number of rows at each location; None if all have equally many."""
        return None


@dataclass(frozen=True, eq=False)
class Records(Source):
    """A row for every observation, with its own location and time."""

    table: np.ndarray

    @property
    def loaded(self) -> np.ndarray:
        return self.table

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

    def times_at(self, places: np.ndarray | None) -> np.ndarray | None:
        if self.times is None:
            return None
        return np.unique(self.times if places is None else self.times[places])


@dataclass(frozen=True, eq=False)
class Panel(Source):
    """The same locations at every time; `shape` is (latitudes, longitudes) for a grid."""

    store: Store
    shape: tuple[int, int] | None

    @property
    def loaded(self) -> np.ndarray | None:
        return self.store.array if isinstance(self.store, Loaded) else None

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
    """The values of a panel, by time step."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Float[np.ndarray, "t n dy"]:
        """A range of steps, in single precision."""


@dataclass(frozen=True, eq=False)
class Loaded(Store):
    """Values in memory."""

    array: np.ndarray

    def read(self, start: int, stop: int) -> Float[np.ndarray, "t n dy"]:
        return self.array[start:stop]


class Blocks(ABC):
    """Values on disk, read in numbered blocks.

    The most recently used blocks are cached, at most `memory` bytes of them. Thread-safe.
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self._cache: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    @abstractmethod
    def load(self, number: int) -> np.ndarray:
        """Read a block."""

    def get(self, number: int) -> np.ndarray:
        """A block, from the cache if it is there."""
        with self._lock:
            if number in self._cache:
                self._cache.move_to_end(number)
                return self._cache[number]
        values = self.load(number)
        with self._lock:
            self._cache[number] = values
            while len(self._cache) > 1 and self.cached_bytes > self.memory:
                self._cache.popitem(last=False)
        return values

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which reads for itself."""
        return {k: v for k, v in vars(self).items() if k not in ("_cache", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Blocks.__init__(self, state["memory"])
        vars(self).update(state)

    @property
    def cached_bytes(self) -> int:
        return sum(block.nbytes for block in self._cache.values())


class Lazy(Blocks, Store):
    """Values on disk, read in blocks of steps with `fetch(start, stop)`."""

    def __init__(
        self, fetch: Callable[[int, int], np.ndarray], steps: int, block: int, memory: int
    ) -> None:
        super().__init__(memory)
        self.fetch, self.steps, self.block = fetch, steps, max(1, block)

    def load(self, number: int) -> np.ndarray:
        start = number * self.block
        return self.fetch(start, min(start + self.block, self.steps))

    def read(self, start: int, stop: int) -> Float[np.ndarray, "t n dy"]:
        if start >= stop:
            return self.get(min(start, self.steps - 1) // self.block)[:0]
        numbers = range(start // self.block, (stop - 1) // self.block + 1)
        blocks = [self.get(number) for number in numbers]
        joined = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        offset = numbers[0] * self.block
        return joined[start - offset : stop - offset]


def hash_arrays(*arrays: np.ndarray, about: object = ()) -> str:
    """A short hash of some arrays, and of the text of anything else."""
    digest = hashlib.blake2b(repr(about).encode(), digest_size=8)
    for array in arrays:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
