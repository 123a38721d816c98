"""`make demo`: a Swin-TNP and a CNP, trained for about a minute, beside the exact answer.

Functions are drawn from a Gaussian process; a model sees noisy values at 200 random places and
predicts those at 100 others. The process's own posterior is the best possible answer, so the table
tells how far each model is from it. Both models learn from the same functions in the same order.
Test functions come from a seed of their own, and all settings were chosen on a third.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor
from torch.distributions import Distribution, Normal

from gridtnp import Axis, Grid, ModelConfig, NeuralProcess, PointSet, Task, build_model
from gridtnp.config import CNPConfig, Embedded, Fourier, GriddedConfig, Neighbour, PseudoToken, Swin

TRAINING_SEED, TEST_SEED = 1, 2
BATCH, TEST_BATCH = 4, 32


@dataclass(frozen=True)
class GaussianProcess:
    """Smooth random functions on the square [-1, 1]², seen with noise."""

    length_scale: float = 0.5
    noise: float = 0.1
    context: int = 200
    targets: int = 100

    def draw(self, generator: torch.Generator, batch: int) -> Task:
        """A batch of functions, each at random places of its own."""
        n, seen = self.context + self.targets, self.context
        x = 2 * torch.rand(batch, n, 2, generator=generator) - 1
        normal = torch.randn(batch, n, 1, generator=generator, dtype=torch.float64)
        y = (torch.linalg.cholesky(self.covariance(x)) @ normal).float()
        observations = PointSet(x[:, :seen], y[:, :seen])
        return Task({"observations": observations}, PointSet(x[:, seen:], y[:, seen:]))

    def posterior(self, task: Task) -> Normal:
        """The exact answer at every target, in double precision."""
        observations, seen = task.context["observations"], self.context
        assert observations.y is not None
        covariance = self.covariance(torch.cat([observations.x, task.target.x], 1))
        root = torch.linalg.cholesky(covariance[:, :seen, :seen])
        across = torch.linalg.solve_triangular(root, covariance[:, :seen, seen:], upper=False)
        values = torch.linalg.solve_triangular(root, observations.y.double(), upper=False)
        variance = 1 + self.noise**2 - across.square().sum(1).unsqueeze(-1)
        return Normal(across.mT @ values, variance.sqrt())

    def covariance(self, x: Tensor) -> Tensor:
        """Of noisy values at `x`: the squared-exponential kernel, and noise on the diagonal."""
        x = x.double() / self.length_scale
        squares = x.square().sum(-1, keepdim=True)
        covariance = torch.baddbmm(-0.5 * (squares + squares.mT), x, x.mT).exp()
        covariance.diagonal(dim1=1, dim2=2).add_(self.noise**2)
        return covariance


def configurations() -> dict[str, ModelConfig]:
    """The two models by name."""
    axes = ("x1", "x2")
    swin = GriddedConfig(
        grid=Grid(tuple(Axis.cells(name, -1.0, 1.0, 8) for name in axes)),
        grid_encoder=PseudoToken(),
        processor=Swin(layers=2, window=(4, 4)),
        decoder=Neighbour(neighbours=9),
    )

    def config(architecture: GriddedConfig | CNPConfig, dim: int, shortest: float) -> ModelConfig:
        waves = Fourier(of=axes, per_column=32, shortest=shortest, longest=4.0)
        return ModelConfig(
            coordinates=axes,
            sources={"observations": 1},
            tokens=Embedded(embedding=(waves,)),
            architecture=architecture,
            dim=dim,
            heads=4,
        )

    return {
        "CNP": config(CNPConfig(), dim=128, shortest=1.0),
        "Swin-TNP": config(swin, dim=64, shortest=0.5),
    }


def train(model: NeuralProcess, tasks: Sequence[Task]) -> Iterator[float]:
    """AdamW with warm-up and cosine decay, one step per batch. Yields the recent mean loss."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4, fused=True)
    steps, warm_up = len(tasks), max(1, len(tasks) // 10)

    def rate(step: int) -> float:
        rest = (step - warm_up) / max(1, steps - warm_up)
        return min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * max(0.0, rest))))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    recent = math.nan
    for task in tasks:
        loss = model.loss(task)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimiser.step()
        schedule.step()
        recent = loss.item() if math.isnan(recent) else 0.98 * recent + 0.02 * loss.item()
        yield recent


def train_all(
    models: Mapping[str, NeuralProcess], process: GaussianProcess, steps: int, console: Console
) -> dict[str, int]:
    """Draw the functions, then train one model after the other.

    Returns the steps that each model took: fewer than asked for after a Ctrl-C.
    """
    taken = dict.fromkeys(models, 0)
    live = console.is_interactive
    columns = (
        TextColumn("{task.description:9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, disable=not live) as progress:

        def reporter(name: str) -> Callable[[int, str], None]:
            bar = progress.add_task(name, total=steps, note="")

            def report(step: int, note: str) -> None:
                progress.update(bar, completed=step, note=note)
                if not live and (step % math.ceil(steps / 5) == 0 or step == steps):
                    console.print(f"{name:9} {step:5}/{steps}  {note}")

            return report

        try:
            tasks, report = [], reporter("drawing")
            generator = torch.Generator().manual_seed(TRAINING_SEED)
            for step in range(1, steps + 1):
                tasks.append(process.draw(generator, BATCH))
                report(step, f"batches of {BATCH} functions")
            for name, model in models.items():
                report = reporter(name)
                for step, loss in enumerate(train(model, tasks), 1):
                    taken[name] = step
                    report(step, f"loss {loss:6.3f}")
        except KeyboardInterrupt:
            pass
    return taken


@torch.no_grad()
def score(predict: Callable[[Task], Distribution], tasks: Sequence[Task]) -> tuple[Tensor, float]:
    """The log-likelihood per target of every function, and the RMSE over all targets."""
    densities, errors = [], []
    for task in tasks:
        y, predicted = task.target.y, predict(task)
        assert y is not None
        densities.append(predicted.log_prob(y).double().mean((1, 2)))
        errors.append((predicted.mean - y).double().square().mean((1, 2)))
    return torch.cat(densities), torch.cat(errors).mean().sqrt().item()


def standard_error(values: Tensor) -> float:
    """Of the mean over functions."""
    return (values.std() / math.sqrt(len(values))).item()


def compare(
    models: Mapping[str, NeuralProcess], process: GaussianProcess, batches: int
) -> tuple[Table, str, str]:
    """All models and the exact answer on test functions: a table, a verdict and the gaps."""
    generator = torch.Generator().manual_seed(TEST_SEED)
    tests = [process.draw(generator, TEST_BATCH) for _ in range(batches)]
    best, best_rmse = score(process.posterior, tests)

    def pm(values: Tensor) -> str:
        return f"{values.mean():.3f} ± {standard_error(values):.3f}"

    table = Table(title=f"{len(best)} test functions that no model has seen")
    table.add_column("model")
    for heading in ("parameters", "log-likelihood\nper target", "gap to exact\n(nats)", "RMSE"):
        table.add_column(heading, justify="right")
    densities = {}
    for name, model in models.items():
        densities[name], rmse = score(model.eval(), tests)
        size = sum(p.numel() for p in model.parameters())
        gap = pm(best - densities[name])
        table.add_row(name, f"{size:,}", pm(densities[name]), gap, f"{rmse:.3f}")
    table.add_section()
    table.add_row("exact posterior", "", pm(best), "0", f"{best_rmse:.3f}")

    ahead = densities["Swin-TNP"] - densities["CNP"]
    better = "the Swin-TNP predicts better" if ahead.mean() > 0 else "the CNP predicts better"
    if ahead.mean().abs().item() < 2 * standard_error(ahead):
        better = "neither model predicts clearly better"
    gaps = [f"the {name} is {(best - d).mean():.2f}" for name, d in densities.items()]
    return table, better, f"{' and '.join(gaps)} nats per target short of the exact answer"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, test, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500, help="training steps of each model")
    parser.add_argument("--quick", action="store_true", help="only see that it runs, in seconds")
    options = parser.parse_args(arguments)
    steps, test_batches = (10, 1) if options.quick else (options.steps, 16)
    torch.set_num_threads(1)  # the work is small; threads that wait for each other cost more
    console, process = Console(highlight=False), GaussianProcess()
    models: dict[str, NeuralProcess] = {}
    for name, config in configurations().items():
        torch.manual_seed(0)
        models[name] = build_model(config)

    console.print(
        f"Random smooth functions on [-1, 1]², length-scale {process.length_scale}, noise "
        f"{process.noise}.\nEach model sees {process.context} values of a function and predicts "
        f"{process.targets} others;\nboth learn from the same {steps * BATCH:,} functions. "
        "Ctrl-C stops early.\n",
        markup=False,
    )
    taken = train_all(models, process, steps, console)
    table, verdict, gaps = compare(models, process, test_batches)
    console.print("\n", table, "\n", sep="", end="")
    finding = f"After the same {steps} training steps, {verdict}: {gaps}"
    if min(taken.values()) < steps:  # the models cannot be compared
        done = ", ".join(f"{name} {n}" for name, n in taken.items())
        finding = f"Training was stopped early (steps taken of {steps}: {done}): {gaps}"
    console.print(
        f"{finding}; to go on, README.md shows how to use the library with your own data and docs/ "
        "explains how its models are built.",
        markup=False,
    )


if __name__ == "__main__":
    main()
