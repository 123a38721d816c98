"""Row-wise steps: linear maps, norms, ReLUs and residuals, and their back-ends in PyTorch.

`plain` defines the result. `recomputed` uses gradient checkpointing, as the C back-end does, which
also keeps each block of rows in the cache through all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LARGE = 2**19
"""Recompute activations with at least this many elements in the backward pass."""
ROWS = 2048
"""Rows per checkpoint on the CPU."""


@dataclass(frozen=True)
class Linear:
    """A linear map with weight `(out, in)` and bias."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class Norm:
    """Layer norm."""

    weight: Tensor
    bias: Tensor
    eps: float


@dataclass(frozen=True)
class Relu:
    """ReLU."""


@dataclass(frozen=True)
class Add:
    """Add other rows, which must broadcast to the input."""

    rows: Tensor


@dataclass(frozen=True)
class Keep:
    """Keep the current rows for `AddKept`, as the start of a residual connection."""


@dataclass(frozen=True)
class AddKept:
    """Add the rows kept last."""


Step = Linear | Norm | Relu | Add | Keep | AddKept


def check(width: int, steps: Sequence[Step]) -> None:
    """Raise unless the steps fit each other and rows of this width."""
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
    """All steps in order, in plain PyTorch."""
    kept, fresh = x, False  # the output of a linear map may be overwritten
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
    """In place if `x` may be overwritten and has the same dtype."""
    return x.add_(rest) if fresh and x.dtype == rest.dtype else x + rest


def recomputed(x: Tensor, steps: Sequence[Step]) -> Tensor:
    """`plain` in pieces, with gradient checkpointing."""
    flat, size = x.flatten(0, -2), ROWS if x.is_cpu else max(x.shape[:-1].numel(), 1)
    rows = [step.rows.expand(*x.shape[:-1], -1).flatten(0, -2) for step in _added(steps)]
    pieces = zip(*(t.split(size) for t in (flat, *rows)), strict=True)
    outputs = [
        checkpoint(_piece, steps, *piece, use_reentrant=False, preserve_rng_state=False)
        for piece in pieces
    ]
    y = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return y.view(*x.shape[:-1], y.shape[-1])


def _piece(steps: Sequence[Step], x: Tensor, *rows: Tensor) -> Tensor:
    remaining = iter(rows)
    return plain(x, [Add(next(remaining)) if isinstance(step, Add) else step for step in steps])


def _added(steps: Sequence[Step]) -> list[Add]:
    return [step for step in steps if isinstance(step, Add)]


def why_not_recomputed(x: Tensor, _: Sequence[Step]) -> str | None:
    if torch.compiler.is_compiling():
        return "a graph is being traced"
    if not torch.is_grad_enabled():
        return "gradients are disabled"
    if x.numel() < LARGE:
        return "the activations are small"
    return None
