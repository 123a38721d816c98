"""Grid encoders: from tokens anywhere to one token per grid point (section 4.1, appendix B).

Tokens come in pieces, so that sets of any size are encoded in bounded memory. The result does not
depend on how they are split. Encoders called smooth show each token to all grid points around it,
with weights that fade in and out, so that their results are continuous functions of its location.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gridtnp import ops
from gridtnp.grid import Grid
from gridtnp.network.layers import AttentionBlock, OffsetGates, OffsetLogits
from gridtnp.stencils import node_count, polar_rows, stencil, stencil_points, with_poles
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
        query, key, attended = self.block.projected(pseudo_tokens)
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
            split = self.kernel.split(tokens.x, tokens.z.dtype, tokens.mask)
            return self.grid.from_rows(ops.kernel_to_grid(tokens.z, *split)).flatten(1, -2)
        cell, valid = cells_of(tokens, self.grid, self.width)
        nodes = self.grid.points_at(cell, tokens.x.dtype)
        weight = self.kernel(nodes, tokens.x.unsqueeze(2)) * valid
        weight = weight.to(torch.promote_types(tokens.z.dtype, torch.float32))
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
        scaled = self.grid.distance(a, b) / self._scales(a)
        return torch.exp(-0.5 * scaled.square().sum(-1))

    def split(
        self,
        x: Float[Tensor, "batch n dx"],
        dtype: torch.dtype,
        mask: Bool[Tensor, "batch n"] | None = None,
    ) -> tuple[Float[Tensor, "batch n rows"], Float[Tensor, ""], ops.Away]:
        """What `ops.kernel_to_grid` and `ops.kernel_from_grid` need to know of the kernel.

        Points that the mask leaves out are infinitely far away.
        """
        exact = torch.promote_types(dtype, torch.float32)
        distances, rest = self.grid.split_distance(x)
        *scales, last = self._scales(x).unbind()
        rows = self.grid.size // self.grid.axes[self.grid.column].size
        apart = x.new_zeros(*x.shape[:-1], rows)
        for distance, scale in zip(distances, scales, strict=True):
            apart = apart + (distance / scale).square()
        if mask is not None:
            apart = apart.masked_fill(~mask.unsqueeze(-1), torch.inf)
        away = ops.Away(*(t.to(exact) for t in rest))
        return apart.to(exact), last.square().reciprocal().to(exact), away

    def _scales(self, like: Tensor) -> Tensor:
        initial = torch.tensor(self.initial, dtype=like.dtype, device=like.device)
        return initial * self.log_ratio.to(like.dtype).exp()


def cells_of(
    tokens: TokenSet, grid: Grid, width: Sequence[int]
) -> tuple[Int[Tensor, "batch n k"], Bool[Tensor, "batch n k"]]:
    """The cells that each token belongs to, and which of these entries are valid."""
    cell, valid = ops.neighbours(tokens.x, grid, width)
    return cell, valid if tokens.mask is None else valid & tokens.mask.unsqueeze(-1)


class SmoothPseudoTokenGridEncoder(PseudoTokenGridEncoder):
    """Each pseudo-token attends to the tokens around it and to itself.

    The logarithm of a token's weight and a learned function of its offset are added to the logits;
    gates on the values depend on the offset, too.
    """

    def __init__(
        self, grid: Grid, *, dim: int, heads: int, width: Sequence[int], shared: Sequence[str] = ()
    ) -> None:
        super().__init__(grid, dim=dim, heads=heads, width=width, shared=shared)
        self.gates = OffsetGates(len(grid.axes), dim)
        self.logits = OffsetLogits(len(grid.axes), heads)

    def forward(self, pieces: Iterable[TokenSet]) -> Float[Tensor, "batch *grid dz"]:
        pseudo_tokens = self.pseudo_tokens()
        tokens_of_nodes = with_poles(self.grid, pseudo_tokens)
        query, key, attended = self.block.projected(tokens_of_nodes)
        logit = (query * key).sum(-1) / query.shape[-1] ** 0.5
        for tokens in pieces:
            attended, logit = self._attend(query, tokens, logit, attended)
        attended = self._with_polar_rows(attended, logit)
        return self.block.update(pseudo_tokens, attended).unflatten(1, self.grid.shape)

    def _attend(
        self, query: Tensor, tokens: TokenSet, logit: Tensor, attended: Tensor
    ) -> tuple[Tensor, Tensor]:
        near = stencil(self.grid, tokens.x, self.width)
        exact = torch.promote_types(tokens.z.dtype, torch.float32)
        log_weight = near.log_weight.to(exact)
        if tokens.mask is not None:
            log_weight = log_weight.masked_fill(~tokens.mask.unsqueeze(-1), -torch.inf)
        gates = ops.Gates(self.logits.weights(), *self.gates.weights(), near.nodes)
        points = (*self.block.keys_values(tokens.z), logit, attended)
        around = (near.index, log_weight, near.features.to(exact), gates)
        return ops.gated_cell_attention(query, *points, *around)

    def _with_polar_rows(self, attended: Tensor, logit: Tensor) -> Tensor:
        """The cells next to a pole attend to its tokens as well."""
        cells = attended[:, : self.grid.size]
        if not self.grid.polar:
            return cells
        poles = attended[:, self.grid.size :].chunk(2, 1), logit[:, self.grid.size :].chunk(2, 1)
        for row, pole, pole_logit in zip(polar_rows(self.grid, logit), *poles, strict=True):
            flat = row.flatten()
            share = (pole_logit.unsqueeze(2) - logit[:, flat].unflatten(1, row.shape)).sigmoid()
            own = cells[:, flat].unflatten(1, row.shape)
            mixed = own + share.unsqueeze(-1).to(own.dtype) * (pole.unsqueeze(2) - own)
            cells = cells.index_copy(1, flat, mixed.flatten(1, 2))
        return cells


class SmoothMeanGridEncoder(GridEncoder):
    """A learned token per grid point plus the weighted mean of the tokens around it."""

    def __init__(
        self, grid: Grid, *, dim: int, width: Sequence[int], shared: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.grid = grid
        self.width = grid.per_axis(width, "cells per point")
        self.pseudo_tokens = PseudoTokens(grid, dim, shared=shared)
        self.gates = OffsetGates(len(grid.axes), dim)

    def forward(self, pieces: Iterable[TokenSet]) -> Float[Tensor, "batch *grid dz"]:
        total, count = 0.0, 0.0
        for tokens in pieces:
            near = stencil(self.grid, tokens.x, self.width)
            weight = near.weight if tokens.mask is None else near.weight * tokens.mask.unsqueeze(-1)
            z = self.gates(tokens.z, near)
            if near.poles:
                z = torch.cat([z, tokens.z.unsqueeze(2).expand(-1, -1, near.poles, -1)], 2)
            cell, one = (t.flatten(1).unsqueeze(-1) for t in (near.index, weight))
            total = total + ops.cell_sum(z.flatten(1, 2), cell, one, node_count(self.grid))
            count = count + ops.cell_sum(torch.ones_like(one), cell, one, node_count(self.grid))
        assert isinstance(total, Tensor)
        assert isinstance(count, Tensor)
        total, count = (_with_polar_rows(self.grid, t) for t in (total, count))
        mean = total / count.clamp_min(1.0).to(total.dtype)
        return (self.pseudo_tokens() + mean).unflatten(1, self.grid.shape)


class SmoothKernelGridEncoder(GridEncoder):
    """Kernel interpolation of the tokens onto the grid points around them, tapered to zero."""

    def __init__(
        self, grid: Grid, *, length_scale: float | Sequence[float], width: Sequence[int]
    ) -> None:
        super().__init__()
        self.grid = grid
        self.width = grid.per_axis(width, "cells per point")
        self.kernel = SEKernel(grid, length_scale)

    def forward(self, pieces: Iterable[TokenSet]) -> Float[Tensor, "batch *grid dz"]:
        u = sum(self._sum(tokens) for tokens in pieces)
        assert isinstance(u, Tensor)
        return _with_polar_rows(self.grid, u).unflatten(1, self.grid.shape)

    def _sum(self, tokens: TokenSet) -> Float[Tensor, "batch nodes dz"]:
        near = stencil(self.grid, tokens.x, self.width)
        points = stencil_points(self.grid, tokens.x, near)
        weight = self.kernel(points, tokens.x.unsqueeze(2)) * near.weight
        weight = weight if tokens.mask is None else weight * tokens.mask.unsqueeze(-1)
        return ops.cell_sum(tokens.z, near.index, weight, node_count(self.grid))


def _with_polar_rows(
    grid: Grid, total: Float[Tensor, "batch nodes d"]
) -> Float[Tensor, "batch m d"]:
    """Add the sums of a pole to all cells next to it."""
    cells = total[:, : grid.size]
    if not grid.polar:
        return cells
    for row, pole in zip(polar_rows(grid, total), total[:, grid.size :].chunk(2, 1), strict=True):
        along = pole.unsqueeze(2).expand(-1, -1, row.shape[1], -1)
        cells = cells.index_add(1, row.flatten(), along.flatten(1, 2))
    return cells
