"""Pieces of a computation in parallel, each in a thread of its own.

PyTorch's own threads gain little here: operations are many and small.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

P = TypeVar("P")
T = TypeVar("T")
AHEAD = 2
"""Pieces per thread that may wait to be used."""


def in_order(make: Callable[[P], T], pieces: Sequence[P]) -> Iterator[T]:
    """`make(piece)` of every piece, with as many threads as PyTorch has, unless gradients are
    needed.
    """
    if torch.is_grad_enabled():
        return map(make, pieces)

    def made(piece: P) -> T:
        with torch.no_grad():  # which has to be said in each thread, and outside of this function
            return make(piece)

    number = torch.get_num_threads()
    return map(made, pieces) if min(number, len(pieces)) == 1 else _threaded(made, pieces, number)


def _threaded(make: Callable[[P], T], pieces: Sequence[P], number: int) -> Iterator[T]:
    waiting: deque[Future[T]] = deque()
    try:
        with ThreadPoolExecutor(number, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for piece in pieces:
                waiting.append(pool.submit(make, piece))
                if len(waiting) > AHEAD * number:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        torch.set_num_threads(number)  # the threads have set it for all
