"""The paper's experiment on stations: 2 m temperature from stations and a coarse field.

The context has 2 m temperature at some stations (`U(0, 0.3)` of them, or `U(0.25, 0.5)` if it is
rich) and skin temperature on a coarse grid; the targets are all stations, those of the context
among them. Stations are moved to the nearest grid point. Data without skin temperature have the
coarse field of 2 m temperature in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gridtnp.data.dataset import Dataset
from gridtnp.data.places import observe
from gridtnp.errors import require_known
from gridtnp.recipes import RECIPES, Recipe
from gridtnp.reproduce.shrinking import PAPER, Size, over
from gridtnp.reproduce.weather import Scale, Weather
from gridtnp.reproduce.weather_data import (
    box_of,
    coarsened,
    is_global,
    open_weather,
    read_sites,
    snapped,
    spacing,
    split,
    within_years,
)
from gridtnp.sources.coordinates import table_places, wrap
from gridtnp.tasks.sampling import Context, RawBatch
from gridtnp.tasks.selection import Fraction, Whole

SHARES = {"stations": (0.0, 0.3), "stations-rich": (0.25, 0.5)}
"""Part of the stations in the context."""
EXAMPLE = 0.03
"""That of the paper's figures."""
SEAM, POLAR = 175.0, 75.0
"""Stations beyond these longitudes are near the date line, beyond these latitudes near a pole."""
SCALES = {
    "smoke": Scale(
        "smoke",
        Size(8, 16, 2, 1),
        Recipe(3, 2, 1e-3, "cosine"),
        2,
        1,
        held_out=0.2,
        thinned=8,
        fitted=8,
    ),
    "cpu": Scale(
        "cpu",
        Size(4, 64, 4, 3),
        Recipe(4_000, 8, 3e-3, "cosine", optimiser="muon", ema=0.995, minutes=15.0),
        200,
        held_out=0.2,
    ),
    "full": Scale("full", PAPER, RECIPES["stations"], 16_000, 100),
}
BASELINES = ("nearest", "idw", "bilinear:field.skt", "kriging", "regression-kriging")


def stations(
    scale: Scale,
    data: str,
    sites: str | None = None,
    *,
    rich: bool = False,
    memory: int = 2**30,
) -> Weather:
    """The experiment on some weather, at sites of one's own or those in the package.

    Fields of more than `memory` bytes are read as tasks need them.
    """
    weather = open_weather(data)
    weather = within_years(weather) if scale.is_full else weather
    require_known("t2m", [str(name) for name in weather.data_vars], "variable", f"of {data!r}")
    coarse = "skt" if "skt" in weather else "t2m"
    given = read_sites(sites)
    where = snapped(given, weather, distinct=not scale.is_full).iloc[:: scale.thinned]
    factor = 4 if spacing(weather) <= 1 else 2
    field = coarsened(weather[[coarse]], factor).rename({coarse: "skt"})
    dataset = Dataset(
        {"stations": observe(weather[["t2m"]], where, memory=memory), "field": field},
        target="stations.t2m",
        memory=memory,
    )
    table = "stations-rich" if rich else "stations"
    parts = split(dataset, by_years=scale.is_full, held_out=scale.held_out)
    everywhere = is_global(weather)
    known = parts[0].target_places

    def groups(raw: RawBatch) -> Mapping[str, np.ndarray]:
        source, target = dataset.sources["stations"], raw.target[0]
        place = source.places(target.rows)
        seen = np.ones(len(place), bool) if known is None else known[place]
        apart = seen & ~np.isin(target.rows, raw.context["t2m"][0].rows)
        found = {"all": seen, "apart": apart}
        if not seen.all():
            found["unseen"] = ~seen
        if everywhere:
            east, north = np.abs(wrap(source.lon[place])), np.abs(source.lat[place])
            found["date line"] = apart & (east > SEAM)
            found["polar"] = apart & (north > POLAR)
            found["elsewhere"] = apart & (east <= SEAM) & (north <= POLAR)
        return found

    place = None if everywhere else over(*box_of(weather, dataset.west))
    return Weather(
        table,
        scale,
        Path(data).name + (f" at {Path(sites).name}" if sites else ""),
        parts,
        {
            "t2m": Context(Fraction(*SHARES[table], per="batch"), of="stations.t2m"),
            "skt": Context(Whole(), of="field.skt"),
        },
        Whole(),
        place,
        ("lat", "lon"),
        BASELINES,
        EXAMPLE,
        groups=groups,
        sites=table_places(given, "stations")[1:],
    )
