"""Compiles and loads the C back-end for CPUs, on first use.

The library is cached in the user's cache folder, under a hash of source, flags and machine, and
its own. It needs a C compiler and supports float32, and float64 for Gaussian processes;
`why_not` gives the reason where it cannot run.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from gridtnp import processor
from gridtnp.ops.checks import PLAIN, opaque

FLOAT = torch.float32
FILES = (
    *("attention.c", "neighbours.c", "full.c", "kernels.c", "windows.c", "rows.c", "stencils.c"),
    *("covariance.c", "leave_one_out.c", "heads.h", "vectors.h"),
)
SOURCES = [Path(__file__).with_name(name) for name in FILES]
FLAGS = ["-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC"]


@functools.cache
def library() -> ctypes.CDLL | str:
    """The compiled library, or the reason why there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "there is no C compiler"
    reason = ""
    for flags in ([*FLAGS, "-fopenmp"], FLAGS):  # without threads if OpenMP is missing
        try:
            return ctypes.CDLL(str(_built(compiler, flags)))
        except subprocess.CalledProcessError as error:
            reason = (error.stderr.strip().splitlines() or [f"exit status {error.returncode}"])[-1]
        except OSError as error:
            reason = str(error)
    reason = f"{compiler} cannot compile the files in C ({reason})"
    warnings.warn(f"PyTorch computes what C would do faster: {reason}.", stacklevel=2)
    return reason


def _built(compiler: str, flags: Sequence[str]) -> Path:
    """The library with these flags, compiled unless it is there.

    Its name tells what it was made from, and then its own hash: a damaged one would kill the
    process. One that other users could have written is not loaded either.
    """
    source = b"".join(path.read_bytes() for path in SOURCES)
    about = "\n".join([compiler, *flags, processor.description()])
    name = f"native-{hashlib.sha256(source + about.encode()).hexdigest()[:16]}"
    cache = processor.cache_folder()
    for path in cache.glob(f"{name}-*.so"):
        with suppress(FileNotFoundError):  # another process may find it damaged, too
            if not processor.others_may_write(path) and path.stem == f"{name}-{_hash(path)}":
                return path
            path.unlink()
    uncached = processor.why_not_cached()
    if uncached is not None:
        warnings.warn(
            f"The C back-end is compiled in every process, as nothing can be cached: {uncached}; "
            "set XDG_CACHE_HOME to a folder of your own.",
            stacklevel=3,
        )
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        built = Path(folder) / "native.so"

        # a sanitizer that is preloaded here would slow the compiler down many times
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}

        def run(*arguments: str) -> None:
            command = [compiler, *flags, *arguments]
            subprocess.run(command, check=True, capture_output=True, text=True, env=environment)

        def compiled(source: Path) -> str:
            run("-c", str(source), "-o", made := f"{folder}/{source.stem}.o")
            return made

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # the compilers are other processes
            objects = list(pool.map(compiled, (p for p in SOURCES if p.suffix == ".c")))
        run("-shared", *objects, "-o", str(built), "-lm")
        built.chmod(0o700)
        path = cache / f"{name}-{_hash(built)}.so"
        os.replace(built, path)  # atomic: another process may be building, too
    return path


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def why_not(*arguments: object, precision: torch.dtype = FLOAT) -> str | None:
    """The reason why the C back-end cannot run with these arguments."""
    if torch.compiler.is_compiling():
        return "a graph is being traced"
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return "it has no forward derivatives and no batches of its own"
    for t in arguments:
        if not isinstance(t, Tensor):
            continue
        if not (t.is_cpu and t.dtype in (precision, torch.int64, torch.bool)):
            name = "single" if precision is FLOAT else "double"
            return f"it computes on the CPU in {name} precision"
        if type(t) not in PLAIN or t.layout != torch.strided or t.is_neg():
            return "a tensor does not lie in memory number by number"
        if t.numel() and not t.data_ptr():
            return "a tensor has no memory"
    found = library()
    return found if isinstance(found, str) else None


def call(name: str, *arguments: Tensor | bytes | int | float | None) -> None:
    """Call a function of the library with as many threads as PyTorch uses."""
    function = getattr(library(), name)
    if function.argtypes is None:  # the types in C are the same in every call
        function.argtypes = [ctypes.c_int64, *(_type(a) for a in arguments)]
    given = (a.data_ptr() if isinstance(a, Tensor) else a for a in arguments)
    if function(torch.get_num_threads(), *given):
        raise MemoryError(f"Not enough memory for {name}.")


def _type(argument: object) -> Any:
    kinds = {int: ctypes.c_int64, float: ctypes.c_float}
    return kinds.get(type(argument), ctypes.c_void_p)  # pyright: ignore


def vector_bits() -> int | None:
    """Bits of the vectors that C computes with, or None without C."""
    found = library()
    return None if isinstance(found, str) else int(found.vector_bits())


def address(t: Tensor | None) -> int | None:
    return None if t is None else t.data_ptr()


def contiguous(t: Tensor) -> Tensor:
    """The same numbers in memory, in order; PyTorch negates lazily."""
    return t if t.is_contiguous() and not t.is_neg() else t.resolve_neg().contiguous()


# ---- derivatives ---------------------------------------------------------------------------------


class _Unsaved:
    """The context of a forward pass without gradients, which saves nothing."""

    needs_input_grad = ()

    def save_for_backward(self, *_: Tensor | None) -> None: ...


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """`function.apply`, whose own work takes as long as that on small data, where it is needed."""
    if torch.is_grad_enabled():
        return function.apply(*arguments)
    return function.forward(_Unsaved(), *arguments)


def save(
    ctx: Any, plain: Callable[..., Any], arguments: Sequence[Tensor | None], *results: Tensor
) -> None:
    """Save the tensors of a forward pass, and the function that computes the same in PyTorch."""
    ctx.save_for_backward(*arguments, *results)
    ctx.plain, ctx.count = plain, len(arguments)


def saved(ctx: Any) -> tuple[Any, Any]:
    """The saved arguments and results."""
    return ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]


def differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Let a backward pass in C be differentiated and transformed: PyTorch computes it then."""

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if not torch.is_grad_enabled() and not opaque(*grads):
            return backward(ctx, *grads)
        arguments, _ = saved(ctx)
        needed = [i for i, need in enumerate(ctx.needs_input_grad) if need]

        def plain(*some: Tensor) -> Any:
            given = dict(zip(needed, some, strict=True))
            return ctx.plain(*(given.get(i, t) for i, t in enumerate(arguments)))

        with sdpa_kernel(SDPBackend.MATH):  # others are differentiable once
            pull_back: Any = torch.func.vjp(plain, *(arguments[i] for i in needed))[1]
            pulled = pull_back(grads[0] if len(grads) == 1 else grads)
        found = dict(zip(needed, pulled, strict=True))
        return tuple(found.get(i) for i in range(len(ctx.needs_input_grad)))

    return run
