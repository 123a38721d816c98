"""Building blocks: what rows go through, and projections taken apart."""

import pytest
import torch
from torch import nn

from gridtnp.network.layers import mlp, parts, steps


def test_a_perceptron_is_what_its_modules_do_one_after_the_other() -> None:
    perceptron = mlp(3, 2, dim=5, hidden_layers=2)
    x = torch.randn(4, 3)
    torch.testing.assert_close(perceptron(x), nn.Sequential.forward(perceptron, x))


def test_only_what_works_row_by_row_can_be_a_step() -> None:
    with pytest.raises(TypeError, match="Conv1d is not something that rows go through"):
        list(steps(nn.Linear(2, 2), nn.Conv1d(2, 2, 1)))


@pytest.mark.parametrize("layout", ["side by side", "apart", "the other way round"])
def test_parts_have_the_gradient_of_the_whole(layout: str) -> None:
    z = torch.randn(2, 3, 2, 4, 5, requires_grad=True)
    wanted = torch.randn(2, 3, 2, 4, 5)
    grads = list(wanted.unbind(-3))
    if layout == "apart":
        grads = [g.clone() for g in grads]
    elif layout == "the other way round":
        grads = list(wanted.flip(-3).contiguous().unbind(-3))[::-1]
    (found,) = torch.autograd.grad(parts(z), z, grads)
    assert torch.equal(found, wanted)
    if layout == "side by side":
        assert found.data_ptr() == wanted.data_ptr()  # taken as it is
