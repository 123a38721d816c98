"""Smooth grid decoders: predictions are continuous functions of the target's location.

They are the decoders of `grid_decoders` with neighbours that fade in and out (`stencils`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gridtnp import ops
from gridtnp.config import Positions
from gridtnp.grid import Grid
from gridtnp.network.grid_decoders import GridDecoder
from gridtnp.network.grid_encoders import SEKernel
from gridtnp.network.layers import AttentionBlock
from gridtnp.network.stencils import OffsetKeys, Stencil, stencil, stencil_points, with_poles
from gridtnp.task import TokenSet


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
        around = {g: stencil(g, targets.x, self.width) for g in dict.fromkeys(self.grids)}
        features = {grid: near.features() for grid, near in around.items()}
        z = targets.z
        for layer, (grid, keys_values) in enumerate(zip(self.grids, prepared, strict=True)):
            attend = partial(self._attend, layer, around[grid], features[grid])
            z = self.blocks[layer](z, keys_values, attend)
        return z

    def _attend(
        self,
        layer: int,
        near: Stencil,
        features: Sequence[Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
    ) -> Tensor:
        bias = near.log_weight.to(query.dtype).unsqueeze(-1)
        if self.places:
            keys = self.places[layer](query, features)
            bias = bias + F.pad(keys, (0, 0, 0, near.poles))
        bias = bias.expand(-1, -1, -1, query.shape[-2])
        return ops.neighbour_attention(query, key, value, near.index, near.valid, bias)


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
