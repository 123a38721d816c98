"""The prior over fields, its exact posterior, the fitted process, and the training command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gridtnp.amortised.network import Interpolator
from gridtnp.amortised.weights import load
from gridtnp.pretrain import __main__ as command
from gridtnp.pretrain.fields import KINDS, SOURCE, FieldPrior, draw_at, training_tasks
from gridtnp.pretrain.held_out import references
from gridtnp.pretrain.reference import FittedProcess


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_depend_on_the_seed_alone(kind: str) -> None:
    one, same, other = (
        draw_at(FieldPrior(kind), seed, 2, 20, 10) for seed in [(1, 2), (1, 2), (1, 3)]
    )
    assert one.task.context[SOURCE].x.shape == (2, 20, 2)
    torch.testing.assert_close(one.task.target.y, same.task.target.y, rtol=0, atol=0)
    assert not torch.equal(one.task.target.x, other.task.target.x)
    assert bool(one.exact.all()) == (kind not in ("heavy tails", "transformed"))


def test_exact_posteriors_are_calibrated() -> None:
    tasks = draw_at(FieldPrior("sum"), (4,), 30, 30, 40)
    answer, y = tasks.posterior(), tasks.task.target.y
    assert y is not None
    z = ((y - answer.mean) / answer.stddev).square().mean((1, 2))
    assert 0.8 < z.mean() < 1.25


def test_the_fitted_process_recovers_constants() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 20 * torch.rand(300, 2, generator=generator, dtype=torch.float64)
    s = torch.cdist(x, x) * 3**0.5 / 3
    k = (1 + s) * torch.exp(-s) + 0.04 * torch.eye(300)
    normal = torch.randn(300, generator=generator, dtype=torch.float64)
    found = FittedProcess.fit(x, 7 + torch.linalg.cholesky(k) @ normal)
    assert 2 < found.length < 5
    assert 0.03 < found.noise * found.variance < 0.055
    at = found.predict(x[:5] + 0.01)
    assert (at.stddev > 0.2).all()


def test_training_tasks_continue_where_they_were_left() -> None:
    first = training_tasks(1, 0)
    next(first)
    second, again = next(first), next(training_tasks(1, 1))
    torch.testing.assert_close(second.target.y, again.target.y, rtol=0, atol=0)


def test_references_are_computed_once(tmp_path: Path) -> None:
    found = references(2, [12], 1, tmp_path / "references.jsonl")
    assert len(found) == len(KINDS)
    text = (tmp_path / "references.jsonl").read_text()
    again = references(2, [12], 1, tmp_path / "references.jsonl")
    assert [r.fitted for r in again] == [r.fitted for r in found]
    assert (tmp_path / "references.jsonl").read_text() == text


@pytest.mark.slow
def test_the_command_trains_on_and_keeps_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "VALIDATED", ((12, 1),))
    arguments = ["--out", str(tmp_path), "--steps", "4", "--validate-every", "2"]
    command.main(arguments)
    assert "against the fitted process" in capsys.readouterr().out
    assert (tmp_path / "weights.safetensors").exists()
    history = (tmp_path / "history.jsonl").read_text()
    assert [json.loads(line)["steps"] for line in history.splitlines()] == [1002, 1004]
    command.main(arguments)  # nothing left to do
    assert (tmp_path / "history.jsonl").read_text() == history


def test_a_fresh_run_may_have_another_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "VALIDATED", ((12, 1),))
    arguments = ["--out", str(tmp_path), "--steps", "1", "--validate-every", "1"]
    command.main([*arguments, "--fresh", "--dim", "16", "--layers", "1"])
    history = json.loads((tmp_path / "history.jsonl").read_text())
    network = Interpolator(16, layers=1)
    assert history["steps"] == 1
    assert history["parameters"] == sum(p.numel() for p in network.parameters())
    assert load(tmp_path / "weights.safetensors")[0].settings == network.settings
