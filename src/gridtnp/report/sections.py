"""Sections of the report in words and tables: verdict, data, calibration, scores, worst cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gridtnp.data.dataset import Dataset
from gridtnp.data.description import extent
from gridtnp.data.sources import Variable
from gridtnp.data.splits import show_period
from gridtnp.data.times import show
from gridtnp.evaluation.results import Evaluation
from gridtnp.evaluation.scores import LEVELS
from gridtnp.evaluation.summary import MODEL, ScoreTable
from gridtnp.report import charts

SYMBOLS = {
    "degC": "°C", "celsius": "°C", "deg_C": "°C", "degF": "°F", "kelvin": "K", "m s-1": "m/s",
    "m/s": "m/s", "percent": "%", "%": "%", "kg m-2": "kg/m²", "W m-2": "W/m²", "degrees": "°",
}  # fmt: skip
"""Units as people write them."""
WORST = 8
Row = Mapping[str, Any]


def symbol(units: str | None) -> str:
    """A unit for people; empty if it is unknown."""
    return "" if units is None else SYMBOLS.get(units, units)


def quantity(value: float, unit: str, digits: int = 3) -> str:
    """A value with three significant digits and its unit; large ones keep all whole digits."""
    if not np.isfinite(value):
        return "–"
    size = 0 if value == 0 else int(np.floor(np.log10(abs(value))))
    text = f"{value:.{max(digits - 1 - size, 0)}f}".replace("-", "−")
    return f"{text} {unit}".rstrip()


def rows_of(evaluation: Evaluation, variable: str) -> list[dict[str, Any]]:
    """The scores of a variable, the model first."""
    table = evaluation.to_dataframe()
    return [{str(k): v for k, v in r.items()} for r in table.to_dict("records") if r["variable"] == variable]


# ---- verdict -------------------------------------------------------------------------------------


def verdict(rows: Sequence[Row], split: str) -> dict[str, Any]:
    """One sentence on how good the model is, another on how honest, and the numbers in large."""
    model, unit = rows[0], symbol(rows[0]["units"])
    best = min(rows[1:], key=lambda row: row["crps"], default=None)
    where = split.partition(",")[0]
    text = f"At {where}, {model['variable']} is predicted with a CRPS of "
    text += f"{quantity(model['crps'], unit)} and an RMSE of {quantity(model['rmse'], unit)}"
    tiles = [
        _tile("CRPS", model, "crps", unit),
        _tile("RMSE", model, "rmse", unit),
    ]
    if best is not None and np.isfinite(best["crps_skill"]):
        skill, low, high = (100 * best[f"crps_skill{end}"] for end in ("", "_low", "_high"))
        word = "lower" if skill >= 0 else "higher"
        text += f"; the CRPS is {abs(skill):.1f} % {word} than that of {best['forecast']}, "
        text += "the only baseline" if len(rows) == 2 else f"the best of {len(rows) - 1} baselines"
        if low <= 0 <= high:
            text += ", which may be chance"
        tiles.append(
            {
                "name": f"CRPS saved, against {best['forecast']}",
                "value": f"{skill:.1f} %".replace("-", "−"),
                "interval": f"{low:.1f} to {high:.1f} %".replace("-", "−"),
                "raw": best["crps_skill"],
            }
        )
    covered, low, high = (100 * model[f"coverage_90{end}"] for end in ("", "_low", "_high"))
    tiles.append(
        {
            "name": "inside the 90 % intervals",
            "value": f"{covered:.0f} %",
            "interval": f"{max(low, 0):.0f} to {min(high, 100):.0f} %" if np.isfinite(low) else "",
            "raw": model["coverage_90"],
        }
    )
    return {"text": f"{text}.", "calibration": _calibration(covered, low, high), "tiles": tiles}


def _tile(name: str, row: Row, score: str, unit: str) -> dict[str, Any]:
    low, high = (quantity(row[f"{score}_{end}"], "") for end in ("low", "high"))
    interval = "" if low == "–" else f"{low} to {high} {unit}".rstrip()
    return {
        "name": name,
        "value": quantity(row[score], unit),
        "interval": interval,
        "raw": row[score],
    }


def _calibration(covered: float, low: float, high: float) -> str:
    """What the coverage of the 90 % intervals says."""
    if not np.isfinite(covered):
        return "The model predicts no intervals."
    text = f"{covered:.0f} % of the observations lie inside its 90 % intervals"
    if low <= 90 <= high:
        return f"{text}, as they should within sampling error."
    return f"{text}: the intervals are {'wider' if covered > 90 else 'narrower'} than they should be."


# ---- data ----------------------------------------------------------------------------------------


def data_card(test: Dataset, split: str) -> dict[str, Any]:
    """Sources, features, the split, and what was dropped or masked."""
    sources = [
        {
            "name": name,
            "target": name == test.target_source,
            "extent": extent(source),
            "variables": [
                {"name": v.name, "units": symbol(v.units) or "units not given", **_range(v)}
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
        "features": ", ".join(test.feature_names),
        "parts": parts,
        "notes": [str(note) for note in test.notes],
    }


def _range(variable: Variable) -> dict[str, str]:
    low, high = variable.low, variable.high
    known = low is not None and high is not None
    missing = "not scanned" if variable.missing is None else f"{100 * variable.missing:.3g} %"
    return {"range": f"{low:.5g} to {high:.5g}" if known else "–", "missing": missing}


# ---- calibration and scores ----------------------------------------------------------------------


def calibration(evaluation: Evaluation, variable: str, rows: Sequence[Row]) -> dict[str, Any]:
    """PIT, coverage, and spread against skill, of the model and of its best baseline."""
    found = evaluation.calibration()[variable]
    unit = symbol(rows[0]["units"])
    if MODEL not in found:
        return {}
    rivals = [row for row in rows[1:] if row["forecast"] in found]
    best = min(rivals, key=lambda row: row["crps"], default=None)
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
    unit = symbol(rows[0]["units"])
    heads = [f"{h} ({unit})" if unit and h in ("CRPS", "RMSE", "MAE", "bias") else h for h in table.columns]
    return {
        "heads": heads,
        "rows": list(zip(table.names, cells, strict=True)),
        "spreads": {row["spread"] for row in rows},
        "chart": charts.score_intervals(rows, "crps", unit, table.names),
    }


def _raw(value: float) -> str:
    """All digits, for machines; empty for NaN."""
    return repr(float(value)) if np.isfinite(value) else ""


def losses(rows: Sequence[Row]) -> dict[str, Any]:
    """What is lost without each source: the CRPS with and without it."""
    unit = symbol(rows[0]["units"])
    names = ["all sources", *(row["forecast"] for row in rows[1:])]
    texts = []
    for row in rows[1:]:
        lost = row["crps"] - rows[0]["crps"]
        share = 100 * lost / rows[0]["crps"] if rows[0]["crps"] > 0 else np.nan
        word = "higher" if lost >= 0 else "lower"
        text = f"{row['forecast'].capitalize()}, the CRPS is {quantity(row['crps'], unit)} instead of "
        text += f"{quantity(rows[0]['crps'], unit)}, {abs(share):.0f} % {word}"
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
    unit = symbol(evaluation.variables[variable])
    points = evaluation.predictions(variable)
    error = points[f"{MODEL}_mean"] - points["observed"]
    order = np.argsort(-np.abs(error.to_numpy()), kind="stable")[:WORST]
    cases = []
    for i in order:
        point = points.iloc[int(i)]
        std = point[f"{MODEL}_std"]
        cases.append(
            {
                "station": names.get(point["station"], str(point["station"])),
                "time": "" if evaluation.time is None else show(point["time"].to_numpy()),
                "observed": quantity(point["observed"], unit),
                "predicted": f"{quantity(point[f'{MODEL}_mean'], '')} ± {quantity(std, unit)}",
                "error": quantity(error.iloc[int(i)], unit),
                "times": f"{abs(error.iloc[int(i)]) / std:.1f} σ" if std > 0 else "–",
                "raw": repr(float(error.iloc[int(i)])),
            }
        )
    table = evaluation.per("station")
    table = table[(table["forecast"] == MODEL) & (table["variable"] == variable)]
    stations = [
        {
            "station": names.get(row["station"], str(row["station"])),
            "points": f"{row['points']:,}",
            "crps": quantity(row["crps"], unit),
            "rmse": quantity(row["rmse"], unit),
            "bias": quantity(row["bias"], unit),
            "raw": repr(float(row["crps"])),
        }
        for row in table.nlargest(WORST, "crps").to_dict("records")
    ]
    return {"cases": cases, "stations": stations}
