"""Scores as a person wants to read them: a table for every variable, and what it says in a
sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

MODEL = "model"
"""What the model is called among the forecasts."""
MARKS = {"predicted": "", "training errors": "*", "none": "°"}
Row = Mapping[str, Any]
"""Scores of one forecast of one variable: a row of `Evaluation.to_dataframe`."""
HEADS = ("CRPS", "RMSE", "MAE", "bias", "log-likelihood", "90 % holds", "model's skill")


def shown(tables: Sequence[Sequence[Row]], split: str, notes: Sequence[str]) -> RenderableType:
    """The tables of all variables, each with its verdict, and what to know about them."""
    parts: list[RenderableType] = []
    for rows in tables:
        parts += [_table(rows), Text(verdict(rows, split), style="bold"), Text("")]
    spreads = {row["spread"] for rows in tables for row in rows}
    words = ["± is half of the 95 % interval over blocks of time; bias is forecast − observed."]
    if len(tables[0]) > 1:
        words.append("The model's skill is the share of a baseline's CRPS that it saves.")
    if "training errors" in spreads:
        words.append("* has no spread of its own: that of its errors in training is used.")
    if "none" in spreads:
        words.append("° has no spread: its CRPS is its mean absolute error.")
    return Group(*parts, *(Text(line, style="dim") for line in [*words, *notes]))


def verdict(rows: Sequence[Row], split: str) -> str:
    """How good the model is, against the best baseline, and how well calibrated."""
    model, rivals = rows[0], rows[1:]
    unit = f" {model['units'] or ''}".rstrip()
    said = f"{model['variable']} on {split}: CRPS {model['crps']:.3g}{unit}"
    best = min(rivals, key=lambda row: row["crps"], default=None)
    if best is not None and np.isfinite(best["crps_skill"]):
        skill, low, high = (100 * best[f"crps_skill{end}"] for end in ("", "_low", "_high"))
        said += f", {abs(skill):.0f} % {'lower' if skill >= 0 else 'higher'} than "
        said += f"{best['forecast']}, the best baseline"
        if low <= 0 <= high:
            said += f", which may be chance (95 % interval {low:.0f} to {high:.0f} %)"
    return f"{said}; the 90 % intervals hold {100 * model['coverage_90']:.0f} %."


def _table(rows: Sequence[Row]) -> Table:
    name, unit = rows[0]["variable"], rows[0]["units"]
    title = f"{name}{f' ({unit})' if unit else ''}, {rows[0]['points']:,} values"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for head in HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    places = _decimals(rows)
    for row in rows:
        cells = [_cell(row, score, places) for score in ("crps", "rmse", "mae", "bias")]
        cells.append(_cell(row, "log_likelihood", 2))
        cells += [_cell(row, score, 0, 100, " %") for score in ("coverage_90", "crps_skill")]
        style = "bold" if row["forecast"] == MODEL else None
        table.add_row(f"{row['forecast']}{MARKS[row['spread']]}", *cells, style=style)
    return table


def _decimals(rows: Sequence[Row]) -> int:
    """So that the narrowest interval of the CRPS has a digit; three digits if there is none."""
    halves = [(row["crps_high"] - row["crps_low"]) / 2 for row in rows]
    most = max(row["crps"] for row in rows)
    sizes = [half for half in halves if half > 1e-4 * most] or [most / 100 or 0.01]
    return int(np.clip(np.ceil(-np.log10(min(sizes))), 0, 8))


def _cell(row: Row, name: str, places: int, factor: float = 1, unit: str = "") -> str:
    value, low, high = (factor * row[f"{name}{end}"] for end in ("", "_low", "_high"))
    if not np.isfinite(value):
        return "–"
    around = f" ±{(high - low) / 2:.{places}f}" if np.isfinite(high - low) else ""
    return f"{value:.{places}f}{around}{unit}"
