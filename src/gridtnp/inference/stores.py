"""Zarr stores that are laid out first and filled region by region, by any number of processes.

Until all regions are there, the metadata of the store are in a hidden folder of it, so that no
reader takes it for whole. A region is done if the chunks of all its variables exist: each is
written to a file of its own and moved into place, so that regions may be written again, and by
several processes at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from gridtnp import __version__
from gridtnp.files import OURS, reporting, staged
from gridtnp.inference.regions import Regions
from gridtnp.inference.writers import ZARR_FORMAT, require_folder, require_new, time_encoding
from gridtnp.sources.reading import NEEDS, kind_of, require_installed

FORMAT = 1
RECORD = "gridtnp_prediction"
"""The attribute with what a store was laid out for."""
HIDDEN = f"{OURS}layout"
"""The folder of the metadata of a store that is not complete."""
METADATA = (".zattrs", ".zgroup", ".zmetadata")
"""The files that make a folder a Zarr group; the last lets it be opened by its contents."""


@dataclass(frozen=True, eq=False)
class RegionStore:
    """A store at `path`; `record` is what it was laid out for."""

    path: Path
    record: Mapping[str, Any]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RegionStore:
        """A store that has been laid out, complete or not."""
        place = Path(path)
        for folder in (place / HIDDEN, place):
            with suppress(OSError, ValueError, KeyError, TypeError):
                attributes = json.loads((folder / ".zattrs").read_text(encoding="utf-8"))
                return cls(place, json.loads(attributes[RECORD]))
        if not place.exists():
            raise FileNotFoundError(f"No such store: {str(place)!r}.")
        raise ValueError(
            f"{str(place)!r} was not laid out by gridtnp for a prediction in parts; use another "
            "path, or layout= with overwrite=True to replace it."
        )

    @classmethod
    def create(
        cls,
        path: Path,
        outline: xr.Dataset,
        columns: Mapping[str, Mapping[str, Any]],
        regions: Regions,
        settings: Mapping[str, Any],
    ) -> RegionStore:
        """Lay out a store: the coordinates of `outline`, and `columns` with their attributes."""
        zarr = require_installed(*NEEDS["zarr"], f"Writing {str(path)!r}")
        record = {
            "format": FORMAT,
            "gridtnp": __version__,
            "dims": regions.dims,
            "regions": regions.sizes,
            "columns": list(columns),
            "settings": dict(settings),
        }
        outline = outline.assign_attrs({RECORD: json.dumps(record)})
        outline.to_zarr(
            path,
            zarr_format=ZARR_FORMAT,
            consolidated=False,
            encoding=time_encoding(outline),
        )
        group = zarr.open_group(path, mode="r+", zarr_format=ZARR_FORMAT)
        for name, about in columns.items():
            group.create_array(
                name,
                shape=tuple(regions.dims.values()),
                chunks=tuple(regions.sizes.values()),
                dtype=np.float64,
                fill_value=np.nan,
                attributes={**about, "_ARRAY_DIMENSIONS": list(regions.dims)},
            )
        zarr.consolidate_metadata(path, zarr_format=ZARR_FORMAT)
        (path / HIDDEN).mkdir()
        for name in METADATA:
            os.replace(path / name, path / HIDDEN / name)
        return cls(path, json.loads(json.dumps(record)))

    # ---- what there is ---------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        return not (self.path / HIDDEN).exists()

    @cached_property
    def shape(self) -> tuple[int, ...]:
        sizes = self.record["regions"]
        return tuple(-(-size // sizes[dim]) for dim, size in self.record["dims"].items())

    def __len__(self) -> int:
        return int(np.prod(self.shape))

    def missing(self) -> list[int]:
        """The regions that are not done."""
        if self.complete:
            return []
        there: set[str] | None = None
        for column in self.record["columns"]:
            names = {entry.name for entry in os.scandir(self.path / column)}
            there = names if there is None else there & names
        return [i for i in range(len(self)) if self._chunk(i) not in (there or set())]

    def require(self, regions: Regions, settings: Mapping[str, Any]) -> None:
        """Raise unless the store was laid out for this prediction, by this version."""
        where = f"{str(self.path)!r} was laid out"
        if self.record["gridtnp"] != __version__:
            raise ValueError(
                f"{where} by gridtnp {self.record['gridtnp']}, but this is {__version__}; use one "
                "version for all parts."
            )
        wanted = {"dims": regions.dims, "regions": regions.sizes, **json.loads(_text(settings))}
        given = {**self.record["settings"], **{k: self.record[k] for k in ("dims", "regions")}}
        for name in [*wanted, *given]:
            a, b = given.get(name), wanted.get(name)
            if a == b:
                continue
            told = "" if _is_hash(a) or _is_hash(b) else f": {_text(a)}, not {_text(b)}"
            raise ValueError(
                f"{where} for another prediction, with other {name}{told}; use the same arguments, "
                "or another store."
            )

    # ---- filling it ------------------------------------------------------------------------------

    def write(self, regions: Regions, number: int, answer: xr.Dataset) -> None:
        """Write the answer to a region."""
        zarr = require_installed(*NEEDS["zarr"], f"Writing {str(self.path)!r}")
        where = tuple(regions.where(number).values())
        with zarr.config.set({"array.write_empty_chunks": True}):
            for column in self.record["columns"]:
                folder = self.path / column
                array = zarr.open_array(folder, mode="r+", zarr_format=ZARR_FORMAT)
                array[where] = answer[column].values
                with (folder / self._chunk(number)).open("rb+") as file:
                    os.fsync(file.fileno())

    def finish(self) -> bool:
        """Make the store readable if all regions are done; whether it is."""
        if self.complete:
            return True
        if self.missing():
            return False
        for name in METADATA:
            # another process that wrote the last region may be doing the same
            with suppress(FileNotFoundError):
                os.replace(self.path / HIDDEN / name, self.path / name)
        shutil.rmtree(self.path / HIDDEN, ignore_errors=True)
        return True

    def _chunk(self, number: int) -> str:
        """The name of the file of a region, in the folder of every column."""
        block = np.unravel_index(number, self.shape) if self.shape else (0,)
        return ".".join(str(int(i)) for i in block)


def lay_out(
    path: str | os.PathLike[str],
    outline: xr.Dataset,
    columns: Mapping[str, Mapping[str, Any]],
    regions: Regions,
    settings: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> RegionStore:
    """The store of a prediction at a path, laid out now or before; all processes get the same."""
    place = require_store(path)
    if overwrite or not place.exists():
        with staged(place, replace=overwrite) as new, reporting(place):
            RegionStore.create(new, outline, columns, regions, settings)
    store = RegionStore.open(place)
    store.require(regions, settings)
    return store


def require_store(path: str | os.PathLike[str]) -> Path:
    """Raise unless a path can be that of a Zarr store."""
    place = Path(path)
    if kind_of(os.fspath(path)) != "zarr":
        raise ValueError(
            f"{str(place)!r} is no Zarr store, and only those are written in parts; use .zarr."
        )
    require_folder(place)
    return place


def require_new_store(path: str | os.PathLike[str], overwrite: bool) -> Path:
    """Raise if there is something at the path of a store already."""
    place = require_store(path)
    if (place / HIDDEN).exists() and not overwrite:
        raise FileExistsError(
            f"{str(place)!r} has a part of a prediction; pass resume=True to do the rest of it, or "
            "overwrite=True to replace it."
        )
    require_new(place, overwrite)
    return place


def prediction_status(path: str | os.PathLike[str]) -> dict[str, Any]:
    """How much of a prediction in parts is done.

    The keys are `complete`, `done` and `regions` (their number), `missing` (the first and the last
    of consecutive regions), and `dims` and `sizes` of the grid and of a region.
    """
    store = RegionStore.open(path)
    missing = store.missing()
    return {
        "path": str(path),
        "complete": store.complete,
        "done": len(store) - len(missing),
        "regions": len(store),
        "missing": spans(missing),
        "dims": dict(store.record["dims"]),
        "sizes": dict(store.record["regions"]),
    }


def spans(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, as first and last."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def hash_text(*values: bytes) -> str:
    """A short hash, which messages do not show."""
    digest = hashlib.blake2b(digest_size=12)
    for value in values:
        digest.update(value)
    return f"#{digest.hexdigest()}"


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("#")


def _text(value: Any) -> str:
    return json.dumps(value)
