"""All pictures of an evaluated run, in its folder."""

from __future__ import annotations

import os
from pathlib import Path

from gridtnp.checkpoints import replace_file
from gridtnp.plots.calibration import coverage, normalised_errors, pit, spread_skill
from gridtnp.plots.curves import training
from gridtnp.scoreboard import Evaluation

CALIBRATION = {
    "errors": normalised_errors,
    "pit": pit,
    "coverage": coverage,
    "spread_skill": spread_skill,
}


def album(evaluation: Evaluation, run: str | os.PathLike[str]) -> Path:
    """Calibration, for each variable, and training as PNG files in `plots/` of a run's folder."""
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
