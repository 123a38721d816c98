# %% [markdown]
# # Winds: two variables at once
#
# The eastward and the northward component of the wind belong together, and a model may predict
# both. We take the simulated wind at 850 hPa, about 1.5 km above the sea, at 200 places around the
# North Pacific, and reconstruct the flow between
# them. A fourth of the places is held out.

# %%
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import gridtnp as gt

rng = np.random.default_rng(1)
weather, _ = gt.demo.weather()
wind = weather[["u", "v"]].sel(level=850, lat=slice(10, 65), lon=slice(135, 245)).drop_vars("sigma")
sites = pd.DataFrame({"lat": rng.uniform(14, 61, 200), "lon": rng.uniform(140, 240, 200)})
sites["station"] = [f"B{i:03}" for i in range(200)]
at = sites.set_index("station")[["lat", "lon"]].to_xarray()
seen = wind.interp(lat=at["lat"], lon=at["lon"]).drop_vars("level").to_dataframe().reset_index()

data = gt.Dataset({"buoys": seen}, target=["buoys.u", "buoys.v"], units={"buoys": "m/s"})
train, val, test = data.split(time=["2001-01-14", "2001-01-17"], hold_out_stations=0.25)
recipe = replace(gt.recipe("quick"), steps=60)
model = gt.GriddedTNP.for_data(train, quiet=True).fit(train, val, recipe=recipe, quiet=True)
for sentence in model.evaluate(test, baselines=["idw", "kriging"]).summaries():
    print(sentence)

# %% [markdown]
# Streamlines show what neither component shows alone: the lows, and the jet between them. Colours
# are the speed of the mean wind, and of the true one.

# %%
time = "2001-01-19T12:00"
grid = gt.latlon_grid(lat=(14, 61), lon=(140, 240), step=0.5)
field = model.predict(test.at(time), at=grid)
truth = wind.sel(time=time).interp(lat=grid["lat"], lon=grid["lon"])
flows = {
    "observed": None,
    "predicted": (field["u_mean"], field["v_mean"]),
    "truth": (truth["u"], truth["v"]),
}
figure = Figure((13, 3.4), layout="constrained")
axes = figure.subplots(1, 3, sharey=True)
now = seen[seen["time"] == time]
for ax, (title, flow) in zip(axes, flows.items(), strict=True):
    for lon, lat in (ring.T for ring in gt.demo.coastline()):
        ax.fill(lon, lat, lon + 360, lat, color="0.85", zorder=0)
    ax.set(title=title, xlim=(140, 240), ylim=(14, 61), aspect=1 / np.cos(np.deg2rad(38)))
    ax.set(xlabel="longitude (°E)", xticks=range(150, 240, 20))
    if flow is None:
        ax.quiver(now["lon"], now["lat"], now["u"], now["v"], scale=350, width=0.0035)
        continue
    u, v = (part.to_numpy() for part in flow)
    x, y = grid["lon"].to_numpy(), grid["lat"].to_numpy()
    mesh = ax.pcolormesh(x, y, np.hypot(u, v), vmin=0, vmax=30, cmap="YlGnBu")
    ax.streamplot(x, y, u, v, color="0.2", density=1.3, linewidth=0.6, arrowsize=0.7)
axes[0].set_ylabel("latitude (°N)")
figure.colorbar(mesh, ax=axes, label="wind speed (m/s)", shrink=0.9, pad=0.01)
figure.savefig("winds.webp", dpi=150)
