# %% [markdown]
# # Fusing several sources
#
# Stations on land, ships at sea, and a coarse analysis that is everywhere but not accurate. They
# have different places, times and errors. A `Dataset` takes them by name, and the network has a
# grid for each. Which one is worth what?

# %%
from dataclasses import replace

import numpy as np
import pandas as pd
import xarray as xr

import gridtnp as gt

rng = np.random.default_rng(0)
weather, sites = gt.demo.weather()
air = weather["t2m"].assign_coords(lon=(weather["lon"] + 180) % 360 - 180).sortby("lon")
air = air.sel(lat=slice(25, 80), lon=slice(-25, 60))


def observed(lat: np.ndarray, lon: np.ndarray, error: float, name: str) -> pd.DataFrame:
    """Temperature at places, which may be different at every time."""
    shape = (air.sizes["time"], lat.shape[-1])
    places = {
        "lat": (("time", "place"), np.broadcast_to(lat, shape)),
        "lon": (("time", "place"), np.broadcast_to(lon, shape)),
    }
    at = xr.Dataset(places, {"time": air["time"]})
    table = air.interp(lat=at["lat"], lon=at["lon"]).to_dataframe("t2m").reset_index()
    table["t2m"] += rng.normal(0, error, len(table))
    table["station"] = name + table["place"].astype(str)
    return table[["time", "station", "lat", "lon", "t2m"]]


inside = sites["lat"].between(35, 68) & sites["lon"].between(-12, 44)
airports = sites[inside].sample(40, random_state=0)
ships = observed(rng.uniform(44, 62, (84, 40)), rng.uniform(-12, 2, (84, 40)), 1.0, "S")
sources = {
    "stations": observed(airports["lat"].to_numpy(), airports["lon"].to_numpy(), 0.3, "L"),
    "ships": ships.drop(columns="station"),  # a new place every time
    "analysis": (air.coarsen(lat=3, lon=3, boundary="trim").mean() + 1.5).to_dataset(),
}
data = gt.Dataset(sources, target="stations.t2m", units={"stations.t2m": "K", "ships.t2m": "K"})
train, val, test = data.split(time=["2001-01-14", "2001-01-17"], hold_out_stations=0.25)
recipe = replace(gt.recipe("quick"), steps=60)
model = gt.GriddedTNP.for_data(train, quiet=True).fit(train, val, recipe=recipe, quiet=True)

# %% [markdown]
# A fitted model works with any of its sources missing, so that what each adds can be seen on a map.

# %%
time = "2001-01-19T12:00"
grid = gt.latlon_grid(lat=(37, 65), lon=(-11, 42), step=0.5)
truth = air.sel(time=time).interp(lat=grid["lat"], lon=grid["lon"])
now = {name: table[table["time"] == time] for name, table in sources.items() if name != "analysis"}
now["analysis"] = sources["analysis"].sel(time=[time])
panels = {}
for names in (["stations"], ["stations", "ships"], ["stations", "ships", "analysis"]):
    guess = model.predict({name: now[name] for name in names}, at=grid)["t2m_mean"]
    error = float(np.sqrt(((guess - truth) ** 2).mean()))
    panels[" + ".join(names)] = guess
    print(f"{' + '.join(names):<30} RMSE {error:.2f} K")
figure = gt.plots.fields({**panels, "truth": truth})
figure.savefig("fusion.webp", dpi=150)
