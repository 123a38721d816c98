"""Training by the clock: a fake one, so that no test depends on the speed of the machine."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from test_loop import PROCESS, batches, model

from gridtnp.files import read_tensors
from gridtnp.recipes import Recipe
from gridtnp.synthetic.processes import draw_at
from gridtnp.task import Task
from gridtnp.training.checkpoints import State
from gridtnp.training.loop import Progress, train
from gridtnp.training.schedules import ClockSchedule, StepSchedule

RECIPE = Recipe(7, 4, 1e-2, "cosine", minutes=1.0, validate_every=3)  # the steps are wrong


class Clock:
    """A clock that only work advances; `pace(step)` is how long a step takes."""

    def __init__(self, pace: Callable[[int], float], validation: float = 0.0) -> None:
        self.now, self.pace, self.validation = 1000.0, pace, validation

    def __call__(self) -> float:
        return self.now

    def tasks(self, start: int) -> Iterator[Task]:
        for number, task in enumerate(batches(start), start):
            self.now += self.pace(number)
            yield task

    def validation_tasks(self) -> Sequence[Task]:
        clock = self

        class Slow(list[Task]):
            def __iter__(self) -> Iterator[Task]:
                clock.now += clock.validation
                return super().__iter__()

        return Slow([draw_at(PROCESS, 7, 0, 2).task])


def busier(step: int) -> float:
    """Another job takes most of the machine between steps 10 and 20."""
    return 4.0 if 10 <= step < 20 else 0.5


@pytest.mark.parametrize(
    ("pace", "validation"),
    [(lambda _: 2.0, 0.0), (lambda _: 2.0, 12.0), (busier, 1.0), (busier, 12.0)],
    ids=["steady", "steady, dear validation", "busy", "busy, dear validation"],
)
def test_minutes_are_kept(pace: Callable[[int], float], validation: float) -> None:
    clock, reports = Clock(pace, validation), list[Progress]()
    done = train(
        model(),
        clock.tasks,
        RECIPE,
        None,
        validation=clock.validation_tasks(),
        report=reports.append,
        clock=clock,
    )
    assert clock.now - 1000 == pytest.approx(60, rel=0.1)
    assert done.seconds == clock.now - 1000
    assert done.validation is not None  # the last weights have a score
    scores = sum(p.validation is not None for p in reports)
    assert 2 <= scores <= 25
    assert scores == 2 or scores * validation <= 60 / 3


def test_time_spent_before_counts() -> None:
    clock = Clock(lambda _: 1.0)
    done = train(model(), clock.tasks, RECIPE, None, clock=clock, spent=40.0)
    assert done.step == 20
    late = train(model(), clock.tasks, RECIPE, None, clock=clock, spent=400.0)
    assert late.step == 1  # at least


def test_a_resumed_run_keeps_its_budget(tmp_path: Path) -> None:
    clock = Clock(lambda _: 1.0)

    def interrupted(start: int) -> Iterator[Task]:
        for number, task in enumerate(clock.tasks(start)):
            if number == 30:
                raise KeyboardInterrupt
            yield task

    with pytest.raises(KeyboardInterrupt):
        train(model(), interrupted, RECIPE, tmp_path, save_every=5, clock=clock)
    assert float(read_tensors(tmp_path / "checkpoint.safetensors")[1]["seconds"]) == 30
    other = Clock(lambda _: 3.0)  # on a slower machine, an hour later
    done = train(model(), other.tasks, RECIPE, tmp_path, clock=other, spent=5.0)
    assert done.step == 40
    assert done.seconds == 60
    again = train(model(), other.tasks, RECIPE, tmp_path, clock=other)
    assert again.step == 40  # what has ended is not trained again


def test_the_rate_follows_the_clock() -> None:
    by_clock, by_step = ClockSchedule(RECIPE), StepSchedule(Recipe(1200, 4, 1e-2, "cosine"))
    for step in (20, 60, 300, 600, 900, 1199):
        seconds = 60 * (step + 0.5) / 1200
        state = State(step=step, seconds=seconds)
        assert by_clock.rate(state) == pytest.approx(by_step.rate(state), abs=2e-4)
    assert by_clock.rate(State(step=5, seconds=300.0)) == pytest.approx(0, abs=1e-9)
    assert by_clock.rate(State()) > 0
    constant = ClockSchedule(Recipe(1, rate=0.1, minutes=1.0))
    assert constant.rate(State(seconds=59.0)) == 0.1
    assert math.isfinite(Recipe(1, rate=0.1, schedule="cosine", warm_up=1.0).rate_after(0.5))


def test_the_last_validation_is_part_of_the_budget() -> None:
    schedule = ClockSchedule(RECIPE)
    schedule.validated(State(step=3, seconds=10.0), 6.0)
    assert not schedule.validation_due(State(step=9, seconds=30.0))
    assert schedule.validation_due(State(step=9, seconds=34.0))
    assert not schedule.ended(State(step=9, seconds=53.0))
    assert schedule.ended(State(step=9, seconds=54.0))


def test_validations_are_close_together_at_first() -> None:
    """Networks that learn stations by heart are at their best soon after the start."""
    schedule, found = ClockSchedule(RECIPE), []
    for tenth in range(1, 600):
        state = State(step=tenth, seconds=tenth / 10)
        if schedule.validation_due(state):
            found.append(state.seconds)
            schedule.validated(state, 0.1)
    gaps = np.diff([0.0, *found])
    assert gaps[0] == pytest.approx(60 / 48, abs=0.11)
    assert gaps[-1] == pytest.approx(60 / 12, abs=0.11)
    assert (np.diff(gaps) > -0.11).all()
    assert 12 < len(found) < 24
