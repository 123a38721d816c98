"""Jobs: requests for many points, computed one after the other and kept as files for a while."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from gridtnp.server.work import (
    RETRY_AFTER,
    Abandoned,
    Limits,
    Refused,
    Ticket,
    perform,
    yield_to_others,
)

Status = Literal["accepted", "running", "successful", "failed", "dismissed"]
"""As in OGC API – Processes."""


@dataclass(eq=False)
class Job:
    """One request: its state, its file, and its progress."""

    path: Path
    ticket: Ticket
    status: Status = "accepted"
    message: str = ""
    notes: tuple[str, ...] = ()
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    created: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def over(self) -> bool:
        return self.status not in ("accepted", "running")

    @property
    def progress(self) -> int:
        """In percent."""
        if self.status == "successful":
            return 100
        return min(99, 100 * self.ticket.done // max(self.ticket.total, 1))


class Jobs:
    """Computes jobs in a thread of its own; results are files in a temporary folder."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.folder = Path(tempfile.mkdtemp(prefix="gridtnp-jobs-"))
        self.pool = ThreadPoolExecutor(1, "job", yield_to_others, (10,))
        self.jobs: dict[str, Job] = {}
        self.lock = threading.Lock()

    def submit(self, work: Callable[[Ticket, Path], object], total: int, ending: str) -> Job:
        """Start a job, which writes to the path that it is given."""
        with self.lock:
            unfinished = sum(not job.over for job in self.jobs.values())
            if unfinished >= self.limits.jobs:
                raise Refused(
                    429,
                    f"{unfinished} jobs are unfinished; try again when one of them has ended.",
                    {"Retry-After": RETRY_AFTER},
                )
            ticket = Ticket(self.limits.job_seconds, total)
            job = Job(Path(), ticket)
            job.path = self.folder / f"{job.id}{ending}"
            self.jobs[job.id] = job
            ended = [other for other in self.jobs.values() if other.over]
            for old in ended[: max(0, len(ended) - self.limits.kept_jobs + 1)]:
                self._forget(old)
        self.pool.submit(self._run, job, work)
        return job

    def find(self, key: str) -> Job:
        job = self.jobs.get(key)
        if job is None:
            raise Refused(
                404, f"There is no job {key!r}; jobs are forgotten after {self.limits.kept_jobs}."
            )
        return job

    def dismiss(self, key: str) -> Job:
        """Stop a job, or forget its result."""
        with self.lock:
            job = self.find(key)
            job.ticket.cancelled = True
            if not job.ticket.started or job.over:
                self._forget(job)
            job.status = "dismissed"
        return job

    def _run(self, job: Job, work: Callable[[Ticket, Path], object]) -> None:
        if job.ticket.cancelled:
            return
        job.status = "running"
        try:
            found = perform(lambda ticket: work(ticket, job.path), job.ticket)
            status, job.notes = "successful", found.notes
        except Abandoned:
            status = "dismissed"
        except Exception as error:
            status, job.message = "failed", str(error) or type(error).__name__
        with self.lock:
            job.status = "dismissed" if job.ticket.cancelled else status
            if job.status == "dismissed":
                self._forget(job)

    def _forget(self, job: Job) -> None:
        self.jobs.pop(job.id, None)
        job.path.unlink(missing_ok=True)

    def close(self) -> None:
        for job in list(self.jobs.values()):
            job.ticket.cancelled = True
        self.pool.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self.folder, ignore_errors=True)
