"""Grid processors: transform the grid of tokens, returning the output of each layer (section 4.2).

With patches, pooling or a hierarchy, layers live on coarser grids than the input: `grids` has the
grid of each layer's output. Decoders read the outputs in order.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gridtnp import ops
from gridtnp.config import Positions
from gridtnp.grid import Grid, divisors
from gridtnp.network.layers import AttentionBlock


class GridProcessor(nn.Module, ABC):
    """`grids[l]` is the grid of the l-th output."""

    grids: tuple[Grid, ...]

    @abstractmethod
    def forward(self, u: Float[Tensor, "batch *grid dz"]) -> list[Tensor]: ...


class ViTProcessor(GridProcessor):
    """Full self-attention among all grid points, after merging patches if `patch` is given."""

    def __init__(
        self, grid: Grid, *, dim: int, heads: int, layers: int, patch: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        coarse = grid if patch is None else grid.coarsen(patch)
        self.patches = nn.Identity() if patch is None else PatchMerge(patch, dim)
        self.blocks = nn.ModuleList(AttentionBlock(dim, heads) for _ in range(layers))
        self.grids = (coarse,) * layers

    def forward(self, u: Float[Tensor, "batch *grid dz"]) -> list[Tensor]:
        u = self.patches(u).flatten(1, -2)
        outputs = []
        for block in self.blocks:
            u = block(u, None, ops.full_attention)
            outputs.append(u)
        return [u.unflatten(1, grid.shape) for u, grid in zip(outputs, self.grids, strict=True)]


class WindowBias(nn.Module):
    """Relative position bias: a learned logit per head and offset within a window, initially 0."""

    def __init__(self, window: Sequence[int], heads: int) -> None:
        super().__init__()
        steps = torch.stack(
            torch.meshgrid(*(torch.arange(w) for w in window), indexing="ij"), -1
        ).flatten(0, -2)
        offset = steps[:, None] - steps[None]  # (w, w, axes)
        flat = torch.zeros(offset.shape[:2], dtype=torch.long)
        for w, along in zip(window, offset.unbind(-1), strict=True):
            flat = flat * (2 * w - 1) + along + w - 1
        self.offset = nn.Buffer(flat, persistent=False)
        self.table = nn.Parameter(torch.zeros(heads, math.prod(2 * w - 1 for w in window)))

    def forward(self) -> Float[Tensor, "heads w w"]:
        return self.table[:, self.offset]


class SwinLayer(nn.Module):
    """Attention within windows, then within shifted windows.

    Both passes use the same weights unless `untied`. Relative positions add a `WindowBias`.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        dim: int,
        heads: int,
        window: Sequence[int],
        shift: Sequence[int],
        untied: bool = False,
        positions: Positions = "absolute",
    ) -> None:
        super().__init__()
        self.window, self.shift = check_windows(grid, window, shift)
        self.periodic = grid.periodic
        self.blocks = nn.ModuleList(AttentionBlock(dim, heads) for _ in range(2 if untied else 1))
        self.bias = WindowBias(self.window, heads) if positions == "relative" else None

    def forward(self, u: Float[Tensor, "batch *grid dz"]) -> Float[Tensor, "batch *grid dz"]:
        bias = None if self.bias is None else self.bias()
        bound = partial(ops.window_attention, window=self.window, periodic=self.periodic, bias=bias)
        u = self.blocks[0](u, None, partial(bound, shift=(0,) * len(self.shift)))
        return self.blocks[-1](u, None, partial(bound, shift=self.shift))


class SwinProcessor(GridProcessor):
    """`layers` Swin layers on one grid; the cost is linear in the number of grid points."""

    def __init__(
        self,
        grid: Grid,
        *,
        dim: int,
        heads: int,
        layers: int,
        window: Sequence[int],
        shift: Sequence[int],
        untied: bool = False,
        positions: Positions = "absolute",
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            SwinLayer(
                grid,
                dim=dim,
                heads=heads,
                window=window,
                shift=shift,
                untied=untied,
                positions=positions,
            )
            for _ in range(layers)
        )
        self.grids = (grid,) * layers

    def forward(self, u: Float[Tensor, "batch *grid dz"]) -> list[Tensor]:
        outputs = []
        for layer in self.layers:
            u = layer(u)
            outputs.append(u)
        return outputs


class HierarchicalSwinProcessor(GridProcessor):
    """Swin layers on a pyramid of grids, down and up again, with skip connections.

    `stages` is the number of layers per level on the way down; the way up has as many on all but
    the coarsest. Each level merges patches of `merge` grid points per axis.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        dim: int,
        heads: int,
        stages: Sequence[int],
        window: Sequence[int],
        shift: Sequence[int],
        merge: Sequence[int],
        positions: Positions = "absolute",
    ) -> None:
        super().__init__()
        pyramid = [grid]
        for _ in stages[1:]:
            pyramid.append(pyramid[-1].coarsen(merge))

        def stage(level: int) -> nn.ModuleList:
            return nn.ModuleList(
                SwinLayer(
                    pyramid[level],
                    dim=dim,
                    heads=heads,
                    window=window,
                    shift=shift,
                    positions=positions,
                )
                for _ in range(stages[level])
            )

        levels = range(len(stages))
        self.down = nn.ModuleList(stage(level) for level in levels)
        self.up = nn.ModuleList(stage(level) for level in reversed(levels[:-1]))
        self.merges = nn.ModuleList(PatchMerge(merge, dim) for _ in levels[1:])
        self.splits = nn.ModuleList(PatchSplit(merge, dim) for _ in levels[1:])
        self.skips = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in levels[1:])
        order = [*levels, *reversed(levels[:-1])]
        self.grids = tuple(pyramid[level] for level in order for _ in range(stages[level]))

    def forward(self, u: Float[Tensor, "batch *grid dz"]) -> list[Tensor]:
        outputs: list[Tensor] = []
        skipped: list[Tensor] = []
        for level, stage in enumerate(self.down):
            if level > 0:
                skipped.append(u)
                u = self.merges[level - 1](u)
            for layer in stage:  # pyright: ignore[reportGeneralTypeIssues]
                u = layer(u)
                outputs.append(u)
        for stage, split, skip in zip(self.up, self.splits, self.skips, strict=True):
            u = skip(torch.cat([skipped.pop(), split(u)], -1))
            for layer in stage:  # pyright: ignore[reportGeneralTypeIssues]
                u = layer(u)
                outputs.append(u)
        return outputs


class CNNProcessor(GridProcessor):
    """`layers` ReLUs, each followed by a convolution, as in the paper's ConvCNP for GPs."""

    def __init__(self, grid: Grid, *, dim: int, layers: int, kernel: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            GridConvolution(grid, dim, dim, kernel) for _ in range(layers)
        )
        self.grids = (grid,) * layers

    def forward(self, u: Float[Tensor, "batch *grid dz"]) -> list[Tensor]:
        outputs = []
        for convolution in self.convolutions:
            u = convolution(F.relu(u))
            outputs.append(u)
        return outputs


class UNetProcessor(GridProcessor):
    """A U-Net with `depth` poolings: a ReLU and a convolution per level on the way down and up."""

    def __init__(self, grid: Grid, *, dim: int, depth: int, kernel: int) -> None:
        super().__init__()
        pyramid = [grid]
        for _ in range(depth):
            pyramid.append(pyramid[-1].coarsen([2] * len(grid.axes)))
        self.down = nn.ModuleList(GridConvolution(g, dim, dim, kernel) for g in pyramid)
        self.up = nn.ModuleList(
            GridConvolution(g, 2 * dim, dim, kernel) for g in reversed(pyramid[:-1])
        )
        self.grids = (*pyramid, *reversed(pyramid[:-1]))
        self.periodic = grid.periodic

    def forward(self, u: Float[Tensor, "batch *grid dz"]) -> list[Tensor]:
        outputs: list[Tensor] = []
        skipped: list[Tensor] = []
        for level, convolution in enumerate(self.down):
            if level > 0:
                skipped.append(u)
                u = max_pool(u)
            u = convolution(F.relu(u))
            outputs.append(u)
        for convolution in self.up:
            both = torch.cat([skipped.pop(), upsample(u, self.periodic)], -1)
            u = convolution(F.relu_(both))
            outputs.append(u)
        return outputs


class PatchMerge(nn.Module):
    """Patch encoding: a linear map of each patch of grid points to one token."""

    def __init__(self, patch: Sequence[int], dim: int) -> None:
        super().__init__()
        self.patch = tuple(patch)
        self.linear = nn.Linear(math.prod(self.patch) * dim, dim)

    def forward(self, u: Float[Tensor, "batch *grid dz"]) -> Float[Tensor, "batch *coarse dz"]:
        split = [u.shape[0]]
        for size, p in zip(u.shape[1:-1], self.patch, strict=True):
            split += [size // p, p]
        axes = len(self.patch)
        u = u.reshape(*split, u.shape[-1])
        u = u.permute(0, *range(1, 2 * axes, 2), *range(2, 2 * axes + 1, 2), 2 * axes + 1)
        return self.linear(u.flatten(axes + 1))


class PatchSplit(nn.Module):
    """The reverse of `PatchMerge`: a linear map of each token to a patch of grid points."""

    def __init__(self, patch: Sequence[int], dim: int) -> None:
        super().__init__()
        self.patch = tuple(patch)
        self.linear = nn.Linear(dim, math.prod(self.patch) * dim)

    def forward(self, u: Float[Tensor, "batch *coarse dz"]) -> Float[Tensor, "batch *grid dz"]:
        axes = len(self.patch)
        fine = [size * p for size, p in zip(u.shape[1:-1], self.patch, strict=True)]
        dim = u.shape[-1]
        u = self.linear(u).unflatten(-1, (*self.patch, dim))
        order = [0]
        for axis in range(axes):
            order += [1 + axis, 1 + axes + axis]
        return u.permute(*order, 1 + 2 * axes).reshape(u.shape[0], *fine, dim)


class GridConvolution(nn.Module):
    """A convolution in one to three dimensions, padded to keep the grid's size.

    The padding is circular on periodic axes and zero elsewhere. On the CPU, channels come first in
    memory, which oneDNN computes faster than channels last.
    """

    def __init__(self, grid: Grid, dim_in: int, dim_out: int, kernel: int) -> None:
        super().__init__()
        if len(grid.axes) > 3:
            raise ValueError(
                f"The grid has {len(grid.axes)} axes, but convolutions take one to three; use Swin "
                "or ViT."
            )
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"kernel={kernel}: must be a positive odd number.")
        self.periodic = grid.periodic
        self.margin = kernel // 2
        padding: Any = tuple(0 if wraps else self.margin for wraps in grid.periodic)
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(grid.axes) - 1]
        self.convolution = kind(dim_in, dim_out, kernel, padding=padding)

    def forward(self, u: Float[Tensor, "batch *grid dz"]) -> Float[Tensor, "batch *grid dw"]:
        u = u.movedim(-1, 1)
        for axis, wraps in enumerate(self.periodic, start=2):
            if wraps:  # unlike F.pad, this allows a margin larger than the axis
                size = u.shape[axis]
                index = torch.arange(-self.margin, size + self.margin, device=u.device)
                u = u.index_select(axis, index.remainder(size))
        if u.is_cpu:
            u = u.contiguous()
        return self.convolution(u).movedim(1, -1)


def max_pool(u: Tensor) -> Tensor:
    """Max-pooling of two grid points per axis."""
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[u.ndim - 3]
    return pool(u.movedim(-1, 1), 2).movedim(1, -1)


def upsample(u: Tensor, periodic: Sequence[bool]) -> Tensor:
    """Linear upsampling by two, aligned to cell centres and circular on periodic axes."""
    mode = ("linear", "bilinear", "trilinear")[len(periodic) - 1]
    u = u.movedim(-1, 1)
    for axis, wraps in enumerate(periodic, start=2):
        size = u.shape[axis]
        index = torch.arange(-1, size + 1, device=u.device)
        u = u.index_select(axis, index.remainder(size) if wraps else index.clamp(0, size - 1))
    u = F.interpolate(u, scale_factor=2.0, mode=mode, align_corners=False)
    for axis in range(2, u.ndim):
        u = u.narrow(axis, 2, u.shape[axis] - 4)
    return u.movedim(1, -1)


def check_windows(
    grid: Grid, window: Sequence[int], shift: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Raise unless windows and shifts fit the grid."""
    window, shift = grid.per_axis(window, "window sides"), grid.per_axis(shift, "window shifts")
    for axis, w, s in zip(grid.axes, window, shift, strict=True):
        if w < 1 or axis.size % w:
            raise ValueError(
                f"Window side {w} does not divide axis {axis.name!r} of {axis.size} grid points; "
                f"choose one of {divisors(axis.size)} or another size for the axis."
            )
        if not 0 <= s < w:
            raise ValueError(
                f"Shift {s} along axis {axis.name!r} is outside 0 to {w - 1}; it must be smaller "
                f"than the window side {w}."
            )
    return window, shift
