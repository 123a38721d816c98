"""Training in little memory: what is cheap to compute is computed again for the backward pass.

`recomputed` does that for anything. `rowwise` is for the linear maps that most of a network
consists of: it goes through the rows in pieces, so that nothing large is made on the way, and needs
no more products than a plain backward pass has, except those inside `body`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

LARGE = 2**19
"""Numbers per activation from which on memory is dearer than computing something cheap twice."""
ROWS = 2048
"""Rows that a processor takes at once."""

Body = Callable[..., tuple[Tensor, Tensor | None]]
"""From rows to what a linear map is applied to, and what is added to its result."""


def recomputed(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function` gives. If its activations are large, `size` numbers each, they are computed
    again for the backward pass instead of being kept.

    A product at the very end is not: only what it was made from is needed.
    """
    if not _worthwhile(size):
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


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
    shape = rows[0].shape[:-1]
    autocast = torch.is_autocast_enabled(weight.device.type)
    if not _worthwhile(rows[0].numel()) or autocast:
        hidden, rest = body(*rows)
        y = F.linear(hidden, weight, bias)
        return y if rest is None else y + rest
    flat = [r.reshape(-1, r.shape[-1]) for r in rows]
    y = _Rowwise.apply(body, len(flat), weight, bias, *flat, *weights)
    assert isinstance(y, Tensor)
    return y.view(*shape, len(weight))


def _worthwhile(size: int) -> bool:
    return not torch.compiler.is_compiling() and torch.is_grad_enabled() and size >= LARGE


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
        row_grads = [torch.empty_like(r) for r in rows]
        sums = [torch.zeros_like(w) for w in (weight, *weights)]
        bias_grad = None if bias is None else grad.sum(0)
        for piece in _pieces(grad):
            given = grad[piece]
            with torch.enable_grad():
                leaves = [r[piece].detach().requires_grad_() for r in rows]
                hidden, rest = ctx.body(*leaves)
            sums[0].addmm_(given.T, hidden.detach())
            outputs, given_outputs = [hidden], [given @ weight]
            if rest is not None:
                outputs, given_outputs = [hidden, rest], [*given_outputs, given]
            found = torch.autograd.grad(outputs, [*leaves, *weights], given_outputs)
            for whole, part in zip(row_grads, found, strict=False):
                whole[piece] = part
            for total, part in zip(sums[1:], found[ctx.count :], strict=True):
                total += part
        return None, None, sums[0], bias_grad, *row_grads, *sums[1:]


def _pieces(rows: Tensor) -> Iterator[slice]:
    size = ROWS if rows.is_cpu else max(len(rows), 1)
    for start in range(0, len(rows), size):
        yield slice(start, start + size)
