"""Constants that are refined by the likelihood of the observations."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from gridtnp.amortised import refinement
from gridtnp.amortised.constants import Change
from gridtnp.amortised.posterior import observed_covariance
from gridtnp.amortised.process import FUNCTIONS, Places, Shape
from gridtnp.amortised.refinement import PRIOR, refine

seeds = st.integers(0, 2**32 - 1)


def process(number: int, seed: int, noise: float = 0.1, width: float = 4.0) -> tuple[Places, Shape]:
    """Places in a square, some length-scales wide, of a process of one task."""
    rng = np.random.default_rng(seed)

    def one(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values)[None]

    every = np.ones(number)
    places = Places(
        one(rng.uniform(0, width, (number, 2))),
        one(every),
        one(np.exp(0.1 * rng.normal(size=number))),
        one(0.1 * rng.normal(size=(number, 2))),
        one(noise * every),
        one(0.5 * every[:, None]),
    )
    weights = torch.from_numpy(rng.dirichlet(np.ones(FUNCTIONS)))[None]
    return places, Shape(weights, torch.tensor([0.3]).double())


def used(places: Places) -> torch.Tensor:
    return torch.ones(places.x.shape[:2], dtype=torch.bool)


def drawn(places: Places, shape: Shape, seed: int) -> torch.Tensor:
    """Observations of the process."""
    root = torch.linalg.cholesky(observed_covariance(places, shape, used(places)))
    normal = torch.from_numpy(np.random.default_rng(seed).normal(size=places.x.shape[1]))
    return (root @ normal[..., None])[..., 0]


def penalised(places: Places, shape: Shape, y: torch.Tensor, change: torch.Tensor) -> float:
    """The log-likelihood of observations and prior after a change, by SciPy."""
    by = Change(change[None])
    moved, form = by.places(places, torch.zeros_like(y)), by.shape(shape)
    with torch.no_grad():
        k = observed_covariance(moved, form, used(places))[0].numpy()
    return multivariate_normal(cov=k).logpdf(y[0].numpy()) - 0.5 * float(
        (change / torch.tensor(refinement.PRIOR)).square().sum()
    )


@settings(max_examples=examples(10))
@given(seed=seeds, wrong=st.floats(-1, 1))
def test_the_step_is_that_of_fisher_scoring(seed: int, wrong: float) -> None:
    """Towards the gradient of the likelihood, by finite differences of SciPy's."""
    places, shape = process(40, seed)
    y = drawn(replace(places, x=places.x * math.exp(0.3 * wrong)), shape, seed + 1)
    zero, step = torch.zeros(len(PRIOR)).double(), 1e-4
    gradient = np.array(
        [
            (penalised(places, shape, y, at) - penalised(places, shape, y, -at)) / (2 * step)
            for at in step * torch.eye(len(PRIOR)).double()
        ]
    )
    found = refine(places, y, used(places), torch.zeros_like(y), shape).values[0]
    if found.any():
        assert found.numpy() @ gradient > 0  # Fisher's information is positive
        assert penalised(places, shape, y, found) > penalised(places, shape, y, zero)


@pytest.mark.parametrize("number", [200, 700])
def test_many_observations_correct_wrong_constants(number: int) -> None:
    """Length-scale, amplitude and noise that are all 20 % off come nearer to the true ones."""
    true, shape = process(number, 0, width=12.0)
    y = drawn(true, shape, 1)
    off = Change(torch.tensor([[0.2, -0.2, 0.2, 0, 0, 0, 0]]).double())
    wrong = off.places(true, torch.zeros_like(y))
    found = refine(wrong, y, used(wrong), torch.zeros_like(y), shape).values[0]
    assert -0.25 < found[0] < -0.02
    assert 0.02 < found[1] < 0.25


def test_masked_observations_and_other_tasks_change_nothing() -> None:
    places, shape = process(50, 3)
    y, none = drawn(places, shape, 4), torch.zeros(1, 50).double()
    alone = refine(places, y, used(places), none, shape).values
    mask = torch.arange(60)[None] < 50

    def padded(values: torch.Tensor) -> torch.Tensor:
        return torch.cat([values, values[:, :10] + 3.0], 1)

    more = Places(*map(padded, places))
    both = Places(*(torch.cat([v, v.flip(1)]) for v in more))
    found = refine(
        both,
        torch.cat([padded(y), padded(y).flip(1)]),
        torch.cat([mask, mask.flip(1)]),
        torch.zeros(2, 60).double(),
        Shape(shape.weights.expand(2, -1), shape.shrink.expand(2)),
    ).values
    torch.testing.assert_close(found, alone.expand(2, -1))


def test_known_errors_of_readings_stay() -> None:
    places, _ = process(5, 0)
    change = Change(torch.tensor([[0.0, 0, math.log(2), 0, 0, 0, 0]]).double())
    known = torch.tensor([[0.0, 0.02, 0.04, 0.06, 0.1]]).double()
    assert torch.allclose(change.places(places, known).noise, 0.2 - known)


def test_without_observations_nothing_changes() -> None:
    places, shape = process(4, 0)
    found = refine(places, torch.zeros(1, 4).double(), ~used(places), torch.zeros(1, 4), shape)
    assert not found.values.any()


def test_a_step_to_less_likely_constants_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a prior so wide that the quadratic approximation is far off."""
    places, shape = process(6, 0, noise=1e-6)
    y = drawn(places, shape, 1) * 30
    zero = torch.zeros(len(PRIOR)).double()
    monkeypatch.setattr(refinement, "PRIOR", (50.0,) * len(PRIOR))
    monkeypatch.setattr(refinement, "FEW", 0)
    found = refine(places, y, used(places), torch.zeros_like(y), shape).values[0]
    assert penalised(places, shape, y, found) >= penalised(places, shape, y, zero) - 1e-6
