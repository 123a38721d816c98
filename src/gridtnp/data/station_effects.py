"""Persistent deviations of stations from their surroundings, by time of year and time of day.

A station in a frost hollow is colder than interpolation from its neighbours says, every winter
night. Its own deviation is subtracted from what it observes, so that its observations speak for
their surroundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.spatial import KDTree

from gridtnp.data.coordinates import unit_vectors
from gridtnp.data.features import DAY
from gridtnp.data.sources import Source

SAME = 1e-5
"""Radius in which locations are the same, on the unit sphere: about 60 m."""
TERMS = 5
"""A constant, sine and cosine of the year, sine and cosine of the day."""


@dataclass(frozen=True, eq=False)
class StationEffects:
    """Deviations of variables of a source at some locations, in normalised units."""

    source: str
    variables: tuple[str, ...]
    lat: Float[np.ndarray, " n"]
    lon: Float[np.ndarray, " n"]
    coefficients: Float[np.ndarray, "n 5 v"]

    def places_of(self, source: Source) -> Float[np.ndarray, "p 5 v"]:
        """Coefficients at all locations of a source, zero at unknown ones."""
        found = np.zeros((len(source.lat), *self.coefficients.shape[1:]))
        if source.name == self.source and len(self.lat):
            tree = KDTree(unit_vectors(self.lat, self.lon))
            distance, index = map(np.asarray, tree.query(unit_vectors(source.lat, source.lon)))
            known = distance < SAME
            found[known] = self.coefficients[index[known]]
        return found

    def columns_of(self, variables: Sequence[str]) -> list[tuple[int, int]]:
        """Pairs of a column of `variables` and a variable of the effects."""
        return [
            (i, self.variables.index(v)) for i, v in enumerate(variables) if v in self.variables
        ]

    def to_record(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "source": self.source,
            "variables": list(self.variables),
            "lat": self.lat.tolist(),
            "lon": self.lon.tolist(),
            "coefficients": self.coefficients.tolist(),
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> StationEffects:
        shape = (len(record["lat"]), TERMS, len(record["variables"]))
        return cls(
            record["source"],
            tuple(record["variables"]),
            np.array(record["lat"], float),
            np.array(record["lon"], float),
            np.array(record["coefficients"], float).reshape(shape),
        )


def terms(times: np.ndarray | None, n: int) -> Float[np.ndarray, "n 5"]:
    """The terms at some times; without times, the constant alone."""
    found = np.zeros((n, TERMS))
    found[:, 0] = 1
    if times is not None:
        year = times.astype("datetime64[Y]").astype(times.dtype)
        day = times.astype("datetime64[D]").astype(times.dtype)
        for first, phase in ((1, (times - year) / DAY / 365.2425), (3, (times - day) / DAY)):
            found[:, first], found[:, first + 1] = (f(2 * np.pi * phase) for f in (np.sin, np.cos))
    return found
