"""The index of Parquet files: for every row its time and place, and where its values are.

It is made in one pass over the row groups, in the order of their earliest times. Rows wait until no
later group can have an earlier one; then they are sorted, their duplicates are dropped, and they
are added to the index. Memory is that of the rows that wait: a few row groups, if the archive is in
the order of time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from gridtnp.sources.parquet_files import INSTANT, ParquetFiles, RowGroup, time_column
from gridtnp.sources.quality import Note, sentinels
from gridtnp.sources.source import Variable
from gridtnp.sources.tables import LONG_VALUES, Rows, clean_rows, described, station_labels
from gridtnp.sources.times import UNIT, show

FORMAT = 2
"""Version of the index; another one is made again."""
GROUPS = 4
"""Row groups that may always wait, whatever their size."""
SCAN = 2**22
"""Rows of the index that are scanned at once."""
PLACE_BYTES = 400
"""Memory of a place while the index is made."""
NAMELESS = "\x1f"
"""Stands for no name of a station."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """Rows that are not in the index yet, in any order; `row` is their number in the files."""

    time: np.ndarray
    place: np.ndarray
    row: np.ndarray
    values: np.ndarray

    def take(self, which: np.ndarray) -> Waiting:
        return Waiting(self.time[which], self.place[which], self.row[which], self.values[which])

    @classmethod
    def join(cls, pieces: Sequence[Waiting]) -> Waiting:
        fields = ("time", "place", "row", "values")
        return cls(*(np.concatenate([getattr(p, field) for p in pieces]) for field in fields))

    @property
    def bytes(self) -> int:
        return self.time.nbytes + self.place.nbytes + self.row.nbytes + self.values.nbytes


class Places:
    """The distinct places: station, latitude, longitude and static columns."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], int] = {}
        self.number = np.zeros(0, np.int64)
        """The numbers of the places in the index, in the order of their first rows; -1 if none."""
        self.indexed = 0

    def of(self, rows: Rows) -> np.ndarray:
        """A number for the place of every valid row; rows without a time have places, too."""
        there, stations = np.flatnonzero(np.isfinite(rows.lat)), rows.stations
        keys: dict[str, Any] = {"station": 0}
        if stations is not None:
            keys["station"] = np.where(pd.isna(stations), NAMELESS, stations)[there]
        keys |= {"lat": _bits(rows.lat[there]), "lon": _bits(rows.lon[there])}
        keys |= {f"column {name}": _bits(v[there]) for name, v in rows.columns.items()}
        table = pd.DataFrame(keys, index=np.arange(len(there)))
        code = table.groupby(list(table), sort=False).ngroup().to_numpy()
        distinct = table[~table.duplicated()].itertuples(index=False, name=None)
        numbers = [self.known.setdefault(key, len(self.known)) for key in distinct]
        grown = len(self.known) - len(self.number)
        self.number = np.append(self.number, np.full(grown, -1, np.int64))
        return np.array(numbers, np.int64)[code][rows.valid[there]]

    def columns(self, numbers: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        """Stations (object, with None), latitudes, longitudes and static columns of places."""
        keys = list(self.known)
        chosen = keys if numbers is None else [keys[i] for i in numbers]
        stations, lat, lon, *others = zip(*chosen, strict=True)
        names = np.array([None if s == NAMELESS else s for s in stations], object)
        degrees = (np.array(bits, np.int64).view(np.float64) for bits in (lat, lon))
        return names, *degrees, *(np.array(bits, np.int32).view(np.float32) for bits in others)

    def ranks(self, numbers: np.ndarray) -> np.ndarray:
        """The order of places by latitude, longitude and station, the same for the same three."""
        names, lat, lon, *_ = self.columns(numbers)
        label = np.where(pd.isna(names), "unnamed ", names).astype(str)
        order = np.lexsort((label, lon, lat))
        new = np.zeros(len(order), bool)
        for key in (label, lon, lat):
            new[1:] |= key[order][1:] != key[order][:-1]
        rank = np.empty(len(order), np.int64)
        rank[order] = np.cumsum(new)
        return rank

    def index(self, places: np.ndarray) -> np.ndarray:
        """The numbers in the index of the places of rows that are added to it in this order."""
        found, first = np.unique(places, return_index=True)
        found = found[np.argsort(first)]
        new = found[self.number[found] < 0]
        self.number[new] = self.indexed + np.arange(len(new))
        self.indexed += len(new)
        return self.number[places]

    @property
    def order(self) -> np.ndarray:
        """The places in the index, by their numbers there."""
        kept = np.flatnonzero(self.number >= 0)
        return kept[np.argsort(self.number[kept])]


class IndexWriter:
    """Writes the index of some files to a folder."""

    def __init__(
        self,
        name: str,
        files: ParquetFiles,
        memory: int,
        na_values: Sequence[Any] = (),
        crs: str | None = None,
    ) -> None:
        self.name, self.files, self.memory = name, files, memory
        self.na_values, self.crs = na_values, crs
        self.kinds = files.require_same_columns()
        self.groups = files.row_groups()
        self.rows = sum(group.rows for group in self.groups)
        self.places, self.waiting = Places(), list[Waiting]()
        self.notes: list[Note] = []
        self.first: Rows | None = None
        self.located = self.kept = self.indexed = self.duplicates = self.differing = 0
        self.example = ""
        self.files_out: dict[str, IO[bytes]] = {}

    def write(self, folder: Path) -> None:
        """Read all row groups, and write the index."""
        stamps = self.files.stamps()
        column = self._time_column()
        earliest = np.array([self.files.earliest(group, column) for group in self.groups], UNIT)
        order = np.argsort(earliest, kind="stable")
        bounds = np.append(earliest[order][1:], np.datetime64("NaT"))
        folder.mkdir(parents=True)
        names = ("times", "offsets", "place", "row")
        try:
            self.files_out = {name: (folder / f"{name}.bin").open("wb") for name in names}
            self._add("offsets", np.zeros(1, np.int64))
            for number, bound in zip(order, bounds, strict=True):
                self._read(self.groups[number])
                self._flush(bound)
                self._require_order(bound)
        finally:
            for file in self.files_out.values():
                file.close()
        variables = self._variables()
        self._write_places(folder)
        if self.files.stamps() != stamps:
            raise OSError(f"Files in {self.files.root!r} changed while they were read; try again.")
        about = {
            "format": FORMAT,
            "files": stamps,
            "rows": self.rows,
            "numbers": sum(kind == "numbers" for kind in self.kinds.values()),
            "columns": [] if self.first is None else list(self.first.columns),
            "groups": [asdict(group) for group in self.groups],
            "variables": [asdict(variable) for variable in variables],
            "bytes": {name: (folder / f"{name}.bin").stat().st_size for name in names},
            "notes": [asdict(note) for note in self._all_notes()],
        }
        (folder / "index.json").write_text(json.dumps(about), encoding="utf-8")

    # ---- rows ------------------------------------------------------------------------------------

    def _time_column(self) -> str:
        names = {column.lower() for column in self.kinds}
        if "variable" in names and names & set(LONG_VALUES):
            raise ValueError(
                f"Source {self.name!r} has a row per variable; give it a column per variable, or "
                "enough memory= to read it whole."
            )
        column = time_column(self.kinds, self.files.frame(self.groups[0]))
        if column is None:
            raise ValueError(
                f"Source {self.name!r} is too large to be read whole, and has no time among "
                f"{sorted(self.kinds)} by which it could be read in parts; name its times 'time', "
                "or give enough memory=."
            )
        return column

    def _read(self, group: RowGroup) -> None:
        """Clean the rows of a group, and let them wait."""
        frame = self.files.frame(group)
        if len(frame) != group.rows:
            raise OSError(f"{self.files.path(group.file)!r} changed while it was read; try again.")
        try:
            rows = clean_rows(
                *(self.name, frame),
                na_values=self.na_values,
                crs=self.crs,
                allow_empty=True,
                first=group.start,
            )
        except ValueError as error:
            where = f"in row group {group.number} of {self.files.path(group.file)!r}"
            raise ValueError(f"{str(error).rstrip('.')} ({where}).") from error
        if self.first is None:
            self.first, size = rows, len(rows.variables)
            self.finite, self.low = np.zeros(size, np.int64), np.full(size, np.inf)
            self.high = np.full(size, -np.inf)
        if (rows.variables, set(rows.columns)) != (self.first.variables, set(self.first.columns)):
            differ = sorted(set(rows.variables) ^ set(self.first.variables))
            raise ValueError(
                f"Columns {differ} of source {self.name!r} hold numbers in some files alone; leave "
                "them out, or give them one type."
            )
        self.located += rows.located
        self.notes += rows.notes
        assert rows.times is not None
        valid = np.flatnonzero(rows.valid)
        place = self.places.of(rows)
        if len(self.places.known) * PLACE_BYTES > max(self.memory, 2**20):
            raise ValueError(
                f"Source {self.name!r} has more than {len(self.places.known):,} places, too many "
                "for an index in memory; round its coordinates, or give more memory=."
            )
        self.waiting.append(
            Waiting(rows.times[valid], place, group.start + valid, rows.values[valid])
        )

    def _flush(self, bound: np.datetime64) -> None:
        """Add the rows before a time to the index; all rows if it is missing."""
        last = np.isnat(bound)
        if not last and not any((piece.time < bound).any() for piece in self.waiting):
            return
        rows = Waiting.join(self.waiting)
        if last:
            self.waiting = []
        else:
            ready = np.asarray(rows.time < bound)
            self.waiting = [rows.take(~ready)]
            rows = rows.take(ready)
        if not len(rows.time):
            return
        used, inverse = np.unique(rows.place, return_inverse=True)
        rank = self.places.ranks(used)[inverse]
        order = np.lexsort((rows.row, rank, rows.time))
        rows, rank = rows.take(order), rank[order]
        again = np.zeros(len(order), bool)
        again[1:] = (rank[1:] == rank[:-1]) & (rows.time[1:] == rows.time[:-1])
        if again.any():
            self._note_duplicates(rows, rank, again)
            rows = rows.take(~again)
        self._describe(rows.values)
        rows = rows.take(np.asarray(~np.isnan(rows.values).all(1)))
        times, counts = np.unique(rows.time, return_counts=True)
        self._add("times", times)
        self._add("offsets", self.indexed + np.cumsum(counts))
        self._add("place", self.places.index(rows.place).astype(np.uint32))
        self._add("row", rows.row.astype(row_type(self.rows)))
        self.indexed += len(rows.row)

    def _require_order(self, bound: np.datetime64) -> None:
        most = GROUPS * max(group.rows for group in self.groups)
        rows = sum(len(piece.time) for piece in self.waiting)
        if rows > most and sum(piece.bytes for piece in self.waiting) > self.memory:
            raise ValueError(
                f"The files of source {self.name!r} are not in the order of time: row groups of "
                f"{rows:,} rows overlap at {show(bound + INSTANT)}, and every task would have to "
                "read them all; sort the archive by time, e.g. with a file per month, or give more "
                "memory=."
            )

    def _note_duplicates(self, rows: Waiting, rank: np.ndarray, again: np.ndarray) -> None:
        """Count repeated rows, and those of them that hold other values."""
        self.duplicates += int(again.sum())
        if not self.example:
            first = int(np.flatnonzero(again)[0])
            self.example = f"row {rows.row[first]} at {show(rows.time[first])}"
        concerned = again.copy()
        concerned[:-1] |= again[1:]
        table = pd.DataFrame(rows.values[concerned])
        table = table.assign(time=rows.time[concerned], rank=rank[concerned])
        self.differing += int((again[concerned] & ~table.duplicated().to_numpy()).sum())

    def _describe(self, values: np.ndarray) -> None:
        assert self.first is not None
        self.kept += len(values)
        finite = np.isfinite(values)
        self.finite += finite.sum(0)
        self.low = np.minimum(self.low, np.where(finite, values, np.inf).min(0, initial=np.inf))
        self.high = np.maximum(self.high, np.where(finite, values, -np.inf).max(0, initial=-np.inf))
        for i, column in enumerate(self.first.variables):
            self.notes += sentinels(self.name, column, values[:, i])

    def _add(self, name: str, values: np.ndarray) -> None:
        self.files_out[name].write(np.ascontiguousarray(values).tobytes())

    # ---- what the index says about the whole -----------------------------------------------------

    def _write_places(self, folder: Path) -> None:
        assert self.first is not None
        stations, lat, lon, *columns = self.places.columns()
        lost = np.full(int(self.located < self.rows), np.nan)  # rows without a place share a label
        names = np.concatenate([stations, np.full(len(lost), None)])
        labels = station_labels(
            None if self.first.stations is None else names,
            *(np.append(lat, lost), np.append(lon, lost)),
        )
        order = self.places.order
        lat, lon, labels = lat[order], lon[order], labels[order]
        static = np.zeros((len(columns), len(lat)), np.float32)
        for i, column in enumerate(self.first.columns):
            static[i] = columns[i][order]
            self.notes += sentinels(self.name, column, static[i])
        counts = np.zeros(len(lat), np.int64)
        place = np.memmap(folder / "place.bin", np.uint32, "r")
        for first in range(0, len(place), SCAN):
            counts += np.bincount(place[first : first + SCAN], minlength=len(lat))
        np.savez(
            folder / "places.npz", lat=lat, lon=lon, labels=labels, counts=counts, static=static
        )

    def _variables(self) -> list[Variable]:
        assert self.first is not None
        if not self.located:
            frame = self.files.frame(self.groups[0]).iloc[:1]
            clean_rows(self.name, frame, na_values=self.na_values, crs=self.crs)  # raises
        return [
            described(
                *(self.name, column, self.kept, int(self.finite[i])),
                *(float(self.low[i]), float(self.high[i])),
                self.first.attributes[column],
            )
            for i, column in enumerate(self.first.variables)
        ]

    def _all_notes(self) -> list[Note]:
        """The notes of all row groups, added up."""
        assert self.first is not None
        found: dict[tuple[str, str], Note] = {}
        empty = [i for i in range(len(self.files.names)) if i not in self.files.filled]
        if empty:
            why, example = "files without rows", self.files.names[empty[0]]
            note = Note(self.name, "left out", why, len(empty), len(self.files.names), example)
            found["left out", why] = note
        for note in self.notes:
            total = self.rows if note.action == "dropped" else self.kept
            known = found.setdefault((note.action, note.why), replace(note, count=0, total=total))
            count = known.count + note.count
            if note.action == "left out":
                count, known = 1, replace(known, total=1)
            found[note.action, note.why] = replace(known, count=count)
        if self.duplicates:
            why = "duplicates"
            why += f", {self.differing:,} of them with other values" if self.differing else ""
            note = Note(self.name, "dropped", why, self.duplicates, self.rows, self.example)
            found["dropped", why] = note
        for i, column in enumerate(self.first.variables):
            if missing := self.kept - int(self.finite[i]):
                note = Note(self.name, "masked", f"{column} is missing", missing, self.kept)
                found["masked", note.why] = note
        return list(found.values())


def row_type(rows: int) -> type[np.unsignedinteger]:
    """The type of row numbers of an archive of this size."""
    return np.uint32 if rows < 2**32 else np.uint64


def _bits(values: np.ndarray) -> np.ndarray:
    """Numbers as integers that are equal if they are, also where they are missing."""
    clean = np.where(np.isnan(values), np.nan, values + 0.0).astype(values.dtype)  # 0.0 for -0.0
    return clean.view(np.int64 if clean.dtype == np.float64 else np.int32)
