"""Input embeddings: fixed features of coordinates (appendix E), mixed by one learned linear map.

An `Embedding` maps some input columns to features. `InputEmbedding` applies several of them, each
to its own columns, and mixes their features into one vector per point. It is shared by all sources
and the targets.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gridtnp.grid import Grid, polar_fade
from gridtnp.ops.rows import Linear


class Embedding(nn.Module, ABC):
    """A fixed map from input columns to `features` features."""

    features: int

    @abstractmethod
    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n f"]: ...


class RawEmbedding(Embedding):
    """The identity, for covariates that are already normalised."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.features = columns

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n f"]:
        return x


class FourierEmbedding(Embedding):
    """Sines and cosines of each column at log-spaced wavelengths (appendix E)."""

    def __init__(self, columns: int, *, per_column: int, shortest: float, longest: float) -> None:
        super().__init__()
        if per_column < 2 or per_column % 2:
            raise ValueError(
                f"per_column={per_column}: Fourier features come in pairs of sine and cosine."
            )
        if not 0 < shortest < longest:
            raise ValueError(
                f"Wavelengths from {shortest} to {longest} are not positive and increasing."
            )
        self.features = columns * per_column
        log = torch.linspace(
            math.log(shortest), math.log(longest), per_column // 2, dtype=torch.float64
        )
        # without values on the device "meta", where a network is only outlined
        self.frequencies = () if log.is_meta else tuple((1 / log.exp()).tolist())

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n f"]:
        exact = torch.float32 if x.device.type == "mps" else torch.float64
        frequency = torch.tensor(self.frequencies, dtype=exact, device=x.device)
        turns = x.to(exact).movedim(-1, 0).unsqueeze(1) * frequency.view(-1, *[1] * (x.ndim - 1))
        angle = ((turns - turns.floor()) * (2 * math.pi)).to(
            torch.promote_types(x.dtype, torch.float32)
        )
        return torch.cat([angle.sin(), angle.cos()], 1).flatten(0, 1).movedim(0, -1)


class SphericalHarmonics(Embedding):
    """Real orthonormal spherical harmonics of (latitude, longitude) in degrees (appendix E).

    There are `degrees`² features, ordered by degree l = 0, 1, … and order m = -l … l. The Legendre
    functions use the three-term recurrence in the degree, which is stable for any degree.
    """

    def __init__(self, degrees: int) -> None:
        super().__init__()
        if degrees < 1:
            raise ValueError(f"degrees={degrees}: must be at least 1.")
        self.degrees = degrees
        self.features = degrees**2

    def forward(self, x: Float[Tensor, "*n 2"]) -> Float[Tensor, "*n f"]:
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        lat, lon = torch.deg2rad(x).unbind(-1)
        # The polar angle is the colatitude.
        cos_polar, sin_polar = lat.sin(), lat.cos()
        order = torch.arange(1, self.degrees, dtype=x.dtype, device=x.device)
        turns = lon * order.view(-1, *[1] * lon.ndim)
        sines, cosines = math.sqrt(2) * turns.sin(), math.sqrt(2) * turns.cos()
        # Row m is order m; each step raises the degree of all orders by one.
        previous = lat.new_zeros((0, *lat.shape))
        legendre = torch.full_like(lat, math.sqrt(1 / (4 * math.pi))).unsqueeze(0)
        columns = [legendre]
        for degree in range(1, self.degrees):
            up, down = self._recurrence(degree, x)
            up, down = (c.view(-1, *[1] * lat.ndim) for c in (up, down))
            last = legendre[-1:] * sin_polar * math.sqrt((2 * degree + 1) / (2 * degree))
            inner = up * cos_polar * legendre
            if degree > 1:
                inner = torch.cat([inner[:-1] - up[:-1] * down * previous, inner[-1:]])
            previous, legendre = legendre, torch.cat([inner, last])
            sine, cosine = sines[:degree], cosines[:degree]
            columns += [(legendre[1:] * sine).flip(0), legendre[:1], legendre[1:] * cosine]
        return torch.cat(columns).movedim(0, -1)

    @staticmethod
    def _recurrence(degree: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients of the two lower degrees, for the orders that exist there."""
        up = [math.sqrt((4 * degree**2 - 1) / (degree**2 - m**2)) for m in range(degree)]
        down = [
            math.sqrt(((degree - 1) ** 2 - m**2) / (4 * (degree - 1) ** 2 - 1))
            for m in range(degree - 1)
        ]
        return like.new_tensor(up), like.new_tensor(down)


class CellEmbedding(Embedding):
    """Fourier features of a point's position within its grid cell, along the given axes.

    With these inputs and shared pseudo-tokens, a model treats all cells alike.
    """

    def __init__(self, grid: Grid, axes: Sequence[str], *, per_column: int) -> None:
        super().__init__()
        self.grid = Grid(tuple(grid.axis(name) for name in axes))
        self.waves = FourierEmbedding(len(axes), per_column=per_column, shortest=0.5, longest=4.0)
        self.features = self.waves.features

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n f"]:
        return self.waves(self.grid.inside(x))


class SmoothCellEmbedding(Embedding):
    """Sines and cosines of the position in units of cells, along the given axes.

    Wavelengths are a cell and its fractions 1/2, 1/3, …: the same in all cells and continuous at
    their borders. Towards a pole, those of the longitude fade.
    """

    def __init__(self, grid: Grid, axes: Sequence[str], *, per_column: int) -> None:
        super().__init__()
        if per_column < 2 or per_column % 2:
            raise ValueError(
                f"per_column={per_column}: Fourier features come in pairs of sine and cosine."
            )
        self.axes = tuple(grid.axis(name) for name in axes)
        self.waves = per_column // 2
        self.features = len(axes) * per_column
        self.fades = grid.polar and {"lat", "lon"} <= set(axes)

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n f"]:
        columns = []
        waves = torch.arange(1, self.waves + 1, dtype=x.dtype, device=x.device)
        waves = waves.view(-1, *[1] * (x.ndim - 1))
        for axis, coordinate in zip(self.axes, x.unbind(-1), strict=True):
            position = axis.position(coordinate)
            angle = (2 * math.pi * (position - position.floor())).to(x.dtype) * waves
            column = torch.cat([angle.sin(), angle.cos()])
            if self.fades and axis.name == "lon":
                lat = [axis.name for axis in self.axes].index("lat")
                column = column * polar_fade(x[..., lat], self.axes[lat].step)
            columns.append(column)
        return torch.cat(columns).movedim(0, -1)


class InputEmbedding(nn.Module):
    """Several embeddings, each of its own columns, concatenated and mixed by one linear map."""

    def __init__(self, parts: Sequence[tuple[Sequence[int], Embedding]], dim: int) -> None:
        super().__init__()
        self.columns = tuple(tuple(columns) for columns, _ in parts)
        self.parts = nn.ModuleList(part for _, part in parts)
        self.mix = nn.Linear(sum(part.features for _, part in parts), dim)

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n dz"]:
        return self.mix(self.features(x))

    def fused_with(self, linear: nn.Linear) -> Linear:
        """`linear` on (embedding, values) as one linear map on (features, values)."""
        dim = self.mix.out_features
        embedding, values = linear.weight[:, :dim], linear.weight[:, dim:]
        weight = torch.cat([embedding @ self.mix.weight, values], 1)
        return Linear(weight, torch.addmv(linear.bias, embedding, self.mix.bias))

    def features(self, x: Float[Tensor, "*n d"], *values: Tensor) -> Float[Tensor, "*n f"]:
        """The features before mixing, with `values` appended."""
        pairs = zip(self.columns, self.parts, strict=True)
        features = [part(_columns(x, columns)) for columns, part in pairs]
        # The embeddings return feature-major memory; joining along it avoids a transposed copy.
        joined = torch.cat([f.movedim(-1, 0) for f in (*features, *values)])
        return joined.movedim(0, -1).to(self.mix.weight.dtype)


def _columns(x: Float[Tensor, "*n d"], columns: tuple[int, ...]) -> Float[Tensor, "*n _"]:
    """Some columns, without a copy if they lie side by side."""
    first = columns[0] if columns else 0
    if columns == tuple(range(first, first + len(columns))):
        return x[..., first : first + len(columns)]
    return x[..., list(columns)]
