"""Row-wise steps: linear maps, norms, ReLUs and residuals, and their back-ends in PyTorch.

`plain` defines the result. `recomputed` uses gradient checkpointing, as the C back-end does, which
also keeps each block of rows in the cache through all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gridtnp.ops.checks import mixed, opaque

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
    """Layer norm, with or without a bias."""

    weight: Tensor
    bias: Tensor | None
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


@dataclass(frozen=True)
class Call:
    """Call a module that works row by row in its own way."""

    module: Callable[[Tensor], Tensor]


Step = Linear | Norm | Relu | Add | Keep | AddKept | Call


def check(x: Tensor, steps: Sequence[Step]) -> None:
    """Raise unless the steps fit each other and the rows of `x`."""
    if torch.compiler.is_compiling() or not _fit(x, steps):
        _explain(x, steps)


def _fit(x: Tensor, steps: Sequence[Step]) -> bool:
    """Whether steps of the usual kinds fit: for small data, checks take as long as the steps."""
    width = kept = x.shape[-1]
    keeps = False
    for step in steps:
        kind = type(step)
        if kind is Linear or kind is Norm:
            weight, bias = step.weight, step.bias  # pyright: ignore[reportAttributeAccessIssue]
            if weight.shape[-1] != width or weight.ndim != (2 if kind is Linear else 1):
                return False
            width = weight.shape[0]
            if weight.dtype != x.dtype or weight.device != x.device:
                return False
            if bias is not None and (
                bias.shape != (width,) or bias.dtype != x.dtype or bias.device != x.device
            ):
                return False
        elif kind is Keep:
            kept, keeps = width, True
        elif kind is AddKept:
            if not keeps or kept != width:
                return False
        elif kind is not Relu:
            rows = getattr(step, "rows", None)
            if rows is None or rows.dtype != x.dtype or rows.device != x.device:
                return False
            if rows.shape != (*x.shape[:-1], width):
                return False
    return True


def _explain(x: Tensor, steps: Sequence[Step]) -> None:
    """Raise unless the steps fit; steps that only broadcast or mix precisions do."""
    width: int | None = x.shape[-1]
    kept: int | None = None
    keeps = False
    for number, step in enumerate(steps, start=1):
        name = f"Step {number}, {type(step).__name__},"
        for t in tensors(step):
            if t is not None and not t.is_floating_point():
                raise ValueError(f"{name} must be of floating-point numbers, got {t.dtype}.")
            if t is not None and t.device != x.device:
                raise ValueError(f"{name} is on {t.device}, but the rows on {x.device}.")
            if t is not None and width is not None and mixed(t, x):
                raise ValueError(f"{name} is of {t.dtype}, but the rows of {x.dtype}.")
        after, bias = width, None
        match step:
            case Linear(weight, bias):
                _has_dimensions(name, weight, 2)
                after, found = weight.shape
            case Norm(weight, bias, _):
                _has_dimensions(name, weight, 1)
                found = after = len(weight)
            case Add(rows):
                found = rows.shape[-1] if rows.ndim else None
            case AddKept():
                if not keeps:
                    raise ValueError(f"Step {number} adds what was kept, but no step keeps before.")
                found = kept
            case Call():
                found, after = width, None
            case _:
                found = width
        if width is not None and found is not None and found != width:
            raise ValueError(f"{name} must be for rows of {width} numbers, got one for {found}.")
        if bias is not None and bias.shape != (after,):
            raise ValueError(
                f"{name} must have a bias of {after} numbers, got a shape of {tuple(bias.shape)}."
            )
        if isinstance(step, Add) and width is not None:
            _broadcasts(name, step.rows, (*x.shape[:-1], width))
        if isinstance(step, Keep):
            kept, keeps = width, True
        width = after


def _has_dimensions(name: str, weight: Tensor, dimensions: int) -> None:
    if weight.ndim != dimensions:
        many = f"{dimensions} dimension{'s' * (dimensions > 1)}"
        raise ValueError(
            f"{name} must have a weight of {many}, got a shape of {tuple(weight.shape)}."
        )


def _broadcasts(name: str, rows: Tensor, shape: Sequence[Any]) -> None:
    """Sizes may be symbols while a graph is traced."""
    pairs = zip(rows.shape[::-1], shape[::-1], strict=False)
    if not 0 < rows.ndim <= len(shape) or any(n not in (1, wanted) for n, wanted in pairs):
        raise ValueError(
            f"{name} must add rows that broadcast to {tuple(shape)}, got {tuple(rows.shape)}."
        )


def tensors(step: Step) -> tuple[Tensor | None, Tensor | None]:
    """The tensors of a step: a weight and a bias, or rows to add."""
    if isinstance(step, Linear | Norm):
        return step.weight, step.bias
    return (step.rows if isinstance(step, Add) else None), None


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
            case Call(module):
                x = module(x)
        fresh = isinstance(step, Linear)
    return x


def _sum(x: Tensor, rest: Tensor, fresh: bool) -> Tensor:
    """In place if `x` may be overwritten and has the same dtype."""
    fresh = fresh and x.dtype == rest.dtype and not opaque(x, rest)
    return x.add_(rest) if fresh else x + rest


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


def why_not_recomputed(x: Tensor, steps: Sequence[Step]) -> str | None:
    if not torch.is_grad_enabled():
        return "gradients are disabled"
    if opaque(x):
        return "a graph is being traced"
    if any(isinstance(step, Call) for step in steps):
        return "a module with its own ways cannot be run twice"
    if x.numel() < LARGE:
        return "the activations are small"
    return None
