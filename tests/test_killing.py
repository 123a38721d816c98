"""Kills at random moments of fit, save, write and predict: nothing is half there or gone."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from fitting_cases import environment

CASES = Path(__file__).with_name("killing_cases.py")


@pytest.mark.slow
def test_whatever_is_killed_is_whole_or_can_be_resumed(tmp_path: Path) -> None:
    """Of each of the four; all processes are forked from one, in which nothing has run yet."""
    kills, seed = 25, random.randrange(10**6)
    done = subprocess.run(
        [sys.executable, str(CASES), str(tmp_path), str(kills), str(seed)],
        env=environment() | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.count("killed after") == 4 * kills
