"""`Note`: what was dropped, masked or noticed in the data, with counts and an example."""

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
    """Data were dropped, or look wrong."""


@dataclass(frozen=True)
class Note:
    """What was done with `count` of the `total` rows, values or variables of a source, and why."""

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
    """One warning about all that was dropped or looks wrong; missing values do not count."""
    serious = [str(note) for note in notes if note.action in ("dropped", "noticed")]
    if serious:
        warnings.warn("; ".join(serious) + ".", DataWarning, stacklevel=stacklevel + 1)


def write_log(path: str | os.PathLike[str], notes: Sequence[Note], about: dict[str, Any]) -> None:
    """Write `about` and all notes as JSON."""
    record = {**about, "notes": [asdict(note) for note in notes]}
    text = json.dumps(record, indent=2, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")
