"""A source, whatever form it comes in: a table, a dataset, or a path to one."""

from __future__ import annotations

import os

import pandas as pd
import xarray as xr

from gridtnp.cleaning import Note
from gridtnp.fields import understand_dataset
from gridtnp.reading import open_data
from gridtnp.sources import Source
from gridtnp.tables import understand_table

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
