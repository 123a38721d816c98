"""The one sentence for a name that is not known, wherever a person may have mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def require_known(name: str, known: Iterable[str], rule: str) -> None:
    """Raise unless `name` is known: the rule, what came, and the name that was probably meant."""
    choices = sorted(known)
    if name in choices:
        return
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    raise ValueError(f"{rule}, one of {choices}, got {name!r}{hint}")
