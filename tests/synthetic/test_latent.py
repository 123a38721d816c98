"""Targets of any distribution given a latent process: the exact answer, and what is drawn."""

from __future__ import annotations

import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Normal

from gridtnp.distributions.kinds import Kind
from gridtnp.synthetic.covariances import SquaredExponential
from gridtnp.synthetic.latent import OBSERVATIONS, LatentTasks, predictive_log_density
from gridtnp.synthetic.processes import GaussianProcess


def tasks(kind: str) -> LatentTasks:
    process = GaussianProcess(
        box=((-2.0, 2.0),), context=12, targets=30, kernel=SquaredExponential(0.5)
    )
    return LatentTasks(process, OBSERVATIONS[kind])


def test_every_likelihood_has_a_process() -> None:
    assert set(OBSERVATIONS) == set(Kind.__args__)


@pytest.mark.parametrize("kind", list(OBSERVATIONS))
def test_the_quadrature_is_the_integral(kind: str) -> None:
    """Against a sum over many small steps."""
    batch = tasks(kind).draw(5, 0, 1)
    assert batch.task.target.y is not None
    y, given = batch.task.target.y.double(), batch.latent.posterior()
    latent = Normal(given.mean[..., 0], given.stddev[..., 0])
    assert float(latent.stddev.max()) > 0.3
    found = predictive_log_density(OBSERVATIONS[kind], latent, y)
    z = torch.linspace(-9, 9, 4_001, dtype=torch.float64)
    f = latent.mean[..., None] + latent.stddev[..., None] * z
    wide = y[..., None, :].expand(*f.shape, y.shape[-1])
    density = OBSERVATIONS[kind](f).log_prob(wide).sum(-1).exp()
    weight = torch.exp(-0.5 * z**2) / (2 * torch.pi) ** 0.5 * (z[1] - z[0])
    expected = (density * weight).sum(-1).log()
    if kind == "quantiles":  # a density with jumps, which no smooth rule integrates exactly
        assert float(found.mean()) == pytest.approx(float(expected.mean()), abs=0.01)
    else:
        assert torch.allclose(found, expected, atol=1e-4)


def test_a_normal_target_has_the_closed_form() -> None:
    latent = Normal(torch.tensor([[0.2]]).double(), torch.tensor([[0.7]]).double())
    y = torch.tensor([[[1.1]]]).double()
    found = predictive_log_density(OBSERVATIONS["gaussian"], latent, y).item()
    assert found == pytest.approx(stats.norm.logpdf(1.1, 0.2, (0.7**2 + 0.3**2) ** 0.5), rel=1e-6)


def test_a_count_against_scipy() -> None:
    latent = Normal(torch.tensor([[0.2]]).double(), torch.tensor([[0.7]]).double())
    y = torch.tensor([[[3.0]]]).double()
    found = predictive_log_density(OBSERVATIONS["poisson"], latent, y).exp().item()

    def integrand(f: float) -> float:
        return stats.poisson.pmf(3, torch.tensor(0.8 * f + 0.5).exp().item()) * stats.norm.pdf(
            f, 0.2, 0.7
        )

    assert found == pytest.approx(integrate.quad(integrand, -6, 6)[0], rel=1e-5)


@pytest.mark.parametrize("kind", ["poisson", "bernoulli-gamma", "bivariate-gaussian"])
def test_batches_are_reproducible_and_no_forecast_is_better(kind: str) -> None:
    made = tasks(kind)
    first, again, other = (made.draw(1, index, 16) for index in (0, 0, 1))
    values = [one.task.target.y for one in (first, again, other)]
    assert torch.equal(values[0], values[1])  # pyright: ignore
    assert not torch.equal(values[0], values[2])  # pyright: ignore
    # the distribution without the latent's uncertainty is worse, and so is one that is too wide
    given = first.latent.posterior()
    mean, y = given.mean[..., 0], values[0]
    assert y is not None
    exact = first.log_density().mean()
    sure = made.observation(mean).log_prob(y.double()).sum(-1).mean()
    vague = predictive_log_density(made.observation, Normal(mean, 3 * given.stddev[..., 0]), y)
    assert exact > sure
    assert exact > vague.double().mean()
