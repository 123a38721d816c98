"""Grid decoders:

From the grid after every layer to a token at every target (section 4.3, appendix C).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gridtnp import ops
from gridtnp.grid import Grid
from gridtnp.grid_encoders import SEKernel
from gridtnp.layers import AttentionBlock
from gridtnp.task import TokenSet


class GridDecoder(nn.Module, ABC):
    """Reads the processor's outputs; `grids` tells where each of them lives."""

    grids: tuple[Grid, ...]

    @abstractmethod
    def forward(
        self, targets: TokenSet, layers: Sequence[Tensor]
    ) -> Float[Tensor, "batch n dz"]: ...


class NeighbourGridDecoder(GridDecoder):
    """Target tokens attend to the grid points around them, anew after every layer (eq.

    6; "NN-CA").
    """

    def __init__(
        self, grids: Sequence[Grid], *, dim: int, heads: int, width: Sequence[int]
    ) -> None:
        super().__init__()
        self.grids = tuple(grids)
        self.width = self.grids[0].per_axis(width, "neighbourhood widths")
        self.blocks = nn.ModuleList(AttentionBlock(dim, heads) for _ in grids)

    def forward(self, targets: TokenSet, layers: Sequence[Tensor]) -> Float[Tensor, "batch n dz"]:
        near = {grid: grid.neighbours(targets.x, self.width) for grid in dict.fromkeys(self.grids)}
        z = targets.z
        for block, grid, u in zip(self.blocks, self.grids, layers, strict=True):
            index, valid = near[grid]
            z = block(
                z, u.flatten(1, -2), partial(ops.neighbour_attention, index=index, valid=valid)
            )
        return z


class FullGridDecoder(GridDecoder):
    """Target tokens attend to the whole grid after every layer ("no NN-CA")."""

    def __init__(self, grids: Sequence[Grid], *, dim: int, heads: int) -> None:
        super().__init__()
        self.grids = tuple(grids)
        self.blocks = nn.ModuleList(AttentionBlock(dim, heads) for _ in grids)

    def forward(self, targets: TokenSet, layers: Sequence[Tensor]) -> Float[Tensor, "batch n dz"]:
        z = targets.z
        for block, u in zip(self.blocks, layers, strict=True):
            z = block(z, u.flatten(1, -2), ops.full_attention)
        return z


class KernelGridDecoder(GridDecoder):
    """The last grid, weighted by a squared-exponential kernel of the distance to each target
    (appendix A).

    Sums over the `width` grid points around the target, or over all of them (None).
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

    def forward(self, targets: TokenSet, layers: Sequence[Tensor]) -> Float[Tensor, "batch n dz"]:
        u = layers[-1].flatten(1, -2)
        place = targets.x.unsqueeze(2)
        if self.width is None:
            nodes = self.grid.points(targets.x.device, targets.x.dtype).flatten(0, -2)
            return torch.bmm(self.kernel(place, nodes).to(u.dtype), u)
        index, valid = self.grid.neighbours(targets.x, self.width)
        weight = (self.kernel(place, self.grid.points_at(index, targets.x.dtype)) * valid).to(
            u.dtype
        )
        element = torch.arange(u.shape[0], device=u.device).view(-1, 1, 1)
        return torch.einsum("bnk,bnkd->bnd", weight, u[element, index])
