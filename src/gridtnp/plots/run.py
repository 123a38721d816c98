"""Training curves of a run, and all figures of a run as files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gridtnp.evaluation.results import Evaluation
from gridtnp.files import replace_file
from gridtnp.plots.calibration import coverage, normalised_errors, pit, spread_skill
from gridtnp.plots.style import COLOURS, plain, row

if TYPE_CHECKING:  # full names, so that annotations can be resolved
    import matplotlib.figure


def training(run: str | os.PathLike[str]) -> matplotlib.figure.Figure:
    """Loss and validation score of a run, from metrics.jsonl in its folder."""
    path = Path(run) / "metrics.jsonl"
    if not path.is_file():
        raise FileNotFoundError(
            f"No such file: {str(path)!r}; give the folder that a model was fitted in (out=)."
        )
    lines = _read(path)
    series = {
        key: np.array([(line["step"], line[key]) for line in lines if line.get(key) is not None])
        for key in ("loss", "validation")
    }
    if not len(series["loss"]):
        raise ValueError(f"{str(path)!r} has no training steps yet.")
    figure, axes = row(2 if len(series["validation"]) else 1, 0.7)
    step, loss = series["loss"].T
    smooth = _smooth(loss)
    axes[0].plot(step, loss, color=COLOURS[0], alpha=0.3, linewidth=0.8)
    axes[0].plot(step, smooth, color=COLOURS[0], linewidth=1.6)
    shown = smooth[len(smooth) // 50 :]  # without the steep start
    margin = 0.1 * max(float(np.ptp(shown)), 1e-3)
    axes[0].set_ylim(min(shown.min(), np.quantile(loss, 0.02)) - margin, shown.max() + margin)
    axes[0].set(xlabel="step", ylabel="loss (negative log-likelihood)", title="training")
    if len(axes) > 1:
        step, score = series["validation"].T
        best = int(np.argmax(score))
        axes[1].plot(step, score, color=COLOURS[1], marker="o", markersize=3, linewidth=1.4)
        axes[1].plot(step[best], score[best], marker="*", markersize=12, color="black")
        title = f"validation, best {score[best]:.3f} at step {int(step[best]):,}"
        axes[1].set(xlabel="step", ylabel="log-likelihood", title=title)
    for ax in axes:
        plain(ax)
    return figure


def _read(path: Path) -> list[dict[str, Any]]:
    """All lines; the last may be incomplete if training was killed."""
    rows, lines = [], path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(
                    f"Line {number} of {str(path)!r} is not a JSON object ({error}); restore the "
                    "file."
                ) from error
    return rows


def _smooth(values: np.ndarray) -> np.ndarray:
    """Moving average over a twentieth of all steps."""
    width = max(1, len(values) // 20)
    total = np.cumsum(np.insert(values, 0, 0.0))
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - width)
    return (total[last] - total[first]) / (last - first)


CALIBRATION = {
    "errors": normalised_errors,
    "pit": pit,
    "coverage": coverage,
    "spread_skill": spread_skill,
}


def album(evaluation: Evaluation, run: str | os.PathLike[str]) -> Path:
    """Write training curves and calibration plots as PNG files to `plots/` in a run's folder."""
    several = len(evaluation.variables) > 1
    figures = {"training": training(run)} | {
        f"{name}-{variable}" if several else name: draw(evaluation, variable)
        for variable in evaluation.variables
        for name, draw in CALIBRATION.items()
    }
    place = Path(run) / "plots"
    for name, figure in figures.items():
        replace_file(
            place / f"{name}.png", lambda new, figure=figure: figure.savefig(new, format="png")
        )
    return place
