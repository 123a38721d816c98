# %% [markdown]
# # Rain, and the probability of much of it
#
# Precipitation is never negative, sometimes exactly zero, and now and then very large. A Gaussian
# knows none of this. The model chooses a distribution that does, from the values themselves.

# %%
from dataclasses import replace

import gridtnp as gt

stations, terrain = gt.demo.load()
columns = ["time", "station", "lat", "lon", "elevation", "precipitation"]
rain = stations.loc[stations["time"] >= "1970", columns].dropna()
data = gt.Dataset(
    {"stations": rain},
    target="stations.precipitation",
    static={"elevation": terrain["elevation"]},
    features=["month"],
    units={"stations.precipitation": "mm"},
)
train, val, test = data.split(time=["1990", "1994"], gap="31D", hold_out_stations=0.2)
recipe = replace(gt.recipe("quick"), steps=60)
model = gt.GriddedTNP.for_data(train, recipe=recipe)

# %% [markdown]
# `exceed=` asks for the probability of more than a threshold, in millimetres per month.

# %%
model.fit(train, val, recipe=recipe, quiet=True)
scores = model.evaluate(test, baselines=["regression-kriging"])
print(scores.summaries()[0])
print(scores.exceedance(50).round(3).to_string(index=False))

field = model.predict(test.at("1997-08-01"), at=terrain, exceed=[50, 100])
figure = gt.plots.maps(field, "precipitation")
figure.savefig("rain.webp", dpi=150)
