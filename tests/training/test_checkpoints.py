"""Checkpoints and atomic files: complete or absent, and no pickle."""

import json
import resource
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from fitting_cases import environment
from safetensors.torch import save_file

from gridtnp.files import DamagedFile, read_tensors, write_tensors, write_text
from gridtnp.recipes import Recipe
from gridtnp.training.checkpoints import State, load_checkpoint, save_checkpoint


def test_a_state_survives_the_disk(tmp_path: Path) -> None:
    path, recipe = tmp_path / "a" / "checkpoint.safetensors", Recipe(9, ema=0.5)
    before = State(7, 1.5, -0.25, 2, True, {"model.w": torch.randn(3, 2), "rng": torch.ones(2)})
    save_checkpoint(path, before, recipe)
    after = load_checkpoint(path, recipe)
    assert (after.step, after.seconds, after.best, after.waiting, after.stopped) == (
        *(7, 1.5, -0.25, 2),
        True,
    )
    assert torch.equal(after.tensors["model.w"], before.tensors["model.w"])
    assert b"pickle" not in path.read_bytes()


FULL = """
import resource, sys, torch
from pathlib import Path
from gridtnp.files import write_tensors
path = Path(sys.argv[1])
write_tensors(path, {"a": torch.ones(10)}, {"step": "1"})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    write_tensors(path, {"a": torch.zeros(100_000)}, {"step": "2"})
except OSError as error:
    print(error)
"""


def test_no_space_while_writing_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    """A real limit on file size, in a subprocess."""
    path = tmp_path / "weights.safetensors"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"Cannot write {path} (")
    assert "any previous version is unchanged; check disk space" in done.stdout
    tensors, about = read_tensors(path)
    assert about["step"] == "1"
    assert tensors["a"].sum() == 10
    assert [p.name for p in tmp_path.iterdir()] == ["weights.safetensors"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 20_000


def test_a_file_that_was_cut_short_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_tensors(path, {"a": torch.ones(100)}, {})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"w\.safetensors was cut short or changed"):
        read_tensors(path)


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    path, recipe = tmp_path / "c.safetensors", Recipe(3)
    save_checkpoint(path, State(), recipe)
    with pytest.raises(ValueError, match=r"another recipe \(steps, rate differ\)"):
        load_checkpoint(path, Recipe(4, rate=1.0))
    write_tensors(path, {"a": torch.ones(1)}, {})
    with pytest.raises(ValueError, match=r"c\.safetensors has no recipe; is it a checkpoint"):
        load_checkpoint(path, recipe)
    write_tensors(path, {"a": torch.ones(1)}, {"format": "99", "recipe": json.dumps({"steps": 3})})
    with pytest.raises(ValueError, match=r"format 99, but .* up to 2; update gridtnp"):
        load_checkpoint(path, recipe)


def test_any_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path, recipe = tmp_path / "c.safetensors", Recipe(3)
    tensors = {"model.w": torch.randn(40, 3), "rng.cpu": torch.arange(50, dtype=torch.uint8)}
    save_checkpoint(path, State(2, 1.0, -0.5, tensors=tensors), recipe)
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        changed = content[position] ^ (1 << position % 8)
        path.write_bytes(content[:position] + bytes([changed]) + content[position + 1 :])
        with pytest.raises(DamagedFile, match=r"c\.safetensors.* changed"):
            load_checkpoint(path, recipe)


def test_checkpoints_without_a_checksum_are_of_format_1(tmp_path: Path) -> None:
    path, recipe = tmp_path / "c.safetensors", Recipe(3)
    about = {"format": "1", "recipe": json.dumps(asdict(recipe)), "step": "2"}
    save_file({"a": torch.ones(1)}, path, about)
    assert load_checkpoint(path, recipe).step == 2
    save_file({"a": torch.ones(1)}, path, about | {"format": "2"})
    with pytest.raises(DamagedFile, match=r"c\.safetensors was changed \(it has no checksum\)"):
        load_checkpoint(path, recipe)


def test_text_is_written_as_utf_8(tmp_path: Path) -> None:
    write_text(tmp_path / "t.txt", "°C\n")
    assert (tmp_path / "t.txt").read_text(encoding="utf-8") == "°C\n"


def test_others_may_read_what_they_may_read_here(tmp_path: Path) -> None:
    write_tensors(tmp_path / "w.safetensors", {"w": torch.zeros(2)}, {})
    (tmp_path / "plain").touch()
    assert (tmp_path / "w.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
