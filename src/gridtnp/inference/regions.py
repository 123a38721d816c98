"""Regions of a query: blocks of times and places that are answered one by one, in any order.

A region is one chunk of the Zarr store that it goes to, so that no two share a file. The answer to
a region does not depend on what else is asked: however a grid is cut along time, and whoever
answers which region, the numbers are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from gridtnp.errors import require_known
from gridtnp.inference.queries import (
    Places,
    Query,
    as_dataset,
    coordinates_of,
    grid_dims,
    grid_time_dim,
    time_dim_of,
)
from gridtnp.sources.times import to_times

VALUES = 2**17
"""Values of a region that has several times because one has few: a megabyte in double precision."""
Part = tuple[int, int]
"""Part `i` of `n`, counted from zero."""


@dataclass(frozen=True, eq=False)
class Regions:
    """A query cut into regions; `sizes` has the size of a region along every dimension of `dims`.

    Tables and arrays have no dimensions but that of `times`.
    """

    form: Places
    times: np.ndarray | None
    dims: dict[str, int]
    sizes: dict[str, int]

    @classmethod
    def of(
        cls,
        places: Places,
        times: Iterable[Any] | None = None,
        sizes: Mapping[str, int] | None = None,
        *,
        values: int = VALUES,
    ) -> Regions:
        """By default, a region has all places and at least about as many `values`."""
        when = requested_times(times)
        roles, own, time = {}, {}, None
        if isinstance(places, xr.Dataset | xr.DataArray):
            roles, own = grid_dims(places)
            time = time_dim_of(places, roles)
        if when is not None:
            if "time" in roles or (not roles and _has_times(places)):
                raise ValueError(
                    "times= is given, but the query has times already; drop one of them."
                )
            own, time = {"time": len(when), **own}, "time"
        chosen = dict(own)
        if time is not None:
            points = math.prod(size for dim, size in own.items() if dim != time)
            chosen[time] = min(own[time], max(1, values // max(points, 1)))
        for dim, size in (sizes or {}).items():
            require_known(dim, own, "dimension", "in regions=")
            if size < 1:
                raise ValueError(f"regions={{{dim!r}: {size}}}: a region needs at least one step.")
            chosen[dim] = min(size, own[dim])
        return cls(places, when, own, chosen)

    def __len__(self) -> int:
        return math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of regions along every dimension."""
        return tuple(-(-size // self.sizes[dim]) for dim, size in self.dims.items())

    @property
    def points(self) -> int:
        """The number of points of all regions."""
        if isinstance(self.form, xr.Dataset | xr.DataArray):
            return math.prod(self.dims.values())
        return len(self._base.lat) * (1 if self.times is None else len(self.times))

    @property
    def tiled(self) -> bool:
        """Whether regions have some of the places."""
        return any(
            self.sizes[dim] < size for dim, size in self.dims.items() if dim != self.time_dim
        )

    @property
    def time_dim(self) -> str | None:
        if self.times is not None:
            return "time"
        if isinstance(self.form, xr.Dataset | xr.DataArray):
            return grid_time_dim(self.form)
        return None

    @property
    def timed(self) -> bool:
        """Whether the query has times."""
        return self.times is not None or _has_times(self.form)

    def block(self, number: int) -> tuple[int, ...]:
        """The position of a region among all, along every dimension."""
        return tuple(int(i) for i in np.unravel_index(number, self.shape)) if self.dims else ()

    def where(self, number: int) -> dict[str, slice]:
        """The steps of a region along every dimension."""
        return {
            dim: slice(i * self.sizes[dim], min((i + 1) * self.sizes[dim], size))
            for i, (dim, size) in zip(self.block(number), self.dims.items(), strict=True)
        }

    def query(self, number: int) -> Query:
        """The points of a region."""
        where = self.where(number)
        if self.times is None:
            if not isinstance(self.form, xr.Dataset | xr.DataArray):
                return self._base
            return Query.of(self.form.isel(where))
        times = self.times[where.pop("time")]
        if not self.tiled:
            return self._base.at_times(times)
        assert isinstance(self.form, xr.Dataset | xr.DataArray)
        return Query.of(self.form.isel(where)).at_times(times)

    def all_points(self) -> Query:
        """All points at once."""
        return self._base if self.times is None else self._base.at_times(self.times)

    def coordinates(self) -> xr.Dataset:
        """The coordinates of the whole answer."""
        assert isinstance(self.form, xr.Dataset | xr.DataArray)
        form = as_dataset(self.form)
        if self.times is not None:
            form = form.assign_coords(time=("time", self.times))
        return coordinates_of(form, self.dims)

    @cached_property
    def _base(self) -> Query:
        return Query.of(self.form)


def share(
    number: int,
    part: Part,
    what: str = "regions",
    way: str = "smaller regions, such as regions={'time': 1}",
) -> range:
    """The numbers of a part: consecutive ones, as many as those of any other, give or take one.

    `what` they are, and the `way` to have more of them, are for error messages.
    """
    index, parts = part
    if parts < 1 or not 0 <= index < parts:
        last = f"parts are numbered from 0 to {parts - 1}" if parts > 0 else "there is no such part"
        raise ValueError(f"part=({index}, {parts}): {last}.")
    if parts > number:
        raise ValueError(
            f"part=({index}, {parts}): there are {number:,} {what}, and two parts cannot share "
            f"one; use at most {number:,} parts, or {way}."
        )
    return range(index * number // parts, (index + 1) * number // parts)


def requested_times(times: Iterable[Any] | None) -> np.ndarray | None:
    """The `times=` of a query."""
    if times is None:
        return None
    wanted = times if isinstance(times, np.ndarray) else list(times)
    if not len(wanted):
        raise ValueError("times=[] is empty; give at least one time, or leave it out.")
    return to_times(wanted, "times")


def _has_times(places: Places) -> bool:
    """Whether a query has times of its own."""
    if isinstance(places, xr.Dataset | xr.DataArray):
        return "time" in grid_dims(places)[0]
    return isinstance(places, pd.DataFrame) and Query.of(places).time is not None
