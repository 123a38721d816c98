"""The demo runs from end to end, in a fresh process as a newcomer would start it."""

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parent.parent / "experiments" / "demo.py"


def test_the_demo_trains_and_prints_its_table() -> None:
    command = [sys.executable, str(DEMO), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    for words in ("Swin-TNP", "CNP", "log-likelihood"):
        assert words in done.stdout
