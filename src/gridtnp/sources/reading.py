"""Files, globs and URLs to pandas tables and xarray datasets, and these to sources.

The format is known by the file's ending: `.csv` (also `.csv.gz`), `.parquet`, `.nc`, `.zarr`,
`.grib`; other folders hold Parquet files. URLs (`https://`, `s3://`, `gs://`, …) are opened with
fsspec. Datasets are opened lazily, and so are Parquet files that are too large for the memory.
"""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
import xarray as xr

from gridtnp.errors import reason, require_installed
from gridtnp.sources.archives import read_archive
from gridtnp.sources.coordinates import DEGREES, units_text
from gridtnp.sources.csv_files import Unreadable, read_csv
from gridtnp.sources.fields import read_dataset
from gridtnp.sources.parquet_files import ParquetFiles
from gridtnp.sources.quality import Note, unpack_limits
from gridtnp.sources.source import Source
from gridtnp.sources.tables import read_table

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


def read_source(
    name: str,
    data: Data,
    memory: int = 2**30,
    na_values: Sequence[Any] = (),
    crs: str | None = None,
) -> tuple[Source, list[Note]]:
    """Read a source, and note what was dropped or masked; at most `memory` bytes are loaded.

    `na_values` stand for missing, and `crs` is the projection of its coordinates.
    """
    if isinstance(data, str | os.PathLike):
        files = None if is_url(os.fspath(data)) else ParquetFiles.find(os.fspath(data))
        if files is not None:
            archive = read_archive(name, files, memory, na_values, crs)
            if archive is not None:
                return archive
        data = open_data(data)
    if isinstance(data, pd.DataFrame):
        return read_table(name, data, na_values=na_values, crs=crs)
    if isinstance(data, xr.Dataset | xr.DataArray):
        return read_dataset(name, data, memory, na_values, crs)
    raise TypeError(
        f"Source {name!r} is of type {type(data).__name__}; it must be a pandas table, an xarray "
        "dataset or a path."
    )


def open_data(path: str | os.PathLike[str]) -> pd.DataFrame | xr.Dataset:
    """Open a path, a glob or a URL."""
    address = os.fspath(path)
    if is_url(address):
        return _open([address])
    files = ParquetFiles.find(address)
    if files is not None:
        return files.read()
    if Path(address).is_dir() and ".zarr" not in Path(address).name.lower():
        raise ValueError(
            f"Folder {address!r} holds no .parquet file; if it is a Zarr store, name it .zarr."
        )
    if Path(address).exists():  # a[1].csv may be a file
        return _open([address])
    if glob.has_magic(address):
        found = sorted(glob.glob(address))
        if not found:
            raise FileNotFoundError(
                f"No file matches {address!r} in {str(Path(address).parent.resolve())!r}."
            )
        return _open(found)
    raise FileNotFoundError(f"No such file: {address!r}.")


def is_url(address: str) -> bool:
    """Whether an address is opened with fsspec, not as a file of this machine."""
    return "://" in address or "::" in address


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
    _require_same_units(addresses, datasets)
    chunked = [ds.chunk() for ds in datasets]
    try:
        return xr.combine_by_coords(chunked, combine_attrs="override")  # pyright: ignore[reportReturnType]
    except Exception as error:
        raise ValueError(
            f"Cannot join {addresses[0]!r} to {addresses[-1]!r} ({reason(error)}); join them with "
            "xarray and pass the dataset."
        ) from error


def _open_one(opener: Any, address: str, kind: str) -> Any:
    try:
        return opener(address, kind)
    except (ImportError, MemoryError, Unreadable):
        raise
    except Exception as error:
        # every library raises its own error for truncated or invalid files
        raise OSError(
            f"Cannot read {address!r} as a {kind} file ({reason(error)}); was its download or "
            "copy cut short?"
        ) from error


def _require_same_units(addresses: list[str], datasets: list[xr.Dataset]) -> None:
    """Raise if a variable has other units in some of the files of one source."""
    seen: dict[str, tuple[str, str]] = {}
    for address, ds in zip(addresses, datasets, strict=True):
        for name in map(str, ds.variables):
            units = units_text(ds[name].attrs)
            if name in ds.coords and (match := DEGREES.fullmatch(units)):
                units = units if (match[1] or match[2] or "")[:1] in ("s", "w") else "degrees"
            first, expected = seen.setdefault(name, (address, units))
            if units != expected:
                one, other = (f"in {u!r}" if u else "without units" for u in (expected, units))
                raise ValueError(
                    f"{name!r} is {one} in {first!r} but {other} in {address!r}; convert one of "
                    "them, or make them two sources."
                )


def _open_table(address: str, kind: str) -> pd.DataFrame:
    return read_csv(address) if kind == "csv" else pd.read_parquet(address)


def _open_dataset(address: str, kind: str) -> xr.Dataset:
    opener: Callable[..., xr.Dataset] = {"zarr": _open_zarr, "grib": _open_grib}.get(
        kind, _open_netcdf
    )
    try:
        return unpack_limits(opener(address))
    except Exception as error:
        if kind == "grib" or isinstance(error, ImportError | MemoryError):
            raise
        opener(address, decode_cf=False)  # raises again if the file is damaged
        option = "decode_times" if "time" in str(error) else "decode_cf"
        raise Unreadable(
            f"Cannot decode {address!r} ({reason(error)}); open it with "
            f"xr.open_dataset(path, {option}=False), correct it and pass the dataset."
        ) from error


def _open_netcdf(address: str, **options: Any) -> xr.Dataset:
    if is_url(address):
        fsspec = importlib.import_module("fsspec")
        return xr.open_dataset(fsspec.open(address, "rb").open(), engine="h5netcdf", **options)
    with open(address, "rb") as file:
        classic = file.read(4) in (b"CDF\x01", b"CDF\x02")
    # the C library reads zeros from a truncated file of the classic format; scipy raises
    return xr.open_dataset(address, engine="scipy" if classic else "netcdf4", **options)


def _open_zarr(address: str, **options: Any) -> xr.Dataset:
    """With consolidated metadata if the store has them."""
    try:
        return xr.open_zarr(address, chunks=None, consolidated=True, **options)
    except (KeyError, ValueError):
        return xr.open_zarr(address, chunks=None, consolidated=False, **options)


def _open_grib(address: str) -> xr.Dataset:
    """All messages of a GRIB file merged into one dataset, without writing an index file."""
    cfgrib = importlib.import_module("cfgrib")
    path = address
    if is_url(address):  # eccodes reads files of this machine only
        path = importlib.import_module("fsspec").open_local(f"simplecache::{address}")
    if os.path.getsize(path) == 0:
        raise ValueError("it is empty")
    parts = cfgrib.open_datasets(
        path, backend_kwargs={"indexpath": "", "errors": "raise"}, squeeze=True
    )
    if not parts:
        raise ValueError("it holds no messages")
    levels: dict[Hashable, str] = {}
    for name, array in ((name, ds[name]) for ds in parts for name in ds.data_vars):
        level = str(array.attrs.get("GRIB_typeOfLevel"))
        if name in levels:
            raise Unreadable(
                f"{address!r} holds {str(name)!r} at levels {levels[name]!r} and {level!r}; open "
                "one of them, xr.open_dataset(path, engine='cfgrib', "
                f"filter_by_keys={{'typeOfLevel': {level!r}}}), and pass the dataset."
            )
        levels[name] = level
    merged = xr.merge(
        map(_on_valid_time, parts), join="outer", compat="override", combine_attrs="override"
    )
    assert isinstance(merged, xr.Dataset)
    return merged


def _on_valid_time(ds: xr.Dataset) -> xr.Dataset:
    """One part of a GRIB file with the valid time as its time, and without scalar coordinates.

    Those, such as the height above ground, differ between variables.
    """
    valid = ds["valid_time"]
    scalars = {name for name, coord in ds.coords.items() if coord.ndim == 0}
    bare = ds.drop_vars(scalars | {"time", "step", "valid_time"})
    if valid.ndim == 0:
        bare = bare.expand_dims("valid")
    elif valid.ndim == 1:
        bare = bare.rename({valid.dims[0]: "valid"})
    else:  # initial time × lead time
        bare = bare.stack(valid=valid.dims, create_index=False)
    return bare.rename(valid="time").assign_coords(time=valid.values.ravel())
