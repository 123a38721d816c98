# %% [markdown]
# # A satellite's swath
#
# A polar orbiter sees a band of the earth on every revolution, and gaps remain between the bands.
# We simulate its orbit, take the surface temperature of the simulated weather where it looks, and
# fill in the rest of the globe. The model's grid is periodic in longitude, and distances are those
# on a sphere, so that nothing happens at the date line or at the poles.

# %%
from dataclasses import replace

import numpy as np
import pandas as pd

import gridtnp as gt

rng = np.random.default_rng(0)
weather, _ = gt.demo.weather()
surface = weather["skt"].pad(lon=1, mode="wrap")
surface = surface.assign_coords(lon=np.arange(-3.75, 361, 3.75))


def swath(time: pd.Timestamp, minutes: float = 360) -> pd.DataFrame:
    """Footprints of the six hours before a time: 7 across the track, every 72 seconds."""
    start = (time - pd.Timestamp("2001-01-01")) / pd.Timedelta("1min") - minutes
    t = start + np.arange(0, minutes, 1.2)[:, None]
    angle = np.deg2rad(np.linspace(-9, 9, 7))  # across the track
    along, tilt = 2 * np.pi * t / 101.0, np.deg2rad(98.7)  # period in minutes, inclination
    x, y = np.cos(along) * np.cos(angle), np.sin(along) * np.cos(angle)
    z = np.sin(angle) + 0 * t
    y, z = y * np.cos(tilt) - z * np.sin(tilt), y * np.sin(tilt) + z * np.cos(tilt)
    lat, lon = np.rad2deg(np.arcsin(z)), np.rad2deg(np.arctan2(y, x)) - 0.25 * t
    place = pd.DataFrame({"lat": lat.ravel(), "lon": lon.ravel() % 360})
    at = place.to_xarray()
    field = surface.sel(time=time).interp(lat=at["lat"].clip(-87, 87), lon=at["lon"])
    return place.assign(time=time, skt=field.to_numpy() + rng.normal(0, 0.5, len(place)))


# %% [markdown]
# One overpass every six hours. Clouds hide a third of what it sees, in patches.

# %%
passes = []
for time in pd.DatetimeIndex(weather["time"].values):
    seen = swath(time)
    clouds = np.sin(seen["lat"] / 9 + time.day) * np.sin(seen["lon"] / 13 + time.hour) < 0.35
    passes.append(seen[clouds])
seen = pd.concat(passes, ignore_index=True)
data = gt.Dataset(
    {"satellite": seen},
    target="satellite.skt",
    static={"land": weather["land"], "elevation": weather["elevation"]},
    units={"satellite.skt": "K"},
)
train, val, test = data.split(time=["2001-01-15", "2001-01-18"])
recipe = replace(gt.recipe("quick"), steps=60)
model = gt.GriddedTNP.for_data(train, quiet=True)

# %% [markdown]
# If context were drawn at random, every target would have a footprint next to it. We want to fill
# gaps, so tasks have gaps: all footprints within 12° of a random place are targets.

# %%
gaps = {"satellite": gt.Gap(radius=12)}
model.fit(train, val, recipe=recipe, selection=gaps, quiet=True)

# %%
time = pd.Timestamp("2001-01-20T12:00")
grid = gt.latlon_grid(lat=(-84, 84), lon=(-178, 180), step=2.0)
static = weather[["land", "elevation"]].interp(lat=grid["lat"], lon=grid["lon"] % 360)
places = grid.assign(static.assign_coords(lon=grid["lon"]))
fill = model.predict(test.at(time), at=places)
nearby = gt.baseline("idw", train, like=model).predict(test.at(time), at=places)
truth = surface.sel(time=time).interp(lat=grid["lat"], lon=grid["lon"] % 360)
truth = truth.assign_coords(lon=grid["lon"])
gap = fill["skt_support"] > 500  # km to the nearest footprint
for name, guess in {"inverse distance": nearby, "gridtnp": fill}.items():
    error = ((guess["skt_mean"] - truth) ** 2).where(gap).weighted(np.cos(np.deg2rad(grid["lat"])))
    print(f"{name:<17} RMSE {float(np.sqrt(error.mean())):.1f} K in the gaps")
figure = gt.plots.fields(
    {"seen": truth.where(False), "filled": fill["skt_mean"], "truth": truth},
    points={"seen": seen[seen["time"] == time]},
    column="skt",
    colours="inferno",
)
figure.savefig("swath.webp", dpi=150)
