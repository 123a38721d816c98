"""Things made in the background, in order, so that whoever uses them never waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prepared(
    make: Callable[[int], T], start: int = 0, *, workers: int = 1, ahead: int = 4
) -> Iterator[T]:
    """`make(start)`, `make(start + 1)`, … without end, `ahead` of them before they are asked for.

    The order does not depend on the number of workers.
    """
    if workers < 1:
        raise ValueError(f"At least one worker must make the tasks, got {workers}.")
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[T]] = deque()
        while True:
            while len(waiting) < max(ahead, workers):
                waiting.append(pool.submit(make, start))
                start += 1
            yield waiting.popleft().result()
