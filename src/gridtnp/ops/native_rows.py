"""Row-wise steps in C (rows.c): all steps for one block of rows at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gridtnp.ops import native
from gridtnp.ops.rows import Add, AddKept, Keep, Linear, Norm, Relu, Step

KINDS = (Linear, Norm, Relu, Add, Keep, AddKept)  # in the order of rows.c


def why_not(x: Tensor, steps: Sequence[Step]) -> str | None:
    """The reason why the C back-end cannot run with these arguments."""
    if torch.is_autocast_enabled("cpu"):
        return "it computes on the CPU in single precision"
    return native.why_not(x, *_tensors(steps))


def rowwise(x: Tensor, steps: Sequence[Step]) -> Tensor:
    kinds = [(KINDS.index(type(s)), s.eps if isinstance(s, Norm) else 0.0) for s in steps]
    y = _Rowwise.apply(kinds, x, *_tensors(steps, x))
    assert isinstance(y, Tensor)
    return y


def _tensors(steps: Sequence[Step], x: Tensor | None = None) -> list[Tensor | None]:
    """Two tensors or Nones per step; rows to add are expanded to the shape of `x`."""
    found: list[Tensor | None] = []
    for step in steps:
        match step:
            case Linear(weight, bias) | Norm(weight, bias, _):
                found += [weight, bias]
            case Add(rows):
                found += [rows if x is None else rows.expand(*x.shape[:-1], -1), None]
            case _:
                found += [None, None]
    return found


class _Step(ctypes.Structure):
    """The struct `Step` of rows.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "dim_in", "dim_out")),
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "weight_grad", "bias_grad")),
        ("eps", ctypes.c_double),
    )


class _Rowwise(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any, kinds: list[tuple[int, float]], x: Tensor, *tensors: Tensor | None
    ) -> Tensor:
        rows = x.flatten(0, -2)
        tensors = tuple(None if t is None else t.contiguous() for t in tensors)
        steps, width = _steps(kinds, x.shape[-1], tensors)
        y = x.new_empty(*x.shape[:-1], width)
        native.call("rows_forward", len(rows), rows, *rows.stride(), steps, len(steps), y)
        ctx.save_for_backward(x, *tensors)
        ctx.kinds = kinds
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        x, *tensors = ctx.saved_tensors
        rows = x.flatten(0, -2)
        needed = ctx.needs_input_grad[1:]
        x_grad, *grads = (
            t.new_empty(t.shape) if need and t is not None else None
            for t, need in zip((x, *tensors), needed, strict=True)
        )
        steps, _ = _steps(ctx.kinds, x.shape[-1], tensors, grads)
        given = (grad.contiguous(), x_grad)
        native.call("rows_backward", len(rows), rows, *rows.stride(), steps, len(steps), *given)
        return None, x_grad, *grads


def _steps(
    kinds: list[tuple[int, float]],
    width: int,
    tensors: Sequence[Tensor | None],
    grads: Sequence[Tensor | None] | None = None,
) -> tuple[ctypes.Array[_Step], int]:
    """The steps as C structs, and the width of the result."""
    steps = (_Step * len(kinds))()
    for i, (step, (kind, eps)) in enumerate(zip(steps, kinds, strict=True)):
        weight = tensors[2 * i]
        step.kind, step.eps, step.dim_in = kind, eps, width
        if KINDS[kind] is Linear:
            assert weight is not None
            width = len(weight)
        step.dim_out = width
        step.weight, step.bias = (native.address(t) for t in tensors[2 * i : 2 * i + 2])
        if grads is not None:
            found = (native.address(g) for g in grads[2 * i : 2 * i + 2])
            step.weight_grad, step.bias_grad = found
    return steps, width
