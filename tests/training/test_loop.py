"""Training that survives a kill: bit for bit the same weights as without one."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fitting_cases import environment, wait_for

from gridtnp import Axis, Grid, ModelConfig, PointSet, Task, build_model
from gridtnp.config import Cell, Embedded, GriddedConfig, Neighbour, PseudoToken, Swin
from gridtnp.files import read_tensors
from gridtnp.network.model import NeuralProcess
from gridtnp.recipes import Recipe
from gridtnp.synthetic.covariances import SquaredExponential
from gridtnp.synthetic.processes import GaussianProcess, draw_at, stream
from gridtnp.training.checkpoints import weights_of
from gridtnp.training.distributed import SummedLoss
from gridtnp.training.loop import Progress, train
from gridtnp.training.trainer import Trainer

PROCESS = GaussianProcess(
    box=((-1.0, 1.0),) * 2, context=30, targets=20, kernel=SquaredExponential(0.5)
)


def model(dim: int = 8) -> NeuralProcess:
    grid = Grid(tuple(Axis.cells(name, -1.0, 1.0, 4) for name in ("x1", "x2")))
    torch.manual_seed(0)
    return build_model(
        ModelConfig(
            coordinates=("x1", "x2"),
            sources={"observations": 1},
            tokens=Embedded(embedding=(Cell(of=("x1", "x2")),)),
            architecture=GriddedConfig(
                grid=grid,
                grid_encoder=PseudoToken(),
                processor=Swin(layers=1, window=(2, 2)),
                decoder=Neighbour(neighbours=9),
                positions="relative",
            ),
            dim=dim,
            heads=2,
        )
    )


def tasks(start: int) -> Iterator[Task]:
    for draw in stream(PROCESS, seed=1, batch=2, start=start):
        yield draw.task


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return weights_of(read_tensors(folder / "checkpoint.safetensors")[0])


def test_training_learns(tmp_path: Path) -> None:
    losses: list[float] = []
    recipe = Recipe(120, 2, 1e-2, "cosine")
    train(model(), tasks, recipe, tmp_path, report=lambda p: losses.append(p.loss), report_every=40)
    assert losses[-1] < losses[0] - 0.05


def test_going_on_after_an_interruption_gives_the_same_weights(tmp_path: Path) -> None:
    recipe = Recipe(9, 2, 1e-2, "cosine")
    train(model(), tasks, recipe, tmp_path / "full")

    def interrupt(start: int) -> Iterator[Task]:
        for i, task in enumerate(tasks(start)):
            if i == 5:
                raise KeyboardInterrupt
            yield task

    with pytest.raises(KeyboardInterrupt):
        train(model(), interrupt, recipe, tmp_path / "halves", save_every=2)
    done = train(model(), tasks, recipe, tmp_path / "halves", save_every=2)
    assert done.step == 9
    full, halves = weights(tmp_path / "full"), weights(tmp_path / "halves")
    for name in full:
        torch.testing.assert_close(halves[name], full[name], rtol=0, atol=0)


@pytest.mark.slow  # test_fit.py kills a whole training
def test_a_killed_process_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    """In fresh processes, killed without warning while it trains."""

    def command(last: int) -> list[str]:
        threads = torch.get_num_threads()
        script = SCRIPT.format(folder=tmp_path / "run", threads=threads, last=last)
        return [sys.executable, "-c", script]

    process = subprocess.Popen(command(20), env=environment())
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    wait_for(checkpoint, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    step = int(read_tensors(checkpoint)[1]["step"])
    assert step < 30
    subprocess.run(command(30), env=environment(), check=True)
    train(model(), tasks, Recipe(30, 2, 1e-2, "cosine"), tmp_path / "full")
    for name, weight in weights(tmp_path / "full").items():
        torch.testing.assert_close(weights(tmp_path / "run")[name], weight, rtol=0, atol=0)


SCRIPT = """
import time, torch, test_loop as t
from pathlib import Path
torch.set_num_threads({threads})
def some(start):  # and then it waits to be killed
    for number, task in enumerate(t.tasks(start), start):
        while number >= {last}:
            time.sleep(0.1)
        yield task
t.train(t.model(), some, t.Recipe(30, 2, 1e-2, "cosine"), Path("{folder}"), save_every=1)
"""


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    train(model(), tasks, Recipe(2, 2), tmp_path)
    with pytest.raises(ValueError, match=r"another recipe \(steps, rate differ\)"):
        train(model(), tasks, Recipe(3, 2, 1e-3), tmp_path)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_weights(tmp_path: Path) -> None:
    def poisoned(start: int) -> Iterator[Task]:
        for i, task in enumerate(tasks(start)):
            seen = task.context["observations"]
            huge = PointSet(seen.x, seen.y * 1e30)
            yield Task({"observations": huge}, task.target) if i == 4 else task

    message = r"not finite at step 5: .*'height' of source 'observations' reaches \d.*e\+30"
    network = model()
    with pytest.raises(ValueError, match=message + r".* The last good weights are in .*checkpoint"):
        train(network, poisoned, Recipe(8, 2), tmp_path, columns={"observations": ["height"]})
    assert read_tensors(tmp_path / "checkpoint.safetensors")[1]["step"] == "4"
    train(model(), tasks, Recipe(4, 2), tmp_path / "good")
    for name, weight in weights(tmp_path / "good").items():
        assert torch.equal(weights(tmp_path)[name], weight)


def test_a_loss_that_is_not_finite_stops_even_if_its_gradient_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forward = SummedLoss.forward
    monkeypatch.setattr(SummedLoss, "forward", lambda *given: forward(*given) + math.nan)
    with pytest.raises(ValueError, match="not finite at step 1"):
        train(model(), tasks, Recipe(3, 2), None)


def test_recipe_is_in_the_checkpoint(tmp_path: Path) -> None:
    train(model(), tasks, Recipe(1, 2), tmp_path)
    about = read_tensors(tmp_path / "checkpoint.safetensors")[1]
    assert json.loads(about["recipe"])["rate"] == 5e-4


RICH = Recipe(12, 4, 1e-2, "cosine", optimiser="muon", ema=0.8, validate_every=3, patience=50)


def batches(start: int) -> Iterator[Task]:
    for draw in stream(PROCESS, seed=1, batch=4, start=start):
        yield draw.task


def validation() -> list[Task]:
    return [draw_at(PROCESS, 7, i, 2).task for i in range(2)]


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_everything_goes_on_after_an_interruption(tmp_path: Path, optimiser: str) -> None:
    """Optimiser state, the moving average, the best weights and the count towards the patience."""
    recipe = replace(RICH, optimiser=optimiser)
    kept = [model(16), model(16)]
    train(kept[0], batches, recipe, tmp_path / "full", validation=validation())

    def interrupted(start: int) -> Iterator[Task]:
        for i, task in enumerate(batches(start)):
            if i == 7:
                raise KeyboardInterrupt
            yield task

    halves = tmp_path / "halves"
    with pytest.raises(KeyboardInterrupt):
        train(model(16), interrupted, recipe, halves, validation=validation(), save_every=2)
    train(kept[1], batches, recipe, halves, validation=validation(), save_every=2)
    a, b = (read_tensors(f / "checkpoint.safetensors")[0] for f in (tmp_path / "full", halves))
    assert a.keys() == b.keys()
    moments = {"adamw": "exp_avg_sq.", "muon": "momentum_buffer."}[optimiser]
    assert any(k.startswith(moments) for k in a)
    assert any(k.startswith("ema.") for k in a)
    for name in a:
        assert torch.equal(a[name], b[name]), name
    for p, q in zip(kept[0].parameters(), kept[1].parameters(), strict=True):
        assert torch.equal(p, q)


def test_pieces_change_nothing_but_rounding(tmp_path: Path) -> None:
    nets = [model(), model()]
    for network, pieces in zip(nets, (1, 4), strict=True):
        recipe = replace(RICH, steps=4, optimiser="adamw", accumulate=pieces)
        train(network, batches, recipe, tmp_path / str(pieces))
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


def test_the_best_weights_are_kept_and_waiting_ends_early(tmp_path: Path) -> None:
    scores: list[float] = []

    def note(p: Progress) -> None:
        if p.validation is not None:
            scores.append(p.validation)

    network = model()
    recipe = Recipe(60, 4, 0.5, ema=0.0, validate_every=2, patience=3)  # far too fast to learn
    done = train(network, batches, recipe, tmp_path, validation=validation(), report=note)
    assert done.step < 60
    assert len(scores) - 1 - scores.index(max(scores)) == 2  # it falls
    assert done.best == max(scores)
    with torch.no_grad():
        losses = [network.loss(task).item() for task in validation()]
    assert -sum(losses) / 2 == pytest.approx(max(scores), abs=1e-5)
    again = train(model(), batches, recipe, tmp_path, validation=validation())
    assert again.step == done.step  # what has ended is not trained again


@pytest.mark.parametrize(
    ("scores", "steps"),
    [
        ([0.0, -0.03, -0.04, 1.0, 1.0, 1.0], 3),  # falls
        ([0.0, -0.01, -0.03, 1.0, 1.0, 1.0], 3),
        ([0.0, -0.03, 0.01, 0.0, 0.0, 1.0], 6),  # one low score says little
        ([0.0, -0.03, -0.01, 0.1, 0.1, 0.2], 6),
        ([0.0, -0.01, -0.01, -0.01, -0.01, 1.0], 5),  # the patience
        ([0.0, math.nan, -0.03, 1.0, 1.0, 1.0], 3),
        ([0.0, 2e-4, 4e-4, 6e-4, 8e-4, 1.0], 5),  # hardly rises
        ([0.0, 2e-3, 4e-3, 6e-3, 8e-3, 1.0], 6),
    ],
)
def test_training_ends_when_the_score_falls_or_hardly_rises(
    scores: list[float], steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter(scores)
    monkeypatch.setattr(Trainer, "validate", lambda *_: next(found))
    recipe = Recipe(6, 4, 1e-3, validate_every=1, patience=4)
    done = train(model(), batches, recipe, tmp_path, validation=validation())
    assert done.step == steps
    assert done.best == max(score for score in scores[:steps] if not math.isnan(score))
    forever = replace(recipe, patience=0)
    found = iter(scores)
    assert train(model(), batches, forever, None, validation=validation()).step == 6


def test_a_score_that_is_not_a_number_is_never_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([math.nan, -2.0, math.nan, -1.0])
    monkeypatch.setattr(Trainer, "validate", lambda *_: next(found))
    recipe = Recipe(4, 4, 1e-3, validate_every=1, patience=2)
    done = train(model(), batches, recipe, tmp_path, validation=validation())
    assert done.step == 4
    assert done.best == -1.0


def test_the_moving_average_is_what_is_kept(tmp_path: Path) -> None:
    network = model()
    train(network, batches, replace(RICH, steps=3), tmp_path)
    tensors = read_tensors(tmp_path / "checkpoint.safetensors")[0]
    for name, p in network.named_parameters():
        assert torch.equal(p, tensors[f"ema.{name}"])
    assert any(not torch.equal(p, tensors[f"model.{k}"]) for k, p in network.named_parameters())


def test_training_leaves_random_numbers_and_handlers_alone(tmp_path: Path) -> None:
    before, handler = torch.get_rng_state(), signal.getsignal(signal.SIGINT)
    train(model(), batches, replace(RICH, steps=1), None)
    network_seeds = torch.get_rng_state()
    torch.manual_seed(0)
    model()
    assert torch.equal(network_seeds, torch.get_rng_state())
    assert before is not None
    assert signal.getsignal(signal.SIGINT) is handler
    assert not list(tmp_path.iterdir())


def test_ctrl_c_saves_and_says_where(tmp_path: Path) -> None:
    def pressed(start: int) -> Iterator[Task]:
        for i, task in enumerate(batches(start)):
            if i == 2:
                os.kill(os.getpid(), signal.SIGINT)
            yield task

    with pytest.raises(
        KeyboardInterrupt, match=r"Stopped after step 3 of 12; the checkpoint is .*"
    ):
        train(model(), pressed, RICH, tmp_path)
    assert read_tensors(tmp_path / "checkpoint.safetensors")[1]["step"] == "3"


def test_half_precision_trains(tmp_path: Path) -> None:
    network = model()
    before = [p.clone() for p in network.parameters()]
    train(network, batches, replace(RICH, steps=2, precision="bfloat16"), tmp_path)
    assert all(p.isfinite().all() and p.dtype == torch.float32 for p in network.parameters())
    assert any(not torch.equal(p, q) for p, q in zip(network.parameters(), before, strict=True))
