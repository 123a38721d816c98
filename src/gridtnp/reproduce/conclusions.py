"""The paper's numbers and conclusions, and what results say about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gridtnp.evaluation.bootstrap import autocorrelation_time
from gridtnp.reproduce.rows import Result
from gridtnp.reproduce.tables import ERRORS, mean_and_error

Pairs = Sequence[tuple[str, str]]
"""Rows of which the first should be better."""


def _beats(row: str, *others: str) -> Pairs:
    return [(row, other) for other in others]


def _conclusions() -> dict[str, dict[str, Pairs]]:
    beaten = "Gridded TNPs beat CNP, PT-TNP and ConvCNP"
    encoders = "PT-GE beats KI-GE and Avg-GE"
    vit = "Swin matches or beats ViT"
    decoding = "Nearest-neighbour decoding beats full attention"
    both = "Both sources beat either alone"
    finer = "A finer grid is better"
    station, rich = "swin-tnp-pt-64x128", "swin-tnp-pt-128x256"
    wind, fine = "swin-tnp-multi-pt-24x60", "swin-tnp-multi-pt-48x120"
    patches = ("vitnp-pt-144x288-to-48x96", "vitnp-ki-144x288-to-48x96")
    plain = ("vitnp-pt-48x96", "vitnp-ki-48x96")
    return {
        "gp": {
            beaten: _beats("swin-tnp-pt", "cnp", "pt-tnp", "convcnp"),
            encoders: [
                *_beats("swin-tnp-pt", "swin-tnp-ki", "swin-tnp-avg"),
                ("vitnp-pt", "vitnp-ki"),
            ],
            vit: [("swin-tnp-pt", "vitnp-pt"), ("swin-tnp-ki", "vitnp-ki")],
            decoding: [("swin-tnp-pt", "swin-tnp-pt-full")],
        },
        "stations": {
            beaten: [
                *_beats(station, "cnp", "pt-tnp-256", "convcnp-64x128-full"),
                ("swin-tnp-pt-192x384", "convcnp-192x384"),
            ],
            encoders: [
                *_beats(station, "swin-tnp-ki-64x128", "swin-tnp-avg-64x128"),
                plain,
                patches,
            ],
            vit: _beats(station, plain[0], patches[0]),
            decoding: [(row, f"{row}-full") for row in (station, "swin-tnp-ki-64x128")],
            both: _beats(station, f"{station}-skt", f"{station}-t2m"),
            finer: [("swin-tnp-pt-192x384", station)],
        },
        "stations-rich": {
            beaten: _beats(rich, "cnp", "pt-tnp-256", "convcnp-64x128"),
            encoders: [
                *_beats(rich, "swin-tnp-ki-128x256", "swin-tnp-avg-128x256"),
                plain,
                patches,
            ],
            vit: _beats(rich, plain[0], patches[0]),
            both: _beats(rich, f"{rich}-skt", f"{rich}-t2m"),
        },
        "wind": {
            beaten: [
                *_beats(wind, "cnp", "pt-tnp-64", "convcnp-24x60"),
                (fine, "convcnp-48x120"),
            ],
            encoders: [
                *_beats(wind, "swin-tnp-multi-ki-24x60", "swin-tnp-multi-avg-24x60"),
                ("swin-tnp-single-pt-24x60", "swin-tnp-single-ki-24x60"),
                ("vitnp-multi-pt-12x30", "vitnp-multi-ki-12x30"),
                ("vitnp-multi-pt-24x60-to-12x30", "vitnp-multi-ki-24x60-to-12x30"),
            ],
            "An encoder per source beats a single one": [
                (f"swin-tnp-multi-{kind}-24x60", f"swin-tnp-single-{kind}-24x60")
                for kind in ("pt", "ki")
            ],
            vit: _beats(wind, "vitnp-multi-pt-12x30", "vitnp-multi-pt-24x60-to-12x30"),
            finer: [(fine, wind)],
        },
    }


CONCLUSIONS = _conclusions()
NUMBERS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "stations": {
        "cnp": (0.636, 3.266),
        "pt-tnp-256": (1.344, 1.659),
        "convcnp-64x128-full": (1.535, 1.252),
        "vitnp-ki-48x96": (1.628, 1.197),
        "vitnp-pt-48x96": (1.704, 1.118),
        "vitnp-ki-144x288-to-48x96": (1.734, 1.073),
        "vitnp-pt-144x288-to-48x96": (1.808, 1.021),
        "swin-tnp-ki-64x128": (1.683, 1.157),
        "swin-tnp-pt-64x128": (1.819, 1.006),
        "swin-tnp-ki-64x128-full": (1.544, 1.436),
        "swin-tnp-pt-64x128-full": (1.636, 1.273),
        "swin-tnp-pt-64x128-skt": (1.427, 1.330),
        "swin-tnp-pt-64x128-t2m": (1.585, 1.599),
        "convcnp-192x384": (1.689, 1.166),
        "swin-tnp-pt-192x384": (2.053, 0.873),
    },
    "stations-rich": {
        "cnp": (0.715, 3.056),
        "pt-tnp-256": (1.593, 1.403),
        "convcnp-64x128": (1.705, 1.100),
        "vitnp-ki-48x96": (1.754, 1.112),
        "vitnp-pt-48x96": (1.988, 0.932),
        "vitnp-ki-144x288-to-48x96": (1.842, 1.046),
        "vitnp-pt-144x288-to-48x96": (2.242, 0.798),
        "swin-tnp-ki-128x256": (2.362, 0.758),
        "swin-tnp-pt-128x256": (2.446, 0.697),
        "swin-tnp-pt-128x256-skt": (1.501, 1.266),
        "swin-tnp-pt-128x256-t2m": (2.331, 0.909),
    },
    "wind": {
        "cnp": (-1.593, 2.536),
        "pt-tnp-64": (3.988, 1.185),
        "convcnp-24x60": (6.143, 0.784),
        "vitnp-multi-ki-12x30": (5.371, 0.908),
        "vitnp-multi-pt-12x30": (7.754, 0.651),
        "vitnp-multi-ki-24x60-to-12x30": (6.906, 0.718),
        "vitnp-multi-pt-24x60-to-12x30": (7.288, 0.681),
        "swin-tnp-multi-ki-24x60": (7.603, 0.651),
        "swin-tnp-multi-pt-24x60": (8.603, 0.577),
        "swin-tnp-single-ki-24x60": (7.794, 0.642),
        "swin-tnp-single-pt-24x60": (8.073, 0.614),
        "convcnp-48x120": (7.841, 0.615),
        "swin-tnp-multi-pt-48x120": (9.383, 0.509),
    },
}
"""Log-likelihood and RMSE in the paper's tables."""


def judge(table: str, results: Sequence[Result], scores: Sequence[Sequence[float]]) -> list[str]:
    """One line per conclusion of the paper; `scores` are log-likelihoods by test task.

    Rows that were trained from several seeds count with their mean.
    """
    mean = {
        row: np.mean([s for r, s in zip(results, scores, strict=True) if r["row"] == row], axis=0)
        for row in {r["row"] for r in results}
    }
    lines = []
    for words, pairs in CONCLUSIONS[table].items():
        there = [(a, b) for a, b in pairs if a in mean and b in mean]
        found = [difference(mean[a], mean[b]) for a, b in there]
        each = "; ".join(
            f"{a} − {b}: {value:+.3f} ± {ERRORS * error:.3f}"
            for (a, b), (value, error) in zip(there, found, strict=True)
        )
        lost = len(pairs) - len(there)
        missing = f" ({lost} of {len(pairs)} comparisons not run)" if there and lost else ""
        said = outcome(found, ties="matches" in words)
        lines.append(f"- {words}: {said}{missing}. {each}".rstrip(". ") + ".")
    return lines


def difference(better: np.ndarray, worse: np.ndarray) -> tuple[float, float]:
    """Mean difference on the same test tasks, and its standard error."""
    return mean_over_times(np.asarray(better) - np.asarray(worse))


def mean_over_times(series: np.ndarray) -> tuple[float, float]:
    """Mean over test tasks, and its standard error: those at neighbouring times may be alike."""
    mean, error = mean_and_error(series.tolist())
    return mean, error * math.sqrt(max(1.0, autocorrelation_time(series)))


def outcome(differences: Sequence[tuple[float, float]], *, ties: bool = False) -> str:
    """Whether every difference is positive, by intervals of two standard errors.

    With `ties`, it is enough that none is negative.
    """
    if not differences:
        return "not run"
    worse = [mean < -ERRORS * error for mean, error in differences]
    if all(mean > ERRORS * error for mean, error in differences) or (ties and not any(worse)):
        return "holds here"
    if any(worse):
        return "does not hold here" if all(worse) else "holds here in part"
    return "cannot be told"
