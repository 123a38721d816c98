"""Tables: what is recognised, dropped, masked and refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import weather

from gridtnp.sources.quality import Note
from gridtnp.sources.tables import read_table


def notes_of(frame: pd.DataFrame) -> dict[str, Note]:
    return {note.why: note for note in read_table("obs", frame)[1]}


def test_a_table_is_sorted_by_time_and_place_and_keeps_its_values() -> None:
    frame = weather.stations()
    source, notes = read_table("obs", frame.sample(frac=1.0, random_state=0))
    assert not notes
    assert source.names == ("t2m",)
    assert source.times is not None
    assert (np.diff(source.times) >= np.timedelta64(0)).all()
    ordered = frame.sort_values(["time", "lat", "lon"])
    np.testing.assert_array_equal(source.table[:, 0], ordered.t2m.to_numpy(np.float32))
    np.testing.assert_array_equal(source.lat, ordered.lat.to_numpy())
    np.testing.assert_array_equal(source.columns["elevation"], ordered.elevation.to_numpy())
    assert source.labels is not None
    assert source.labels.tolist() == ordered.station.tolist()


def test_duplicates_are_dropped_and_noted() -> None:
    frame = weather.stations(number=3, days=2)
    again = frame.iloc[[4, 5]].copy()
    again.loc[again.index[1], "t2m"] = 99.0
    source, notes = read_table("obs", pd.concat([frame, again], ignore_index=True))
    assert source.size == 6
    assert 99.0 not in source.table
    (note,) = notes
    assert str(note) == (
        "obs: 2 of 8 dropped: duplicates, 1 of them with other values "
        "(for example row 6: S01 at 2019-03-02)"
    )


def test_invalid_coordinates_are_dropped_and_noted() -> None:
    frame = weather.stations(number=4, days=1)
    frame.loc[1, "lat"] = 91.5
    frame.loc[2, "lon"] = np.nan
    source, notes = read_table("obs", frame)
    assert source.size == 2
    (note,) = notes
    assert (note.action, note.count, note.total) == ("dropped", 2, 4)
    assert note.example.startswith("row 1: lat 91.5, lon ")


def test_latitudes_beyond_the_poles_everywhere_are_refused() -> None:
    frame = weather.stations(number=2, days=1).assign(lat=[5_400_000.0, 5_500_000.0])
    message = (
        r"^No row of source 'obs' has a latitude within ±90 and a longitude within ±360 "
        r"\(row 0: lat 5\.4e\+06, lon .*\); are they in metres, or swapped\?$"
    )
    with pytest.raises(ValueError, match=message):
        read_table("obs", frame)


def test_rows_without_a_time_are_dropped_and_noted() -> None:
    frame = weather.stations(number=2, days=2)
    frame.loc[3, "time"] = pd.NaT
    (note,) = read_table("obs", frame)[1]
    assert str(note) == "obs: 1 of 4 dropped: no time (for example row 3)"


def test_missing_values_are_counted() -> None:
    frame = weather.stations(number=2, days=2).assign(rain=[1.0, np.nan, np.inf, 2.0])
    source, notes = read_table("obs", frame)
    assert source.variable("rain").missing == 0.5
    assert [str(note) for note in notes] == ["obs: 2 of 4 masked: rain is missing"]


def test_a_variable_that_is_missing_everywhere_is_refused() -> None:
    message = r"^Variable 'rain' of source 'obs' is missing everywhere; leave it out or correct"
    with pytest.raises(ValueError, match=message):
        read_table("obs", weather.stations().assign(rain=np.nan))


def test_text_is_left_out_and_noted_and_text_among_numbers_is_refused() -> None:
    frame = weather.stations(number=2, days=1)
    source, notes = read_table("obs", frame.assign(country=["FR", "GB"]))
    assert source.names == ("t2m",)
    assert str(notes[0]) == "obs: 1 left out: column 'country' holds text"
    with pytest.raises(
        ValueError, match=r"^Column 'lat' of source 'obs' is not numeric: row 1 holds 'north'\.$"
    ):
        read_table("obs", frame.assign(lat=["50", "north"]))


def test_no_coordinates_no_rows_no_values() -> None:
    frame = weather.stations()
    with pytest.raises(
        ValueError, match=r"^Source 'obs' has no latitude among \['elevation', 'lon', "
    ):
        read_table("obs", frame.drop(columns="lat"))
    with pytest.raises(ValueError, match=r"^Source 'obs' is an empty table; it needs at least one"):
        read_table("obs", frame[:0])
    with pytest.raises(ValueError, match=r"^Source 'obs' has no numeric column besides its coord"):
        read_table("obs", frame[["lat", "lon", "station"]])


def test_a_list_of_stations_observes_their_elevation() -> None:
    source, _ = read_table("obs", weather.stations(days=1)[["lat", "lon", "elevation"]])
    assert source.names == ("elevation",)
    assert source.times is None
    assert source.rows(None, None) == (0, 12)


def test_without_names_a_station_is_its_location() -> None:
    frame = weather.stations(number=3, days=2).drop(columns="station")
    source, _ = read_table("obs", frame)
    assert source.labels is not None
    assert len(set(source.labels.tolist())) == 3


def test_the_long_format_of_earth2studio_is_read() -> None:
    wide = weather.stations(number=3, days=2).rename(columns={"elevation": "elev"})
    wide["d2m"] = wide.t2m - 2
    long = wide.melt(
        ["time", "lat", "lon", "elev", "station"], ["t2m", "d2m"], "variable", "observation"
    )
    source, notes = read_table("obs", long.sample(frac=1.0, random_state=1))
    expected, _ = read_table("obs", wide)
    assert not notes
    assert set(source.names) == {"t2m", "d2m"}
    for name in source.names:
        column, other = source.index((name,)), expected.index((name,))
        np.testing.assert_array_equal(source.table[:, column], expected.table[:, other])
    assert set(source.columns) == {"elev"}
    again = pd.concat([long, long.iloc[:1]], ignore_index=True)
    assert read_table("obs", again)[1][0].why.startswith("duplicates")


def test_an_index_of_dates_is_the_time_without_a_name_too() -> None:
    frame = pd.DataFrame({"lat": [50.0, 51.0, 52.0], "lon": 2.0, "t": [1.0, 2.0, 3.0]})
    times = pd.date_range("2020-01-01", periods=3, freq="1h")
    source, notes = read_table("ship", frame.set_index(times))
    assert not notes
    np.testing.assert_array_equal(source.times, times.to_numpy())
    dated = frame.assign(date=times + pd.Timedelta("1D")).set_index(times)
    source, _ = read_table("ship", dated)  # a column takes precedence
    np.testing.assert_array_equal(source.times, dated["date"])


def test_units_come_with_the_table() -> None:
    frame = weather.stations()
    frame.attrs["units"] = {"t2m": "degC"}
    assert read_table("obs", frame)[0].variable("t2m").units == "degC"


def test_an_unknown_variable_is_a_typo() -> None:
    source, _ = read_table("obs", weather.stations())
    with pytest.raises(
        ValueError, match=r"^Unknown variable 't2' of source 'obs'; did you mean 't2m'"
    ):
        source.variable("t2")


def test_several_rows_per_location_need_times() -> None:
    frame = weather.stations().rename(columns={"time": "when"})
    message = (
        r"^Source 'obs' has several rows per location, but no time among \['elevation', .*\]; "
        r"name its times 'time'\.$"
    )
    with pytest.raises(ValueError, match=message):
        read_table("obs", frame)


def test_a_long_frame_needs_coordinates_and_may_lack_elevations() -> None:
    long = pd.DataFrame({"variable": ["t", "t"], "value": [1.0, 2.0]})
    message = r"^Source 'obs' has no latitude among \['value', 'variable'\]; name it 'lat'"
    with pytest.raises(ValueError, match=message):
        read_table("obs", long)
    long = long.assign(lat=[1.0, 2.0], lon=0.0, elev=[5.0, np.nan])
    source, notes = read_table("obs", long)
    assert not notes
    assert source.table[:, 0].tolist() == [1.0, 2.0]
    assert np.isnan(source.columns["elev"][1])


@pytest.mark.parametrize("names", [["007", "7", "M", "8"], [1001, 1002, -9999, 1003]])
def test_na_values_leave_names_and_dates_as_they_are(names: list[str] | list[int]) -> None:
    dates = ["20200101", "20200102", "20200103", "M"]
    frame = pd.DataFrame({"id": names, "lat": 50.0, "lon": np.arange(4.0), "date": dates, "t": 1.0})
    source, notes = read_table("s", frame, na_values=["M", -9999])
    assert [note.why for note in notes] == ["no time"]
    assert source.times is not None
    assert [str(time)[:10] for time in source.times] == ["2020-01-01", "2020-01-02", "2020-01-03"]
    assert source.labels is not None
    assert source.labels.tolist() == [*map(str, names[:2]), "unnamed 2"]
    with pytest.raises(ValueError, match=r"^'date' holds numbers"):
        read_table("s", frame.assign(date=[20200101, 20200102, 20200103, -9999]), na_values=[-9999])


def test_names_of_columns_in_several_levels_are_joined() -> None:
    frame = weather.stations()
    daily = frame.groupby(["time", "station", "lat", "lon"]).agg({"t2m": ["mean", "max"]})
    for table in (daily, daily.reset_index()):
        source, notes = read_table("obs", table)
        assert source.names == ("t2m_max", "t2m_mean")
        assert not notes
        assert source.size == len(frame)


def test_names_with_blanks_and_of_observation_times_are_recognised() -> None:
    frame = weather.stations().rename(
        columns={"lat": "Latitude", "lon": "LON", "station": "Station Name", "time": "obs_time"}
    )
    records, notes = read_table("obs", frame)
    expected, _ = read_table("obs", weather.stations())
    assert records.times is not None
    assert expected.times is not None
    assert (records.times == expected.times).all()
    assert (records.labels == expected.labels).all()
    assert not notes
    assert read_table("obs", frame.rename(columns={"obs_time": "Date Time"}))[0].times is not None


def test_duplicates_are_found_across_both_ranges_of_longitudes() -> None:
    frame = weather.stations().assign(lon=lambda f: -81.4333 - f["lon"].abs().round(1))
    again = frame.assign(lon=(frame["lon"] + 360).round(4))
    _, notes = read_table("obs", pd.concat([frame, again]))
    assert [(note.why, note.count) for note in notes] == [("duplicates", len(frame))]


def test_a_table_with_a_column_per_station_is_one_short_sentence() -> None:
    wide = pd.DataFrame(np.ones((3, 200)), columns=[f"S{i}" for i in range(200)])
    with pytest.raises(
        ValueError, match=r"'S100'.* and 188 more; .* row per station and time"
    ) as e:
        read_table("obs", wide)
    assert len(str(e.value)) < 400
