"""Does a network recover known distributions? One network per likelihood, beside the exact answer.

Tasks are drawn from a latent Gaussian process on a line (`gridtnp.synthetic.latent`): the context
holds latent values, and targets have a distribution of the likelihood's kind whose parameters
depend on the latent value. The gap is the mean log-likelihood of the exact answer (by quadrature
over the latent posterior) minus that of the network, on tasks that training never saw. Part of it
no network can avoid: a mixture of, say, Poisson variables is not a Poisson variable.

Training is limited by processor time (`--minutes` of one core), so that a busy machine changes
nothing. A run that is stopped continues where it was; likelihoods with a result are left out.
Results go to `experiments/results/recovery`.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gridtnp.config import (
    Cell,
    Embedded,
    GriddedConfig,
    Likelihood,
    ModelConfig,
    Neighbour,
    PseudoToken,
    Swin,
)
from gridtnp.distributions.kinds import COMPONENTS
from gridtnp.files import write_text
from gridtnp.grid import Axis, Grid
from gridtnp.network.build import build_model
from gridtnp.network.model import NeuralProcess
from gridtnp.recipes import Recipe
from gridtnp.synthetic.covariances import SquaredExponential
from gridtnp.synthetic.latent import OBSERVATIONS, LatentTasks
from gridtnp.synthetic.processes import SOURCE, GaussianProcess
from gridtnp.task import Task
from gridtnp.tasks.prefetch import prefetch
from gridtnp.training.loop import Progress, train

RESULTS, RUNS = Path("experiments/results/recovery"), Path("runs/recovery")
TRAINING_SEED, TEST_SEED = 1, 3
BATCH, TESTS = 8, 64
"""Tasks per step, and batches of test tasks."""
LENGTH, HALF, CELLS = 0.5, 2.0, 16
BAR = 0.05
"""Nats that a network may be worse than the exact answer."""


def tasks(kind: str) -> LatentTasks:
    process = GaussianProcess(
        box=((-HALF, HALF),),
        context=(16, 32),
        targets=32,
        noise=0.1,
        kernel=SquaredExponential(LENGTH),
    )
    return LatentTasks(process, OBSERVATIONS[kind])


def configuration(kind: str, dim: int) -> ModelConfig:
    """A small gridded network on the line."""
    outputs = 2 if kind == "bivariate-gaussian" else 1
    size = 3 if kind == "categorical" else COMPONENTS.get(kind)
    likelihood = Likelihood.model_validate({"kind": kind, "components": size})
    grid = Grid((Axis.cells("x", -HALF, HALF, CELLS),))
    return ModelConfig(
        coordinates=("x",),
        sources={SOURCE: 1},
        dim_y=outputs,
        tokens=Embedded(embedding=(Cell(of=("x",), smooth=True),)),
        architecture=GriddedConfig(
            grid=grid,
            grid_encoder=PseudoToken(smooth=True),
            processor=Swin(layers=2, window=(8,)),
            decoder=Neighbour(neighbours=(5,), smooth=True),
            positions="relative",
        ),
        dim=dim,
        heads=4,
        likelihood=(likelihood,) * outputs,
    )


@torch.no_grad()
def gaps(model: NeuralProcess, made: LatentTasks) -> tuple[np.ndarray, np.ndarray]:
    """Log-likelihood per target of the network and of the exact answer, for every test batch."""
    own, exact = [], []
    for index in range(TESTS):
        batch = made.draw(TEST_SEED, index, BATCH)
        assert batch.task.target.y is not None
        own.append(model(batch.task).log_prob(batch.task.target.y).sum(-1).mean().item())
        exact.append(batch.log_density().mean().item())
    return np.array(own), np.array(exact)


def run(kind: str, minutes: float, dim: int) -> dict[str, Any]:
    """Train one network, or continue it, and score it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    made, model = tasks(kind), build_model(configuration(kind, dim))
    recipe = Recipe(
        steps=10_000,
        batch=BATCH,
        rate=5e-3,
        schedule="cosine",
        optimiser="muon",
        clip=1.0,
        minutes=minutes,
        threads=1,
    )

    def stream(start: int) -> Iterator[Task]:
        return prefetch(lambda i: made.draw(TRAINING_SEED, i, BATCH).task, start, workers=1)

    def report(p: Progress) -> None:
        spent = f"{p.seconds / 60:.1f} min"
        print(f"{kind}: step {p.step}, log-likelihood {-p.loss:.3f}, {spent}", flush=True)

    folder = RUNS / f"{kind}-{minutes:g}"
    folder.mkdir(parents=True, exist_ok=True)
    done = train(
        model,
        stream,
        recipe,
        folder,
        report=report,
        report_every=200,
        save_every=200,
        clock=time.process_time,
    )
    own, exact = gaps(model.eval(), made)
    difference = exact - own
    return {
        "likelihood": kind,
        "gap": float(difference.mean()),
        "standard_error": float(difference.std() / len(difference) ** 0.5),
        "log_likelihood": float(own.mean()),
        "exact": float(exact.mean()),
        "within_bar": bool(difference.mean() <= BAR),
        "processor_minutes": round(done.seconds / 60, 2),
        "steps": done.step,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", choices=list(OBSERVATIONS), help="default: all")
    parser.add_argument("--minutes", type=float, default=20.0, help="processor time of each")
    parser.add_argument("--dim", type=int, default=32, help="width of the network")
    options = parser.parse_args()
    if not 0 < options.minutes <= 20:
        parser.error(f"--minutes {options.minutes:g}: must be more than 0 and at most 20.")
    for kind in options.only or OBSERVATIONS:
        path = RESULTS / f"{kind}.json"
        if path.exists():
            print(f"{kind}: has a result already, {path}")
            continue
        found = run(kind, options.minutes, options.dim)
        git = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
        origin = {"commit": git.stdout.strip(), "machine": f"{platform.machine()} 1 core"}
        write_text(path, json.dumps(found | origin, indent=1) + "\n")
        print(f"{kind}: {found['gap']:.3f} nats from the exact answer; wrote {path}", flush=True)


if __name__ == "__main__":
    main()
