# %% [markdown]
# # Several processes
#
# Under `torchrun`, the same script trains with all processes: each takes its share of every batch,
# and the result is that of one process up to rounding. Predictions need no launcher at all: every
# process is told which part it is. On a cluster, only the commands change
# ([from laptop to cluster](../cluster.md)).

# %%
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

DATA = """
import sys
import gridtnp as gt

stations, terrain = gt.demo.load()
stations = stations[stations["time"] >= "1990"]
data = gt.Dataset(
    {"stations": stations},
    target="stations.tmin",
    static={"elevation": terrain["elevation"]},
    features=["month"],
)
train, val, test = data.split(time=["1995", "1997"], gap="31D", hold_out_stations=0.2)
"""
TRAIN = """
recipe = gt.Recipe(steps=200, batch=4, rate=3e-3, schedule="cosine", validate_every=10)
model = gt.GriddedTNP.for_data(train, dim=32, layers=1, prior="none", quiet=True)
model.fit(train, val, recipe=recipe, out=sys.argv[1], quiet=True)
"""
folder = Path(tempfile.mkdtemp())
(folder / "train.py").write_text(DATA + TRAIN)
one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}

# %% [markdown]
# Training once alone, once with two processes on this machine. `prior="none"` leaves all to the
# network, so that there is something to learn. The steps are the same up to rounding, which
# training amplifies in the end.

# %%
curves = {}
for number in (1, 2):
    run = folder / f"run-{number}"
    launch = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={number}"]
    command = [*launch, "--standalone", folder / "train.py", run]
    subprocess.run(command, check=True, capture_output=True, env=one_thread)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curves[number] = {line["step"]: line["validation"] for line in lines if "validation" in line}
for step in (10, 50, 200):
    one, two = (f"{curve.get(step, np.nan):.5f}" for curve in curves.values())
    print(f"log-likelihood after {step:>3} steps: {one} with one process, {two} with two")

# %% [markdown]
# Then two processes predict a map for every month of the test, each its part of the times, into one
# store. If one of them were killed, the same command would do what is missing.

# %%
PREDICT = """
model = gt.GriddedTNP.load(sys.argv[1])
part = (int(sys.argv[2]), 2)
model.predict(
    test, at=terrain, times=test.times(), to=sys.argv[3], part=part, regions={"time": 1}
)
"""
(folder / "predict.py").write_text(DATA + PREDICT)
store = folder / "maps.zarr"
command = [sys.executable, folder / "predict.py", folder / "run-2"]
parts = [subprocess.Popen([*command, str(i), store], env=one_thread) for i in range(2)]
assert [part.wait() for part in parts] == [0, 0]
maps = xr.open_zarr(store)
print(f"{maps.sizes['time']} maps of {maps['tmin_mean'][0].size:,} points")

# %%
figure = Figure((12, 3.4), layout="constrained")
left, *others = figure.subplots(1, 3)
for number, curve in curves.items():
    label = "one process" if number == 1 else "two processes"
    left.plot(curve.keys(), curve.values(), "-" if number == 1 else "o", label=label)
left.set(xlabel="step", ylabel="log-likelihood of the validation part")
left.legend(frameon=False)
left.spines[["top", "right"]].set_visible(False)
for number, (ax, month) in enumerate(zip(others, ("1997-03", "1997-12"), strict=True)):
    field = maps["tmin_mean"].sel(time=month)[0]
    mesh = ax.pcolormesh(field["lon"], field["lat"], field, rasterized=True)
    ax.set(title=f"{month}, process {number}", aspect=1 / np.cos(np.deg2rad(39)))
    ax.set(xlabel="longitude (°)", ylabel="latitude (°)")
    figure.colorbar(mesh, ax=ax, location="bottom", label="minimum temperature (°C)", aspect=35)
figure.savefig("processes.webp", dpi=150)
