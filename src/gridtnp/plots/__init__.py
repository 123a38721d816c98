"""Figures of predictions, calibration and training, with matplotlib.

Every function returns a `matplotlib.figure.Figure`, to be saved with `figure.savefig("map.png")`,
except `album`, which writes files. None of them opens a window or changes the state of pyplot.
matplotlib comes with the extra `plots`.
"""

from gridtnp.plots.calibration import coverage, normalised_errors, pit, reliability, spread_skill
from gridtnp.plots.fields import fields
from gridtnp.plots.geographic import maps
from gridtnp.plots.run import album, training

__all__ = [
    "album",
    "coverage",
    "fields",
    "maps",
    "normalised_errors",
    "pit",
    "reliability",
    "spread_skill",
    "training",
]
