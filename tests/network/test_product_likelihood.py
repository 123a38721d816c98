"""Likelihoods of several kinds in one network, with and without kriging."""

from __future__ import annotations

import copy
import math
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


def corrected(kind: str, n: int = 300) -> tuple[KrigedNetwork, Task, dict[float, Product]]:
    """A network with random weights, a task, and its forecasts with some of its correction."""
    torch.manual_seed(0)
    network, _ = rainy(Likelihood(kind=kind), NORMAL)
    one = Task(positive().context, points(n, 2, seed=9))
    prior = network(one)
    with torch.no_grad():
        for p in network.network.parameters():
            p.add_(0.3 * torch.randn_like(p))
    made = {0.0: prior, 1.0: network(one)}
    half = copy.deepcopy(network)
    half.network.likelihood.calibrate(0, 0.5, 0.0)
    return network, one, made | {0.5: half(one)}


@pytest.mark.parametrize("kind", ["bernoulli-gamma", "lognormal", "student-t", "poisson"])
@pytest.mark.parametrize("trust", [0.0, 0.5, 1.0])
def test_a_correction_is_trusted_as_far_as_validation_supports_it(kind: str, trust: float) -> None:
    network, one, made = corrected(kind)
    y = made[trust].outputs[0].rsample().detach()
    given = replace(one.target, y=torch.stack([y, y], -1).float())
    found = calibrate_network(network, [Task(one.context, given)] * 2)
    assert found[0][0] == trust
    expected, after = made[trust].outputs[0], network(one).outputs[0]
    if kind not in ("bernoulli-gamma", "lognormal"):  # whose spread cannot be scaled alone
        assert found[0][1] == 0
        torch.testing.assert_close(after.mean, expected.mean, rtol=1e-4, atol=1e-5)
    assert network.trust[0] == 1


@pytest.mark.parametrize("kind", ["bernoulli-gamma", "censored-gamma", "lognormal"])
def test_a_spread_is_calibrated_on_validation_tasks(kind: str) -> None:
    """Values are drawn from a forecast with 1.3 times the spread."""
    network, one, _ = corrected(kind, 1500)
    wide = copy.deepcopy(network)
    wide.network.likelihood.calibrate(0, 1.0, math.log(1.3))
    before, wider = network(one).outputs[0], wide(one).outputs[0]
    ratio = (wider.stddev / wider.mean) / (before.stddev / before.mean)
    assert (ratio > 1).double().mean() > 0.95
    y = wider.rsample().detach()
    given = replace(one.target, y=torch.stack([y, y], -1).float())
    trust, log_spread = calibrate_network(network, [Task(one.context, given)] * 2)[0]
    assert trust == 1
    assert 1.1 < math.exp(log_spread) < 1.4
    assert not torch.equal(network(one).outputs[0].stddev, before.stddev)


def test_classes_have_no_prior_to_fall_back_to() -> None:
    network, _ = rainy(Likelihood(kind="categorical", components=3), NORMAL)
    one = Task(positive().context, points(200, 2, seed=9))
    given = replace(one.target, y=torch.ones(2, 200, 2))
    before = network.network.likelihood.state_dict()
    assert list(calibrate_network(network, [Task(one.context, given)])) == [1]
    assert all(
        torch.equal(v, before[k]) for k, v in network.network.likelihood.state_dict().items()
    )


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
