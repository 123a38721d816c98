"""Honest splits: by time with a gap, by stations never seen, by blocks of the map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gridtnp.data.sources import Source
from gridtnp.data.times import UNIT, duration, show, to_times
from gridtnp.errors import require_known

NEARBY = 100
"""Stations within a hundredth of a degree, about a kilometre, are in the same place."""
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
    sources: Mapping[str, Source],
    target: Source,
    stations: float | Sequence[str],
    blocks: float | None,
    seed: int,
) -> dict[str, np.ndarray]:
    """The part that every place of the point sources belongs to: 0 train, 1 validation, 2 test.

    It is decided at the target's places; what other point sources have at the same ones goes along.
    """
    if target.labels is None and blocks is None:
        raise ValueError(
            f"Source {target.name!r} is a grid, whose points give their neighbours away; hold out "
            "blocks of it: blocks=5 (degrees)."
        )
    if blocks is not None and not blocks > 0:
        raise ValueError(f"Blocks must have a positive size in degrees, got {blocks}.")
    groups, owner = np.unique(_group(target, blocks), return_inverse=True)
    part = np.zeros(len(groups), np.int8)
    if isinstance(stations, int | float):
        chosen = _some(
            len(groups), float(stations), "stations" if blocks is None else "blocks", seed
        )
        part[chosen[: len(chosen) // 2]] = 1
        part[chosen[len(chosen) // 2 :]] = 2
    else:
        part[np.unique(owner[_named(target, stations)])] = 2
    roles = {target.name: part[owner]}
    for name, source in sources.items():
        if source is not target and source.labels is not None:
            group = _group(source, blocks)
            place = np.clip(np.searchsorted(groups, group), 0, len(groups) - 1)
            roles[name] = np.where(groups[place] == group, part[place], 0).astype(np.int8)
    return roles


def _group(source: Source, blocks: float | None) -> np.ndarray:
    """A number for every place, the same for those that must not be torn apart.

    Stations in the same place share it, or one would give the other away; a station that moves is
    where it was first.
    """
    lat, lon = source.lat, source.lon
    if blocks is not None:
        row, column = np.floor(lat / blocks), np.floor(lon / blocks)
    else:
        assert source.labels is not None
        _, first, station = np.unique(source.labels, return_index=True, return_inverse=True)
        row = np.round(lat[first] * NEARBY)[station]
        column = np.round(lon[first] * NEARBY)[station]
    return (row * 1e6 + column).astype(np.int64)


def _some(number: int, share: float, what: str, seed: int) -> np.ndarray:
    if not 0 < share < 1:
        raise ValueError(f"The share of stations to hold out must be between 0 and 1, got {share}.")
    held = round(share * number)
    if held < 2 or held >= number:
        way_out = "change the share" + " or the size of the blocks" * (what == "blocks")
        raise ValueError(
            f"At least two of the {what} must be held out and one kept, but a share of {share:g} "
            f"of {number} is {held}; {way_out}."
        )
    return np.random.default_rng(seed).permutation(number)[:held]


def _named(source: Source, stations: Sequence[str]) -> np.ndarray:
    if source.labels is None:
        raise ValueError(f"Source {source.name!r} is a grid and has no stations to name.")
    labels = source.labels.astype(str)
    known = set(labels.tolist())
    for station in stations:
        require_known(str(station), known, "station", f"of source {source.name!r}")
    return np.isin(labels, list(map(str, stations)))
