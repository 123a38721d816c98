"""Files, globs and URLs to pandas tables and xarray datasets, and these to sources.

The format is known by the file's ending: `.csv` (also `.csv.gz`), `.parquet`, `.nc`, `.zarr`,
`.grib`. URLs (`https://`, `s3://`, `gs://`, …) are opened with fsspec. Datasets are opened lazily.
"""

from __future__ import annotations

import glob
import importlib
import os
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
import xarray as xr

from gridtnp.data.fields import read_dataset
from gridtnp.data.quality import Note
from gridtnp.data.sources import Source
from gridtnp.data.tables import read_table

Data = pd.DataFrame | xr.Dataset | xr.DataArray | str | os.PathLike[str]
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
"""The package that each kind of file needs, and the extra of gridtnp that installs it."""


def read_source(name: str, data: Data, memory: int = 2**30) -> tuple[Source, list[Note]]:
    """Read a source, and note what was dropped or masked; at most `memory` bytes are loaded."""
    if isinstance(data, str | os.PathLike):
        data = open_data(data)
    if isinstance(data, pd.DataFrame):
        return read_table(name, data)
    if isinstance(data, xr.Dataset | xr.DataArray):
        return read_dataset(name, data, memory)
    raise TypeError(
        f"Source {name!r} is of type {type(data).__name__}; it must be a pandas table, an xarray "
        "dataset or a path."
    )


def open_data(path: str | os.PathLike[str]) -> pd.DataFrame | xr.Dataset:
    """Open a path, a glob or a URL."""
    address = os.fspath(path)
    if "://" in address or "::" in address:
        return _open([address])
    if glob.has_magic(address):
        found = sorted(glob.glob(address))
        if not found:
            raise FileNotFoundError(
                f"No file matches {address!r} in {str(Path(address).parent.resolve())!r}."
            )
        return _open(found)
    if not Path(address).exists():
        raise FileNotFoundError(f"No such file: {address!r}.")
    return _open([address])


def require_installed(module: str, extra: str, what: str) -> Any:
    """Import a module, or raise with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {module}, which is not installed: pip install 'gridtnp[{extra}]'."
        ) from error


def kind_of(address: str) -> str:
    """The kind of a file, by its ending."""
    name = PurePosixPath(address.rstrip("/").split("?")[0]).name.lower()
    for kind, endings in KINDS.items():
        if name.endswith(endings) or (kind == "zarr" and ".zarr" in name):  # also .zarr-v3
            return kind
    known = sorted(ending for endings in KINDS.values() for ending in endings)
    raise ValueError(
        f"Unknown file ending of {address!r}; use one of {known}, or pass a pandas table or xarray "
        "dataset."
    )


def _open(addresses: list[str]) -> pd.DataFrame | xr.Dataset:
    kinds = {kind_of(address) for address in addresses}
    if len(kinds) > 1:
        raise ValueError(
            f"The files of one source are of different kinds, {sorted(kinds)}; make one source of "
            "each kind."
        )
    kind = kinds.pop()
    if kind in NEEDS:
        require_installed(*NEEDS[kind], f"Reading {addresses[0]!r}")
    if kind in ("csv", "parquet"):
        frames = [_open_one(_open_table, address, kind) for address in addresses]
        return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    datasets = [_open_one(_open_dataset, address, kind) for address in addresses]
    if len(datasets) == 1:
        return datasets[0]
    require_installed("dask", "io", f"Opening {len(addresses)} files as one source")
    chunked = [ds.chunk() for ds in datasets]
    return xr.combine_by_coords(chunked, combine_attrs="override")  # pyright: ignore[reportReturnType]


def _open_one(opener: Any, address: str, kind: str) -> Any:
    try:
        return opener(address, kind)
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        # every library raises its own error for truncated or invalid files
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise OSError(
            f"Cannot read {address!r} as a {kind} file ({reason}); was its download or copy cut "
            "short?"
        ) from error


def _open_table(address: str, kind: str) -> pd.DataFrame:
    frame = pd.read_csv(address) if kind == "csv" else pd.read_parquet(address)
    if frame.empty:
        raise ValueError("it has no rows")
    return frame


def _open_dataset(address: str, kind: str) -> xr.Dataset:
    if kind == "zarr":
        return _open_zarr(address)
    if kind == "grib":
        return _open_grib(address)
    if "://" in address or "::" in address:
        fsspec = importlib.import_module("fsspec")
        return xr.open_dataset(fsspec.open(address, "rb").open(), engine="h5netcdf")
    with open(address, "rb") as file:
        classic = file.read(4) in (b"CDF\x01", b"CDF\x02")
    # the C library reads zeros from a truncated file of the classic format; scipy raises
    return xr.open_dataset(address, engine="scipy" if classic else "netcdf4")


def _open_zarr(address: str) -> xr.Dataset:
    """With consolidated metadata if the store has them."""
    try:
        return xr.open_zarr(address, chunks=None, consolidated=True)
    except (KeyError, ValueError):
        return xr.open_zarr(address, chunks=None, consolidated=False)


def _open_grib(address: str) -> xr.Dataset:
    """All messages of a GRIB file merged into one dataset, without writing an index file."""
    cfgrib = importlib.import_module("cfgrib")
    if os.path.getsize(address) == 0:
        raise ValueError("it is empty")
    parts = cfgrib.open_datasets(
        address, backend_kwargs={"indexpath": "", "errors": "raise"}, squeeze=True
    )
    if not parts:
        raise ValueError("it holds no messages")
    # scalar coordinates such as the height above ground differ between variables
    scalars = {name for ds in parts for name, c in ds.coords.items() if c.ndim == 0}
    bare = [ds.drop_vars([n for n in scalars if n in ds.coords and n != "time"]) for ds in parts]
    merged = xr.merge(bare, compat="override", combine_attrs="override")
    assert isinstance(merged, xr.Dataset)
    return merged
