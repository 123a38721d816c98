"""The paper's experiment on wind: two components at three levels, in space and time.

A task has four consecutive times. Each of the six variables is observed at places of its own, `U(
0.05, 0.25)` of all; targets are a quarter of all places and times, with all six variables. Data
without pressure levels have `u10` and `v10` only.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from gridtnp.data.dataset import Dataset
from gridtnp.recipes import RECIPES, Recipe
from gridtnp.reproduce.shrinking import PAPER, Size, over
from gridtnp.reproduce.weather import Scale, Weather
from gridtnp.reproduce.weather_data import (
    box_of,
    crop,
    hours_between,
    is_global,
    open_weather,
    spacing,
    split,
    within_years,
)
from gridtnp.tasks.sampling import Context
from gridtnp.tasks.selection import Fraction

LEVELS = (700, 850, 1000)
TIMES = 4
UNITED_STATES = (25.0, 49.0), (-125.0, -66.0)
NORTH_WEST = (15.0, 75.0), (-180.0, 0.0)
"""Where coarse global data have as many points as the paper's region has on a finer grid."""
SHARE, TARGETS, EXAMPLE = (0.05, 0.25), 0.25, 0.05
SCALES = {
    "smoke": Scale(
        "smoke", Size(3, 16, 2, 1), Recipe(2, 2, 1e-3, "cosine"), 2, 1, thinned=3, fitted=8
    ),
    "cpu": Scale(
        "cpu",
        Size(3, 64, 4, 3),
        Recipe(3_000, 4, 3e-3, "cosine", optimiser="muon", ema=0.995, minutes=15.0),
        100,
    ),
    "full": Scale("full", PAPER, RECIPES["wind"], 16_000, 100),
}
BASELINES = ("nearest", "idw", "kriging")


def wind(scale: Scale, data: str, *, memory: int = 2**30) -> Weather:
    """The experiment on some weather; of global data, a region.

    Fields of more than `memory` bytes are read as tasks need them.
    """
    weather = open_weather(data)
    weather = within_years(weather) if scale.is_full else weather
    if is_global(weather):
        weather = crop(weather, *(UNITED_STATES if spacing(weather) <= 1 else NORTH_WEST))
    weather = weather.isel(
        lat=slice(None, None, scale.thinned), lon=slice(None, None, scale.thinned)
    )
    named = components(weather, data)
    hours = hours_between(weather)
    window = f"[0h, {hours * (TIMES - 1):g}h]"
    dataset = Dataset(
        {"wind": xr.Dataset(named)},
        target=[f"wind.{n}" for n in named],
        features=["hours"],
        memory=memory,
    )
    place = None if scale.is_full else over(*box_of(weather, dataset.west), hours)
    some = Fraction(*SHARE, per="batch")
    return Weather(
        "wind",
        scale,
        Path(data).name,
        split(dataset, by_years=scale.is_full),
        {name.replace("_", ""): Context(some, of=f"wind.{name}") for name in named},
        Fraction(TARGETS),
        place,
        ("time", "lat", "lon"),
        BASELINES,
        EXAMPLE,
        window=window,
    )


def components(weather: xr.Dataset, data: str) -> dict[str, xr.DataArray]:
    """`u_700`, `v_700`, … at the levels nearest to the paper's, or `u10` and `v10`."""
    if {"u", "v"} <= set(weather) and "level" in weather["u"].dims:
        there = weather["level"].to_numpy()
        rows = [int(np.abs(there - level).argmin()) for level in LEVELS]
        return {
            f"{name}_{there[row]:g}": weather[name].isel(level=row).reset_coords(drop=True)
            for row in dict.fromkeys(rows)
            for name in "uv"
        }
    if {"u10", "v10"} <= set(weather):
        return {name: weather[name].reset_coords(drop=True) for name in ("u10", "v10")}
    raise ValueError(
        f"{data!r} has neither 'u' and 'v' on pressure levels nor 'u10' and 'v10', only "
        f"{sorted(map(str, weather.data_vars))}."
    )
