"""`Evaluation`: predictions of a model and its baselines, the observations, and all scores."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Shaped
from rich.console import RenderableType

from gridtnp.distributions.marginals import Marginal, moments
from gridtnp.errors import require_known
from gridtnp.evaluation import exceedance, scores
from gridtnp.evaluation.bootstrap import bootstrap_means, place_blocks
from gridtnp.evaluation.summary import MODEL, render, render_html, summarise
from gridtnp.evaluation.sums import COVERAGES, ScoreSums, as_text, with_interval
from gridtnp.files import replace_file, write_text
from gridtnp.sources.reading import require_installed

GROUPS = ("station", "time", "hour", "month", "region", "variable")
REGION_SIZES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 45, 90)
"""Sides of a region in degrees."""
Spread = Literal["predicted", "training errors", "none"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Means and standard deviations at all points.

    `spread` is the origin of the standard deviations: predicted, the RMSE in training, or none.
    `marginals` are the distributions of the variables, in the units of the data; None, as well as
    an empty tuple, means that they are normal.
    """

    mean: Float[np.ndarray, "n dy"]
    std: Float[np.ndarray, "n dy"]
    spread: Spread = "predicted"
    marginals: tuple[Marginal | None, ...] = ()

    @classmethod
    def of(cls, marginals: Sequence[Marginal]) -> Prediction:
        """A prediction of distributions."""
        return cls(*moments(marginals), marginals=tuple(marginals))

    def at(self, used: Bool[np.ndarray, " n"]) -> Prediction:
        """The prediction at some of the points."""
        rows = torch.from_numpy(used)
        marginals = tuple(m and m.map(lambda t: t[rows]) for m in self.marginals)
        return replace(self, mean=self.mean[used], std=self.std[used], marginals=marginals)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores in the units of the data; `print` shows them as a table.

    `to_dataframe` has all scores with their intervals, `per` the scores of each station, month, …,
    and `predictions` every point. `variables` maps the target variables to their units. `forecasts`
    holds the predictions by name, first those of the `"model"`. `split` describes the points.
    """

    variables: Mapping[str, str | None]
    time: Shaped[np.ndarray, " n"] | None
    station: Shaped[np.ndarray, " n"]
    lat: Float[np.ndarray, " n"]
    lon: Float[np.ndarray, " n"]
    observed: Float[np.ndarray, "n dy"]
    forecasts: Mapping[str, Prediction]
    split: str
    notes: tuple[str, ...] = ()
    block: str | None = None
    seed: int = 0
    place: Shaped[np.ndarray, " n"] | None = None
    """Stations or groups of them that are resampled; those of all parts, if this is one."""
    part: tuple[int, int] | None = None

    # ---- tables ----------------------------------------------------------------------------------

    def to_dataframe(self) -> pd.DataFrame:
        """One row per variable and forecast; `_low` and `_high` are 95 % intervals.

        `crps_skill` is the fraction of a baseline's CRPS that the model saves.
        """
        return pd.DataFrame(self._rows)

    def per(self, by: str) -> pd.DataFrame:
        """The scores of each `"station"`, `"time"`, `"hour"`, `"month"`, `"region"` (a box of
        latitudes and longitudes) or `"variable"`.
        """
        require_known(by, GROUPS, "group")
        names, code = self._groups(by)
        tables = []
        for v, variable in enumerate(self.variables):
            crps: dict[str, np.ndarray] = {}
            for name in self.forecasts:
                found = _means(self._terms(name, v), code, len(names))
                crps[name] = found["crps"]
                table = pd.DataFrame({"variable": variable, "forecast": name, **found})
                table["crps_skill"] = _skill(name, crps)
                tables.append(table if by == "variable" else pd.concat([names, table], axis=1))
        return pd.concat(tables, ignore_index=True)

    def predictions(self, variable: str | None = None) -> pd.DataFrame:
        """One row per point: location, time, observation, and `<forecast>_mean`, `_std`."""
        v = self.index(variable)
        columns = {"station": self.station, "lat": self.lat, "lon": self.lon}
        if self.time is not None:
            columns = {"time": self.time.astype("datetime64[ns]"), **columns}
        columns["observed"] = self.observed[:, v]
        for name, forecast in self.forecasts.items():
            columns |= {f"{name}_mean": forecast.mean[:, v], f"{name}_std": forecast.std[:, v]}
        return pd.DataFrame(columns)

    def calibration(self) -> dict[str, Any]:
        """Coverage, PIT, spread and skill, and normalised log-density by variable and forecast."""
        found: dict[str, Any] = {}
        for v, variable in enumerate(self.variables):
            own = found.setdefault(variable, {})
            for name in self.forecasts:
                if not self.has_spread(name, v):
                    continue
                of = self.of(name, v)
                bins = scores.spread_skill(of.observed, of.mean, of.std)
                levels = np.array(scores.LEVELS)
                own[name] = {
                    "coverage": dict(
                        zip(
                            map(str, levels),
                            scores.coverage(of.normalised_error, levels).tolist(),
                            strict=True,
                        )
                    ),
                    "pit": scores.pit_histogram(of.pit).tolist(),
                    "spread_skill": {k: a.tolist() for k, a in vars(bins).items()},
                    "normalised_log_density": float(of.normalised_log_density().mean()),
                    "normalised_log_density_if_calibrated": float(scores.CALIBRATED),
                }
        return found

    def exceedance(self, threshold: float, variable: str | None = None) -> pd.DataFrame:
        """Forecasts of more than a threshold, one row each.

        `frequency` is how often it happened, `brier` the mean squared error of the probability with
        its 95 % interval, `brier_skill` that against the frequency as a constant forecast,
        `reliability_error` the mean distance of the reliability diagram from its diagonal,
        `roc_area` the probability that an event had a higher forecast than a non-event, and
        `crps_above` the CRPS of what lies above the threshold.
        """
        v, rows = self.index(variable), []
        event = self._event(threshold, v)
        rate, blocks = float(event.mean()), self._sums.blocks
        for name in self.forecasts:
            of = self.of(name, v)
            chance = of.exceedance(threshold)
            brier = exceedance.brier(chance, event)
            draws = bootstrap_means(brier[:, None], self._sums.clusters, self.seed)[:, 0]
            rows.append(
                {"variable": list(self.variables)[v], "threshold": threshold, "forecast": name}
                | {"frequency": rate, **with_interval("brier", brier.mean(), draws, blocks)}
                | {
                    "brier_skill": 1 - float(brier.mean()) / (rate * (1 - rate)),
                    "reliability_error": exceedance.reliability(chance, event).error,
                    "roc_area": exceedance.roc_area(chance, event),
                    "crps_above": float(of.crps_above(threshold).mean()),
                }
            )
        return pd.DataFrame(rows)

    def reliability(
        self, threshold: float, forecast: str = MODEL, variable: str | None = None
    ) -> exceedance.Reliability:
        """How often a variable was above a threshold, by the probability that was predicted."""
        require_known(forecast, self.forecasts, "forecast", "in this evaluation")
        v = self.index(variable)
        event = self._event(threshold, v)
        return exceedance.reliability(self.of(forecast, v).exceedance(threshold), event)

    def _event(self, threshold: Any, v: int) -> Bool[np.ndarray, " n"]:
        if not isinstance(threshold, Real):
            raise ValueError(
                f"threshold={threshold!r}: must be one number, in the units of the data."
            )
        event = self.observed[:, v] > threshold
        if not event.any() or event.all():
            name, which = list(self.variables)[v], "every" if event.all() else "no"
            raise ValueError(
                f"threshold={threshold:g}: {which} observation of {name} is higher; choose one "
                f"between {self.observed[:, v].min():g} and {self.observed[:, v].max():g}."
            )
        return event

    def to_json(self) -> str:
        """Scores, summaries and notes."""
        return self._sums.to_json()

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write scores.csv, scores.json, per_station.parquet and calibration.json to `eval/` in a
        folder.
        """
        require_installed("pyarrow", "io", "Writing scores per station")
        place = Path(folder) / "eval"
        calibration = json.dumps(self.calibration(), indent=2, allow_nan=False)
        stations = self.per("station")
        self._sums.save_scores(place)
        replace_file(place / "per_station.parquet", stations.to_parquet)
        write_text(place / "calibration.json", f"{calibration}\n")
        return place

    def index(self, variable: str | None) -> int:
        """The column of a variable; by default the first."""
        if variable is None:
            return 0
        require_known(variable, self.variables, "variable", "in this evaluation")
        return list(self.variables).index(variable)

    def has_spread(self, name: str, v: int) -> bool:
        """Whether a forecast of variable number `v` has standard deviations."""
        return bool((self.forecasts[name].std[:, v] > 0).all())

    def of(self, name: str, v: int) -> scores.Forecasts:
        """A forecast of variable number `v` beside what was observed."""
        forecast = self.forecasts[name]
        marginal = forecast.marginals[v] if forecast.marginals else None
        uniform = np.random.default_rng([self.seed, v]).random(len(self.observed))
        return scores.Forecasts(
            self.observed[:, v], forecast.mean[:, v], forecast.std[:, v], marginal, uniform
        )

    # ---- text ------------------------------------------------------------------------------------

    def summaries(self) -> tuple[str, ...]:
        """One sentence per variable: the CRPS, the best baseline, and the calibration."""
        return tuple(summarise(rows, self.split) for rows in self._by_variable())

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return render_html(self._by_variable(), self.split, self.notes)

    def __rich__(self) -> RenderableType:
        return render(self._by_variable(), self.split, self.notes)

    def _by_variable(self) -> list[list[dict[str, Any]]]:
        return [[row for row in self._rows if row["variable"] == name] for name in self.variables]

    # ---- scores ----------------------------------------------------------------------------------

    @property
    def _rows(self) -> list[dict[str, Any]]:
        return self._sums.rows

    @cached_property
    def _sums(self) -> ScoreSums:
        """The scores of every point."""
        index, parts = self.part or (0, 1)
        place = place_blocks(self.station, self.lat, self.lon) if self.place is None else self.place
        return ScoreSums(
            variables=dict(self.variables),
            spreads={name: forecast.spread for name, forecast in self.forecasts.items()},
            time=self.time,
            place=place,
            points=np.ones(len(self.observed), int),
            sums={
                (variable, name): np.stack(list(self._terms(name, v).values()), -1)
                for v, variable in enumerate(self.variables)
                for name in self.forecasts
            },
            split=self.split,
            notes=self.notes,
            block=self.block,
            seed=self.seed,
            done=(index,),
            parts=parts,
        )

    def sums(self) -> ScoreSums:
        """Sums and counts of all scores, to add up with those of other parts."""
        return self._sums.grouped()

    def _terms(self, name: str, v: int) -> dict[str, np.ndarray]:
        """Scores of every point, in the order of `SCORES`; squared errors for the RMSE."""
        of = self.of(name, v)
        error = of.mean - of.observed
        return {
            "crps": of.crps,
            "rmse": error**2,
            "mae": np.abs(error),
            "bias": error,
            "log_likelihood": of.log_density(),
            "normalised_log_density": of.normalised_log_density(),
            **{
                column: of.inside(level)
                for column, level in zip(COVERAGES, scores.LEVELS, strict=True)
            },
        }

    def _groups(self, by: str) -> tuple[pd.DataFrame, np.ndarray]:
        """A table with one row per group, and the group of every point."""
        if by == "variable":
            return pd.DataFrame(index=[0]), np.zeros(len(self.observed), int)
        if by in ("station", "region"):
            keys = self.station if by == "station" else _regions(self.lat, self.lon)
        elif self.time is None:
            raise ValueError(f"The data have no times, which scores per {by} need.")
        else:
            keys = {
                "time": self.time.astype("datetime64[ns]"),
                "hour": self.time.astype("datetime64[h]").astype(int) % 24,
                "month": self.time.astype("datetime64[M]").astype(int) % 12 + 1,
            }[by]
        names, first, code = np.unique(keys, return_index=True, return_inverse=True)
        table = pd.DataFrame({by: names})
        if by == "station":
            table = table.assign(lat=self.lat[first], lon=self.lon[first])
        return table, code


def _means(terms: Mapping[str, np.ndarray], code: np.ndarray, number: int) -> dict[str, np.ndarray]:
    """Number of points and all scores by group."""
    count = np.bincount(code, minlength=number)
    found = {k: np.bincount(code, v, minlength=number) / count for k, v in terms.items()}
    return {"points": count, **found, "rmse": np.sqrt(found["rmse"])}


def _skill(name: str, crps: Mapping[str, np.ndarray]) -> np.ndarray:
    return (
        np.full_like(crps[name], np.nan) if name == MODEL else scores.skill(crps[MODEL], crps[name])
    )


def _regions(lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    """The box of every point; boxes have a round size, about five along the longer side."""
    extent = max(float(np.ptp(lat)), float(np.ptp(lon)), 0.1)
    step = next((s for s in REGION_SIZES if extent / s <= 5), REGION_SIZES[-1])
    south, west = np.floor(lat / step) * step, np.floor(lon / step) * step
    boxes = np.stack([south, west], -1)
    found, which = np.unique(boxes, axis=0, return_inverse=True)
    names = [
        f"{_degrees(a, 'N', 'S')} to {_degrees(a + step, 'N', 'S')}, "
        f"{_degrees(b, 'E', 'W')} to {_degrees(b + step, 'E', 'W')}"
        for a, b in found
    ]
    return np.array(names, object)[which.ravel()]


def _degrees(value: float, positive: str, negative: str) -> str:
    return f"{abs(value):.3g}{negative if value < 0 else positive}"
