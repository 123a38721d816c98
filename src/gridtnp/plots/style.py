"""Sizes, colours and layout common to all figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gridtnp.sources.reading import require_installed

if TYPE_CHECKING:  # full names, so that annotations can be resolved
    import matplotlib.axes
    import matplotlib.figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#555555")
"""After Okabe and Ito, safe for colour blindness. The model has the first."""
DOTS_PER_INCH = 200
SMALL, NORMAL, LARGE = 8, 9, 10
"""Font sizes."""


def row(
    columns: int, ratio: float, *, extra: float = 0.6, share: bool = False
) -> tuple[matplotlib.figure.Figure, list[matplotlib.axes.Axes]]:
    """A figure with a row of panels; `ratio` is height over width, `extra` inches of margin."""
    require_installed("matplotlib", "plots", "Plotting")
    from matplotlib.figure import Figure

    width = min(4.0, 15 / columns)
    height = float(np.clip(width * ratio, 1.2, 2.2 * width)) + extra
    figure = Figure((width * columns, height), DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False, sharey=share)
    return figure, list(axes[0])


def plain(ax: matplotlib.axes.Axes) -> None:
    """Left and bottom axis only, a light grid, small labels."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    small(ax)


def small(ax: matplotlib.axes.Axes) -> None:
    """Small labels."""
    ax.tick_params(labelsize=SMALL, length=3)
    ax.title.set_fontsize(LARGE)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_fontsize(NORMAL)
