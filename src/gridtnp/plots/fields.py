"""Maps of several fields side by side, in the same colours."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from gridtnp.errors import require_known
from gridtnp.plots.basemap import MapGrid, add_coastline, colour_bar, limits
from gridtnp.plots.style import row
from gridtnp.sources.coordinates import recognise, require_places, wrap
from gridtnp.sources.source import unit_symbol

if TYPE_CHECKING:  # full names, so that annotations can be resolved
    import matplotlib.figure
    import pandas
    import xarray


def fields(
    panels: Mapping[str, xarray.DataArray],
    *,
    points: pandas.DataFrame | Mapping[str, pandas.DataFrame] | None = None,
    column: str | None = None,
    apart: Collection[str] = (),
    colours: str = "viridis",
) -> matplotlib.figure.Figure:
    """Map fields side by side in the same colours: predictions, baselines, samples, the truth.

    Args:
        panels: Fields on latitudes and longitudes, by title.
        points: Latitudes and longitudes of observations to show on every map, or by its title.
        column: Column of `points` that is shown in the colours of the maps.
        apart: Titles of maps with a colour range of their own, such as standard deviations.
        colours: Name of matplotlib's colour map.
    """
    if not panels:
        raise ValueError("No fields to map: panels is empty.")
    tables = points if isinstance(points, Mapping) else dict.fromkeys(panels, points)
    for name in (*apart, *(points if isinstance(points, Mapping) else ())):
        require_known(name, panels, "title", "among the panels")
    grids = {title: MapGrid(field, title) for title, field in panels.items()}
    values = {title: grids[title].values(field) for title, field in panels.items()}
    first = next(iter(grids.values()))
    shown = {} if column is None else {t: p[column] for t, p in tables.items() if p is not None}
    common = [values[title] for title in panels if title not in apart]
    low, high = limits(*common, *(v.to_numpy(np.float64) for v in shown.values()))
    figure, axes = row(len(panels), first.ratio, extra=1.1)
    together, mesh = [], None
    for ax, (title, field) in zip(axes, panels.items(), strict=True):
        grid, own = grids[title], title in apart
        least, most = limits(values[title]) if own else (low, high)
        drawn = ax.pcolormesh(
            grid.lon,
            grid.lat,
            values[title],
            cmap="cividis" if own else colours,
            vmin=least,
            vmax=most,
            rasterized=True,
        )
        if own:
            colour_bar(figure, drawn, unit_symbol(field.attrs.get("units")), ax)
        else:
            together.append(ax)
            mesh = drawn
        if (table := tables.get(title)) is not None:
            found = recognise({str(name): {} for name in table.columns})
            require_places(found, "points", map(str, table.columns))
            coloured = {} if column is None or own else {"cmap": colours, "vmin": low, "vmax": high}
            ax.scatter(
                wrap(table[found["lon"]].to_numpy(np.float64), grid.west),
                table[found["lat"]],
                np.clip(4000 / max(len(table), 1), 4, 28) * (1.0 if coloured else 0.4),
                table[column] if coloured else "white",
                **coloured,
                edgecolors="black",
                linewidths=0.4 if len(table) < 500 else 0.0,
                zorder=3,
            )
        ax.set_title(title)
        add_coastline(ax, grid)
    if mesh is not None:
        units = next(f.attrs.get("units") for t, f in panels.items() if t not in apart)
        colour_bar(figure, mesh, unit_symbol(units), *together)
    return figure
