"""pandas tables to `Records`: columns are recognised, rows cleaned and sorted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from gridtnp.data.coordinates import NAMES, possible, recognise, require_places, wrap
from gridtnp.data.quality import Note
from gridtnp.data.sources import Records, Variable
from gridtnp.data.times import show, to_times

LONG_VALUES = ("observation", "value")
"""Names of the column of values in a table in long format, beside `variable`."""


def read_table(
    name: str, frame: pd.DataFrame, attributes: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[Records, list[Note]]:
    """Read a table, and note what was dropped or masked.

    `attributes` are CF attributes by column; units may also be in `frame.attrs["units"]`.
    """
    units = frame.attrs.get("units", {})
    frame = _long_to_wide(name, _index_to_columns(frame))
    if frame.empty:
        raise ValueError(f"Source {name!r} is an empty table; it needs at least one row.")
    known = {str(c): dict((attributes or {}).get(str(c), {})) for c in frame.columns}
    for column, unit in units.items():
        known.setdefault(str(column), {})["units"] = unit
    frame = frame.rename(columns=str)
    found = recognise({column: known[column] for column in frame.columns})
    require_places(found, name, frame.columns)
    total, notes = len(frame), []

    lat, lon = (_numbers(name, frame, found[role]) for role in ("lat", "lon"))
    times = to_times(frame[found["time"]], found["time"]) if "time" in found else None
    valid = possible(lat, lon)
    if not valid.any():
        raise ValueError(
            f"No row of source {name!r} has a latitude within ±90 and a longitude within ±360 "
            f"(first: {found['lat']} {lat[0]:g}, {found['lon']} {lon[0]:g}); are they in metres, "
            "or swapped?"
        )
    if not valid.all():
        row = int(np.flatnonzero(~valid)[0])
        example = f"row {row}: {found['lat']} {lat[row]:g}, {found['lon']} {lon[row]:g}"
        count = int((~valid).sum())
        notes.append(Note(name, "dropped", "invalid coordinates", count, total, example))
    if times is not None and np.isnat(times).any():
        missing = np.isnat(times)
        row = int(np.flatnonzero(missing)[0])
        notes.append(Note(name, "dropped", "no time", int(missing.sum()), total, f"row {row}"))
        valid &= ~missing

    labels = _station_labels(frame, found, lat, lon)
    variables, columns, text = _classify_columns(frame, found)
    if not variables:
        raise ValueError(
            f"Source {name!r} has no numeric column besides its coordinates, only "
            f"{sorted(frame.columns)}; to sample a field at these locations, use gt.observe."
        )
    for column in text:
        notes.append(Note(name, "left out", f"column {column!r} holds text", 1, 1))
    values = np.stack([_numbers(name, frame, c).astype(np.float32) for c in variables], 1)
    values[~np.isfinite(values)] = np.nan
    valid, duplicates = _drop_duplicates(name, valid, times, lat, lon, labels, values, total)
    notes += duplicates
    if times is None and any(note.count > total / 2 for note in duplicates):
        raise ValueError(
            f"Source {name!r} has several rows per location, but no time among "
            f"{sorted(frame.columns)}; name its times 'time'."
        )
    described = []
    for i, column in enumerate(variables):
        described.append(describe_values(name, column, values[valid, i], known[column]))
        if described[-1].missing:
            count = int(np.isnan(values[valid, i]).sum())
            notes.append(Note(name, "masked", f"{column} is missing", count, int(valid.sum())))
    valid &= ~np.isnan(values).all(1)

    order = np.flatnonzero(valid)
    keys = [labels, wrap(lon), lat] + ([] if times is None else [times])
    order = order[np.lexsort([key[order] for key in keys])]
    extra = {c: _numbers(name, frame, c).astype(np.float32)[order] for c in columns}
    records = Records(
        name,
        tuple(described),
        None if times is None else times[order],
        lat[order],
        wrap(lon)[order],
        labels[order],
        extra,
        values[order],
    )
    return records, notes


def describe_values(
    source: str, name: str, values: np.ndarray, attributes: Mapping[str, Any]
) -> Variable:
    """The units, range and missing share of a variable; raises if it has no values at all."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        raise ValueError(
            f"Variable {name!r} of source {source!r} is missing everywhere; leave it out or "
            "correct its fill value."
        )
    units = attributes.get("units")
    kept = kept_attributes(attributes)
    missing = 1 - len(finite) / values.size
    low, high = float(finite.min()), float(finite.max())
    return Variable(name, None if units is None else str(units), kept, missing, low, high)


def kept_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that describe a variable, without those of its storage."""
    return {k: v for k, v in attributes.items() if k in ("standard_name", "long_name", "units")}


def _index_to_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Turn named index levels into columns."""
    levels = [level for level in frame.index.names if level is not None]
    levels = [level for level in levels if level not in frame.columns]
    return frame.reset_index(levels) if levels else frame


def _long_to_wide(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Pivot one row per observed variable to one row per location and time, if in long format."""
    lower = {str(c).lower(): c for c in frame.columns}
    value = next((lower[v] for v in LONG_VALUES if v in lower), None)
    if value is None or "variable" not in lower:
        return frame
    kind = lower["variable"]
    keys = [c for role in NAMES for c in frame.columns if str(c).lower() in NAMES[role]]
    keys = [c for c in keys if c not in (value, kind)]
    if not keys:
        require_places({}, name, map(str, frame.columns))
    # repeated observations get a row each, so that they are counted as duplicates later
    repeat = frame.groupby([*keys, kind], dropna=False).cumcount().rename("_repeat")
    wide = frame.set_index([*keys, repeat, kind])[value].unstack(kind)
    wide.columns = [str(column) for column in wide.columns]
    return wide.reset_index().drop(columns="_repeat")


def _numbers(source: str, frame: pd.DataFrame, column: str) -> np.ndarray:
    numbers = pd.Series(pd.to_numeric(frame[column], errors="coerce"))  # pyright: ignore[reportArgumentType]
    wrong = np.flatnonzero(numbers.isna().to_numpy() & frame[column].notna().to_numpy())
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"Column {column!r} of source {source!r} is not numeric: row {row} holds "
            f"{frame[column].iloc[row]!r}."
        )
    return numbers.to_numpy(np.float64, na_value=np.nan)


def _station_labels(
    frame: pd.DataFrame, found: Mapping[str, str], lat: np.ndarray, lon: np.ndarray
) -> np.ndarray:
    """The station of every row, or a number for its location if there is no such column."""
    if "station" in found:
        return frame[found["station"]].astype(str).to_numpy(dtype=object).astype(str)
    place = np.nan_to_num(lat.round(4)) * 1e4 + 1j * np.nan_to_num(wrap(lon).round(4))
    return np.unique(place, return_inverse=True)[1].ravel()


def _classify_columns(
    frame: pd.DataFrame, found: Mapping[str, str]
) -> tuple[list[str], list[str], list[str]]:
    """Variables, static columns, and columns of text."""
    roles = {found.get(role) for role in ("lat", "lon", "time", "station")}
    rest = [c for c in frame.columns if c not in roles]
    numeric = [c for c in rest if pd.api.types.is_numeric_dtype(frame[c])]
    columns = [c for c in numeric if c == found.get("elevation")]
    variables = [c for c in numeric if c not in columns]
    if not variables:  # a list of stations: the elevation is its only variable
        variables, columns = columns, []
    return sorted(variables), columns, [c for c in rest if c not in numeric]


def _drop_duplicates(
    name: str,
    valid: np.ndarray,
    times: np.ndarray | None,
    lat: np.ndarray,
    lon: np.ndarray,
    labels: np.ndarray,
    values: np.ndarray,
    total: int,
) -> tuple[np.ndarray, list[Note]]:
    """Keep the first row per station, location and time."""
    keys = {"label": labels, "lat": lat, "lon": wrap(lon)}
    if times is not None:
        keys["time"] = times
    table = pd.DataFrame(keys)[valid]
    duplicate = table.duplicated().to_numpy()
    if not duplicate.any():
        return valid, []
    rows = np.flatnonzero(valid)
    row = int(rows[duplicate][0])
    when = "" if times is None else f" at {show(times[row])}"
    example = f"row {row}: {labels[row]}{when}"
    same = pd.concat([table, pd.DataFrame(values, index=None)[valid]], axis=1).duplicated()
    differ = int(duplicate.sum() - same.to_numpy()[duplicate].sum())
    why = "duplicates" + (f", {differ:,} of them with other values" if differ else "")
    kept = valid.copy()
    kept[rows[duplicate]] = False
    return kept, [Note(name, "dropped", why, int(duplicate.sum()), total, example)]
