"""Times, durations and time windows: what is parsed and what is refused."""

from datetime import datetime

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from gridtnp.sources.times import Window, duration, rows_between, show, to_time, to_times

SETTINGS = settings(max_examples=examples(60))
NOON = np.datetime64("2019-03-20T12:00", "ms")


@pytest.mark.parametrize(
    "value",
    [
        "2019-03-20 12:00",
        "2019-03-20T12:00:00Z",
        "2019-03-20T13:00:00+01:00",
        datetime(2019, 3, 20, 12),
        pd.Timestamp("2019-03-20 12:00"),
        pd.Timestamp("2019-03-20 08:00", tz="America/New_York"),
        np.datetime64("2019-03-20T12"),
    ],
)
def test_a_time_in_any_form_is_the_same_in_utc(value: object) -> None:
    assert to_time(value) == NOON
    assert to_time(value).dtype == "datetime64[ms]"


def test_a_column_with_a_zone_is_converted_and_missing_times_stay_missing() -> None:
    column = pd.Series(pd.to_datetime(["2019-03-20 13:00", None]).tz_localize("Europe/Berlin"))
    times = to_times(column, "time")
    assert times[0] == NOON
    assert np.isnat(times[1])
    assert np.isnat(to_times(pd.Series(["2019-03-20", None]), "time")[1])


def test_times_in_different_zones_are_converted() -> None:
    times = to_times(["2019-03-20T13:00+01:00", "2019-03-20T07:00-05:00"], "time")
    assert (times == NOON).all()


def test_mixed_time_zones_are_refused() -> None:
    column = pd.Series(["2019-03-20T12:00", "2019-03-20T12:00+01:00"])
    message = (
        r"^'when' mixes times with and without a time zone, '2019-03-20T12:00\+01:00' \(row 1\) "
        r"and '2019-03-20T12:00' \(row 0\); give all a time zone, or none for UTC\.$"
    )
    with pytest.raises(ValueError, match=message):
        to_times(column, "when")


def test_times_that_are_not_times_are_refused_with_their_row() -> None:
    message = (
        r"^'date' holds 'soon' in row 1, which is not a date such as '2019-03-20 12:00' "
        r"\(1 of 3 rows\)\.$"
    )
    with pytest.raises(ValueError, match=message):
        to_times(["2019-03-20", "soon", "2019-03-21"], "date")
    with pytest.raises(
        ValueError, match=r"^'time' holds numbers \(first: 3\.5\), not dates; convert them"
    ):
        to_times([3.5, 4.5], "time")


def test_calendars_without_leap_years_are_refused() -> None:
    times = xr.date_range("2000-01-01", periods=3, calendar="noleap", use_cftime=True)
    with pytest.raises(ValueError, match=r"^'time' is in calendar 'noleap'; convert it with ds\."):
        to_times(np.asarray(times), "time")


def test_durations() -> None:
    assert duration("6h") == np.timedelta64(6, "h")
    assert duration("-90min") == np.timedelta64(-90, "m")
    assert duration(pd.Timedelta("1D")) == np.timedelta64(1, "D")
    assert duration("0") == duration(0) == np.timedelta64(0, "ms")
    for bad in ("soon", "", None, 31, "31", " 31 ", 0.5, "1e9", np.int64(6), np.nan):
        with pytest.raises(
            ValueError, match=r" is not a duration; give a number with a unit, such as"
        ):
            duration(bad)


def test_a_window_reads_its_brackets() -> None:
    window = Window.parse("(-6h, 0h]")
    start, stop = window.around(NOON)
    assert start == np.datetime64("2019-03-20T06:00:00.001")
    assert stop == np.datetime64("2019-03-20T12:00:00.001")
    assert Window.parse(" [ -6h ,0h) ").around(NOON)[1] == NOON


@pytest.mark.parametrize("text", ["-6h, 0h", "(-6h 0h]", "(-6h, 0h, 6h]", ""])
def test_text_that_is_not_a_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^'.*' is not a time window; give two durations in"):
        Window.parse(text)


@pytest.mark.parametrize("text", ["(0h, 0h]", "[0h, -6h]", "[1h, 1h)"])
def test_empty_windows_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^Time window '.*' is empty; its start must be earlier"):
        Window.parse(text)


@SETTINGS
@given(
    st.lists(st.integers(-1000, 1000), max_size=30),
    st.integers(-300, 300),
    st.integers(1, 300),
    st.sampled_from("[("),
    st.sampled_from("])"),
    st.integers(-1000, 1000),
)
def test_windows_against_brute_force(
    minutes: list[int], low: int, length: int, opening: str, closing: str, now: int
) -> None:
    high = low + length
    times = np.sort(NOON + np.array(minutes, "timedelta64[m]").astype("timedelta64[ms]"))
    time = NOON + np.timedelta64(now, "m")
    window = Window.parse(f"{opening}{low}min, {high}min{closing}")
    first, last = rows_between(times, *window.around(time))
    apart = (times - time) / np.timedelta64(1, "m")
    above = apart >= low if opening == "[" else apart > low
    below = apart <= high if closing == "]" else apart < high
    assert np.flatnonzero(above & below).tolist() == list(range(first, last))


def test_dates_are_shown_as_short_as_they_can_be() -> None:
    assert show(NOON) == "2019-03-20 12:00"
    assert show(np.datetime64("2019-03-20", "ms")) == "2019-03-20"
    assert show(np.datetime64("2019-03-20T12:00:01", "ms")) == "2019-03-20 12:00:01"
