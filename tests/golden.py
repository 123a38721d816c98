"""Golden numbers: what every preset and a short `fit` compute with seeded weights.

`python tests/golden.py FILE` writes them. With `--checksums` they come with a checksum of every
tensor behind them: two runs on one machine with one thread agree bit for bit. Between machines the
numbers agree to rounding.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gridtnp as gt

CONTEXT, TARGETS = 200, 60
"""Points of each context set, and targets."""
HEAVY = 24
"""Fewer points for presets that sum over the whole grid for each of them."""


def preset_numbers(name: str, *, double: bool = False) -> dict[str, Any]:
    """Prediction, loss and gradients of one preset on random observations."""
    config = gt.preset(name)
    torch.manual_seed(1)
    network = gt.build_model(config)
    generator = torch.Generator().manual_seed(2)
    few = "convcnp" in name and not name.startswith("gp/")
    n, m = (HEAVY, HEAVY) if few else (CONTEXT, TARGETS)
    context = {s: _points(config, n, d, generator) for s, d in config.sources.items()}
    task = gt.Task(context, _points(config, m, config.dim_y, generator))
    if double:
        network = network.double()
        task = gt.Task({s: _double(p) for s, p in task.context.items()}, _double(task.target))
    prediction = network(task)
    loss = network.loss(task)
    loss.backward()
    tensors = [prediction.mean.detach(), prediction.stddev.detach(), loss.detach()]
    tensors += [p.grad for p in network.parameters() if p.grad is not None]
    return {
        "mean": prediction.mean.double().mean().item(),
        "std": prediction.stddev.double().mean().item(),
        "loss": loss.item(),
        "gradient": float(sum(t.double().square().sum() for t in tensors[3:]) ** 0.5),
        "sha256": digest(tensors),
    }


def _points(config: gt.ModelConfig, n: int, dim_y: int, generator: torch.Generator) -> gt.PointSet:
    spans = {"lat": (26.0, 48.0), "lon": (-120.0, -70.0), "time": (0.0, 3.0)}
    columns = []
    for name in config.coordinates:
        low, high = spans.get(name, (-5.5, 5.5))
        columns.append(low + (high - low) * torch.rand(1, n, generator=generator))
    x, y = torch.stack(columns, -1), torch.randn(1, n, dim_y, generator=generator)
    features = None
    if config.features:
        features = 4e5 + 100 * torch.rand(1, n, len(config.features), generator=generator).double()
    return gt.PointSet(x, y, None, features)


def _double(points: gt.PointSet) -> gt.PointSet:
    assert points.y is not None
    return replace(points, x=points.x.double(), y=points.y.double())


def fit_numbers() -> dict[str, Any]:
    """Twenty steps on the demo data, then scores, a map and samples."""
    stations, terrain = gt.demo.load()
    data = gt.Dataset(
        {"stations": stations[stations["time"] >= "1960"]},
        target="stations.tmax",
        static={"elevation": terrain["elevation"]},
        features=["month"],
    )
    train, val, test = data.split(time=["1990", "1994"], gap="31D", hold_out_stations=0.2)
    lat = gt.Axis("lat", 36.734975, 0.6441499999999998, 8)
    lon = gt.Axis("lon", -109.301665409137, 0.7366667256000005, 12)
    parts = {"grid": gt.Grid((lat, lon), "sphere"), "window": (4, 4), "neighbours": (3, 3)}
    model = gt.GriddedTNP.for_data(
        train, dim=16, heads=2, layers=1, prior="none", quiet=True, **parts
    )
    recipe = gt.Recipe(20, 4, 5e-3, "cosine", optimiser="muon", ema=0.9, validate_every=10)
    model.fit(train, val, recipe=recipe, quiet=True)
    return use_numbers(model, test, terrain)


def use_numbers(model: gt.GriddedTNP, test: gt.Dataset, terrain: Any) -> dict[str, Any]:
    """Scores, a map and samples of a fitted model."""
    scores = model.evaluate(test, (), limit=6)
    places = terrain.isel(lat=slice(None, None, 8), lon=slice(None, None, 8))
    field = model.predict(test.at("1996-07-01"), at=places, progress=False)
    sample = model.sample(2, test.at("1996-07-01"), at=places, subset=8, progress=False)
    crps = scores.to_dataframe()["crps"]
    arrays = [field[f"tmax_{what}"] for what in ("mean", "std", "support")] + [sample["tmax"], crps]
    return {
        "crps": float(crps.iloc[0]),
        "map": float(field["tmax_mean"].mean()),
        "std": float(field["tmax_std"].mean()),
        "samples": float(sample["tmax"].mean()),
        "sha256": digest(torch.as_tensor(np.array(a)) for a in arrays),
    }


def digest(tensors: Iterable[Tensor]) -> str:
    """Of the bytes of all tensors."""
    found = hashlib.sha256()
    for t in tensors:
        found.update(t.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def main(path: str, *options: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {name: preset_numbers(name) for name in gt.PRESETS}
    found["fit"] = fit_numbers()
    if "--checksums" not in options:
        for numbers in found.values():
            del numbers["sha256"]
    Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
