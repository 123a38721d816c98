"""Prefetching: items made in background threads, delivered in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch(
    make: Callable[[int], T], start: int = 0, *, workers: int = 1, ahead: int = 4
) -> Iterator[T]:
    """`make(start)`, `make(start + 1)`, … without end, up to `ahead` of them in advance.

    The order does not depend on the number of workers.
    """
    if workers < 1:
        raise ValueError(f"workers={workers}: at least one is needed.")
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[T]] = deque()
        while True:
            while len(pending) < max(ahead, workers):
                pending.append(pool.submit(make, start))
                start += 1
            yield pending.popleft().result()
