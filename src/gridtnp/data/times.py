"""Times, durations and windows, as people write them, in one unit: whole milliseconds in UTC.

Dates may come as numpy, pandas or Python values or as ISO texts; with a time zone they are
converted, without one they are taken as UTC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

UNIT = "datetime64[ms]"
HOUR = np.timedelta64(3_600_000, "ms")
ZONE = r"\d:\d{2}.*(?:Z|[+-]\d{2}:?\d{2})$"
"""A clock time that ends with its zone."""
WINDOW = re.compile(r"([\[(])\s*([^,\s][^,]*?)\s*,\s*([^,]+?)\s*([\])])")


def to_times(values: Any, column: str) -> np.ndarray:
    """Dates in UTC; missing ones stay missing. `column` is what a message calls them."""
    series = pd.Series(np.asarray(values) if not isinstance(values, pd.Series) else values)
    series = series.reset_index(drop=True)
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    if series.dtype.kind == "M":
        return series.to_numpy().astype(UNIT)
    first = series.dropna().iloc[0] if series.notna().any() else None
    if type(first).__module__.startswith("cftime"):
        raise ValueError(
            f"Times must be in the standard calendar, but {column!r} is in calendar "
            f"{getattr(first, 'calendar', '?')!r}; convert it with ds.convert_calendar('standard')."
        )
    if pd.api.types.is_numeric_dtype(series.dtype):
        raise ValueError(
            f"Times must be dates, but {column!r} holds numbers (first: {first}); say what they "
            "count, e.g. pd.to_datetime(values, unit='h', origin='1970-01-01')."
        )
    texts = series.astype("string").str.strip()
    zoned = texts.str.contains(ZONE, regex=True).fillna(False).to_numpy(bool)
    given = series.notna().to_numpy()
    if zoned.any() and (given & ~zoned).any():
        row, other = int(np.flatnonzero(zoned)[0]), int(np.flatnonzero(given & ~zoned)[0])
        raise ValueError(
            f"Times must all have a time zone or all have none (then they are UTC), but {column!r} "
            f"mixes {texts[row]!r} (row {row}) and {texts[other]!r} (row {other})."
        )
    parsed = pd.to_datetime(texts, utc=True, errors="coerce", format="ISO8601")
    wrong = np.flatnonzero(given & parsed.isna().to_numpy())
    if len(wrong):
        raise ValueError(
            f"Times must be dates such as '2019-03-20 12:00', but {column!r} holds "
            f"{texts[int(wrong[0])]!r} in row {int(wrong[0])} ({len(wrong)} of {len(series)} rows)."
        )
    return parsed.dt.tz_localize(None).to_numpy().astype(UNIT)


def to_time(value: Any) -> np.datetime64:
    """One date."""
    return to_times([value], "time")[0]


def duration(text: Any) -> np.timedelta64:
    """A length of time such as `"6h"`, `"1D"` or `"90min"`."""
    try:
        length = pd.Timedelta(text)
    except ValueError:
        length = pd.NaT
    if length is pd.NaT:
        raise ValueError(
            f"A duration must be a number with a unit, such as '6h', '1D' or '90min', got {text!r}."
        )
    return np.timedelta64(round(length.total_seconds() * 1000), "ms")


@dataclass(frozen=True)
class Window:
    """Times relative to a task's own, from `start` up to but not including `stop`.

    Times are whole milliseconds, so that every kind of interval is of this form.
    """

    start: np.timedelta64
    stop: np.timedelta64

    @classmethod
    def parse(cls, text: str) -> Window:
        """An interval as in mathematics: `"(-6h, 0h]"` is after six hours before, up to now."""
        match = WINDOW.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                "A window must be two durations in brackets, [ or ] where the end belongs to it, "
                f"( or ) where it does not, such as '(-6h, 0h]', got {text!r}."
            )
        opening, low, high, closing = match.groups()
        instant = np.timedelta64(1, "ms")
        start = duration(low) + (instant if opening == "(" else 0 * instant)
        stop = duration(high) + (instant if closing == "]" else 0 * instant)
        if start >= stop:
            raise ValueError(
                f"A window must go from an earlier to a later time, got {text!r}, which is empty."
            )
        return cls(start, stop)

    def around(self, time: np.datetime64) -> tuple[np.datetime64, np.datetime64]:
        """From when up to but not including when."""
        return time + self.start, time + self.stop


def rows_between(times: np.ndarray, start: np.datetime64, stop: np.datetime64) -> tuple[int, int]:
    """The rows of sorted times with `start <= time < stop`: the first, and the one after the
    last.
    """
    first, last = np.searchsorted(times, np.array([start, stop], UNIT), side="left")
    return int(first), int(max(first, last))


def show(time: np.datetime64) -> str:
    """A date to read: no clock time at midnight, no seconds where there are none."""
    text = str(time.astype("datetime64[s]")).replace("T", " ")
    for tail in (":00", " 00:00"):
        text = text.removesuffix(tail)
    return text
