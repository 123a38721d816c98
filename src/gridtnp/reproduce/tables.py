"""Tables of results in Markdown: means with standard errors, and paired comparisons of rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from gridtnp.reproduce.rows import Result

ERRORS = 2.0
"""Half the width of an interval, in standard errors."""


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over tasks, and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return statistics.fmean(values), error


def number(mean: float, error: float | None = None, decimals: int = 3) -> str:
    """A number with its standard error; nothing for NaN."""
    if math.isnan(mean):
        return ""
    text = f"{mean:.{decimals}f}"
    return text if error is None else f"{text} ± {error:.{decimals}f}"


def markdown(heads: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    rows = [heads, ["---"] * len(heads), *body]
    return ["| " + " | ".join(row) + " |" for row in rows]


def made_by(results: Iterable[Result]) -> list[str]:
    """The commands behind results, and the commits at which they ran."""
    commands = sorted({f"{r['command']} (at {r['commit']})" for r in results})
    return ["Made by:", "", *(f"- `{command}`" for command in commands), ""]


def paired(better: Sequence[float], worse: Sequence[float]) -> tuple[float, float]:
    """Mean difference of two rows on the same test tasks, and its standard error."""
    return mean_and_error([a - b for a, b in zip(better, worse, strict=True)])
