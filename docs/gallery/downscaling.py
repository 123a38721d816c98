# %% [markdown]
# # Downscaling a coarse field with stations
#
# A weather model or a reanalysis knows the large scales and smooths the mountains away. Here the
# truth is simulated, so that we can compare with it everywhere: temperature falls with height over
# the real terrain of Colorado, and weather moves over it. The model sees averages over 1° by 1°
# and sixty of eighty stations, and predicts the field at 4 km.

# %%
from dataclasses import replace

import numpy as np
import pandas as pd
import xarray as xr

import gridtnp as gt

rng = np.random.default_rng(0)
elevation = gt.demo.load()[1]["elevation"]
lat, lon = elevation["lat"], elevation["lon"]
days = pd.date_range("2020-01-01", periods=150, freq="D")


def waves(scale: float, size: float) -> xr.DataArray:
    """Weather of a scale in degrees: waves of random direction and phase, new every day."""
    k = xr.DataArray(rng.normal(0, 1 / scale, (150, 8, 2)), dims=("time", "wave", "axis"))
    phase = xr.DataArray(rng.uniform(0, 2 * np.pi, (150, 8)), dims=("time", "wave"))
    along = k.isel(axis=0) * (lat - 39) + k.isel(axis=1) * (lon + 105) + phase
    return size * np.sqrt(2 / 8) * np.cos(along).sum("wave")


lapse = xr.DataArray(rng.normal(-6.5, 1.5, 150), dims="time")  # °C per km, different every day
truth = (22 + waves(3, 4.0) + waves(0.7, 0.8) + lapse * elevation / 1000).assign_coords(time=days)
truth = truth.transpose("time", "lat", "lon").rename("t2m").assign_attrs(units="degC")
coarse = truth.coarsen(lat=24, lon=24, boundary="pad").mean()

# %% [markdown]
# Stations are points of the fine field, with an error of 0.3 °C. A fourth of them is held out.

# %%
row, column = rng.integers(lat.size, size=80), rng.integers(lon.size, size=80)
places = {"y": xr.DataArray(row, dims="s"), "x": xr.DataArray(column, dims="s")}
values = truth.isel(lat=places["y"], lon=places["x"]) + rng.normal(0, 0.3, (150, 80))
stations = values.to_dataframe("t2m").reset_index()
stations["station"] = "S" + stations["s"].astype(str)

data = gt.Dataset(
    {"stations": stations[["time", "station", "lat", "lon", "t2m"]], "coarse": coarse.to_dataset()},
    target="stations.t2m",
    static={"elevation": elevation},
    units={"stations.t2m": "degC"},
)
train, val, test = data.split(time=["2020-04-15", "2020-05-05"], hold_out_stations=0.25)
recipe = replace(gt.recipe("quick"), steps=60)
model = gt.GriddedTNP.for_data(train, quiet=True).fit(train, val, recipe=recipe, quiet=True)

# %% [markdown]
# Bilinear interpolation of the coarse field misses every valley. The model has learnt how
# temperature depends on height, and the stations of the day tell it how steeply it falls today.

# %%
day = "2020-05-20"
field = model.predict(test.at(day), at=elevation.to_dataset())
today = truth.sel(time=day)
smooth = coarse.sel(time=day).interp(lat=lat, lon=lon)
for name, guess in {"bilinear": smooth, "downscaled": field["t2m_mean"]}.items():
    print(f"{name:<11} RMSE {float(np.sqrt(((guess - today) ** 2).mean())):.2f} °C")
panels = {"coarse": coarse.sel(time=day), "downscaled": field["t2m_mean"], "truth": today}
figure = gt.plots.fields(panels)
figure.savefig("downscaling.webp", dpi=150)
