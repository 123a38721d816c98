"""Series of the report: observations and predictions at the stations of an evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gridtnp.contents import ModelContents
from gridtnp.data.dataset import Dataset
from gridtnp.evaluation.results import Evaluation
from gridtnp.evaluation.summary import MODEL
from gridtnp.inference.queries import column
from gridtnp.report.packing import pack
from gridtnp.sources.coordinates import wrap

MOST_STATIONS = 300
MOST_VALUES = 40_000
"""Values of all series of one statistic, over all variables."""
NO_STATIONS: dict[str, Any] = {"names": [], "lat": [], "lon": [], "times": None, "values": {}}
FAN = (0.05, 0.25, 0.75, 0.95)
"""Quantiles: the ends of the 90 % and of the 50 % interval."""


def shown_stations(evaluation: Evaluation) -> np.ndarray:
    """All stations, or the 50 with the largest CRPS and an even choice of the others."""
    scores = evaluation.per("station")
    first = next(iter(evaluation.variables))
    own = (scores["forecast"] == MODEL).to_numpy() & (scores["variable"] == first).to_numpy()
    names, crps = (scores[key].to_numpy()[own] for key in ("station", "crps"))
    if len(names) <= MOST_STATIONS:
        return names
    worst = names[np.argsort(-crps, kind="stable")[:50]]
    others = names[~np.isin(names, worst)]
    even = np.linspace(0, len(others) - 1, MOST_STATIONS - len(worst)).round().astype(int)
    return np.sort(np.concatenate([worst, others[even]]))


def series(
    model: ModelContents, test: Dataset, evaluation: Evaluation, least: int
) -> dict[str, Any]:
    """Stations, times, and by variable: observed, mean, and the quantiles of the fan.

    If there are more than 40,000 values, the last times are kept, at least `least`.
    """
    stations = shown_stations(evaluation)
    times = None if evaluation.time is None else np.unique(evaluation.time)
    if times is not None:
        most = MOST_VALUES // (len(stations) * len(evaluation.variables))
        times = times[-max(most, least) :]
    kept = np.isin(evaluation.station, stations)
    if times is not None and evaluation.time is not None:
        kept &= evaluation.time >= times[0]
    everything = evaluation.predictions()
    first = everything.loc[kept]
    steps = [0] if times is None else list(times.astype("datetime64[ns]"))

    def matrix(values: np.ndarray) -> dict[str, Any]:
        """Rows are stations, columns are times; missing values are NaN."""
        when = 0 if times is None else first["time"]
        long = pd.DataFrame({"station": first["station"], "time": when, "value": values})
        long = long.drop_duplicates(["station", "time"], keep="last")
        wide = long.pivot(index="station", columns="time", values="value")
        return pack(wide.reindex(index=stations, columns=steps).to_numpy(np.float64))

    found: dict[str, Any] = {}
    for v, name in enumerate(evaluation.variables):
        forecast = evaluation.of(MODEL, v)
        columns = {
            "observed": forecast.observed,
            "mean": forecast.mean,
            "std": forecast.std,
            **{_key(q): forecast.quantile(q) for q in FAN},
        }
        found[name] = {key: matrix(values[kept]) for key, values in columns.items()}
    places = everything.drop_duplicates("station").set_index("station").reindex(stations)
    lon = wrap(places["lon"].to_numpy(), model.spec.west)
    made = {
        "names": _names(test, stations, places),
        "lat": places["lat"].round(4).tolist(),
        "lon": lon.round(4).tolist(),
        "times": None if times is None else (times.astype("datetime64[s]").astype(int)).tolist(),
        "values": found,
    }
    if first.groupby("station")[["lat", "lon"]].agg(np.ptp).max().max() > 0.01:  # ships
        made["moving"] = {
            "lat": matrix(first["lat"].to_numpy()),
            "lon": matrix(wrap(first["lon"].to_numpy(), model.spec.west)),
        }
    return made


def _key(quantile: float) -> str:
    return column("", quantile).lstrip("_")


def _names(test: Dataset, stations: np.ndarray, places: pd.DataFrame) -> list[str]:
    """Names of stations; grid points are called after their location."""
    if test.sources[test.target_source].labels is not None:
        return [str(name) for name in stations]
    lat, lon = places["lat"].to_numpy(), places["lon"].to_numpy()
    return [f"{y:.2f}, {x:.2f}" for y, x in zip(lat, lon, strict=True)]
