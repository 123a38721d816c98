"""Files that are whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: dict[str, str]) -> None:
    """A safetensors file, written beside its place and then moved there."""
    whole = {name: t.detach().contiguous() for name, t in tensors.items()}
    replace_file(path, lambda temporary: save_file(whole, temporary, metadata=about))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            names = file.keys()
            return {k: file.get_tensor(k) for k in names}, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} must be a whole file of tensors, but it cannot be read ({error}); it may have "
            "been cut short or changed."
        ) from error


def write_text(path: Path, text: str) -> None:
    """A text file, written beside its place and then moved there."""
    replace_file(path, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))


def replace_file(path: Path, write: Callable[[str], Any]) -> None:
    """What `write` makes of a temporary name beside it, once it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.touch()  # as everyone may read files here; some writers make private ones
        mode = temporary.stat().st_mode
        write(str(temporary))
        os.chmod(temporary, mode)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"{path} must be written whole, but that failed ({error}); what was there before is "
            "still there. Make room, then go on."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
