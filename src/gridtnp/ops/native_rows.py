"""Row-wise steps in C (rows.c): all steps for one block of rows at a time."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gridtnp.ops import native
from gridtnp.ops.rows import (
    Add,
    AddKept,
    Call,
    Keep,
    Linear,
    Norm,
    Relu,
    Step,
    plain,
    tensors,
)

MANY, MORE = 4096, 16384
"""Rows from which on C is faster than PyTorch: with a linear map that is large, and without."""
LARGE = 64 * 64
"""Weights of such a map."""
KEPT = 2**22
"""Numbers up to which it is cheaper to keep results of linear maps than to compute them again."""
TILE = (12, 32)
"""The largest tile of rows.c."""

KINDS = (Linear, Norm, Relu, Add, Keep, AddKept)  # in the order of rows.c
Kinds = list[tuple[int, float]]
"""The number of each step's kind in rows.c, and its epsilon."""


def why_not(x: Tensor, steps: Sequence[Step]) -> str | None:
    """The reason why the C back-end cannot run with these arguments."""
    if torch.is_autocast_enabled("cpu"):
        return "it computes on the CPU in single precision"
    if any(isinstance(step, Call) for step in steps):
        return "a module is computed in its own way"
    return native.why_not(x, *(t for step in steps for t in tensors(step)))


def why_slower(x: Tensor, steps: Sequence[Step]) -> str | None:
    """The reason why PyTorch is faster with these arguments, by `benchmarks/results/*/sizes.json`.

    On one thread, with vectors of 256 bits as with 512, C was at least as fast from 4096 rows on
    for several linear maps with widths from 64 to 256, and from 16384 rows on for all chains. A
    single product of fewer rows does not profit from the cache.
    """
    rows = x.shape[:-1].numel()
    if rows >= MORE:
        return None
    if rows < MANY:
        return "there are few rows"
    maps = [step.weight.numel() for step in steps if isinstance(step, Linear)]
    large = len(maps) > 1 and max(maps) >= LARGE
    return None if large else "there are few rows"


def rowwise(x: Tensor, steps: Sequence[Step]) -> Tensor:
    given = (t for step in steps for t in tensors(step) if t is not None)
    if not all(t.numel() for t in (x, *given)):
        return plain(x, steps)  # what is empty has no address
    kinds = [(KINDS.index(type(s)), s.eps if isinstance(s, Norm) else 0.0) for s in steps]
    expanded = [_expanded(step, x) if isinstance(step, Add) else step for step in steps]
    given = (t for step in expanded for t in tensors(step))
    y = _Rowwise.apply(x, *given, kinds, torch.is_grad_enabled())
    assert isinstance(y, Tensor)
    return y


def _expanded(step: Add, x: Tensor) -> Add:
    return Add(step.rows.expand(*x.shape[:-1], -1))


def _plain(kinds: Kinds, x: Tensor, *tensors: Tensor | None) -> Tensor:
    pairs = zip(tensors[::2], tensors[1::2], strict=True)
    steps: list[Any] = []
    for (number, eps), (weight, bias) in zip(kinds, pairs, strict=True):
        kind = KINDS[number]
        own = {Linear: (weight, bias), Norm: (weight, bias, eps), Add: (weight,)}.get(kind, ())
        steps.append(kind(*own))
    return plain(x, steps)


class _Step(ctypes.Structure):
    """The struct `Step` of rows.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "dim_in", "dim_out")),
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "weight_grad", "bias_grad")),
        ("eps", ctypes.c_double),
    )


class _Rowwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # pyright: ignore
        x, *tensors, kinds, keeps = arguments
        rows = _rows(x)
        dense = _dense(tensors)
        steps, width = _steps(kinds, x.shape[-1], dense)
        y = x.new_empty(*x.shape[:-1], width)
        kept = _kept(rows, kinds, steps) if keeps and any(ctx.needs_input_grad) else []
        given = (y, *(kept or [None]))
        native.call("rows_forward", len(rows), rows, *rows.stride(), steps, len(steps), *given)
        native.save(ctx, functools.partial(_plain, kinds), (x, *tensors), *kept)
        ctx.kinds = kinds
        return y

    @staticmethod
    @native.differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, *tensors), kept = native.saved(ctx)
        rows = _rows(x)
        needed = ctx.needs_input_grad[:-2]
        x_grad, *grads = (
            t.new_empty(t.shape) if need and t is not None else None
            for t, need in zip((x, *tensors), needed, strict=True)
        )
        dense = _dense(tensors)
        steps, _ = _steps(ctx.kinds, x.shape[-1], dense, grads)
        given = (*(kept or [None]), native.contiguous(grad), x_grad)
        native.call("rows_backward", len(rows), rows, *rows.stride(), steps, len(steps), *given)
        return x_grad, *grads, None, None


def _kept(rows: Tensor, kinds: Kinds, steps: ctypes.Array[_Step]) -> list[Tensor]:
    """Memory for results of linear maps that the backward pass needs, unless they are large."""
    order = [KINDS[number] for number, _ in kinds]
    last = max((i for i, kind in enumerate(order) if kind in (Linear, Norm, Relu)), default=0)
    widths = [steps[i].dim_out for i in range(last) if order[i] is Linear]
    floats = (len(rows) + TILE[0]) * sum(-(-width // TILE[1]) * TILE[1] for width in widths)
    return [rows.new_empty(floats)] if 0 < floats <= KEPT else []


def _dense(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """To be kept until C has read them."""
    return [None if t is None else native.contiguous(t) for t in tensors]


def _rows(x: Tensor) -> Tensor:
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _steps(
    kinds: Kinds,
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
