"""xarray datasets to a `Panel` (a grid or fixed stations) or to `Records` (moving platforms).

Dimensions may be in any order, latitudes ascending or descending, longitudes in any range. Every
pressure level becomes a variable (`u_850`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from gridtnp.errors import reason
from gridtnp.sources.coordinates import (
    possible,
    recognise,
    require_file_name,
    require_places,
    to_degrees,
    units_text,
    why_no_variable,
    wrap,
)
from gridtnp.sources.projection import add_latlon
from gridtnp.sources.quality import Missing, Note, require_decoded, sentinels, unpack_limits
from gridtnp.sources.source import Lazy, Loaded, Panel, Source, Store, Variable
from gridtnp.sources.tables import describe_values, kept_attributes, read_table
from gridtnp.sources.times import show, to_times


@dataclass(frozen=True, eq=False)
class Layout:
    """The dimensions of time, location and level in a dataset, and the order of its rows."""

    time: str | None
    place: tuple[str, ...]
    level: str | None
    steps: np.ndarray
    """Indices of the time steps, sorted by time."""
    order: np.ndarray
    """Indices of the locations, sorted by latitude, longitude and station."""


def read_dataset(
    name: str,
    data: xr.Dataset | xr.DataArray,
    memory: int,
    na_values: Sequence[Any] = (),
    crs: str | None = None,
) -> tuple[Source, list[Note]]:
    """Read a dataset, and note what was dropped or masked.

    Values are loaded if they take at most `memory` bytes, else read lazily. `na_values` stand for
    missing, and `crs` is the projection of its coordinates.
    """
    ds = data.to_dataset(name=data.name or name) if isinstance(data, xr.DataArray) else data
    require_decoded(name, ds)
    ds = add_latlon(name, unpack_limits(ds), crs)
    found = recognise({str(key): dict(ds[key].attrs) for key in ds.variables})
    require_places(found, name, map(str, ds.variables))
    ds = _in_degrees(name, ds, found)
    _require_nonempty(name, ds)
    if "level" in found and not _is_axis(ds, found, "level"):
        del found["level"]  # observed pressure, or a single level
    ds = _simplify_dims(ds, found)
    lat, lon = ds[found["lat"]], ds[found["lon"]]
    time = ds[found["time"]] if "time" in found else None
    if time is not None and set(time.dims) <= {*lat.dims, *lon.dims} and time.ndim:
        return _read_trajectories(name, ds, na_values)

    notes: list[Note] = []
    time_dim = None if time is None else str(time.dims[0])
    times, steps = None, np.arange(1)
    if time is not None:
        times, steps = _sorted_times(name, time, notes)
    labels, shape, places, order = _places(name, ds, lat, lon, found, notes)
    layout = Layout(
        time_dim,
        tuple(map(str, _unique_dims(lat, lon))),
        str(ds[found["level"]].dims[0]) if "level" in found else None,
        steps,
        order,
    )
    variables, columns = _variables(name, ds, found, layout, notes, grid=shape is not None)
    fields = [_Field.of(ds[key], layout, ds, found.get("level"), na_values) for key in variables]
    names = sorted(column for field in fields for column in field.names)
    for column in names:
        require_file_name(column, name)
        if names.count(column) > 1:
            raise ValueError(
                f"Two variables of source {name!r} are called {column!r}, one of them at a level; "
                "rename the other."
            )
    attributes = {column: field.array.attrs for field in fields for column in field.names}
    per_step = len(order) * len(names) * 4
    if len(steps) * per_step <= memory:
        store: Store = Loaded(_fetch(fields, names, layout, 0, len(steps)))
        values = store.read(0, len(steps))
        described = [
            describe_values(name, column, values[..., i], attributes[column])
            for i, column in enumerate(names)
        ]
        for i, variable in enumerate(described):
            if variable.missing:
                count, why = int(np.isnan(values[..., i]).sum()), f"{variable.name} is missing"
                notes.append(Note(name, "masked", why, count, len(steps) * len(order)))
            notes += sentinels(name, variable.name, values[..., i])
    else:
        block = max(1, min(_chunk(fields, layout.time), memory // (4 * per_step)))
        fetch = partial(_fetch, fields, names, layout)
        store = Lazy(fetch, len(steps), block, memory)
        shares: list[float | None] = [None] * len(names)
        if per_step <= memory:  # the rest stays on disk
            first = store.read(0, 1)
            shares = [share or None for share in np.isnan(first).mean((0, 1)).tolist()]
            for i, column in enumerate(names):
                notes += sentinels(name, column, first[..., i])
        described = [
            Variable(
                column,
                units_text(attributes[column]) or None,
                kept_attributes(attributes[column]),
                missing,
            )
            for column, missing in zip(names, shares, strict=True)
        ]
    static = {key: _static_column(ds[key], layout, na_values) for key in columns}
    for column, numbers in static.items():
        notes += sentinels(name, column, numbers)
    panel = Panel(name, tuple(described), times, *places, labels, static, store, shape)
    return panel, notes


@dataclass(frozen=True, eq=False)
class _Field:
    """One variable of the dataset, with a name for each of its levels."""

    array: xr.DataArray
    names: tuple[str, ...]
    dims: tuple[str, ...]
    missing: Missing

    @classmethod
    def of(
        cls,
        array: xr.DataArray,
        layout: Layout,
        ds: xr.Dataset,
        level: str | None,
        na_values: Sequence[Any],
    ) -> _Field:
        missing = Missing.declared(array.attrs, na_values)
        over_time = layout.time is not None and layout.time in array.dims
        dims = (layout.time, *layout.place) if layout.time and over_time else layout.place
        name = str(array.name)
        if layout.level is None or layout.level not in array.dims or level is None:
            return cls(array, (name,), dims, missing)
        levels = ds[level]
        scale = 0.01 if str(levels.attrs.get("units", "")).lower() == "pa" else 1.0
        names = tuple(f"{name}_{float(value) * scale:g}" for value in levels.values)
        return cls(array, names, (*dims, layout.level), missing)

    def read(self, steps: dict[str, Any]) -> np.ndarray:
        """All values of some steps, in the order of `dims`; missing ones are NaN."""
        return self.missing.mask(_values(self.array.isel(steps).transpose(*self.dims)))


def _fetch(
    fields: list[_Field], names: list[str], layout: Layout, start: int, stop: int
) -> np.ndarray:
    """Read a range of steps, (steps, locations, variables), sorted as rows and `names` are."""
    steps = layout.steps[start:stop]
    span = slice(int(steps[0]), int(steps[-1]) + 1) if (np.diff(steps) == 1).all() else steps
    made = np.empty((len(steps), len(layout.order), len(names)), np.float32)
    for field in fields:
        values = field.read({str(layout.time): span} if layout.time in field.dims else {})
        values = values.reshape(len(steps), -1, len(field.names))
        for level, name in enumerate(field.names):
            made[..., names.index(name)] = values[:, layout.order, level]
    made[~np.isfinite(made)] = np.nan
    return made


def _values(array: xr.DataArray) -> np.ndarray:
    """The values of an array; a file may turn out to be damaged only when they are read."""
    try:
        return np.asarray(array.values)
    except (OSError, RuntimeError, IndexError, KeyError, ValueError) as error:
        raise OSError(
            f"Cannot read {str(array.name)!r} ({reason(error)}); was the download or copy of its "
            "file cut short?"
        ) from error


def _in_degrees(name: str, ds: xr.Dataset, found: Mapping[str, str]) -> xr.Dataset:
    """The dataset with latitudes and longitudes in degrees, if they declare other units."""
    for role in ("lat", "lon"):
        axis = ds[found[role]]
        given = axis.values
        values = to_degrees(given, role, found[role], axis.attrs, name)
        if values is not given:
            attrs = {key: value for key, value in axis.attrs.items() if key != "units"}
            attrs["standard_name"] = "latitude" if role == "lat" else "longitude"
            ds = ds.assign_coords({found[role]: (axis.dims, values, attrs)})
    return ds


def _simplify_dims(ds: xr.Dataset, found: Mapping[str, str]) -> xr.Dataset:
    """Merge initial time and lead time to one time axis; squeeze other dimensions of size one."""
    ds = ds.set_coords([found[role] for role in ("lat", "lon", "time") if role in found])
    if "time" in found and ds[found["time"]].ndim == 0:
        ds = ds.expand_dims(found["time"])
    if "time" in found and ds[found["time"]].ndim == 2:  # initial time × lead time
        ds = ds.stack(valid=ds[found["time"]].dims).reset_index("valid", drop=True)
    needed = {
        d for role in ("lat", "lon", "time", "level") if role in found for d in ds[found[role]].dims
    }
    return ds.squeeze([d for d, size in ds.sizes.items() if size == 1 and d not in needed])


def _require_nonempty(name: str, ds: xr.Dataset) -> None:
    for dim, size in ds.sizes.items():
        if size == 0:
            raise ValueError(
                f"Source {name!r} is empty along dimension {str(dim)!r}; if it was selected, note "
                "that descending latitudes are selected from north to south."
            )


def _is_axis(ds: xr.Dataset, found: Mapping[str, str], role: str) -> bool:
    """Whether a coordinate has its own dimension."""
    others = {d for r in ("lat", "lon", "time") if r in found for d in ds[found[r]].dims}
    array = ds[found[role]]
    return found[role] in ds.coords and array.ndim == 1 and array.dims[0] not in others


def _read_trajectories(
    name: str, ds: xr.Dataset, na_values: Sequence[Any]
) -> tuple[Source, list[Note]]:
    """Locations that change with time are read as a table."""
    attributes = {str(key): dict(ds[key].attrs) for key in ds.variables}
    masked = {
        key: (array.dims, Missing.declared(array.attrs).mask(_values(array)), array.attrs)
        for key, array in ds.data_vars.items()
        if array.dtype.kind in "fiu"
    }
    table = ds.assign(masked).to_dataframe().reset_index()
    counters = [dim for dim in ds.dims if dim not in ds.coords]  # 0, 1, … along the dimension
    return read_table(name, table.drop(columns=counters), attributes, na_values=na_values)


def _sorted_times(
    name: str, time: xr.DataArray, notes: list[Note]
) -> tuple[np.ndarray, np.ndarray]:
    values = to_times(np.atleast_1d(time.values), str(time.name))
    times, steps = np.unique(values, return_index=True)
    missing = np.isnat(times)
    if missing.any():
        times, steps = times[~missing], steps[~missing]
        count = int(np.isnat(values).sum())
        notes.append(Note(name, "dropped", "steps without a time", count, len(values)))
    repeated = np.setdiff1d(np.flatnonzero(~np.isnat(values)), steps)
    if len(repeated):
        example = show(values[int(repeated[0])])
        notes.append(Note(name, "dropped", "duplicate times", len(repeated), len(values), example))
    if not len(times):
        raise ValueError(
            f"All times of source {name!r} ({str(time.name)!r}) are missing; it needs at least one."
        )
    return times, steps


def _places(
    name: str,
    ds: xr.Dataset,
    lat: xr.DataArray,
    lon: xr.DataArray,
    found: Mapping[str, str],
    notes: list[Note],
) -> tuple[np.ndarray | None, tuple[int, int] | None, tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Station labels, shape of the grid, latitudes and longitudes, and their order in the data.

    Grids have no labels; those with 2-D coordinates, and rows of a grid, have no shape.
    """
    grid = lat.ndim == 1 and lon.ndim == 1 and lat.dims != lon.dims
    for axis, limit in ((lat, 90.0), (lon, 360.0)):
        bad = np.flatnonzero(~(np.abs(np.atleast_1d(axis.values).ravel()) <= limit))
        if len(bad) and (grid or len(bad) == axis.size):
            value = np.atleast_1d(axis.values).ravel()[bad[0]]
            raise ValueError(
                f"{'Latitude' if limit == 90 else 'Longitude'} {value:g} of source {name!r} "
                f"({str(axis.name)!r}, position {bad[0]}) is outside -{limit:g} to {limit:g}; is "
                "it in metres?"
            )
    if grid:
        y, rows = np.unique(np.asarray(lat.values, np.float64), return_index=True)
        x, cols = np.unique(wrap(np.asarray(lon.values, np.float64)), return_index=True)
        for axis, kept in ((lat, rows), (lon, cols)):
            if axis.size > len(kept):
                why, count = f"repeated values of {axis.name}", axis.size - len(kept)
                notes.append(Note(name, "dropped", why, count, axis.size))
        order = (rows[:, None] * lon.size + cols).ravel()
        places = np.repeat(y, len(x)), np.tile(x, len(y))
        return None, (len(y), len(x)), places, order
    gridded = lat.ndim == 2 or lat.dims != lon.dims  # curvilinear, or a row of a grid
    lat, lon = xr.broadcast(lat, lon)
    y = np.atleast_1d(np.asarray(lat.values, np.float64)).ravel()
    x = np.atleast_1d(np.asarray(lon.values, np.float64)).ravel()
    labels = np.arange(len(y))
    named = "station" in found and ds[found["station"]].dims == lat.dims
    if named:
        labels = np.atleast_1d(ds[found["station"]].values).ravel().astype(str)
    valid = possible(y, x)
    if not valid.all():
        row = int(np.flatnonzero(~valid)[0])
        example = f"station {labels[row]}: {y[row]:g}, {x[row]:g}"
        count = int((~valid).sum())
        notes.append(Note(name, "dropped", "invalid coordinates", count, len(y), example))
    x, order = wrap(np.where(valid, x, np.nan)), np.flatnonzero(valid)
    order = order[np.lexsort([labels[order], x[order], y[order]])]
    return None if gridded and not named else labels[order], None, (y[order], x[order]), order


def _variables(
    name: str,
    ds: xr.Dataset,
    found: Mapping[str, str],
    layout: Layout,
    notes: list[Note],
    grid: bool,
) -> tuple[list[Hashable], list[str]]:
    """Which variables are observed, and which are static columns."""
    roles = {found.get(role) for role in ("lat", "lon", "time", "station")}
    bounds = {ds[key].attrs.get("bounds") for key in ds.variables}
    observed: list[Hashable] = []
    columns: list[str] = []
    for key in ds.data_vars:
        array = ds[key]
        if key in roles or key in bounds:
            continue
        why = why_no_variable(str(key), [*map(str, ds.variables)], array.dtype.kind in "iu")
        if why is not None:
            notes.append(Note(name, "left out", why, 1, 1))
            continue
        if array.dtype.kind not in "fiub":
            notes.append(Note(name, "left out", f"{key} is not numeric", 1, 1))
            continue
        rest = set(array.dims) - {layout.time, layout.level}
        fixed = layout.time is not None and layout.time not in array.dims
        if rest != set(layout.place) or (fixed and layout.level in array.dims):
            why = f"{key} has dimensions {tuple(map(str, array.dims))}"
            notes.append(Note(name, "left out", why, 1, 1))
        elif fixed:
            columns.append(str(key))
        else:
            observed.append(key)
    elevation = found.get("elevation")
    dims = set(ds[elevation].dims) if elevation in ds.coords else set()
    if dims and dims == set(layout.place):
        columns.append(str(elevation))
    if elevation in observed and len(observed) > 1 and not grid:  # static at stations
        observed.remove(elevation)
        columns.append(str(elevation))
    if not observed:
        raise ValueError(
            f"Source {name!r} has no variable with dimensions "
            f"{(*((layout.time,) if layout.time else ()), *layout.place)}, only "
            f"{ {str(k): tuple(map(str, ds[k].dims)) for k in ds.data_vars} }; select along other "
            "dimensions first, e.g. ds.isel(number=0)."
        )
    return observed, columns


def _static_column(array: xr.DataArray, layout: Layout, na_values: Sequence[Any]) -> np.ndarray:
    missing = Missing.declared(array.attrs, na_values)
    values = missing.mask(_values(array.transpose(*layout.place))).astype(np.float32)
    return np.atleast_1d(values).ravel()[layout.order]


def _unique_dims(lat: xr.DataArray, lon: xr.DataArray) -> tuple[Hashable, ...]:
    return tuple(dict.fromkeys((*lat.dims, *lon.dims)))


def _chunk(fields: list[_Field], time: str | None) -> int:
    """The number of steps per chunk on disk."""
    array = fields[0].array
    if array.chunks is not None and time in array.dims:
        return int(array.chunks[array.dims.index(time)][0])
    sizes = array.encoding.get("chunks") or array.encoding.get("chunksizes")
    return int(sizes[array.dims.index(time)]) if sizes and time in array.dims else 1
