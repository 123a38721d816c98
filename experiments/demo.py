"""`make demo`: a Swin-TNP and a CNP, trained for about a minute, beside the exact answer.

The task is one whose best possible answer is known. Functions are drawn from a Gaussian process, a
model sees noisy values at 200 random places and predicts those at 100 others. The posterior of that
process is the exact answer, so the table shows how much each model still has to learn, in nats.

Both models learn from the same tasks in the same order. Test tasks come from a seed of their own;
all settings were chosen on a third.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from torch import Tensor
from torch.distributions import Distribution, Normal

from gridtnp import Axis, Grid, ModelConfig, NeuralProcess, PointSet, Task, build_model
from gridtnp.config import CNPConfig, Embedded, Fourier, GriddedConfig, Neighbour, PseudoToken, Swin

TRAINING_SEED, TEST_SEED = 1, 2
BATCH = 4
LEARNING_RATE = 4e-3
Predict = Callable[[Task], Distribution]


@dataclass(frozen=True)
class GaussianProcess:
    """Smooth random functions on the square [-1, 1]², seen with noise."""

    length_scale: float = 0.5
    noise: float = 0.1
    context: int = 200
    targets: int = 100

    def tasks(self, generator: torch.Generator, batch: int) -> Task:
        """A batch of functions, each at random places of its own."""
        n = self.context + self.targets
        x = 2 * torch.rand(batch, n, 2, generator=generator) - 1
        normal = torch.randn(batch, n, 1, generator=generator, dtype=torch.float64)
        y = (torch.linalg.cholesky(self.covariance(x)) @ normal).float()
        seen, asked = slice(None, self.context), slice(self.context, None)
        return Task(
            {"observations": PointSet(x[:, seen], y[:, seen])}, PointSet(x[:, asked], y[:, asked])
        )

    def posterior(self, task: Task) -> Normal:
        """The exact answer at every target, in double precision."""
        seen, n = task.context["observations"], self.context
        assert seen.y is not None
        covariance = self.covariance(torch.cat([seen.x, task.target.x], 1))
        root = torch.linalg.cholesky(covariance[:, :n, :n])
        across = torch.linalg.solve_triangular(root, covariance[:, :n, n:], upper=False)
        values = torch.linalg.solve_triangular(root, seen.y.double(), upper=False)
        prior = 1 + self.noise**2
        variance = prior - across.square().sum(1).unsqueeze(-1)
        return Normal(across.mT @ values, variance.sqrt())

    def covariance(self, x: Tensor) -> Tensor:
        """Of noisy values at `x`: the squared-exponential kernel, and noise on the diagonal."""
        x = x.double() / self.length_scale
        noise = self.noise**2 * torch.eye(x.shape[1], dtype=torch.float64)
        return torch.exp(-0.5 * torch.cdist(x, x).square()) + noise


def configurations() -> dict[str, ModelConfig]:
    """The two models by name; everything else about them is the library's business."""
    axes = ("x1", "x2")

    def config(architecture: GriddedConfig | CNPConfig, dim: int) -> ModelConfig:
        waves = Fourier(of=axes, per_column=32, shortest=0.5, longest=4.0)
        return ModelConfig(
            coordinates=axes,
            sources={"observations": 1},
            tokens=Embedded(embedding=(waves,)),
            architecture=architecture,
            dim=dim,
            heads=4,
        )

    swin = GriddedConfig(
        grid=Grid(tuple(Axis.cells(name, -1.0, 1.0, 8) for name in axes)),
        grid_encoder=PseudoToken(),
        processor=Swin(layers=2, window=(4, 4)),
        decoder=Neighbour(neighbours=9),
    )
    return {
        "CNP": config(CNPConfig(encoder_layers=2, decoder_layers=2), dim=128),
        "Swin-TNP": config(swin, dim=64),
    }


def train(model: NeuralProcess, tasks: Sequence[Task]) -> Iterator[float]:
    """AdamW with warm-up and cosine decay, one step per task. Yields the recent mean loss."""
    optimiser = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=1e-4, fused=True)
    steps, warm_up = len(tasks), max(1, len(tasks) // 10)

    def rate(step: int) -> float:
        rest = (step - warm_up) / max(1, steps - warm_up)
        return min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * max(0.0, rest))))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    recent = None
    for task in tasks:
        loss = model.loss(task)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimiser.step()
        schedule.step()
        recent = loss.item() if recent is None else 0.98 * recent + 0.02 * loss.item()
        yield recent


def train_all(
    models: Mapping[str, NeuralProcess], process: GaussianProcess, steps: int, console: Console
) -> dict[str, int]:
    """Draw the tasks, then train one model after the other.

    Returns the steps each model took: fewer than asked for after a Ctrl-C.
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
                    console.print(f"{name:9} {step:5}/{steps}  {note}".rstrip())

            return report

        try:
            tasks, report = [], reporter("drawing")
            generator = torch.Generator().manual_seed(TRAINING_SEED)
            for step in range(1, steps + 1):
                tasks.append(process.tasks(generator, BATCH))
                report(step, "")
            for name, model in models.items():
                report = reporter(name)
                for step, loss in enumerate(train(model, tasks), 1):
                    taken[name] = step
                    report(step, f"loss {loss:6.3f}")
        except KeyboardInterrupt:
            pass
    return taken


@dataclass(frozen=True)
class Score:
    """Log-likelihood per target, task by task, and the error of the mean over all targets."""

    log_likelihood: Tensor
    rmse: float


@torch.no_grad()
def score(predict: Predict, tasks: Sequence[Task]) -> Score:
    """How well the predictions describe the targets' values."""
    density, error = [], []
    for task in tasks:
        y, predicted = task.target.y, predict(task)
        assert y is not None
        density.append(predicted.log_prob(y).double().mean((1, 2)))
        error.append((predicted.mean - y).double().square().mean((1, 2)))
    return Score(torch.cat(density), torch.cat(error).mean().sqrt().item())


def with_error(values: Tensor) -> str:
    """Mean and standard error over tasks."""
    return f"{values.mean():.3f} ± {values.std() / math.sqrt(len(values)):.3f}"


def conclusion(exact: Score, cnp: Score, swin: Score, early: bool) -> str:
    """The table in a sentence, and where to go on."""
    gaps = [(exact.log_likelihood - s.log_likelihood).mean().item() for s in (swin, cnp)]
    apart = swin.log_likelihood - cnp.log_likelihood
    certain = apart.mean().abs() > 2 * apart.std() / math.sqrt(len(apart))
    closer = "the Swin-TNP" if apart.mean() > 0 else "the CNP"
    verdict = f"{closer} predicts better" if certain else "neither predicts clearly better"
    return (
        f"{'With training cut short' if early else 'After the same training'}, {verdict}: per "
        f"target, the Swin-TNP is {gaps[0]:.2f} nats short of the best possible prediction and the "
        f"CNP {gaps[1]:.2f}. To go on, README.md shows how to use the library on data of your own "
        "and docs/ explains how the models are built."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, test, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=1500, help="training steps of each model")
    parser.add_argument(
        "--quick", action="store_true", help="a few steps only, to see that it runs"
    )
    options = parser.parse_args(arguments)
    steps, test_batches = (10, 1) if options.quick else (options.steps, 16)
    torch.set_num_threads(1)  # the work is small; threads that wait for each other cost more
    console = Console(highlight=False)
    process = GaussianProcess()

    models: dict[str, NeuralProcess] = {}
    for name, config in configurations().items():
        torch.manual_seed(0)
        models[name] = build_model(config)
    console.print(
        f"Random smooth functions (length-scale {process.length_scale}) on [-1, 1]², noise "
        f"{process.noise}:\n{process.context} observations, {process.targets} targets. Each model "
        f"trains on the same {steps * BATCH:,} functions.\nCtrl-C stops early.\n",
        markup=False,
    )
    taken = train_all(models, process, steps, console)
    early = min(taken.values()) < steps
    if early:
        done = ", ".join(f"{name} took {n}" for name, n in taken.items())
        console.print(f"\nStopped early: of {steps} steps, {done}.")

    generator = torch.Generator().manual_seed(TEST_SEED)
    tests = [process.tasks(generator, 32) for _ in range(test_batches)]
    exact = score(process.posterior, tests)
    scores = {name: score(model.eval(), tests) for name, model in models.items()}

    table = Table(title=f"{32 * test_batches} test functions that no model has seen")
    table.add_column("")
    for heading in ("parameters", "log-likelihood\nper target", "gap to exact\nin nats", "RMSE"):
        table.add_column(heading, justify="right")
    for name, model in models.items():
        got = scores[name]
        gap = with_error(exact.log_likelihood - got.log_likelihood)
        size = f"{sum(p.numel() for p in model.parameters()):,}"
        label = name if taken[name] else f"{name} (untrained)"
        table.add_row(label, size, with_error(got.log_likelihood), gap, f"{got.rmse:.3f}")
    table.add_section()
    table.add_row("exact posterior", "", with_error(exact.log_likelihood), "0", f"{exact.rmse:.3f}")
    console.print()
    console.print(table)
    console.print("\n" + conclusion(exact, scores["CNP"], scores["Swin-TNP"], early), markup=False)


if __name__ == "__main__":
    main()
