"""Several nodes: two launches that meet on the loopback device train like one process.

Each has a working folder of its own; they share the folder of the run and the data.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import weather
from fitting_cases import PATIENCE, ends_by_itself, environment, parts, small, wait_for
from test_fit import CASES, last

from gridtnp.sources.source import Lazy, Panel


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def launch(folder: Path, nodes: int, *arguments: object) -> list[subprocess.Popen[Any]]:
    """A launcher per node, with one process each."""
    address, started = f"127.0.0.1:{free_port()}", []
    for node in range(nodes):
        cwd = folder / f"node{node}"
        cwd.mkdir(exist_ok=True)
        torchrun = ["torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1"]
        torchrun += ["--rdzv-backend=c10d", f"--rdzv-endpoint={address}", "--rdzv-id=test"]
        torchrun += [f"--rdzv-conf=is_host={int(node == 0)}", "--local-addr=127.0.0.1"]
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", *torchrun, str(CASES), *map(str, arguments), "--quiet"],
                env=environment(),
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return started


def finish(jobs: list[subprocess.Popen[Any]]) -> list[str]:
    printed = [job.communicate(timeout=PATIENCE)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * len(jobs), "\n".join(printed)
    return printed


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "field.zarr"
    days = weather.stations(1, 24)["time"].unique()
    fine = weather.field()
    many = fine.isel(time=np.arange(len(days)) % fine.sizes["time"]).assign_coords(time=days)
    many.chunk({"time": 1}).to_zarr(path, zarr_format=2)
    return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, field: Path) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("alone")
    finish(launch(folder, 1, folder / "run", 12, "--adamw", "--field", field))
    return last(folder / "run")


def assert_same(run: Path, alone: dict[str, torch.Tensor]) -> None:
    found = last(run)
    for name, value in alone.items():
        if not name.startswith("rng."):
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
def test_two_nodes_train_like_one_process(
    alone: dict[str, torch.Tensor], field: Path, tmp_path: Path, shard: bool
) -> None:
    more = ["--shard"] if shard else []
    printed = finish(launch(tmp_path, 2, tmp_path / "run", 12, "--adamw", "--field", field, *more))
    assert all("2 processes" in text for text in printed)
    assert_same(tmp_path / "run", alone)


@pytest.mark.slow
def test_a_killed_node_ends_the_job_and_one_process_does_the_rest(
    alone: dict[str, torch.Tensor], field: Path, tmp_path: Path
) -> None:
    run, go_on = tmp_path / "run", tmp_path / "go on"
    common = (run, 12, "--adamw", "--field", field)
    jobs = launch(tmp_path, 2, *common, "--hold", 17, go_on)
    wait_for(run / "checkpoints" / "last" / "checkpoint.safetensors", jobs[0])
    (worker,) = [p for p in psutil.Process(jobs[0].pid).children() if str(CASES) in p.cmdline()]
    node = psutil.Process(jobs[1].pid)
    with ends_by_itself(worker):
        for process in [*node.children(recursive=True), node]:  # workers have their own sessions
            process.kill()
        go_on.touch()
    jobs[1].communicate(timeout=PATIENCE)
    output, _ = jobs[0].communicate(timeout=PATIENCE)
    assert jobs[0].returncode != 0
    assert "start all processes again with resume=True" in output
    finish(launch(tmp_path, 1, *common, "--resume"))
    assert_same(run, alone)


def test_a_process_reads_its_own_tasks_alone(field: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its share does not depend on how many others there are."""
    train, _, _ = parts(field)
    sampler = small(train).contents.sampler(train, batch=4)
    source = train.sources["field"]
    assert isinstance(source, Panel)
    assert isinstance(source.store, Lazy)
    assert sampler.independent
    read: list[int] = []
    fetch = source.store.fetch
    monkeypatch.setattr(source.store, "fetch", lambda a, b: read.append(a) or fetch(a, b))
    for index in range(3):
        source.store._cache.clear()
        read.clear()
        mine = sampler.draw(index, range(1, 3))
        assert 1 <= len(set(read)) <= 2
        whole = sampler.draw(index)
        for name, points in mine.context.items():
            n = points.n
            assert torch.equal(points.x, whole.context[name].x[1:3, :n]), name
            assert torch.equal(points.y, whole.context[name].y[1:3, :n]), name  # type: ignore[index]
