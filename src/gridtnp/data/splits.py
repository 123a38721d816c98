"""Splits into train, validation and test: by time with a gap, by stations, by spatial blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

from gridtnp.errors import require_known
from gridtnp.sources.coordinates import unit_vectors
from gridtnp.sources.source import Source
from gridtnp.sources.times import UNIT, duration, show, to_times

NEARBY = 0.01
"""Stations within this many degrees of each other, about 1 km, count as one location."""
MOST_PAIRS = 40_000_000
"""Data with more pairs of neighbours than this are so dense that only blocks separate them."""
EARLIEST, LATEST = np.datetime64("0001-01-01", "ms"), np.datetime64("9999-12-31", "ms")
CHORD = 2 * np.sin(np.deg2rad(NEARBY) / 2)
Period = tuple[np.datetime64, np.datetime64]


def periods(borders: Sequence[Any], gap: Any, within: Period | None) -> list[Period | None]:
    """The periods of train, validation and test; a `gap` after each border is left out."""
    borders = [borders] if isinstance(borders, str) else borders
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
    among: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """The part of every location of the point sources: 0 train, 1 validation, 2 test.

    Locations of the target are drawn, `among` some of them if given; what other point sources
    observe there is held out with them.
    """
    if target.labels is None and blocks is None:
        raise ValueError(
            f"Source {target.name!r} is a grid, where held-out points leak through their "
            "neighbours; hold out blocks: blocks=5 (degrees)."
        )
    if blocks is not None and not blocks > 0:
        raise ValueError(f"blocks={blocks}: must be a positive size in degrees.")
    owner = _neighbourhoods(target) if blocks is None else _blocks(target, blocks)
    groups, owner = np.unique(owner, return_inverse=True)
    part = np.zeros(len(groups), np.int8)
    usable = slice(None) if among is None else among
    if isinstance(stations, int | float):
        what = "stations" if blocks is None else "blocks"
        drawn = np.unique(owner[usable])
        held = drawn[_draw_groups(len(drawn), float(stations), what, seed)]
        part[held[: len(held) // 2]] = 1
        part[held[len(held) // 2 :]] = 2
    else:
        part[np.unique(owner[_named(target, stations, usable)])] = 2
    roles = {target.name: part[owner]}
    for name, source in sources.items():
        if source is target or source.labels is None:
            continue
        if blocks is None:
            roles[name] = _near_held_out(source, target, roles[target.name])
        else:
            block = _blocks(source, blocks)
            place = np.clip(np.searchsorted(groups, block), 0, len(groups) - 1)
            roles[name] = np.where(groups[place] == block, part[place], 0).astype(np.int8)
    return roles


def _blocks(source: Source, size: float) -> np.ndarray:
    """The number of the block that every location is in."""
    row, column = np.floor(source.lat / size), np.floor(source.lon / size)
    return (row * 1e6 + column).astype(np.int64)


def _neighbourhoods(source: Source) -> np.ndarray:
    """A number for every location; those with the same number are held out together.

    Stations within `NEARBY` of each other share it, also through others in between. A moving
    station is located where it was first.
    """
    assert source.labels is not None
    _, first, station = np.unique(source.labels, return_index=True, return_inverse=True)
    # by hundredths of a degree first: the order that decides which stations a seed holds out
    rounded = np.round(_locations(source)[first] * 100)
    keys = np.concatenate([rounded, _locations(source)[first]], 1)
    keys, at = np.unique(keys, axis=0, return_inverse=True)
    places = keys[:, 2:]
    tree = KDTree(unit_vectors(*places.T))
    if tree.count_neighbors(tree, CHORD) > MOST_PAIRS:
        raise ValueError(
            f"The {len(places):,} locations of source {source.name!r} are too dense to hold out "
            f"single stations, since those within {NEARBY:g} degrees count as one; hold out "
            "blocks: blocks=0.1 (degrees)."
        )
    one, other = tree.query_pairs(CHORD, output_type="ndarray").T
    graph = coo_array((np.ones(len(one), bool), (one, other)), (len(places), len(places)))
    group = connected_components(graph, directed=False)[1]
    _, number, group = np.unique(group, return_index=True, return_inverse=True)
    return number[group][at.ravel()][station]


def _near_held_out(source: Source, target: Source, role: np.ndarray) -> np.ndarray:
    """The part of every location of another source: that of a held-out target nearby, or 0."""
    held = role > 0
    tree = KDTree(unit_vectors(*_locations(target)[held].T))
    found = tree.query(unit_vectors(*_locations(source).T), distance_upper_bound=CHORD)[1]
    return np.append(role[held], np.int8(0))[found]


def _locations(source: Source) -> np.ndarray:
    return np.stack([source.lat, source.lon], 1)


def _draw_groups(number: int, fraction: float, what: str, seed: int) -> np.ndarray:
    if not 0 < fraction < 1:
        raise ValueError(
            f"hold_out_stations={fraction}: must be a fraction between 0 (none) and 1, or a "
            "list of names."
        )
    held = round(fraction * number)
    if held < 2 or held >= number:
        near, change = f" (those within {NEARBY:g} degrees count as one)", "hold out blocks"
        if what == "blocks":
            near, change = "", "the size of the blocks"
        raise ValueError(
            f"hold_out_stations={fraction:g} holds out {held} of {number} {what}{near}, but at "
            f"least two must be held out and one kept; change the fraction or {change}."
        )
    return np.random.default_rng(seed).permutation(number)[:held]


def _named(source: Source, stations: Sequence[str], usable: slice | np.ndarray) -> np.ndarray:
    if source.labels is None:
        raise ValueError(
            f"Source {source.name!r} is a grid without named stations; give a fraction of it to "
            "hold out: hold_out_stations=0.2."
        )
    labels = source.labels.astype(str)
    known = set(labels[usable].tolist())
    for station in stations:
        require_known(str(station), known, "station", f"of source {source.name!r}")
    return np.isin(labels, list(map(str, stations)))
