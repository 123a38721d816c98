"""Progress display of training: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

from gridtnp.training.loop import Progress

LINES = 20
"""Approximate number of plain lines in all."""


class Display:
    """`with Display(steps) as show:` then `show(progress)`."""

    def __init__(
        self,
        steps: int,
        *,
        minutes: float | None = None,
        quiet: bool = False,
        console: Console | None = None,
    ) -> None:
        self.steps, self.minutes, self.quiet = steps, minutes, quiet
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.bar: Bar | None = None
        self.line: TaskID | None = None
        self.shown = 0
        self.validation: float | None = None

    def __enter__(self) -> Display:
        if self.console.is_terminal and not self.quiet:
            count = () if self.minutes is not None else (MofNCompleteColumn(),)
            columns = (BarColumn(24), *count, TextColumn("{task.fields[note]}"))
            self.bar = Bar(*columns, console=self.console)
            total = self.steps if self.minutes is None else 60 * self.minutes
            self.line = self.bar.add_task("", total=total, note="")
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, progress: Progress) -> None:
        if self.quiet:
            return
        if progress.validation is not None:
            self.validation = progress.validation
        note = self.summary(progress)
        if self.bar is not None and self.line is not None:
            done = progress.step if self.minutes is None else progress.seconds
            self.bar.update(self.line, completed=done, note=note)
            return
        fraction = self.fraction(progress)
        due = int(fraction * LINES + 1e-9)
        if due > self.shown or fraction >= 1:
            self.shown = due
            of = f" of {self.steps:,}" if self.minutes is None else ""
            self.console.print(f"step {progress.step:,}{of}  {note}")

    def fraction(self, progress: Progress) -> float:
        """How much of the training is done."""
        if self.minutes is None:
            return progress.step / self.steps
        return progress.seconds / (60 * self.minutes)

    def summary(self, progress: Progress) -> str:
        """Loss, validation, speed and time left."""
        parts = [f"loss {progress.loss:.3f}"]
        if self.validation is not None:
            parts.append(f"validation log-likelihood {self.validation:.3f}")
        parts.append(f"{progress.speed:,.0f} points/s")
        left = progress.seconds * (1 / max(1e-9, self.fraction(progress)) - 1)
        parts.append(f"{_clock(max(0.0, left))} left")
        return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
