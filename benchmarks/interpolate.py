"""`gt.interpolate` beside a Gaussian process that is fitted to the same observations, in turns.

    python benchmarks/interpolate.py [--repeats 3]

The Gaussian process is exact (Matérn 3/2) with constants fitted by maximum likelihood. Also 10^5
observations and 10^6 targets, with the memory that this takes beyond what was in use before.
Results are merged into `interpolate.json` in the folder of `benchmarks/results` for this processor.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import torch
from run import folder, write

import gridtnp as gt
from gridtnp.pretrain.fields import SOURCE, FieldPrior, draw_at
from gridtnp.pretrain.reference import FittedProcess

SEED = 5
"""Of the fields: none that the model was trained, validated or tested on."""


def field(n: int, m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A random field at n places, and m places to predict it at."""
    context = draw_at(FieldPrior("Matérn 3/2"), (SEED, n), 1, n, 1).task.context[SOURCE]
    assert context.y is not None
    x, y = context.x[0].double().numpy(), context.y[0, :, 0].double().numpy()
    return x, y, np.random.default_rng(SEED).uniform(x.min(0), x.max(0), (m, 2))


def waves(n: int, m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A sum of waves with noise, for numbers of places at which no field can be drawn."""
    rng = np.random.default_rng(SEED)
    x, at = rng.random((n, 2)) * n**0.5, rng.random((m, 2)) * n**0.5
    return x, np.sin(x[:, 0] / 9) * np.cos(x[:, 1] / 7) + 0.1 * rng.normal(size=n), at


class Clock:
    """Seconds of the clock and of the processor since it was made."""

    def __init__(self) -> None:
        self.start = np.array([time.perf_counter(), time.process_time()])

    def read(self) -> np.ndarray:
        return np.array([time.perf_counter(), time.process_time()]) - self.start


def beside_a_fitted_process(n: int, m: int, repeats: int) -> dict[str, object]:
    """Median seconds of both, in turns."""
    x, y, at = field(n, m)
    tensors = [torch.tensor(a) for a in (x, y, at)]
    own, other = [], []
    for _ in range(repeats):
        clock = Clock()
        gt.interpolate((x, y), at)
        own.append(clock.read())
        clock = Clock()
        FittedProcess.fit(tensors[0], tensors[1]).predict(tensors[2])
        other.append(clock.read())
    seconds = np.median([own, other], axis=1)
    wall, processor = seconds[1] / seconds[0]
    names = ("interpolate", "fitted process")
    return {
        "seconds": dict(zip(names, seconds[:, 0].tolist(), strict=True)),
        "ratio": float(wall),
        "processor_seconds": dict(zip(names, seconds[:, 1].tolist(), strict=True)),
        "processor_ratio": float(processor),
    }


def alone(n: int, m: int) -> dict[str, object]:
    """Seconds, the largest memory in use, and the error of the mean."""
    x, y, at = waves(n, m)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clock = Clock()
    found = gt.interpolate((x, y), at)
    seconds, processor = clock.read().tolist()
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert isinstance(found, dict)
    error = found["mean"] - np.sin(at[:, 0] / 9) * np.cos(at[:, 1] / 7)
    return {
        "seconds": {"interpolate": seconds},
        "processor_seconds": {"interpolate": processor},
        "megabytes": more / 1e3,
        "rmse": float(np.sqrt((error**2).mean())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=["fitted", "many"], default=["fitted", "many"])
    arguments = parser.parse_args()
    x, y, at = waves(100, 10)
    gt.interpolate((x, y), at)  # loads the weights
    if "many" in arguments.only:
        found = alone(100_000, 1_000_000)
        print(found, flush=True)
        write(f"{folder()}/interpolate.json", {"100000 observations, 1000000 targets": found})
    if "fitted" in arguments.only:
        found = beside_a_fitted_process(2_000, 10_000, arguments.repeats)
        print(found, flush=True)
        write(f"{folder()}/interpolate.json", {"2000 observations, 10000 targets": found})


if __name__ == "__main__":
    main()
