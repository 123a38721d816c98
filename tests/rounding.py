"""Rounding errors on purpose: how far results may be off, from how much they move with them.

Numbers are in double precision. What single precision would round is moved at random by as much,
forwards and backwards. A result that rounding hardly moves must be right to the last digits; one
that it moves far, as the norm of two numbers that hardly differ, may be off by as much.
"""

from typing import Any

import torch
from torch import Tensor


def rounded(x: Tensor, eps: float) -> Tensor:
    """Each number, and its gradient, moved by at most a share of `eps`."""
    return _Rounded.apply(x, eps)  # pyright: ignore[reportReturnType]


def product(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rows times a matrix `(out, in)`: sums that are rounded after each of their terms.

    The gradient of the matrix is such a sum over all rows.
    """
    return _Product.apply(x, weight, eps)  # pyright: ignore[reportReturnType]


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        ctx.eps = eps
        return _moved(x, x, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _moved(grads[0], grads[0], ctx.eps), None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return _summed(x, weight.mT, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        columns = grads[0].flatten(0, -2).mT
        of_weight = _summed(columns, x.flatten(0, -2), ctx.eps)
        return _summed(grads[0], weight, ctx.eps), of_weight, None


def _moved(x: Tensor, size: Tensor, eps: float) -> Tensor:
    return x + eps * size * (2 * torch.rand_like(x) - 1)


def _summed(a: Tensor, b: Tensor, eps: float) -> Tensor:
    """Partial sums are as large as the whole or as terms of random sign make them, and their
    errors are of random sign, too.
    """
    y = a @ b
    partial = (y.square() + a.square() @ b.square()).sqrt()
    return _moved(y, partial * a.shape[-1] ** 0.5, eps)
