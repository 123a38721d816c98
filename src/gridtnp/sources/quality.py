"""`Note`: what was dropped, masked or noticed; `Missing`: values that stand for missing ones.

Reading errors are the standard deviation of what a sensor adds to a value, by variable.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr
from jaxtyping import Float

from gridtnp.errors import require_known
from gridtnp.sources.source import Source

Action = Literal["dropped", "masked", "left out", "noticed"]
Error = float | str
"""A constant in the units of the variable, or the column that holds it."""


NINES = (99, 99.9, 99.99, 999, 999.9, 999.99, 9999, 9999.9, 99999, 999999)
SENTINELS = np.array([*NINES, 7777, 8888, 32766, 32767, 32768], np.float32)
"""Absolute values that often stand for missing where they are far from the others."""
HUGE = 1e19
"""Absolute values from here on never are observations: 1e20, 9.97e36."""


class DataWarning(UserWarning):
    """Data were dropped, or look wrong."""


_collected: ContextVar[list[str] | None] = ContextVar("collected", default=None)


@contextmanager
def collecting() -> Iterator[list[str]]:
    """Collect what `warn_data` says in this block instead of warning; other threads still warn."""
    found: list[str] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def warn_data(message: str, stacklevel: int) -> None:
    """Issue a `DataWarning`."""
    found = _collected.get()
    if found is None:
        warnings.warn(message, DataWarning, stacklevel=stacklevel + 1)
    else:
        found.append(message)


@dataclass(frozen=True)
class Note:
    """What was done with `count` of the `total` rows, values or variables of a source, and why."""

    source: str
    action: Action
    why: str
    count: int
    total: int
    example: str = ""
    sentinel: float | None = None
    """The value that seems to stand for missing, if the note is about one."""

    def __str__(self) -> str:
        share = f" of {self.total:,}" if self.total != self.count else ""
        example = f" (for example {self.example})" if self.example else ""
        return f"{self.source}: {self.count:,}{share} {self.action}: {self.why}{example}"


@dataclass(frozen=True)
class Missing:
    """Which values stand for missing: `values`, and all below `low` or above `high`."""

    values: tuple[float, ...] = ()
    low: float = -np.inf
    high: float = np.inf

    @classmethod
    def declared(cls, attributes: Mapping[str, Any], also: Sequence[Any] = ()) -> Missing:
        """By CF attributes (`missing_value`, `_FillValue`, `valid_min`, `valid_range`, …)."""
        limits = _numbers(attributes.get("valid_range"))
        low, high = limits if len(limits) == 2 else (-np.inf, np.inf)
        low = max([low, *_numbers(attributes.get("valid_min"))])
        high = min([high, *_numbers(attributes.get("valid_max"))])
        fills = [attributes.get(key) for key in ("missing_value", "_FillValue")]
        values = (number for given in (*fills, *also) for number in _numbers(given))
        return cls(tuple(values), low, high)

    def mask(self, values: np.ndarray) -> np.ndarray:
        """The values with NaN where they are missing, or the same array if none are."""
        if not self.values and (self.low, self.high) == (-np.inf, np.inf):
            return values
        single = np.asarray(values).astype(np.float32)  # in which 999.9 is 999.9
        with np.errstate(over="ignore"):
            low, high = np.float32(self.low), np.float32(self.high)
            bad = (
                (single < low)
                | (single > high)
                | np.isin(single, np.array(self.values, np.float32))
            )
        return np.where(bad, np.nan, values) if bad.any() else values


def sentinels(source: str, column: str, values: np.ndarray) -> list[Note]:
    """A note on every value that seems to stand for missing, such as -9999 or 1e20."""
    finite = values[np.isfinite(values)].astype(np.float32)
    ends = np.abs([finite.min(), finite.max()]) if len(finite) else np.zeros(0)
    if not ((ends >= HUGE) | np.isin(ends, SENTINELS)).any():  # the others are between them
        return []
    huge = np.abs(finite) >= HUGE
    known = huge | np.isin(np.abs(finite), SENTINELS)
    rest = finite[~known]
    low, high = (float(rest.min()), float(rest.max())) if len(rest) else (0.0, 0.0)
    notes = []
    for value, count in zip(*np.unique(finite[known], return_counts=True), strict=True):
        size, beyond = abs(float(value)), max(low - float(value), float(value) - high)
        if size >= HUGE or beyond > max(high - low, size) / 4:
            shown = str(value).removesuffix(".0")
            why = f"{column} is {shown}, which often stands for missing; na_values=[{shown}] masks"
            note = Note(source, "noticed", f"{why} it", int(count), values.size)
            notes.append(replace(note, sentinel=float(shown)))
    return notes


def unpack_limits(ds: xr.Dataset) -> xr.Dataset:
    """The dataset with `valid_range`, `valid_min` and `valid_max` in the units of its values.

    By convention, whole numbers are in the units of the packed values on disk. Missing values that
    xarray could not find, such as 1e20 in single precision, are declared again.
    """
    ds = ds.copy()
    for variable in ds.variables.values():
        scale = variable.encoding.get("scale_factor", 1.0)
        offset = variable.encoding.get("add_offset", 0.0)
        packed = (scale, offset) != (1.0, 0.0)
        for key in ("valid_range", "valid_min", "valid_max"):
            limits = np.asarray(variable.attrs.get(key, ""))
            if limits.dtype.kind in "iu" and packed:
                # half a step of slack, since values were rounded on unpacking
                ends = {"valid_min": -0.5, "valid_max": 0.5}.get(key, np.array([-0.5, 0.5]))
                if limits.ndim == np.ndim(ends):
                    variable.attrs[key] = np.sort((limits + ends) * float(scale) + float(offset))
        fills = _numbers(variable.encoding.get("missing_value"))
        if variable.dtype == np.float32 and not packed and fills:
            with np.errstate(over="ignore"):
                if (np.array(fills, np.float32) != fills).any():
                    variable.attrs.setdefault("missing_value", fills)
    return ds


def require_decoded(name: str, ds: xr.Dataset) -> None:
    for key in ds.variables:
        packed = {"scale_factor", "add_offset"} & set(ds[key].attrs)
        if packed:
            raise ValueError(
                f"Variable {str(key)!r} of source {name!r} is packed, since its attributes have "
                f"{sorted(packed)[0]!r}; unpack it with xr.decode_cf(ds)."
            )


def warn(notes: Sequence[Note], stacklevel: int) -> None:
    """One warning about all that was dropped or looks wrong; missing values do not count."""
    serious = [str(note) for note in notes if note.action in ("dropped", "noticed")]
    if serious:
        warn_data("; ".join(serious) + ".", stacklevel + 1)


def write_log(path: str | os.PathLike[str], notes: Sequence[Note], about: dict[str, Any]) -> None:
    """Write `about` and all notes as JSON."""
    record = {**about, "notes": [asdict(note) for note in notes]}
    text = json.dumps(record, indent=2, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def _numbers(given: Any) -> tuple[float, ...]:
    """The numbers in an attribute or an entry of `na_values`; none if it is text."""
    try:
        return tuple(float(number) for number in np.ravel(given)) if given is not None else ()
    except (TypeError, ValueError):
        return ()


# ---- reading errors ------------------------------------------------------------------------------


def read_errors(
    sources: Mapping[str, Source], given: Mapping[str, Error] | Error | None
) -> dict[str, Error]:
    """The error of every variable that has one, as `"source.variable"`; raises for wrong ones.

    Without a name, it is that of the only source.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        if len(sources) > 1:
            raise ValueError(
                f"error={given!r} does not say which of {list(sources)}; give "
                f"error={{{next(iter(sources))!r}: {given!r}}}."
            )
        given = dict.fromkeys(sources, given)
    columns = {k.partition(".")[0]: set[str]() for k in given}
    for name, error in given.items():
        owner = name.partition(".")[0]
        require_known(owner, sources, "source", "in error=")
        if isinstance(error, str):
            require_known(error, sources[owner].names, "column", f"of source {owner!r} in error=")
            columns[owner].add(error)
        elif isinstance(error, bool) or not isinstance(error, Real) or not 0 <= error < np.inf:
            raise ValueError(
                f"error={{{name!r}: {error}}}: must be a standard deviation, a finite number from "
                "0 on, or the name of a column."
            )
    found: dict[str, Error] = {}
    for name, error in given.items():
        owner, _, variable = name.partition(".")
        source = sources[owner]
        others = [v for v in source.names if v not in columns[owner]]
        if variable:
            require_known(variable, others, "variable", f"of source {owner!r} in error=")
        elif len(others) != 1:
            raise ValueError(
                f"error={{{owner!r}: ...}}: the source has the variables {others}; name one of them"
                + (f", such as '{owner}.{others[0]}'." if others else ".")
            )
        key = f"{owner}.{variable or others[0]}"
        found[key] = error
        if isinstance(error, str):
            _check_column(source, key, error)
    return found


def _check_column(source: Source, key: str, column: str) -> None:
    """Raise for negative and missing errors; values that stay on disk are checked when read."""
    if source.loaded is None:
        return
    table = source.loaded.reshape(-1, len(source.variables))
    error, value = (table[:, source.names.index(n)] for n in (column, key.partition(".")[2]))
    negative, missing = int((error < 0).sum()), int((np.isnan(error) & np.isfinite(value)).sum())
    if negative:
        raise ValueError(
            f"Column {column!r} of source {source.name!r} has {negative:,} negative values, but a "
            "standard deviation cannot be negative; correct them."
        )
    if missing:
        raise ValueError(
            f"Column {column!r} of source {source.name!r} is missing at {missing:,} observations "
            f"of {key}; fill it, or drop these rows."
        )


def errors_at(
    source: Source,
    values: Float[np.ndarray, "n k"],
    variables: tuple[str, ...],
    errors: Mapping[str, Error],
) -> Float[np.ndarray, "n dy"] | None:
    """The errors of some variables, zero where there is none; None if no variable has any.

    `values` are all columns of some rows of the source.
    """
    own = [errors.get(f"{source.name}.{name}") for name in variables]
    if all(error is None for error in own):
        return None
    found = np.zeros((len(values), len(variables)), np.float32)
    for i, error in enumerate(own):
        found[:, i] = values[:, source.names.index(error)] if isinstance(error, str) else error or 0
    return found
