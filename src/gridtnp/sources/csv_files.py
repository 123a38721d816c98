"""CSV files to tables, strictly: UTF-8, separated by commas, as many fields per row as columns."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
from urllib.request import urlopen

import pandas as pd

from gridtnp.sources.quality import warn_data


class Unreadable(ValueError):
    """The contents of a file that is whole are not what they should be."""


def read_csv(address: str) -> pd.DataFrame:
    """Read a path or URL; raise if it has no rows or rows of another length than its header.

    pandas alone shifts all columns of rows that are one field longer, and fills shorter ones.
    """
    return parse_csv(_text(address), address)


def parse_csv(text: str, address: str, most: int | None = None) -> pd.DataFrame:
    """Parse the text of a file with at most so many columns; `address` is what messages call it."""
    _require_fields(address, text, most)
    try:
        frame = pd.read_csv(io.StringIO(text), skipinitialspace=True, low_memory=False)
    except pd.errors.ParserError as error:
        reason = " ".join(str(error).split())
        raise Unreadable(f"Cannot read {address!r} as a csv file ({reason}).") from error
    frame.columns = frame.columns.str.strip()
    if frame.empty:
        raise Unreadable(f"{address!r} has no rows; it needs at least one after its header.")
    if not text.endswith(("\n", "\r")):
        warn_data(
            f"{address!r} does not end with a line break; was its download or copy cut short?",
            stacklevel=3,
        )
    return frame


def _text(address: str) -> str:
    if address.startswith(("http://", "https://")):
        with urlopen(address) as response:
            data = response.read()
    else:
        with importlib.import_module("fsspec").open(address, "rb") as file:
            data = file.read()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(
            f"{address!r} is not UTF-8 text: line {line} has byte 0x{data[error.start]:02x}; if it "
            "is Latin-1, pass pd.read_csv(path, encoding='latin-1') instead of the path."
        ) from None


def _require_fields(address: str, text: str, most: int | None) -> None:
    rows = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    header: list[str] = []
    for row in rows:
        if not row or (len(row) == 1 and not row[0].strip()):
            continue  # a blank line
        if not header:
            header = row
            if most is not None and len(row) > most:
                raise Unreadable(
                    f"{address!r} has {len(row):,} columns, but at most {most:,} are allowed; "
                    "leave out what the model does not use."
                )
            other = next((c for c in ";\t|" if len(row) == 1 and c in row[0]), None)
            if other is not None:
                raise Unreadable(
                    f"The fields of {address!r} are separated by {other!r}, not by commas; pass "
                    f"pd.read_csv(path, sep={other!r}) instead of the path."
                )
        elif len(row) != len(header):
            raise Unreadable(
                f"Line {rows.line_num} of {address!r} has {len(row)} fields, but the header has "
                f"{len(header)}; correct the row or complete the header."
            )
    if not header:
        raise Unreadable(f"{address!r} is empty; a CSV file needs a header and rows.")
