"""Sums with kernels in C (kernels.c), which leave out weights below 1e-8 of a point's largest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gridtnp.ops import kernels, native
from gridtnp.ops.kernels import Away

POINTS = 2**14
"""Points at once: their tables are larger than they are."""
REACH = 73.7
"""Exponents, twice, up to which arcs must be computed: twice what is left out."""


def why_not(values: Tensor, apart: Tensor, precision: Tensor, away: Away) -> str | None:
    """The reason why C cannot run with these arguments."""
    reason = native.why_not(values, apart, precision, *away)
    if reason is not None:
        return reason
    if any(t is not None and t.requires_grad for t in away):
        return "gradients with respect to locations are needed"
    if away.rows is not None and float(precision.detach()) * 90.0**2 < REACH:
        return "the kernel reaches around the sphere"
    return None


def to_grid(z: Tensor, apart: Tensor, precision: Tensor, away: Away) -> Tensor:
    pieces = [_ToGrid.apply(z[:, p], apart[:, p], precision, *away.some(p)) for p in _pieces(apart)]
    return sum(pieces[1:], pieces[0])  # pyright: ignore


def from_grid(u: Tensor, apart: Tensor, precision: Tensor, away: Away) -> Tensor:
    pieces: list[Any] = [
        _FromGrid.apply(u, apart[:, p], precision, *away.some(p)) for p in _pieces(apart)
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)


def _pieces(apart: Tensor) -> list[slice]:
    return [slice(first, first + POINTS) for first in range(0, max(apart.shape[1], 1), POINTS)]


class _ToGrid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # pyright: ignore
        z = arguments[0]
        sizes, tables = _tables(*arguments)
        u = z.new_empty(z.shape[0], sizes[2], sizes[3], z.shape[-1])
        native.call("kernel_to_grid", *sizes, z.shape[-1], *tables, native.contiguous(z), u)
        native.save(ctx, partial(_plain, kernels.to_grid), arguments)
        return u

    @staticmethod
    @native.differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        arguments, _ = native.saved(ctx)
        z_grad = arguments[0].new_empty(arguments[0].shape)
        return z_grad, *_slopes(ctx, arguments, grad, z_grad, arguments[0]), None, None, None


class _FromGrid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # pyright: ignore
        u, apart = arguments[:2]
        sizes, tables = _tables(*arguments)
        y = u.new_empty(*apart.shape[:2], u.shape[-1])
        given = (native.contiguous(u), y, None, None, None)
        native.call("kernel_from_grid", *sizes, u.shape[-1], *tables, *given)
        native.save(ctx, partial(_plain, kernels.from_grid), arguments)
        return y

    @staticmethod
    @native.differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        arguments, _ = native.saved(ctx)
        u, grad = arguments[0], native.contiguous(grad)
        u_grad = None
        if ctx.needs_input_grad[0]:
            sizes, tables = _tables(*arguments)
            u_grad = u.new_empty(u.shape)
            native.call("kernel_to_grid", *sizes, u.shape[-1], *tables, grad, u_grad)
        return u_grad, *_slopes(ctx, arguments, u, None, grad), None, None, None


def _slopes(
    ctx: Any, arguments: Any, u: Tensor, sums: Tensor | None, values: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of `apart` and `precision`, if they are needed, and sums over the grid, if wanted.

    One of the grid `u` and the `values` of points is a gradient.
    """
    apart, precision = arguments[1:3]
    apart_grad = slope = None
    if any(ctx.needs_input_grad[1:3]):
        apart_grad, slope = apart.new_empty(apart.shape), apart.new_empty(apart.shape[:2])
    if apart_grad is not None or sums is not None:
        sizes, tables = _tables(*arguments)
        given = None if apart_grad is None else native.contiguous(values)
        wanted = (native.contiguous(u), sums, given, apart_grad, slope)
        native.call("kernel_from_grid", *sizes, u.shape[-1], *tables, *wanted)
    if slope is not None:
        slope = slope.sum(dtype=torch.float64).to(precision.dtype).view(precision.shape)
    return apart_grad, slope


def _plain(run: Callable[..., Tensor], values: Tensor, *rest: Any) -> Tensor:
    apart, precision, *away = rest
    return run(values, apart, precision, Away(*away))


def _tables(*arguments: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Sizes and tables for C, and the order in which points are close to each other."""
    _, apart, precision, *away = arguments
    batch, n, rows = apart.shape
    across, row_part, cosines = (None if t is None else native.contiguous(t) for t in away)
    assert across is not None
    order = _order(apart, Away(across, row_part, cosines))
    order = order + torch.arange(batch, device="cpu").unsqueeze(1) * n
    tables = (order, native.contiguous(apart), row_part, cosines, across, float(precision))
    return (batch, n, rows, across.shape[-1]), tables


def _order(apart: Tensor, away: Away) -> Tensor:
    """Sort points along a Morton curve through their nearest rows and columns."""
    near = apart if away.rows is None else apart + away.rows
    row, column = near.argmin(-1), away.across.argmin(-1)
    code = torch.zeros_like(row)
    for bit in range(16):
        code |= (row >> bit & 1) << 2 * bit + 1 | (column >> bit & 1) << 2 * bit
    return code.sort(dim=-1, stable=True).indices
