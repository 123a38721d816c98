"""Building blocks: row-wise steps of modules, and split projections."""

import pytest
import torch
from torch import nn

from gridtnp.network.layers import mlp, split_projection, steps


def test_an_mlp_computes_its_modules_in_order() -> None:
    network = mlp(3, 2, dim=5, hidden_layers=2)
    x = torch.randn(4, 3)
    torch.testing.assert_close(network(x), nn.Sequential.forward(network, x))


def test_other_modules_are_refused() -> None:
    with pytest.raises(TypeError, match="Conv1d is not a row-wise module"):
        list(steps(nn.Linear(2, 2), nn.Conv1d(2, 2, 1)))


@pytest.mark.parametrize("layout", ["side by side", "apart", "the other way round"])
def test_split_projections_have_the_gradient_of_the_joint_one(layout: str) -> None:
    z = torch.randn(2, 3, 2, 4, 5, requires_grad=True)
    wanted = torch.randn(2, 3, 2, 4, 5)
    grads = list(wanted.unbind(-3))
    if layout == "apart":
        grads = [g.clone() for g in grads]
    elif layout == "the other way round":
        grads = list(wanted.flip(-3).contiguous().unbind(-3))[::-1]
    (found,) = torch.autograd.grad(split_projection(z), z, grads)
    assert torch.equal(found, wanted)
    if layout == "side by side":
        assert found.data_ptr() == wanted.data_ptr()  # without a copy
