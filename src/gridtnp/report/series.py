"""Series of the report: observations and predictions at the stations of an evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from gridtnp.contents import ModelContents
from gridtnp.data.coordinates import wrap
from gridtnp.data.dataset import Dataset
from gridtnp.evaluation.results import Evaluation
from gridtnp.evaluation.summary import MODEL
from gridtnp.inference.prediction import predict
from gridtnp.inference.queries import column
from gridtnp.report.maps import quietly
from gridtnp.report.packing import pack

MOST_STATIONS = 300
MOST_VALUES = 40_000
"""Values of all series of one statistic, over all variables."""
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
    tables = {}
    for name in evaluation.variables:
        points = evaluation.predictions(name)
        kept = np.isin(points["station"].to_numpy(), stations)
        if times is not None:
            kept &= points["time"].to_numpy() >= times[0]
        tables[name] = points.loc[kept]
    first = next(iter(tables.values()))
    fans = _fans(model, test, first)
    steps = [0] if times is None else list(times.astype("datetime64[ns]"))

    def matrix(points: pd.DataFrame, values: np.ndarray) -> dict[str, Any]:
        """Rows are stations, columns are times; missing values are NaN."""
        when = 0 if times is None else points["time"]
        long = pd.DataFrame({"station": points["station"], "time": when, "value": values})
        long = long.drop_duplicates(["station", "time"], keep="last")
        wide = long.pivot(index="station", columns="time", values="value")
        return pack(wide.reindex(index=stations, columns=steps).to_numpy(np.float64))

    found: dict[str, Any] = {}
    for name, points in tables.items():
        mean, std = (points[f"{MODEL}_{what}"].to_numpy() for what in ("mean", "std"))
        ends = {q: mean + ndtri(q) * std for q in FAN} if fans is None else fans[name]
        found[name] = {
            "observed": matrix(points, points["observed"].to_numpy()),
            "mean": matrix(points, mean),
            "std": matrix(points, std),
            **{_key(q): matrix(points, values) for q, values in ends.items()},
        }
    places = first.drop_duplicates("station").set_index("station").reindex(stations)
    lon = wrap(places["lon"].to_numpy(), model.spec.west)
    made = {
        "names": _names(test, stations, places),
        "lat": places["lat"].round(4).tolist(),
        "lon": lon.round(4).tolist(),
        "times": None if times is None else (times.astype("datetime64[s]").astype(int)).tolist(),
        "fan": "" if fans is not None else "mean ± 0.67 and 1.64 standard deviations",
        "values": found,
    }
    if first.groupby("station")[["lat", "lon"]].agg(np.ptp).max().max() > 0.01:  # ships
        made["moving"] = {
            "lat": matrix(first, first["lat"].to_numpy()),
            "lon": matrix(first, wrap(first["lon"].to_numpy(), model.spec.west)),
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


def _fans(
    model: ModelContents, test: Dataset, points: pd.DataFrame
) -> dict[str, dict[float, np.ndarray]] | None:
    """Quantiles by variable, in the order of the points.

    None unless the targets are at held-out stations, and predictions there have the means of the
    evaluation: only then is the context of both the same, all other observations.
    """
    if not test.held_out:
        return None
    at = points.filter(["time", "station", "lat", "lon"])
    at = _with_statics(test, at)
    with quietly():
        found = predict(model, test, at, quantiles=FAN, progress=False)
    assert isinstance(found, pd.DataFrame)
    names = model.spec.target_names
    mean, std = (points[f"{MODEL}_{what}"].to_numpy() for what in ("mean", "std"))
    if not (np.abs(found[column(names[0], "mean")].to_numpy() - mean) <= 0.02 * std).all():
        return None
    return {name: {q: found[column(name, q)].to_numpy() for q in FAN} for name in names}


def _with_statics(test: Dataset, at: pd.DataFrame) -> pd.DataFrame:
    """The points with the static features that their stations have in the data."""
    source = test.sources[test.target_source]
    if not test.statics or source.labels is None:
        return at
    start, stop = (None, None) if test.period is None else test.period
    rows = np.arange(*source.rows(start, stop))
    places = source.places(rows)
    known = pd.DataFrame(test.static_at(source.name)[places], columns=pd.Index(test.statics))
    known = known.assign(station=source.labels[places])
    keys, when = ["station"], source.times_of(rows)
    if "time" in at and when is not None:
        keys, known = ["station", "time"], known.assign(time=when.astype("datetime64[ns]"))
    return at.merge(known.drop_duplicates(keys, keep="last"), how="left", on=keys)
