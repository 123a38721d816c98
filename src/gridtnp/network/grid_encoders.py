"""Grid encoders: from tokens anywhere to one token per grid point (section 4.1, appendix B).

Tokens come in pieces, so that sets of any size are encoded in bounded memory. The result does not
depend on how they are split.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gridtnp import ops
from gridtnp.grid import Grid
from gridtnp.network.layers import AttentionBlock
from gridtnp.task import TokenSet


class GridEncoder(nn.Module, ABC):
    """Encodes a set of tokens, given in one or more pieces, onto `grid`."""

    grid: Grid

    @abstractmethod
    def forward(self, pieces: Iterable[TokenSet]) -> Float[Tensor, "batch *grid dz"]: ...


class PseudoTokens(nn.Module):
    """Learned initial tokens of a grid, shared along the axes in `shared`.

    Sharing along all axes gives the single token of voxel-based set attention.
    """

    def __init__(self, grid: Grid, dim: int, *, shared: Sequence[str] = ()) -> None:
        super().__init__()
        unknown = set(shared) - set(grid.names)
        if unknown:
            raise ValueError(
                f"Pseudo-tokens cannot be shared along {sorted(unknown)}; the grid's axes are "
                f"{grid.names}."
            )
        self.cells = grid.shape
        sizes = [1 if axis.name in shared else axis.size for axis in grid.axes]
        self.values = nn.Parameter(torch.randn(*sizes, dim))

    def forward(self) -> Float[Tensor, "1 m dz"]:
        return self.values.expand(*self.cells, -1).flatten(0, -2).unsqueeze(0)


class PseudoTokenGridEncoder(GridEncoder):
    """Each pseudo-token attends to the tokens of its cell and to itself (eq. 5).

    Each token belongs to the nearest `width` cells per axis. Attending to itself gives the
    pseudo-token of an empty cell something to attend to.
    """

    def __init__(
        self, grid: Grid, *, dim: int, heads: int, width: Sequence[int], shared: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.grid = grid
        self.width = grid.per_axis(width, "cells per point")
        self.pseudo_tokens = PseudoTokens(grid, dim, shared=shared)
        self.block = AttentionBlock(dim, heads)

    def forward(self, pieces: Iterable[TokenSet]) -> Float[Tensor, "batch *grid dz"]:
        pseudo_tokens = self.pseudo_tokens()
        query = self.block.queries(pseudo_tokens)
        key, attended = self.block.keys_values(pseudo_tokens)
        logit = (query * key).sum(-1) * query.shape[-1] ** -0.5
        for tokens in pieces:
            cell, valid = cells_of(tokens, self.grid, self.width)
            keys_values = self.block.keys_values(tokens.z)
            attended, logit = ops.cell_attention(query, *keys_values, logit, attended, cell, valid)
        return self.block.update(pseudo_tokens, attended).unflatten(1, self.grid.shape)


class MeanGridEncoder(GridEncoder):
    """A learned token per grid point plus the mean of the tokens in its cell (Avg-GE)."""

    def __init__(self, grid: Grid, *, dim: int, shared: Sequence[str] = ()) -> None:
        super().__init__()
        self.grid = grid
        self.pseudo_tokens = PseudoTokens(grid, dim, shared=shared)

    def forward(self, pieces: Iterable[TokenSet]) -> Float[Tensor, "batch *grid dz"]:
        total, count = 0.0, 0.0
        for tokens in pieces:
            cell, valid = cells_of(tokens, self.grid, (1,) * len(self.grid.axes))
            one = valid.to(torch.promote_types(tokens.z.dtype, torch.float32))
            total = total + ops.cell_sum(tokens.z, cell, one, self.grid.size)
            count = count + ops.cell_sum(torch.ones_like(one), cell, one, self.grid.size)
        assert isinstance(total, Tensor)
        assert isinstance(count, Tensor)
        mean = total / count.clamp_min(1.0).to(total.dtype)
        return (self.pseudo_tokens() + mean).unflatten(1, self.grid.shape)


class KernelGridEncoder(GridEncoder):
    """Kernel interpolation of the tokens onto the grid (eq. 8; KI-GE, SetConv).

    Each token contributes to the nearest `width` grid points per axis, or to all of them if `width`
    is None.
    """

    def __init__(
        self, grid: Grid, *, length_scale: float | Sequence[float], width: Sequence[int] | None
    ) -> None:
        super().__init__()
        self.grid = grid
        self.width = None if width is None else grid.per_axis(width, "cells per point")
        self.kernel = SEKernel(grid, length_scale)

    def forward(self, pieces: Iterable[TokenSet]) -> Float[Tensor, "batch *grid dz"]:
        u = sum(self._sum(tokens) for tokens in pieces)
        assert isinstance(u, Tensor)
        return u.unflatten(1, self.grid.shape)

    def _sum(self, tokens: TokenSet) -> Float[Tensor, "batch m dz"]:
        if self.width is None:
            nodes = self.grid.points(tokens.x.device, tokens.x.dtype).flatten(0, -2)
            weight = self.kernel(nodes[:, None], tokens.x[:, None])
            if tokens.mask is not None:
                weight = weight * tokens.mask[:, None]
            return torch.bmm(weight.to(tokens.z.dtype), tokens.z)
        cell, valid = cells_of(tokens, self.grid, self.width)
        nodes = self.grid.points_at(cell, tokens.x.dtype)
        weight = self.kernel(nodes, tokens.x.unsqueeze(2)) * valid
        return ops.cell_sum(tokens.z, cell, weight, self.grid.size)


class SEKernel(nn.Module):
    """exp(-Σ d² / 2ℓ²) with a learned length-scale ℓ per component of the grid's distance.

    The parameter is log(ℓ / initial ℓ), so that learning rate and weight decay do not depend on
    units.
    """

    def __init__(self, grid: Grid, length_scale: float | Sequence[float]) -> None:
        super().__init__()
        names = grid.components
        initial = (
            [length_scale] * len(names)
            if isinstance(length_scale, float | int)
            else list(length_scale)
        )
        if len(initial) != len(names) or min(initial) <= 0:
            raise ValueError(
                f"Length-scales {initial} do not fit the distance components {names}; give one "
                "positive number, or one per component."
            )
        self.grid = grid
        self.initial = tuple(initial)
        self.log_ratio = nn.Parameter(torch.zeros(len(names)))

    @property
    def length_scales(self) -> dict[str, float]:
        """The current length-scales, in the units of the grid's distance."""
        ratios = self.log_ratio.detach().double().exp().tolist()
        return {
            n: i * r for n, i, r in zip(self.grid.components, self.initial, ratios, strict=True)
        }

    def forward(
        self, a: Float[Tensor, "*#n dx"], b: Float[Tensor, "*#n dx"]
    ) -> Float[Tensor, "*_n"]:
        initial = torch.tensor(self.initial, dtype=a.dtype, device=a.device)
        scaled = self.grid.distance(a, b) / (initial * self.log_ratio.to(a.dtype).exp())
        return torch.exp(-0.5 * scaled.square().sum(-1))


def cells_of(
    tokens: TokenSet, grid: Grid, width: Sequence[int]
) -> tuple[Int[Tensor, "batch n k"], Bool[Tensor, "batch n k"]]:
    """The cells that each token belongs to, and which of these entries are valid."""
    cell, valid = grid.neighbours(tokens.x, width)
    return cell, valid if tokens.mask is None else valid & tokens.mask.unsqueeze(-1)
