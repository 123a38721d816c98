"""Mutated files: read as they are meant, or refused or warned about in a sentence; never wrong."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mutated_csv import VARIABLES, File, csv_file, key
from mutated_netcdf import netcdf_file

from gridtnp.data.dataset import Dataset
from gridtnp.sources.quality import DataWarning

FEW, MANY = 40, 200
"""Files of each kind in `make test`, and of each other seed in `make test-all`."""
WRITERS = {"csv": csv_file, "netcdf": netcdf_file}


def check(file: File) -> str:
    """Raise if the file is read wrongly without a word; else say how reading ended."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            data = Dataset({"obs": file.path}, target="obs")
        except (ValueError, OSError) as error:
            return refusal(str(error), file)
    assert all(issubclass(w.category, DataWarning) for w in caught), [str(w) for w in caught]
    told = "; ".join(str(w.message) for w in caught)
    source = data.sources["obs"]
    rows = np.arange(source.size)
    places, times = source.places(rows), source.times_of(rows)
    values = source.values(0, source.size)
    assert times is not None, "its times are lost"
    left = {at: dict(known) for at, known in file.truth.items()}
    wrong = []
    for row in rows:
        at = key(times[row], source.lat[places[row]], source.lon[places[row]])
        for name in VARIABLES:
            if name not in source.names:
                continue
            got = float(values[row, source.names.index(name)])
            true = left.get(at, {}).pop(name, None)
            if np.isnan(got):
                if true is not None:
                    wrong.append((at, name, got, true))
            elif true is None or abs(got - true) > file.tolerance + 1e-6 * abs(true):
                wrong.append((at, name, got, true))
    wrong += [(at, n, np.nan, v) for at, known in left.items() for n, v in known.items()]
    if wrong:
        assert file.harmful, f"{len(wrong)} values are wrong, such as {wrong[0]}; told: {told!r}"
        about = [word for word in file.unknown if word in told]
        assert about, f"{len(wrong)} values are wrong, such as {wrong[0]}; told only: {told!r}"
        return "warned"
    return "warned" if told else "read"


def refusal(sentence: str, file: File) -> str:
    """A refusal is one sentence that names the file, a column or a row."""
    assert file.harmful, f"a harmless file is refused: {sentence}"
    assert "\n" not in sentence, sentence
    assert sentence[-1] in ".?", sentence
    assert 20 < len(sentence) < 500, sentence
    quoted = re.search(r"'(lat|lon|time|tmax|rain|traj|row|hat|y|x|rain/day)\b", sentence)
    placed = re.search(r"\b(row|line|position) \d+", sentence, re.IGNORECASE)
    assert file.path.name in sentence or quoted or placed, sentence
    return "refused"


def run(folder: Path, write: Callable[[Path, int], File], seeds: range) -> dict[str, int]:
    ended = {"read": 0, "warned": 0, "refused": 0}
    for seed in seeds:
        file = write(folder, seed)
        try:
            ended[check(file)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, {file.changes}: {error!r}") from error
        file.path.unlink()
    return ended


@pytest.mark.parametrize("kind", WRITERS)
def test_mutated_files_are_never_read_wrongly_without_a_word(kind: str, tmp_path: Path) -> None:
    ended = run(tmp_path, WRITERS[kind], range(FEW))
    assert min(ended.values()) > 0, ended


@pytest.mark.slow
@pytest.mark.parametrize("start", [1000, 2000, 3000])
@pytest.mark.parametrize("kind", WRITERS)
def test_other_mutated_files(kind: str, start: int, tmp_path: Path) -> None:
    run(tmp_path, WRITERS[kind], range(start, start + MANY))


def test_the_oracle_sees_a_wrong_value(tmp_path: Path) -> None:
    """The checks above could fail: a changed truth is found, with and without a warning."""
    for kind, write in WRITERS.items():
        for seed in range(FEW):
            file = write(tmp_path, seed)
            if not file.harmful and check(file) == "read":
                first = next(known for known in file.truth.values() if len(known) == 2)
                first["tmax"] += 1.0
                with pytest.raises(AssertionError, match="values are wrong"):
                    check(file)
                break
        else:
            raise AssertionError(f"no harmless {kind} file")
