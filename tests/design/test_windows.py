"""Observations at times of their own, as of drifting buoys, get time windows by default."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from gridtnp import Dataset, GriddedTNP
from gridtnp.design.windows import Windows, choose_windows
from gridtnp.tasks.sampling import NOW


def buoys(number: int = 3000, days: float = 20.0, every: str | None = None) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    hours = pd.to_timedelta(np.sort(rng.uniform(0, 24 * days, number)), unit="h")
    times = pd.Timestamp("2020-01-01") + hours
    return pd.DataFrame(
        {
            "time": times if every is None else times.floor(every),
            "lat": rng.uniform(-20, 20, number),
            "lon": rng.uniform(160, 200, number),
            "sst": rng.normal(27, 2, number),
        }
    )


@pytest.mark.parametrize("days", [0.05, 20.0, 4000.0], ids=["flight", "buoys", "decade"])
def test_observations_alone_at_their_times_get_windows(
    days: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise, no task has an observation to predict from."""
    data = Dataset({"buoys": buoys(days=days)}, target="buoys.sst")
    model = GriddedTNP.for_data(data)
    assert " observations on average, a single time only 1" in capsys.readouterr().out
    spec = model.spec
    tasks = list(spec.sampler(data, model.normaliser).raw_batches())
    targets = np.concatenate([one.rows for raw in tasks for one in raw.target])
    assert len(targets) == len(np.unique(targets)), "every observation is of one task"
    context = [len(one.rows) for raw in tasks for one in raw.context["buoys"]]
    assert np.mean(context) > 10
    assert len(context) > 20
    assert spec.window == spec.target_window != NOW


def airports(minutes: list[int]) -> Dataset:
    """Hourly reports of 30 stations, at some of these minutes of the hour."""
    rng = np.random.default_rng(0)
    sites = pd.DataFrame({"lat": rng.uniform(40, 50, 30), "lon": rng.uniform(0, 9, 30)})
    sites["station"] = [f"S{i}" for i in range(30)]
    hours = pd.DataFrame({"time": pd.date_range("2023-03-01", periods=72, freq="1h")})
    table = sites.merge(hours, how="cross")
    table["time"] += pd.to_timedelta(rng.choice(minutes, len(table)), unit="min")
    table["t"] = rng.normal(size=len(table))
    return Dataset({"asos": table}, target="asos.t")


def test_stations_that_report_at_minutes_of_their_own_are_taken_together() -> None:
    """Else, a task at 12:53 sees the few stations that report at that minute."""
    data = airports([20, 50, 51, 52, 53, 54, 55])
    model = GriddedTNP.for_data(data, quiet=True)
    assert model.spec.window == model.spec.target_window == "(-30min, 30min]"
    assert model.spec.every == "1h"


def test_stations_that_report_at_once_have_single_times() -> None:
    """Also those that report at one of two minutes, whose tasks are half of the stations."""
    assert GriddedTNP.for_data(airports([50]), quiet=True).spec.window == NOW
    assert GriddedTNP.for_data(airports([20, 50]), quiet=True).spec.window == NOW


def test_a_window_that_holds_no_more_is_not_chosen() -> None:
    daily = pd.DataFrame({"time": pd.date_range("2020", periods=30), "lat": 5.0, "lon": 1.0})
    daily["t"] = np.arange(30.0)
    assert choose_windows(Dataset({"s": daily}, target="s.t").sources["s"]) == Windows()


@pytest.mark.parametrize(
    ("every", "given"),
    [
        ("6h", {}),
        (None, {"context_window": "(-6h, 0h]"}),
        (None, {"target_window": "(-6h, 0h]"}),
        (None, {"lead": "6h", "context_window": "(-9D, 0h]"}),
    ],
    ids=["shared times", "context", "targets", "forecast"],
)
def test_windows_are_not_chosen(every: str | None, given: dict[str, Any]) -> None:
    """Where times are shared, or the user has said anything about them."""
    data = Dataset({"buoys": buoys(every=every)}, target="buoys.sst")
    spec = GriddedTNP.for_data(data, quiet=True, prior="none", **given).spec
    assert spec.window == given.get("context_window", NOW)
    assert spec.target_window == given.get("target_window", NOW)
    assert spec.every is None
