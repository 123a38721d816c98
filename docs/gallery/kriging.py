# %% [markdown]
# # Beside kriging and other baselines
#
# A map of a neural network says little if nobody knows what a simple method would have drawn. Every
# baseline that `evaluate` scores can also predict maps, in the same form as the model.

# %%
from dataclasses import replace

import gridtnp as gt

stations, terrain = gt.demo.load()
stations = stations[stations["time"] >= "1980"]
data = gt.Dataset(
    {"stations": stations},
    target="stations.tmin",
    static={"elevation": terrain["elevation"]},
    features=["month"],
)
train, val, test = data.split(time=["1990", "1994"], gap="31D", hold_out_stations=0.2)
recipe = replace(gt.recipe("quick"), steps=60)
model = gt.GriddedTNP.for_data(train, quiet=True).fit(train, val, recipe=recipe, quiet=True)

# %% [markdown]
# Scores at stations and months that nothing was fitted to. On cold nights, air pools in the
# valleys, and it is warmer above them: what elevation explains in summer fails in winter.

# %%
names = ["nearest", "kriging", "kriging-drift"]
print(model.evaluate(test, baselines=names))

# %% [markdown]
# After a minute of training, the advantage over kriging that knows elevation may be chance, and
# the 90 % intervals hold too few of these cold nights. That is what such a table is for. The maps
# show where the methods differ.

# %%
time = "1997-01-01"
panels = {
    name: gt.baseline(name, train, like=model).predict(test.at(time), at=terrain)["tmin_mean"]
    for name in ("nearest", "kriging", "kriging-drift")
}
panels["gridtnp"] = model.predict(test.at(time), at=terrain)["tmin_mean"]
figure = gt.plots.fields(panels)
figure.savefig("kriging.webp", dpi=150)
