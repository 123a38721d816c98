"""Scores for people: a table and a sentence per variable, at any width of the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

MODEL = "model"
"""The name of the model among the forecasts."""
MARKS = {"predicted": "", "training errors": "*", "none": "°"}
Row = Mapping[str, Any]
"""Scores of one forecast of one variable: a row of `Evaluation.to_dataframe`."""


def render(tables: Sequence[Sequence[Row]], split: str, notes: Sequence[str]) -> RenderableType:
    """A table and a sentence for each variable, and notes."""
    parts: list[RenderableType] = []
    for rows in tables:
        parts += [ScoreTable.of(rows), Text(summarise(rows, split), style="bold"), Text("")]
    return Group(*parts, *(Text(line, style="dim") for line in [*_legend(tables), *notes]))


def render_html(tables: Sequence[Sequence[Row]], split: str, notes: Sequence[str]) -> str:
    """The same as HTML, for notebooks."""
    parts = []
    for rows in tables:
        table = ScoreTable.of(rows)
        heads = "".join(f"<th>{escape(head)}</th>" for head in ("", *table.columns))
        lines = [
            "".join(f"<td>{escape(column[i])}</td>" for column in table.columns.values())
            for i in range(len(table.names))
        ]
        body = [
            f"<tr><th>{escape(n)}</th>{line}</tr>"
            for n, line in zip(table.names, lines, strict=True)
        ]
        parts += [
            f"<table><caption>{escape(table.title)}</caption><thead><tr>{heads}</tr></thead>",
            f"<tbody>{''.join(body)}</tbody></table>",
            f"<p><b>{escape(summarise(rows, split))}</b></p>",
        ]
    small = "<br>".join(escape(line) for line in [*_legend(tables), *notes])
    return "".join([*parts, f"<p><small>{small}</small></p>"])


def _legend(tables: Sequence[Sequence[Row]]) -> list[str]:
    """What the signs in the tables mean."""
    spreads = {row["spread"] for rows in tables for row in rows}
    legend = [
        "± is half the 95 % interval over blocks of time and stations; bias is forecast − observed."
    ]
    if len(tables[0]) > 1:
        legend.append("Skill is the fraction of a baseline's CRPS that the model saves.")
    if "training errors" in spreads:
        legend.append("* predicts no standard deviation; its RMSE in training is used.")
    if "none" in spreads:
        legend.append("° predicts no standard deviation; its CRPS is its MAE.")
    return legend


def summarise(rows: Sequence[Row], split: str) -> str:
    """The model's CRPS, in comparison with the best baseline, and its calibration."""
    model, baselines = rows[0], rows[1:]
    unit = f" {model['units'] or ''}".rstrip()
    three = int(np.clip(2 - np.floor(np.log10(model["crps"] or 1.0)), 0, 8))
    decimals = max(_decimals(rows), three)
    text = f"{model['variable']} on {split}: CRPS {model['crps']:.{decimals}f}{unit}"
    best = min(baselines, key=lambda row: row["crps"], default=None)
    if best is not None and np.isfinite(best["crps_skill"]):
        skill, low, high = (100 * best[f"crps_skill{end}"] for end in ("", "_low", "_high"))
        digits = _skill_decimals(rows)
        text += f", {abs(skill):.{digits}f} % {'lower' if skill >= 0 else 'higher'} than "
        text += f"{best['forecast']}, the best baseline"
        if low <= 0 <= high:
            text += f", which may be chance (95 % interval {low:.{digits}f} to {high:.{digits}f} %)"
        text += _disagreement(model, baselines, skill >= 0, decimals)
    return f"{text}; the 90 % intervals cover {100 * model['coverage_90']:.0f} %."


def _disagreement(model: Row, baselines: Sequence[Row], better: bool, decimals: int) -> str:
    """The RMSE of the best baseline, if it says the opposite of the CRPS."""
    best = min(baselines, key=lambda row: row["rmse"])
    if model["rmse"] == best["rmse"] or (model["rmse"] < best["rmse"]) == better:
        return ""
    first, second = (model, best) if not better else (best, model)
    name = "the model" if not better else best["forecast"]
    return (
        f"; by RMSE {name} is better ({first['rmse']:.{decimals}f} against "
        f"{second['rmse']:.{decimals}f})"
    )


@dataclass(frozen=True)
class ScoreTable:
    """Scores of all forecasts of a variable, never truncated.

    If all columns do not fit into the width, they are split over several tables; a column that does
    not fit even alone becomes lines of text.
    """

    title: str
    names: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> ScoreTable:
        name, unit = rows[0]["variable"], rows[0]["units"]
        title = f"{name}{f' ({unit})' if unit else ''}, {rows[0]['points']:,} values"
        decimals = _decimals(rows)
        columns = {
            **{h: _column(rows, h.lower(), decimals) for h in ("CRPS", "RMSE", "MAE", "bias")},
            "log-likelihood": _column(rows, "log_likelihood", 2),
            "90 % coverage": _column(rows, "coverage_90", 0, percent=True),
            "skill": _column(rows, "crps_skill", _skill_decimals(rows), percent=True),
        }
        return cls(title, tuple(f"{r['forecast']}{MARKS[r['spread']]}" for r in rows), columns)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        def fits(table: Table) -> bool:
            unlimited = options.update(max_width=10**6)
            return console.measure(table, options=unlimited).maximum <= options.max_width

        blocks: list[list[str]] = []
        for head in self.columns:
            if blocks and fits(self._table([*blocks[-1], head])):
                blocks[-1].append(head)
            else:
                blocks.append([head])
        yield Text(self.title, style="table.title")
        for heads in blocks:
            table = self._table(heads)
            yield table if fits(table) else self._lines(heads)

    def _table(self, heads: Sequence[str]) -> Table:
        table = Table(box=SIMPLE_HEAD)
        table.add_column("", no_wrap=True)
        for head in heads:
            table.add_column(head, justify="right", no_wrap=True)
        for i, name in enumerate(self.names):
            cells = [self.columns[head][i] for head in heads]
            table.add_row(Text(name), *cells, style="bold" if i == 0 else None)
        return table

    def _lines(self, heads: Sequence[str]) -> Text:
        lines = ["", *heads]
        for i, name in enumerate(self.names):
            lines += [name, *(f"  {self.columns[head][i]}" for head in heads)]
        return Text("\n".join(lines))


def _column(
    rows: Sequence[Row], score: str, decimals: int, *, percent: bool = False
) -> tuple[str, ...]:
    return tuple(_cell(row, score, decimals, percent) for row in rows)


def _cell(row: Row, score: str, decimals: int, percent: bool) -> str:
    factor = 100 if percent else 1
    value, low, high = (factor * row[f"{score}{end}"] for end in ("", "_low", "_high"))
    if not np.isfinite(value):
        return "–"
    around = f" ±{(high - low) / 2:.{decimals}f}" if np.isfinite(high - low) else ""
    return f"{value:.{decimals}f}{around}{' %' if percent else ''}"


def _decimals(rows: Sequence[Row]) -> int:
    """Decimals that show a digit of the narrowest CRPS interval, three digits if there is none, and
    tell forecasts apart that differ by a thousandth.
    """
    halves = [(row["crps_high"] - row["crps_low"]) / 2 for row in rows]
    largest = max(row["crps"] for row in rows)
    sizes = [half for half in halves if half > 1e-4 * largest] or [largest / 100 or 0.01]
    for score in ("crps", "rmse"):
        values = np.sort([row[score] for row in rows])
        gaps = np.diff(values)
        sizes += gaps[gaps > 1e-3 * values[:-1]].tolist()
    digits = [np.ceil(-np.log10(size)) for size in sizes]
    most = np.ceil(-np.log10(largest / 1000)) if largest > 0 else 8
    return int(np.clip(min(max(digits), most), 0, 8))


def _skill_decimals(rows: Sequence[Row]) -> int:
    """One decimal if a skill is below 10 %."""
    return int(any(abs(row["crps_skill"]) < 0.1 for row in rows[1:]))
