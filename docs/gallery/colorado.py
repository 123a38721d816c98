# %% [markdown]
# # A temperature map from stations
#
# About two hundred stations in and around Colorado report the monthly mean of daily maximum
# temperature. We want it everywhere, at a resolution of 4 km, with an uncertainty that can be
# trusted. Elevation is known everywhere, and the model may use it.

# %%
from dataclasses import replace

import gridtnp as gt

stations, terrain = gt.demo.load()
data = gt.Dataset(
    {"stations": stations},
    target="stations.tmax",
    static={"elevation": terrain["elevation"]},
    features=["month"],
)
print(data)

# %% [markdown]
# Later years are the test, and a fifth of the stations is never shown to the model: neither in
# training nor as an observation to predict from.

# %%
train, val, test = data.split(time=["1990", "1994"], gap="31D", hold_out_stations=0.2)
recipe = replace(gt.recipe("quick"), steps=400)
model = gt.GriddedTNP.for_data(train, quiet=True).fit(train, val, recipe=recipe, quiet=True)

# %% [markdown]
# Kriging that knows elevation is hard to beat with so many stations. The network starts from it
# and learns to correct it.

# %%
scores = model.evaluate(test, baselines=["regression-kriging", "kriging", "idw"])
print(scores.summaries()[0])

# %% [markdown]
# The map of a month is a prediction at the points of the terrain. At held-out stations we can see
# its errors.

# %%
field = model.predict(test.at("1996-07-01"), at=terrain)
names = {"observed": "tmax", "model_mean": "tmax_mean"}
unseen = scores.predictions().rename(columns=names)  # the map selects its own month
figure = gt.plots.maps(field, "tmax", stations=unseen)
figure.savefig("colorado.webp", dpi=150)
