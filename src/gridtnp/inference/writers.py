"""Writing predictions to netCDF, Zarr, Parquet or CSV, whole or as a stream of pieces.

`write` takes a whole answer. `open_stream` gives a `StreamWriter` for pieces: netCDF grows along
time, Parquet and CSV by rows; `stores.py` has the regions of Zarr stores. A file appears under its
name once it is complete; until then it is in a hidden folder beside its place (`files.py`).
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

from gridtnp.files import recover, replacing, reporting, staged
from gridtnp.inference.queries import Answer
from gridtnp.sources.reading import NEEDS, kind_of, require_installed

TIME_ENCODING = {
    "units": "milliseconds since 1970-01-01",
    "calendar": "standard",
    "dtype": "int64",
}
"""Fixed, so that later pieces fit."""
ZARR_FORMAT = 2  # widely readable


def write(
    answer: Answer,
    path: str | os.PathLike[str],
    *,
    append: str | None = None,
    region: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write an answer to `.nc`, `.zarr`, `.parquet` or `.csv`, whole or not at all.

    `append` is the dimension along which to extend a Zarr store, which the first call creates.
    With `region`, the answer replaces the part of an existing Zarr store with its coordinates, in
    place; if that fails, write the region again.
    """
    path, kind = Path(path), kind_of(os.fspath(path))
    require_folder(path)
    if (append is not None or region) and kind != "zarr":
        raise ValueError(f"{_q(path)} is no Zarr store; only those take append= and region=.")
    if region and append is not None:
        raise ValueError("append= and region= exclude each other; give one of them.")
    if region and not path.exists():
        raise ValueError(f"No such Zarr store: {_q(path)}; write it whole before its regions.")
    if kind == "grib":
        raise ValueError(f"GRIB cannot be written: {_q(path)}; use .nc or .zarr.")
    if append is None and not region:
        require_new(path, overwrite)
    if kind in NEEDS:
        require_installed(*NEEDS[kind], f"Writing {_q(path)}")
    if isinstance(answer, dict):
        raise ValueError(_no_arrays(path))
    if isinstance(answer, pd.DataFrame) and kind not in ("csv", "parquet"):
        raise ValueError(_no_table(path))
    if region:
        _write_region(answer, path)
        return path
    with replacing(path) as part:
        if append is not None and path.exists():
            shutil.copytree(path, part, copy_function=_link)
            answer.to_zarr(part, append_dim=append, consolidated=True)
        else:
            _write_new(answer, part, kind)
    return path


def _write_new(answer: Any, part: Path, kind: str) -> None:
    if kind == "netcdf":
        with _netcdf_errors():
            answer.to_netcdf(part, engine="netcdf4")
    elif kind == "zarr":
        answer.to_zarr(part, zarr_format=ZARR_FORMAT, consolidated=True)
    else:
        table = answer.to_dataframe().reset_index() if isinstance(answer, xr.Dataset) else answer
        if kind == "csv":
            table.to_csv(part, index=isinstance(answer, pd.DataFrame))
        else:
            table.to_parquet(part)


def _link(old: str, new: str) -> None:
    """Copy a file of a Zarr store without copying its contents: zarr replaces files, whole."""
    try:
        os.link(old, new)
    except OSError:  # a file system without hard links
        shutil.copy2(old, new)


@contextmanager
def _netcdf_errors() -> Iterator[None]:
    """Those of the HDF5 library, such as a full disk, as errors of the system."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(str(error)) from error


def _write_region(answer: Any, path: Path) -> None:
    try:
        answer.to_zarr(path, region="auto", consolidated=True)
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"The region does not fit Zarr store {_q(path)}, of which it must have consecutive "
            f"coordinates: {error}"
        ) from error


# ---- streams -------------------------------------------------------------------------------------


class StreamWriter(ABC):
    """Adds pieces of an answer to the file `part`, which becomes `path` in the end.

    Grids grow along `dim`.
    """

    def __init__(self, path: Path, part: Path, dim: str | None) -> None:
        self.path, self.part, self.dim = path, part, dim
        self.started = False

    def add(self, answer: Answer) -> None:
        converted = self.convert(answer)
        with reporting(self.path):
            self.write(converted)
        self.started = True

    def convert(self, answer: Answer) -> Any:
        """The answer as this kind of file takes it."""
        if isinstance(answer, dict):
            raise ValueError(_no_arrays(self.path))
        return answer

    @abstractmethod
    def write(self, answer: Any) -> None: ...

    def close(self) -> None:  # noqa: B027
        """Called after the last piece."""


class GridWriter(StreamWriter):
    """Writes xarray datasets."""

    def convert(self, answer: Answer) -> xr.Dataset:
        if isinstance(answer, pd.DataFrame):
            raise ValueError(_no_table(self.path))
        return super().convert(answer)


class NetCDFWriter(GridWriter):
    def write(self, answer: xr.Dataset) -> None:
        with _netcdf_errors():
            self.extend(answer) if self.started else self.create(answer)

    def create(self, answer: xr.Dataset) -> None:
        unlimited = () if self.dim is None else (self.dim,)
        answer.to_netcdf(
            self.part, engine="netcdf4", unlimited_dims=unlimited, encoding=time_encoding(answer)
        )

    def extend(self, answer: xr.Dataset) -> None:
        netcdf = require_installed("netCDF4", "io", f"Writing {_q(self.path)}")
        from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK  # the library is not thread-safe

        with NETCDF4_PYTHON_LOCK, netcdf.Dataset(self.part, "a") as file:
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


class TableWriter(StreamWriter):
    """Writes rows; a grid becomes a row per point."""

    def convert(self, answer: Answer) -> pd.DataFrame:
        if isinstance(answer, xr.Dataset):
            return answer.to_dataframe().reset_index()
        return super().convert(answer)


class CSVWriter(TableWriter):
    def write(self, answer: pd.DataFrame) -> None:
        answer.to_csv(
            self.part,
            index=answer.index.names != [None],
            mode="a" if self.started else "w",
            header=not self.started,
            encoding="utf-8",
            date_format="%Y-%m-%dT%H:%M:%S.%f",  # the same in every piece
        )


class ParquetWriter(TableWriter):
    """A row group per piece."""

    file: Any = None

    def write(self, answer: pd.DataFrame) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        named = answer.index.names != [None]
        table = pa.Table.from_pandas(answer, preserve_index=named)
        if self.file is None:
            self.file = pq.ParquetWriter(self.part, table.schema)
        self.file.write_table(table)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


WRITERS: dict[str, type[StreamWriter]] = {
    "netcdf": NetCDFWriter,
    "parquet": ParquetWriter,
    "csv": CSVWriter,
}


@contextmanager
def open_stream(
    path: str | os.PathLike[str], dim: str | None, *, overwrite: bool = False
) -> Iterator[StreamWriter]:
    """A writer for pieces along `dim`; the file is there, complete, when the block ends."""
    path, kind = Path(path), kind_of(os.fspath(path))
    if kind not in WRITERS:
        raise ValueError(
            f"Predictions cannot be written to {_q(path)}; use .zarr, .nc, .parquet or .csv."
        )
    require_folder(path)
    require_new(path, overwrite)
    if kind in NEEDS:
        require_installed(*NEEDS[kind], f"Writing {_q(path)}")
    with staged(path) as part:
        writer = WRITERS[kind](path, part, dim)
        try:
            yield writer
        finally:
            with reporting(path):
                writer.close()


def time_encoding(answer: xr.Dataset) -> dict[str, Any]:
    """How the times of an answer are stored."""
    times = [str(name) for name, v in answer.coords.items() if v.dtype.kind == "M"]
    return {name: dict(TIME_ENCODING) for name in times}


# ---- files ---------------------------------------------------------------------------------------


def require_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"No such folder: {_q(path.parent)}; create it to write there.")


def require_new(path: Path, overwrite: bool) -> None:
    recover(path.parent)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{_q(path)} already exists; pass overwrite=True to replace it.")


def _no_arrays(path: Path) -> str:
    return f"Arrays cannot be written to {_q(path)}; ask for a table or a grid."


def _no_table(path: Path) -> str:
    return f"A table cannot be written to {_q(path)}; use .parquet or .csv."


def _q(path: Path) -> str:
    return repr(str(path))
