"""`land_fraction`: how much of a place is land, from the coastlines in the package.

Temperature, humidity and wind change at a coast. The share of land is a static field like
elevation, but needs no file.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float
from scipy.spatial import KDTree

from gridtnp import demo
from gridtnp.data.places import grid_axes
from gridtnp.grid import EARTH_RADIUS
from gridtnp.sources.coordinates import unit_vectors, wrap

SPACING = 5.0
"""Largest distance between neighbouring points of a coastline, in km."""


def land_fraction(like: xr.Dataset | xr.DataArray, *, scale: float = 25.0) -> xr.DataArray:
    """The share of land on the latitude-longitude grid of `like`, for `Dataset(static=...)`.

    It is 1 inland, 0 at sea and 1/2 on the coast, and changes over about `scale` km on both sides.
    Coastlines are those of `demo.coastline`, at 1:50 million; islands and bays of less than about
    10 km are not in them.
    """
    if not scale > 0:
        raise ValueError(f"scale={scale:g}: must be positive, in km.")
    ds = like.to_dataset(name="like") if isinstance(like, xr.DataArray) else like
    (y, x), (lat, lon) = grid_axes(ds)
    rings = [ring.astype(np.float64) for ring in demo.coastline()]
    distance = _distance(rings, lat, lon)
    signed = np.where(_is_land(rings, lat, wrap(lon)), distance, -distance)
    values = 0.5 * (1 + np.tanh(signed / scale))
    about = {"long_name": "share of land", "units": "1"}
    return xr.DataArray(values, {y: ds[y], x: ds[x]}, (y, x), "land_fraction", about)


def _is_land(
    rings: list[np.ndarray], lat: Float[np.ndarray, " n"], lon: Float[np.ndarray, " m"]
) -> Bool[np.ndarray, "n m"]:
    """Whether an odd number of edges lies to the west of each grid point."""
    starts = np.concatenate([ring[:-1] for ring in rings])
    ends = np.concatenate([ring[1:] for ring in rings])
    (x0, y0), (x1, y1) = starts.T, ends.T
    found = np.zeros((len(lat), len(lon)), bool)
    for row, y in enumerate(lat):
        crossed = (y0 <= y) != (y1 <= y)
        slope = (x1 - x0)[crossed] / (y1 - y0)[crossed]
        west = np.sort(x0[crossed] + (y - y0[crossed]) * slope)
        found[row] = np.searchsorted(west, lon) % 2 == 1
    return found


def _distance(
    rings: list[np.ndarray], lat: Float[np.ndarray, " n"], lon: Float[np.ndarray, " m"]
) -> Float[np.ndarray, "n m"]:
    """Great-circle distance to the nearest coast, in km."""
    tree = KDTree(np.concatenate([_dense(ring) for ring in rings]))
    rows, columns = (v.ravel() for v in np.meshgrid(lat, lon, indexing="ij"))
    chord, _ = tree.query(unit_vectors(rows, columns))
    return (2 * EARTH_RADIUS * np.arcsin(np.minimum(chord / 2, 1.0))).reshape(len(lat), len(lon))


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
