# %% [markdown]
# # Training with several processes
#
# The same script under `torchrun` trains with all processes. Each takes its share of every batch,
# and the result is that of one process up to rounding. On a cluster, only the command changes:
# [training](../training.md) has it.

# %%
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import gridtnp as gt

SCRIPT = """
import sys
import gridtnp as gt

stations, terrain = gt.demo.load()
stations = stations[stations["time"] >= "1985"]
data = gt.Dataset(
    {"stations": stations},
    target="stations.tmin",
    static={"elevation": terrain["elevation"]},
    features=["month"],
)
train, val, test = data.split(time=["1992", "1994"], gap="31D", hold_out_stations=0.2)
recipe = gt.Recipe(steps=60, batch=4, rate=3e-3, schedule="cosine", validate_every=10)
model = gt.GriddedTNP.for_data(train, prior="none", quiet=True)
model.fit(train, val, recipe=recipe, out=sys.argv[1], quiet=True)
"""

# %% [markdown]
# Once alone, once with two processes on this machine. `prior="none"` leaves all to the network, so
# that there is something to learn.

# %%
folder = Path(tempfile.mkdtemp())
(folder / "train.py").write_text(SCRIPT)
curves = {}
for number in (1, 2):
    run = folder / f"run-{number}"
    launch = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={number}"]
    command = [*launch, "--master-port=0", folder / "train.py", run]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, env=one_thread)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curves[number] = {line["step"]: line["val"] for line in lines if "val" in line}

# %%
stations, terrain = gt.demo.load()
month = stations.loc[stations["time"] == "1996-01-01"].drop(columns=["tmax", "precipitation"])
models = [gt.GriddedTNP.load(folder / f"run-{number}") for number in curves]
fields = [
    model.predict({"stations": month}, at=terrain, static={"elevation": terrain["elevation"]})
    for model in models
]
apart = float(np.abs(fields[0]["tmin_mean"] - fields[1]["tmin_mean"]).max())
print(f"the two maps differ by at most {apart:.4f} °C")

figure = Figure((11, 3.6), layout="constrained")
left, right = figure.subplots(1, 2)
for number, curve in curves.items():
    label = "one process" if number == 1 else "two processes"
    left.plot(curve.keys(), curve.values(), "-" if number == 1 else "o", label=label)
left.set(xlabel="step", ylabel="log-likelihood of the validation part")
left.legend(frameon=False)
left.spines[["top", "right"]].set_visible(False)
field = fields[1]["tmin_mean"]
mesh = right.pcolormesh(field["lon"], field["lat"], field, rasterized=True)
right.scatter(month["lon"], month["lat"], 6, "white", edgecolors="black", linewidths=0.4)
right.set(title="minimum temperature, January 1996", aspect=1 / np.cos(np.deg2rad(39)))
figure.colorbar(mesh, ax=right, label="°C")
figure.savefig("processes.webp", dpi=150)
