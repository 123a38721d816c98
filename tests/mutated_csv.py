"""Random CSV files, some harmless and some harmful, whose true contents are known.

`csv_file` writes one for a seed. A harmless change keeps what the file means; a
harmful one takes it from some cells, and whoever reads them has to be told.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Rng = np.random.Generator
Key = tuple[str, float, float]
"""Time, latitude and longitude of a row, as text and rounded."""
VARIABLES = ("tmax", "rain")
SENTINELS = (-9999, -999.9, 9999, 99999, 1e20, 9.969209968386869e36, -32768)


@dataclass
class File:
    """A written file and what it means: `truth` of every row, without what is unknown."""

    path: Path
    truth: dict[Key, dict[str, float]]
    changes: list[str] = field(default_factory=list)
    harmful: bool = False
    unknown: set[str] = field(default_factory=set)
    """Words of which one is in the warning, if wrong values are read."""
    tolerance: float = 1e-4


def places(rng: Rng, number: int) -> np.ndarray:
    """Different latitudes of 30 to 50 degrees."""
    return rng.choice(np.arange(30_000, 50_000), number, replace=False) / 1000


def key(time: Any, lat: float, lon: float) -> Key:
    return str(np.datetime64(pd.Timestamp(time), "s")), round(lat, 3), round(lon % 360, 3)


class Csv:
    """Cells of text, changed one step at a time, and how they will be written."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        times = pd.date_range("2019-03-01", periods=6, freq="6h")
        self.header = ["station", "time", "lat", "lon", *VARIABLES]
        lat, lon = places(rng, 8), 70 + 2 * places(rng, 8)
        self.rows: list[list[str]] = []
        self.truth: dict[Key, dict[str, float]] = {}
        for time in times:
            for i in range(8):
                values = [round(float(v), 2) for v in rng.normal(12, 5, 2)]
                cells = [f"S{i}", f"{time:%Y-%m-%d %H:%M}", f"{lat[i]}", f"{lon[i]}"]
                self.rows.append([*cells, *map(str, values)])
                self.truth[key(time, lat[i], lon[i])] = dict(zip(VARIABLES, values, strict=True))
        self.keys = list(self.truth)
        """The key of every row, in the order of `rows`."""
        self.separator, self.eol, self.encoding = ",", "\n", "utf-8"
        self.after: list[Callable[[bytes], bytes]] = []
        self.suffix = "csv"
        self.unknown: set[str] = set()

    def at(self, name: str) -> int:
        return self.header.index(name)

    def row(self) -> int:
        return int(self.rng.integers(1, len(self.rows)))

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def put(self, name: str, row: int, value: Any) -> None:
        self.rows[row][self.at(name)] = str(value)

    def lose(self, row: int, *names: str) -> None:
        """What was in these columns of a row is unknown now; without names, all of the row."""
        for name in names or VARIABLES:
            self.truth[self.keys[row]].pop(name, None)
        self.unknown |= set(names)

    def column(self, name: str, values: list[Any]) -> None:
        at = int(self.rng.integers(len(self.header) + 1))
        self.header.insert(at, name)
        for row, value in zip(self.rows, values, strict=True):
            row.insert(at, str(value))

    def each(self, name: str, change: Callable[[str], Any]) -> None:
        for row in self.rows:
            row[self.at(name)] = str(change(row[self.at(name)]))

    def content(self) -> bytes:
        lines = [self.separator.join(row) for row in [self.header, *self.rows]]
        data = "".join(line + self.eol for line in lines).encode(self.encoding)
        for change in self.after:
            data = change(data)
        return data


def _rename(c: Csv, **names: str) -> None:
    c.header = [names.get(name, name) for name in c.header]


def _shuffled(c: Csv) -> None:
    order = c.rng.permutation(len(c.rows))
    c.rows, c.keys = [c.rows[i] for i in order], [c.keys[i] for i in order]


def _columns_shuffled(c: Csv) -> None:
    order = c.rng.permutation(len(c.header))
    c.header = [c.header[i] for i in order]
    c.rows = [[row[i] for i in order] for row in c.rows]


def _blank_lines(c: Csv) -> None:
    c.after.append(lambda data: data.replace(b"\n", b"\n\n", 7) + b"\n")


def _missing(c: Csv) -> None:
    for _ in range(3):
        name, row = c.pick(*VARIABLES), c.row()
        c.put(name, row, c.pick("", "NA", "NaN", "nan", "null"))
        c.lose(row, name)
    c.unknown = set()  # masked without a warning


def _padded(c: Csv) -> None:
    c.separator = ", "


def _quoted(c: Csv) -> None:
    c.header = [f'"{cell}"' for cell in c.header]
    c.rows = [[f'"{cell}"' for cell in row] for row in c.rows]


def _zones(c: Csv) -> None:
    hours, written = c.pick((0, "Z"), (0, "+00:00"), (2, "+02"), (-5, "-05:00"), (1, "+0100"))
    c.each(
        "time", lambda t: f"{pd.Timestamp(t) + pd.Timedelta(hours, 'h'):%Y-%m-%dT%H:%M}{written}"
    )


def _gzipped(c: Csv) -> None:
    c.after.append(gzip.compress)
    c.suffix = "csv.gz"


HARMLESS_CSV: dict[str, Callable[[Csv], Any]] = {
    "rows shuffled": _shuffled,
    "columns shuffled": _columns_shuffled,
    "CRLF": lambda c: setattr(c, "eol", "\r\n"),
    "byte order mark": lambda c: setattr(c, "encoding", "utf-8-sig"),
    "blank lines": _blank_lines,
    "padded": _padded,
    "missing": _missing,
    "zones": _zones,
    "other names": lambda c: c.header.__setitem__(
        c.at("lat"), c.pick("Latitude", "LAT", "nav_lat")
    ),
    "west": lambda c: c.each("lon", lambda v: round(float(v) - 360, 3)),
    "a column of text": lambda c: c.column("remark", [c.pick("ok", "bad") for _ in c.rows]),
    "an index": lambda c: c.column("", range(len(c.rows))),
    "a counter": lambda c: c.column(c.pick("obs", "traj"), range(len(c.rows))),
    "elevations": lambda c: c.column("elevation", [100 + i for i in range(len(c.rows))]),
    "gzipped": _gzipped,
    "quoted": _quoted,
}


def _extra_field(c: Csv) -> None:
    row = c.row()
    c.rows[row].insert(int(c.rng.integers(7)), c.pick("0", "", "7.5"))


def _lost_field(c: Csv) -> None:
    del c.rows[c.row()][int(c.rng.integers(6))]


def _extra_fields(c: Csv) -> None:
    at = int(c.rng.integers(7))
    for row in c.rows:
        row.insert(at, "0")


def _sentinel(c: Csv) -> None:
    name, value = c.pick(*VARIABLES), c.pick(*SENTINELS)
    for _ in range(int(c.rng.integers(1, 6))):
        row = c.row()
        c.put(name, row, value)
        c.lose(row, name)


def _text(c: Csv) -> None:
    name, row = c.pick(*VARIABLES), c.row()
    c.put(
        name, row, c.pick("M", "-", "n.a.", '"12,5"', "1.2.3", "<0.1", "12 C", "−4", "1_000", "T\0")
    )
    c.lose(row, name)
    for values in c.truth.values():
        values.pop(name, None)  # the column is left out, and that is said


def _coordinate(c: Csv) -> None:
    row = c.row()
    c.put(
        c.pick("lat", "lon"), row, c.pick("north", "999", "-999", "1e20", "inf", "48N", "-9999", "")
    )
    c.lose(row)
    c.unknown = {"coordinates"}


def _time(c: Csv) -> None:
    row = c.row()
    wrong = (
        "now",
        "today",
        "31/12/2019",
        "2019-13-01",
        "2019-02-30",
        "12:00",
        "1546300800",
        "",
        "x",
    )
    zoned = ("2019-03-01 06:00+02", "2019-03-01T06:00Z", "2019-03-01T06+01", "20190301T0600-0530")
    c.put("time", row, c.pick(*wrong, *zoned))
    c.lose(row)
    c.unknown = {"no time"}


def _other_times(c: Csv) -> None:
    change = c.pick(
        lambda t: int(pd.Timestamp(t).timestamp()),
        lambda t: f"{pd.Timestamp(t):%d.%m.%Y %H:%M}",
        lambda t: f"{pd.Timestamp(t):%m/%d/%y}",
    )
    c.each("time", change)


def _twice(c: Csv) -> None:
    row = c.row()
    c.rows.append(list(c.rows[row]))
    c.keys.append(c.keys[row])
    c.put("tmax", -1, "77")
    c.unknown = {"duplicates"}


def _cut(c: Csv) -> None:
    data = c.content()
    size = int(c.rng.uniform(0.3, 1) * len(data))
    whole = data[:size].count(b"\n") - 1
    for row, at in enumerate(c.keys):
        if row == whole:
            c.truth[at].clear()  # what is left of this row is unknown
        elif row > whole:
            c.truth.pop(at, None)
    c.after = [lambda data: data[:size]]
    c.unknown = {"cut short"}


def _decimal_commas(c: Csv) -> None:
    for name in ("lat", "lon", *VARIABLES):
        c.each(name, lambda v: v.replace(".", ","))
    c.separator = c.pick(";", ",", "\t")


def _quote(c: Csv) -> None:
    row, name = c.row(), c.pick("lat", "lon", *VARIABLES)
    c.put(name, row, '"' + c.rows[row][c.at(name)])
    for values in c.truth.values():
        values.clear()
    c.unknown = {f"'{name}'"}


def _footer(c: Csv) -> None:
    c.rows.append(["" if name != "station" else "Total" for name in c.header])
    c.put("tmax", -1, "12")
    c.keys.append(("", 0.0, 0.0))
    c.unknown = {"coordinates", "no time"}


HARMFUL_CSV: dict[str, Callable[[Csv], Any]] = {
    "a field too many": _extra_field,
    "a field too few": _lost_field,
    "a field too many in every row": _extra_fields,
    "a header too short": lambda c: c.header.pop(int(c.rng.integers(6))),
    "sentinels": _sentinel,
    "text among numbers": _text,
    "an impossible coordinate": _coordinate,
    "a wrong time": _time,
    "times in another form": _other_times,
    "a row twice": _twice,
    "cut": _cut,
    "latin-1": lambda c: (c.put("station", c.row(), "Orléans"), setattr(c, "encoding", "latin-1")),
    "utf-16": lambda c: setattr(c, "encoding", "utf-16"),
    "decimal commas": _decimal_commas,
    "semicolons": lambda c: setattr(c, "separator", ";"),
    "swapped": lambda c: _rename(c, lat="lon", lon="lat"),
    "an open quotation": _quote,
    "a header again": lambda c: c.rows.insert(c.row(), list(c.header)),
    "a slash": lambda c: c.header.__setitem__(c.at("rain"), "rain/day"),
    "a variable without values": lambda c: c.each("rain", lambda _: ""),
    "two rows in one": lambda c: c.rows[c.row() - 1].extend(c.rows.pop()),
    "a footer": _footer,
    "a comment first": lambda c: c.after.append(lambda data: b"# made on Monday\n" + data),
    "nothing": lambda c: c.after.append(lambda _: b""),
    "no latitude": lambda c: c.header.__setitem__(c.at("lat"), "hat"),
}  # fmt: skip
WITH_HARM = ("rows shuffled", "CRLF", "missing", "west", "a column of text", "elevations")
"""Harmless changes that a harmful one may follow."""


def csv_file(folder: Path, seed: int) -> File:
    """A CSV file with up to two harmless changes, and in three of four files a harmful one."""
    rng = np.random.default_rng([seed, 1])
    made = Csv(rng)
    harmful = str(rng.choice(list(HARMFUL_CSV))) if rng.random() < 0.75 else None
    names = list(HARMLESS_CSV) if harmful is None else WITH_HARM
    harmless = sorted(rng.permutation(names)[: int(rng.integers(3))], key=names.index)
    for change in harmless:
        HARMLESS_CSV[change](made)
    if harmful is not None:
        HARMFUL_CSV[harmful](made)
    path = folder / f"mutated-{seed}.{made.suffix}"
    path.write_bytes(made.content())
    changes = [*map(str, harmless), *([harmful] if harmful else [])]
    return File(path, made.truth, changes, harmful is not None, made.unknown)
