"""Files, globs and addresses become a pandas table or an xarray dataset, not yet interpreted.

The ending says what a file is: `.csv` (also `.csv.gz`), `.parquet`, `.nc`, `.zarr`, `.grib`.
Addresses (`https://`, `s3://`, `gs://`, …) are opened through fsspec. Datasets are opened lazily:
values are read when they are needed.
"""

from __future__ import annotations

import glob
import importlib
import os
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
import xarray as xr

from gridtnp.data.fields import understand_dataset
from gridtnp.data.quality import Note
from gridtnp.data.sources import Source
from gridtnp.data.tables import understand_table

KINDS = {
    "csv": (".csv", ".csv.gz", ".txt"),
    "parquet": (".parquet", ".pq"),
    "netcdf": (".nc", ".nc4", ".cdf", ".netcdf", ".h5"),
    "zarr": (".zarr",),
    "grib": (".grib", ".grib2", ".grb", ".grb2"),
}
NEEDS = {
    "parquet": ("pyarrow", "io"),
    "netcdf": ("netCDF4", "io"),
    "zarr": ("zarr", "io"),
    "grib": ("cfgrib", "grib"),
}


def open_data(path: str | os.PathLike[str]) -> pd.DataFrame | xr.Dataset:
    """What a path, a glob or an address leads to."""
    address = os.fspath(path)
    if "://" in address or "::" in address:
        return _open([address])
    if glob.has_magic(address):
        found = sorted(glob.glob(address))
        if not found:
            raise FileNotFoundError(
                f"A glob must match at least one file, but {address!r} matches none in "
                f"{str(Path(address).parent.resolve())!r}."
            )
        return _open(found)
    if not Path(address).exists():
        raise FileNotFoundError(f"A path must lead to a file or a store, but {address!r} does not.")
    return _open([address])


def require_installed(module: str, extra: str, what: str) -> Any:
    """The module, or a sentence with the line that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {module}, which is not installed: pip install 'gridtnp[{extra}]'."
        ) from error


def kind_of(address: str) -> str:
    """What a file is by its ending."""
    name = PurePosixPath(address.rstrip("/").split("?")[0]).name.lower()
    for kind, endings in KINDS.items():
        if name.endswith(endings) or (kind == "zarr" and ".zarr" in name):  # also .zarr-v3
            return kind
    known = sorted(ending for endings in KINDS.values() for ending in endings)
    raise ValueError(
        f"A file must have one of the endings {known}, got {address!r}; or open it yourself and "
        "pass the pandas table or xarray dataset."
    )


def _open(addresses: list[str]) -> pd.DataFrame | xr.Dataset:
    kinds = {kind_of(address) for address in addresses}
    if len(kinds) > 1:
        raise ValueError(
            f"The files of one source must be of one kind, got {sorted(kinds)}; name one source "
            "for each."
        )
    kind = kinds.pop()
    if kind in NEEDS:
        require_installed(*NEEDS[kind], f"Reading {addresses[0]!r}")
    if kind in ("csv", "parquet"):
        frames = [_read(_table, address, kind) for address in addresses]
        return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    datasets = [_read(_dataset, address, kind) for address in addresses]
    if len(datasets) == 1:
        return datasets[0]
    require_installed("dask", "io", f"Opening {len(addresses)} files as one source")
    chunked = [ds.chunk() for ds in datasets]
    return xr.combine_by_coords(chunked, combine_attrs="override")  # pyright: ignore[reportReturnType]


def _read(reader: Any, address: str, kind: str) -> Any:
    try:
        return reader(address, kind)
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        # every library has its own kind of error for a file that is cut short or something else
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise OSError(
            f"{address!r} must be a complete {kind} file, but it cannot be read ({reason}); was "
            "its download or copy cut short?"
        ) from error


def _table(address: str, kind: str) -> pd.DataFrame:
    frame = pd.read_csv(address) if kind == "csv" else pd.read_parquet(address)
    if frame.empty:
        raise ValueError("it has no rows")
    return frame


def _dataset(address: str, kind: str) -> xr.Dataset:
    if kind == "zarr":
        return _zarr(address)
    if kind == "grib":
        return _grib(address)
    if "://" in address or "::" in address:
        fsspec = importlib.import_module("fsspec")
        return xr.open_dataset(fsspec.open(address, "rb").open(), engine="h5netcdf")
    with open(address, "rb") as file:
        classic = file.read(4) in (b"CDF\x01", b"CDF\x02")
    # the C library reads zeros where a file of the classic format is cut short; scipy notices
    return xr.open_dataset(address, engine="scipy" if classic else "netcdf4")


def _zarr(address: str) -> xr.Dataset:
    """With all metadata read at once where the store has them in one place."""
    try:
        return xr.open_zarr(address, chunks=None, consolidated=True)
    except (KeyError, ValueError):
        return xr.open_zarr(address, chunks=None, consolidated=False)


def _grib(address: str) -> xr.Dataset:
    """All messages of a GRIB file that fit together; no index file is left beside it."""
    cfgrib = importlib.import_module("cfgrib")
    if os.path.getsize(address) == 0:
        raise ValueError("it is empty")
    parts = cfgrib.open_datasets(
        address, backend_kwargs={"indexpath": "", "errors": "raise"}, squeeze=True
    )
    if not parts:
        raise ValueError("it holds no messages")
    # heights above ground differ between variables and say nothing that their names do not
    scalars = {name for ds in parts for name, c in ds.coords.items() if c.ndim == 0}
    bare = [ds.drop_vars([n for n in scalars if n in ds.coords and n != "time"]) for ds in parts]
    merged = xr.merge(bare, compat="override", combine_attrs="override")
    assert isinstance(merged, xr.Dataset)
    return merged


Data = pd.DataFrame | xr.Dataset | xr.DataArray | str | os.PathLike[str]


def understand(name: str, data: Data, memory: int = 2**30) -> tuple[Source, list[Note]]:
    """The source, and what was done to make it one; at most `memory` bytes of it are loaded."""
    if isinstance(data, str | os.PathLike):
        data = open_data(data)
    if isinstance(data, pd.DataFrame):
        return understand_table(name, data)
    if isinstance(data, xr.Dataset | xr.DataArray):
        return understand_dataset(name, data, memory)
    raise TypeError(
        f"Source {name!r} must be a pandas table, an xarray dataset or a path, got "
        f"{type(data).__name__}."
    )
