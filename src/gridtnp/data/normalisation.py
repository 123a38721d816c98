"""`Normaliser`: standardises each variable by its mean and standard deviation in training.

Variables are keyed by `source.variable`, static features by their name alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from gridtnp.data.dataset import Dataset
from gridtnp.errors import require_known
from gridtnp.sources.source import Lazy, Panel, Source

PAPER = {
    "t2m": (278.514, 21.22036),
    "skt": (279.4751, 22.15446),
    "u_1000": (-0.03328723, 6.141778),
    "v_1000": (0.1867637, 5.308203),
    "u_850": (1.418379, 8.188043),
    "v_850": (0.142815, 6.264443),
    "u_700": (3.345237, 9.168821),
    "v_700": (0.02153583, 6.87104),
}
"""Mean and standard deviation (K, m/s) in the paper's experiments with ERA5."""
ALIASES = {
    "2m_temperature": "t2m",
    "skin_temperature": "skt",
    **{f"{c}{level}": f"{c}_{level}" for c in "uv" for level in (700, 850, 1000)},
    **{
        f"{c}_component_of_wind_{level}": f"{c}_{level}" for c in "uv" for level in (700, 850, 1000)
    },
}
STEPS = 256
"""Time steps, or runs of rows, from which the moments of a lazy source are estimated."""
RUN = 2**16
"""Rows of a run on disk."""


@dataclass(frozen=True)
class Normaliser:
    """(value - mean) / std and its inverse."""

    mean: Mapping[str, float]
    std: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, std in self.std.items():
            if not (0 < std < np.inf and np.isfinite(self.mean[name])):
                raise ValueError(
                    f"{name!r} has mean {self.mean[name]} and standard deviation {std}; the mean "
                    "must be finite and the standard deviation positive and finite."
                )

    @classmethod
    def fit(cls, train: Dataset) -> Normaliser:
        """Mean and standard deviation over the locations and times of the training part only."""
        mean, std = {}, {}
        for name, source in train.sources.items():
            allowed = train.context_places.get(name)
            count, average, square = _moments(pieces(train, source), source, allowed)
            for i, variable in enumerate(source.names):
                if not count[i]:
                    raise ValueError(
                        f"Variable '{name}.{variable}' has no values in the training part to "
                        "normalise it by; leave it out, or train on other times or stations."
                    )
                key = f"{name}.{variable}"
                mean[key] = float(average[i])
                std[key] = float(np.sqrt(square[i] / count[i])) or 1.0  # a constant is only shifted
        for i, feature in enumerate(train.statics):
            values = train.static_at(train.target_source)[:, i].astype(np.float64)
            kept = np.isfinite(values) & train.context_places.get(train.target_source, True)
            rows = train.sources[train.target_source].rows_per_place
            weights = kept * (1.0 if rows is None else rows)
            average = float(np.nansum(values * weights) / weights.sum())
            square = float(np.nansum((values - average) ** 2 * weights) / weights.sum())
            mean[feature], std[feature] = average, np.sqrt(square) or 1.0
        return cls(mean, std)

    def keeping_zero(self, scales: Mapping[str, float]) -> Normaliser:
        """Only divide some variables, by these numbers, so that zero stays zero."""
        return Normaliser({**self.mean, **dict.fromkeys(scales, 0.0)}, {**self.std, **scales})

    @classmethod
    def paper(cls, data: Dataset) -> Normaliser:
        """The paper's constants, for variables named as in ERA5 (`t2m`, `u_850`, …)."""
        mean, std = {}, {}
        for name, source in data.sources.items():
            for variable in source.names:
                known = ALIASES.get(variable, variable)
                require_known(known, PAPER, "variable", f"of {name!r} among the paper's constants")
                mean[f"{name}.{variable}"], std[f"{name}.{variable}"] = PAPER[known]
        return cls(mean, std)

    def normalise(
        self, names: Sequence[str], values: Float[np.ndarray, "n dy"]
    ) -> Float[np.ndarray, "n dy"]:
        """Standardised values in double precision; `names` are those of the columns."""
        mean, std = self._constants(names)
        return (values - mean) / std

    def restore(
        self, names: Sequence[str], values: Float[np.ndarray, "n dy"]
    ) -> Float[np.ndarray, "n dy"]:
        """The inverse of `normalise`."""
        mean, std = self._constants(names)
        return values * std + mean

    def scale(self, names: Sequence[str]) -> Float[np.ndarray, " dy"]:
        """The factors that convert normalised standard deviations back to the data's units."""
        return self._constants(names)[1]

    def to_json(self, path: str | os.PathLike[str]) -> None:
        record = {name: [self.mean[name], self.std[name]] for name in self.mean}
        Path(path).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Normaliser:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls({k: v[0] for k, v in record.items()}, {k: v[1] for k, v in record.items()})

    def _constants(self, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        for name in names:
            require_known(name, self.mean, "variable", "in the normaliser")
        pairs = [(self.mean[name], self.std[name]) for name in names]
        return np.array([m for m, _ in pairs]), np.array([s for _, s in pairs])


def pieces(data: Dataset, source: Source) -> Iterator[tuple[int, np.ndarray]]:
    """The values of a source in this part, in chunks, each with its first row.

    Of a long lazy source, only `STEPS` evenly spaced steps, or runs of rows, are read.
    """
    start, stop = data.period or (None, None)
    first, last = source.rows(start, stop)
    if not isinstance(source, Panel):
        size = RUN if source.loaded is None else 2**20
        runs = np.arange(first, last, size)
        if source.loaded is None and len(runs) > STEPS:
            runs = runs[np.linspace(0, len(runs) - 1, STEPS).round().astype(int)]
        for row in map(int, runs):
            yield row, source.values(row, min(row + size, last))
        return
    places = len(source.lat)
    steps = np.arange(first // places, last // places)
    if isinstance(source.store, Lazy) and len(steps) > STEPS:
        steps = steps[np.linspace(0, len(steps) - 1, STEPS).round().astype(int)]
    for step in steps:
        yield int(step) * places, source.values(int(step) * places, (int(step) + 1) * places)


def _moments(
    chunks: Iterator[tuple[int, np.ndarray]], source: Source, allowed: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count, mean and sum of squared deviations of every variable, merged over chunks."""
    size = len(source.variables)
    count, mean, square = np.zeros(size), np.zeros(size), np.zeros(size)
    for first, values in chunks:
        if allowed is not None:
            rows = np.arange(first, first + len(values))
            values = values[allowed[source.places(rows)]]
        observed = np.isfinite(values)
        added = observed.sum(0)
        filled = np.where(observed, values, 0.0).astype(np.float64)
        centre = filled.sum(0) / np.maximum(added, 1)
        deviation = (np.where(observed, filled - centre, 0.0) ** 2).sum(0)
        total = np.maximum(count + added, 1)
        shift = centre - mean
        square = square + deviation + shift**2 * count * added / total
        mean = mean + shift * added / total
        count = count + added
    return count, mean, square
