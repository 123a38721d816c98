# %% [markdown]
# # Fusing several sources
#
# Stations on land and ships at sea report temperature in a few places; an analysis is everywhere,
# but coarse and 1.5 K too warm. Reports of the same kind are rows of one table, whatever made them.
# The analysis is a source of its own, and the model learns what it is worth.

# %%
from dataclasses import replace

import numpy as np
import pandas as pd
import xarray as xr

import gridtnp as gt

rng = np.random.default_rng(0)
weather, sites = gt.demo.weather()
air = weather["t2m"].assign_coords(lon=(weather["lon"] + 180) % 360 - 180).sortby("lon")
air = air.sel(lat=slice(25, 80), lon=slice(-45, 60))


def observed(lat: np.ndarray, lon: np.ndarray) -> pd.DataFrame:
    """Temperature at places (time, place), with an error of 0.5 K."""
    names = ("time", "place")
    at = xr.Dataset({"lat": (names, lat), "lon": (names, lon)}, {"time": air["time"]})
    table = air.interp(lat=at["lat"], lon=at["lon"]).to_dataframe("t2m").reset_index()
    table["t2m"] += rng.normal(0, 0.5, len(table))
    return table[["time", "lat", "lon", "t2m"]]


inside = sites["lat"].between(36, 66) & sites["lon"].between(-10, 42)
airports = sites[inside].sample(40, random_state=0)[["lat", "lon"]].to_numpy()
stations = observed(*np.broadcast_to(airports.T[:, None], (2, 84, 40)))
ships = observed(rng.uniform(36, 66, (84, 30)), rng.uniform(-28, -8, (84, 30)))
analysis = (air.coarsen(lat=3, lon=3, boundary="trim").mean() + 1.5).to_dataset()

data = gt.Dataset(
    {"reports": pd.concat([stations, ships]), "analysis": analysis},
    target="reports.t2m",
    units={"reports.t2m": "K"},
)
train, val, test = data.split(time=["2001-01-14", "2001-01-17"])
recipe = replace(gt.recipe("quick"), steps=60)
model = gt.GriddedTNP.for_data(train, quiet=True).fit(train, val, recipe=recipe, quiet=True)

# %% [markdown]
# A fitted model works with any part of its sources missing, so that a map shows what each adds:
# the ships the Atlantic, the analysis whatever is far from all reports.

# %%
time = "2001-01-19T12:00"
grid = gt.latlon_grid(lat=(37, 65), lon=(-27, 41), step=0.5)
truth = air.sel(time=time).interp(lat=grid["lat"], lon=grid["lon"])
land, sea = (table[table["time"] == time] for table in (stations, ships))
everything = {"reports": pd.concat([land, sea]), "analysis": analysis.sel(time=[time])}
panels, points = {}, {}
for name, context in {
    "stations": {"reports": land},
    "and ships": {"reports": everything["reports"]},
    "and the analysis": everything,
}.items():
    panels[name] = model.predict(context, at=grid)["t2m_mean"]
    points[name] = context["reports"]
    error = float(np.sqrt(((panels[name] - truth) ** 2).mean()))
    print(f"{name:<17} RMSE {error:.2f} K")
figure = gt.plots.fields({**panels, "truth": truth}, points=points)
figure.savefig("fusion.webp", dpi=150)
