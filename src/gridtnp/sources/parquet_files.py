"""Parquet files of one source, by row group: a file, those of a glob, or a folder of partitions.

Folders called like `station=S01` (hive partitions) are a column of what is below them, if it is one
of places, times or stations; others, such as `year=2019`, only sort the files.
"""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd

from gridtnp.errors import reason, require_installed
from gridtnp.sources.coordinates import recognise
from gridtnp.sources.quality import Missing
from gridtnp.sources.tables import index_to_columns
from gridtnp.sources.times import to_times

ENDINGS = (".parquet", ".pq")
INSTANT = np.timedelta64(1, "ms")
Stamp = tuple[str, int, int]
"""Name, size and time of the last change of a file."""


@dataclass(frozen=True)
class RowGroup:
    """Some rows of a file; `start` is the number of the first among those of all files."""

    file: int
    number: int
    start: int
    rows: int


@dataclass(frozen=True)
class ParquetFiles:
    """Files below `root` that `pattern` describes, in the order of their names."""

    root: str
    pattern: str
    names: tuple[str, ...]

    @classmethod
    def find(cls, address: str) -> ParquetFiles | None:
        """The files of a path or a glob; None if there is no Parquet file."""
        path = Path(os.path.abspath(address))
        root, pattern = (path, "") if path.is_dir() else (path.parent, path.name)
        found = _below(path)
        if not path.exists() and glob.has_magic(address):
            fixed = next(i for i, part in enumerate(path.parts) if glob.has_magic(part))
            root, pattern = Path(*path.parts[:fixed]), str(Path(*path.parts[fixed:]))
            found = [file for match in glob.glob(str(path)) for file in _below(Path(match))]
        names = sorted(str(file.relative_to(root)) for file in found)
        if not names or not all(name.lower().endswith(ENDINGS) for name in names):
            return None
        return cls(str(root), pattern, tuple(names))

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process, which reads for itself."""
        return ParquetFiles, (self.root, self.pattern, self.names)

    def path(self, file: int) -> str:
        return os.path.join(self.root, self.names[file])

    def stamps(self) -> list[Stamp]:
        """What changes when a file does."""
        return [self.stamp(i) for i in range(len(self.names))]

    def stamp(self, file: int) -> Stamp:
        with _reading(self.path(file)):
            found = os.stat(self.path(file))
        return self.names[file], found.st_size, found.st_mtime_ns

    def partition(self, file: int) -> dict[str, str]:
        """The columns that the names of folders stand for, if they have a role."""
        pairs = (part.split("=", 1) for part in Path(self.names[file]).parts[:-1] if "=" in part)
        return {key: unquote(value) for key, value in pairs if recognise({key: {}})}

    # ---- what the files hold ---------------------------------------------------------------------

    @cached_property
    def footers(self) -> list[Any]:
        """The metadata of every file."""
        found, parquet = [], _parquet(self.path(0))
        for i in range(len(self.names)):
            with _reading(self.path(i)):
                found.append(parquet.read_metadata(self.path(i)))
        return found

    @property
    def filled(self) -> list[int]:
        """The numbers of the files that have rows."""
        return [i for i, footer in enumerate(self.footers) if footer.num_rows]

    def row_groups(self) -> list[RowGroup]:
        """All row groups with rows, in the order of the files."""
        found, start = [], 0
        for i in self.filled:
            for number in range(self.footers[i].num_row_groups):
                rows = self.footers[i].row_group(number).num_rows
                if rows:
                    found.append(RowGroup(i, number, start, rows))
                    start += rows
        return found

    def kinds(self, file: int) -> dict[str, str]:
        """Whether each column holds numbers, dates, text or something else."""
        schema = self.footers[file].schema.to_arrow_schema()
        found = {field.name: _kind(field.type) for field in schema}
        return found | dict.fromkeys(self.partition(file), "text")

    def require_same_columns(self) -> dict[str, str]:
        """The kinds of the columns; raises unless all files with rows have the same ones."""
        if not self.filled:
            where = os.path.normpath(os.path.join(self.root, self.pattern))
            raise ValueError(f"{where!r} has no rows; a source needs some.")
        first = self.filled[0]
        kinds = self.kinds(first)
        for file in self.filled[1:]:
            here = self.kinds(file)
            for column in sorted(set(kinds) ^ set(here)):
                has, lacks = (first, file) if column in kinds else (file, first)
                raise ValueError(
                    f"{self.path(lacks)!r} has no column {column!r}, but {self.path(has)!r} does; "
                    "write all files with the same columns, or make them two sources."
                )
            for column, kind in here.items():
                kinds[column] = kind if kinds[column] == "none" else kinds[column]
                if kind not in ("none", kinds[column]):
                    raise ValueError(
                        f"Column {column!r} holds {kind} in {self.path(file)!r}, but "
                        f"{kinds[column]} in {self.path(first)!r}; write all files alike, or make "
                        "them two sources."
                    )
        return kinds

    # ---- rows ------------------------------------------------------------------------------------

    def frame(self, group: RowGroup, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The rows of a group as a table."""
        partition = self.partition(group.file)
        stored = None if columns is None else [c for c in columns if c not in partition]
        with _reading(self.path(group.file)):
            found = self._open(group.file).read_row_group(group.number, stored, use_threads=False)
            table = index_to_columns(found.to_pandas()).reset_index(drop=True)
        given = {k: v for k, v in partition.items() if columns is None or k in columns}
        made = table.assign(**given)
        made.attrs = table.attrs
        return made

    def read(self) -> pd.DataFrame:
        """All rows of all files as one table."""
        self.require_same_columns()
        frames = [self.frame(group) for group in self.row_groups()]
        table = pd.concat(frames, ignore_index=True)
        table.attrs = frames[0].attrs
        return table

    def values(self, group: RowGroup, names: Sequence[str], missing: Missing) -> np.ndarray:
        """Some columns of a group in single precision; missing values are NaN."""
        made = np.empty((group.rows, len(names)), np.float32)
        with _reading(self.path(group.file)):
            file = self._open(group.file)
            found = file.read_row_group(group.number, list(names), use_threads=False)
            for i, name in enumerate(names):
                numbers = found.column(name).cast("float64", safe=False).to_numpy()
                made[:, i] = missing.mask(numbers)
        made[~np.isfinite(made)] = np.nan
        return made

    def earliest(self, group: RowGroup, column: str) -> np.datetime64:
        """A time that none of a group precedes."""
        found = _minimum(self.footers[group.file].row_group(group.number), column)
        values = self.frame(group, [column])[column] if found is None else [found]
        times = to_times(values, column)
        times = times[~np.isnat(times)]
        if not len(times):
            return np.datetime64(0, "ms")
        return times.min() - INSTANT  # statistics may be rounded

    def _open(self, file: int) -> Any:
        return _parquet(self.path(file)).ParquetFile(self.path(file))


def _below(path: Path) -> list[Path]:
    """A file, or all Parquet files in a folder that are not hidden."""
    if not path.is_dir():
        return [path] if path.exists() else []
    found = [file for ending in ENDINGS for file in path.rglob(f"*{ending}") if file.is_file()]
    return [f for f in found if not any(p[:1] in "._" for p in f.relative_to(path).parts)]


def _parquet(path: str) -> Any:
    require_installed("pyarrow", "io", f"Reading {path!r}")
    return importlib.import_module("pyarrow.parquet")


def time_column(kinds: Mapping[str, str], frame: pd.DataFrame) -> str | None:
    """The column of times among those of the files; `frame` has some rows, with their units."""
    units = frame.attrs.get("units", {})
    return recognise({c: {"units": units[c]} if c in units else {} for c in kinds}).get("time")


def _minimum(row_group: Any, column: str) -> Any:
    """The earliest time by the statistics of a file; None if it has none."""
    for i in range(row_group.num_columns):
        found = row_group.column(i)
        if found.path_in_schema == column and found.is_stats_set:
            statistics = found.statistics
            dated = statistics.logical_type.type in ("TIMESTAMP", "DATE")
            return statistics.min if dated and statistics.has_min_max else None
    return None


def _kind(kind: Any) -> str:
    types = importlib.import_module("pyarrow.types")
    if types.is_null(kind):
        return "none"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return "numbers"
    if types.is_temporal(kind):
        return "dates"
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return "text" if types.is_string(kind) or types.is_large_string(kind) else str(kind)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Say of errors which file could not be read."""
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{path!r} is gone; if files were moved or replaced, make the dataset again."
        ) from error
    except Exception as error:  # pyarrow has its own errors for damaged files
        raise OSError(
            f"Cannot read {path!r} as a parquet file ({reason(error)}); was its download or copy "
            "cut short?"
        ) from error
