"""When to validate, when to end and how fast to learn: by counting steps, or by the clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from gridtnp.recipes import Recipe
from gridtnp.training.checkpoints import State

RARELY, OFTEN = 12, 48
"""Validations in a training by the clock, if all came as late, or as early, as they may."""
EARLY = 6
"""Within these limits, the time so far is so many times that between validations."""
TRAINING = 4.0
"""Seconds of training per second of validation, at least."""


class Schedule(ABC):
    """Reads the state of a run, so that a resumed run continues where it stopped."""

    @abstractmethod
    def rate(self, state: State) -> float:
        """The learning rate of the next step."""

    @abstractmethod
    def ended(self, state: State) -> bool:
        """Whether training has taken its last step."""

    @abstractmethod
    def validation_due(self, state: State) -> bool: ...

    @abstractmethod
    def validated(self, state: State, seconds: float) -> None:
        """Take note of a validation that took some seconds and has just ended."""


@dataclass
class StepSchedule(Schedule):
    """The steps of the recipe, whatever time they take."""

    recipe: Recipe

    def rate(self, state: State) -> float:
        return self.recipe.rate_at(state.step)

    def ended(self, state: State) -> bool:
        return state.step >= self.recipe.steps

    def validation_due(self, state: State) -> bool:
        return state.step % self.recipe.validate_every == 0

    def validated(self, state: State, seconds: float) -> None:
        pass


@dataclass
class ClockSchedule(Schedule):
    """As many steps as fit into the recipe's minutes; the last validation is part of them."""

    recipe: Recipe
    last: float = 0.0
    """Seconds of training when the last validation ended."""
    reserved: float = 0.0
    """Seconds that a validation takes."""

    @property
    def budget(self) -> float:
        assert self.recipe.minutes is not None
        return 60 * self.recipe.minutes

    def progress(self, state: State) -> float:
        """The elapsed fraction of the time for training."""
        return state.seconds / max(0.1 * self.budget, self.budget - self.reserved)

    def rate(self, state: State) -> float:
        return self.recipe.rate_after(self.progress(state))

    def ended(self, state: State) -> bool:
        return state.step > 0 and self.progress(state) >= 1

    def validation_due(self, state: State) -> bool:
        # a network may know its training part by heart long before the time is over
        interval = min(max(self.budget / OFTEN, state.seconds / EARLY), self.budget / RARELY)
        return state.seconds - self.last >= max(interval, TRAINING * self.reserved)

    def validated(self, state: State, seconds: float) -> None:
        self.last, self.reserved = state.seconds, seconds


def schedule_of(recipe: Recipe, state: State) -> Schedule:
    if recipe.minutes is None:
        return StepSchedule(recipe)
    return ClockSchedule(recipe, last=state.seconds)
