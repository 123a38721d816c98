"""Honest splits: by time with a gap, by stations never seen, by blocks of the map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gridtnp.errors import require_known
from gridtnp.sources import Source
from gridtnp.times import UNIT, duration, show, to_times

NEARBY = 2
"""Decimals of a degree within which two stations are the same place: about a kilometre."""
BEGINNING, END = np.datetime64("0001-01-01", "ms"), np.datetime64("9999-12-31", "ms")
Period = tuple[np.datetime64, np.datetime64]


def periods(borders: Sequence[Any], gap: Any, within: Period | None) -> list[Period | None]:
    """Before the first border, from it on, and from the second on; `gap` is left out after each."""
    times = to_times(list(map(str, borders)), "time")
    if len(times) != 2 or not times[0] < times[1]:
        raise ValueError(
            "Time must be split at two dates, the starts of validation and test in this order, "
            f"got {list(map(str, borders))}."
        )
    pause = duration(gap)
    if pause < np.timedelta64(0, "ms") or times[0] + pause >= times[1]:
        raise ValueError(
            f"The gap must not be negative and must leave something of {show(times[0])} to "
            f"{show(times[1])}, got {gap!r}."
        )
    start, end = within or (BEGINNING.astype(UNIT), END.astype(UNIT))
    return [(start, times[0]), (times[0] + pause, times[1]), (times[1] + pause, end)]


def show_period(period: Period) -> str:
    """A period to read; open ends are left out."""
    words = []
    if period[0] > BEGINNING:
        words.append(f"from {show(period[0])}")
    if period[1] < END:
        words.append(f"before {show(period[1])}")
    return " ".join(words)


def hold_out(
    source: Source, stations: float | Sequence[str], blocks: float | None, seed: int
) -> np.ndarray:
    """The part that every place of a source belongs to: 0 train, 1 validation, 2 test."""
    if not isinstance(stations, int | float):
        return _named(source, stations)
    if not 0 < stations < 1:
        raise ValueError(
            f"The share of stations to hold out must be between 0 and 1, got {stations}."
        )
    groups = _stations(source) if blocks is None else _blocks(source, blocks)
    number = int(groups.max()) + 1
    held = round(stations * number)
    if held < 2 or held >= number:
        raise ValueError(
            f"At least two of the {'stations' if blocks is None else 'blocks'} must be held out "
            f"and one kept, but a share of {stations:g} of {number} is {held}; change the share"
            f"{'' if blocks is None else ' or the size of the blocks'}."
        )
    part = np.zeros(number, np.int8)
    chosen = np.random.default_rng(seed).permutation(number)[:held]
    part[chosen[: held // 2]] = 1
    part[chosen[held // 2 :]] = 2
    return part[groups]


def _named(source: Source, stations: Sequence[str]) -> np.ndarray:
    if source.labels is None:
        raise ValueError(f"Source {source.name!r} is a grid and has no stations to name.")
    known = set(source.labels.tolist())
    for station in stations:
        require_known(str(station), known, f"A station must be one of source {source.name!r}")
    return np.where(np.isin(source.labels, list(map(str, stations))), 2, 0).astype(np.int8)


def _stations(source: Source) -> np.ndarray:
    """A number per station; stations in the same place share it, or one would give the other
    away.
    """
    if source.labels is None:
        raise ValueError(
            f"Source {source.name!r} is a grid, whose points give their neighbours away; hold out "
            "blocks of it: blocks=5 (degrees)."
        )
    _, first, station = np.unique(source.labels, return_index=True, return_inverse=True)
    place = np.stack([source.lat[first], source.lon[first]], 1).round(NEARBY)
    _, group = np.unique(place, axis=0, return_inverse=True)
    return group.ravel()[station.ravel()]


def _blocks(source: Source, degrees: float) -> np.ndarray:
    if not degrees > 0:
        raise ValueError(f"Blocks must have a positive size in degrees, got {degrees}.")
    cell = np.stack([source.lat // degrees, source.lon // degrees], 1)
    _, group = np.unique(cell, axis=0, return_inverse=True)
    return group.ravel()
