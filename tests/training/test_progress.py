"""Progress: a live line in a terminal, some plain lines elsewhere, nothing when asked to be
quiet.
"""

import io

import pytest
from rich.console import Console

from gridtnp.training.loop import Progress
from gridtnp.training.progress import Display


def shown(terminal: bool, steps: int = 400, quiet: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120, highlight=False)
    with Display(steps, quiet=quiet, console=console) as display:
        for step in range(1, steps + 1):
            score = -0.5 if step == 100 else None
            display(Progress(step, 1.25, 0.5 * step, 12345.6, score))
    return file.getvalue()


def test_plain_lines_are_few_and_say_everything() -> None:
    lines = shown(False).splitlines()
    assert 18 <= len(lines) <= 22
    assert lines[-1].startswith("step 400 of 400")
    first, later = lines[0], lines[10]
    assert "validation" not in first
    assert "loss 1.250  validation log-likelihood -0.500  12,346 points/s" in later
    assert first.endswith("3:10 left")


def test_a_terminal_has_a_bar() -> None:
    text = shown(True)
    assert "400/400" in text
    assert "points/s" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_quiet_is_quiet(terminal: bool) -> None:
    assert shown(terminal, quiet=True) == ""


def test_long_trainings_count_hours() -> None:
    display = Display(100)
    assert "2:45:00 left" in display.summary(Progress(1, 1.0, 100.0, 1.0))
