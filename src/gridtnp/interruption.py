"""Ctrl-C, or a scheduler that wants its machine back: noticed at the next safe moment."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """`with Interruption() as asked:` then `if asked:`. A second Ctrl-C does not wait."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self.asked

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # only it gets signals
            self._before = {s: signal.signal(s, self._note) for s in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
