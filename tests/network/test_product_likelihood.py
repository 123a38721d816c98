"""Likelihoods of several kinds in one network, with and without kriging."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_kriged_network import config, points, task

from gridtnp import Task, build_model
from gridtnp.config import Kriging, Likelihood, ModelConfig
from gridtnp.distributions.marginals import Gaussian, Product
from gridtnp.distributions.mixed import BernoulliGamma
from gridtnp.network.kriging import KrigedNetwork
from gridtnp.network.likelihoods import FAMILIES, GaussianLikelihood, ProductLikelihood, limited
from gridtnp.training.calibration import calibrate_network
from gridtnp.training.distributed import SummedLoss

RAIN, NORMAL = Likelihood(kind="bernoulli-gamma"), Likelihood()


def rainy(*likelihood: Likelihood) -> tuple[KrigedNetwork, KrigedNetwork]:
    """A network of two outputs of some kinds, and one whose outputs are all normal."""
    prior = Kriging(of=(("stations", 0), ("stations", 1)), drift=("elevation",), length_scale=2.0)
    made = []
    for kinds in (likelihood, ()):
        network = build_model(config(dim_y=2, prior=prior, likelihood=kinds))
        assert isinstance(network, KrigedNetwork)
        made.append(network)
    return made[0], made[1]


def positive(n: int = 30) -> Task:
    """A task whose values cannot be negative."""
    made = task(n)
    context = {k: replace(v, y=v.y.abs() + 1) for k, v in made.context.items() if v.y is not None}
    return Task(context, points(12, 2, seed=9))


def test_normal_outputs_are_the_same_beside_others() -> None:
    mixed, normal = rainy(RAIN, NORMAL)
    found, expected = mixed(positive()), normal(positive())
    assert isinstance(found, Product)
    assert isinstance(found.outputs[0], BernoulliGamma)
    assert isinstance(found.outputs[1], Gaussian)
    assert torch.allclose(found.mean[..., 1], expected.mean[..., 1])
    assert torch.allclose(found.stddev[..., 1], expected.stddev[..., 1])


@pytest.mark.parametrize(
    "kind",
    sorted(set(FAMILIES) - {"categorical", "bernoulli", "spiked-beta", "bivariate-gaussian"}),
)
def test_fresh_weights_predict_nearly_what_kriging_predicts(kind: str) -> None:
    """Of all families whose values are not limited to 0 to 1."""
    size = 3 if kind == "normal-mixture" else 15 if kind == "quantiles" else None
    mixed, normal = rainy(Likelihood(kind=kind, components=size), NORMAL)
    context = positive()
    found, expected = mixed(context).mean[..., 0], normal(context).mean[..., 0]
    sure = expected > 2 * normal(context).stddev[..., 0]
    assert bool(sure.any())
    tolerance = 0.4 if kind == "censored-gamma" else 0.1
    assert torch.allclose(found[sure], expected[sure], rtol=tolerance)


def test_roots_are_kriged() -> None:
    """Kriging of roots, and back: as if the roots were observed."""
    prior = Kriging(
        of=(("stations", 0), ("stations", 1)),
        drift=("elevation",),
        length_scale=2.0,
        powers=(0.5, 1.0),
    )
    network = build_model(config(dim_y=2, prior=prior, likelihood=(RAIN, NORMAL)))
    plain = build_model(
        config(dim_y=2, prior=prior.model_copy(update={"powers": ()}), likelihood=(RAIN, NORMAL))
    )
    assert isinstance(network, KrigedNetwork)
    made = positive()
    roots = {
        k: replace(v, y=torch.cat([v.y[..., :1].sqrt(), v.y[..., 1:]], -1))
        for k, v in made.context.items()
        if v.y is not None
    }
    found, root = network(made), plain(Task(roots, made.target))
    assert torch.allclose(found.mean[..., 1], root.mean[..., 1])
    # of a normal root with mean m and deviation s, the square has mean m² + s²
    mean, std = torch.tensor([[[1.5, 0.0]]]).double(), torch.tensor([[[0.2, 1.0]]]).double()
    back = network._back(mean, std)
    assert back[0].flatten().tolist() == pytest.approx([1.5**2 + 0.2**2, 0.0])
    assert back[1][..., 0].item() == pytest.approx((4 * 1.5**2 * 0.2**2 + 2 * 0.2**4) ** 0.5)
    assert back[1][..., 1].item() == 1.0


def test_powers_that_do_not_fit_are_refused() -> None:
    prior = Kriging(of=(("stations", 0), ("stations", 1)), powers=(0.5,))
    with pytest.raises(ValueError, match="has 1 powers for 2 outputs; give one for each"):
        config(dim_y=2, prior=prior, likelihood=(RAIN, NORMAL))
    prior = prior.model_copy(update={"powers": (1.0, 0.5)})
    with pytest.raises(ValueError, match=r"power 0.5 for a gaussian output, whose values may be"):
        config(dim_y=2, prior=prior, likelihood=(RAIN, NORMAL))


def test_only_normal_outputs_are_calibrated() -> None:
    mixed, _ = rainy(RAIN, NORMAL)
    with torch.no_grad():
        for p in mixed.parameters():
            p.add_(0.1 * torch.randn_like(p))
    calibrate_network(mixed, [positive() for _ in range(6)])
    assert mixed.trust[0] == 1
    assert mixed.log_spread[0] == 0
    assert mixed.log_spread[1] != 0


def test_a_network_without_kriging() -> None:
    plain = build_model(config(prior=None, dim_y=2, likelihood=(RAIN, Likelihood(kind="poisson"))))
    made = positive()
    made = made.at(
        type(made.target)(made.target.x, torch.ones(2, 12, 2), None, made.target.features)
    )
    loss = plain.loss(made)
    loss.backward()
    assert bool(loss.isfinite())
    assert all(p.grad is not None for p in plain.parameters() if p.requires_grad)


def test_all_normal_outputs_are_the_paper_s() -> None:
    model = build_model(config(prior=None, likelihood=(NORMAL,)))
    assert isinstance(model.likelihood, GaussianLikelihood)


def test_limits_of_positive_parameters() -> None:
    raw = torch.tensor([-1e30, 0.0, 1e30])
    assert limited(raw, 0.1, 50.0, start=2.0).tolist() == pytest.approx([0.1, 2, 50], rel=1e-5)


def test_configurations_survive_json() -> None:
    made = config(
        dim_y=2, prior=None, likelihood=(RAIN, Likelihood(kind="categorical", components=4))
    )
    assert ModelConfig.model_validate_json(made.model_dump_json()) == made
    assert made.likelihood[1].size == 4
    assert not made.is_gaussian


def test_configurations_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="has 1 likelihoods for 2 outputs; give one for each"):
        config(dim_y=2, prior=None, likelihood=(RAIN,))
    with pytest.raises(ValueError, match="categorical likelihood has no number of classes"):
        Likelihood(kind="categorical")
    with pytest.raises(ValueError, match="components=3: a poisson likelihood has no components"):
        Likelihood(kind="poisson", components=3)
    with pytest.raises(ValueError, match="min_noise=-1: a standard deviation cannot be negative"):
        ProductLikelihood(4, [FAMILIES["poisson"](1)], dim=4, min_noise=-1)


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_targets_that_are_masked_count_for_nothing(kind: str) -> None:
    """Padding holds zeros, which are impossible values of some kinds."""
    sizes = {"normal-mixture": 3, "quantiles": 15, "categorical": 3}
    pair = kind == "bivariate-gaussian"
    kinds = (Likelihood(kind=kind, components=sizes.get(kind)),) * (1 + pair)
    network = build_model(config(dim_y=len(kinds), prior=None, likelihood=kinds))
    given, many = task(), points(7, len(kinds), seed=3)
    assert many.y is not None
    few = replace(many, y=torch.ones_like(many.y)).select(slice(0, 4))
    padded = replace(many, y=torch.ones_like(many.y), mask=torch.arange(7).expand(2, -1) < 4)
    expected = network.loss(Task(given.context, few))
    assert bool(expected.isfinite())
    torch.testing.assert_close(network.loss(Task(given.context, padded)), expected)
    for training in (True, False):
        summed = SummedLoss(network).train(training)
        torch.testing.assert_close(
            summed(Task(given.context, padded)), summed(Task(given.context, few))
        )
