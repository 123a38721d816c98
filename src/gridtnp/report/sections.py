"""Sections of the report in words and tables: headline, data, calibration, scores, worst cases."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gridtnp.data.dataset import Dataset
from gridtnp.data.description import extent
from gridtnp.data.splits import show_period
from gridtnp.evaluation.results import Evaluation
from gridtnp.evaluation.scores import LEVELS
from gridtnp.evaluation.summary import MODEL, ScoreTable
from gridtnp.report import charts
from gridtnp.sources.source import Variable, unit_symbol
from gridtnp.sources.times import show

WORST = 8
NARROW = "\u00a0"
"""A space at which no line is broken."""
UNBROKEN = "\u2011"
"""A hyphen at which no line is broken, such as those of dates."""
Row = Mapping[str, Any]


def quantity(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit; by default with three significant digits."""
    if not np.isfinite(value):
        return "–"
    size = 0 if value == 0 else int(np.floor(np.log10(abs(value))))
    shown = max(2 - size, 0) if decimals is None else decimals
    text = f"{value:.{shown}f}".replace("-", "−")
    return f"{text}{NARROW}{unit}" if unit else text


def percent(value: float, decimals: int = 0) -> str:
    """A fraction in percent."""
    return quantity(100 * value, "%", decimals)


def rows_of(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The scores of all variables and forecasts, of every variable the model first."""
    records = evaluation.to_dataframe().to_dict("records")
    return [{str(k): v for k, v in row.items()} for row in records]


def scored(
    rows: Sequence[Row], split: str, calibrations: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Headline, calibration and scores by variable, from the tables of an evaluation."""
    found = []
    for name in dict.fromkeys(row["variable"] for row in rows):
        own = [row for row in rows if row["variable"] == name]
        found.append(
            {
                "name": name,
                "unit": unit_symbol(own[0]["units"]),
                "headline": headline(own, split),
                "calibration": calibration(own, calibrations.get(name, {})),
                "scores": score_table(own),
            }
        )
    return found


# ---- headline ------------------------------------------------------------------------------------


def headline(rows: Sequence[Row], split: str) -> dict[str, Any]:
    """One sentence on how good the model is, another on how honest, and the numbers in large."""
    model, unit = rows[0], unit_symbol(rows[0]["units"])
    best = min(rows[1:], key=lambda row: row["crps"], default=None)
    where = split.partition(",")[0]
    text = f"At {where}, {model['variable']} is predicted with an RMSE of "
    text += f"{quantity(model['rmse'], unit)} and a CRPS of {quantity(model['crps'], unit)}"
    tiles = [_tile("CRPS", model, "crps", unit), _tile("RMSE", model, "rmse", unit)]
    if best is not None and np.isfinite(best["crps_skill"]):
        skill, low, high = (best[f"crps_skill{end}"] for end in ("", "_low", "_high"))
        text += f", {percent(abs(skill), 1)} {'less' if skill >= 0 else 'more'} than "
        text += f"{best['forecast']}, the "
        text += "only baseline" if len(rows) == 2 else f"best of {len(rows) - 1} baselines"
        if low <= 0 <= high:
            text += ", which may be chance"
        tiles.append(
            {
                "name": "CRPS saved",
                "value": percent(skill, 1),
                "interval": f"{_range_text(low, high, 1)}, against {best['forecast']}",
                "raw": best["crps_skill"],
            }
        )
    covered, low, high = (model[f"coverage_90{end}"] for end in ("", "_low", "_high"))
    tiles.append(
        {
            "name": f"inside 90{NARROW}% intervals",
            "value": percent(covered),
            "interval": _range_text(max(low, 0.0), min(high, 1.0), 0) if np.isfinite(low) else "",
            "raw": model["coverage_90"],
        }
    )
    text = re.sub(r"(?<=\w)-(?=\w)", UNBROKEN, f"{text}.")
    return {"text": text, "calibration": _calibration(covered, low, high), "tiles": tiles}


def _range_text(low: float, high: float, decimals: int) -> str:
    return f"{quantity(100 * low, '', decimals)} to {percent(high, decimals)}"


def _tile(name: str, row: Row, score: str, unit: str) -> dict[str, Any]:
    ends = [row[f"{score}_{end}"] for end in ("low", "high")]
    interval = f"{quantity(ends[0], '')} to {quantity(ends[1], unit)}"
    return {
        "name": name,
        "value": quantity(row[score], unit),
        "interval": interval if np.isfinite(ends).all() else "",
        "raw": row[score],
    }


def _calibration(covered: float, low: float, high: float) -> str:
    """What the coverage of the 90 % intervals says."""
    if not np.isfinite(covered):
        return "The model predicts no intervals."
    text = f"{percent(covered)} of the observations lie inside its 90{NARROW}% intervals"
    if low <= 0.9 <= high:
        return f"{text}: that differs from 90{NARROW}% by no more than chance."
    return f"{text}: they are {'wider' if covered > 0.9 else 'narrower'} than they should be."


# ---- data ----------------------------------------------------------------------------------------


def data_card(test: Dataset, split: str) -> dict[str, Any]:
    """Sources, features, the split, and what was dropped or masked."""
    sources = [
        {
            "name": name,
            "target": name == test.target_source,
            "extent": extent(source).replace(" -", " −"),
            "variables": [
                {"name": v.name, "units": unit_symbol(v.units) or "not given", **_range(v)}
                for v in source.variables
            ],
        }
        for name, source in test.sources.items()
    ]
    parts = {"tested on": split}
    train = test.training
    if train is not None and train.period is not None:
        parts["trained on"] = f"times {show_period(train.period)}"
    if train is not None and train.context_places.get(test.target_source) is not None:
        kept = train.context_places[test.target_source]
        labels = test.sources[test.target_source].labels
        places = int(kept.sum()) if labels is None else len(np.unique(labels[kept]))
        where = f"{places:,} {'grid points' if labels is None else 'stations'}"
        parts["trained on"] = f"{where}, {parts['trained on']}" if "trained on" in parts else where
    return {
        "target": ", ".join(f"{test.target_source}.{name}" for name in test.target_names),
        "sources": sources,
        "features": ", ".join((*test.statics, *test.computed)),
        "parts": parts,
        "notes": [str(note) for note in test.notes],
    }


def _range(variable: Variable) -> dict[str, str]:
    low, high = variable.low, variable.high
    known = low is not None and high is not None
    missing = "not scanned" if variable.missing is None else f"{100 * variable.missing:.3g} %"
    return {
        "range": f"{low:.5g} to {high:.5g}".replace("-", "−") if known else "–",
        "missing": missing,
    }


# ---- calibration and scores ----------------------------------------------------------------------


def calibration(rows: Sequence[Row], found: Mapping[str, Any]) -> dict[str, Any]:
    """PIT, coverage, and spread against skill, of the model and of its best baseline."""
    unit = unit_symbol(rows[0]["units"])
    if MODEL not in found:
        return {}
    baselines = [row for row in rows[1:] if row["forecast"] in found]
    best = min(baselines, key=lambda row: row["crps"], default=None)
    pair = [rows[0]] if best is None else [rows[0], best]
    return {
        "rival": None if best is None else best["forecast"],
        "pit": charts.pit(found[MODEL]["pit"], int(rows[0]["points"])),
        "coverage": charts.coverage(pair, LEVELS),
        "spread_skill": charts.spread_skill(
            [found[row["forecast"]]["spread_skill"] for row in pair], unit
        ),
    }


def score_table(rows: Sequence[Row]) -> dict[str, Any]:
    """The table that `evaluate` prints, and the CRPS as a chart."""
    table = ScoreTable.of(rows)
    keys = ("crps", "rmse", "mae", "bias", "log_likelihood", "coverage_90", "crps_skill")
    cells = [
        [
            {"text": column[i].replace("-", "−"), "raw": _raw(row[key])}
            for key, column in zip(keys, table.columns.values(), strict=True)
        ]
        for i, row in enumerate(rows)
    ]
    unit = unit_symbol(rows[0]["units"])
    order = [0, *sorted(range(1, len(rows)), key=lambda i: rows[i]["crps"])]
    heads = [
        f"{h} ({unit})" if unit and h in ("CRPS", "RMSE", "MAE", "bias") else h
        for h in table.columns
    ]
    return {
        "heads": heads,
        "rows": list(zip(table.names, cells, strict=True)),
        "spreads": {row["spread"] for row in rows},
        "chart": charts.score_intervals(
            [rows[i] for i in order], "crps", unit, [table.names[i] for i in order]
        ),
    }


def _raw(value: float) -> str:
    """All digits, for machines; empty for NaN."""
    return repr(float(value)) if np.isfinite(value) else ""


def losses(rows: Sequence[Row]) -> dict[str, Any]:
    """What is lost without each source: the CRPS with and without it."""
    unit = unit_symbol(rows[0]["units"])
    names = ["all sources", *(row["forecast"] for row in rows[1:])]
    texts = []
    for row in rows[1:]:
        lost = row["crps"] - rows[0]["crps"]
        share = lost / rows[0]["crps"] if rows[0]["crps"] > 0 else np.nan
        word = "higher" if lost >= 0 else "lower"
        text = (
            f"{row['forecast'].capitalize()}, the CRPS is {quantity(row['crps'], unit)} instead of "
        )
        text += f"{quantity(rows[0]['crps'], unit)}, {percent(abs(share))} {word}"
        low, high = row["crps_skill_low"], row["crps_skill_high"]
        texts.append(text + (", which may be chance." if low <= 0 <= high else "."))
    return {
        "chart": charts.score_intervals(rows, "crps", unit, names),
        "texts": texts,
        "raw": {row["forecast"]: _raw(row["crps"]) for row in rows},
    }


# ---- worst cases ---------------------------------------------------------------------------------


def worst_cases(evaluation: Evaluation, variable: str, names: Mapping[Any, str]) -> dict[str, Any]:
    """The predictions with the largest errors, and the stations with the largest CRPS."""
    unit = unit_symbol(evaluation.variables[variable])
    points = evaluation.predictions(variable)
    mean = f"{MODEL}_mean"
    error = points[mean] - points["observed"]
    typical = float(np.sqrt((error**2).mean())) or 1.0
    decimals = int(np.clip(2 - np.floor(np.log10(typical)), 0, 6))
    order = np.argsort(-np.abs(error.to_numpy()), kind="stable")[:WORST]
    cases = []
    for i in order:
        point = points.iloc[int(i)]
        std = point[f"{MODEL}_std"]
        cases.append(
            {
                "station": names.get(point["station"], str(point["station"])),
                "time": "" if evaluation.time is None else show(point["time"].to_numpy()),
                "observed": quantity(point["observed"], unit, decimals),
                "predicted": f"{quantity(point[mean], '', decimals)} ± "
                f"{quantity(std, unit, decimals)}",
                "error": quantity(error.iloc[int(i)], unit, decimals),
                "times": quantity(abs(error.iloc[int(i)]) / std, "", 1) if std > 0 else "–",
                "raw": repr(float(error.iloc[int(i)])),
            }
        )
    table = evaluation.per("station")
    own = (table["forecast"] == MODEL) & (table["variable"] == variable)
    records = [{str(k): v for k, v in r.items()} for r in table.loc[own].to_dict("records")]
    stations = [
        {
            "station": names.get(row["station"], str(row["station"])),
            "points": f"{row['points']:,}",
            "crps": quantity(row["crps"], unit, decimals),
            "rmse": quantity(row["rmse"], unit, decimals),
            "bias": quantity(row["bias"], unit, decimals),
            "raw": repr(float(row["crps"])),
        }
        for row in sorted(records, key=lambda row: -row["crps"])[:WORST]
    ]
    return {"cases": cases, "stations": stations}
