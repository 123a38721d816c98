"""Pieces in threads: their order, how many are made in advance, and the same numbers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import gridtnp as gt
from gridtnp.amortised.threads import AHEAD, in_order, number_of_threads, resting


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_pieces_come_in_order_and_each_has_one_thread() -> None:
    with torch.no_grad():
        found = in_order(lambda i: (i, torch.get_num_threads(), torch.is_grad_enabled()), range(50))
    assert list(found) == [(i, 1, False) for i in range(50)]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_few_pieces_are_made_before_they_are_asked_for() -> None:
    made: list[int] = []
    with torch.no_grad():
        found = in_order(made.append, range(100))
        next(found)
        assert len(made) <= 2 * AHEAD + 3
        found.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_threads_of_pytorch_rest_meanwhile() -> None:
    with resting(), torch.no_grad():
        assert (torch.get_num_threads(), number_of_threads()) == (1, 2)
        found = list(in_order(lambda _: (threading.get_ident(), number_of_threads()), range(20)))
        assert (torch.get_num_threads(), number_of_threads()) == (1, 2)
    assert threading.get_ident() not in dict(found)
    assert {number for _, number in found} == {1}  # so that pieces of pieces start no more
    assert (torch.get_num_threads(), number_of_threads()) == (2, 2)


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_piece_is_raised() -> None:
    with torch.no_grad(), pytest.raises(ZeroDivisionError):
        list(in_order(lambda i: 1 / (i - 3), range(9)))
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_gradients_need_the_thread_that_asks_for_them() -> None:
    x = torch.ones(3, requires_grad=True)
    assert all(y.requires_grad for y in in_order(lambda i: x[i], range(3)))


@pytest.mark.usefixtures("two_threads")
def test_the_number_of_threads_changes_roundings_only() -> None:
    rng = np.random.default_rng(0)
    x, at = rng.random((700, 2)), rng.random((9000, 2))
    y, found = np.sin(9 * x[:, 0]) + 0.1 * rng.normal(size=700), []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        found.append(gt.interpolate((x, y), at))
    for name, values in found[0].items():
        np.testing.assert_allclose(found[1][name], values, rtol=0, atol=1e-6 * values.std())
