"""Attention ops and sums of cells in C (attention.c, neighbours.c, windows.c, full.c)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gridtnp.ops import vectorised
from gridtnp.ops.native import apply, call, contiguous, differentiable, save, saved
from gridtnp.ops.vectorised import to_windows, window_labels


def cell_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_logit: Tensor,
    own_value: Tensor,
    cell: Tensor,
    valid: Tensor | None,
) -> tuple[Tensor, Tensor]:
    arguments = (query, key, value, own_logit, own_value, cell, valid)
    return apply(_CellAttention, *arguments)


def cell_sum(z: Tensor, cell: Tensor, weight: Tensor, cells: int) -> Tensor:
    return apply(_CellSum, z, weight, cell, cells)


def neighbour_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    valid: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    return apply(_NeighbourAttention, query, key, value, index, valid, bias)


def stencil_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    log_weight: Tensor,
    features: Tensor,
    offset_keys: Tensor,
    nodes: tuple[int, ...],
) -> Tensor:
    tensors = (query, key, value, index, log_weight, features, offset_keys)
    return apply(_StencilAttention, *tensors, nodes)


def window_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Sequence[int],
    shift: Sequence[int],
    periodic: Sequence[bool],
    bias: Tensor | None,
) -> Tensor:
    layout = (tuple(window), tuple(shift), tuple(periodic))
    return apply(_WindowAttention, query, key, value, bias, layout)


LARGE = 32
"""Size of heads up to which full attention is faster in C."""


def why_slower_full(query: Tensor, *_: object) -> str | None:
    """The reason why PyTorch is faster: with heads of 32 numbers both take as long."""
    return "the heads are large" if query.shape[-1] > LARGE else None


def full_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    return apply(_FullAttention, query, key, value, mask)


class _NeighbourAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # pyright: ignore
        (query, *_), (sizes, tokens) = arguments, _neighbours(*arguments)
        out = query.new_empty(query.shape)
        call("neighbour_forward", *sizes, *tokens, *NO_OFFSETS, out, query.shape[-1] ** -0.5)
        save(ctx, vectorised.neighbour_attention, arguments, out)
        return out

    @staticmethod
    @differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        arguments, (out,) = saved(ctx)
        bias, (sizes, tokens) = arguments[-1], _neighbours(*arguments)
        bias_grad = None if bias is None else out.new_empty(out.shape[0], *bias.shape[1:])
        rows, given = arguments[1].shape[:2], (*tokens, *NO_OFFSETS)
        grads = _neighbours_backward(sizes, rows, given, out, grad, bias_grad, None, None, None)
        if bias is not None and bias_grad is not None:
            bias_grad = bias_grad.sum_to_size(bias.shape)
        return *grads, None, None, bias_grad


def _neighbours(*arguments: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Sizes and tensors for C."""
    query, key, value, index, valid, bias = arguments
    batch, n, heads, size = query.shape
    bias = None if bias is None else contiguous(bias.expand(batch, -1, -1, -1))
    valid = None if valid is None else contiguous(valid)
    rows = (*_rows(query), *_rows(key), *_rows(value))
    sizes = (batch * n, index.shape[-1], heads, size)
    return sizes, (*rows, _flat(index, key.shape[1]), valid, bias)


NO_OFFSETS = (0, 0, 0, None, None, None, None, None)
"""What C is told where keys have no offsets."""


def _neighbours_backward(
    sizes: tuple[Any, ...],
    rows: torch.Size,
    given: tuple[Any, ...],
    out: Tensor,
    grad: Tensor,
    *others: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values; C writes `others` as well."""
    *_, heads, size = out.shape
    query_grad = out.new_empty(out.shape)
    row_grad = out.new_empty(*rows, 2, heads, size)  # of keys and values, interleaved
    grads = (query_grad, row_grad, *others)
    given = (*given, out, contiguous(grad), *grads, size**-0.5)
    call("neighbour_backward", *sizes, rows.numel(), *given)
    key_grad, value_grad = row_grad.unbind(2)
    return query_grad, key_grad, value_grad


class _StencilAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # pyright: ignore
        *tensors, nodes = arguments
        query = tensors[0]
        sizes, given = _around(*tensors, nodes=nodes)
        out = query.new_empty(query.shape)
        call("neighbour_forward", *sizes, *given, out, query.shape[-1] ** -0.5)

        def plain(*tensors: Tensor) -> Tensor:
            return vectorised.stencil_attention(*tensors, nodes=nodes)

        save(ctx, plain, tensors, out)
        ctx.nodes = nodes
        return out

    @staticmethod
    @differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, (out,) = saved(ctx)
        query, key, _, _, log_weight, features, offset_keys = tensors
        sizes, given = _around(*tensors, nodes=ctx.nodes)
        logit_grad = out.new_empty(*out.shape[:2], *offset_keys.shape[:3])
        log_weight_grad, features_grad = (
            t.new_empty(t.shape) if need else None
            for t, need in zip((log_weight, features), ctx.needs_input_grad[4:6], strict=True)
        )
        others = (None, logit_grad, features_grad, log_weight_grad)
        grads = _neighbours_backward(sizes, key.shape[:2], given, out, grad, *others)
        offset_keys_grad = torch.einsum("bnafh,bnhd->afhd", logit_grad, query)
        return *grads, None, log_weight_grad, features_grad, offset_keys_grad, None


def _around(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    log_weight: Tensor,
    features: Tensor,
    offset_keys: Tensor,
    nodes: tuple[int, ...],
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Sizes and tensors for C."""
    sizes, tokens = _neighbours(query, key, value, index, log_weight > -torch.inf, None)
    offsets = (contiguous(t) for t in (features, offset_keys, log_weight))
    axes, f = offset_keys.shape[:2]
    return sizes, (*tokens, axes, f, math.prod(nodes), *rows_of(nodes), *offsets)


@functools.lru_cache(maxsize=64)
def rows_of(nodes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The first row of each axis, and the rows of each node."""
    first = torch.tensor([0, *nodes], device="cpu").cumsum(0)
    along = [torch.arange(n, device="cpu") + start for n, start in zip(nodes, first, strict=False)]
    return first, torch.stack(torch.meshgrid(*along, indexing="ij"), -1).contiguous()


NO_GATES = (0, 0, 0, 0, None, None, None, None, None, None)
"""What C is told where points have no gates."""


class _CellAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:  # pyright: ignore
        sizes, tokens = cells_and_points(*arguments)
        _, key, _, own_logit, own_value, *_ = arguments
        batch, size = key.shape[0], key.shape[-1]
        out = own_value.expand(batch, -1, -1, -1).clone(memory_format=torch.contiguous_format)
        log_sum = own_logit.expand(batch, -1, -1).clone(memory_format=torch.contiguous_format)
        call("cell_forward", *sizes, *tokens, *NO_GATES, out, log_sum, size**-0.5)
        save(ctx, vectorised.cell_attention, arguments, out, log_sum)
        return out, log_sum

    @staticmethod
    @differentiable
    def backward(ctx: Any, grad: Tensor, log_sum_grad: Tensor) -> tuple[Tensor | None, ...]:
        arguments, (out, log_sum) = saved(ctx)
        query, key, _, own_logit, own_value, *_ = arguments
        sizes, tokens = cells_and_points(*arguments)
        heads, size = key.shape[2:]
        grad = contiguous(grad)
        mean = (grad * out).sum(-1) - log_sum_grad
        query_grad = torch.empty_like(out)
        point_grad = out.new_empty(
            *key.shape[:2], 2, heads, size
        )  # of keys and values, interleaved
        given = (log_sum, grad, mean, query_grad, point_grad, size**-0.5)
        call("cell_backward", *sizes, *tokens, *given)
        weight = (own_logit - log_sum).exp()
        own_logit_grad = weight * ((grad * own_value).sum(-1) - mean)
        own_value_grad = (weight.unsqueeze(-1) * grad).sum_to_size(own_value.shape)
        own_grads = (own_logit_grad.sum_to_size(own_logit.shape), own_value_grad)
        return query_grad.sum_to_size(query.shape), *point_grad.unbind(2), *own_grads, None, None


def cells_and_points(*arguments: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Sizes and tensors for C."""
    query, key, value, _, _, cell, valid = arguments
    batch, n, heads, size = key.shape
    cells = query.shape[1]
    query = contiguous(query.expand(batch, -1, -1, -1))
    valid = None if valid is None else contiguous(valid)
    sizes = (batch * n, cell.shape[-1], heads, size, batch * cells)
    return sizes, (query, *_rows(key), *_rows(value), _flat(cell, cells), valid)


class _CellSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # pyright: ignore
        z, weight, cell, cells = arguments
        batch, n, width = z.shape
        out = z.new_empty(batch, cells, width)
        tokens = (contiguous(z), _flat(cell, cells), contiguous(weight))
        call("cell_sum_forward", batch * n, cell.shape[-1], width, batch * cells, *tokens, out)

        def plain(z: Tensor, weight: Tensor, cell: Tensor) -> Tensor:
            return vectorised.cell_sum(z, cell, weight, cells)

        save(ctx, plain, (z, weight, cell))
        ctx.cells = cells
        return out

    @staticmethod
    @differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (z, weight, cell), _ = saved(ctx)
        batch, n, width = z.shape
        needed = ctx.needs_input_grad[:2]
        grads = [
            t.new_empty(t.shape) if need else None
            for t, need in zip((z, weight), needed, strict=True)
        ]
        tokens = (contiguous(z), _flat(cell, ctx.cells), contiguous(weight), contiguous(grad))
        call("cell_sum_backward", batch * n, weight.shape[-1], width, *tokens, *grads)
        return *grads, None, None


class _WindowAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # pyright: ignore
        *tensors, layout = arguments
        sizes, tokens = _in_windows(*arguments)
        query = tensors[0]
        out = query.new_empty(query.shape)
        call("window_forward", *sizes, *tokens, out, query.shape[-1] ** -0.5)

        def plain(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
            return vectorised.window_attention(query, key, value, *layout, bias=bias)

        save(ctx, plain, tensors)
        ctx.layout = layout
        return out

    @staticmethod
    @differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, _ = saved(ctx)
        sizes, tokens = _in_windows(*tensors, layout=ctx.layout)
        query, *_, bias = tensors
        *points, heads, size = query.shape
        grads = query.new_empty(*points, 3, heads, size)
        bias_grad = None if bias is None else bias.new_zeros(bias.shape)  # [head, key, query]
        given = (contiguous(grad), grads, bias_grad, size**-0.5)
        call("window_backward", *sizes, *tokens, *given)
        if bias_grad is not None:
            bias_grad = bias_grad.transpose(1, 2)
        return *grads.unbind(-3), bias_grad, None


def _in_windows(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, layout: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Sizes and tensors for C, where queries, keys and values have one stride."""
    batch, *grid, heads, size = query.shape
    points, labels = _windows(tuple(grid), *layout)
    (q, stride), *others = [_rows(t) for t in (query, key, value)]
    k, v = (t for t, _ in others)
    if any(other != stride for _, other in others):
        q, k, v = torch.stack([q, k, v], 1).unbind(1)
        stride = q.stride(0)
    bias = None if bias is None else contiguous(bias.transpose(1, 2))  # [head, key, query]
    sizes = (batch, *points.shape, heads, size, math.prod(grid))
    return sizes, (q, k, v, stride, points, labels, bias)


@functools.lru_cache(maxsize=64)
def _windows(
    grid: tuple[int, ...],
    window: tuple[int, ...],
    shift: tuple[int, ...],
    periodic: tuple[bool, ...],
) -> tuple[Tensor, Tensor | None]:
    """The rows of each window, and labels: rows with different labels must not attend."""
    dims = tuple(range(len(grid)))
    cells = torch.arange(torch.Size(grid).numel(), dtype=torch.int32, device="cpu").view(grid)
    rows = to_windows(cells.roll([-s for s in shift], dims)[None, ..., None, None], window)
    labels = window_labels(grid, window, shift, periodic, torch.device("cpu"))
    if labels is not None:
        labels = labels.to(torch.uint8).contiguous()
    return rows.flatten(1).contiguous(), labels


class _FullAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # pyright: ignore
        query = arguments[0]
        batch, n, heads, size = query.shape
        sizes, tokens = _all_keys(*arguments)
        out, log_sum = query.new_empty(query.shape), query.new_empty(batch, heads, n)
        call("full_forward", *sizes, *tokens, out, log_sum, size**-0.5)
        save(ctx, vectorised.full_attention, arguments, out, log_sum)
        return out

    @staticmethod
    @differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        arguments, (out, log_sum) = saved(ctx)
        sizes, tokens = _all_keys(*arguments)
        *_, heads, size = out.shape
        query_grad = out.new_empty(out.shape)
        row_grad = out.new_zeros(*arguments[1].shape[:2], 2, heads, size)  # of keys and values
        given = (out, log_sum, contiguous(grad), query_grad, row_grad, size**-0.5)
        call("full_backward", *sizes, *tokens, *given)
        return query_grad, *row_grad.unbind(2), None


def _all_keys(*arguments: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Sizes and tensors for C: which rows are keys, and how many before each batch element."""
    query, key, value, mask = arguments
    batch, n, heads, size = query.shape
    rows = (*_rows(query), *_rows(key), *_rows(value))
    if mask is None:
        at, start = None, torch.arange(batch + 1, device="cpu") * key.shape[1]
    else:
        at = mask.flatten().nonzero().squeeze(1)
        start = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
    return (batch, n, heads, size), (*rows, at, start)


def _rows(t: Tensor) -> tuple[Tensor, int]:
    """`(…, heads, size)` as contiguous rows, and how many numbers apart they begin."""
    *outer, heads, size = t.shape
    rows = t.reshape(math.prod(outer), heads * size)
    rows = rows if rows.stride(1) == 1 else contiguous(rows)
    return rows, rows.stride(0)


def _flat(index: Tensor, rows: int) -> Tensor:
    """Indices into the flattened batch."""
    if len(index) == 1:
        return contiguous(index)
    start = torch.arange(index.shape[0], device="cpu").view(-1, 1, 1) * rows
    return contiguous(index + start)
