"""pandas tables to `Records`: columns are recognised, rows cleaned and sorted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gridtnp.sources.coordinates import (
    NAMES,
    plain,
    possible,
    recognise,
    require_file_name,
    require_places,
    shown,
    to_degrees,
    units_text,
    why_no_variable,
    wrap,
)
from gridtnp.sources.projection import projected_columns, unproject
from gridtnp.sources.quality import Missing, Note, sentinels
from gridtnp.sources.source import Records, Variable
from gridtnp.sources.times import show, to_times

SAME = 9
"""Decimals of degrees that tell locations apart: 0.1 mm, and more than longitudes lose by 360°."""
LONG_VALUES = ("observation", "value")
"""Names of the column of values in a table in long format, beside `variable`."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a table, recognised and cleaned but in their own order; some are not `valid`.

    `located` is the number of rows with possible coordinates; latitudes and longitudes are NaN in
    the others.
    """

    valid: np.ndarray
    located: int
    times: np.ndarray | None
    lat: np.ndarray
    lon: np.ndarray
    stations: np.ndarray | None
    """Names as text, None where there is none."""
    variables: tuple[str, ...]
    values: np.ndarray
    columns: dict[str, np.ndarray]
    attributes: dict[str, dict[str, Any]]
    notes: list[Note]


def read_table(
    name: str,
    frame: pd.DataFrame,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    na_values: Sequence[Any] = (),
    crs: str | None = None,
) -> tuple[Records, list[Note]]:
    """Read a table, and note what was dropped or masked.

    `attributes` are CF attributes by column; units may also be in `frame.attrs["units"]`.
    `na_values` stand for missing, and `crs` is the projection of its coordinates.
    """
    frame = _long_to_wide(name, index_to_columns(frame))
    if frame.empty:
        raise ValueError(f"Source {name!r} is an empty table; it needs at least one row.")
    rows = clean_rows(name, frame, attributes, na_values=na_values, crs=crs)
    valid, times, lat, lon, values = rows.valid, rows.times, rows.lat, rows.lon, rows.values
    total, notes = len(valid), rows.notes
    labels = station_labels(rows.stations, lat, lon)
    valid, duplicates = _drop_duplicates(name, valid, times, lat, lon, labels, values, total)
    notes += duplicates
    if times is None and any(note.count > total / 2 for note in duplicates):
        raise ValueError(
            f"Source {name!r} has several rows per location, but no time among "
            f"{shown(sorted(map(str, frame.columns)))}; name its times 'time'."
        )
    described = []
    for i, column in enumerate(rows.variables):
        described.append(describe_values(name, column, values[valid, i], rows.attributes[column]))
        if described[-1].missing:
            count = int(np.isnan(values[valid, i]).sum())
            notes.append(Note(name, "masked", f"{column} is missing", count, int(valid.sum())))
        notes += sentinels(name, column, values[valid, i])
    valid &= ~np.isnan(values).all(1)

    order = np.flatnonzero(valid)
    keys = [labels, lon, lat] + ([] if times is None else [times])
    order = order[np.lexsort([key[order] for key in keys])]
    extra = {column: numbers[order] for column, numbers in rows.columns.items()}
    for column, numbers in extra.items():
        notes += sentinels(name, column, numbers)
    records = Records(
        name,
        tuple(described),
        None if times is None else times[order],
        lat[order],
        lon[order],
        labels[order],
        extra,
        values[order],
    )
    return records, notes


def clean_rows(
    name: str,
    frame: pd.DataFrame,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    na_values: Sequence[Any] = (),
    crs: str | None = None,
    allow_empty: bool = False,
    first: int = 0,
) -> Rows:
    """Recognise and clean the rows of a table; arguments are those of `read_table`.

    Part of a table may have no valid row (`allow_empty`); its `first` row has this number.
    """
    units, notes = frame.attrs.get("units", {}), []
    frame = frame.rename(columns=str).infer_objects()
    for column in frame.columns[frame.columns.duplicated()]:
        notes.append(Note(name, "left out", f"column {column!r} repeats {column!r}", 1, 1))
    frame = frame.loc[:, ~frame.columns.duplicated()]
    known = {c: dict((attributes or {}).get(c, {})) for c in frame.columns}
    for column, unit in units.items():
        known.setdefault(str(column), {})["units"] = unit
    found = recognise({column: known[column] for column in frame.columns})
    frame = _mask(frame, na_values, found)
    total = len(frame)

    if crs is None:
        require_places(found, name, frame.columns)
        lat, lon = (
            to_degrees(_numbers(name, frame, found[r]), r, found[r], known[found[r]], name)
            for r in ("lat", "lon")
        )
    else:
        columns = projected_columns(found, name)
        x, y = (_numbers(name, frame, column) for column in columns)
        declared = units_text(known[columns[0]]), units_text(known[columns[1]])
        lat, lon = unproject(name, crs, x, y, columns, declared)
        found |= {"lon": columns[0], "lat": columns[1]}
    times = to_times(frame[found["time"]], found["time"]) if "time" in found else None
    valid = possible(lat, lon)
    located = int(valid.sum())
    if not located and not allow_empty:
        raise ValueError(
            f"No row of source {name!r} has a latitude within ±90 and a longitude within ±360 "
            f"(row 0: {found['lat']} {lat[0]:g}, {found['lon']} {lon[0]:g}); are they in metres, "
            "or swapped?"
        )
    if located < total:
        row = int(np.flatnonzero(~valid)[0])
        example = f"row {first + row}: {found['lat']} {lat[row]:g}, {found['lon']} {lon[row]:g}"
        why = "invalid coordinates"
        notes.append(Note(name, "dropped", why, total - located, total, example))
    if times is not None and np.isnat(times).any():
        missing = np.isnat(times)
        example = f"row {first + int(np.flatnonzero(missing)[0])}"
        notes.append(Note(name, "dropped", "no time", int(missing.sum()), total, example))
    lat, lon = np.where(valid, lat, np.nan), wrap(np.where(valid, lon, np.nan))
    if times is not None:
        valid &= ~np.isnat(times)
    variables, columns = _classify_columns(name, frame, found, notes)
    if not variables:
        raise ValueError(
            f"Source {name!r} has no numeric column besides its coordinates, only "
            f"{sorted(frame.columns)}; to sample a field at these locations, use gt.observe."
        )
    values = np.stack([_numbers(name, frame, c).astype(np.float32) for c in variables], 1)
    values[~np.isfinite(values)] = np.nan
    extra = {c: _numbers(name, frame, c).astype(np.float32) for c in columns}
    stations = _stations(frame, found)
    return Rows(
        *(valid, located, times, lat, lon, stations, tuple(variables), values, extra, known, notes)
    )


def describe_values(
    source: str, name: str, values: np.ndarray, attributes: Mapping[str, Any]
) -> Variable:
    """The units, range and missing share of a variable; raises if it has no values at all."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    return described(source, name, values.size, len(finite), low, high, attributes)


def described(
    source: str,
    name: str,
    total: int,
    finite: int,
    low: float,
    high: float,
    attributes: Mapping[str, Any],
) -> Variable:
    """A variable of which `finite` of the `total` values are there, from `low` to `high`."""
    if not finite:
        raise ValueError(
            f"Variable {name!r} of source {source!r} is missing everywhere; leave it out or "
            "correct its fill value."
        )
    units = attributes.get("units")
    kept = kept_attributes(attributes)
    missing = 1 - finite / total
    return Variable(name, None if units is None else str(units), kept, missing, low, high)


def kept_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that describe a variable, without those of its storage."""
    return {k: v for k, v in attributes.items() if k in ("standard_name", "long_name", "units")}


def index_to_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Turn named index levels into columns; join names of columns that have several levels.

    An index of dates without a name is the time, unless a column is.
    """
    if isinstance(frame.columns, pd.MultiIndex):
        frame = frame.set_axis(["_".join(filter(None, map(str, c))) for c in frame.columns], axis=1)
    if isinstance(frame.index, pd.DatetimeIndex) and frame.index.name is None:
        timed = any(plain(str(column)) in NAMES["time"] for column in frame.columns)
        frame = frame if timed else frame.rename_axis(index="time")
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
    roles = {name for names in NAMES.values() for name in names}
    keys = [c for c in frame.columns if plain(str(c)) in roles and c not in (value, kind)]
    if not keys:
        require_places({}, name, map(str, frame.columns))
    # repeated observations get a row each, so that they are counted as duplicates later
    repeat = frame.groupby([*keys, kind], dropna=False).cumcount().rename("_repeat")
    wide = frame.set_index([*keys, repeat, kind])[value].unstack(kind)
    wide.columns = [str(column) for column in wide.columns]
    return wide.reset_index().drop(columns="_repeat")


def _mask(frame: pd.DataFrame, na_values: Sequence[Any], found: Mapping[str, str]) -> pd.DataFrame:
    """The table with what stands for missing masked, also in columns of text.

    Text is read as numbers if it is nothing else, except the names of stations and times.
    """
    if not na_values:
        return frame
    missing, texts = Missing.declared({}, na_values), {str(value).strip() for value in na_values}
    made = {}
    for column in frame.columns:
        values = frame[column]
        if column in (found.get("station"), found.get("time")) and values.dtype.kind != "M":
            blank = values.astype("string").str.strip().isin(texts) | values.isin(na_values)
            kept = values.astype(object) if column == found.get("station") else values
            made[column] = kept.mask(blank)
        elif pd.api.types.is_numeric_dtype(values):
            made[column] = missing.mask(values.to_numpy(np.float64, na_value=np.nan))
        elif values.dtype.kind != "M":
            kept = values.mask(values.astype("string").str.strip().isin(texts))
            numbers = _parse(kept)
            text = (numbers.isna() & kept.notna()).any()
            made[column] = kept if text else missing.mask(numbers.to_numpy(np.float64))
    return frame.assign(**made)


def _parse(values: Any) -> pd.Series:
    """Numbers, and NaN for what is none."""
    return pd.Series(pd.to_numeric(values, errors="coerce"))


def _numbers(source: str, frame: pd.DataFrame, column: str) -> np.ndarray:
    numbers = _parse(frame[column])
    wrong = np.flatnonzero(numbers.isna().to_numpy() & frame[column].notna().to_numpy())
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"Column {column!r} of source {source!r} is not numeric: row {row} holds "
            f"{frame[column].iloc[row]!r}."
        )
    return numbers.to_numpy(np.float64, na_value=np.nan)


def _stations(frame: pd.DataFrame, found: Mapping[str, str]) -> np.ndarray | None:
    """The name of the station of every row, None where it has none."""
    if "station" not in found:
        return None
    column = frame[found["station"]]
    names = np.array(column.astype(str), object)
    names[column.isna().to_numpy()] = None
    return names


def station_labels(stations: np.ndarray | None, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    """The station of every row, or a number for its location where it has none."""
    place = np.nan_to_num(lat.round(4)) * 1e4 + 1j * np.nan_to_num(lon.round(4))
    number = np.unique(place, return_inverse=True)[1].ravel()
    if stations is None:
        return number
    labels, unnamed = stations.copy(), np.flatnonzero(pd.isna(stations))
    labels[unnamed] = [f"unnamed {number[i]}" for i in unnamed]
    return labels.astype(str)


def _classify_columns(
    name: str, frame: pd.DataFrame, found: Mapping[str, str], notes: list[Note]
) -> tuple[list[str], list[str]]:
    """Variables and static columns; what is left out is noted."""
    roles = {found.get(role) for role in ("lat", "lon", "time", "station")}
    variables, columns = [], []
    for column in frame.columns:
        if column in roles:
            continue
        if not pd.api.types.is_numeric_dtype(frame[column]):
            notes.append(_left_out_text(name, frame, column))
            continue
        given = frame[column].dropna().to_numpy(np.float64)
        why = why_no_variable(column, frame.columns, bool((given == np.round(given)).all()))
        if why is not None:
            notes.append(Note(name, "left out", why, 1, 1))
            continue
        require_file_name(column, name)
        (columns if column == found.get("elevation") else variables).append(column)
    if not variables:  # a list of stations: the elevation is its only variable
        variables, columns = columns, []
    return sorted(variables), columns


def _left_out_text(name: str, frame: pd.DataFrame, column: str) -> Note:
    """A note on a column of text, with an example if most of it are numbers."""
    given = frame[column].notna()
    text = (given & _parse(frame[column]).isna()).to_numpy()
    if not 0 < text.sum() <= given.sum() / 2:
        return Note(name, "left out", f"column {column!r} holds text", 1, 1)
    row = int(np.flatnonzero(text)[0])
    kinds = list(dict.fromkeys(map(str, frame[column].to_numpy()[text])))[:3]
    why = (
        f"column {column!r} is left out, because it holds text among its numbers; "
        f"na_values={kinds} masks it"
    )
    return Note(name, "noticed", why, int(text.sum()), len(frame), f"row {row}: {kinds[0]!r}")


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
    """Keep the first row per station, location and time.

    A longitude of the range from 0 to 360 differs by rounding from the same one in the other range.
    """
    keys = {"label": labels, "lat": lat.round(SAME), "lon": lon.round(SAME)}
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
