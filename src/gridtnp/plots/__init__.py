"""Pictures of predictions, of their calibration and of training, as matplotlib figures.

Every function but `album`, which writes files, returns a `matplotlib.figure.Figure`: save it with
`figure.savefig("map.png")`. None of them shows a window or touches the state of pyplot. matplotlib
comes with the extra `plots`.
"""

from gridtnp.plots.calibration import coverage, normalised_errors, pit, spread_skill
from gridtnp.plots.geographic import maps
from gridtnp.plots.run import album, training

__all__ = ["album", "coverage", "maps", "normalised_errors", "pit", "spread_skill", "training"]
