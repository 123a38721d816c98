"""Compiles and loads the C back-end for CPUs, on first use.

The library is cached in the user's cache folder, under a hash of source, flags and machine. It
needs a C compiler and supports float32 only; `why_not` gives the reason where it cannot run.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridtnp import processor

FLOAT = torch.float32
FILES = ("attention.c", "windows.c", "rows.c", "vectors.h")
SOURCES = [Path(__file__).with_name(name) for name in FILES]
FLAGS = ["-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared"]


@functools.cache
def library() -> ctypes.CDLL | str:
    """The compiled library, or the reason why there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "there is no C compiler"
    source = b"".join(path.read_bytes() for path in SOURCES)
    files = [str(path) for path in SOURCES if path.suffix == ".c"]
    for flags in ([*FLAGS, "-fopenmp"], FLAGS):  # without threads if OpenMP is missing
        about = " ".join(flags) + processor.description()
        key = hashlib.sha256(source + about.encode()).hexdigest()
        path = processor.cache_folder() / f"native-{key[:16]}.so"
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                    built = Path(folder) / path.name
                    command = [compiler, *flags, *files, "-o", str(built), "-lm"]
                    subprocess.run(command, check=True, capture_output=True)
                    os.replace(built, path)  # atomic: another process may be building, too
            return ctypes.CDLL(str(path))
        except (OSError, subprocess.CalledProcessError):
            continue
    return f"{compiler} cannot compile the files in C"


def why_not(*arguments: object) -> str | None:
    """The reason why the C back-end cannot run with these arguments."""
    if torch.compiler.is_compiling():
        return "a graph is being traced"
    for t in arguments:
        if isinstance(t, Tensor) and not (t.is_cpu and t.dtype in (FLOAT, torch.int64, torch.bool)):
            return "it computes on the CPU in single precision"
    found = library()
    return found if isinstance(found, str) else None


def call(name: str, *arguments: Tensor | ctypes.Array[Any] | int | float | None) -> None:
    """Call a function of the library."""
    function = getattr(library(), name)
    function.restype = None
    converted = []
    for a in arguments:
        if a is None or isinstance(a, Tensor):
            converted.append(ctypes.c_void_p(address(a)))
        elif isinstance(a, float):
            converted.append(ctypes.c_float(a))
        elif isinstance(a, int):
            converted.append(ctypes.c_int64(a))
        else:
            converted.append(a)
    function(*converted)


def address(t: Tensor | None) -> int | None:
    return None if t is None else t.data_ptr()
