"""Observations at times of their own, as of drifting buoys, get time windows by default."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from gridtnp import Dataset, GriddedTNP
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
    assert "every time has 1 observation on average" in capsys.readouterr().out
    spec = model.spec
    tasks = list(spec.sampler(data, model.normaliser).raw_batches())
    targets = np.concatenate([one.rows for raw in tasks for one in raw.target])
    assert len(targets) == len(np.unique(targets)), "every observation is of one task"
    context = [len(one.rows) for raw in tasks for one in raw.context["buoys"]]
    assert np.mean(context) > 10
    assert len(context) > 20
    assert spec.window == spec.target_window != NOW


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
