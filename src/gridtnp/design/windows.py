"""Choosing time windows for observations at scattered times, such as those of drifting buoys.

Where nearly every observation has a time of its own, a task at a single time has nothing to predict
from. A task then holds what was observed around its time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gridtnp.sources.source import Source
from gridtnp.sources.times import UNIT, duration
from gridtnp.tasks.sampling import NOW

SCATTERED = 2.0
"""Fewer observations at a time, on average, leave single times without context."""
ENOUGH = 128
"""Observations in a window."""
MOST_PARTS = 25
"""A window is at most this part of the time that the data span, so that there are many tasks."""
HALVES = {
    "10s": "20s",
    "30s": "1min",
    "5min": "10min",
    "30min": "1h",
    "90min": "3h",
    "3h": "6h",
    "6h": "12h",
    "12h": "24h",
    "36h": "3D",
    "5D": "10D",
    "15D": "30D",
}
"""Half the length of each window, and its length."""


@dataclass(frozen=True)
class Windows:
    """The time window of context and targets alike, the interval between tasks, and the reason."""

    window: str = NOW
    every: str | None = None
    reason: str = ""


def choose_windows(source: Source) -> Windows:
    """Windows for the target's source: single times unless these hold too few observations.

    Every observation is in the window of exactly one task.
    """
    times = source.times_at(None)
    if times is None or source.size >= SCATTERED * len(times):
        return Windows()
    span, found = times[-1] - times[0], Windows()
    for half, every in HALVES.items():
        length = duration(every)
        if length * MOST_PARTS > span:
            break
        used = len(np.unique(times.astype(UNIT).astype(np.int64) // length.astype(np.int64)))
        mean = source.size / used
        reason = (
            f"every time has {source.size / len(times):.2g} observation on average; such a window "
            f"has {mean:.0f}"
        )
        found = Windows(f"(-{half}, {half}]", every, reason)
        if mean >= ENOUGH:
            break
    return found
