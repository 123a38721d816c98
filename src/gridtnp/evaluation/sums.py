"""`ScoreSums`: sums and counts of scores by time and place, which add up over parts.

The scores of any number of points are ratios of sums, and so are the resampled ones of their
intervals. An evaluation can therefore be made in parts, by several processes, of which each keeps
a few numbers per time and station.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Shaped
from rich.console import Console, RenderableType

from gridtnp.evaluation import scores
from gridtnp.evaluation.bootstrap import bootstrap_means, interval, time_blocks
from gridtnp.evaluation.saved import weights_of_run
from gridtnp.evaluation.summary import render, summarise
from gridtnp.files import replace_file, write_text
from gridtnp.sources.reading import require_installed

COVERAGES = tuple(f"coverage_{round(100 * level)}" for level in scores.LEVELS)
SCORES = ("crps", "rmse", "mae", "bias", "log_likelihood", "normalised_log_density", *COVERAGES)
"""Columns of every table of scores."""
WIDTH = 120
"""Columns of `str`, where stdout is not a terminal."""
ABOUT = b"gridtnp_scores"
"""The key of the description in the metadata of a Parquet file."""
SHARED = ("parts", "split", "block", "seed", "fingerprint")
"""What is the same in all parts of an evaluation."""
Key = tuple[str, str]


@dataclass(frozen=True, eq=False)
class ScoreSums:
    """Sums of scores over the points of every time and place.

    `sums` has, by variable and forecast, a column for each of `SCORES`; that of the RMSE is the sum
    of squares. `spreads` is the origin of the standard deviations of each forecast. `done` are the
    parts that were added up, out of `parts`; their weights and data have the same `fingerprint`.
    """

    variables: Mapping[str, str | None]
    spreads: Mapping[str, str]
    time: Shaped[np.ndarray, " n"] | None
    place: Shaped[np.ndarray, " n"]
    points: Int[np.ndarray, " n"]
    sums: Mapping[Key, Float[np.ndarray, "n k"]]
    split: str
    notes: tuple[str, ...] = ()
    block: str | None = None
    seed: int = 0
    done: tuple[int, ...] = (0,)
    parts: int = 1
    fingerprint: str = ""

    # ---- adding up -------------------------------------------------------------------------------

    def grouped(self) -> ScoreSums:
        """With one row per time and place."""
        place, code = np.unique(self.place, return_inverse=True)
        if self.time is None:
            time, step = None, np.zeros(len(code), int)
        else:
            time, step = np.unique(self.time, return_inverse=True)
        cells, row = np.unique(step * len(place) + code, return_inverse=True)
        return replace(
            self,
            time=None if time is None else time[cells // len(place)],
            place=place[cells % len(place)],
            points=np.bincount(row, self.points).astype(int),
            sums={
                key: np.stack([np.bincount(row, column) for column in values.T], -1)
                for key, values in self.sums.items()
            },
        )

    @classmethod
    def add_up(cls, parts: Iterable[ScoreSums | str | os.PathLike[str]]) -> ScoreSums:
        """The sums of all parts, or of their files, in the order of the parts."""
        found = [one if isinstance(one, ScoreSums) else cls.read(one) for one in parts]
        if not found:
            raise ValueError("There are no parts to add up; evaluate with part=(i, n) first.")
        found.sort(key=lambda one: one.done)
        first, done = found[0], [number for one in found for number in one.done]
        for number in done:
            if done.count(number) > 1:
                raise ValueError(f"Part {number} of {first.parts} is given twice; leave one out.")
        for one in found[1:]:
            for what in (*SHARED, "variables", "spreads"):
                a, b = getattr(first, what), getattr(one, what)
                if a != b:
                    raise ValueError(
                        f"Part {one.done[0]} was evaluated with other {what} than part "
                        f"{first.done[0]}: {b}, not {a}; evaluate all with the same arguments."
                    )
        times = [one.time for one in found if one.time is not None]
        return replace(
            first,
            time=np.concatenate(times) if times else None,
            place=np.concatenate([one.place for one in found]),
            points=np.concatenate([one.points for one in found]),
            sums={key: np.concatenate([one.sums[key] for one in found]) for key in first.sums},
            notes=tuple(dict.fromkeys(note for one in found for note in one.notes)),
            done=tuple(done),
        ).grouped()

    @property
    def missing(self) -> list[int]:
        """The parts that are not there."""
        return sorted(set(range(self.parts)) - set(self.done))

    # ---- files -----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the sums to a Parquet file."""
        pa = require_installed("pyarrow", "io", "Writing sums of scores")
        import pyarrow.parquet as pq

        columns: dict[str, Any] = {} if self.time is None else {"time": self.time}
        columns |= {"place": self.place, "points": self.points}
        for number, values in enumerate(self.sums.values()):
            for score, column in zip(SCORES, values.T, strict=True):
                columns[f"{number} {score}"] = column
        about = {
            "variables": dict(self.variables),
            "spreads": dict(self.spreads),
            "keys": [list(key) for key in self.sums],
            "notes": list(self.notes),
            "done": list(self.done),
            **{name: getattr(self, name) for name in SHARED},
        }
        table = pa.table({k: pa.array(v) for k, v in columns.items()})
        table = table.replace_schema_metadata({ABOUT: json.dumps(about).encode()})
        replace_file(Path(path), lambda new: pq.write_table(table, new))
        return Path(path)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ScoreSums:
        """Sums from the file of a part."""
        require_installed("pyarrow", "io", "Reading sums of scores")
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        if ABOUT not in (table.schema.metadata or {}):
            raise ValueError(f"{str(path)!r} does not hold the scores of a part of an evaluation.")
        about = json.loads(table.schema.metadata[ABOUT])
        values = {name: table[name].to_numpy() for name in table.column_names}
        time = values.get("time")
        return cls(
            variables=about["variables"],
            spreads=about["spreads"],
            time=None if time is None else time.astype("datetime64[ms]"),
            place=values["place"].astype(str)
            if values["place"].dtype == object
            else values["place"],
            points=values["points"],
            sums={
                (key[0], key[1]): np.stack([values[f"{i} {score}"] for score in SCORES], -1)
                for i, key in enumerate(about["keys"])
            },
            **{name: about[name] for name in SHARED if name in about},
            notes=tuple(about["notes"]),
            done=tuple(about["done"]),
        )

    def save_scores(self, folder: Path) -> None:
        """Write the scores to scores.csv, and with summaries and notes to scores.json.

        In the folder of a run, scores.json names the weights that were scored.
        """
        table = self.to_dataframe()
        replace_file(folder / "scores.csv", lambda new: table.to_csv(new, index=False))
        record = json.loads(self.to_json()) | {"weights": weights_of_run(folder.parent)}
        write_text(folder / "scores.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")

    def to_json(self) -> str:
        """Scores, summaries and notes."""
        about = {
            "split": self.split,
            "points": int(self.points.sum()),
            "summary": list(self.summaries()),
            "notes": list(self.notes),
            "scores": [
                {k: None if value != value else value for k, value in row.items()}  # no NaN
                for row in self.rows
            ],
        }
        return json.dumps(about, indent=2, ensure_ascii=False)

    # ---- scores ----------------------------------------------------------------------------------

    def to_dataframe(self) -> pd.DataFrame:
        """One row per variable and forecast; see `Evaluation.to_dataframe`."""
        return pd.DataFrame(self.rows)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        rows, blocks, number = [], self.blocks, int(self.points.sum())
        for variable, units in self.variables.items():
            model: tuple[float, np.ndarray] | None = None  # the model's CRPS, and its draws
            for name, spread in self.spreads.items():
                sums = self.sums[variable, name]
                means = sums.sum(0) / number
                draws = bootstrap_means(sums, self.clusters, self.seed, self.points)
                row: dict[str, Any] = {"variable": variable, "units": units, "forecast": name}
                row |= {"spread": spread, "points": number}
                for k, score in enumerate(SCORES):
                    root = np.sqrt if score == "rmse" else np.asarray
                    row |= with_interval(score, float(root(means[k])), root(draws[:, k]), blocks)
                if model is None:
                    model = float(means[0]), draws[:, 0]
                    row |= with_interval("crps_skill", np.nan, np.array([np.nan]), blocks)
                else:
                    value = float(scores.skill(np.array(model[0]), np.array(means[0])))
                    drawn = scores.skill(model[1], draws[:, 0])
                    row |= with_interval("crps_skill", value, drawn, blocks)
                rows.append(row)
        return rows

    @property
    def blocks(self) -> int:
        """Number of blocks of time or of stations, whichever are fewer."""
        numbers = [int(code.max()) + 1 for code in self.clusters]
        return min((number for number in numbers if number > 1), default=1)

    @cached_property
    def clusters(self) -> tuple[Int[np.ndarray, " n"], ...]:
        """The place, or group of places, and the block of time of every row."""
        places = np.unique(self.place, return_inverse=True)[1]
        if self.time is None or (self.time == self.time[0]).all():
            return (places,)
        first = next(iter(self.spreads))
        crps = np.stack([self.sums[variable, first][:, 0] for variable in self.variables], -1)
        error = (crps / (crps.sum(0) / self.points.sum())).mean(1)
        return time_blocks(self.time, error, self.block, self.points), places

    # ---- text ------------------------------------------------------------------------------------

    def summaries(self) -> tuple[str, ...]:
        """One sentence per variable."""
        return tuple(summarise(rows, self.split) for rows in self.by_variable())

    def by_variable(self) -> list[list[dict[str, Any]]]:
        return [[row for row in self.rows if row["variable"] == name] for name in self.variables]

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> RenderableType:
        notes = list(self.notes)
        if self.missing:
            notes.append(f"{len(self.done)} of {self.parts} parts; missing: {self.missing}")
        return render(self.by_variable(), self.split, notes)


def as_text(table: RenderableType) -> str:
    """A table as plain text, as wide as the terminal."""
    text, width = io.StringIO(), shutil.get_terminal_size((WIDTH, 0)).columns
    Console(file=text, width=width, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def with_interval(name: str, value: float, draws: np.ndarray, blocks: int) -> dict[str, float]:
    """A score with the ends of its interval."""
    low, high = interval(value, draws, blocks)
    return {name: float(value), f"{name}_low": low, f"{name}_high": high}
