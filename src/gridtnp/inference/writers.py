"""Answers that grow on disk piece by piece: Zarr and netCDF along time, Parquet and CSV by rows.

A file appears under its name when it is complete; until then it is a hidden one beside it.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from gridtnp.data.reading import NEEDS, kind_of, require_installed
from gridtnp.inference.queries import Answer

CLOCK = {"units": "milliseconds since 1970-01-01", "calendar": "standard", "dtype": "int64"}
"""How times are stored, whatever comes later."""


class Growing(ABC):
    """A file that pieces are added to; `path` is where it will be."""

    def __init__(self, path: Path, part: Path, dim: str | None) -> None:
        self.path, self.part, self.dim = path, part, dim
        self.started = False

    def add(self, answer: Answer) -> None:
        self.write(self.checked(answer))
        self.started = True

    def checked(self, answer: Answer) -> Any:
        """What this kind of file takes."""
        if isinstance(answer, dict):
            raise ValueError(
                f"Arrays cannot be written to {str(self.path)!r}; ask with a table or a grid."
            )
        return answer

    @abstractmethod
    def write(self, answer: Any) -> None: ...

    def close(self) -> None:  # noqa: B027
        """Nothing more will come."""


class GrowingGrid(Growing):
    """One that holds grids."""

    def checked(self, answer: Answer) -> xr.Dataset:
        if isinstance(answer, pd.DataFrame):
            raise ValueError(
                f"A table is written to .parquet or .csv, got {str(self.path)!r}; ask with a grid."
            )
        return super().checked(answer)

    def clocks(self, answer: xr.Dataset) -> dict[str, Any]:
        return {str(k): dict(CLOCK) for k, v in answer.coords.items() if v.dtype.kind == "M"}


class GrowingZarr(GrowingGrid):
    def write(self, answer: xr.Dataset) -> None:
        if self.started:
            answer.to_zarr(self.part, append_dim=self.dim, consolidated=True)
        else:
            # the second format is the one that everything reads
            answer.to_zarr(
                self.part, zarr_format=2, consolidated=True, encoding=self.clocks(answer)
            )


class GrowingNetCDF(GrowingGrid):
    def write(self, answer: xr.Dataset) -> None:
        if not self.started:
            grows = () if self.dim is None else (self.dim,)
            answer.to_netcdf(
                self.part, engine="netcdf4", unlimited_dims=grows, encoding=self.clocks(answer)
            )
            return
        netcdf = require_installed("netCDF4", "io", f"Writing {str(self.path)!r}")
        with netcdf.Dataset(self.part, "a") as file:
            first = len(file.dimensions[self.dim])
            for name, variable in answer.variables.items():
                if self.dim not in variable.dims:
                    continue
                values = variable.values
                if values.dtype.kind == "M":
                    values = values.astype("datetime64[ms]").astype(np.int64)
                new = slice(first, first + answer.sizes[self.dim])
                where = tuple(new if dim == self.dim else slice(None) for dim in variable.dims)
                file.variables[str(name)][where] = values


class GrowingTable(Growing):
    """One that holds rows; a grid becomes rows."""

    def checked(self, answer: Answer) -> pd.DataFrame:
        if isinstance(answer, xr.Dataset):
            return answer.to_dataframe().reset_index()
        return super().checked(answer)


class GrowingCSV(GrowingTable):
    def write(self, answer: pd.DataFrame) -> None:
        named = answer.index.names != [None]
        mode = "a" if self.started else "w"
        answer.to_csv(
            self.part,
            index=named,
            mode=mode,
            header=not self.started,
            encoding="utf-8",
            date_format="%Y-%m-%dT%H:%M:%S.%f",  # the same in every piece
        )


class GrowingParquet(GrowingTable):
    writer: Any = None

    def write(self, answer: pd.DataFrame) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        named = answer.index.names != [None]
        table = pa.Table.from_pandas(answer, preserve_index=named)
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.part, table.schema)
        self.writer.write_table(table)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


FILES: dict[str, type[Growing]] = {
    "zarr": GrowingZarr,
    "netcdf": GrowingNetCDF,
    "parquet": GrowingParquet,
    "csv": GrowingCSV,
}


@contextmanager
def growing(
    path: str | os.PathLike[str], dim: str | None, *, overwrite: bool = False
) -> Iterator[Growing]:
    """A file to add pieces to along `dim`, there as a whole when the block ends, or not at all."""
    place, kind = Path(path), kind_of(os.fspath(path))
    if kind not in FILES:
        raise ValueError(f"Predictions go to .zarr, .nc, .parquet or .csv, got {str(place)!r}.")
    if not place.parent.is_dir():
        raise FileNotFoundError(
            f"The folder to write to must exist, but {str(place.parent)!r} does not."
        )
    if place.exists() and not overwrite:
        raise FileExistsError(f"{str(place)!r} must not be there yet; overwrite=True replaces it.")
    if kind in NEEDS:
        require_installed(*NEEDS[kind], f"Writing {str(place)!r}")
    part = place.with_name(f".{place.stem}.{os.getpid()}{place.suffix}")
    file = FILES[kind](place, part, dim)
    try:
        yield file
        file.close()
        _move(part, place)
    finally:
        _remove(part)


def _move(part: Path, place: Path) -> None:
    """To its place, in one step for a file; a store that is there goes aside first."""
    for path in sorted(part.rglob("*")) if part.is_dir() else [part]:
        if path.is_file():
            with path.open("rb+") as stream:
                os.fsync(stream.fileno())
    if place.is_dir():
        aside = place.with_name(f"{part.name}.old")
        os.replace(place, aside)
        os.replace(part, place)
        _remove(aside)
    else:
        os.replace(part, place)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
