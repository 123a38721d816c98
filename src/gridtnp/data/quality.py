"""What was found wrong with data and what was done about it: counted, with an example, never
silently.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Action = Literal["dropped", "masked", "left out", "noticed"]


class DataWarning(UserWarning):
    """Something in the data was dropped, or needs a look."""


@dataclass(frozen=True)
class Note:
    """So many of so many things of a source, what was done with them and why, with an example."""

    source: str
    action: Action
    why: str
    count: int
    total: int
    example: str = ""

    def __str__(self) -> str:
        share = f" of {self.total:,}" if self.total != self.count else ""
        example = f" (for example {self.example})" if self.example else ""
        return f"{self.source}: {self.count:,}{share} {self.action}: {self.why}{example}"


def warn(notes: Sequence[Note], stacklevel: int) -> None:
    """One warning for all that was dropped or looks wrong; missing values are not worth one."""
    loud = [str(note) for note in notes if note.action in ("dropped", "noticed")]
    if loud:
        warnings.warn("; ".join(loud) + ".", DataWarning, stacklevel=stacklevel + 1)


def write_log(path: str | os.PathLike[str], notes: Sequence[Note], about: dict[str, Any]) -> None:
    """`data.json`: what is known about the data, and every note."""
    record = {**about, "notes": [asdict(note) for note in notes]}
    text = json.dumps(record, indent=2, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")
