# %% [markdown]
# # Ships: observations that move
#
# Ships report the temperature of the air wherever they are. Every row of a table has its own time
# and place, and that is all the model needs: no station, no grid. The weather is that of the
# package, simulated by a circulation model; ships sail on it between ports of the Atlantic.

# %%
from dataclasses import replace

import numpy as np
import pandas as pd

import gridtnp as gt

rng = np.random.default_rng(0)
weather, _ = gt.demo.weather()
air = weather["t2m"].assign_coords(lon=(weather["lon"] + 180) % 360 - 180).sortby("lon")
air = air.sel(lat=slice(5, 65), lon=slice(-85, 5))
ports = np.array([[51, -3], [40, -10], [36, -70], [45, -55], [15, -20], [10, -58], [28, -78]])

voyages = []
for ship in range(90):
    begin, end = ports[rng.choice(len(ports), 2, replace=False)] + rng.normal(0, 2, (2, 2))
    hours = np.arange(0, 21 * 24 - 6, 3)
    part = (hours / 24 * rng.uniform(0.08, 0.14) + rng.uniform()) % 2  # there and back again
    part = np.where(part > 1, 2 - part, part)[:, None]
    bow = rng.normal(0, 6) * np.sin(np.pi * part)  # no two captains take the same way
    lat, lon = (begin + part * (end - begin) + bow * [1, 0.3]).T
    time = air["time"].to_numpy()[0] + hours.astype("timedelta64[h]")
    voyages.append(pd.DataFrame({"time": time, "ship": ship, "lat": lat, "lon": lon}))
ships = pd.concat(voyages, ignore_index=True)
ships[["lat", "lon"]] = ships[["lat", "lon"]].clip([8, -84], [63, 4])
at = ships[["time", "lat", "lon"]].to_xarray().drop_vars("index")
ships["t2m"] = air.interp(at.data_vars).to_numpy() + rng.normal(0, 0.5, len(ships))

# %% [markdown]
# A task is a time, every six hours: its context is what ships reported in the twelve hours before,
# its targets are reports of that time. Since the window is longer than an instant, the model has a
# grid in space and time.

# %%
data = gt.Dataset(
    {"ships": ships[["time", "lat", "lon", "t2m"]]}, target="ships.t2m", units={"ships.t2m": "K"}
)
train, val, test = data.split(time=["2001-01-15", "2001-01-18"], gap="12h")
recipe = replace(gt.recipe("quick"), steps=60)
model = gt.GriddedTNP.for_data(train, context_window="(-12h, 0h]", every="6h", quiet=True)
model.fit(train, val, recipe=recipe, quiet=True)
scores = model.evaluate(test, baselines=["idw", "kriging"]).to_dataframe()
print(scores[["forecast", "crps", "rmse", "coverage_90"]].round(3).to_string(index=False))

# %% [markdown]
# Where no ship has been, the standard deviation is large.

# %%
time = pd.Timestamp("2001-01-20T12:00")
grid = gt.latlon_grid(lat=(10, 60), lon=(-80, 0), step=0.5)
field = model.predict(test.at(time), at=grid)
recent = ships[(ships["time"] <= time) & (ships["time"] > time - pd.Timedelta("12h"))]
truth = air.sel(time=time).interp(lat=grid["lat"], lon=grid["lon"])
figure = gt.plots.fields(
    {"truth": truth, "from ships": field["t2m_mean"], "standard deviation": field["t2m_std"]},
    points={"from ships": recent, "standard deviation": recent},
    column="t2m",
    apart=["standard deviation"],
)
figure.savefig("ships.webp", dpi=150)
