"""Times, durations and time windows, parsed into UTC with millisecond resolution.

Dates may be numpy, pandas or Python values or ISO 8601 text. Dates with a time zone are converted
to UTC, others are taken as UTC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

UNIT = "datetime64[ms]"
HOUR = np.timedelta64(3_600_000, "ms")
ZONE = r"\d[T ]\d.*(?:Z|[+-]\d{2}(?::?\d{2})?)$"
"""A time of day that ends with a time zone."""
WINDOW = re.compile(r"([\[(])\s*([^,\s][^,]*?)\s*,\s*([^,]+?)\s*([\])])")


def to_times(values: Any, column: str) -> np.ndarray:
    """Parse dates; missing dates become NaT. `column` is their name in error messages."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        return values.astype(UNIT)
    series = pd.Series(np.asarray(values) if not isinstance(values, pd.Series) else values)
    series = series.reset_index(drop=True)
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    if series.dtype.kind == "M":
        return series.to_numpy().astype(UNIT)
    first = series.dropna().iloc[0] if series.notna().any() else None
    if type(first).__module__.startswith("cftime"):
        raise ValueError(
            f"{column!r} is in calendar {getattr(first, 'calendar', '?')!r}; convert it with "
            "ds.convert_calendar('standard')."
        )
    if pd.api.types.is_numeric_dtype(series.dtype):
        raise ValueError(
            f"{column!r} holds numbers (first: {first}), not dates; convert them, e.g. with "
            "pd.to_datetime(values, unit='h', origin='1970-01-01')."
        )
    texts = series.astype("string").str.strip()
    zoned = texts.str.contains(ZONE, regex=True).fillna(False).to_numpy(bool)
    given = series.notna().to_numpy()
    if zoned.any() and (given & ~zoned).any():
        row, other = int(np.flatnonzero(zoned)[0]), int(np.flatnonzero(given & ~zoned)[0])
        raise ValueError(
            f"{column!r} mixes times with and without a time zone, {texts[row]!r} (row {row}) and "
            f"{texts[other]!r} (row {other}); give all a time zone, or none for UTC."
        )
    parsed = pd.to_datetime(texts, utc=True, errors="coerce", format="ISO8601")
    written = texts.str.match(r"[+-]?\d").fillna(False).to_numpy(bool)  # pandas knows "now"
    wrong = np.flatnonzero(given & ~(written & parsed.notna().to_numpy()))
    if len(wrong):
        raise ValueError(
            f"{column!r} holds {texts[int(wrong[0])]!r} in row {int(wrong[0])}, which is not a "
            f"date such as '2019-03-20 12:00' ({len(wrong)} of {len(series)} rows)."
        )
    return parsed.dt.tz_localize(None).to_numpy().astype(UNIT)


def to_time(value: Any, name: str = "time") -> np.datetime64:
    """Parse one date; `name` is what error messages call it."""
    return _parsed(value, name) if isinstance(value, str) else to_times([value], name)[0]


@lru_cache(256)  # a server is asked for the same times again and again
def _parsed(text: str, name: str) -> np.datetime64:
    return to_times([text], name)[0]


def duration(text: Any) -> np.timedelta64:
    """Parse a duration such as `"6h"`, `"1D"` or `"90min"`; only zero needs no unit."""
    try:
        length = pd.Timedelta(text)
    except ValueError:
        length = pd.NaT
    try:
        without_unit = float(str(text)) != 0
    except ValueError:
        without_unit = False
    if length is pd.NaT or without_unit:  # which pandas takes as nanoseconds
        raise ValueError(
            f"{text!r} is not a duration; give a number with a unit, such as '6h', '1D' or '90min'."
        )
    return np.timedelta64(round(length.total_seconds() * 1000), "ms")


@dataclass(frozen=True)
class Window:
    """A time window relative to the time of a task: the half-open interval [start, stop).

    Open and closed ends both have this form, since times are whole milliseconds.
    """

    start: np.timedelta64
    stop: np.timedelta64

    @classmethod
    def parse(cls, text: str) -> Window:
        """Parse an interval: `"(-6h, 0h]"` excludes six hours before and includes the task time."""
        match = WINDOW.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"{text!r} is not a time window; give two durations in brackets, such as "
                "'(-6h, 0h]', where [ and ] include an end and ( and ) exclude it."
            )
        opening, low, high, closing = match.groups()
        instant = np.timedelta64(1, "ms")
        start = duration(low) + (instant if opening == "(" else 0 * instant)
        stop = duration(high) + (instant if closing == "]" else 0 * instant)
        if start >= stop:
            raise ValueError(
                f"Time window {text!r} is empty; its start must be earlier than its end."
            )
        return cls(start, stop)

    def around(self, time: np.datetime64) -> tuple[np.datetime64, np.datetime64]:
        """The window of a task at `time`, as start and exclusive stop."""
        return time + self.start, time + self.stop


def rows_between(times: np.ndarray, start: np.datetime64, stop: np.datetime64) -> tuple[int, int]:
    """The range of rows of sorted times with `start <= time < stop`."""
    first, last = np.searchsorted(times, np.array([start, stop], UNIT), side="left")
    return int(first), int(max(first, last))


def show(time: np.datetime64) -> str:
    """A date as text, without zero seconds and without midnight."""
    text = str(time.astype("datetime64[s]")).replace("T", " ")
    for tail in (":00", " 00:00"):
        text = text.removesuffix(tail)
    return text
