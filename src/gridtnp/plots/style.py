"""What all figures share: their size, their colours, their plain look."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gridtnp.data.reading import require_installed

if TYPE_CHECKING:  # full names, so that whoever reads the annotations can import them
    import matplotlib.axes
    import matplotlib.figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#555555")
"""After Okabe and Ito: told apart by everyone. The model has the first."""
DOTS_PER_INCH = 200
SMALL, NORMAL, LARGE = 8, 9, 10
"""Sizes of letters."""


def row(
    columns: int, ratio: float, *, extra: float = 0.6, share: bool = False
) -> tuple[matplotlib.figure.Figure, list[matplotlib.axes.Axes]]:
    """A row of panels of a ratio of height to width, with `extra` inches below and above."""
    require_installed("matplotlib", "plots", "Plotting")
    from matplotlib.figure import Figure

    width = min(4.0, 15 / columns)
    height = float(np.clip(width * ratio, 1.2, 2.2 * width)) + extra
    figure = Figure((width * columns, height), DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False, sharey=share)
    return figure, list(axes[0])


def plain(ax: matplotlib.axes.Axes) -> None:
    """Two axes, a light grid, small letters."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    small(ax)


def small(ax: matplotlib.axes.Axes) -> None:
    ax.tick_params(labelsize=SMALL, length=3)
    ax.title.set_fontsize(LARGE)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_fontsize(NORMAL)
