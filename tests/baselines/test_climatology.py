"""Persistence and climatology against brute force with pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import weather
from test_interpolation import raw_tasks

from gridtnp.baselines.climatology import Climatology, Persistence
from gridtnp.baselines.interpolation import Nearest
from gridtnp.data.dataset import Dataset


def hourly(stations: int = 6, hours: int = 24 * 40) -> pd.DataFrame:
    """A daily cycle that differs between stations, with gaps."""
    rng = np.random.default_rng(0)
    times = pd.date_range("2019-03-01", periods=hours, freq="1h")
    frame = pd.DataFrame(
        {
            "time": np.repeat(times, stations),
            "station": np.tile([f"S{i}" for i in range(stations)], hours),
            "lat": np.tile(rng.uniform(48, 55, stations), hours),
            "lon": np.tile(rng.uniform(-4, 4, stations), hours),
        }
    )
    level = np.tile(np.arange(stations) * 5.0, hours)
    frame["t"] = level + np.sin(2 * np.pi * frame.time.dt.hour / 24) + rng.normal(size=len(frame))
    frame.loc[rng.random(len(frame)) < 0.2, "t"] = np.nan
    return frame


def last_known(
    frame: pd.DataFrame, station: str, before: pd.Timestamp, until: pd.Timestamp
) -> float:
    past = frame[(frame.station == station) & (frame.time < before) & (frame.time <= until)]
    past = past.dropna(subset=["t"]).sort_values("time")
    return float(past.t.iloc[-1]) if len(past) else np.nan


@pytest.mark.parametrize("lead", ["0h", "3h"])
@pytest.mark.parametrize("panel", [False, True])
def test_persistence_is_the_last_value_before(lead: str, panel: bool) -> None:
    frame = hourly(hours=16)
    source = frame
    if panel:
        places = frame.groupby("station")[["lat", "lon"]].first()
        grid = frame.set_index(["time", "station"])[["t"]].to_xarray()
        source = grid.assign_coords({n: ("station", places[n].to_numpy()) for n in ("lat", "lon")})
    data = Dataset({"s": source}, target="s.t")
    spec, found = raw_tasks(data, 0.5, lead=lead)
    persistence = Persistence(data)
    assert persistence.notes() == ()
    known = 0
    for raw_task in found:
        mean, std = persistence.predict(raw_task)
        assert std is None
        near, _ = Nearest().predict(raw_task)
        assert raw_task.targets.time is not None
        for i, (station, time) in enumerate(
            zip(raw_task.targets.station, raw_task.targets.time, strict=True)
        ):
            expected = last_known(frame, station, pd.Timestamp(time), pd.Timestamp(raw_task.time))
            known += np.isfinite(expected)
            assert mean[i, 0] == pytest.approx(expected if np.isfinite(expected) else near[i, 0])
    assert known > 20
    assert spec.lead == lead


def test_stations_that_are_held_out_have_no_past() -> None:
    data = Dataset({"s": hourly(hours=72)}, target="s.t")
    _, _, test = data.split(hold_out_stations=["S0", "S1"], time=["2019-03-02", "2019-03-03"])
    _, found = raw_tasks(test, 1.0)
    for persistence in (Persistence(None), Persistence(test)):
        mean, _ = persistence.predict(found[5])
        np.testing.assert_array_equal(mean, Nearest().predict(found[5])[0])
    assert "no station has earlier values" in Persistence(None).notes()[0]


def test_climatology_is_of_station_month_and_hour() -> None:
    frame = hourly()
    train, _, _ = Dataset({"s": frame}, target="s.t").split(time=["2019-03-25", "2019-04-01"])
    climatology = Climatology(train)
    seen = frame[frame.time < "2019-03-25"]
    groups = seen.groupby(["station", seen.time.dt.hour]).t.agg(["mean", "std", "count"])
    _, found = raw_tasks(train)
    for raw_task in found[:30]:
        mean, std = climatology.predict(raw_task)
        assert std is not None
        assert raw_task.targets.time is not None
        for i, (station, time) in enumerate(
            zip(raw_task.targets.station, raw_task.targets.time, strict=True)
        ):
            row = groups.loc[(station, pd.Timestamp(time).hour)]
            assert row["count"] >= 5
            assert mean[i, 0] == pytest.approx(row["mean"])
            assert std[i, 0] == pytest.approx(row["std"])


def test_where_a_month_or_a_station_is_unknown_coarser_groups_answer() -> None:
    frame = hourly()
    data = Dataset({"s": frame}, target="s.t")
    train, _, later = data.split(time=["2019-03-25", "2019-04-01"])
    seen = frame[frame.time < "2019-03-25"]
    _, found = raw_tasks(later)
    raw_task = found[7]  # in April, of which training has nothing
    mean, _ = Climatology(train).predict(raw_task)
    hours = seen.groupby(["station", seen.time.dt.hour]).t.mean()
    for i, station in enumerate(raw_task.targets.station):
        assert mean[i, 0] == pytest.approx(hours[(station, pd.Timestamp(raw_task.time).hour)])
    train, _, test = data.split(hold_out_stations=["S5"], time=["2019-03-25", "2019-04-01"])
    _, found = raw_tasks(test, 1.0)
    mean, std = Climatology(train).predict(found[7])
    others = seen[(seen.station != "S5") & (seen.time.dt.hour == pd.Timestamp(found[7].time).hour)]
    assert found[7].targets.station.tolist() == ["S5"]
    assert mean[0, 0] == pytest.approx(others.t.mean())
    assert std is not None
    assert std[0, 0] == pytest.approx(others.t.std())


def test_what_moves_has_no_climatology_of_its_own() -> None:
    rng = np.random.default_rng(0)
    ships = pd.DataFrame(
        {
            "time": pd.date_range("2020-01-01", periods=400, freq="1D").repeat(2),
            "ship": ["A", "B"] * 400,
            "lat": rng.uniform(-20, 20, 800),
            "lon": rng.uniform(100, 140, 800),
            "sst": np.tile([0.0, 10.0], 400) + rng.normal(size=800),
        }
    )
    data = Dataset({"ships": ships}, target="ships.sst")
    _, found = raw_tasks(data)
    mean, _ = Climatology(data).predict(found[3])
    january = ships[ships.time.dt.month == 1].sst.mean()
    np.testing.assert_allclose(mean[:, 0], january, rtol=1e-6)


def test_without_times_climatology_is_the_mean_of_all() -> None:
    table = weather.stations(days=1).drop(columns="time")
    data = Dataset({"s": table}, target="s.t2m")
    _, found = raw_tasks(data)
    mean, std = Climatology(data).predict(found[0])
    assert std is not None
    np.testing.assert_allclose(mean[:, 0], table.t2m.mean(), rtol=1e-6)
    np.testing.assert_allclose(std[:, 0], table.t2m.std(), rtol=1e-6)
