"""Work beside the event loop: predictions in threads, with limits, deadlines and cancellation."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gridtnp.sources.quality import collecting

Result = TypeVar("Result")
RETRY_AFTER = "2"
"""Seconds after which a client that was refused may try again."""


@dataclass(frozen=True)
class Limits:
    """What one request may cost, and how much is done at once.

    `body` is in bytes. Up to `points` points are answered at once, up to `job_points` as a job.
    `observations` is the number of rows in a body. `seconds` is the time to compute an answer,
    `head_seconds` and `body_seconds` to receive a request, `job_seconds` to compute a job. Up to
    `workers` predictions run at once, `waiting` more wait; `jobs` are unfinished jobs, `kept_jobs`
    finished ones.
    """

    body: int = 10_000_000
    head_seconds: float = 10.0
    body_seconds: float = 20.0
    points: int = 50_000
    observations: int = 20_000
    seconds: float = 60.0
    workers: int = field(default_factory=lambda: max(os.cpu_count() or 1, 1))
    waiting: int = 128
    connections: int = 512
    job_points: int = 2_000_000
    job_seconds: float = 3600.0
    jobs: int = 4
    kept_jobs: int = 16

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name}={value}: must be positive.")


class Refused(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: int, description: str, headers: dict[str, str] | None = None):
        super().__init__(description)
        self.status, self.description, self.headers = status, description, headers or {}


class Abandoned(Exception):
    """Nobody waits for the result any more."""


class Ticket:
    """One piece of work: how much is done, and whether it is still wanted.

    The worker calls `advance` after every piece, which raises once it is not.
    """

    def __init__(self, seconds: float, total: int = 0) -> None:
        self.seconds, self.total, self.done = seconds, total, 0
        self.cancelled, self.started = False, False
        self.deadline = float("inf")

    def begin(self) -> None:
        self.started = True
        self.deadline = time.monotonic() + self.seconds
        self.advance(0)

    def advance(self, number: int) -> None:
        self.done += number
        if self.cancelled:
            raise Abandoned
        if time.monotonic() > self.deadline:
            raise Refused(
                408,
                f"The answer took longer than {self.seconds:g} s and was stopped; ask for fewer "
                "points or times.",
            )


@dataclass(frozen=True)
class Found(Generic[Result]):
    """A result, and notes about the data that led to it."""

    result: Result
    notes: tuple[str, ...]


def perform(work: Callable[[Ticket], Result], ticket: Ticket) -> Found[Result]:
    """Do a piece of work in this thread, and collect what it says about the data."""
    with collecting() as notes:
        ticket.begin()
        result = work(ticket)
    return Found(result, tuple(notes))


def yield_to_others(niceness: int) -> None:
    """Lower the priority of this thread, so that the event loop goes first; Linux only."""
    if not sys.platform.startswith("linux"):
        return  # elsewhere it would be the priority of the whole process
    with suppress(OSError):
        own = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, own)
        os.setpriority(os.PRIO_PROCESS, own, min(now + niceness, 19))


class Workers:
    """Threads for answers that a client waits for."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = ThreadPoolExecutor(limits.workers, "predict", yield_to_others, (5,))
        self.tickets: set[Ticket] = set()

    @property
    def running(self) -> int:
        return sum(ticket.started for ticket in list(self.tickets))

    @property
    def waiting(self) -> int:
        return len(self.tickets) - self.running

    async def run(
        self, work: Callable[[Ticket], Result], gone: Callable[[], Awaitable[None]]
    ) -> Found[Result]:
        """The result of some work; given up as soon as `gone` returns, when the client has left."""
        if self.waiting >= self.limits.waiting:
            raise Refused(
                429,
                f"{self.waiting} requests wait already; try again in {RETRY_AFTER} s.",
                {"Retry-After": RETRY_AFTER},
            )
        ticket = Ticket(self.limits.seconds)
        self.tickets.add(ticket)
        inner = self.pool.submit(perform, work, ticket)
        inner.add_done_callback(lambda _: self.tickets.discard(ticket))  # when the thread is free
        future, watch = asyncio.wrap_future(inner), asyncio.ensure_future(gone())
        try:
            await asyncio.wait({future, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                raise Abandoned
            return future.result()
        finally:
            ticket.cancelled = True
            future.cancel()  # work that has begun stops at its next piece
            watch.cancel()

    def close(self) -> None:
        for ticket in list(self.tickets):
            ticket.cancelled = True
        self.pool.shutdown(wait=True, cancel_futures=True)
