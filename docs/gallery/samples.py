# %% [markdown]
# # Joint samples: what the whole field could be
#
# A mean with a standard deviation says what each place could be, not what all places could be
# together. Joint samples do: each is a whole field, as smooth as the weather is and in agreement
# with all observations. Whatever can be computed from a field has a distribution over samples,
# such as the area that freezes.

# %%
from dataclasses import replace

import numpy as np
import xarray as xr

import gridtnp as gt

rng = np.random.default_rng(0)
weather, sites = gt.demo.weather()
air = weather["t2m"].assign_coords(lon=(weather["lon"] + 180) % 360 - 180).sortby("lon")
air = (air.sel(lat=slice(20, 65), lon=slice(-130, -60)) - 273.15).assign_attrs(units="degC")
inside = sites["lat"].between(26, 58) & sites["lon"].between(-124, -66)
sites = sites[inside].sample(90, random_state=0).set_index("station")
at = sites[["lat", "lon"]].to_xarray()
seen = air.interp(lat=at["lat"], lon=at["lon"]).to_dataframe("t2m").reset_index()

data = gt.Dataset({"stations": seen}, target="stations.t2m", units={"stations.t2m": "degC"})
train, val, test = data.split(time=["2001-01-14", "2001-01-17"], hold_out_stations=0.2)
recipe = replace(gt.recipe("quick"), steps=60)
model = gt.GriddedTNP.for_data(train, quiet=True).fit(train, val, recipe=recipe, quiet=True)

# %% [markdown]
# From only twelve stations of a day, much remains open, and samples differ where no station is.

# %%
time = "2001-01-19T12:00"
some = rng.choice(sites.index, 12, replace=False)
few = seen[(seen["time"] == time) & seen["station"].isin(some)]
grid = gt.latlon_grid(lat=(26, 58), lon=(-124, -66), step=0.5)
fields = model.sample(24, {"stations": few}, at=grid, subset=64, seed=0)["t2m"]
mean = model.predict({"stations": few}, at=grid)["t2m_mean"]

area = np.cos(np.deg2rad(grid["lat"]))
frozen = 100 * (fields < 0).weighted(area).mean(("lat", "lon"))
low, middle, high = (float(frozen.quantile(q)) for q in (0.05, 0.5, 0.95))
print(f"{middle:.0f} % of the area is below 0 °C (90 % interval {low:.0f} to {high:.0f} %);")
print(f"the mean field alone says {100 * float((mean < 0).weighted(area).mean()):.0f} %")

panels: dict[str, xr.DataArray] = {"mean": mean}
panels |= {f"sample {i + 1}": fields.isel(sample=i) for i in range(3)}
figure = gt.plots.fields(panels, points=few, column="t2m", colours="RdYlBu_r")
figure.savefig("samples.webp", dpi=150)
