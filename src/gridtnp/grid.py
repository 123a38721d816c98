"""Geometry: where grid points are, which are near a location, and how far it is.

`Grid` is a frozen, hashable value without tensors. It can be a cache key, part of a configuration
and a constant of a compiled graph. Everything about periodic axes and the sphere lives in this
file; the parts of the model only ask. Coordinates are degrees on the sphere and hours in time;
distances on the sphere are degrees of great circle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gridtnp.errors import require_known

Metric = Literal["plain", "sphere"]
EARTH_RADIUS = 6371.0088
"""Mean radius of the Earth in km."""
ROUNDING = 1e-9
"""Degrees that the last grid point may miss a pole by, having been reached step by step."""


@dataclass(frozen=True)
class Axis:
    """Equally spaced grid points along one named coordinate: `low`, `low + step`, … (`size` of
    them).

    Use a constructor: its name carries the end-point rule.
    """

    name: str
    low: float
    step: float
    size: int
    periodic: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(
                f"Axis {self.name!r} must have at least one grid point, got size {self.size}."
            )
        if not (math.isfinite(self.low) and math.isfinite(self.step) and self.step > 0):
            raise ValueError(
                f"Axis {self.name!r} must run from a finite low end upwards, got low {self.low} "
                "and spacing "
                f"{self.step}; give the smaller end first."
            )

    @classmethod
    def span(cls, name: str, low: float, high: float, size: int) -> Axis:
        """From `low` to `high`, a grid point on each end.

        With a single grid point, `low` equals `high`.
        """
        if size == 1 and low != high:
            raise ValueError(
                f"Axis {name!r} with one grid point needs low = high, got {low} and {high}; "
                "Axis.cells puts a single grid point in the middle of an interval."
            )
        return cls(name, low, (high - low) / (size - 1) if size > 1 else 1.0, size)

    @classmethod
    def cells(cls, name: str, low: float, high: float, size: int) -> Axis:
        """`size` equal cells that fill the interval from `low` to `high`, a grid point in the
        middle of each.
        """
        step = (high - low) / max(size, 1)
        return cls(name, low + step / 2, step, size)

    @classmethod
    def circle(cls, name: str, low: float, period: float, size: int) -> Axis:
        """Once around, starting at `low`.

        The first grid point is not repeated at `low + period`.
        """
        return cls(name, low, period / max(size, 1), size, periodic=True)

    @property
    def high(self) -> float:
        """The last grid point."""
        return self.low + self.step * (self.size - 1)

    @property
    def period(self) -> float:
        return self.step * self.size

    def coarsen(self, factor: int) -> Axis:
        """The axis whose grid points stand in the middle of every `factor` neighbouring ones."""
        if factor < 1 or self.size % factor:
            raise ValueError(
                f"Patches of {factor} must divide axis {self.name!r} of {self.size} grid points; "
                f"choose one of {divisors(self.size)}."
            )
        low = self.low + self.step * (factor - 1) / 2
        return Axis(self.name, low, self.step * factor, self.size // factor, self.periodic)

    def position(self, x: Tensor) -> Tensor:
        """Where `x` is in units of grid points, 0.0 at the first one.

        Double precision keeps borders exact.
        """
        x = x if x.device.type == "mps" else x.double()
        return (x - self.low) / self.step

    def nearest(self, x: Tensor) -> Tensor:
        """Index of the nearest grid point; half way between two, the upper one."""
        return self._to_index(_round(self.position(x)))

    def inside(self, x: Tensor) -> Tensor:
        """Where `x` is in its cell, from -0.5 to 0.5 (farther beyond an edge), alike in all
        cells.
        """
        position = self.position(x)
        whole = _round(position)
        whole = whole if self.periodic else whole.clamp(0, self.size - 1)
        return (position - whole).to(x.dtype)

    def around(self, x: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """The `width` grid points closest to `x` in order, and which of them exist:

        `(..., width)` each.
        """
        if width % 2:
            centre = self.nearest(x)
        else:
            below = self.position(x).floor()
            centre = (
                self._to_index(below) if self.periodic else below.clamp(-1, self.size - 1).long()
            )
        first = -((width - 1) // 2)
        shift = torch.arange(first, first + width, device=x.device)
        index = centre.unsqueeze(-1) + shift
        if self.periodic:  # a circle shorter than the width is used up before anything repeats
            once = (shift >= -((self.size - 1) // 2)) & (shift <= self.size // 2)
            return index.remainder(self.size), once.expand_as(index)
        return index.clamp(0, self.size - 1), (index >= 0) & (index < self.size)

    def offset(self, a: Tensor, b: Tensor) -> Tensor:
        """`a - b`, the short way round on a periodic axis."""
        difference = a - b
        if not self.periodic:
            return difference
        return difference - self.period * (difference / self.period).round()

    def _to_index(self, whole: Tensor) -> Tensor:
        whole = whole.remainder(self.size) if self.periodic else whole.clamp(0, self.size - 1)
        return whole.long()


@dataclass(frozen=True)
class Grid:
    """The product of one to four axes.

    `metric="sphere"` measures axes `lat` and `lon` along great circles.
    """

    axes: tuple[Axis, ...]
    metric: Metric = "plain"

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(self.axes))
        if not 1 <= len(self.axes) <= 4:
            raise ValueError(f"A grid must have one to four axes, got {len(self.axes)}.")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"The axes of a grid must have different names, got {self.names}.")
        if self.metric not in ("plain", "sphere"):
            raise ValueError(f"The metric must be 'plain' or 'sphere', got {self.metric!r}.")
        if self.metric == "sphere":
            if not {"lat", "lon"} <= set(self.names):
                raise ValueError(
                    f"A grid on the sphere must have axes 'lat' and 'lon', got {self.names}."
                )
            latitude, longitude = self.axis("lat"), self.axis("lon")
            if longitude.periodic and abs(longitude.period - 360) > ROUNDING:
                raise ValueError(
                    "Longitudes are in degrees and go once around in 360, got "
                    f"{longitude.period:g}."
                )
            if latitude.low < -90 - ROUNDING or latitude.high > 90 + ROUNDING:
                raise ValueError(
                    f"Latitudes must lie between -90 and 90 degrees, got {latitude.low} to "
                    f"{latitude.high}."
                )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def periodic(self) -> tuple[bool, ...]:
        return tuple(axis.periodic for axis in self.axes)

    @property
    def components(self) -> tuple[str, ...]:
        """The names of what `distance` returns:

        One per axis, or one for latitude and longitude together.
        """
        if self.metric == "plain":
            return self.names
        return (*(name for name in self.names if name not in ("lat", "lon")), "great_circle")

    def axis(self, name: str) -> Axis:
        require_known(name, self.names, "axis", "of the grid")
        return self.axes[self.names.index(name)]

    def coarsen(self, factors: Sequence[int]) -> Grid:
        """The grid of patches: `factors` grid points per axis become one, in their middle."""
        factors = self.per_axis(factors, "patch sizes")
        return Grid(
            tuple(a.coarsen(f) for a, f in zip(self.axes, factors, strict=True)), self.metric
        )

    def per_axis(self, values: Sequence[int], what: str) -> tuple[int, ...]:
        """`values` as a tuple with one entry per axis, or a sentence about what is missing."""
        if len(values) != len(self.axes):
            raise ValueError(
                f"The {what} must be one number per axis {self.names}, got {len(values)}: "
                f"{tuple(values)}."
            )
        return tuple(values)

    def width(self, k: int) -> tuple[int, ...]:
        """Grid points per axis for `k` neighbours in all:

        The smallest whole root, as in appendix C.
        """
        if k < 1:
            raise ValueError(f"The number of neighbours must be at least 1, got {k}.")
        side = 1
        while side ** len(self.axes) < k:
            side += 1
        return (side,) * len(self.axes)

    def points(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Float[Tensor, "*grid dx"]:
        """The location of every grid point."""
        flat = torch.arange(self.size, device=device)
        return self.points_at(flat, dtype or torch.get_default_dtype()).unflatten(0, self.shape)

    def points_at(
        self, index: Int[Tensor, "*n"], dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "*n dx"]:
        """The location of grid points given by their flat index."""
        exact = torch.float32 if index.device.type == "mps" else torch.float64
        columns = []
        for axis in reversed(self.axes):
            columns.append((index % axis.size).to(exact) * axis.step + axis.low)
            index = index // axis.size
        return torch.stack(columns[::-1], -1).to(dtype)

    def nearest(self, x: Float[Tensor, "*n dx"]) -> Int[Tensor, "*n"]:
        """Flat index of the grid point nearest to each location, axis by axis.

        Unusable an edge, the edge's.
        """
        flat = torch.zeros(x.shape[:-1], dtype=torch.long, device=x.device)
        for axis, coordinate in zip(self.axes, x.unbind(-1), strict=True):
            flat = flat * axis.size + axis.nearest(coordinate)
        return flat

    def neighbours(
        self, x: Float[Tensor, "*n dx"], width: Sequence[int]
    ) -> tuple[Int[Tensor, "*n k"], Bool[Tensor, "*n k"]]:
        """Flat indices of the block of `width` grid points around each location, and which of them
        exist.

        Periodic axes wrap. Unusable an edge there is nothing: such entries are marked invalid (and
        point at some real cell, so that a gather is safe). No cell appears twice among the valid
        ones.
        """
        width = self.per_axis(width, "neighbourhood widths")
        if min(width) < 1:
            raise ValueError(
                f"A neighbourhood must be at least 1 wide along every axis, got {width}."
            )
        flat = torch.zeros((*x.shape[:-1], 1), dtype=torch.long, device=x.device)
        valid = torch.ones_like(flat, dtype=torch.bool)
        for axis, coordinate, w in zip(self.axes, x.unbind(-1), width, strict=True):
            index, exists = axis.around(coordinate, w)
            flat = (flat.unsqueeze(-1) * axis.size + index.unsqueeze(-2)).flatten(-2)
            valid = (valid.unsqueeze(-1) & exists.unsqueeze(-2)).flatten(-2)
        return flat, valid

    def inside(self, x: Float[Tensor, "*n dx"]) -> Float[Tensor, "*n dx"]:
        """Where each location is in its cell, per axis, in units of the cell."""
        pairs = zip(self.axes, x.unbind(-1), strict=True)
        return torch.stack([axis.inside(coordinate) for axis, coordinate in pairs], -1)

    def offset(
        self, a: Float[Tensor, "*#n dx"], b: Float[Tensor, "*#n dx"]
    ) -> Float[Tensor, "*_n dx"]:
        """`a - b` per axis, the short way round on periodic ones."""
        pairs = zip(self.axes, a.unbind(-1), b.unbind(-1), strict=True)
        return torch.stack([axis.offset(p, q) for axis, p, q in pairs], -1)

    def distance(
        self, a: Float[Tensor, "*#n dx"], b: Float[Tensor, "*#n dx"]
    ) -> Float[Tensor, "*_n components"]:
        """Distance per component (see `components`):

        Along each axis, or along the great circle in degrees.
        """
        offset = self.offset(a, b).abs()
        if self.metric == "plain":
            return offset
        lat, lon = self.names.index("lat"), self.names.index("lon")
        arc = great_circle(a[..., lat], a[..., lon], b[..., lat], b[..., lon])
        apart = [offset[..., d] for d in range(len(self.axes)) if d not in (lat, lon)]
        return torch.stack([*apart, arc], -1)

    def covers(self, x: Float[Tensor, "*n dx"]) -> Bool[Tensor, "*n"]:
        """Which locations `check` lets pass."""
        covered = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
        for axis, coordinate in zip(self.axes, x.unbind(-1), strict=True):
            low, high = self._reach(axis)
            covered &= (coordinate >= low) & (coordinate <= high)
        return covered

    def _reach(self, axis: Axis) -> tuple[float, float]:
        """One cell beyond the edges, but no farther than the poles."""
        low, high = axis.low - axis.step, axis.high + axis.step
        if axis.periodic or axis.size == 1:
            low, high = -math.inf, math.inf
        if self.metric == "sphere" and axis.name == "lat":
            low, high = max(low, -90.0), min(high, 90.0)
        return low, high

    def check(self, x: Float[Tensor, "*n dx"], what: str = "points") -> None:
        """Raise if locations lie more than one cell beyond an edge, where their nearest cell
        means nothing.
        """
        if x.shape[-1] != len(self.axes):
            raise ValueError(
                f"The {what} must have one coordinate per grid axis {self.names}, got "
                f"{x.shape[-1]} coordinates."
            )
        for axis, coordinate in zip(self.axes, x.unbind(-1), strict=True):
            low, high = self._reach(axis)
            outside = (coordinate < low) | (coordinate > high)
            if outside.any():
                example = coordinate[outside][0].item()
                raise ValueError(
                    f"All locations must lie within one cell of the grid, but {int(outside.sum())} "
                    "of "
                    f"{outside.numel()} {what} are far outside its axis {axis.name!r} "
                    f"({axis.low:g} to "
                    f"{axis.high:g}), for example {example:g}; use a wider axis or leave these "
                    "points out."
                )


def _round(position: Tensor) -> Tensor:
    """To the nearest whole number, halves upwards, exactly."""
    lower = position.floor()
    return lower + (position - lower >= 0.5)


def great_circle(lat1: Tensor, lon1: Tensor, lat2: Tensor, lon2: Tensor) -> Tensor:
    """Angle between places on the sphere in degrees (the paper's haversine, appendix E, with φ the
    latitude).

    The haversine of one place and that of its antipode add up to one. Computing both keeps nearby
    and opposite places equally exact and no argument ever leaves its range.
    """
    lat1, lat2, turn = (torch.deg2rad(angle) for angle in (lat1, lat2, lon2 - lon1))
    cosines = lat1.cos() * lat2.cos()
    near = ((lat2 - lat1) / 2).sin() ** 2 + cosines * (turn / 2).sin() ** 2
    far = ((lat2 + lat1) / 2).sin() ** 2 + cosines * (turn / 2).cos() ** 2
    tiny = torch.finfo(
        near.dtype
    ).tiny  # the root has no slope at zero; below this none is asked for
    return torch.rad2deg(2 * torch.atan2(near.clamp_min(tiny).sqrt(), far.clamp_min(tiny).sqrt()))


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
