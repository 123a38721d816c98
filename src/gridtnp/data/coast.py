"""How much of a place is land, from the coastlines in the package.

Temperature, humidity and wind change at a coast. The share of land is a static feature like
elevation, but needs no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float
from scipy.spatial import KDTree

from gridtnp import demo
from gridtnp.data.places import grid_axes
from gridtnp.grid import EARTH_RADIUS
from gridtnp.sources.coordinates import unit_vectors, wrap

LAND = "land_fraction"
"""The name of the feature."""
SPACING = 5.0
"""Largest distance between neighbouring points of a coastline, in km."""
FAR = 6.0
"""Farther from the coast, in scales, everything is land or sea: tanh is 1 in single precision."""
BLOCK = 128
"""Places of similar latitude that are tested at once."""


@dataclass(frozen=True)
class Coast:
    """The share of land at any place: 1 inland, 0 at sea and 1/2 on the coast.

    It changes over about `scale` km on both sides.
    """

    scale: float = 25.0

    def at(
        self, lat: Float[np.ndarray, " n"], lon: Float[np.ndarray, " n"]
    ) -> Float[np.ndarray, " n"]:
        lat, lon = np.asarray(lat, np.float64), wrap(np.asarray(lon, np.float64))
        farthest = 2 * np.sin(min(FAR * self.scale / EARTH_RADIUS, np.pi) / 2)
        chord, _ = _tree().query(unit_vectors(lat, lon), distance_upper_bound=farthest)
        distance = 2 * EARTH_RADIUS * np.arcsin(np.minimum(chord, farthest) / 2)
        signed = np.where(_is_land(lat, lon), distance, -distance)
        return (0.5 * (1 + np.tanh(signed / self.scale))).astype(np.float32)


def land_fraction(like: xr.Dataset | xr.DataArray, *, scale: float = 25.0) -> xr.DataArray:
    """The share of land on the latitude-longitude grid of `like`, for `Dataset(static=...)`.

    It is 1 inland, 0 at sea and 1/2 on the coast, and changes over about `scale` km on both sides.
    Coastlines are those of `demo.coastline`, at 1:50 million; islands and bays of less than about
    10 km are not in them.
    """
    if not scale > 0:
        raise ValueError(f"scale={scale:g}: must be positive, in km.")
    ds = like.to_dataset(name="like") if isinstance(like, xr.DataArray) else like
    (y, x), axes = grid_axes(ds)
    lat, lon = (v.ravel() for v in np.meshgrid(*axes, indexing="ij"))
    values = Coast(scale).at(lat, lon).reshape(len(axes[0]), len(axes[1]))
    about = {"long_name": "share of land", "units": "1"}
    return xr.DataArray(values, {y: ds[y], x: ds[x]}, (y, x), LAND, about)


def _is_land(lat: Float[np.ndarray, " n"], lon: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Whether an odd number of edges lies to the west of each place."""
    x0, y0, x1, y1 = _edges()
    south, north = np.minimum(y0, y1), np.maximum(y0, y1)
    found, order = np.zeros(len(lat), bool), np.argsort(lat, kind="stable")
    for start in range(0, len(order), BLOCK):
        rows = order[start : start + BLOCK]
        y = lat[rows]
        near = (south <= y[-1]) & (north >= y[0])
        a, b, c, d = (v[near] for v in (x0, y0, x1, y1))
        crossed = (b <= y[:, None]) != (d <= y[:, None])
        with np.errstate(invalid="ignore", divide="ignore"):  # edges along a parallel
            west = a + (y[:, None] - b) * ((c - a) / (d - b)) < lon[rows, None]
        found[rows] = (crossed & west).sum(1) % 2 == 1
    return found


@cache
def _rings() -> tuple[Float[np.ndarray, "n 2"], ...]:
    return tuple(ring.astype(np.float64) for ring in demo.coastline())


@cache
def _edges() -> tuple[np.ndarray, ...]:
    """Longitudes and latitudes of the starts, then of the ends, of all edges."""
    starts = np.concatenate([ring[:-1] for ring in _rings()])
    ends = np.concatenate([ring[1:] for ring in _rings()])
    return (*starts.T, *ends.T)


@cache
def _tree() -> KDTree:
    return KDTree(np.concatenate([_dense(ring) for ring in _rings()]))


def _dense(ring: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "k 3"]:
    """Points of a ring at most `SPACING` apart, without the edges of the map."""
    start, end = ring[:-1], ring[1:]
    edge = (np.abs(start) == np.abs(end)) & (np.abs(start) == [180.0, 90.0])
    start, end = (points[~edge.any(1)] for points in (start, end))
    a, b = (unit_vectors(points[:, 1], points[:, 0]) for points in (start, end))
    pieces = np.ceil(EARTH_RADIUS * np.linalg.norm(b - a, axis=1) / SPACING).astype(int).clip(1)
    which = np.repeat(np.arange(len(a)), pieces)
    along = (np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) / pieces[which]
    points = a[which] + along[:, None] * (b - a)[which]
    return points / np.linalg.norm(points, axis=1, keepdims=True)
