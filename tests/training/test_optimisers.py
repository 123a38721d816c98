"""Muon orthogonalises its updates; every weight has exactly one optimiser."""

import pytest
import torch
from torch import nn

from gridtnp.recipes import Recipe
from gridtnp.training.optimisers import Muon, make_optimisers, orthogonal


@pytest.mark.parametrize("shape", [(16, 16), (16, 40), (40, 16)])
def test_singular_values_come_near_one_and_vectors_stay(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)).double()
    found = orthogonal(matrices, steps=8)
    for before, after in zip(matrices, found, strict=True):
        u, s, v = torch.linalg.svd(before, full_matrices=False)
        inner = u.T @ after @ v.T  # diagonal in the same singular vectors
        kept = s > 0.05 * s.max()
        values = inner.diagonal()[kept]
        assert ((values > 0.6) & (values < 1.3)).all()
        assert (inner - inner.diagonal().diag()).abs().max() < 1e-8


def test_a_step_of_muon_is_the_orthogonal_direction_of_its_momentum() -> None:
    weight = nn.Parameter(torch.ones(16, 32))
    gradients = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(1))
    optimiser = Muon([weight], rate=0.1, weight_decay=0.5)
    expected, mean = torch.ones(16, 32), torch.zeros(16, 32)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimiser.step()
        mean = 0.95 * mean + 0.05 * gradient
        update = orthogonal((0.05 * gradient + 0.95 * mean)[None])[0]
        expected = expected * (1 - 0.1 * 0.5) - 0.1 * 0.2 * 32**0.5 * update
        torch.testing.assert_close(weight.detach(), expected)


def test_every_weight_has_one_optimiser() -> None:
    network = nn.Sequential(
        nn.Conv2d(4, 16, 3), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 2)
    )
    muon, adamw = make_optimisers(network, Recipe(1, optimiser="muon"))
    shapes = [tuple(p.shape) for p in muon.param_groups[0]["params"]]
    assert shapes == [(16, 4, 3, 3), (16, 16)]  # not the two outputs of the last
    both = [p for o in (muon, adamw) for g in o.param_groups for p in g["params"]]
    assert len(both) == len({id(p) for p in both}) == len(list(network.parameters()))
    network(torch.randn(1, 4, 18, 18)[..., :18]).sum().backward()
    before = [p.detach().clone() for p in network.parameters()]
    muon.step()
    adamw.step()
    changed = [not torch.equal(b, p) for b, p in zip(before, network.parameters(), strict=True)]
    assert all(changed)


def test_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"weight matrices, got a parameter of shape \(3,\)"):
        Muon([nn.Parameter(torch.zeros(3))], rate=0.1)
