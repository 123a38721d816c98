"""Predictions on dask: a task per region, written by the worker that answers it.

The model and the context travel once; every worker keeps them, and another one that joins, or
replaces one that died, gets them in turn. Workers read the values of lazy sources themselves. All
that comes back are counts, so that neither the client nor the scheduler holds any field. As many
tasks are out as keep the workers busy.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gridtnp import __version__
from gridtnp.files import reporting
from gridtnp.inference.forecasts import Advance, Forecaster
from gridtnp.inference.regions import Regions
from gridtnp.inference.running import region_answer
from gridtnp.inference.stores import RegionStore
from gridtnp.sources.reading import require_installed

TIMEOUT = 10.0
"""Seconds in which a scheduler must answer."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
REUSED = 2**25
"""Arrays up to this size, the most that glibc allows, are kept for reuse."""
AHEAD = 3
"""Tasks per thread of the workers that are out at once."""


@dataclass(frozen=True, eq=False)
class Job:
    """What a worker needs to answer any region."""

    forecaster: Forecaster
    regions: Regions
    store: RegionStore
    version: str


def fill_on_workers(
    client: Any,
    forecaster: Forecaster,
    regions: Regions,
    store: RegionStore,
    numbers: Iterable[int],
    advance: Advance,
) -> Any:
    """Answer regions on the workers of a dask client; what could not be predicted.

    If a worker dies, the tasks that it had are given to others.
    """
    distributed = require_installed("distributed", "dask", "client=")
    _require_version(client)
    left = iter(list(numbers))
    # the job is the result of a task, which the scheduler can have done again elsewhere
    job = client.submit(_job, Job(forecaster.fresh(), regions, store, __version__), pure=False)
    counts, busy = forecaster.counts(), AHEAD * max(1, sum(client.nthreads().values()))
    with _explained(distributed, store):
        tasks = distributed.as_completed(_submitted(client, job, islice(left, busy)))
        for task in tasks:
            number, found = task.result()
            counts = counts + found
            advance(number)
            task.release()
            tasks.update(_submitted(client, job, islice(left, 1)))
    return counts


def _submitted(client: Any, job: Any, numbers: Iterable[int]) -> list[Any]:
    return [client.submit(_answer, job, number, pure=False) for number in numbers]


def _job(job: Job) -> Job:
    return job


def _answer(job: Job, number: int) -> tuple[int, Any]:
    """Answer a region on a worker: the number of its points, and what could not be predicted."""
    if job.version != __version__:
        raise ValueError(_other_version(__version__, job.version, "a worker"))
    _keep_freed_memory()
    forecaster, done = job.forecaster.fresh(), 0

    def advance(points: int) -> None:
        nonlocal done
        done += points

    dask = require_installed("dask", "dask", "client=")
    with dask.config.set(scheduler="synchronous"):  # else lazy sources would be read by new tasks
        answer = region_answer(forecaster, job.regions, number, advance)
    with reporting(job.store.path):
        job.store.write(job.regions, number, answer)
    return done, forecaster.counts()


@functools.cache
def _keep_freed_memory() -> None:
    """Let this process reuse the memory of arrays.

    dask starts workers with `MALLOC_TRIM_THRESHOLD_=65536`, by which the memory of every larger
    array is fetched from the system anew, which takes about as long as predicting a small region.
    """
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        libc = ctypes.CDLL(None)
        for parameter, size in ((M_MMAP_THRESHOLD, REUSED), (M_TRIM_THRESHOLD, 8 * REUSED)):
            libc.mallopt(parameter, size)


def _require_version(client: Any) -> None:
    """Raise unless there are workers, and all have this version."""
    found = client.run(_version)
    if not found:
        raise ValueError("The scheduler has no workers; start at least one.")
    for worker, version in found.items():
        if version != __version__:
            raise ValueError(_other_version(version, __version__, f"worker {worker}"))


def _version() -> str:
    return __version__


def _other_version(there: str, here: str, worker: str) -> str:
    return f"gridtnp is {there} on {worker}, but {here} here; install one version everywhere."


@contextmanager
def _explained(distributed: Any, store: RegionStore) -> Iterator[None]:
    """What to do if the scheduler or all workers are lost."""
    try:
        yield
    except (
        distributed.CancelledError,
        distributed.KilledWorker,
        distributed.comm.CommClosedError,
    ) as error:
        reason = str(error).split(". ")[0].splitlines()[0] if str(error) else type(error).__name__
        raise RuntimeError(
            f"The workers or their scheduler were lost ({reason}); what is done is in "
            f"{str(store.path)!r}, and resume=True does the rest."
        ) from error


@contextmanager
def open_client(scheduler: str) -> Iterator[Any]:
    """A client of the scheduler at an address, or of `local:4`, four processes started here."""
    distributed = require_installed("distributed", "dask", "A scheduler")
    kind, _, number = scheduler.partition(":")
    if kind == "local":
        if not number.isdecimal() or int(number) < 1:
            raise ValueError(f"Not a number of workers: {scheduler!r}; write it like local:4.")
        with (
            distributed.LocalCluster(
                n_workers=int(number), threads_per_worker=1, dashboard_address="127.0.0.1:0"
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client
        return
    try:
        client = distributed.Client(scheduler, timeout=TIMEOUT)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"No scheduler answers at {scheduler!r} ({str(error).splitlines()[0].rstrip('.')}); "
            "check the address, or use local:4."
        ) from error
    with client:
        yield client
