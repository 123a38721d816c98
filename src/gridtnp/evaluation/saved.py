"""`SavedScores`: scores and calibration of a run, read from the files that an evaluation left."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEXTS = ("variable", "units", "forecast", "spread")


@dataclass(frozen=True, eq=False)
class SavedScores:
    """The rows of `Evaluation.to_dataframe`, and what `Evaluation.calibration` found.

    Of an evaluation in parts there is no calibration.
    """

    rows: tuple[dict[str, Any], ...]
    calibration: Mapping[str, Any]
    split: str
    notes: tuple[str, ...] = ()

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row["variable"] for row in self.rows))

    @classmethod
    def read(cls, run: str | os.PathLike[str]) -> SavedScores | None:
        """From `eval/` in the folder of a run; None if there are none of its present weights."""
        folder = Path(run) / "eval"
        scores, calibration = folder / "scores.json", folder / "calibration.json"
        if not scores.is_file():
            return None
        try:
            found = json.loads(scores.read_text(encoding="utf-8"))
            if found["weights"] != weights_of_run(Path(run)):
                return None
            curves = (
                json.loads(calibration.read_text(encoding="utf-8")) if calibration.is_file() else {}
            )
            rows = tuple(
                {k: float("nan") if v is None and k not in TEXTS else v for k, v in row.items()}
                for row in found["scores"]
            )
            return cls(rows, curves, found["split"], tuple(found["notes"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"{str(folder)!r} does not hold the scores of an evaluation; evaluate the run "
                "again."
            ) from None


def weights_of_run(run: Path) -> str | None:
    """The checksum of the weights in the folder of a run; None if there are none."""
    try:
        record = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
        return record["sha256"]["model.safetensors"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
