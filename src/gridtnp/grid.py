"""Geometry: `Axis` and `Grid` give grid points, nearest neighbours and distances.

`Grid` is a frozen, hashable value without tensors, so that it can be a cache key, part of a
configuration and a constant of a compiled graph. Periodic axes and the sphere are handled here and
nowhere else. Coordinates are degrees on the sphere and hours in time; distances on the sphere are
great-circle distances in degrees.
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
"""Tolerance in degrees for the last grid point of an axis that ends at a pole."""


@dataclass(frozen=True)
class Axis:
    """`size` equally spaced grid points along one named coordinate: `low`, `low + step`, ….

    Use `span`, `cells` or `circle`, which differ in how they treat the end points.
    """

    name: str
    low: float
    step: float
    size: int
    periodic: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"Axis {self.name!r} has size {self.size}; must be at least 1.")
        if not (math.isfinite(self.low) and math.isfinite(self.step) and self.step > 0):
            raise ValueError(
                f"Axis {self.name!r} does not increase from a finite low end: low {self.low}, "
                f"spacing {self.step}; give the smaller end first."
            )

    @classmethod
    def span(cls, name: str, low: float, high: float, size: int) -> Axis:
        """From `low` to `high`, both included; equal for a single grid point."""
        if size == 1 and low != high:
            raise ValueError(
                f"Axis {name!r} has one grid point, but spans {low} to {high}; Axis.cells puts a "
                "single grid point in the middle of an interval."
            )
        return cls(name, low, (high - low) / (size - 1) if size > 1 else 1.0, size)

    @classmethod
    def cells(cls, name: str, low: float, high: float, size: int) -> Axis:
        """The centres of `size` equal cells that fill the interval from `low` to `high`."""
        step = (high - low) / max(size, 1)
        return cls(name, low + step / 2, step, size)

    @classmethod
    def circle(cls, name: str, low: float, period: float, size: int) -> Axis:
        """A periodic axis from `low`, which is not repeated at `low + period`."""
        return cls(name, low, period / max(size, 1), size, periodic=True)

    @property
    def high(self) -> float:
        """The last grid point."""
        return self.low + self.step * (self.size - 1)

    @property
    def period(self) -> float:
        return self.step * self.size

    def coarsen(self, factor: int) -> Axis:
        """Merge every `factor` grid points into one at their centre."""
        if factor < 1 or self.size % factor:
            raise ValueError(
                f"Patch size {factor} does not divide axis {self.name!r} of {self.size} grid "
                f"points; choose one of {divisors(self.size)}."
            )
        low = self.low + self.step * (factor - 1) / 2
        return Axis(self.name, low, self.step * factor, self.size // factor, self.periodic)

    def points(self, like: Tensor) -> Tensor:
        """All grid points, on the device and in the precision of another tensor."""
        exact = torch.float32 if like.device.type == "mps" else torch.float64
        index = torch.arange(self.size, device=like.device, dtype=exact)
        return (index * self.step + self.low).to(like.dtype)

    def position(self, x: Tensor) -> Tensor:
        """`x` in units of the spacing from the first grid point; float64 keeps borders exact."""
        x = x if x.device.type == "mps" else x.double()
        return (x - self.low) / self.step

    def nearest(self, x: Tensor) -> Tensor:
        """Index of the nearest grid point; ties go to the upper one."""
        return self._to_index(_round(self.position(x)))

    def inside(self, x: Tensor) -> Tensor:
        """Position of `x` within its cell, from -0.5 to 0.5, or more beyond an edge."""
        position = self.position(x)
        centre = _round(position)
        centre = centre if self.periodic else centre.clamp(0, self.size - 1)
        return (position - centre).to(x.dtype)

    def around(self, x: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Indices of the `width` grid points nearest to `x`, in order, and which of them exist."""
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
        if self.periodic:  # if the axis is shorter than the width, each grid point counts once
            once = (shift >= -((self.size - 1) // 2)) & (shift <= self.size // 2)
            return index.remainder(self.size), once.expand_as(index)
        return index.clamp(0, self.size - 1), (index >= 0) & (index < self.size)

    def faded(self, x: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Indices of the `width` grid points around `x`, weights, and offsets `x` - grid point.

        Weights and their slopes are continuous: each grid point is faded in over the outermost cell
        of the neighbourhood. They sum to one, without grid points beyond an edge. Offsets are in
        units of the spacing. A periodic axis that is shorter than the width repeats.
        """
        position = self.position(x).unsqueeze(-1)
        if self.size == 1 and not self.periodic:
            index = torch.zeros_like(position, dtype=torch.long)
            return index, torch.ones_like(position).to(x.dtype), position.to(x.dtype)
        # beyond the cells of the edge, weights stay as they are
        inner = position if self.periodic else position.clamp(-0.5, self.size - 0.5)
        first = (inner - width / 2).floor() + 1
        index = first + torch.arange(width, device=x.device)
        weight = smooth_step(width / 2 - (inner - index).abs())
        if not self.periodic:
            weight = weight * ((index >= 0) & (index < self.size))
        weight = weight / weight.sum(-1, keepdim=True)
        return self._to_index(index), weight.to(x.dtype), (position - index).to(x.dtype)

    def offset(self, a: Tensor, b: Tensor) -> Tensor:
        """`a - b`, the shorter way around on a periodic axis."""
        difference = a - b
        if not self.periodic:
            return difference
        return difference - self.period * (difference / self.period).round()

    def _to_index(self, rounded: Tensor) -> Tensor:
        """Wrap around a periodic axis, clamp on others."""
        if self.periodic:
            return rounded.remainder(self.size).long()
        return rounded.clamp(0, self.size - 1).long()


@dataclass(frozen=True)
class Grid:
    """The product of one to four axes.

    With `metric="sphere"`, distances along `lat` and `lon` are great-circle distances.
    """

    axes: tuple[Axis, ...]
    metric: Metric = "plain"

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(self.axes))
        if not 1 <= len(self.axes) <= 4:
            raise ValueError(f"The grid has {len(self.axes)} axes; must have one to four.")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"Axes {self.names} have duplicate names; rename one.")
        require_known(self.metric, ("plain", "sphere"), "metric")
        if self.metric == "sphere":
            if not {"lat", "lon"} <= set(self.names):
                raise ValueError(
                    f"Axes {self.names} lack 'lat' or 'lon', which metric='sphere' needs."
                )
            latitude, longitude = self.axis("lat"), self.axis("lon")
            if longitude.periodic and abs(longitude.period - 360) > ROUNDING:
                raise ValueError(
                    f"Axis 'lon' has period {longitude.period:g}; must be 360 degrees."
                )
            if latitude.low < -90 - ROUNDING or latitude.high > 90 + ROUNDING:
                raise ValueError(
                    f"Latitudes {latitude.low} to {latitude.high} are outside -90 to 90 degrees."
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
        """Names of the components of `distance`: the axes; on the sphere, lat and lon are one."""
        if self.metric == "plain":
            return self.names
        return (*(name for name in self.names if name not in ("lat", "lon")), "great_circle")

    @property
    def polar(self) -> bool:
        """Whether the grid goes around a pole: locations there have many longitudes."""
        if self.metric == "plain" or not self.axis("lon").periodic:
            return False
        lat = self.axis("lat")
        ends = (lat.high + lat.step + ROUNDING >= 90, lat.low - lat.step - ROUNDING <= -90)
        return lat.size > 1 and any(ends)

    def axis(self, name: str) -> Axis:
        require_known(name, self.names, "axis", "of the grid")
        return self.axes[self.names.index(name)]

    def coarsen(self, factors: Sequence[int]) -> Grid:
        """The grid of patches of `factors` grid points per axis, at their centres."""
        factors = self.per_axis(factors, "patch sizes")
        return Grid(
            tuple(a.coarsen(f) for a, f in zip(self.axes, factors, strict=True)), self.metric
        )

    def per_axis(self, values: Sequence[int], what: str) -> tuple[int, ...]:
        """`values` as a tuple; raise unless there is one per axis."""
        if len(values) != len(self.axes):
            raise ValueError(
                f"The {what} {tuple(values)} are not one number per axis {self.names}."
            )
        return tuple(values)

    def width(self, k: int) -> tuple[int, ...]:
        """Neighbours per axis for `k` in total: ceil(k^(1/d)) (appendix C)."""
        if k < 1:
            raise ValueError(f"neighbours={k}: must be at least 1.")
        axes = len(self.axes)
        side = round(k ** (1 / axes))  # a whole number, but for rounding
        while side > 1 and (side - 1) ** axes >= k:
            side -= 1
        while side**axes < k:
            side += 1
        return (side,) * axes

    def points(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Float[Tensor, "*grid dx"]:
        """Locations of all grid points."""
        flat = torch.arange(self.size, device=device)
        return self.points_at(flat, dtype or torch.get_default_dtype()).unflatten(0, self.shape)

    def points_at(
        self, index: Int[Tensor, "*n"], dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "*n dx"]:
        """Locations of grid points given by flat index."""
        exact = torch.float32 if index.device.type == "mps" else torch.float64
        columns = []
        for axis in reversed(self.axes):
            columns.append((index % axis.size).to(exact) * axis.step + axis.low)
            index = index // axis.size
        return torch.stack(columns[::-1], -1).to(dtype)

    def nearest(self, x: Float[Tensor, "*n dx"]) -> Int[Tensor, "*n"]:
        """Flat index of the nearest grid point, per axis; beyond an edge, that of the edge."""
        flat = torch.zeros(x.shape[:-1], dtype=torch.long, device=x.device)
        for axis, coordinate in zip(self.axes, x.unbind(-1), strict=True):
            flat = flat * axis.size + axis.nearest(coordinate)
        return flat

    def neighbours(
        self, x: Float[Tensor, "*n dx"], width: Sequence[int]
    ) -> tuple[Int[Tensor, "*n k"], Bool[Tensor, "*n k"]]:
        """Flat indices of the nearest `width` grid points per axis, and which of them are valid.

        Periodic axes wrap. Entries beyond an edge are invalid, but safe to gather. No grid point is
        valid twice.
        """
        width = self.per_axis(width, "neighbourhood widths")
        if min(width) < 1:
            raise ValueError(f"Neighbourhood widths {width} must be at least 1 along each axis.")
        flat = torch.zeros((*x.shape[:-1], 1), dtype=torch.long, device=x.device)
        valid = torch.ones_like(flat, dtype=torch.bool)
        for axis, coordinate, w in zip(self.axes, x.unbind(-1), width, strict=True):
            index, exists = axis.around(coordinate, w)
            flat = (flat.unsqueeze(-1) * axis.size + index.unsqueeze(-2)).flatten(-2)
            valid = (valid.unsqueeze(-1) & exists.unsqueeze(-2)).flatten(-2)
        return flat, valid

    def inside(self, x: Float[Tensor, "*n dx"]) -> Float[Tensor, "*n dx"]:
        """Position of each location within its cell, in units of the spacing."""
        pairs = zip(self.axes, x.unbind(-1), strict=True)
        return torch.stack([axis.inside(coordinate) for axis, coordinate in pairs], -1)

    def offset(
        self, a: Float[Tensor, "*#n dx"], b: Float[Tensor, "*#n dx"]
    ) -> Float[Tensor, "*_n dx"]:
        """`a - b` per axis, the shorter way around on periodic ones."""
        pairs = zip(self.axes, a.unbind(-1), b.unbind(-1), strict=True)
        return torch.stack([axis.offset(p, q) for axis, p, q in pairs], -1)

    def distance(
        self, a: Float[Tensor, "*#n dx"], b: Float[Tensor, "*#n dx"]
    ) -> Float[Tensor, "*_n components"]:
        """Distance per component (see `components`), great-circle distance in degrees."""
        offset = self.offset(a, b).abs()
        if self.metric == "plain":
            return offset
        lat, lon = self.names.index("lat"), self.names.index("lon")
        arc = great_circle(a[..., lat], a[..., lon], b[..., lat], b[..., lon])
        apart = [offset[..., d] for d in range(len(self.axes)) if d not in (lat, lon)]
        return torch.stack([*apart, arc], -1)

    @property
    def column(self) -> int:
        """The axis whose grid points are the columns of `as_rows`: the last; on the sphere, lon."""
        return self.names.index("lon") if self.metric == "sphere" else len(self.axes) - 1

    def as_rows(self, u: Float[Tensor, "batch *grid d"]) -> Float[Tensor, "batch rows columns d"]:
        """A field with one axis for columns, and all others as rows."""
        moved = u.movedim(1 + self.column, -2)
        return moved.flatten(1, -3) if len(self.axes) > 1 else moved.unsqueeze(1)

    def from_rows(self, u: Float[Tensor, "batch rows columns d"]) -> Float[Tensor, "batch *grid d"]:
        """The inverse of `as_rows`."""
        rows = [axis.size for d, axis in enumerate(self.axes) if d != self.column]
        return u.reshape(u.shape[0], *rows, *u.shape[2:]).movedim(-2, 1 + self.column)

    def split_distance(
        self, x: Float[Tensor, "*n dx"]
    ) -> tuple[list[Float[Tensor, "*n rows"]], list[Float[Tensor, "*n _"]]]:
        """`distance` to all grid points by rows and columns, which are far fewer.

        First, the distance to every row for all components but the last. Then what tells the last:
        its square by column, or haversines of longitude by column, haversines of latitude by row,
        and products of cosines by row, so that the haversine of a great circle is that by row plus
        the product times that by column.
        """
        others = [d for d in range(len(self.axes)) if d != self.column]
        rows = [self.axes[d].size for d in others]

        def by_row(table: Tensor, axis: int) -> Tensor:
            shape = [size if d == axis else 1 for d, size in zip(others, rows, strict=True)]
            table = table.reshape(*x.shape[:-1], *shape)
            return table.expand(*x.shape[:-1], *rows).reshape(*x.shape[:-1], math.prod(rows))

        points = [axis.points(x) for axis in self.axes]
        columns = [x[..., d].unsqueeze(-1) for d in range(len(self.axes))]
        offset = [
            a.offset(p, q) for a, p, q in zip(self.axes, columns, points, strict=True)
        ]  # (*n, size) each
        if self.metric == "plain":
            return [by_row(offset[d].abs(), d) for d in others], [offset[-1].square()]
        lat = self.names.index("lat")
        cosines = torch.deg2rad(columns[lat]).cos() * torch.deg2rad(points[lat]).cos()
        haversines = [torch.deg2rad(offset[d] / 2).sin().square() for d in (self.column, lat)]
        great_circle = [haversines[0], by_row(haversines[1], lat)]
        great_circle.append(by_row(cosines.clamp_min(0.0), lat))  # rounding at the poles
        return [by_row(offset[d].abs(), d) for d in others if d != lat], great_circle

    def covers(self, x: Float[Tensor, "*n dx"]) -> Bool[Tensor, "*n"]:
        """Which locations lie on the grid or within one cell of its edges."""
        covered = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
        for axis, coordinate in zip(self.axes, x.unbind(-1), strict=True):
            low, high = self._reach(axis)
            covered &= (coordinate >= low) & (coordinate <= high)
        return covered

    def _reach(self, axis: Axis) -> tuple[float, float]:
        """The range of valid coordinates: one cell beyond the edges, up to the poles."""
        low, high = axis.low - axis.step, axis.high + axis.step
        if axis.periodic or axis.size == 1:
            low, high = -math.inf, math.inf
        if self.metric == "sphere" and axis.name == "lat":
            low, high = max(low, -90.0), min(high, 90.0)
        return low, high

    def check(self, x: Float[Tensor, "*n dx"], what: str = "points") -> None:
        """Raise unless all locations lie on the grid or within one cell of its edges."""
        if x.shape[-1] != len(self.axes):
            raise ValueError(
                f"The {what} have {x.shape[-1]} coordinates, but the grid has axes {self.names}."
            )
        if not x.numel():
            return
        extremes = torch.stack(x.flatten(0, -2).aminmax(dim=0), 1).tolist()
        for axis, coordinate, (least, most) in zip(self.axes, x.unbind(-1), extremes, strict=True):
            low, high = self._reach(axis)
            if least >= low and most <= high:
                continue
            outside = (coordinate < low) | (coordinate > high)
            if outside.any():
                example = coordinate[outside][0].item()
                raise ValueError(
                    f"{int(outside.sum())} of {outside.numel()} {what} are more than one cell "
                    f"outside axis {axis.name!r} ({axis.low:g} to {axis.high:g}), for example "
                    f"{example:g}; use a wider axis, or leave these points out."
                )


def _round(position: Tensor) -> Tensor:
    """Round to the nearest integer, halves up, without floating-point error."""
    lower = position.floor()
    return lower + (position - lower >= 0.5)


def smooth_step(x: Tensor) -> Tensor:
    """From 0 to 1 as `x` goes from 0 to 1, with zero slope at both ends."""
    x = x.clamp(0, 1)
    return x * x * (3 - 2 * x)


def polar_fade(latitude: Tensor, step: float) -> Tensor:
    """Zero on the poles, one where they are more than half a cell away."""
    return smooth_step((90 - latitude.abs()) * (2 / step))


def great_circle(lat1: Tensor, lon1: Tensor, lat2: Tensor, lon2: Tensor) -> Tensor:
    """Great-circle distance in degrees: the haversine formula (appendix E), φ being the latitude.

    The haversines of a point and of its antipode add up to one. Computing both is exact for nearby
    and for opposite points, and no rounding error leaves the domain of the inverse.
    """
    lat1, lat2, turn = (torch.deg2rad(angle) for angle in (lat1, lat2, lon2 - lon1))
    cosines = lat1.cos() * lat2.cos()
    near = ((lat2 - lat1) / 2).sin() ** 2 + cosines * (turn / 2).sin() ** 2
    far = ((lat2 + lat1) / 2).sin() ** 2 + cosines * (turn / 2).cos() ** 2
    tiny = torch.finfo(near.dtype).tiny  # the square root has no finite gradient at zero
    return torch.rad2deg(2 * torch.atan2(near.clamp_min(tiny).sqrt(), far.clamp_min(tiny).sqrt()))


def divisors(n: int) -> list[int]:
    """Divisors up to 1000: sizes of windows and patches to propose."""
    return [d for d in range(1, min(n, 1000) + 1) if n % d == 0]
