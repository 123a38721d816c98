"""Grid decoders: from the grids of all layers to target tokens (section 4.3, appendix C).

Those called smooth have neighbours that fade in and out, so that predictions are continuous
functions of the target's location.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gridtnp import ops
from gridtnp.config import Positions
from gridtnp.grid import Grid
from gridtnp.network.grid_encoders import SEKernel
from gridtnp.network.layers import Attend, AttentionBlock, OffsetKeys
from gridtnp.stencils import Stencil, stencil, stencil_points, with_poles
from gridtnp.task import TokenSet


class GridDecoder(nn.Module, ABC):
    """Reads the processor's outputs; `grids[l]` is the grid of the l-th."""

    grids: tuple[Grid, ...]

    @abstractmethod
    def prepare(self, layers: Sequence[Tensor]) -> list[Any]:
        """What `forward` needs of the layers, computed once for any number of targets."""

    @abstractmethod
    def forward(self, targets: TokenSet, prepared: list[Any]) -> Float[Tensor, "batch n dz"]: ...


class AttentionGridDecoder(GridDecoder):
    """Target tokens attend to the grid of each layer, with separate weights per layer (eq. 6).

    They attend to the nearest `width` grid points per axis (the paper's NN-CA), or to the entire
    grid if `width` is None.
    """

    def __init__(
        self,
        grids: Sequence[Grid],
        *,
        dim: int,
        heads: int,
        width: Sequence[int] | None,
        positions: Positions = "absolute",
    ) -> None:
        super().__init__()
        self.grids = tuple(grids)
        self.width = None if width is None else grids[0].per_axis(width, "neighbourhood widths")
        self.blocks = nn.ModuleList(AttentionBlock(dim, heads) for _ in grids)
        self.places = nn.ModuleList()
        if positions == "relative":
            if self.width is None:
                raise ValueError(
                    "Full attention has no relative positions; use a neighbour decoder."
                )
            neighbours = math.prod(self.width)
            self.places.extend(NeighbourKeys(neighbours, heads, dim // heads) for _ in grids)

    def prepare(self, layers: Sequence[Tensor]) -> list[Any]:
        """Keys and values of each layer."""
        pairs = zip(self.blocks, layers, strict=True)
        return [cast(AttentionBlock, block).keys_values(u.flatten(1, -2)) for block, u in pairs]

    def forward(self, targets: TokenSet, prepared: list[Any]) -> Float[Tensor, "batch n dz"]:
        attend = {grid: self._attend(grid, targets.x) for grid in dict.fromkeys(self.grids)}
        z = targets.z
        for layer, (grid, keys_values) in enumerate(zip(self.grids, prepared, strict=True)):
            layer_attend = attend[grid]
            if self.places:
                layer_attend = partial(self._attend_with_bias, layer, layer_attend)
            z = self.blocks[layer](z, keys_values, layer_attend)
        return z

    def _attend_with_bias(
        self, layer: int, attend: Any, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        return attend(query, key, value, bias=self.places[layer](query))

    def _attend(self, grid: Grid, x: Float[Tensor, "batch n dx"]) -> Attend:
        if self.width is None:
            return ops.full_attention
        index, valid = ops.neighbours(x, grid, self.width)
        return partial(ops.neighbour_attention, index=index, valid=valid)


class NeighbourKeys(nn.Module):
    """A learned key for each neighbour's position relative to the target, shared by all targets.

    The target token encodes the position within its cell, so attention can depend on distance.
    """

    def __init__(self, neighbours: int, heads: int, dim: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.zeros(neighbours, heads, dim))

    def forward(self, query: Float[Tensor, "batch n heads dh"]) -> Float[Tensor, "batch n k heads"]:
        return torch.einsum("bnhd,khd->bnkh", query, self.keys) * query.shape[-1] ** -0.5


class KernelGridDecoder(GridDecoder):
    """Kernel interpolation of the last grid at the targets (appendix A).

    It sums over the nearest `width` grid points per axis, or over all of them if `width` is None.
    """

    def __init__(
        self,
        grids: Sequence[Grid],
        *,
        length_scale: float | Sequence[float],
        width: Sequence[int] | None,
    ) -> None:
        super().__init__()
        self.grids = tuple(grids)
        self.grid = self.grids[-1]
        self.width = None if width is None else self.grid.per_axis(width, "neighbourhood widths")
        self.kernel = SEKernel(self.grid, length_scale)

    def prepare(self, layers: Sequence[Tensor]) -> list[Any]:
        """The grid of the last layer."""
        return [layers[-1].flatten(1, -2)]

    def forward(self, targets: TokenSet, prepared: list[Any]) -> Float[Tensor, "batch n dz"]:
        (u,) = prepared
        if self.width is None:
            rows = self.grid.as_rows(u.unflatten(1, self.grid.shape))
            return ops.kernel_from_grid(rows, *self.kernel.split(targets.x, u.dtype))
        x = targets.x.unsqueeze(2)
        index, valid = ops.neighbours(targets.x, self.grid, self.width)
        weight = self.kernel(x, self.grid.points_at(index, targets.x.dtype)) * valid
        weight = weight.to(u.dtype)
        element = torch.arange(u.shape[0], device=u.device).view(-1, 1, 1)
        return torch.einsum("bnk,bnkd->bnd", weight, u[element, index])


class SmoothAttentionGridDecoder(GridDecoder):
    """Target tokens attend to the grid points around them, whose weights fade in and out.

    The logarithm of the weight is added to the logits. Relative positions add learned functions of
    the offset.
    """

    def __init__(
        self,
        grids: Sequence[Grid],
        *,
        dim: int,
        heads: int,
        width: Sequence[int],
        positions: Positions = "absolute",
    ) -> None:
        super().__init__()
        self.grids = tuple(grids)
        self.width = grids[0].per_axis(width, "neighbourhood widths")
        self.blocks = nn.ModuleList(AttentionBlock(dim, heads) for _ in grids)
        self.places = nn.ModuleList()
        if positions == "relative":
            self.places.extend(OffsetKeys(len(self.width), heads, dim // heads) for _ in grids)

    def prepare(self, layers: Sequence[Tensor]) -> list[Any]:
        """Keys and values of each layer, and of its poles."""
        triples = zip(self.blocks, self.grids, layers, strict=True)
        return [
            cast(AttentionBlock, block).keys_values(with_poles(grid, u.flatten(1, -2)))
            for block, grid, u in triples
        ]

    def forward(self, targets: TokenSet, prepared: list[Any]) -> Float[Tensor, "batch n dz"]:
        around = {g: self._around(g, targets) for g in dict.fromkeys(self.grids)}
        z = targets.z
        for layer, (grid, keys_values) in enumerate(zip(self.grids, prepared, strict=True)):
            z = self.blocks[layer](z, keys_values, partial(self._attend, layer, *around[grid]))
        return z

    def _around(self, grid: Grid, targets: TokenSet) -> tuple[Stencil, Tensor, Tensor]:
        """The nodes around targets; logarithms of weights and features as exact as sums are."""
        near = stencil(grid, targets.x, self.width)
        exact = torch.promote_types(targets.z.dtype, torch.float32)
        return near, near.log_weight.to(exact), near.features.to(exact)

    def _attend(
        self,
        layer: int,
        near: Stencil,
        log_weight: Tensor,
        features: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
    ) -> Tensor:
        if self.places:
            keys = cast(OffsetKeys, self.places[layer]).keys
            arguments = (near.index, log_weight, features, keys, near.nodes)
            return ops.stencil_attention(query, key, value, *arguments)
        bias = log_weight.unsqueeze(-1).expand(-1, -1, -1, query.shape[-2])
        return ops.neighbour_attention(query, key, value, near.index, log_weight > -torch.inf, bias)


class SmoothKernelGridDecoder(GridDecoder):
    """Kernel interpolation of the last grid at the targets, tapered to zero around them."""

    def __init__(
        self, grids: Sequence[Grid], *, length_scale: float | Sequence[float], width: Sequence[int]
    ) -> None:
        super().__init__()
        self.grids = tuple(grids)
        self.grid = self.grids[-1]
        self.width = self.grid.per_axis(width, "neighbourhood widths")
        self.kernel = SEKernel(self.grid, length_scale)

    def prepare(self, layers: Sequence[Tensor]) -> list[Any]:
        """The grid of the last layer, and its poles."""
        return [with_poles(self.grid, layers[-1].flatten(1, -2))]

    def forward(self, targets: TokenSet, prepared: list[Any]) -> Float[Tensor, "batch n dz"]:
        (u,) = prepared
        near = stencil(self.grid, targets.x, self.width)
        points = stencil_points(self.grid, targets.x, near)
        weight = (self.kernel(targets.x.unsqueeze(2), points) * near.weight).to(u.dtype)
        element = torch.arange(u.shape[0], device=u.device).view(-1, 1, 1)
        return torch.einsum("bnk,bnkd->bnd", weight, u[element, near.index])
