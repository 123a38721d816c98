"""Map axes: fields from south to north and west to east, coastlines, colour bars and ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gridtnp import demo
from gridtnp.plots.style import NORMAL, SMALL, small
from gridtnp.sources.coordinates import recognise, require_places, western_edge, wrap

if TYPE_CHECKING:  # full names, so that annotations can be resolved
    import matplotlib.axes
    import xarray


class MapGrid:
    """Latitudes and longitudes of a field, in ascending order."""

    def __init__(self, data: xarray.Dataset | xarray.DataArray, what: str) -> None:
        self.names = recognise({str(key): dict(data[key].attrs) for key in data.coords})
        require_places(self.names, what, map(str, data.coords))
        lat, lon = (data[self.names[axis]].to_numpy().astype(np.float64) for axis in ("lat", "lon"))
        self.west = western_edge(lon)
        lon = wrap(lon, self.west)
        self.order = np.ix_(np.argsort(lat), np.argsort(lon))
        self.lat, self.lon = np.sort(lat), np.sort(lon)

    def values(self, field: xarray.DataArray) -> np.ndarray:
        y, x = self.names["lat"], self.names["lon"]
        if set(map(str, field.dims)) != {y, x}:
            raise ValueError(
                f"{field.name} has dimensions {tuple(map(str, field.dims))}, but a map needs "
                "latitude and longitude; predict on a grid: gt.latlon_grid."
            )
        return field.transpose(y, x).to_numpy()[self.order]

    @property
    def ratio(self) -> float:
        """Height over width of a map that is true to scale at its centre."""
        stretch = 1 / max(np.cos(np.deg2rad(float(self.lat.mean()))), 0.1)
        return stretch * max(float(np.ptp(self.lat)), 1e-6) / max(float(np.ptp(self.lon)), 1e-6)


def limits(*values: np.ndarray) -> tuple[float, float]:
    """Range of colours: 0.5 to 99.5 % of all finite values."""
    finite = np.concatenate([np.zeros(0), *(value[np.isfinite(value)] for value in values)])
    low, high = np.quantile(finite, [0.005, 0.995]) if len(finite) else (0.0, 1.0)
    return float(low), float(high) if high > low else float(low) + 1.0


def colour_bar(figure: Any, of: Any, label: str, *axes: matplotlib.axes.Axes) -> None:
    """A colour bar below a map, or below several, pointed where values lie beyond its colours."""
    low, high = of.get_clim()
    shown = [c.get_array() for ax in axes for c in ax.collections]
    below = any((values < low).any() for values in shown if values is not None)
    beyond = any((values > high).any() for values in shown if values is not None)
    extend = ("both" if beyond else "min") if below else ("max" if beyond else "neither")
    aspect = 35 * len(axes)
    bar = figure.colorbar(of, ax=axes, location="bottom", aspect=aspect, pad=0.03, extend=extend)
    bar.set_label(label, fontsize=NORMAL)
    bar.ax.tick_params(labelsize=SMALL, length=3)


def add_coastline(ax: matplotlib.axes.Axes, grid: MapGrid) -> None:
    """Draw coastlines, set the aspect ratio, and label the axes in degrees."""
    from matplotlib.collections import LineCollection

    half = [np.abs(np.diff(a)).min(initial=1.0) / 2 for a in (grid.lon, grid.lat)]
    turns = [np.array([turn, 0.0]) for turn in (-360.0, 0.0, 360.0)]
    turned = [ring + turn for ring in demo.coastline() for turn in turns]
    near = [r for r in turned if r[:, 0].max() > grid.lon[0] and r[:, 0].min() < grid.lon[-1]]
    ax.add_collection(LineCollection(near, colors="black", linewidths=0.6, zorder=2))
    ax.set_xlim(grid.lon[0] - half[0], grid.lon[-1] + half[0])
    ax.set_ylim(grid.lat[0] - half[1], grid.lat[-1] + half[1])
    ax.set_aspect(1 / max(np.cos(np.deg2rad(float(grid.lat.mean()))), 0.1))
    ax.locator_params(nbins=6, steps=[1, 2, 3, 5, 6, 10])
    ax.xaxis.set_major_formatter(lambda x, _: _degrees(float(wrap(np.array(x))), "E", "W"))
    ax.yaxis.set_major_formatter(lambda y, _: _degrees(y, "N", "S"))
    small(ax)


def _degrees(value: float, positive: str, negative: str) -> str:
    side = "" if value in (0.0, -180.0) else positive if value > 0 else negative
    return f"{abs(value):g}°{side}"
