"""Several processes: the result of one, and a clear end when one of them dies."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from fitting_cases import PATIENCE, ends_by_itself, environment, wait_for
from test_fit import CASES, last
from test_loop import model
from weather import stations

from gridtnp.files import locked
from gridtnp.recipes import Recipe
from gridtnp.training.distributed import SummedLoss, distribute, make_accelerator

TORCHRUN = ("torch.distributed.run", "--nproc-per-node=2", "--standalone")
ACCELERATE = (
    *("accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"),
    *("--main_process_port=0", "--mixed_precision=bf16"),
)


def command(
    *arguments: object, processes: int = 2, launcher: tuple[str, ...] = TORCHRUN
) -> list[str]:
    start = ["-m", *launcher] if processes > 1 else []
    return [sys.executable, *start, str(CASES), *map(str, arguments), "--quiet", "--adamw"]


def go(*arguments: object, **how: Any) -> str:
    done = subprocess.run(
        command(*arguments, **how),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    out = tmp_path_factory.mktemp("alone") / "run"
    assert "1 processes" in go(out, 12, processes=1)
    return last(out)


def assert_same(run: Path, alone: dict[str, torch.Tensor]) -> None:
    found = last(run)
    assert found.keys() == alone.keys()
    for name, value in alone.items():
        if not name.startswith("rng."):
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow
def test_two_processes_train_like_one(alone: dict[str, torch.Tensor], tmp_path: Path) -> None:
    assert go(tmp_path / "run", 12).count("2 processes, DistributedType.MULTI_CPU") == 2
    assert_same(tmp_path / "run", alone)


@pytest.mark.slow
def test_accelerate_launch_does_the_same(alone: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """On CPUs too, and in the precision of the recipe, whatever the launcher says."""
    printed = go(tmp_path / "run", 12, launcher=ACCELERATE)
    assert printed.count("2 processes, DistributedType.MULTI_CPU") == 2
    assert_same(tmp_path / "run", alone)


@pytest.mark.slow
def test_the_command_line_trains_with_several_processes(tmp_path: Path) -> None:
    """And one of them speaks."""
    stations(20, 24).to_csv(tmp_path / "gauges.csv", index=False)
    values = {"data": {"sources": {"gauges": "gauges.csv"}, "target": "gauges.t2m"}, "out": "run"}
    (tmp_path / "exp.yaml").write_text(json.dumps(values))  # JSON is YAML
    few = ["--train.steps=3", "--train.batch=2", "--model.dim=8", "--model.heads=2"]
    done = subprocess.run(
        [sys.executable, "-m", *TORCHRUN, "-m", "gridtnp", "fit", "exp.yaml", *few],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("GriddedTNP to predict") == 1
    assert done.stdout.count("wrote run; next:") == 1
    assert (tmp_path / "run" / "experiment.yaml").exists()


@pytest.mark.slow
def test_all_processes_stop_if_the_folder_is_in_use(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        done = subprocess.run(
            command(tmp_path / "run", 12),
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    assert done.returncode != 0
    assert (
        done.stderr.count(f"ValueError: {tmp_path / 'run'} is in use by process {os.getpid()}") == 2
    )


@pytest.mark.slow
def test_shards_train_like_one(alone: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """Their checkpoint can be resumed in one process."""
    assert go(tmp_path / "run", 12, "--shard").count("2 processes") == 2
    assert_same(tmp_path / "run", alone)
    go(tmp_path / "run", 12, "--resume", processes=1)


@pytest.mark.slow
def test_a_killed_worker_ends_the_job_and_resuming_works(
    alone: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    job = subprocess.Popen(  # held after the checkpoint of step 6: 2 passes a step, 3 to validate
        command(tmp_path / "run", 12, "--hold", 17, go_on),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(tmp_path / "run" / "checkpoints" / "last" / "checkpoint.safetensors", job)
    workers = [p for p in psutil.Process(job.pid).children() if str(CASES) in p.cmdline()]
    assert len(workers) == 2
    first, second = sorted(workers, key=lambda p: p.environ()["RANK"])
    with ends_by_itself(first):
        second.kill()
        go_on.touch()
    output, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode != 0
    assert "Another process has stopped (" in output
    assert "start all processes again with resume=True" in output
    go(tmp_path / "run", 12, "--resume")
    assert_same(tmp_path / "run", alone)


def test_shards_need_several_processes_and_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = SummedLoss(model())
    with pytest.raises(ValueError, match=r"shard=True needs several processes, but there is only"):
        distribute(make_accelerator(), loss, Recipe(1), sharded=True)
    two = make_accelerator()
    monkeypatch.setattr(type(two), "num_processes", 2)
    with pytest.raises(ValueError, match=r'shard=True does not work with optimiser="muon"'):
        distribute(two, loss, Recipe(1, optimiser="muon"), sharded=True)
