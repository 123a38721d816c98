"""Row-wise steps in C (rows.c): all steps for one block of rows at a time."""

from __future__ import annotations

import functools
import struct
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

MANY = 4096
"""Rows from which on C is faster than PyTorch."""
KEPT = 2**20
"""Numbers up to which it is cheaper to keep results of linear maps than to compute them again."""
TILE = (12, 32)
"""The largest tile of rows.c."""

KINDS = (Linear, Norm, Relu, Add, Keep, AddKept)  # in the order of rows.c
NUMBERS: dict[type, int] = {kind: number for number, kind in enumerate(KINDS)}
Kinds = list[tuple[int, float]]
"""The number of each step's kind in rows.c, and its epsilon."""
STEP = struct.Struct("3q4Pd")
"""The struct `Step` of rows.c: kind, widths, weight, bias, their gradients, epsilon."""


def why_not(x: Tensor, steps: Sequence[Step]) -> str | None:
    """The reason why the C back-end cannot run with these arguments."""
    if torch.is_autocast_enabled("cpu"):
        return "it computes on the CPU in single precision"
    if any(isinstance(step, Call) for step in steps):
        return "a module is computed in its own way"
    return native.why_not(x, *(t for step in steps for t in tensors(step)))


def why_slower(x: Tensor, *_: object) -> str | None:
    """The reason why PyTorch is faster with these arguments, by `benchmarks/results/*/sizes.json`.

    On one thread, with vectors of 256 bits as with 512, C was faster from 4096 rows on for all
    chains with widths from 32 to 256.
    """
    return "there are few rows" if x.shape[:-1].numel() < MANY else None


def rowwise(x: Tensor, steps: Sequence[Step]) -> Tensor:
    kinds: Kinds = []
    given: list[Tensor | None] = []
    for step in steps:
        kinds.append((NUMBERS[type(step)], step.eps if isinstance(step, Norm) else 0.0))
        one, other = tensors(step)
        if isinstance(step, Add):
            one = step.rows.expand(*x.shape[:-1], -1)
        given += (one, other)
    if not x.numel() or not all(t.numel() for t in given if t is not None):
        return plain(x, steps)  # what is empty has no address
    return native.apply(_Rowwise, x, *given, kinds)


def _plain(kinds: Kinds, x: Tensor, *tensors: Tensor | None) -> Tensor:
    pairs = zip(tensors[::2], tensors[1::2], strict=True)
    steps: list[Any] = []
    for (number, eps), (weight, bias) in zip(kinds, pairs, strict=True):
        kind = KINDS[number]
        own = {Linear: (weight, bias), Norm: (weight, bias, eps), Add: (weight,)}.get(kind, ())
        steps.append(kind(*own))
    return plain(x, steps)


class _Rowwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # pyright: ignore
        x, *tensors, kinds = arguments
        rows, dense = _rows(x), _dense(tensors)
        steps, width = _steps(kinds, x.shape[-1], dense)
        y = x.new_empty(*x.shape[:-1], width)
        kept = _kept(x, tensors, kinds) if any(ctx.needs_input_grad) else []
        given = (y, *(kept or [None]))
        native.call("rows_forward", len(rows), rows, *rows.stride(), steps, len(kinds), *given)
        native.save(ctx, functools.partial(_plain, kinds), (x, *tensors), *kept)
        ctx.kinds = kinds
        return y

    @staticmethod
    @native.differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, *tensors), kept = native.saved(ctx)
        rows = _rows(x)
        needed = ctx.needs_input_grad[:-1]
        x_grad, *grads = (
            t.new_empty(t.shape) if need and t is not None else None
            for t, need in zip((x, *tensors), needed, strict=True)
        )
        dense = _dense(tensors)
        steps, _ = _steps(ctx.kinds, x.shape[-1], dense, grads)
        given = (*(kept or [None]), native.contiguous(grad), x_grad)
        native.call("rows_backward", len(rows), rows, *rows.stride(), steps, len(ctx.kinds), *given)
        return x_grad, *grads, None


def _kept(x: Tensor, tensors: Sequence[Tensor | None], kinds: Kinds) -> list[Tensor]:
    """Memory for results of linear maps that the backward pass needs, unless they are large."""
    order = [KINDS[number] for number, _ in kinds]
    last = max((i for i, kind in enumerate(order) if kind in (Linear, Norm, Relu)), default=0)
    weights = [tensors[2 * i] for i in range(last) if order[i] is Linear]
    lanes = sum(-(-len(w) // TILE[1]) * TILE[1] for w in weights if w is not None)
    floats = (x.shape[:-1].numel() + TILE[0]) * lanes
    return [x.new_empty(floats)] if 0 < floats <= KEPT else []


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
) -> tuple[bytes, int]:
    """The steps as C structs, and the width of the result."""
    places = [native.address(t) or 0 for t in tensors]
    of_grads = [0] * len(places) if grads is None else [native.address(g) or 0 for g in grads]
    steps = b""
    for i, (kind, eps) in zip(range(0, len(places), 2), kinds, strict=True):
        before, weight = width, tensors[i]
        if KINDS[kind] is Linear and weight is not None:
            width = len(weight)
        found = (*places[i : i + 2], *of_grads[i : i + 2])
        steps += STEP.pack(kind, before, width, *found, eps)
    return steps, width
