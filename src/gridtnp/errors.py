"""Errors: the message for unknown names, with the most similar known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def require_known(name: str, known: Iterable[str], what: str, whose: str = "") -> None:
    """Raise unless `name` is known: "Unknown <what> 'name' <whose>; did you mean …?"."""
    choices = sorted(known)
    if name in choices:
        return
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {choices}."
    where = f" {whose}" if whose else ""
    raise ValueError(f"Unknown {what} {name!r}{where}; {hint}")
