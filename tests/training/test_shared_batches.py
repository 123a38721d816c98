"""A batch in pieces has the loss and the gradient of the full batch."""

import pytest
import torch
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_loop import model

from gridtnp.task import PointSet, Task
from gridtnp.training.distributed import SummedLoss, points_of, share, targets_of


def batch(size: int, seed: int) -> Task:
    generator = torch.Generator().manual_seed(seed)

    def points(n: int) -> PointSet:
        x = torch.rand(size, n, 2, generator=generator) * 2 - 1
        mask = torch.rand(size, n, generator=generator) < 0.7
        return PointSet(x, torch.randn(size, n, 1, generator=generator), mask)

    return Task({"observations": points(12)}, points(9))


@settings(max_examples=examples(20))
@given(size=st.integers(1, 6), pieces=st.integers(1, 6), seed=st.integers(0, 9))
def test_pieces_are_the_batch(size: int, pieces: int, seed: int) -> None:
    task = batch(size, seed)
    if pieces > size:
        with pytest.raises(
            ValueError, match=rf"batch of {size} cannot be split into {pieces} pieces"
        ):
            share(task, 0, pieces)
        return
    parts = [share(task, i, pieces) for i in range(pieces)]
    assert all(part.target.batch for part in parts)
    assert torch.equal(torch.cat([part.target.x for part in parts]), task.target.x)
    assert sum(map(targets_of, parts)) == targets_of(task) == int(task.target.mask.sum())
    assert sum(map(points_of, parts)) == points_of(task)


def test_summed_pieces_have_the_gradient_of_the_networks_own_loss() -> None:
    network, task = model(), batch(5, 0)
    network.loss(task).backward()
    expected = {k: p.grad.clone() for k, p in network.named_parameters()}
    network.zero_grad()
    loss = SummedLoss(network)
    for i in range(3):
        (loss(share(task, i, 3)) / targets_of(task)).backward()
    for name, p in network.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_half_precision_is_close() -> None:
    network, task = model(), batch(2, 0)
    exact, rough = SummedLoss(network)(task), SummedLoss(network, "bfloat16")(task)
    assert exact != rough
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.5)


def test_targets_without_values_have_no_loss() -> None:
    task = batch(1, 0)
    with pytest.raises(ValueError, match=r"targets have no outputs y, which the loss needs"):
        SummedLoss(model())(task.at(PointSet(task.target.x)))
