"""Pieces of a computation in parallel, each in a thread of its own.

PyTorch's own threads gain little here, as operations are many and small, and while they wait for
the next one, they take the processor from others. So they rest meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

P = TypeVar("P")
T = TypeVar("T")
AHEAD = 2
"""Pieces per thread that may wait to be used."""
_available: ContextVar[int | None] = ContextVar("threads", default=None)


def number_of_threads() -> int:
    """As many as PyTorch has, or had before they were to rest."""
    return _available.get() or torch.get_num_threads()


@contextmanager
def resting() -> Iterator[None]:
    """PyTorch computes with one thread, and `in_order` with as many as it had."""
    before, token = torch.get_num_threads(), _available.set(number_of_threads())
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _available.reset(token)


def in_order(make: Callable[[P], T], pieces: Sequence[P]) -> Iterator[T]:
    """`make(piece)` of every piece, in parallel unless gradients are needed."""
    if torch.is_grad_enabled():
        return map(make, pieces)

    def made(piece: P) -> T:
        with torch.no_grad():  # which has to be said in each thread, and outside of this function
            return make(piece)

    number = number_of_threads()
    return map(made, pieces) if min(number, len(pieces)) == 1 else _threaded(made, pieces, number)


def _threaded(make: Callable[[P], T], pieces: Sequence[P], number: int) -> Iterator[T]:
    waiting: deque[Future[T]] = deque()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(number, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for piece in pieces:
                waiting.append(pool.submit(make, piece))
                if len(waiting) > AHEAD * number:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        torch.set_num_threads(before)
