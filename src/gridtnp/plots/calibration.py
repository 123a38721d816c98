"""Whether predicted spreads are right: errors, PIT, coverage, and spread against skill."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from gridtnp.errors import require_known
from gridtnp.evaluation import scores
from gridtnp.evaluation.results import Evaluation
from gridtnp.evaluation.summary import MODEL
from gridtnp.plots.style import COLOURS, SMALL, plain, row

if TYPE_CHECKING:  # full names, so that whoever reads the annotations can import them
    import matplotlib.figure


def normalised_errors(
    evaluation: Evaluation,
    variable: str | None = None,
    forecasts: Iterable[str] | None = None,
) -> matplotlib.figure.Figure:
    """Errors in units of the predicted spread over the standard normal they should follow."""
    chosen = _chosen(evaluation, variable, forecasts)
    figure, axes = row(len(chosen), 0.8, share=True)
    x = np.linspace(-4.5, 4.5, 301)
    for ax, (colour, name, of) in zip(axes, chosen, strict=True):
        z = scores.normalised_error(*of)
        weight = np.full(len(z), 1 / (0.25 * len(z)))
        ax.hist(
            np.clip(z, -4.49, 4.49),
            [*np.arange(-4.5, 4.51, 0.25)],
            weights=weight,
            color=colour,
            alpha=0.55,
            edgecolor="white",
            linewidth=0.4,
        )
        ax.plot(x, np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi), color="black", linewidth=1.3)
        mean = float(scores.normalised_log_density(*of).mean())
        text = f"{mean:.3f}\n({scores.CALIBRATED:.3f} if\ncalibrated)".replace("-", "−")
        ax.text(
            0.03,
            0.96,
            text,
            fontsize=SMALL,
            transform=ax.transAxes,
            va="top",
        )
        ax.set_title(name)
        ax.set_xlabel("normalised error")
        plain(ax)
    axes[0].set_ylabel("density")
    return figure


def pit(
    evaluation: Evaluation,
    variable: str | None = None,
    forecasts: Iterable[str] | None = None,
) -> matplotlib.figure.Figure:
    """Histograms of the probability integral transform: flat if calibrated, ∪ if too narrow, ∩ if
    too wide. The band holds 95 % of the bars of a calibrated forecast of independent values.
    """
    chosen = _chosen(evaluation, variable, forecasts)
    figure, axes = row(len(chosen), 0.8, share=True)
    bins = 20
    for ax, (colour, name, of) in zip(axes, chosen, strict=True):
        share = scores.pit_histogram(scores.pit(*of), bins)
        luck = 1.96 * np.sqrt((bins - 1) / len(of[0]))  # of a bar, relative to its height
        ax.axhspan(max(1 - luck, 0.0), 1 + luck, color="0.85", zorder=0, linewidth=0)
        ax.axhline(1.0, color="black", linewidth=1.0, zorder=1)
        ax.bar(
            (np.arange(bins) + 0.5) / bins,
            share * bins,
            1 / bins,
            color=colour,
            alpha=0.55,
            edgecolor="white",
            linewidth=0.4,
            zorder=2,
        )
        ax.set_title(name)
        ax.set_xlim(0, 1)
        ax.set_xlabel("probability of less than observed")
        plain(ax)
    axes[0].set_ylabel("relative frequency")
    return figure


def coverage(
    evaluation: Evaluation,
    variable: str | None = None,
    forecasts: Iterable[str] | None = None,
) -> matplotlib.figure.Figure:
    """The share of observations inside central intervals of every probability."""
    figure, axes = row(1, 0.9)
    levels = np.linspace(0.01, 0.99, 99)
    axes[0].plot([0, 1], [0, 1], color="black", linewidth=1.0, linestyle="--", label="calibrated")
    for colour, name, of in _chosen(evaluation, variable, forecasts):
        found = scores.coverage(scores.normalised_error(*of), levels)
        axes[0].plot(levels, found, color=colour, label=name, linewidth=_width(name))
    axes[0].set(xlabel="probability of the interval", ylabel="share of observations inside")
    axes[0].set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    plain(axes[0])
    axes[0].legend(frameon=False, fontsize=SMALL)
    return figure


def spread_skill(
    evaluation: Evaluation,
    variable: str | None = None,
    forecasts: Iterable[str] | None = None,
) -> matplotlib.figure.Figure:
    """The error of forecasts with about the same spread against that spread."""
    figure, axes = row(1, 0.9)
    ax, most = axes[0], 0.0
    for colour, name, of in _chosen(evaluation, variable, forecasts):
        found = scores.spread_skill(*of)
        ax.plot(
            found.spread,
            found.error,
            marker="o",
            markersize=4,
            color=colour,
            label=name,
            linewidth=_width(name),
        )
        most = max(most, float(found.spread.max()), float(found.error.max()))
    ax.plot(
        [0, 1.05 * most],
        [0, 1.05 * most],
        color="black",
        linewidth=1.0,
        linestyle="--",
        label="calibrated",
        zorder=1,
    )
    unit = list(evaluation.variables.values())[evaluation.index(variable)]
    unit = f" ({unit})" if unit else ""
    ax.set(xlabel=f"predicted standard deviation{unit}", ylabel=f"root-mean-square error{unit}")
    ax.set(xlim=(0, 1.05 * most), ylim=(0, 1.05 * most), aspect="equal")
    plain(ax)
    ax.legend(frameon=False, fontsize=SMALL)
    return figure


def _chosen(
    evaluation: Evaluation, variable: str | None, forecasts: Iterable[str] | None
) -> list[tuple[str, str, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """Colour, name, and what was observed and predicted, of all forecasts that have a spread."""
    v, made = evaluation.index(variable), []
    known = [name for name in evaluation.forecasts if evaluation.has_spread(name, v)]
    for name in known if forecasts is None else forecasts:
        require_known(name, known, "forecast", "with a spread in this evaluation")
        forecast, colour = evaluation.forecasts[name], COLOURS[known.index(name) % len(COLOURS)]
        of = (evaluation.observed[:, v], forecast.mean[:, v], forecast.std[:, v])
        made.append((colour, name, of))
    return made


def _width(name: str) -> float:
    return 2.2 if name == MODEL else 1.3
