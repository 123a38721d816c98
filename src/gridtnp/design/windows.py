"""Choosing time windows for observations at scattered times, such as those of drifting buoys.

Where nearly every observation has a time of its own, or stations report at minutes of their own, a
task at a single time has little to predict from. A task then holds what is observed around it.
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
"""Observations in a window of such data."""
MORE = 3.0
"""A window has so many times the observations of a single time, at least."""
MOST_PARTS = 25
"""A window is at most this part of the time that the data span, so that there are many tasks."""
LOOKED_AT = 200_000
"""Rows that tell how often stations report."""
NEVER = np.timedelta64(2**62, "ms")
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
    times, interval = source.times_at(None), _interval(source)
    if times is None or interval is None:
        return Windows()
    each, found = source.size / len(times), Windows()
    for half, every in HALVES.items():
        length = duration(every)
        if length * MOST_PARTS > times[-1] - times[0]:
            break
        mean = source.size / _count_windows(times, length)
        enough = mean >= ENOUGH if each < SCATTERED else length >= interval
        if mean >= MORE * each and (each < SCATTERED or enough):
            reason = f"{mean:.0f} observations on average, a single time only {each:.2g}"
            found = Windows(f"(-{half}, {half}]", every, reason)
        if enough:
            break
    return found


def _interval(source: Source) -> np.timedelta64 | None:
    """The usual time from one report of a station to its next; never if stations report once.

    None for grids and without times.
    """
    rows = np.arange(min(source.size, LOOKED_AT))
    times = source.times_of(rows)
    if times is None or source.labels is None:
        return None
    station = np.unique(source.labels, return_inverse=True)[1][source.places(rows)]
    order = np.lexsort([times, station])
    gaps = np.diff(times[order])[np.diff(station[order]) == 0]
    gaps = gaps[gaps > np.timedelta64(0, "ms")]
    return np.median(gaps) if len(gaps) else NEVER


def _count_windows(times: np.ndarray, length: np.timedelta64) -> int:
    """How many windows of this length hold any of the times."""
    whole = times.astype(UNIT).astype(np.int64) // length.astype(np.int64)
    return len(np.unique(whole))
