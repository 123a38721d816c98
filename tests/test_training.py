"""Training that survives a kill: bit for bit the same weights as without one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gridtnp import Axis, Grid, ModelConfig, Task, build_model
from gridtnp.checkpoints import read_tensors, weights_of, write_tensors
from gridtnp.config import Cell, Embedded, GriddedConfig, Neighbour, PseudoToken, Swin
from gridtnp.kernels import SquaredExponential
from gridtnp.recipes import Recipe
from gridtnp.synthetic import GaussianProcess, stream
from gridtnp.training import train

PROCESS = GaussianProcess(
    box=((-1.0, 1.0),) * 2, context=30, targets=20, kernel=SquaredExponential(0.5)
)


def model() -> torch.nn.Module:
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
            dim=8,
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
    train(model(), tasks, recipe, tmp_path / "whole")

    def interrupt(start: int) -> Iterator[Task]:
        for i, task in enumerate(tasks(start)):
            if i == 5:
                raise KeyboardInterrupt
            yield task

    with pytest.raises(KeyboardInterrupt):
        train(model(), interrupt, recipe, tmp_path / "halves", save_every=2)
    done = train(model(), tasks, recipe, tmp_path / "halves", save_every=2)
    assert done.step == 9
    whole, halves = weights(tmp_path / "whole"), weights(tmp_path / "halves")
    for name in whole:
        torch.testing.assert_close(halves[name], whole[name], rtol=0, atol=0)


def test_a_killed_process_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    """In fresh processes, killed without warning while it trains."""
    command = [
        sys.executable,
        "-c",
        SCRIPT.format(folder=tmp_path / "run", threads=torch.get_num_threads()),
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen(command, env=environment)
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    step = int(read_tensors(checkpoint)[1]["step"])
    assert step < 60
    subprocess.run(command, env=environment, check=True)
    train(model(), tasks, Recipe(60, 2, 1e-2, "cosine"), tmp_path / "whole")
    for name, weight in weights(tmp_path / "whole").items():
        torch.testing.assert_close(weights(tmp_path / "run")[name], weight, rtol=0, atol=0)


SCRIPT = """
import torch, test_training as t
from pathlib import Path
torch.set_num_threads({threads})
t.train(t.model(), t.tasks, t.Recipe(60, 2, 1e-2, "cosine"), Path("{folder}"), save_every=1)
"""


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    train(model(), tasks, Recipe(2, 2), tmp_path)
    with pytest.raises(ValueError, match=r"another recipe \(steps, rate differ\)"):
        train(model(), tasks, Recipe(3, 2, 1e-3), tmp_path)


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_weights(tmp_path: Path) -> None:
    bad = model()

    def poisoned(start: int) -> Iterator[Task]:
        for i, task in enumerate(tasks(start)):
            if i == 4:
                with torch.no_grad():
                    next(bad.parameters()).fill_(torch.nan)
            yield task

    with pytest.raises(ValueError, match=r"no longer a number at step 6; the last good weights"):
        train(bad, poisoned, Recipe(8, 2), tmp_path, report_every=2, save_every=4)
    assert all(w.isfinite().all() for w in weights(tmp_path).values())


def test_writing_that_fails_leaves_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.safetensors"
    write_tensors(path, {"a": torch.ones(3)}, {"step": "1"})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gridtnp.checkpoints.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        write_tensors(path, {"a": torch.zeros(3)}, {"step": "2"})
    tensors, about = read_tensors(path)
    assert about["step"] == "1"
    assert tensors["a"].sum() == 3
    assert [p.name for p in tmp_path.iterdir()] == ["weights.safetensors"]


@pytest.mark.parametrize(("step", "rate"), [(0, 0.01), (9, 0.1), (104, 0.05), (199, 0.0)])
def test_cosine_warms_up_and_falls_to_zero(step: int, rate: float) -> None:
    found = Recipe(200, rate=0.1, schedule="cosine").rate_at(step)
    assert found == pytest.approx(rate, abs=0.004)
    assert Recipe(200, rate=0.1).rate_at(step) == 0.1


def test_recipe_is_in_the_checkpoint(tmp_path: Path) -> None:
    train(model(), tasks, Recipe(1, 2), tmp_path)
    about = read_tensors(tmp_path / "checkpoint.safetensors")[1]
    assert json.loads(about["recipe"])["rate"] == 5e-4
