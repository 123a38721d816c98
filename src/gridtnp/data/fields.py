"""An xarray dataset becomes a `Panel` (a grid, or stations with a common clock) or, where the
places move, `Records`.

Any order of dimensions, latitudes up or down, longitudes in any range; pressure levels become
variables of their own (`u_850`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np
import xarray as xr

from gridtnp.data.coordinates import possible, recognise, require_places, wrap
from gridtnp.data.quality import Note
from gridtnp.data.sources import Lazy, Loaded, Panel, Source, Store, Variable
from gridtnp.data.tables import describe_values, kept_attributes, understand_table
from gridtnp.data.times import show, to_times


@dataclass(frozen=True, eq=False)
class Layout:
    """Where things are in a dataset: dimensions of time, place and level, and the order of rows."""

    time: str | None
    place: tuple[str, ...]
    level: str | None
    steps: np.ndarray
    """Which steps to read, in the order of time."""
    order: np.ndarray
    """Which places to read, in the order of latitude, longitude and station."""


def understand_dataset(
    name: str, data: xr.Dataset | xr.DataArray, memory: int
) -> tuple[Source, list[Note]]:
    """At most `memory` bytes of values are loaded; what is larger stays where it is."""
    ds = data.to_dataset(name=data.name or name) if isinstance(data, xr.DataArray) else data
    found = recognise({str(key): dict(ds[key].attrs) for key in ds.variables})
    require_places(found, name, map(str, ds.variables))
    _require_something(name, ds)
    if "level" in found and not _is_axis(ds, found, "level"):
        del found["level"]  # pressure that is observed, or a level that all have in common
    ds = _prepared(ds, found)
    lat, lon = ds[found["lat"]], ds[found["lon"]]
    time = ds[found["time"]] if "time" in found else None
    if time is not None and set(time.dims) <= set(lat.dims) and time.ndim:
        return _moving(name, ds)

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
    parts = [_Part.of(ds[key], layout, ds, found.get("level")) for key in variables]
    names = sorted(column for part in parts for column in part.names)
    attributes = {column: part.array.attrs for part in parts for column in part.names}
    per_step = len(order) * len(names) * 4
    if len(steps) * per_step <= memory:
        store: Store = Loaded(_fetch(parts, names, layout, 0, len(steps)))
        values = store.read(0, len(steps))
        described = [
            describe_values(name, column, values[..., i], attributes[column])
            for i, column in enumerate(names)
        ]
        for i, variable in enumerate(described):
            if variable.missing:
                count, why = int(np.isnan(values[..., i]).sum()), f"{variable.name} is missing"
                notes.append(Note(name, "masked", why, count, len(steps) * len(order)))
    else:
        block = max(1, min(_chunk(parts, layout.time), memory // (4 * per_step)))
        store = Lazy(lambda a, b: _fetch(parts, names, layout, a, b), len(steps), block, memory)
        described = [
            Variable(
                column, attributes[column].get("units"), kept_attributes(attributes[column]), None
            )
            for column in names
        ]
    still = {key: _still(ds[key], layout) for key in columns}
    panel = Panel(name, tuple(described), times, *places, labels, still, store, shape)
    return panel, notes


@dataclass(frozen=True, eq=False)
class _Part:
    """One variable of the dataset and the names of its levels."""

    array: xr.DataArray
    names: tuple[str, ...]
    dims: tuple[str, ...]

    @classmethod
    def of(cls, array: xr.DataArray, layout: Layout, ds: xr.Dataset, level: str | None) -> _Part:
        over_time = layout.time is not None and layout.time in array.dims
        dims = (layout.time, *layout.place) if layout.time and over_time else layout.place
        name = str(array.name)
        if layout.level is None or layout.level not in array.dims or level is None:
            return cls(array, (name,), dims)
        levels = ds[level]
        scale = 0.01 if str(levels.attrs.get("units", "")).lower() == "pa" else 1.0
        names = tuple(f"{name}_{float(value) * scale:g}" for value in levels.values)
        return cls(array, names, (*dims, layout.level))


def _fetch(
    parts: list[_Part], names: list[str], layout: Layout, start: int, stop: int
) -> np.ndarray:
    """Steps of all variables in the order of rows and names, (steps, places, variables)."""
    steps = layout.steps[start:stop]
    span = slice(int(steps[0]), int(steps[-1]) + 1) if (np.diff(steps) == 1).all() else steps
    made = np.empty((len(steps), len(layout.order), len(names)), np.float32)
    for part in parts:
        array = part.array
        if layout.time is not None and layout.time in part.dims:
            array = array.isel({layout.time: span})
        values = np.asarray(array.transpose(*part.dims).values)
        values = values.reshape(len(steps), -1, len(part.names))
        for level, name in enumerate(part.names):
            made[..., names.index(name)] = values[:, layout.order, level]
    made[~np.isfinite(made)] = np.nan
    return made


def _prepared(ds: xr.Dataset, found: Mapping[str, str]) -> xr.Dataset:
    """Without dimensions of size one that mean nothing here, and with a single axis of time."""
    ds = ds.set_coords([found[role] for role in ("lat", "lon", "time") if role in found])
    if "time" in found and ds[found["time"]].ndim == 0:
        ds = ds.expand_dims(found["time"])
    if "time" in found and ds[found["time"]].ndim == 2:  # start of a forecast × step
        ds = ds.stack(valid=ds[found["time"]].dims).reset_index("valid", drop=True)
    needed = {
        d for role in ("lat", "lon", "time", "level") if role in found for d in ds[found[role]].dims
    }
    return ds.squeeze([d for d, size in ds.sizes.items() if size == 1 and d not in needed])


def _require_something(name: str, ds: xr.Dataset) -> None:
    for dim, size in ds.sizes.items():
        if size == 0:
            raise ValueError(
                f"Source {name!r} must not be empty, but its dimension {str(dim)!r} has size 0; "
                "does a selection match nothing? Latitudes that go down are selected from north to "
                "south."
            )


def _is_axis(ds: xr.Dataset, found: Mapping[str, str], role: str) -> bool:
    """Whether something has a dimension of its own."""
    others = {d for r in ("lat", "lon", "time") if r in found for d in ds[found[r]].dims}
    array = ds[found[role]]
    return found[role] in ds.coords and array.ndim == 1 and array.dims[0] not in others


def _moving(name: str, ds: xr.Dataset) -> tuple[Source, list[Note]]:
    """Places that change with time: a table in all but name."""
    attributes = {str(key): dict(ds[key].attrs) for key in ds.variables}
    return understand_table(name, ds.to_dataframe().reset_index(), attributes)


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
    again = np.setdiff1d(np.flatnonzero(~np.isnat(values)), steps)
    if len(again):
        example = show(values[int(again[0])])
        notes.append(Note(name, "dropped", "duplicate times", len(again), len(values), example))
    if not len(times):
        raise ValueError(
            f"Source {name!r} must have at least one time, but all of {str(time.name)!r} are "
            "missing."
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
    """Labels, the grid's shape, latitudes and longitudes, and the order that puts them so."""
    grid = lat.ndim == 1 and lon.ndim == 1 and lat.dims != lon.dims
    for axis, limit in ((lat, 90.0), (lon, 360.0)):
        bad = np.flatnonzero(~(np.abs(np.atleast_1d(axis.values).ravel()) <= limit))
        if len(bad) and (grid or len(bad) == axis.size):
            value = np.atleast_1d(axis.values).ravel()[bad[0]]
            raise ValueError(
                f"{'Latitudes' if limit == 90 else 'Longitudes'} must lie between -{limit:g} and "
                f"{limit:g} degrees, but {str(axis.name)!r} of source {name!r} holds {value:g} at "
                f"position {bad[0]}; is it in metres?"
            )
    if grid:
        y, rows = np.unique(np.asarray(lat.values, np.float64), return_index=True)
        x, cols = np.unique(wrap(np.asarray(lon.values, np.float64)), return_index=True)
        for axis, kept in ((lat, rows), (lon, cols)):
            if axis.size > len(kept):
                why, again = f"repeated values of {axis.name}", axis.size - len(kept)
                notes.append(Note(name, "dropped", why, again, axis.size))
        order = (rows[:, None] * lon.size + cols).ravel()
        places = np.repeat(y, len(x)), np.tile(x, len(y))
        return None, (len(y), len(x)), places, order
    y = np.atleast_1d(np.asarray(lat.values, np.float64)).ravel()
    x = wrap(np.atleast_1d(np.asarray(lon.values, np.float64)).ravel())
    labels = np.arange(len(y))
    if "station" in found and ds[found["station"]].dims == lat.dims:
        labels = np.atleast_1d(ds[found["station"]].values).ravel().astype(str)
    good = possible(y, x)
    if not good.all():
        row = int(np.flatnonzero(~good)[0])
        example = f"station {labels[row]}: {y[row]:g}, {x[row]:g}"
        count = int((~good).sum())
        notes.append(Note(name, "dropped", "impossible coordinates", count, len(y), example))
    order = np.flatnonzero(good)
    order = order[np.lexsort([labels[order], x[order], y[order]])]
    return labels[order], None, (y[order], x[order]), order


def _variables(
    name: str,
    ds: xr.Dataset,
    found: Mapping[str, str],
    layout: Layout,
    notes: list[Note],
    grid: bool,
) -> tuple[list[Hashable], list[str]]:
    """Which variables are observed over time, and which are known about each place."""
    roles = {found.get(role) for role in ("lat", "lon", "time", "station")}
    bounds = {ds[key].attrs.get("bounds") for key in ds.variables}
    observed: list[Hashable] = []
    columns: list[str] = []
    for key in ds.data_vars:
        array = ds[key]
        if key in roles or key in bounds:
            continue
        if array.dtype.kind not in "fiub":
            notes.append(Note(name, "left out", f"{key} holds no numbers", 1, 1))
            continue
        rest = set(array.dims) - {layout.time, layout.level}
        if rest != set(layout.place):
            why = f"{key} has dimensions {tuple(map(str, array.dims))}"
            notes.append(Note(name, "left out", why, 1, 1))
        elif layout.time is not None and layout.time not in array.dims:
            columns.append(str(key))
        else:
            observed.append(key)
    known = found.get("elevation")
    if known in ds.coords and ds[known].dims and set(ds[known].dims) == set(layout.place):
        columns.append(str(known))
    if known in observed and len(observed) > 1 and not grid:  # stations and their elevations
        observed.remove(known)
        columns.append(str(known))
    if not observed:
        raise ValueError(
            f"Source {name!r} must have at least one variable with dimensions "
            f"{(*((layout.time,) if layout.time else ()), *layout.place)}, got "
            f"{ {str(k): tuple(map(str, ds[k].dims)) for k in ds.data_vars} }; choose along other "
            "dimensions first, e.g. ds.isel(number=0)."
        )
    return observed, columns


def _still(array: xr.DataArray, layout: Layout) -> np.ndarray:
    values = np.asarray(array.transpose(*layout.place).values, np.float32)
    return np.atleast_1d(values).ravel()[layout.order]


def _unique_dims(lat: xr.DataArray, lon: xr.DataArray) -> tuple[Hashable, ...]:
    return tuple(dict.fromkeys((*lat.dims, *lon.dims)))


def _chunk(parts: list[_Part], time: str | None) -> int:
    """How many steps are stored together."""
    array = parts[0].array
    if array.chunks is not None and time in array.dims:
        return int(array.chunks[array.dims.index(time)][0])
    sizes = array.encoding.get("chunks") or array.encoding.get("chunksizes")
    return int(sizes[array.dims.index(time)]) if sizes and time in array.dims else 1
