"""The ops in C for the processor (native.c), compiled on first use where there is a compiler.

The library is kept in the user's cache folder under a name made of the source, the flags and the
machine. It needs nothing but a C compiler. Single precision only; anything else, and machines
without a compiler, are left to the other back-ends: `why_not` says so.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gridtnp.ops.vectorised import to_windows, window_labels

FLOAT = torch.float32
SOURCE = Path(__file__).with_name("native.c")
FLAGS = ["-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared"]


@functools.cache
def library() -> ctypes.CDLL | str:
    """The compiled functions, or the reason why there are none."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "there is no C compiler"
    source = SOURCE.read_bytes()
    for flags in ([*FLAGS, "-fopenmp"], FLAGS):  # without threads if need be
        key = hashlib.sha256(source + " ".join(flags).encode() + _processor().encode()).hexdigest()
        path = _cache_folder() / f"native-{key[:16]}.so"
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                    built = Path(folder) / path.name
                    command = [compiler, *flags, str(SOURCE), "-o", str(built), "-lm"]
                    subprocess.run(command, check=True, capture_output=True)
                    os.replace(built, path)  # whole or not at all, whoever else is building
            return ctypes.CDLL(str(path))
        except (OSError, subprocess.CalledProcessError):
            continue
    return f"{compiler} cannot compile {SOURCE.name}"


def why_not(*arguments: object) -> str | None:
    """The reason these arguments are not for this back-end."""
    if torch.compiler.is_compiling():
        return "a graph is being traced"
    for t in arguments:
        if isinstance(t, Tensor) and not (t.is_cpu and t.dtype in (FLOAT, torch.int64, torch.bool)):
            return "it computes on the CPU in single precision"
    found = library()
    return found if isinstance(found, str) else None


def cell_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_logit: Tensor,
    own_value: Tensor,
    cell: Tensor,
    valid: Tensor | None,
) -> tuple[Tensor, Tensor]:
    arguments = (query, key, value, own_logit, own_value, cell, valid)
    return _CellAttention.apply(*arguments)  # pyright: ignore


def neighbour_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    valid: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    return _NeighbourAttention.apply(query, key, value, index, valid, bias)  # pyright: ignore


def window_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Sequence[int],
    shift: Sequence[int],
    periodic: Sequence[bool],
    bias: Tensor | None,
) -> Tensor:
    layout = (tuple(query.shape[1:-2]), tuple(window), tuple(shift), tuple(periodic))
    return _WindowAttention.apply(query, key, value, bias, layout)  # pyright: ignore


class _NeighbourAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        index: Tensor,
        valid: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        batch, n, heads, size = query.shape
        rows = _flat(index, key.shape[1])
        valid = None if valid is None else valid.contiguous()
        ctx.bias_shape = None if bias is None else bias.shape
        bias = None if bias is None else bias.expand(batch, -1, -1, -1).contiguous()
        query, key, value = (_rows(t) for t in (query, key, value))
        out = query.new_empty(query.shape)
        sizes = (batch * n, index.shape[-1], heads, size)
        tokens = (*_at(query), *_at(key), *_at(value), rows, valid, bias)
        _call("neighbour_forward", *sizes, *tokens, out, size**-0.5)
        ctx.save_for_backward(query, key, value, rows, valid, bias, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        query, key, value, rows, valid, bias, out = ctx.saved_tensors
        batch, n, heads, size = out.shape
        query_grad = out.new_empty(out.shape)
        row_grad = out.new_zeros(*key.shape[:2], 2, heads, size)  # keys and values side by side
        bias_grad = None if bias is None else torch.empty_like(bias)
        sizes = (batch * n, rows.shape[-1], heads, size)
        tokens = (*_at(query), *_at(key), *_at(value), rows, valid, bias)
        grads = (query_grad, row_grad, bias_grad)
        _call("neighbour_backward", *sizes, *tokens, out, grad.contiguous(), *grads, size**-0.5)
        if bias_grad is not None:
            bias_grad = bias_grad.sum_to_size(ctx.bias_shape)
        return query_grad, *row_grad.unbind(2), None, None, bias_grad


class _CellAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        own_logit: Tensor,
        own_value: Tensor,
        cell: Tensor,
        valid: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        batch, n, heads, size = key.shape
        cells, k = query.shape[1], cell.shape[-1]
        query = query.expand(batch, -1, -1, -1).contiguous()
        key, value = _rows(key), _rows(value)
        rows = _flat(cell, cells)
        valid = None if valid is None else valid.contiguous()
        out = own_value.expand(batch, -1, -1, -1).clone(memory_format=torch.contiguous_format)
        log_sum = own_logit.expand(batch, -1, -1).clone(memory_format=torch.contiguous_format)
        work = (query.new_empty(rows.numel(), heads), *log_sum.new_empty(2, *log_sum.shape))
        tokens = (query, *_at(key), *_at(value), rows, valid)
        sizes = (batch * n, k, heads, size, batch * cells)
        _call("cell_forward", *sizes, *tokens, out, log_sum, *work, size**-0.5)
        ctx.save_for_backward(query, key, value, own_logit, own_value, rows, valid, out, log_sum)
        return out, log_sum

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore
        ctx: Any, grad: Tensor, log_sum_grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        query, key, value, own_logit, own_value, rows, valid, out, log_sum = ctx.saved_tensors
        batch, n, heads, size = key.shape
        grad = grad.contiguous()
        mean = (grad * out).sum(-1) - log_sum_grad
        query_grad = torch.zeros_like(query)
        point_grad = out.new_empty(*key.shape[:2], 2, heads, size)  # keys and values side by side
        tokens = (query, *_at(key), *_at(value), rows, valid)
        sizes = (batch * n, rows.shape[-1], heads, size)
        _call(
            "cell_backward",
            *(*sizes, *tokens, log_sum, grad, mean, query_grad, point_grad, size**-0.5),
        )
        weight = (own_logit - log_sum).exp()
        own_logit_grad = weight * ((grad * own_value).sum(-1) - mean)
        own_value_grad = (weight.unsqueeze(-1) * grad).sum_to_size(own_value.shape)
        own_grads = (own_logit_grad.sum_to_size(own_logit.shape), own_value_grad)
        return query_grad, *point_grad.unbind(2), *own_grads, None, None


class _WindowAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        layout: tuple[Any, ...],
    ) -> Tensor:
        rows, labels = _windows(*layout)
        query, key, value = (t.flatten(1, -3) for t in (query, key, value))
        if not _side_by_side(query, key, value):
            query, key, value = torch.stack([query, key, value], 2).unbind(2)
        batch, cells, heads, size = query.shape
        bias = None if bias is None else bias.contiguous()
        out = query.new_empty(query.shape)
        sizes = (batch, *rows.shape, heads, size, cells)
        tokens = (query, key, *_at(value), rows, labels, bias)
        _call("window_forward", *sizes, *tokens, out, size**-0.5)
        ctx.save_for_backward(query, key, value, bias)
        ctx.layout = layout
        return out.unflatten(1, layout[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        query, key, value, bias = ctx.saved_tensors
        rows, labels = _windows(*ctx.layout)
        batch, cells, heads, size = query.shape
        grads = query.new_empty(batch, cells, 3, heads, size)
        bias_grad = None if bias is None else torch.zeros_like(bias)
        sizes = (batch, *rows.shape, heads, size, cells)
        tokens = (query, key, *_at(value), rows, labels, bias)
        _call("window_backward", *sizes, *tokens, grad.contiguous(), grads, bias_grad, size**-0.5)
        query_grad, key_grad, value_grad = (g.unflatten(1, ctx.layout[0]) for g in grads.unbind(2))
        return query_grad, key_grad, value_grad, bias_grad, None


@functools.lru_cache(maxsize=64)
def _windows(
    grid: tuple[int, ...],
    window: tuple[int, ...],
    shift: tuple[int, ...],
    periodic: tuple[bool, ...],
) -> tuple[Tensor, Tensor | None]:
    """The rows of every window, and labels of those that an edge keeps apart."""
    dims = tuple(range(len(grid)))
    cells = torch.arange(torch.Size(grid).numel(), dtype=torch.int32).view(grid)
    rows = to_windows(cells.roll([-s for s in shift], dims)[None, ..., None, None], window)
    labels = window_labels(grid, window, shift, periodic, torch.device("cpu"))
    return rows.flatten(1).contiguous(), None if labels is None else labels.to(
        torch.uint8
    ).contiguous()


def _rows(t: Tensor) -> Tensor:
    """`(batch, n, heads, size)` whose rows are equally far apart and whole."""
    batch, n, heads, size = t.shape
    whole = t.stride(3) == 1 and t.stride(2) == size
    apart = batch == 1 or t.stride(0) == n * t.stride(1)
    return t if whole and apart and t.stride(1) >= heads * size else t.contiguous()


def _side_by_side(*tensors: Tensor) -> bool:
    first = tensors[0]
    return all(_rows(t) is t and t.stride() == first.stride() for t in tensors)


def _at(t: Tensor) -> tuple[Tensor, int]:
    """Where a tensor's rows start, and how far they are apart."""
    return t, t.stride(1)


def _flat(index: Tensor, rows: int) -> Tensor:
    start = torch.arange(index.shape[0]).view(-1, 1, 1) * rows
    return (index + start).contiguous()


def _call(name: str, *arguments: Tensor | int | float | None) -> None:
    function = getattr(library(), name)
    function.restype = None
    converted = []
    for a in arguments:
        if isinstance(a, Tensor):
            converted.append(ctypes.c_void_p(a.data_ptr()))
        elif a is None:
            converted.append(ctypes.c_void_p(None))
        elif isinstance(a, float):
            converted.append(ctypes.c_float(a))
        else:
            converted.append(ctypes.c_int64(a))
    function(*converted)


def _processor() -> str:
    """What `-march=native` depends on, as far as the system tells."""
    if sys.platform == "linux":
        flags = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "flags" in line]
        return platform.machine() + (flags[0] if flags else "")
    return platform.platform() + platform.processor()


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gridtnp"
