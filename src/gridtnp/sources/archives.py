"""`Archive`: observations in Parquet files that stay on disk, with an index of times and places.

The index takes eight bytes per row, and is mapped into memory, not loaded. It is made once and kept
beside the files, or in the user's cache folder if they cannot be written there, and made again when
a file changes. Values are read by row group; the most recently used groups are cached.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from gridtnp.files import read_folder, staged
from gridtnp.processor import cache_folder
from gridtnp.sources.archive_index import FORMAT, SCAN, IndexWriter, row_type
from gridtnp.sources.parquet_files import ParquetFiles, RowGroup, Stamp
from gridtnp.sources.quality import Missing, Note
from gridtnp.sources.source import Blocks, Source, Variable
from gridtnp.sources.times import UNIT, rows_between

ROW_BYTES = 64
"""Memory of the time, place and station of a row of a table."""


def read_archive(
    name: str,
    files: ParquetFiles,
    memory: int,
    na_values: Sequence[Any] = (),
    crs: str | None = None,
) -> tuple[Archive, list[Note]] | None:
    """Open files with their index, which is made if need be; None if they fit into memory."""
    index, rows, numbers = _find(files, na_values, crs)
    if index is None:
        rows = sum(footer.num_rows for footer in files.footers)
        numbers = sum(kind == "numbers" for kind in files.require_same_columns().values())
    if rows * (ROW_BYTES + 4 * numbers) <= memory:
        return None
    if index is None:
        index = _make(name, files, memory, na_values, crs)
    # another process may be replacing the same index
    return read_folder(index, lambda f: _open(name, files, f, memory, na_values, crs))


@dataclass(frozen=True, eq=False)
class Archive(Source):
    """Rows on disk; locations are the distinct ones, in the order of their first rows."""

    offsets: np.ndarray
    """The first row of every time, and the number of rows."""
    place: np.ndarray
    row: np.ndarray
    """Where a row is among those of all files."""
    starts: np.ndarray
    """Where the first row of every row group is."""
    groups: Blocks
    counts: np.ndarray
    again: partial[Archive] = field(repr=False)
    """Opens the archive in another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.again, self.variables)

    @property
    def loaded(self) -> None:
        return None

    @property
    def size(self) -> int:
        return len(self.row)

    @property
    def rows_per_place(self) -> np.ndarray:
        return self.counts

    def rows(self, start: np.datetime64 | None, stop: np.datetime64 | None) -> tuple[int, int]:
        if start is None or stop is None:
            return 0, self.size
        assert self.times is not None
        first, last = rows_between(self.times, start, stop)
        return int(self.offsets[first]), int(self.offsets[last])

    def values(self, first: int, last: int) -> Float[np.ndarray, "n dy"]:
        numbers = self.row[first:last].astype(np.int64)
        group = np.searchsorted(self.starts, numbers, side="right") - 1
        found = np.empty((len(numbers), len(self.variables)), np.float32)
        for number in np.unique(group):
            here = group == number
            found[here] = self.groups.get(int(number))[numbers[here] - self.starts[number]]
        return found

    def places(self, rows: np.ndarray) -> np.ndarray:
        return self.place[rows].astype(np.int64)

    def times_of(self, rows: np.ndarray) -> np.ndarray:
        assert self.times is not None
        return self.times[np.searchsorted(self.offsets, rows, side="right") - 1]

    def times_at(self, places: np.ndarray | None) -> np.ndarray:
        assert self.times is not None
        if places is None or places.all():
            return np.array(self.times)
        found, first = np.zeros(len(self.times), bool), 0
        while first < len(self.times):
            start = int(self.offsets[first])
            last = int(np.searchsorted(self.offsets, start + SCAN, side="right")) - 1
            last = min(max(last, first + 1), len(self.times))
            there = places[self.place[start : int(self.offsets[last])]]
            found[first:last] = np.logical_or.reduceat(there, self.offsets[first:last] - start)
            first = last
        return self.times[found]


class RowGroups(Blocks):
    """The values of row groups."""

    def __init__(
        self,
        files: ParquetFiles,
        groups: Sequence[RowGroup],
        stamps: Sequence[Stamp],
        names: Sequence[str],
        missing: Missing,
        memory: int,
    ) -> None:
        super().__init__(memory)
        self.files, self.groups, self.stamps = files, groups, stamps
        self.names, self.missing = names, missing

    def load(self, number: int) -> np.ndarray:
        group = self.groups[number]
        if self.files.stamp(group.file) != self.stamps[group.file]:
            raise OSError(
                f"{self.files.path(group.file)!r} has changed since the dataset was made; make it "
                "again."
            )
        return self.files.values(group, self.names, self.missing)


# ---- the index on disk ---------------------------------------------------------------------------


def _folders(files: ParquetFiles, na_values: Sequence[Any], crs: str | None) -> Iterator[Path]:
    """Where the index may be: beside the files, or else, if it cannot be made there, in the user's
    cache folder.
    """
    key, root = _hash(files.pattern, list(map(str, na_values)), crs), os.path.realpath(files.root)
    yield Path(root) / ".gridtnp-index" / key
    if not os.access(root, os.W_OK):
        yield cache_folder() / "index" / f"{_hash(root)}-{key}"


def _find(
    files: ParquetFiles, na_values: Sequence[Any], crs: str | None
) -> tuple[Path | None, int, int]:
    """A folder with the index of exactly these files, their rows and their columns of numbers."""
    stamps = files.stamps()
    for folder in _folders(files, na_values, crs):
        try:
            about = json.loads((folder / "index.json").read_text(encoding="utf-8"))
            sizes = {name: (folder / f"{name}.bin").stat().st_size for name in about["bytes"]}
        except (OSError, ValueError, KeyError):
            continue
        same = sizes == about["bytes"] and list(map(tuple, about["files"])) == stamps
        if same and about["format"] == FORMAT:
            return folder, about["rows"], about["numbers"]
    return None, 0, 0


def _make(
    name: str, files: ParquetFiles, memory: int, na_values: Sequence[Any], crs: str | None
) -> Path:
    """Make an index, and the folder where it is."""
    *_, folder = _folders(files, na_values, crs)
    with staged(folder) as new:
        IndexWriter(name, files, memory, na_values, crs).write(new)
    return folder


def _open(
    name: str,
    files: ParquetFiles,
    folder: Path,
    memory: int,
    na_values: Sequence[Any],
    crs: str | None,
) -> tuple[Archive, list[Note]]:
    about = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    variables = tuple(Variable(**variable) for variable in about["variables"])
    groups = [RowGroup(**group) for group in about["groups"]]
    with np.load(folder / "places.npz") as places:
        lat, lon, labels, counts = (places[k] for k in ("lat", "lon", "labels", "counts"))
        known = dict(zip(about["columns"], places["static"], strict=True))
    mapped = {
        key: np.memmap(folder / f"{key}.bin", dtype, "r")
        for key, dtype in (
            ("times", UNIT),
            ("offsets", np.int64),
            ("place", np.uint32),
            ("row", row_type(about["rows"])),
        )
    }
    stamps: list[Stamp] = [(n, size, time) for n, size, time in about["files"]]
    store = RowGroups(
        *(files, groups, stamps, [v.name for v in variables]),
        *(Missing.declared({}, na_values), memory),
    )
    archive = Archive(
        *(name, variables, np.asarray(mapped["times"]), lat, lon, labels, known),
        *(np.asarray(mapped["offsets"]), np.asarray(mapped["place"]), np.asarray(mapped["row"])),
        *(np.array([group.start for group in groups]), store, counts),
        partial(_again, name, files, memory, tuple(na_values), crs),
    )
    return archive, [Note(**{**note, "source": name}) for note in about["notes"]]


def _again(
    name: str, files: ParquetFiles, memory: int, na_values: Sequence[Any], crs: str | None
) -> Archive:
    found = read_archive(name, files, memory, na_values, crs)
    if found is None:
        raise OSError(f"Files in {files.root!r} have changed since the dataset was made.")
    return found[0]


def _reopen(again: partial[Archive], variables: tuple[Variable, ...]) -> Archive:
    return replace(again(), variables=variables)


def _hash(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()
