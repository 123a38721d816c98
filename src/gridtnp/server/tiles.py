"""Map tiles: predictions as 256 × 256 pixels of web Mercator, for QGIS and maps in browsers."""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from threading import Lock

import numpy as np
import xarray as xr
from jaxtyping import Float, UInt8

from gridtnp.report.maps import RAMPS
from gridtnp.server.served import Served, Statistics
from gridtnp.server.work import Refused, Ticket

SIZE = 256
STEP = 4
"""Pixels between predicted points; between them is linear interpolation."""
DEEPEST = 22
KEPT = 1000
SCALE_POINTS = 600
SCALE_TIMES = 12


class Tiles:
    """Makes tiles, with the same colours everywhere, and keeps the last ones."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.kept: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self.scales: dict[str, tuple[float, float]] = {}
        self.lock = Lock()

    def draw(
        self, z: int, x: int, y: int, name: str, time: np.datetime64 | None, ticket: Ticket
    ) -> bytes:
        """A tile as PNG; transparent where nothing can be predicted."""
        if not 0 <= z <= DEEPEST or not 0 <= x < 2**z or not 0 <= y < 2**z:
            raise Refused(
                404, f"There is no tile {z}/{x}/{y}; zoom is 0 to {DEEPEST}, x and y are below 2^z."
            )
        key = (z, x, y, name, time)
        with self.lock:
            if key in self.kept:
                self.kept.move_to_end(key)
                return self.kept[key]
        what = self.served.statistics([name])
        values = self._values(z, x, y, what, time, ticket)
        made = EMPTY if values is None else png(self._colour(values, name, what, ticket))
        with self.lock:
            self.kept[key] = made
            while len(self.kept) > KEPT:
                self.kept.popitem(last=False)
        return made

    def _values(
        self,
        z: int,
        x: int,
        y: int,
        what: Statistics,
        time: np.datetime64 | None,
        ticket: Ticket,
    ) -> Float[np.ndarray, "256 256"] | None:
        """Predictions at every pixel; None if there are none."""
        ends = np.arange(0, SIZE + 1, STEP) / SIZE
        lon = ((x + ends) / 2**z) * 360.0 - 180.0
        lat = np.rad2deg(np.arctan(np.sinh(np.pi * (1 - 2 * (y + ends) / 2**z))))
        region = self.served.region
        turned = np.mod(lon - region.west, 360.0) + region.west
        inside = (turned <= region.east) | (region.east - region.west >= 360.0)
        if not (inside.any() and (lat >= region.south).any() and (lat <= region.north).any()):
            return None
        at = xr.Dataset(coords={"lat": lat, "lon": lon})
        times = None if time is None else np.array([time])
        try:
            found = self.served.predict(at, times, what, ticket)
        except ValueError:  # all of it is outside of the model's grid
            return None
        coarse = found[what.columns[0]].to_numpy().reshape(len(lat), len(lon))
        at_pixels = (np.arange(SIZE) + 0.5) / STEP
        low = np.floor(at_pixels).astype(int)
        part = at_pixels - low
        rows = coarse[low] * (1 - part[:, None]) + coarse[low + 1] * part[:, None]
        return rows[:, low] * (1 - part) + rows[:, low + 1] * part

    def _colour(
        self, values: np.ndarray, name: str, what: Statistics, ticket: Ticket
    ) -> UInt8[np.ndarray, "256 256 4"]:
        low, high = self.scale(name, what, ticket)
        known = np.isfinite(values)
        share = np.clip((np.where(known, values, low) - low) / (high - low), 0, 1)
        kind = next((k for k in ("std", "support") if name.endswith(f"_{k}")), "mean")
        stops = np.array([list(bytes.fromhex(colour)) for colour in RAMPS[kind].split()])
        ticks = np.linspace(0, 1, len(stops))
        channels = [np.interp(share, ticks, stops[:, c]).round() for c in range(3)]
        return np.stack([*channels, np.where(known, 255, 0)], -1).astype(np.uint8)

    def scale(self, name: str, what: Statistics, ticket: Ticket) -> tuple[float, float]:
        """The ends of the colours: of the whole region, at up to 12 times."""
        with self.lock:
            if name in self.scales:
                return self.scales[name]
        served = self.served
        times = served.times
        if times is not None:
            even = np.linspace(0, len(times) - 1, min(len(times), SCALE_TIMES)).round().astype(int)
            times = times[even]
        grid = served.region.grid(served.model, SCALE_POINTS)
        values = served.predict(grid, times, what, ticket)[name].to_numpy()
        low, high = np.nanquantile(values, [0.004, 0.996])
        if not high > low:
            low, high = low - 0.5, low + 0.5
        with self.lock:
            return self.scales.setdefault(name, (float(low), float(high)))


def png(pixels: UInt8[np.ndarray, "h w c"]) -> bytes:
    """An image of red, green, blue and opacity as a PNG file."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], 1)
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    parts = {b"IHDR": header, b"IDAT": zlib.compress(rows.tobytes(), 6), b"IEND": b""}
    made = b"\x89PNG\r\n\x1a\n"
    for kind, data in parts.items():
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        made += struct.pack(">I", len(data)) + kind + data + checksum
    return made


EMPTY = png(np.zeros((SIZE, SIZE, 4), np.uint8))
