"""Linear maps and what surrounds them, row by row: what most of a network consists of.

A list of steps says what is to be done, and back-ends do it. `plain` defines it; `recomputed` is
for training, and keeps nothing for the backward pass but what goes in; the C back-end does so, too,
and takes some rows at a time through all steps while they are in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LARGE = 2**19
"""Numbers per activation from which on memory is dearer than computing something cheap twice."""
ROWS = 2048
"""Rows that a processor takes at once."""


@dataclass(frozen=True)
class Linear:
    """Weight `(out, in)` and bias."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class Norm:
    """Zero mean and unit variance in every row, then weight and bias."""

    weight: Tensor
    bias: Tensor
    eps: float


@dataclass(frozen=True)
class Relu:
    """What is negative becomes zero."""


@dataclass(frozen=True)
class Add:
    """Other rows, as many as there are."""

    rows: Tensor


@dataclass(frozen=True)
class Keep:
    """Remember the rows as they are now, for `AddKept`."""


@dataclass(frozen=True)
class AddKept:
    """Add what was remembered last."""


Step = Linear | Norm | Relu | Add | Keep | AddKept


def check(width: int, steps: Sequence[Step]) -> None:
    """Raise, in a sentence, if rows of this width cannot go through the steps."""
    kept = None
    for number, step in enumerate(steps, start=1):
        bias = None
        match step:
            case Linear(weight, bias):
                after, found = weight.shape
            case Norm(weight, bias, _):
                found = after = len(weight)
            case Add(rows):
                found = after = rows.shape[-1]
            case AddKept():
                if kept is None:
                    raise ValueError(f"Step {number} adds what was kept, but no step keeps before.")
                found = after = kept
            case _:
                found = after = width
        if found != width:
            raise ValueError(
                f"Step {number}, {type(step).__name__}, must be for rows of {width} numbers, got "
                f"one for {found}."
            )
        if bias is not None and bias.shape != (after,):
            raise ValueError(
                f"Step {number}, {type(step).__name__}, must have a bias of {after} numbers, got a "
                f"shape of {tuple(bias.shape)}."
            )
        kept = width if isinstance(step, Keep) else kept
        width = after


def plain(x: Tensor, steps: Sequence[Step]) -> Tensor:
    """One step after the other."""
    kept, fresh = x, False  # what a linear map has made may be changed in place
    for step in steps:
        match step:
            case Linear(weight, bias):
                x = F.linear(x, weight, bias)
            case Norm(weight, bias, eps):
                x = F.layer_norm(x, weight.shape, weight, bias, eps)
            case Relu():
                x = F.relu_(x) if fresh else F.relu(x)
            case Add(rows):
                x = _sum(x, rows, fresh)
            case Keep():
                kept = x
            case AddKept():
                x = _sum(x, kept, fresh)
        fresh = isinstance(step, Linear)
    return x


def _sum(x: Tensor, rest: Tensor, fresh: bool) -> Tensor:
    """In the place of x, if that is allowed and `rest` is not more precise."""
    return x.add_(rest) if fresh and x.dtype == rest.dtype else x + rest


def recomputed(x: Tensor, steps: Sequence[Step]) -> Tensor:
    """The same, in pieces that are computed again for the backward pass."""
    flat, size = x.flatten(0, -2), ROWS if x.is_cpu else max(x.shape[:-1].numel(), 1)
    rows = [step.rows.expand(*x.shape[:-1], -1).flatten(0, -2) for step in _added(steps)]
    pieces = zip(*(t.split(size) for t in (flat, *rows)), strict=True)
    made = [
        checkpoint(_piece, steps, *piece, use_reentrant=False, preserve_rng_state=False)
        for piece in pieces
    ]
    y = made[0] if len(made) == 1 else torch.cat(made)
    return y.view(*x.shape[:-1], y.shape[-1])


def _piece(steps: Sequence[Step], x: Tensor, *rows: Tensor) -> Tensor:
    left = iter(rows)
    return plain(x, [Add(next(left)) if isinstance(step, Add) else step for step in steps])


def _added(steps: Sequence[Step]) -> list[Add]:
    return [step for step in steps if isinstance(step, Add)]


def why_not_recomputed(x: Tensor, _: Sequence[Step]) -> str | None:
    if torch.compiler.is_compiling():
        return "a graph is being traced"
    if not torch.is_grad_enabled():
        return "nothing is kept without gradients"
    if x.numel() < LARGE:
        return "the activations are small"
    return None
