"""Maps of a predicted field and of its errors at stations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gridtnp.errors import require_known
from gridtnp.plots.basemap import MapGrid, add_coastline, colour_bar, limits
from gridtnp.plots.style import LARGE, row
from gridtnp.sources.coordinates import recognise, require_places, wrap
from gridtnp.sources.source import unit_symbol
from gridtnp.sources.times import show, to_time, to_times

if TYPE_CHECKING:  # full names, so that annotations can be resolved
    import matplotlib.figure
    import pandas
    import xarray


def maps(
    prediction: xarray.Dataset,
    variable: str,
    *,
    stations: pandas.DataFrame | None = None,
    time: Any = None,
) -> matplotlib.figure.Figure:
    """Map the mean and standard deviation of a predicted field, and its errors at stations.

    Probabilities of exceeding a threshold are mapped if they were predicted. `stations` has
    latitudes and longitudes. A column of the variable is shown in the colours of the mean, and
    compared with the column `<variable>_mean` or else with the nearest grid point. `time` selects
    one of several times.
    """
    known = [str(name).removesuffix("_mean") for name in prediction if str(name).endswith("_mean")]
    require_known(variable, known, "variable", "in this prediction")
    field = _Field(_at_time(prediction, time), variable)
    sites = None if stations is None else _Stations.of(stations, variable, field)
    compared = sites is not None and sites.observed is not None
    figure, axes = row(2 + compared + len(field.chances), field.grid.ratio, extra=1.1)
    unit = field.unit
    observed = () if sites is None or sites.observed is None else (sites.observed,)
    low, high = limits(field.mean, *observed)
    grid = (field.grid.lon, field.grid.lat)
    panels = [("mean", field.mean, "viridis", low, high)]
    panels += [("standard deviation", field.std, "cividis", None, None)]
    if sites is not None:
        axes[1].scatter(
            sites.lon,
            sites.lat,
            0.4 * sites.size,
            "white",
            edgecolors="black",
            linewidths=0.4,
            zorder=3,
        )
        axes[0].scatter(
            sites.lon,
            sites.lat,
            sites.size,
            "white" if sites.observed is None else sites.observed,
            cmap=None if sites.observed is None else "viridis",
            vmin=None if sites.observed is None else low,
            vmax=None if sites.observed is None else high,
            edgecolors="black",
            linewidths=0.5,
            zorder=3,
        )
    for ax, (title, values, colours, least, most) in zip(axes, panels, strict=False):
        mesh = ax.pcolormesh(*grid, values, cmap=colours, vmin=least, vmax=most, rasterized=True)
        colour_bar(figure, mesh, unit, ax)
        ax.set_title(title)
    if sites is not None and sites.observed is not None:
        error = sites.predicted - sites.observed
        largest = float(np.abs(error).max(initial=0.0)) or 1.0
        dots = axes[2].scatter(
            sites.lon,
            sites.lat,
            1.4 * sites.size,
            error,
            cmap="RdBu_r",
            vmin=-largest,
            vmax=largest,
            edgecolors="0.3",
            linewidths=0.4,
            zorder=3,
        )
        colour_bar(figure, dots, f"predicted − observed, {unit}".rstrip(", "), axes[2])
        axes[2].set_title("error at stations")
        axes[2].set_facecolor("0.95")
    for ax, (title, chance) in zip(axes[2 + compared :], field.chances.items(), strict=True):
        mesh = ax.pcolormesh(*grid, chance, cmap="Blues", vmin=0, vmax=1, rasterized=True)
        colour_bar(figure, mesh, "probability", ax)
        ax.set_title(title)
    for ax in axes:
        add_coastline(ax, field.grid)
    when = "" if field.time is None else f", {show(field.time)} UTC"
    figure.suptitle(f"{variable}{when}", fontsize=LARGE, fontweight="bold")
    return figure


class _Field:
    """One variable of a prediction at one time."""

    def __init__(self, data: xarray.Dataset, variable: str) -> None:
        self.grid = grid = MapGrid(data, "prediction")
        self.mean, self.std = (grid.values(data[f"{variable}_{what}"]) for what in ("mean", "std"))
        self.unit = unit_symbol(data[f"{variable}_mean"].attrs.get("units"))
        self.chances: dict[str, np.ndarray] = {}
        for name in (n for n in map(str, data) if n.startswith(f"{variable}_above_")):
            title = f"> {name.removeprefix(f'{variable}_above_')} {self.unit}".rstrip()
            self.chances[title] = grid.values(data[name])
        self.time: np.datetime64 | None = None
        if "time" in grid.names:
            self.time = to_times(np.atleast_1d(data[grid.names["time"]].to_numpy()), "time")[0]

    def nearest(self, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
        """The mean at the nearest grid points; NaN outside of the map."""
        grid = self.grid
        rows = np.abs(grid.lat[None] - lat[:, None]).argmin(1)
        columns = np.abs(wrap(grid.lon[None] - lon[:, None])).argmin(1)
        inside = (lat >= grid.lat[0]) & (lat <= grid.lat[-1])
        inside &= (lon >= grid.lon[0]) & (lon <= grid.lon[-1])
        return np.where(inside, self.mean[rows, columns], np.nan)


class _Stations:
    """Stations on a map, with observations and predictions."""

    def __init__(self, lat: np.ndarray, lon: np.ndarray) -> None:
        self.lat, self.lon = lat, lon
        self.observed: np.ndarray | None = None
        self.predicted = np.zeros(0)
        self.size = np.full(len(lat), np.clip(4000 / max(len(lat), 1), 4, 28))

    @classmethod
    def of(cls, table: pandas.DataFrame, variable: str, field: _Field) -> _Stations:
        found = recognise({str(column): {} for column in table.columns})
        require_places(found, "stations", map(str, table.columns))
        if "time" in found and field.time is not None:
            table = table.loc[to_times(table[found["time"]], found["time"]) == field.time]
        lat = table[found["lat"]].to_numpy(np.float64)
        lon = wrap(table[found["lon"]].to_numpy(np.float64), field.grid.west)
        if variable not in table:
            return cls(lat, lon)
        observed = table[variable].to_numpy(np.float64)
        predicted = field.nearest(lat, lon)
        if f"{variable}_mean" in table:
            predicted = table[f"{variable}_mean"].to_numpy(np.float64)
        used = np.isfinite(observed) & np.isfinite(predicted)
        sites = cls(lat[used], lon[used])
        sites.observed, sites.predicted = observed[used], predicted[used]
        return sites


def _at_time(prediction: xarray.Dataset, time: Any) -> xarray.Dataset:
    found = recognise({str(key): dict(prediction[key].attrs) for key in prediction.coords})
    if "time" not in found or found["time"] not in prediction.dims:
        return prediction
    name = found["time"]
    times = to_times(prediction[name].to_numpy(), name)
    if time is None and len(times) > 1:
        raise ValueError(
            f"The prediction has {len(times)} times from {show(times[0])} to {show(times[-1])}; "
            f"choose one: time={show(times[0])!r}."
        )
    wanted = times[0] if time is None else to_time(time)
    where = np.flatnonzero(times == wanted)
    if not len(where):
        raise ValueError(
            f"No prediction at {show(wanted)}; its times are from {show(times[0])} to "
            f"{show(times[-1])}."
        )
    return prediction.isel({name: int(where[0])})
