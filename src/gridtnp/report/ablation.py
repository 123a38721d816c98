"""Source ablation: the model evaluated without each of its sources, on the same points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gridtnp.contents import ModelContents
from gridtnp.data.dataset import Dataset
from gridtnp.evaluation.evaluate import evaluate
from gridtnp.evaluation.results import Evaluation
from gridtnp.evaluation.summary import MODEL
from gridtnp.report.maps import quietly
from gridtnp.sources.source import Source
from gridtnp.tasks.selection import Selection, TaskRandom


@dataclass(frozen=True)
class Nothing(Selection):
    """No observations."""

    def select(self, source: Source, rows: np.ndarray, random: TaskRandom) -> np.ndarray:  # noqa: ARG002
        return rows[:0]


@dataclass(frozen=True, eq=False)
class Ablation:
    """The model beside itself without each source, as if these were baselines."""

    evaluation: Evaluation
    notes: tuple[str, ...]


def ablation(model: ModelContents, test: Dataset, *, limit: int, seed: int = 0) -> Ablation:
    """Leave out each source in turn, at no more than `limit` times.

    A source without which other points would be predicted is left out with a note.
    """
    contexts = model.spec.contexts
    with quietly():
        whole = evaluate(model, test, [], limit=limit, seed=seed)
        forecasts, notes = dict(whole.forecasts), []
        for source in dict.fromkeys(held.source for held in contexts.values()):
            without: dict[str, Any] = {
                name: Nothing() for name, held in contexts.items() if held.source == source
            }
            found = evaluate(model, test, [], selection=without, limit=limit, seed=seed)
            if _same_points(whole, found):
                forecasts[f"without {source}"] = found.forecasts[MODEL]
            else:
                notes.append(f"without {source}, other points would be predicted")
    return Ablation(replace(whole, forecasts=forecasts), tuple(notes))


def _same_points(a: Evaluation, b: Evaluation) -> bool:
    pairs = [(a.station, b.station), (a.lat, b.lat), (a.lon, b.lon), (a.observed, b.observed)]
    if a.time is not None and b.time is not None:
        pairs.append((a.time, b.time))
    return all(np.array_equal(x, y) for x, y in pairs)
