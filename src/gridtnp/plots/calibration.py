"""Calibration plots: normalised errors, PIT, coverage, and spread against skill."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from gridtnp.errors import require_known
from gridtnp.evaluation import scores
from gridtnp.evaluation.results import Evaluation
from gridtnp.evaluation.summary import MODEL
from gridtnp.plots.style import COLOURS, SMALL, plain, row
from gridtnp.sources.source import unit_symbol

if TYPE_CHECKING:  # full names, so that annotations can be resolved
    import matplotlib.figure


def normalised_errors(
    evaluation: Evaluation,
    variable: str | None = None,
    forecasts: Iterable[str] | None = None,
) -> matplotlib.figure.Figure:
    """Histograms of normalised errors, with the standard normal density."""
    selected = _selected(evaluation, variable, forecasts)
    figure, axes = row(len(selected), 0.8, share=True)
    x = np.linspace(-4.5, 4.5, 301)
    for ax, (colour, name, of) in zip(axes, selected, strict=True):
        z = of.normalised_error
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
        mean = float(of.normalised_log_density().mean())
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
    """Histograms of the probability integral transform (PIT).

    They are flat if calibrated, ∪ if overconfident, ∩ if underconfident. The band holds 95 % of the
    bars of a calibrated forecast of independent values.
    """
    selected = _selected(evaluation, variable, forecasts)
    figure, axes = row(len(selected), 0.8, share=True)
    bins = 20
    for ax, (colour, name, of) in zip(axes, selected, strict=True):
        share = scores.pit_histogram(of.pit, bins)
        band = 1.96 * np.sqrt((bins - 1) / len(of.observed))  # relative to the height of a bar
        ax.axhspan(max(1 - band, 0.0), 1 + band, color="0.85", zorder=0, linewidth=0)
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
        ax.set_xlabel("probability integral transform")
        plain(ax)
    axes[0].set_ylabel("relative frequency")
    return figure


def coverage(
    evaluation: Evaluation,
    variable: str | None = None,
    forecasts: Iterable[str] | None = None,
) -> matplotlib.figure.Figure:
    """Fraction of observations within central intervals, against their probability."""
    figure, axes = row(1, 0.9)
    levels = np.linspace(0.01, 0.99, 99)
    axes[0].plot([0, 1], [0, 1], color="black", linewidth=1.0, linestyle="--", label="calibrated")
    for colour, name, of in _selected(evaluation, variable, forecasts):
        found = scores.coverage(of.normalised_error, levels)
        axes[0].plot(levels, found, color=colour, label=name, linewidth=_width(name))
    axes[0].set(xlabel="probability of the interval", ylabel="fraction of observations inside")
    axes[0].set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    plain(axes[0])
    axes[0].legend(frameon=False, fontsize=SMALL)
    return figure


def spread_skill(
    evaluation: Evaluation,
    variable: str | None = None,
    forecasts: Iterable[str] | None = None,
) -> matplotlib.figure.Figure:
    """RMSE of forecasts binned by predicted standard deviation, against the latter."""
    figure, axes = row(1, 0.9)
    ax, largest = axes[0], 0.0
    for colour, name, of in _selected(evaluation, variable, forecasts):
        found = scores.spread_skill(of.observed, of.mean, of.std)
        ax.plot(
            found.spread,
            found.error,
            marker="o",
            markersize=4,
            color=colour,
            label=name,
            linewidth=_width(name),
        )
        largest = max(largest, float(found.spread.max()), float(found.error.max()))
    ax.plot(
        [0, 1.05 * largest],
        [0, 1.05 * largest],
        color="black",
        linewidth=1.0,
        linestyle="--",
        label="calibrated",
        zorder=1,
    )
    unit = unit_symbol(list(evaluation.variables.values())[evaluation.index(variable)])
    unit = f" ({unit})" if unit else ""
    ax.set(xlabel=f"predicted standard deviation{unit}", ylabel=f"root-mean-square error{unit}")
    ax.set(xlim=(0, 1.05 * largest), ylim=(0, 1.05 * largest), aspect="equal")
    plain(ax)
    ax.legend(frameon=False, fontsize=SMALL)
    return figure


def reliability(
    evaluation: Evaluation,
    threshold: float,
    variable: str | None = None,
    forecasts: Iterable[str] | None = None,
) -> matplotlib.figure.Figure:
    """How often a variable was above a threshold, against the predicted probability."""
    figure, axes = row(1, 0.9)
    ax = axes[0]
    ax.plot([0, 1], [0, 1], color="black", linewidth=1.0, linestyle="--", label="calibrated")
    for colour, name, _ in _selected(evaluation, variable, forecasts):
        found = evaluation.reliability(threshold, name, variable)
        size = 3 + 60 * found.count / found.count.sum()
        ax.plot(found.chance, found.frequency, color=colour, label=name, linewidth=_width(name))
        ax.scatter(found.chance, found.frequency, size, color=colour, zorder=3)
    v = evaluation.index(variable)
    named = f"{list(evaluation.variables)[v]} > {threshold:g}"
    unit = unit_symbol(list(evaluation.variables.values())[v])
    named += f" {unit}" if unit else ""
    ax.set(xlabel=f"predicted probability of {named}", ylabel="observed frequency")
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    plain(ax)
    ax.legend(frameon=False, fontsize=SMALL)
    return figure


def _selected(
    evaluation: Evaluation, variable: str | None, forecasts: Iterable[str] | None
) -> list[tuple[str, str, scores.Forecasts]]:
    """Colour, name and values of all forecasts with standard deviations."""
    v, found = evaluation.index(variable), []
    known = [name for name in evaluation.forecasts if evaluation.has_spread(name, v)]
    for name in known if forecasts is None else forecasts:
        require_known(name, known, "forecast", "with standard deviations")
        colour = COLOURS[known.index(name) % len(COLOURS)]
        found.append((colour, name, evaluation.of(name, v)))
    return found


def _width(name: str) -> float:
    return 2.2 if name == MODEL else 1.3
