# %% [markdown]
# # A forecast for tomorrow
#
# With `lead="24h"`, the context is what is known now, and the targets are a day later. The model
# sees the analysis of today as a grid, and learns from three weeks of simulated weather how it
# moves. Three weeks are very little to learn dynamics from; more of it is made by
# [a script](../demo-data.md).

# %%
from dataclasses import replace

import numpy as np
import pandas as pd

import gridtnp as gt

weather, sites = gt.demo.weather()
part = weather.assign_coords(lon=(weather["lon"] + 180) % 360 - 180).sortby("lon")
part = part.sel(lat=slice(25, 75), lon=slice(-150, -40))
analysis = part[["t2m"]].assign(u=part["u"].sel(level=850), v=part["v"].sel(level=850))
analysis = analysis.drop_vars(["level", "sigma"])
inside = sites["lat"].between(28, 70) & sites["lon"].between(-145, -50)
chosen = sites[inside].sample(250, random_state=0)
stations = gt.observe(part["t2m"], chosen)

data = gt.Dataset(
    {"stations": stations, "analysis": analysis},
    target="stations.t2m",
    static={"elevation": part["elevation"], "land": part["land"]},
)
train, val, test = data.split(time=["2001-01-15", "2001-01-18"])
recipe = replace(gt.recipe("quick"), steps=60)
model = gt.GriddedTNP.for_data(train, lead="24h", quiet=True)
model.fit(train, val, recipe=recipe, quiet=True)
scores = model.evaluate(test, baselines=["persistence", "regression-kriging"]).to_dataframe()
print(scores[["forecast", "crps", "rmse", "coverage_90"]].round(2).to_string(index=False))

# %% [markdown]
# `time` in the answer is the time that the forecast is for, and `init_time` when it was made.

# %%
now = pd.Timestamp("2001-01-20T00:00")
valid = now + pd.Timedelta("24h")
grid = gt.latlon_grid(lat=(28, 70), lon=(-145, -50), step=1.0)
static = part[["elevation", "land"]].interp(lat=grid["lat"], lon=grid["lon"])
field = model.predict(test.at(valid), at=grid.assign(static))
t2m = part["t2m"].interp(lat=grid["lat"], lon=grid["lon"])
today, tomorrow = t2m.sel(time=now), t2m.sel(time=valid)
for name, guess in {"persistence": today, "forecast": field["t2m_mean"]}.items():
    print(f"{name:<12} RMSE {float(np.sqrt(((guess - tomorrow) ** 2).mean())):.2f} K")
change = (field["t2m_mean"] - today).assign_attrs(units="K")
figure = gt.plots.fields(
    {"change, forecast": change, "change, truth": (tomorrow - today).assign_attrs(units="K")},
    colours="RdBu_r",
)
figure.savefig("forecast.webp", dpi=150)
