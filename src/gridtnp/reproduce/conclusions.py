"""The paper's conclusions about its weather experiments, and what results say about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gridtnp.evaluation.bootstrap import autocorrelation_time
from gridtnp.reproduce.rows import Result
from gridtnp.reproduce.tables import ERRORS, mean_and_error, verdict

CONCLUSIONS: Mapping[str, Sequence[tuple[str, Sequence[tuple[str, str]]]]] = {
    "stations": (
        (
            "Gridded TNPs beat CNP, PT-TNP and ConvCNP",
            [
                ("swin-tnp-pt-64x128", "cnp"),
                ("swin-tnp-pt-64x128", "pt-tnp-256"),
                ("swin-tnp-pt-64x128", "convcnp-64x128-full"),
                ("swin-tnp-pt-192x384", "convcnp-192x384"),
            ],
        ),
        (
            "PT-GE beats KI-GE and Avg-GE",
            [
                ("swin-tnp-pt-64x128", "swin-tnp-ki-64x128"),
                ("swin-tnp-pt-64x128", "swin-tnp-avg-64x128"),
                ("vitnp-pt-48x96", "vitnp-ki-48x96"),
                ("vitnp-pt-144x288-to-48x96", "vitnp-ki-144x288-to-48x96"),
            ],
        ),
        (
            "Swin matches or beats ViT",
            [
                ("swin-tnp-pt-64x128", "vitnp-pt-48x96"),
                ("swin-tnp-pt-64x128", "vitnp-pt-144x288-to-48x96"),
            ],
        ),
        (
            "Nearest-neighbour decoding beats full attention",
            [
                ("swin-tnp-pt-64x128", "swin-tnp-pt-64x128-full"),
                ("swin-tnp-ki-64x128", "swin-tnp-ki-64x128-full"),
            ],
        ),
        (
            "Both sources beat either alone",
            [
                ("swin-tnp-pt-64x128", "swin-tnp-pt-64x128-skt"),
                ("swin-tnp-pt-64x128", "swin-tnp-pt-64x128-t2m"),
            ],
        ),
        ("A finer grid is better", [("swin-tnp-pt-192x384", "swin-tnp-pt-64x128")]),
    ),
    "stations-rich": (
        (
            "Gridded TNPs beat CNP, PT-TNP and ConvCNP",
            [
                ("swin-tnp-pt-128x256", "cnp"),
                ("swin-tnp-pt-128x256", "pt-tnp-256"),
                ("swin-tnp-pt-128x256", "convcnp-64x128"),
            ],
        ),
        (
            "PT-GE beats KI-GE and Avg-GE",
            [
                ("swin-tnp-pt-128x256", "swin-tnp-ki-128x256"),
                ("swin-tnp-pt-128x256", "swin-tnp-avg-128x256"),
                ("vitnp-pt-48x96", "vitnp-ki-48x96"),
            ],
        ),
        (
            "Both sources beat either alone",
            [
                ("swin-tnp-pt-128x256", "swin-tnp-pt-128x256-skt"),
                ("swin-tnp-pt-128x256", "swin-tnp-pt-128x256-t2m"),
            ],
        ),
    ),
    "wind": (
        (
            "Gridded TNPs beat CNP, PT-TNP and ConvCNP",
            [
                ("swin-tnp-multi-pt-24x60", "cnp"),
                ("swin-tnp-multi-pt-24x60", "pt-tnp-64"),
                ("swin-tnp-multi-pt-24x60", "convcnp-24x60"),
                ("swin-tnp-multi-pt-48x120", "convcnp-48x120"),
            ],
        ),
        (
            "PT-GE beats KI-GE and Avg-GE",
            [
                ("swin-tnp-multi-pt-24x60", "swin-tnp-multi-ki-24x60"),
                ("swin-tnp-multi-pt-24x60", "swin-tnp-multi-avg-24x60"),
                ("swin-tnp-single-pt-24x60", "swin-tnp-single-ki-24x60"),
                ("vitnp-multi-pt-12x30", "vitnp-multi-ki-12x30"),
            ],
        ),
        (
            "An encoder per source beats a single one",
            [
                ("swin-tnp-multi-pt-24x60", "swin-tnp-single-pt-24x60"),
                ("swin-tnp-multi-ki-24x60", "swin-tnp-single-ki-24x60"),
            ],
        ),
        (
            "Swin matches or beats ViT",
            [
                ("swin-tnp-multi-pt-24x60", "vitnp-multi-pt-12x30"),
                ("swin-tnp-multi-pt-24x60", "vitnp-multi-pt-24x60-to-12x30"),
            ],
        ),
        ("A finer grid is better", [("swin-tnp-multi-pt-48x120", "swin-tnp-multi-pt-24x60")]),
    ),
}
"""The paper's conclusions: pairs of rows of which the first should be better."""


def judge(table: str, results: Sequence[Result]) -> list[str]:
    """One line per conclusion of the paper."""
    scores: dict[str, np.ndarray] = {}
    for row in {r["row"] for r in results}:
        runs = [r["groups"]["all"]["log_likelihood"] for r in results if r["row"] == row]
        scores[row] = np.mean(runs, axis=0)  # over seeds
    lines = []
    for words, pairs in CONCLUSIONS[table]:
        there = [(a, b) for a, b in pairs if a in scores and b in scores]
        found = [difference(scores[a], scores[b]) for a, b in there]
        each = "; ".join(
            f"{a} − {b}: {mean:+.3f} ± {ERRORS * error:.3f}"
            for (a, b), (mean, error) in zip(there, found, strict=True)
        )
        lost = len(pairs) - len(there)
        missing = f" ({lost} of {len(pairs)} comparisons not run)" if there and lost else ""
        lines.append(f"- {words}: {verdict(found)}{missing}. {each}".rstrip(". ") + ".")
    return lines


def difference(better: np.ndarray, worse: np.ndarray) -> tuple[float, float]:
    """Mean difference on the same test tasks, and its standard error.

    The error allows for tasks at neighbouring times being alike.
    """
    series = better - worse
    mean, error = mean_and_error(series.tolist())
    return mean, error * math.sqrt(max(1.0, autocorrelation_time(series)))
