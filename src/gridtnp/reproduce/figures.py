"""Figures that the experiments share: scores against the time of a forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # full names, so that annotations can be resolved
    import matplotlib.figure

MARKS = {"swin": "s", "vitnp": "^", "convcnp": "D"}
"""Marker of each model family."""
DOTS_PER_INCH = 150


@dataclass(frozen=True)
class Mark:
    """A row in a figure: its score, with the standard error, against its forward time in ms."""

    row: str
    label: str
    time: float
    score: float
    error: float


def new_figure(
    rows: int, columns: int, size: tuple[float, float], **options: Any
) -> tuple[matplotlib.figure.Figure, Any]:
    """A figure with panels of `size` inches, and its two-dimensional array of axes."""
    from matplotlib.figure import Figure

    shape = (size[0] * columns, size[1] * rows)
    figure = Figure(shape, DOTS_PER_INCH, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def tradeoff(
    panels: Mapping[str, Sequence[Mark]], score: str, path: Path, *, gaps: bool = False
) -> Path:
    """Scores against forward times, the best on top; gaps are on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

    figure, axes = new_figure(1, len(panels), (7.5, 4.2))
    for ax, (title, marks) in zip(axes[0], panels.items(), strict=True):
        for index, mark in enumerate(marks):
            ax.errorbar(
                mark.time,
                mark.score,
                2 * mark.error,
                fmt=MARKS.get(mark.row.split("-")[0], "o"),
                color=f"C{index}",
                markersize=8,
                label=mark.label,
            )
        ax.set_xscale("log")
        logarithmic = [ax.xaxis]
        if gaps:
            ax.set_yscale("log")
            ax.invert_yaxis()
            logarithmic.append(ax.yaxis)
        for axis in logarithmic:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_locator(NullLocator())
        ax.margins(0.1)
        ax.set_title(title)
        ax.set_xlabel("forward pass, ms")
        ax.set_ylabel(score)
        ax.grid(alpha=0.3, which="both")
        ax.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False)
    figure.savefig(path)
    return path
