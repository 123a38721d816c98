"""Checks of the arguments of ops: kinds of numbers, shapes, devices, and the range of indices.

What must hold is read from the annotations of the ops. Nothing is checked while a graph is traced:
the back-ends in C do not run there, and PyTorch checks for itself.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
KINDS: dict[Any, str] = {Float: "floating-point numbers", Int: "whole numbers", Bool: "booleans"}


class _Rule(typing.NamedTuple):
    """What one argument must be: its kind, dtypes and named sizes."""

    kind: str
    dtypes: frozenset[torch.dtype]
    sizes: tuple[str, ...]


def checked(op: Callable[P, R]) -> Callable[P, R]:
    """Check tensors against the annotations of an op before it runs."""
    hints = typing.get_type_hints(op)
    rules = {name: rule for name, hint in hints.items() if (rule := _rule(hint)) is not None}
    rules.pop("return", None)
    names = list(hints)
    places = [(names.index(name), name) for name in rules]

    def check(*found: _About | None) -> None:
        _check(op.__name__, rules, dict(zip(rules, found, strict=True)))

    passed = functools.lru_cache(maxsize=1024)(check)  # small data often has the same few shapes

    @functools.wraps(op)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.compiler.is_compiling():
            count = len(args)
            found = [_about(args[i] if i < count else kwargs.get(name)) for i, name in places]
            try:
                passed(*found)
            except TypeError:  # sizes may be symbols, which have no hash
                check(*found)
        return op(*args, **kwargs)

    return run


def _rule(hint: Any) -> _Rule | None:
    for each in typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,):
        for kind, words in KINDS.items():
            if getattr(each, "dtypes", None) == kind.dtypes:
                known = {getattr(torch, name, None) for name in kind.dtypes}
                dtypes = frozenset(d for d in known if isinstance(d, torch.dtype))
                return _Rule(words, dtypes, tuple(each.dim_str.split()))
    return None


_About = tuple[torch.dtype, torch.device, torch.Size] | type
"""What is checked of an argument; of one that is no tensor, its type."""


def _about(t: Any) -> _About | None:
    if isinstance(t, Tensor):
        return t.dtype, t.device, t.shape
    return None if t is None else type(t)


def _check(op: str, rules: dict[str, _Rule], arguments: dict[str, _About | None]) -> None:
    known: dict[str, Any] = {}
    first = number = None
    for name, (kind, dtypes, sizes) in rules.items():
        about = arguments[name]
        if about is None:
            continue
        if not isinstance(about, tuple):
            raise ValueError(f"{op}: {name!r} must be a tensor, got {about.__name__}.")
        dtype, device, shape = about
        if dtype not in dtypes:
            raise ValueError(f"{op}: {name!r} must be of {kind}, got {dtype}.")
        first = first or (name, device)
        if device != first[1]:
            raise ValueError(f"{op}: {name!r} is on {device}, but {first[0]!r} on {first[1]}.")
        if dtype.is_floating_point:
            number = number or (name, dtype)
            if (dtype == torch.float64) != (number[1] == torch.float64):
                raise ValueError(f"{op}: {name!r} is of {dtype}, but {number[0]!r} of {number[1]}.")
        if not _fits(shape, sizes, known):
            wanted = ", ".join(f"{s}={known[s]}" if s in known else s for s in sizes)
            raise ValueError(f"{op}: {name!r} must have the shape ({wanted}), got {tuple(shape)}.")
    if 0 in (known.get("heads"), known.get("dh")):
        raise ValueError(f"{op}: 'query' must not have empty heads.")


def _fits(shape: torch.Size, sizes: tuple[str, ...], known: dict[str, Any]) -> bool:
    """Whether a shape has these sizes, and note them: `*n` is any number, `#n` may also be one."""
    several = next((i for i, s in enumerate(sizes) if s.startswith("*")), None)
    found: list[Any] = list(shape)
    if several is not None:
        more = len(shape) - len(sizes) + 1
        if more < 0:
            return False
        found[several : several + more] = [tuple(shape[several : several + more])]
    if len(found) != len(sizes):
        return False
    for size, name in zip(found, sizes, strict=True):
        if name == "_" or (name.startswith("#") and size == 1):
            continue
        if known.setdefault(name.removeprefix("#"), size) != size:
            return False
    return True


def mixed(a: Tensor, b: Tensor) -> bool:
    """Whether one is in double precision and the other not; autocast mixes all others."""
    return (a.dtype == torch.float64) != (b.dtype == torch.float64)


def within(op: str, name: str, index: Tensor, size: int, valid: Tensor | None) -> Tensor:
    """The indices, all from 0 to `size` - 1: invalid ones that are not become 0, others raise.

    On other devices than the CPU, where looking at values is slow, nothing is looked at.
    """
    if not index.is_cpu or not index.numel() or opaque(index):
        return index
    low, high = torch.stack(index.aminmax()).tolist()
    if low < 0 or high >= size:
        if valid is not None:
            return within(op, name, index.where(valid, 0), size, None)
        wrong = low if low < 0 else high
        raise ValueError(f"{op}: {name!r} must be from 0 to {size - 1}, got {wrong}.")
    return index


def opaque(*tensors: object) -> bool:
    """Whether values cannot be looked at: a graph is traced, or functions are transformed."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or any(isinstance(t, Tensor) and _wraps(t) for t in tensors)
    )


def _wraps(t: Tensor) -> bool:
    return type(t) not in PLAIN or torch._C._functorch.is_legacy_batchedtensor(t)  # pyright: ignore


PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Subclasses may compute and store their values in any way."""
