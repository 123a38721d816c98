"""Errors that many parts raise: unknown names, packages that are not installed, and reasons."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


def require_known(name: str, known: Iterable[str], what: str, whose: str = "") -> None:
    """Raise unless `name` is known: "Unknown <what> 'name' <whose>; did you mean …?"."""
    choices = sorted(known)
    if name in choices:
        return
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {choices}."
    where = f" {whose}" if whose else ""
    raise ValueError(f"Unknown {what} {name!r}{where}; {hint}")


def require_installed(module: str, extra: str, what: str) -> Any:
    """Import a module, or raise with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {module}, which is not installed: pip install 'gridtnp[{extra}]'."
        ) from error


def reason(error: Exception) -> str:
    """The first line of an error, without its full stop, or else the name of its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
