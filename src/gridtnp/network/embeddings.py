"""Coordinates to features a network can tell apart. Nothing here is learned but one linear map at
the end.

An `Embedding` turns some columns of a point's coordinates into features; `InputEmbedding` applies
several, each to its own columns, and mixes them to one vector per point. All sources and the
targets share it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gridtnp.grid import Grid
from gridtnp.ops.rows import Linear


class Embedding(nn.Module, ABC):
    """A fixed map of columns to `features` numbers per point."""

    features: int

    @abstractmethod
    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n f"]: ...


class RawEmbedding(Embedding):
    """The numbers as they are: for covariates that come normalised."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.features = columns

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n f"]:
        return x


class FourierEmbedding(Embedding):
    """Per column, sines and cosines at log-spaced wavelengths (appendix E).

    Of space or of time alike.
    """

    def __init__(self, columns: int, *, per_column: int, shortest: float, longest: float) -> None:
        super().__init__()
        if per_column < 2 or per_column % 2:
            raise ValueError(
                f"Fourier features come in pairs of sine and cosine, got {per_column} per "
                "coordinate."
            )
        if not 0 < shortest < longest:
            raise ValueError(
                f"Wavelengths must be positive and increasing, got {shortest} to {longest}."
            )
        self.features = columns * per_column
        log = torch.linspace(
            math.log(shortest), math.log(longest), per_column // 2, dtype=torch.float64
        )
        self.frequencies = tuple((1 / log.exp()).tolist())

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n f"]:
        exact = torch.float32 if x.device.type == "mps" else torch.float64
        frequency = torch.tensor(self.frequencies, dtype=exact, device=x.device)
        turns = x.to(exact).movedim(-1, 0).unsqueeze(1) * frequency.view(-1, *[1] * (x.ndim - 1))
        angle = ((turns - turns.floor()) * (2 * math.pi)).to(
            torch.promote_types(x.dtype, torch.float32)
        )
        return torch.cat([angle.sin(), angle.cos()], 1).flatten(0, 1).movedim(0, -1)


class SphericalHarmonics(Embedding):
    """Real orthonormal spherical harmonics of (latitude, longitude) in degrees, `degrees`² of them.

    Columns go through degree l = 0, 1, … and order m = -l … l. Legendre functions come from the
    stable three-term recurrence in the degree, so any number of degrees works.
    """

    def __init__(self, degrees: int) -> None:
        super().__init__()
        if degrees < 1:
            raise ValueError(f"Spherical harmonics need at least one degree, got {degrees}.")
        self.degrees = degrees
        self.features = degrees**2

    def forward(self, x: Float[Tensor, "*n 2"]) -> Float[Tensor, "*n f"]:
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        lat, lon = torch.deg2rad(x).unbind(-1)
        # The polar angle is counted from the north pole.
        cos_polar, sin_polar = lat.sin(), lat.cos()
        order = torch.arange(1, self.degrees, dtype=x.dtype, device=x.device)
        turns = lon * order.view(-1, *[1] * lon.ndim)
        sines, cosines = math.sqrt(2) * turns.sin(), math.sqrt(2) * turns.cos()
        # Rows are orders m = 0 … degree: all of them go up one degree at once.
        before = lat.new_zeros((0, *lat.shape))
        legendre = torch.full_like(lat, math.sqrt(1 / (4 * math.pi))).unsqueeze(0)
        columns = [legendre]
        for degree in range(1, self.degrees):
            up, down = self._recurrence(degree, x)
            up, down = (c.view(-1, *[1] * lat.ndim) for c in (up, down))
            last = legendre[-1:] * sin_polar * math.sqrt((2 * degree + 1) / (2 * degree))
            inner = up * cos_polar * legendre
            if degree > 1:
                inner = torch.cat([inner[:-1] - up[:-1] * down * before, inner[-1:]])
            before, legendre = legendre, torch.cat([inner, last])
            sine, cosine = sines[:degree], cosines[:degree]
            columns += [(legendre[1:] * sine).flip(0), legendre[:1], legendre[1:] * cosine]
        return torch.cat(columns).movedim(0, -1)

    @staticmethod
    def _recurrence(degree: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients of the two lower degrees, for the orders that have them."""
        up = [math.sqrt((4 * degree**2 - 1) / (degree**2 - m**2)) for m in range(degree)]
        down = [
            math.sqrt(((degree - 1) ** 2 - m**2) / (4 * (degree - 1) ** 2 - 1))
            for m in range(degree - 1)
        ]
        return like.new_tensor(up), like.new_tensor(down)


class CellEmbedding(Embedding):
    """Where a point lies inside its grid cell, axis by axis, as Fourier features; the same in every
    cell.

    Models whose inputs are relative in this way and whose pseudo-tokens are shared treat all places
    alike.
    """

    def __init__(self, grid: Grid, axes: Sequence[str], *, per_column: int) -> None:
        super().__init__()
        self.grid = Grid(tuple(grid.axis(name) for name in axes))
        self.waves = FourierEmbedding(len(axes), per_column=per_column, shortest=0.5, longest=4.0)
        self.features = self.waves.features

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n f"]:
        return self.waves(self.grid.inside(x))


class InputEmbedding(nn.Module):
    """Several embeddings, each of its own columns, side by side and mixed by one linear map."""

    def __init__(self, parts: Sequence[tuple[Sequence[int], Embedding]], dim: int) -> None:
        super().__init__()
        self.columns = tuple(tuple(columns) for columns, _ in parts)
        self.parts = nn.ModuleList(part for _, part in parts)
        self.mix = nn.Linear(sum(part.features for _, part in parts), dim)

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n dz"]:
        return self.mix(self.features(x))

    def into(self, linear: nn.Linear) -> Linear:
        """What `linear` makes of (embedding, values), from (features, values): two linear maps in a
        row are one.
        """
        dim = self.mix.out_features
        place, values = linear.weight[:, :dim], linear.weight[:, dim:]
        weight = torch.cat([place @ self.mix.weight, values], 1)
        return Linear(weight, torch.addmv(linear.bias, place, self.mix.bias))

    def features(self, x: Float[Tensor, "*n d"], *values: Tensor) -> Float[Tensor, "*n f"]:
        """What is mixed, and values beside it."""
        pairs = zip(self.columns, self.parts, strict=True)
        features = [part(x[..., list(columns)]) for columns, part in pairs]
        # One feature after the other in memory: that is how they are made.
        joined = torch.cat([f.movedim(-1, 0) for f in (*features, *values)])
        return joined.movedim(0, -1).to(self.mix.weight.dtype)
