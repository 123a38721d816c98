"""Training in little memory: what is cheap to compute is computed again for the backward pass.

`rowwise` is for the linear maps that most of a network consists of: it goes through the rows in
pieces, so that nothing large is made on the way, and needs no more products than a plain backward
pass has, except those inside `body`. `parts` takes a projection apart without a copy of its
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGE = 2**19
"""Numbers per activation from which on memory is dearer than computing something cheap twice."""
ROWS = 2048
"""Rows that a processor takes at once."""

Body = Callable[..., tuple[Tensor, Tensor | None]]
"""From rows to what a linear map is applied to, and what is added to its result."""


def rowwise(
    body: Body,
    rows: Sequence[Float[Tensor, "*n _"]],
    weights: Sequence[Tensor],
    weight: Float[Tensor, "out hidden"],
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "*n out"]:
    """`linear(hidden, weight, bias) + rest`, where `hidden, rest = body(*rows)` row by row.

    `weights` are those that the body uses.
    """
    if not _worthwhile(rows[0], weight):
        hidden, rest = body(*rows)
        y = F.linear(hidden, weight, bias)
        return y if rest is None else added(y, rest)
    flat = [r.flatten(0, -2) for r in rows]
    y = _Rowwise.apply(body, len(flat), weight, bias, *flat, *weights)
    assert isinstance(y, Tensor)
    return y.view(*rows[0].shape[:-1], len(weight))


def added(y: Tensor, rest: Tensor) -> Tensor:
    """Their sum, in the place of `y`, which nobody else may need, unless `rest` is more precise."""
    return y.add_(rest) if y.dtype == rest.dtype else y + rest


def parts(z: Float[Tensor, "*n parts heads dh"]) -> tuple[Float[Tensor, "*n heads dh"], ...]:
    """Queries, keys or values that one projection made, as views.

    Where their gradients lie side by side as they do, as those of the C back-end, these are taken
    as the projection's without a copy.
    """
    if torch.compiler.is_compiling() or not z.requires_grad:
        return z.unbind(-3)
    found = _Parts.apply(z)
    assert isinstance(found, tuple)
    return found


class _Parts(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, z: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        return z.unbind(-3)

    @staticmethod
    @once_differentiable
    def backward(_: Any, *grads: Tensor) -> Tensor:  # pyright: ignore
        first = grads[0]
        whole = torch.empty((*first.shape[:-2], len(grads), *first.shape[-2:]), device="meta")
        places = [
            (g.untyped_storage().data_ptr(), g.storage_offset() - i * whole.stride(-3), g.stride())
            for i, g in enumerate(grads)
        ]
        expected = (places[0][0], first.storage_offset(), whole.select(-3, 0).stride())
        if all(place == expected for place in places):
            return first.as_strided(whole.shape, whole.stride())
        return torch.stack(grads, -3)


def _worthwhile(rows: Tensor, weight: Tensor) -> bool:
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False  # sizes must not be looked at while a graph is being traced
    large = rows.shape[:-1].numel() * weight.shape[1] >= LARGE
    return large and not torch.is_autocast_enabled(weight.device.type)


class _Rowwise(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any, body: Body, count: int, weight: Tensor, bias: Tensor | None, *tensors: Tensor
    ) -> Tensor:
        ctx.body, ctx.count = body, count
        ctx.save_for_backward(weight, bias, *tensors)
        rows = tensors[:count]
        out = weight.new_empty(len(rows[0]), len(weight))
        for piece in _pieces(rows[0]):
            hidden, rest = body(*(r[piece] for r in rows))
            if bias is None:
                torch.mm(hidden, weight.T, out=out[piece])
            else:
                torch.addmm(bias, hidden, weight.T, out=out[piece])
            if rest is not None:
                out[piece] += rest
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        weight, bias, *tensors = ctx.saved_tensors
        rows, weights = tensors[: ctx.count], tensors[ctx.count :]
        needed = ctx.needs_input_grad[4 : 4 + ctx.count]
        row_grads = [torch.empty_like(r) if n else None for r, n in zip(rows, needed, strict=True)]
        wanted = [g for g in row_grads if g is not None]
        sums = [torch.zeros_like(w) for w in (weight, *weights)]
        bias_grad = None if bias is None else grad.sum(0)
        for piece in _pieces(grad):
            given = grad[piece]
            with torch.enable_grad():
                leaves = [
                    r[piece].detach().requires_grad_(n) for r, n in zip(rows, needed, strict=True)
                ]
                hidden, rest = ctx.body(*leaves)
            sums[0].addmm_(given.T, hidden.detach())
            outputs, given_outputs = [hidden], [given @ weight]
            if rest is not None:
                outputs, given_outputs = [hidden, rest], [*given_outputs, given]
            inputs = [leaf for leaf in leaves if leaf.requires_grad] + weights
            found = torch.autograd.grad(outputs, inputs, given_outputs)
            for whole, part in zip(wanted, found, strict=False):
                whole[piece] = part
            for total, part in zip(sums[1:], found[len(wanted) :], strict=True):
                total += part
        return None, None, sums[0], bias_grad, *row_grads, *sums[1:]


def _pieces(rows: Tensor) -> Iterator[slice]:
    size = ROWS if rows.is_cpu else max(len(rows), 1)
    for start in range(0, len(rows), size):
        yield slice(start, start + size)
