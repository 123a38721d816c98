"""The price of smoothness: forward passes and training steps, smooth and not, in turns.

    python benchmarks/smooth.py [--repeats 40]

Models have the sizes of `GriddedTNP.for_data`; times are in ms, ratios are those of medians. The
results are merged into `benchmarks/results/smooth.json`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from cases import training_step
from run import write

import gridtnp as gt
from gridtnp.config import (
    Cell,
    Embedded,
    GriddedConfig,
    ModelConfig,
    Neighbour,
    PseudoToken,
    Raw,
    Swin,
)
from gridtnp.design.models import SIZES

CASES = {
    # size: rows and columns, stations, gridded points, targets
    "tiny": ((16, 16), 200, 0, 100),
    "tiny, a gridded source": ((16, 16), 200, 4_000, 100),
    "small": ((32, 32), 1_000, 0, 500),
    "small, a gridded source": ((32, 32), 1_000, 10_000, 500),
    "small, a map": ((32, 32), 1_000, 0, 20_000),
    "medium": ((64, 64), 4_000, 0, 2_000),
}


def case(name: str) -> tuple[ModelConfig, gt.Task]:
    """A configuration like that of `for_data`, and a task of four elements."""
    shape, stations, gridded, targets = CASES[name]
    scale = SIZES[name.split(",")[0]]
    axes = gt.Axis.cells("lat", 35.0, 45.0, shape[0]), gt.Axis.cells("lon", 0.0, 12.0, shape[1])
    sources = {"stations": 1} | ({"field": 1} if gridded else {})
    config = ModelConfig(
        coordinates=("lat", "lon"),
        features=("elevation",),
        sources=sources,
        tokens=Embedded(embedding=(Cell(of=("lat", "lon")), Raw(of=("elevation",)))),
        architecture=GriddedConfig(
            grid=gt.Grid(axes, "sphere"),
            grid_encoder=PseudoToken(),
            fusion="multi" if gridded else "single",
            processor=Swin(layers=scale.layers, window=(4, 4)),
            decoder=Neighbour(neighbours=9),
            positions="relative",
        ),
        dim=scale.dim,
        heads=scale.heads,
        min_noise=0.01,
    )

    def points(n: int) -> gt.PointSet:
        x = torch.tensor([35.0, 0.0]) + torch.tensor([10.0, 12.0]) * torch.rand(4, n, 2)
        return gt.PointSet(x, torch.randn(4, n, 1), None, torch.randn(4, n, 1))

    sizes = {"stations": stations, "field": gridded}
    return config, gt.Task({s: points(sizes[s]) for s in sources}, points(targets))


def smooth_like_for_data(config: ModelConfig) -> ModelConfig:
    """With hard encoders of gridded sources, whose points never move."""
    config = config.smooth()
    a = config.architecture
    assert isinstance(a, GriddedConfig)
    if a.fusion == "single":
        return config
    a = a.model_copy(update={"grid_encoder": PseudoToken(smooth=("stations",))})
    return ModelConfig.model_validate(dict(config) | {"architecture": a})


def in_turns(runs: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median milliseconds of each."""
    seconds: list[list[float]] = [[] for _ in runs]
    for i in range(repeats + 2):
        for run, found in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run()
            if i > 1:
                found.append(time.perf_counter() - start)
    return [1e3 * statistics.median(found) for found in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    print(
        f"{'':<26}{'forward':>10}{'smooth':>10}{'ratio':>8}{'step':>10}{'smooth':>10}{'ratio':>8}"
    )
    for name in CASES:
        if arguments.only not in name:
            continue
        torch.manual_seed(0)
        config, task = case(name)
        models = [gt.build_model(c) for c in (config, smooth_like_for_data(config))]
        with torch.no_grad():
            forward = in_turns([partial(m, task) for m in models], arguments.repeats)
        step = in_turns([training_step(m, task) for m in models], arguments.repeats)
        times = zip(("forward", "step"), (forward, step), strict=True)
        write(
            "smooth.json",
            {name: {what: {"ms": t, "ratio": t[1] / t[0]} for what, t in times}},
        )
        line = f"{name:<26}"
        for hard, smooth in (forward, step):
            line += f"{hard:>10.2f}{smooth:>10.2f}{smooth / hard:>8.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
