"""Processors that claim more than they do: found out once, in another process, and told."""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fitting_cases import RECIPE, parts, small

from gridtnp import processor
from gridtnp.cli import doctor
from gridtnp.design.models import ModelOptions, design
from gridtnp.ops import native
from gridtnp.training.estimates import estimate

SENTENCE = (
    "Bfloat16 products crash on this processor (SIGILL): set "
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before Python starts or train with "
    'precision="float32".'
)
ROOT = next(p for p in Path(__file__).parents if (p / "pyproject.toml").exists())
LOW = replace(RECIPE, precision="bfloat16")


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Puts other code in the place of the product, whose runs leave lines in a file."""
    native.library()  # which is in the cache folder, too
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(processor.VARIABLE, raising=False)
    runs = tmp_path / "runs.txt"
    runs.touch()

    def put(code: str) -> Path:
        note = f"import os, signal; print('run', file=open({str(runs)!r}, 'a'))\n"
        monkeypatch.setattr(processor, "TRIAL", [sys.executable, "-c", note + code])
        processor._fault.cache_clear()
        return runs

    monkeypatch.setattr(processor, "_fault", functools.cache(processor._fault.__wrapped__))
    return put


DIES = "os.kill(os.getpid(), signal.SIGILL)"
DIES_UNLESS_SET = f"os.environ.get({processor.VARIABLE!r}) or {DIES}"


def refused() -> AbstractContextManager[Any]:
    return pytest.raises(ValueError, match=f"^{re.escape(SENTENCE)}$")


def count(runs: Path) -> int:
    return len(runs.read_text().splitlines())


def test_a_product_that_survives_is_fine(trial: Callable[[str], Path]) -> None:
    trial("")
    assert processor.why_not_bfloat16() is None
    processor.require_bfloat16()
    assert processor.safe_settings() == {}


def test_a_product_that_dies_is_a_reason(trial: Callable[[str], Path]) -> None:
    trial(DIES)
    reason = processor.why_not_bfloat16()
    assert reason == "bfloat16 products crash on this processor (SIGILL)"
    assert processor.safe_settings() == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    with refused():
        processor.require_bfloat16()


@pytest.mark.parametrize("code", ["", DIES])
def test_it_is_tried_once_and_kept(trial: Callable[[str], Path], code: str) -> None:
    runs = trial(code)
    first = processor.why_not_bfloat16()
    assert processor.why_not_bfloat16() == first
    trial(code)  # as in the next process
    assert processor.why_not_bfloat16() == first
    assert count(runs) == 1


@pytest.mark.parametrize("code", ["raise ImportError", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_says_nothing_about_the_processor_is_not_kept(
    trial: Callable[[str], Path], code: str
) -> None:
    runs = trial(code)
    assert processor.why_not_bfloat16() is None
    trial(code)
    assert processor.why_not_bfloat16() is None
    assert count(runs) == 2


def test_no_process_and_no_folder_are_no_errors(
    trial: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    trial(DIES)
    assert processor.why_not_bfloat16() is not None
    monkeypatch.setattr(processor, "TRIAL", [str(tmp_path / "no such program")])
    processor._fault.cache_clear()
    assert processor.why_not_bfloat16() is None


def test_a_setting_of_ones_own_is_respected(
    trial: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = trial(DIES_UNLESS_SET)
    assert processor.why_not_bfloat16() is not None
    monkeypatch.setenv(processor.VARIABLE, "AVX512_CORE")
    assert processor.why_not_bfloat16() is None  # tried again, because it may matter
    assert count(runs) == 2
    trial(DIES)
    assert processor.safe_settings() == {}
    monkeypatch.setenv(processor.VARIABLE, processor.SAFE)
    with pytest.raises(ValueError, match=r'\(SIGILL\): train with precision="float32"\.$'):
        processor.require_bfloat16()  # without the advice that was taken already


def test_training_is_refused_before_anything_is_written(
    trial: Callable[[str], Path], tmp_path: Path
) -> None:
    trial(DIES)
    train, val, _ = parts()
    model = small(train)
    with refused():
        model.fit(train, val, recipe=LOW, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
    with refused():
        model.fit(train, recipe=LOW, minutes=1, quiet=True)
    decision = design(train, ModelOptions(recipe=LOW))
    with refused():
        estimate(model.network, decision.task, decision.recipe, torch.device("cpu"))


def test_training_in_single_precision_does_not_ask(trial: Callable[[str], Path]) -> None:
    runs = trial(DIES)
    train, _, _ = parts()
    small(train).fit(train, recipe=replace(RECIPE, steps=1), quiet=True)
    assert count(runs) == 0


def test_the_doctor_knows(trial: Callable[[str], Path]) -> None:
    trial("")
    found = doctor.examine()
    assert found["bfloat16"] == {"works": True, "why_not": None, "way_out": ""}
    assert "\nbfloat16         products work\n" in doctor.report(found)
    trial(DIES)
    found = json.loads(json.dumps(doctor.examine()))
    assert not found["bfloat16"]["works"]
    line = next(x for x in doctor.report(found).splitlines() if x.startswith("bfloat16"))
    assert line.endswith(
        "bfloat16 products crash on this processor (SIGILL); "
        "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before Python starts"
    )


def test_the_real_product_survives_while_testing() -> None:
    """The settings that tests run with (see conftest.py) are those of the processes they start."""
    done = subprocess.run(processor.TRIAL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_starts_no_process() -> None:
    code = """
import sys
started = []
sys.addaudithook(lambda event, what: started.append(what) if "Popen" in event else None)
import gridtnp
[getattr(gridtnp, name) for name in gridtnp.__all__]
assert not started, started
import gridtnp.processor as p
p.TRIAL[-1] = "raise ImportError"  # of which nothing is kept
p.why_not_bfloat16()
assert len(started) == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("given", "expected"), [(None, processor.SAFE), ("AVX2", "AVX2")])
def test_tests_run_with_the_safe_setting(given: str | None, expected: str, tmp_path: Path) -> None:
    """As a fresh process loads conftest.py, with a torch that says what it finds."""
    (tmp_path / "torch.py").write_text(
        f"import os\nprint('torch finds', os.environ.get({processor.VARIABLE!r}))\n"
    )
    code = f"""
import sys
from gridtnp import processor
processor.TRIAL = [sys.executable, "-c", "import os, signal\\n" + {DIES_UNLESS_SET!r}]
import conftest
"""
    folders = (tmp_path, ROOT / "src", ROOT / "tests")
    environment = {k: v for k, v in os.environ.items() if k != processor.VARIABLE} | {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
    }
    if given is not None:
        environment[processor.VARIABLE] = given
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"torch finds {expected}\n", done.stderr
