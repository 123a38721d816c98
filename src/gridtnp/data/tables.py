"""A pandas table becomes `Records`: its columns are recognised, its rows cleaned and sorted."""

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


def understand_table(
    name: str, frame: pd.DataFrame, attributes: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[Records, list[Note]]:
    """`attributes` are CF attributes per column; `frame.attrs["units"]` may hold units too."""
    units = frame.attrs.get("units", {})
    frame = _long_to_wide(name, _flat(frame))
    if frame.empty:
        raise ValueError(f"Source {name!r} must have at least one row, got an empty table.")
    known = {str(c): dict((attributes or {}).get(str(c), {})) for c in frame.columns}
    for column, unit in units.items():
        known.setdefault(str(column), {})["units"] = unit
    frame = frame.rename(columns=str)
    found = recognise({column: known[column] for column in frame.columns})
    require_places(found, name, frame.columns)
    total, notes = len(frame), []

    lat, lon = (_numbers(name, frame, found[role]) for role in ("lat", "lon"))
    times = to_times(frame[found["time"]], found["time"]) if "time" in found else None
    good = possible(lat, lon)
    if not good.any():
        raise ValueError(
            f"Latitudes must lie between -90 and 90 degrees and longitudes between -360 and 360, "
            f"but no row of source {name!r} has such a place (first: {found['lat']} {lat[0]:g}, "
            f"{found['lon']} {lon[0]:g}); are they in metres, or swapped?"
        )
    if not good.all():
        row = int(np.flatnonzero(~good)[0])
        example = f"row {row}: {found['lat']} {lat[row]:g}, {found['lon']} {lon[row]:g}"
        count = int((~good).sum())
        notes.append(Note(name, "dropped", "impossible coordinates", count, total, example))
    if times is not None and np.isnat(times).any():
        missing = np.isnat(times)
        row = int(np.flatnonzero(missing)[0])
        notes.append(Note(name, "dropped", "no time", int(missing.sum()), total, f"row {row}"))
        good &= ~missing

    labels = _labels(frame, found, lat, lon)
    variables, columns, text = _sort_columns(frame, found)
    if not variables:
        raise ValueError(
            f"Source {name!r} must have at least one column of numbers besides its coordinates, "
            f"got {sorted(frame.columns)}; to observe a field at these places, use gt.observe."
        )
    for column in text:
        notes.append(Note(name, "left out", f"column {column!r} holds text", 1, 1))
    values = np.stack([_numbers(name, frame, c).astype(np.float32) for c in variables], 1)
    values[~np.isfinite(values)] = np.nan
    good, again = _unique(name, good, times, lat, lon, labels, values, total)
    notes += again
    if times is None and any(note.count > total / 2 for note in again):
        raise ValueError(
            f"Source {name!r} must have one row per place and time, but it has many per place and "
            f"no time was found among {sorted(frame.columns)}; name its times 'time'."
        )
    described = []
    for i, column in enumerate(variables):
        described.append(describe_values(name, column, values[good, i], known[column]))
        if described[-1].missing:
            count = int(np.isnan(values[good, i]).sum())
            notes.append(Note(name, "masked", f"{column} is missing", count, int(good.sum())))
    nothing = good & np.isnan(values).all(1)
    good &= ~nothing

    order = np.flatnonzero(good)
    keys = [labels, wrap(lon), lat] + ([] if times is None else [times])
    order = order[np.lexsort([key[order] for key in keys])]
    extra = {c: _numbers(name, frame, c).astype(np.float32)[order] for c in columns}
    return (
        Records(
            name,
            tuple(described),
            None if times is None else times[order],
            lat[order],
            wrap(lon)[order],
            labels[order],
            extra,
            values[order],
        ),
        notes,
    )


def describe_values(
    source: str, name: str, values: np.ndarray, attributes: Mapping[str, Any]
) -> Variable:
    """A variable and its range, or a sentence if it has no values at all."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        raise ValueError(
            f"Every variable must have at least one value, but {name!r} of source {source!r} is "
            "missing everywhere; leave it out or mend its fill value."
        )
    units = attributes.get("units")
    kept = kept_attributes(attributes)
    missing = 1 - len(finite) / values.size
    low, high = float(finite.min()), float(finite.max())
    return Variable(name, None if units is None else str(units), kept, missing, low, high)


def kept_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Those that say what a variable is, not how it was stored."""
    return {k: v for k, v in attributes.items() if k in ("standard_name", "long_name", "units")}


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    """Index levels that have a name become columns."""
    levels = [level for level in frame.index.names if level is not None]
    levels = [level for level in levels if level not in frame.columns]
    return frame.reset_index(levels) if levels else frame


def _long_to_wide(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    """One row per observation of one variable becomes one row per place and time."""
    lower = {str(c).lower(): c for c in frame.columns}
    value = next((lower[v] for v in LONG_VALUES if v in lower), None)
    if value is None or "variable" not in lower:
        return frame
    kind = lower["variable"]
    keys = [c for role in NAMES for c in frame.columns if str(c).lower() in NAMES[role]]
    keys = [c for c in keys if c not in (value, kind)]
    if not keys:
        require_places({}, name, map(str, frame.columns))
    # the same thing told twice gets a row of its own, to be found among the duplicates
    again = frame.groupby([*keys, kind], dropna=False).cumcount().rename("again")
    wide = frame.set_index([*keys, again, kind])[value].unstack(kind)
    wide.columns = [str(column) for column in wide.columns]
    return wide.reset_index().drop(columns="again")


def _numbers(source: str, frame: pd.DataFrame, column: str) -> np.ndarray:
    numbers = pd.Series(pd.to_numeric(frame[column], errors="coerce"))  # pyright: ignore[reportArgumentType]
    wrong = np.flatnonzero(numbers.isna().to_numpy() & frame[column].notna().to_numpy())
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"Column {column!r} of source {source!r} must hold numbers, but row {row} holds "
            f"{frame[column].iloc[row]!r}."
        )
    return numbers.to_numpy(np.float64, na_value=np.nan)


def _labels(
    frame: pd.DataFrame, found: Mapping[str, str], lat: np.ndarray, lon: np.ndarray
) -> np.ndarray:
    """The station of every row; without such a column, a number for its place."""
    if "station" in found:
        return frame[found["station"]].astype(str).to_numpy(dtype=object).astype(str)
    place = np.nan_to_num(lat.round(4)) * 1e4 + 1j * np.nan_to_num(wrap(lon).round(4))
    return np.unique(place, return_inverse=True)[1].ravel()


def _sort_columns(
    frame: pd.DataFrame, found: Mapping[str, str]
) -> tuple[list[str], list[str], list[str]]:
    """Variables, what is known about a place, and columns of text."""
    roles = {found.get(role) for role in ("lat", "lon", "time", "station")}
    rest = [c for c in frame.columns if c not in roles]
    numeric = [c for c in rest if pd.api.types.is_numeric_dtype(frame[c])]
    columns = [c for c in numeric if c == found.get("elevation")]
    variables = [c for c in numeric if c not in columns]
    if not variables:  # a list of stations with their elevation: that is what it tells
        variables, columns = columns, []
    return sorted(variables), columns, [c for c in rest if c not in numeric]


def _unique(
    name: str,
    good: np.ndarray,
    times: np.ndarray | None,
    lat: np.ndarray,
    lon: np.ndarray,
    labels: np.ndarray,
    values: np.ndarray,
    total: int,
) -> tuple[np.ndarray, list[Note]]:
    """One row per station, place and time: the first that came."""
    keys = {"label": labels, "lat": lat, "lon": wrap(lon)}
    if times is not None:
        keys["time"] = times
    table = pd.DataFrame(keys)[good]
    again = table.duplicated().to_numpy()
    if not again.any():
        return good, []
    rows = np.flatnonzero(good)
    row = int(rows[again][0])
    when = "" if times is None else f" at {show(times[row])}"
    example = f"row {row}: {labels[row]}{when}"
    same = pd.concat([table, pd.DataFrame(values, index=None)[good]], axis=1).duplicated()
    differ = int(again.sum() - same.to_numpy()[again].sum())
    why = "duplicates" + (f", {differ:,} of them with other values" if differ else "")
    kept = good.copy()
    kept[rows[again]] = False
    return kept, [Note(name, "dropped", why, int(again.sum()), total, example)]
