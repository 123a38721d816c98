"""Descriptions of sources: size, extent in space and time, units, range and missing values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gridtnp.sources.quality import Note
from gridtnp.sources.source import Panel, Source, Variable
from gridtnp.sources.times import show


def describe_source(source: Source) -> list[str]:
    """One line for the source, one per variable, and one for its static columns."""
    lines = [f"{source.name}: {extent(source)}"]
    width = max(len(name) for name in source.names)
    lines += [f"  {v.name:<{width}}  {_describe_variable(v)}" for v in source.variables]
    if source.columns:
        lines.append(f"  known at each place: {', '.join(source.columns)}")
    return lines


def record_of(source: Source) -> dict[str, Any]:
    """The description of a source as plain data, for JSON."""
    variables = {
        v.name: {"units": v.units, "missing": v.missing, "range": [v.low, v.high]}
        for v in source.variables
    }
    return {"extent": extent(source), "variables": variables}


def places_in_words(number: int, source: Source) -> str:
    """A number of places of a source; those without names need not be stations."""
    word = "grid point"
    if source.labels is not None:
        word = "location" if source.labels.dtype.kind in "iu" else "station"
    return f"{number:,} {word}{'s' * (number != 1)}"


def extent(source: Source) -> str:
    """The size of a source, and its ranges of latitude, longitude and time."""
    if isinstance(source, Panel):
        places = places_in_words(len(source.lat), source)
        if source.shape is not None:
            places = f"grid of {source.shape[0]} × {source.shape[1]}"
        text = f"{places}, {source.steps:,} times" if source.times is not None else places
    else:
        assert source.labels is not None
        places = places_in_words(len(np.unique(source.labels)), source)
        text = f"{source.size:,} observations at {places}"
    lat, lon = source.lat, source.lon
    text += f", {lat.min():.6g} to {lat.max():.6g} N, {lon.min():.6g} to {lon.max():.6g} E"
    if source.times is not None:
        text += f", {show(source.times[0])} to {show(source.times[-1])}"
    return text


def unit_conflicts(sources: Mapping[str, Source]) -> list[Note]:
    """Variables whose units differ between sources, or appear to where units are unknown."""
    notes = []
    seen: dict[str, tuple[str, Variable]] = {}
    for name, source in sources.items():
        for variable in source.variables:
            other = seen.setdefault(variable.name, (name, variable))
            if other[0] == name:
                continue
            units = (other[1].units, variable.units)
            if None not in units and units[0] != units[1]:
                why = f"{variable.name} is in {units[1]} here and in {units[0]} in {other[0]}"
                notes.append(Note(name, "noticed", f"units differ, {why}", 1, 1))
            elif None in units and _kelvin_and_celsius(other[1], variable):
                why = f"{variable.name} differs from that of {other[0]} as K does from °C"
                notes.append(Note(name, "noticed", f"units unknown, {why}", 1, 1))
    return notes


def _kelvin_and_celsius(a: Variable, b: Variable) -> bool:
    if a.low is None or b.low is None or a.high is None or b.high is None:
        return False
    shift = abs((a.low + a.high) - (b.low + b.high)) / 2
    return 200 < shift < 350 and max(a.high - a.low, b.high - b.low) < 150


def _describe_variable(variable: Variable) -> str:
    parts = [variable.units or "units not given"]
    share = f"{100 * (variable.missing or 0):.3g} % missing"
    if variable.low is not None and variable.high is not None:
        parts.append(f"{variable.low:.5g} to {variable.high:.5g}")
        parts += [share] * bool(variable.missing)
    else:
        parts += ["on disk", f"{share} at the first time" if variable.missing else "not scanned"]
    return ", ".join(parts)
