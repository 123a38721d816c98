"""Charts as SVG: scores with intervals, PIT, coverage, and spread against skill.

Colours and fonts are those of style.css, so that a chart follows the page into the dark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

WIDTH, HEIGHT = 360, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 12, 44
"""Margins of a square chart."""
Scale = Callable[[float], float]


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    size = 10.0 ** np.floor(np.log10(rough))
    step = size * next(m for m in (1, 2, 2.5, 5, 10) if m * size >= 0.999 * rough)
    first = np.ceil(low / step - 1e-9)
    numbers = (first + np.arange(np.floor(high / step + 1e-9) - first + 1)) * step
    return [float(np.round(n, 12)) for n in numbers]


def score_intervals(
    rows: Sequence[Mapping[str, Any]], score: str, unit: str, names: Sequence[str]
) -> str:
    """One line per forecast: its score as a dot, on its 95 % interval."""
    step, top, label = 26, 6, 142
    width, right = 430, 14
    ends = [row[f"{score}_{end}"] for row in rows for end in ("low", "high")]
    values = [row[score] for row in rows]
    most = float(np.nanmax([v for v in [*ends, *values] if np.isfinite(v)] or [1.0])) or 1.0
    least = min(0.0, float(np.nanmin([v for v in [*ends, *values] if np.isfinite(v)] or [0.0])))
    ticks = nice_ticks(least, most, 4)

    def x(value: float) -> float:
        return label + (value - least) / (most - least) * (width - label - right)

    bottom = top + step * len(rows)
    parts = [
        f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{top}" y2="{bottom}"/>'
        f'<text class="tick" x="{x(t):.1f}" y="{bottom + 16}" text-anchor="middle">{t:g}</text>'
        for t in ticks
    ]
    for i, (row, name) in enumerate(zip(rows, names, strict=True)):
        y = top + step * (i + 0.5)
        kind = "model" if i == 0 else "other"
        low, high = row[f"{score}_low"], row[f"{score}_high"]
        if np.isfinite(low) and np.isfinite(high):
            parts.append(
                f'<line class="whisker {kind}" x1="{x(low):.1f}" x2="{x(high):.1f}" '
                f'y1="{y}" y2="{y}"/>'
            )
        parts.append(f'<circle class="dot {kind}" cx="{x(row[score]):.1f}" cy="{y}" r="5"/>')
        parts.append(
            f'<text class="name {kind}" x="{label - 12}" y="{y + 4.5}" text-anchor="end">'
            f"{escape(_shortened(name))}<title>{escape(name)}</title></text>"
        )
    title = f"{score.upper()}{f', {unit}' if unit else ''}"
    middle = label + (width - label - right) / 2
    parts.append(
        f'<text class="axis" x="{middle:.0f}" y="{bottom + 35}" text-anchor="middle">'
        f"{escape(title)} (less is better)</text>"
    )
    about = "; ".join(f"{n} {r[score]:.3g}" for n, r in zip(names, rows, strict=True))
    return _svg(width, bottom + 42, f"{title} with 95 % intervals: {about}", parts, "wide")


def pit(histogram: Sequence[float], points: int) -> str:
    """Probability integral transform: bars are level if the forecast is calibrated."""
    bins = len(histogram)
    heights = [bins * share for share in histogram]
    band = 1.96 * np.sqrt((bins - 1) / max(points, 1))
    most = max(2.0, 1.08 * max(heights), 1.08 * (1 + band))
    x, y = _axes((0.0, 1.0), (0.0, most))
    parts = [
        f'<rect class="band" x="{x(0):.1f}" width="{x(1) - x(0):.1f}" y="{y(1 + band):.1f}" '
        f'height="{y(max(1 - band, 0)) - y(1 + band):.1f}"/>'
    ]
    wide = (x(1) - x(0)) / bins
    for i, height in enumerate(heights):
        parts.append(
            f'<rect class="bar" x="{x(i / bins) + 0.75:.1f}" width="{wide - 1.5:.1f}" '
            f'y="{y(height):.1f}" height="{y(0) - y(height):.1f}"/>'
        )
    parts.append(_line(x(0), y(1), x(1), y(1), "ideal"))
    frame = _frame(x, y, (0, 0.25, 0.5, 0.75, 1), nice_ticks(0, most, 4))
    labels = _labels("probability integral transform (PIT)", "relative frequency")
    return _svg(WIDTH, HEIGHT, "PIT histogram of the model", [*frame, *parts, *labels])


def coverage(rows: Sequence[Mapping[str, Any]], levels: Sequence[float]) -> str:
    """How many observations central intervals hold, against their probability."""
    x, y = _axes((0.4, 1.0), (0.4, 1.0))
    parts = [_line(x(0.4), y(0.4), x(1), y(1), "ideal")]
    offsets = np.linspace(-0.008, 0.008, len(rows)) if len(rows) > 1 else [0.0]
    for i, row in reversed(list(enumerate(rows))):
        kind = "model" if i == 0 else "other"
        places = [
            (x(level + offsets[i]), row[f"coverage_{round(100 * level)}"]) for level in levels
        ]
        points = " ".join(f"{px:.1f},{y(max(v, 0.4)):.1f}" for px, v in places)
        parts.append(f'<polyline class="curve {kind}" points="{points}"/>')
        for (px, value), level in zip(places, levels, strict=True):
            low, high = (row[f"coverage_{round(100 * level)}_{end}"] for end in ("low", "high"))
            if np.isfinite(low) and np.isfinite(high):
                low, high = max(low, 0.4), min(max(high, 0.4), 1.0)
                parts.append(_line(px, y(low), px, y(high), f"thin {kind}"))
            if value >= 0.4:
                parts.append(
                    f'<circle class="dot {kind}" cx="{px:.1f}" cy="{y(value):.1f}" r="4"/>'
                )
    ticks = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    frame = _frame(x, y, ticks[::2], ticks, percent=True)
    labels = _labels("probability of the interval", "observations inside")
    return _svg(WIDTH, HEIGHT, "Coverage of central intervals", [*frame, *parts, *labels])


def spread_skill(curves: Sequence[Mapping[str, Sequence[float]]], unit: str) -> str:
    """Root-mean-square error in bins of predicted standard deviation, against the latter."""
    numbers = [v for c in curves for key in ("spread", "error") for v in c[key]]
    most = 1.08 * max([*numbers, 1e-12])
    x, y = _axes((0.0, most), (0.0, most))
    parts = [_line(x(0), y(0), x(most), y(most), "ideal")]
    for i, curve in reversed(list(enumerate(curves))):
        kind = "model" if i == 0 else "other"
        places = [(x(a), y(b)) for a, b in zip(curve["spread"], curve["error"], strict=True)]
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        if i == 0:  # lines of others would hide it
            parts.append(f'<polyline class="curve {kind}" points="{points}"/>')
        parts += [
            f'<circle class="dot {kind}" cx="{a:.1f}" cy="{b:.1f}" r="4"/>' for a, b in places
        ]
    ticks = nice_ticks(0, most, 4)
    frame = _frame(x, y, ticks, ticks)
    in_unit = f" ({unit})" if unit else ""
    labels = _labels(f"predicted standard deviation{in_unit}", f"RMSE{in_unit}")
    return _svg(WIDTH, HEIGHT, "Spread against skill", [*frame, *parts, *labels])


def _axes(across: tuple[float, float], up: tuple[float, float]) -> tuple[Scale, Scale]:
    def x(value: float) -> float:
        return LEFT + (value - across[0]) / (across[1] - across[0]) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - up[0]) / (up[1] - up[0]) * (HEIGHT - TOP - BOTTOM)

    return x, y


def _frame(
    x: Scale, y: Scale, across: Sequence[float], up: Sequence[float], *, percent: bool = False
) -> list[str]:
    def text(value: float) -> str:
        return f"{100 * value:.0f}\u00a0%" if percent else f"{value:g}"

    left, bottom = LEFT, HEIGHT - BOTTOM
    parts = []
    for t in across:
        parts.append(_line(x(t), TOP, x(t), bottom, "grid"))
        parts.append(
            f'<text class="tick" x="{x(t):.1f}" y="{bottom + 16}" text-anchor="middle">'
            f"{text(t)}</text>"
        )
    for t in up:
        parts.append(_line(left, y(t), WIDTH - RIGHT, y(t), "grid"))
        parts.append(
            f'<text class="tick" x="{left - 7}" y="{y(t) + 4:.1f}" text-anchor="end">'
            f"{text(t)}</text>"
        )
    return parts


def _labels(across: str, up: str) -> list[str]:
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    half = TOP + (HEIGHT - TOP - BOTTOM) / 2
    return [
        f'<text class="axis" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(across)}</text>",
        f'<text class="axis" x="12" y="{half}" text-anchor="middle" '
        f'transform="rotate(-90 12 {half})">{escape(up)}</text>',
    ]


def _shortened(name: str, most: int = 21) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _svg(width: int, height: int, title: str, parts: Sequence[str], kind: str = "square") -> str:
    return (
        f'<svg class="chart {kind}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
