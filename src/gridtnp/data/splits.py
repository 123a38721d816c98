"""Splits into train, validation and test: by time with a gap, by stations, by spatial blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gridtnp.data.sources import Source
from gridtnp.data.times import UNIT, duration, show, to_times
from gridtnp.errors import require_known

NEARBY = 100
"""Per degree: stations within a hundredth of a degree, about 1 km, count as one location."""
EARLIEST, LATEST = np.datetime64("0001-01-01", "ms"), np.datetime64("9999-12-31", "ms")
Period = tuple[np.datetime64, np.datetime64]


def periods(borders: Sequence[Any], gap: Any, within: Period | None) -> list[Period | None]:
    """The periods of train, validation and test; a `gap` after each border is left out."""
    times = to_times(list(map(str, borders)), "time")
    if len(times) != 2 or not times[0] < times[1]:
        raise ValueError(
            f"time={list(map(str, borders))}: must be two dates, the start of validation and the "
            "later start of the test."
        )
    length = duration(gap)
    if length < np.timedelta64(0, "ms") or times[0] + length >= times[1]:
        raise ValueError(
            f"gap={gap!r}: must not be negative, and must be shorter than the validation period, "
            f"{show(times[0])} to {show(times[1])}."
        )
    start, end = within or (EARLIEST.astype(UNIT), LATEST.astype(UNIT))
    return [(start, times[0]), (times[0] + length, times[1]), (times[1] + length, end)]


def show_period(period: Period) -> str:
    """A period as text, without open ends."""
    words = []
    if period[0] > EARLIEST:
        words.append(f"from {show(period[0])}")
    if period[1] < LATEST:
        words.append(f"before {show(period[1])}")
    return " and ".join(words)


def hold_out(
    sources: Mapping[str, Source],
    target: Source,
    stations: float | Sequence[str],
    blocks: float | None,
    seed: int,
) -> dict[str, np.ndarray]:
    """The part of every location of the point sources: 0 train, 1 validation, 2 test.

    Locations of the target are drawn; other point sources follow where they share a location.
    """
    if target.labels is None and blocks is None:
        raise ValueError(
            f"Source {target.name!r} is a grid, where held-out points leak through their "
            "neighbours; hold out blocks: blocks=5 (degrees)."
        )
    if blocks is not None and not blocks > 0:
        raise ValueError(f"blocks={blocks}: must be a positive size in degrees.")
    groups, owner = np.unique(_group(target, blocks), return_inverse=True)
    part = np.zeros(len(groups), np.int8)
    if isinstance(stations, int | float):
        what = "stations" if blocks is None else "blocks"
        held = _draw_groups(len(groups), float(stations), what, seed)
        part[held[: len(held) // 2]] = 1
        part[held[len(held) // 2 :]] = 2
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
    """A number for every location; those with the same number are held out together.

    Stations at the same location share it, to avoid leakage. A moving station is located where it
    was first.
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


def _draw_groups(number: int, fraction: float, what: str, seed: int) -> np.ndarray:
    if not 0 < fraction < 1:
        raise ValueError(
            f"hold_out_stations={fraction}: must be a fraction between 0 (none) and 1, or a "
            "list of names."
        )
    held = round(fraction * number)
    if held < 2 or held >= number:
        change = "the fraction" + " or the size of the blocks" * (what == "blocks")
        raise ValueError(
            f"hold_out_stations={fraction:g} holds out {held} of {number} {what}, but at least two "
            f"must be held out and one kept; change {change}."
        )
    return np.random.default_rng(seed).permutation(number)[:held]


def _named(source: Source, stations: Sequence[str]) -> np.ndarray:
    if source.labels is None:
        raise ValueError(
            f"Source {source.name!r} is a grid without named stations; give a fraction of it to "
            "hold out: hold_out_stations=0.2."
        )
    labels = source.labels.astype(str)
    known = set(labels.tolist())
    for station in stations:
        require_known(str(station), known, "station", f"of source {source.name!r}")
    return np.isin(labels, list(map(str, stations)))
