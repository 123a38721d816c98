"""Attention ops in C (attention.c, windows.c)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gridtnp.ops.native import call
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
    return _CellAttention.apply(*arguments)  # pyright: ignore


def neighbour_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    valid: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    return _NeighbourAttention.apply(query, key, value, index, valid, bias)  # pyright: ignore


def window_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Sequence[int],
    shift: Sequence[int],
    periodic: Sequence[bool],
    bias: Tensor | None,
) -> Tensor:
    layout = (tuple(query.shape[1:-2]), tuple(window), tuple(shift), tuple(periodic))
    return _WindowAttention.apply(query, key, value, bias, layout)  # pyright: ignore


class _NeighbourAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        index: Tensor,
        valid: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        batch, n, heads, size = query.shape
        rows = _flat(index, key.shape[1])
        valid = None if valid is None else valid.contiguous()
        ctx.bias_shape = None if bias is None else bias.shape
        bias = None if bias is None else bias.expand(batch, -1, -1, -1).contiguous()
        query, key, value = (_rows(t) for t in (query, key, value))
        out = query.new_empty(query.shape)
        sizes = (batch * n, index.shape[-1], heads, size)
        tokens = (*_at(query), *_at(key), *_at(value), rows, valid, bias)
        call("neighbour_forward", *sizes, *tokens, out, size**-0.5)
        ctx.save_for_backward(query, key, value, rows, valid, bias, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        query, key, value, rows, valid, bias, out = ctx.saved_tensors
        batch, n, heads, size = out.shape
        query_grad = out.new_empty(out.shape)
        row_grad = out.new_zeros(*key.shape[:2], 2, heads, size)  # of keys and values, interleaved
        bias_grad = None if bias is None else torch.empty_like(bias)
        sizes = (batch * n, rows.shape[-1], heads, size)
        tokens = (*_at(query), *_at(key), *_at(value), rows, valid, bias)
        grads = (query_grad, row_grad, bias_grad)
        call("neighbour_backward", *sizes, *tokens, out, grad.contiguous(), *grads, size**-0.5)
        if bias_grad is not None:
            bias_grad = bias_grad.sum_to_size(ctx.bias_shape)
        return query_grad, *row_grad.unbind(2), None, None, bias_grad


class _CellAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        own_logit: Tensor,
        own_value: Tensor,
        cell: Tensor,
        valid: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        batch, n, heads, size = key.shape
        cells, k = query.shape[1], cell.shape[-1]
        query = query.expand(batch, -1, -1, -1).contiguous()
        key, value = _rows(key), _rows(value)
        rows = _flat(cell, cells)
        valid = None if valid is None else valid.contiguous()
        out = own_value.expand(batch, -1, -1, -1).clone(memory_format=torch.contiguous_format)
        log_sum = own_logit.expand(batch, -1, -1).clone(memory_format=torch.contiguous_format)
        tokens = (query, *_at(key), *_at(value), rows, valid)
        sizes = (batch * n, k, heads, size, batch * cells)
        call("cell_forward", *sizes, *tokens, out, log_sum, size**-0.5)
        ctx.save_for_backward(query, key, value, own_logit, own_value, rows, valid, out, log_sum)
        return out, log_sum

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore
        ctx: Any, grad: Tensor, log_sum_grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        query, key, value, own_logit, own_value, rows, valid, out, log_sum = ctx.saved_tensors
        batch, n, heads, size = key.shape
        grad = grad.contiguous()
        mean = (grad * out).sum(-1) - log_sum_grad
        query_grad = torch.zeros_like(query)
        point_grad = out.new_empty(
            *key.shape[:2], 2, heads, size
        )  # of keys and values, interleaved
        tokens = (query, *_at(key), *_at(value), rows, valid)
        sizes = (batch * n, rows.shape[-1], heads, size)
        call(
            "cell_backward",
            *(*sizes, *tokens, log_sum, grad, mean, query_grad, point_grad, size**-0.5),
        )
        weight = (own_logit - log_sum).exp()
        own_logit_grad = weight * ((grad * own_value).sum(-1) - mean)
        own_value_grad = (weight.unsqueeze(-1) * grad).sum_to_size(own_value.shape)
        own_grads = (own_logit_grad.sum_to_size(own_logit.shape), own_value_grad)
        return query_grad, *point_grad.unbind(2), *own_grads, None, None


class _WindowAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        layout: tuple[Any, ...],
    ) -> Tensor:
        rows, labels = _windows(*layout)
        query, key, value = (t.flatten(1, -3) for t in (query, key, value))
        if not _interleaved(query, key, value):
            query, key, value = torch.stack([query, key, value], 2).unbind(2)
        batch, cells, heads, size = query.shape
        bias = None if bias is None else bias.transpose(1, 2).contiguous()  # [head, key, query]
        out = query.new_empty(query.shape)
        sizes = (batch, *rows.shape, heads, size, cells)
        tokens = (query, key, *_at(value), rows, labels, bias)
        call("window_forward", *sizes, *tokens, out, size**-0.5)
        ctx.save_for_backward(query, key, value, bias)
        ctx.layout = layout
        return out.unflatten(1, layout[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        query, key, value, bias = ctx.saved_tensors
        rows, labels = _windows(*ctx.layout)
        batch, cells, heads, size = query.shape
        grads = query.new_empty(batch, cells, 3, heads, size)
        bias_grad = None if bias is None else torch.zeros_like(bias)
        sizes = (batch, *rows.shape, heads, size, cells)
        tokens = (query, key, *_at(value), rows, labels, bias)
        call("window_backward", *sizes, *tokens, grad.contiguous(), grads, bias_grad, size**-0.5)
        query_grad, key_grad, value_grad = (g.unflatten(1, ctx.layout[0]) for g in grads.unbind(2))
        if bias_grad is not None:
            bias_grad = bias_grad.transpose(1, 2)
        return query_grad, key_grad, value_grad, bias_grad, None


@functools.lru_cache(maxsize=64)
def _windows(
    grid: tuple[int, ...],
    window: tuple[int, ...],
    shift: tuple[int, ...],
    periodic: tuple[bool, ...],
) -> tuple[Tensor, Tensor | None]:
    """The rows of each window, and labels: rows with different labels must not attend."""
    dims = tuple(range(len(grid)))
    cells = torch.arange(torch.Size(grid).numel(), dtype=torch.int32).view(grid)
    rows = to_windows(cells.roll([-s for s in shift], dims)[None, ..., None, None], window)
    labels = window_labels(grid, window, shift, periodic, torch.device("cpu"))
    if labels is not None:
        labels = labels.to(torch.uint8).contiguous()
    return rows.flatten(1).contiguous(), labels


def _rows(t: Tensor) -> Tensor:
    """`(batch, n, heads, size)` with contiguous rows at a constant stride, copied if necessary."""
    batch, n, heads, size = t.shape
    contiguous_rows = t.stride(3) == 1 and t.stride(2) == size
    constant_stride = batch == 1 or t.stride(0) == n * t.stride(1)
    if contiguous_rows and constant_stride and t.stride(1) >= heads * size:
        return t
    return t.contiguous()


def _interleaved(*tensors: Tensor) -> bool:
    """Whether all tensors can be read with one stride, as views of one projection can."""
    first = tensors[0]
    return all(_rows(t) is t and t.stride() == first.stride() for t in tensors)


def _at(t: Tensor) -> tuple[Tensor, int]:
    """A tensor and the stride of its rows."""
    return t, t.stride(1)


def _flat(index: Tensor, rows: int) -> Tensor:
    """Indices into the flattened batch."""
    start = torch.arange(index.shape[0]).view(-1, 1, 1) * rows
    return (index + start).contiguous()
