"""What a source is, in words: how much there is of it, from where to where, in which units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gridtnp.data.quality import Note
from gridtnp.data.sources import Panel, Source, Variable
from gridtnp.data.times import show


def describe_source(source: Source) -> list[str]:
    """A line about the source, one for every variable, and one for what is known about places."""
    lines = [f"{source.name}: {extent(source)}"]
    width = max(len(name) for name in source.names)
    lines += [f"  {v.name:<{width}}  {_values(v)}" for v in source.variables]
    if source.columns:
        lines.append(f"  known at each place: {', '.join(source.columns)}")
    return lines


def record_of(source: Source) -> dict[str, Any]:
    """The same for a file."""
    variables = {
        v.name: {"units": v.units, "missing": v.missing, "range": [v.low, v.high]}
        for v in source.variables
    }
    return {"extent": extent(source), "variables": variables}


def extent(source: Source) -> str:
    """How much there is of a source, and from when to when."""
    if isinstance(source, Panel):
        places = f"{len(source.lat):,} stations"
        if source.shape is not None:
            places = f"grid of {source.shape[0]} × {source.shape[1]}"
        text = f"{places}, {source.steps:,} times" if source.times is not None else places
    else:
        assert source.labels is not None
        stations = len(np.unique(source.labels))
        text = f"{source.size:,} observations at {stations:,} stations"
    lat, lon = source.lat, source.lon
    text += f", {lat.min():.6g} to {lat.max():.6g} N, {lon.min():.6g} to {lon.max():.6g} E"
    if source.times is not None:
        text += f", {show(source.times[0])} to {show(source.times[-1])}"
    return text


def clashes(sources: Mapping[str, Source]) -> list[Note]:
    """Variables of one name whose units differ between sources, or seem to."""
    notes = []
    seen: dict[str, tuple[str, Variable]] = {}
    for name, source in sources.items():
        for variable in source.variables:
            other = seen.setdefault(variable.name, (name, variable))
            if other[0] == name:
                continue
            known = (other[1].units, variable.units)
            if None not in known and known[0] != known[1]:
                why = f"{variable.name} is in {known[1]} here and in {known[0]} in {other[0]}"
                notes.append(Note(name, "noticed", f"units differ, {why}", 1, 1))
            elif None in known and _kelvin_and_celsius(other[1], variable):
                why = f"{variable.name} looks like K and °C mixed with {other[0]}"
                notes.append(Note(name, "noticed", f"units unknown, {why}", 1, 1))
    return notes


def _kelvin_and_celsius(a: Variable, b: Variable) -> bool:
    if a.low is None or b.low is None or a.high is None or b.high is None:
        return False
    shift = abs((a.low + a.high) - (b.low + b.high)) / 2
    return 200 < shift < 350 and max(a.high - a.low, b.high - b.low) < 150


def _values(variable: Variable) -> str:
    parts = [variable.units or "units not given"]
    if variable.low is not None and variable.high is not None:
        parts.append(f"{variable.low:.5g} to {variable.high:.5g}")
    if variable.missing is None:
        parts.append("on disk, not looked through")
    elif variable.missing:
        parts.append(f"{100 * variable.missing:.3g} % missing")
    return ", ".join(parts)
