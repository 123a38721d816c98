"""Atomic files: written under a temporary name, then renamed, so never half-written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: dict[str, str]) -> None:
    """Write a safetensors file atomically, with `about` in its header."""
    contiguous = {name: t.detach().contiguous() for name, t in tensors.items()}
    replace_file(path, lambda temporary: save_file(contiguous, temporary, metadata=about))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a safetensors file."""
    try:
        with safe_open(path, "pt") as file:
            names = file.keys()
            return {k: file.get_tensor(k) for k in names}, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"Cannot read tensors from {path} ({error}); it may have been cut short or changed."
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    replace_file(path, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))


def replace_file(path: Path, write: Callable[[str], Any]) -> None:
    """Replace a file atomically by what `write` writes to the temporary path that it is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.touch()  # to learn the default permissions; some writers make private files
        mode = temporary.stat().st_mode
        write(str(temporary))
        os.chmod(temporary, mode)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"Cannot write {path} ({error}), any previous version is unchanged; check disk space "
            "and permissions."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
