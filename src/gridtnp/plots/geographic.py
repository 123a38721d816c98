"""Maps of a predicted field and of its errors at stations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gridtnp import demo
from gridtnp.data.coordinates import recognise, require_places, western_edge, wrap
from gridtnp.data.times import show, to_time, to_times
from gridtnp.errors import require_known
from gridtnp.plots.style import LARGE, NORMAL, SMALL, row, small

if TYPE_CHECKING:  # full names, so that annotations can be resolved
    import matplotlib.axes
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
    field = _Field.of(_at_time(prediction, time), variable)
    sites = None if stations is None else _Stations.of(stations, variable, field)
    compared = sites is not None and sites.observed is not None
    figure, axes = row(2 + compared + len(field.chances), field.ratio, extra=1.1)
    unit = field.units or ""
    low, high = _limits(field.mean, None if sites is None else sites.observed)
    panels = [("mean", field.mean, "viridis", low, high)]
    panels += [("standard deviation", field.std, "cividis", None, None)]
    for ax, (title, values, colours, least, most) in zip(axes, panels, strict=False):
        mesh = ax.pcolormesh(
            field.lon, field.lat, values, cmap=colours, vmin=least, vmax=most, rasterized=True
        )
        _colour_bar(figure, mesh, ax, unit)
        ax.set_title(title)
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
        _colour_bar(figure, dots, axes[2], f"predicted − observed, {unit}".rstrip(", "))
        axes[2].set_title("error at stations")
        axes[2].set_facecolor("0.95")
    for ax, (title, chance) in zip(axes[2 + compared :], field.chances.items(), strict=True):
        mesh = ax.pcolormesh(
            field.lon, field.lat, chance, cmap="Blues", vmin=0, vmax=1, rasterized=True
        )
        _colour_bar(figure, mesh, ax, "probability")
        ax.set_title(title)
    for ax in axes:
        _add_coastline(ax, field)
    when = "" if field.time is None else f", {show(field.time)} UTC"
    figure.suptitle(f"{variable}{when}", fontsize=LARGE, fontweight="bold")
    return figure


class _Field:
    """One variable of a prediction at one time, south to north and west to east."""

    def __init__(
        self, lat: np.ndarray, lon: np.ndarray, mean: np.ndarray, std: np.ndarray, west: float
    ) -> None:
        self.lat, self.lon, self.mean, self.std, self.west = lat, lon, mean, std, west
        self.units: str | None = None
        self.chances: dict[str, np.ndarray] = {}
        self.time: np.datetime64 | None = None

    @classmethod
    def of(cls, data: xarray.Dataset, variable: str) -> _Field:
        found = recognise({str(key): dict(data[key].attrs) for key in data.coords})
        require_places(found, "prediction", map(str, data.coords))
        y, x = found["lat"], found["lon"]
        mean = data[f"{variable}_mean"]
        if set(map(str, mean.dims)) != {y, x}:
            raise ValueError(
                f"{variable}_mean has dimensions {tuple(map(str, mean.dims))}, but a map needs "
                "latitude and longitude; predict on a grid: gt.latlon_grid."
            )
        west = western_edge(data[x].to_numpy().astype(np.float64))
        lat, lon = data[y].to_numpy(), wrap(data[x].to_numpy().astype(np.float64), west)
        rows, columns = np.argsort(lat), np.argsort(lon)
        values = [
            data[f"{variable}_{what}"].transpose(y, x).to_numpy()[np.ix_(rows, columns)]
            for what in ("mean", "std")
        ]
        field = cls(lat[rows], lon[columns], values[0], values[1], west)
        field.units = mean.attrs.get("units")
        for name in (n for n in map(str, data) if n.startswith(f"{variable}_above_")):
            title = f"> {name.removeprefix(f'{variable}_above_')} {field.units or ''}".rstrip()
            chance = data[name].transpose(y, x).to_numpy()
            field.chances[title] = chance[np.ix_(rows, columns)]
        if "time" in found:
            field.time = to_times(np.atleast_1d(data[found["time"]].to_numpy()), "time")[0]
        return field

    @property
    def ratio(self) -> float:
        """Height over width of a map that is true to scale at its centre."""
        stretch = 1 / max(np.cos(np.deg2rad(float(self.lat.mean()))), 0.1)
        return stretch * max(float(np.ptp(self.lat)), 1e-6) / max(float(np.ptp(self.lon)), 1e-6)

    def nearest(self, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
        """The mean at the nearest grid points; NaN outside of the map."""
        rows = np.abs(self.lat[None] - lat[:, None]).argmin(1)
        columns = np.abs(wrap(self.lon[None] - lon[:, None])).argmin(1)
        inside = (lat >= self.lat[0]) & (lat <= self.lat[-1])
        inside &= (lon >= self.lon[0]) & (lon <= self.lon[-1])
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
        lon = wrap(table[found["lon"]].to_numpy(np.float64), field.west)
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


def _limits(field: np.ndarray, observed: np.ndarray | None) -> tuple[float, float]:
    """Range of colours: 0.5 to 99.5 % of the field and the observations."""
    values = field[np.isfinite(field)]
    if observed is not None:
        values = np.concatenate([values, observed])
    low, high = np.quantile(values, [0.005, 0.995]) if len(values) else (0.0, 1.0)
    return float(low), float(high) if high > low else float(low) + 1.0


def _colour_bar(figure: Any, of: Any, ax: matplotlib.axes.Axes, label: str) -> None:
    """A colour bar below a map."""
    bar = figure.colorbar(of, ax=ax, location="bottom", aspect=35, pad=0.03)
    bar.set_label(label, fontsize=NORMAL)
    bar.ax.tick_params(labelsize=SMALL, length=3)


def _add_coastline(ax: matplotlib.axes.Axes, field: _Field) -> None:
    """Draw coastlines, set the aspect ratio, and label the axes in degrees."""
    from matplotlib.collections import LineCollection

    half = [np.abs(np.diff(a)).min(initial=1.0) / 2 for a in (field.lon, field.lat)]
    turns = [np.array([turn, 0.0]) for turn in (-360.0, 0.0, 360.0)]
    turned = [ring + turn for ring in demo.coastline() for turn in turns]
    near = [r for r in turned if r[:, 0].max() > field.lon[0] and r[:, 0].min() < field.lon[-1]]
    ax.add_collection(LineCollection(near, colors="black", linewidths=0.6, zorder=2))
    ax.set_xlim(field.lon[0] - half[0], field.lon[-1] + half[0])
    ax.set_ylim(field.lat[0] - half[1], field.lat[-1] + half[1])
    ax.set_aspect(1 / max(np.cos(np.deg2rad(float(field.lat.mean()))), 0.1))
    ax.locator_params(nbins=6, steps=[1, 2, 3, 5, 6, 10])
    ax.xaxis.set_major_formatter(lambda x, _: _degrees(float(wrap(np.array(x))), "E", "W"))
    ax.yaxis.set_major_formatter(lambda y, _: _degrees(y, "N", "S"))
    small(ax)


def _degrees(value: float, positive: str, negative: str) -> str:
    side = "" if value in (0.0, -180.0) else positive if value > 0 else negative
    return f"{abs(value):g}°{side}"
