"""Every distribution against brute force, SciPy and scoringrules, for any raw output."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scoringrules
import torch
from exploring import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.distributions import Exponential, Normal

from gridtnp.distributions.continuous import LogNormal, NormalMixture, StudentT
from gridtnp.distributions.discrete import Bernoulli, Categorical, NegativeBinomial, Poisson
from gridtnp.distributions.marginals import (
    Gaussian,
    Marginal,
    Product,
    Scaled,
    concatenate,
    outputs_of,
)
from gridtnp.distributions.mixed import BernoulliGamma, CensoredGamma, SpikedBeta
from gridtnp.distributions.quantile_spline import QuantileSpline
from gridtnp.distributions.special import betainc, gammainc, student_cdf
from gridtnp.network.likelihoods import FAMILIES

KINDS = list(FAMILIES)
DISCRETE = ("bernoulli", "categorical", "poisson", "negative-binomial")
EXTREME = (-1e30, -1e4, -50.0, -3.0, 0.0, 3.0, 50.0, 1e4, 1e30)
seeds = st.integers(0, 2**32 - 1)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def made(kind: str, seed: int, points: int = 1, size: float = 1.0, noise: float = 0.05) -> Marginal:
    """A distribution from random raw outputs, in double precision."""
    family = FAMILIES[kind](5)
    generator = torch.Generator().manual_seed(seed)
    raw = size * torch.randn(points, family.size, generator=generator, dtype=torch.float64)
    return family.make(raw, noise)


def masses(d: Marginal) -> list[float]:
    """The point masses of a distribution that has a density elsewhere."""
    return [y for y in (0.0, 1.0) if bool(d.is_mass(number(y)[None]).all())]


def wide(d: Marginal, number: int) -> Marginal:
    """One point of a distribution, many times."""
    return d.map(lambda t: t[:1].expand(number, *t.shape[1:]))


def brute_force(d: Marginal, kind: str, f: Callable[[Tensor], Tensor]) -> float:
    """The mean of a function, by summation and by quadrature of the density between quantiles."""
    if kind in DISCRETE:
        highest = float(d.icdf(number(1 - 1e-13)[None]))
        at = torch.arange(highest + 1).double()
        return float((f(at) * wide(d, len(at)).log_prob(at).exp()).sum())
    rare = torch.logspace(-13, -2, 60, dtype=torch.float64)
    p = torch.cat([rare, torch.linspace(0.011, 0.989, 200).double(), 1 - rare.flip(0)])
    ends = wide(d, len(p)).icdf(p)
    points = torch.tensor(masses(d)).double()
    if len(points):  # down to the smallest numbers, where a density may have a pole
        small = torch.logspace(-290, -1, 300, dtype=torch.float64)
        ends = torch.cat([ends, small, 1 - small[-60:]])
        ends = ends[(ends > 0) & ~torch.isin(ends, points)]
    if kind == "quantiles":  # its density has kinks at the knots
        assert isinstance(d, QuantileSpline)
        ends = torch.cat([ends, d.knots[0]])
    ends = torch.unique(ends[(ends > d.limits[0]) & (ends < d.limits[1])])
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(12))
    low, high = ends[:-1, None], ends[1:, None]
    at = (low + (high - low) * (nodes + 1) / 2).flatten()
    weight = ((high - low) / 2 * weights).flatten()
    found = f(at) * wide(d, len(at)).log_prob(at).exp() * weight
    mass = f(points) * wide(d, len(points)).log_prob(points).exp()
    return float(found.sum() + mass.sum())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40))
@given(seed=seeds, p=st.floats(1e-4, 1 - 1e-4))
def test_quantiles_invert_the_cdf(kind: str, seed: int, p: float) -> None:
    d, level = made(kind, seed), number(p)[None]
    y = d.icdf(level)
    exact = 1e-4 if kind == "spiked-beta" else 1e-9  # next to 1, numbers are far apart
    assert float(d.below(y)) <= p + exact
    assert float(d.cdf(y)) >= p - exact
    if not bool(d.is_mass(y)):
        assert float(d.cdf(y)) == pytest.approx(p, abs=exact)
    assert d.limits[0] <= float(y) <= d.limits[1]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(30))
@given(seed=seeds)
@example(seed=4011)  # a gamma variable that is below 1e-45 with a probability of 3e-5
def test_density_integrates_to_one_and_gives_the_moments(kind: str, seed: int) -> None:
    d = made(kind, seed, size=0.7)
    mean, std = float(d.mean), float(d.stddev)
    assert brute_force(d, kind, torch.ones_like) == pytest.approx(1, abs=3e-5)
    assert brute_force(d, kind, lambda y: y) == pytest.approx(mean, rel=1e-5, abs=1e-5 * std)
    if kind not in ("student-t", "lognormal"):  # whose variance is far in the tails
        square = brute_force(d, kind, lambda y: (y - mean) ** 2)
        assert square == pytest.approx(std**2, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40))
@given(seed=seeds, y=st.floats(-3, 6))
def test_cdf_is_what_lies_at_or_below(kind: str, seed: int, y: float) -> None:
    d = made(kind, seed, size=0.7)
    value = number(round(y) if kind in DISCRETE else y)[None]
    level = float(d.cdf(value))
    assert 0 <= float(d.below(value)) <= level <= 1
    rise = float(d.cdf(value + 1e-6) - d.cdf(value)) / 1e-6
    density = float(d.log_prob(value).exp())
    if bool(d.is_mass(value)) or kind in DISCRETE:
        assert level - float(d.below(value)) == pytest.approx(density, abs=1e-9)
    elif min(abs(y), abs(y - 1)) > 0.01:
        assert rise == pytest.approx(density, rel=0.02, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40))
@given(raw=st.lists(st.sampled_from(EXTREME), min_size=17, max_size=17), data=st.data())
def test_any_raw_output_has_a_finite_density_and_gradient(
    kind: str, raw: list[float], data: st.DataObject
) -> None:
    family = FAMILIES[kind](5)
    noise = data.draw(st.sampled_from([0.0, 0.01, 0.5]))
    given_raw = torch.tensor([raw[: family.size]], dtype=torch.float32)
    if kind in ("gaussian", "bivariate-gaussian", "student-t", "normal-mixture", "quantiles"):
        given_raw = given_raw.clamp(-1e8, 1e8)  # whose square is a number
    given_raw.requires_grad_()
    d = family.make(given_raw, noise)
    if data.draw(st.booleans()):
        mean, std = data.draw(st.floats(-5, 50)), data.draw(st.floats(0.01, 10))
        d = d.corrects(torch.tensor([mean]), torch.tensor([std]))
    y = data.draw(st.sampled_from([0.0, 1.0] if kind in DISCRETE else [0.0, 1e-3, 0.4, 1.0]))
    if kind == "lognormal":
        y += 0.01
    density = d.log_prob(torch.tensor([min(y, d.limits[1])]))
    values = density, d.mean, d.stddev
    assert all(bool(v.isfinite().all()) for v in values)
    gradient = torch.autograd.grad(density.sum() + d.mean.sum() + d.stddev.sum(), given_raw)[0]
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(20))
@given(seed=seeds)
def test_gradients_agree_with_differences(kind: str, seed: int) -> None:
    family, generator = FAMILIES[kind](4), torch.Generator().manual_seed(seed)
    raw = torch.randn(1, family.size, generator=generator, dtype=torch.float64)
    values = [0.0, 1.0] if kind in DISCRETE else [0.3, 0.9]
    values += [0.0] if masses(family.make(raw, 0.05)) else []

    def terms(r: Tensor) -> Tensor:
        d = family.make(r, 0.05)
        return torch.cat([d.log_prob(number(y)[None]) for y in values] + [d.mean, d.variance])

    assert torch.autograd.gradcheck(terms, raw.requires_grad_(), eps=1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_have_the_moments_and_the_quantiles(kind: str) -> None:
    d = made(kind, 5, size=0.5)
    drawn = d.rsample((20_000,))[:, 0]
    assert drawn.shape == (20_000,)
    assert float(drawn.mean()) == pytest.approx(float(d.mean), abs=6 * float(d.stddev) / 141)
    for p in (0.1, 0.5, 0.9):
        y = d.icdf(number(p)[None])
        assert float((drawn <= y).double().mean()) >= p - 0.015
        assert float((drawn < y).double().mean()) <= p + 0.015


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in DISCRETE])
def test_samples_have_gradients(kind: str) -> None:
    """The mean of samples moves as the mean does."""
    family = FAMILIES[kind](5)
    raw = torch.zeros(4000, family.size, dtype=torch.float64, requires_grad=True)
    d = family.make(raw, 0.05)
    found = torch.autograd.grad(d.rsample().mean(), raw)[0].sum(0)
    right = torch.autograd.grad(family.make(raw, 0.05).mean.mean(), raw)[0].sum(0)
    assert torch.allclose(found, right, atol=0.08)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(5))
@given(seed=seeds, y=st.floats(-2, 6))
@example(seed=355, y=0.875)  # a point mass of rain
def test_crps_is_the_integral_of_squared_differences(kind: str, seed: int, y: float) -> None:
    d = made(kind, seed, size=0.7)
    if kind in DISCRETE:
        y = float(min(max(round(y), 0), d.limits[1]))
    y = max(y, d.limits[0])
    found = float(d.crps(number(y)[None]))
    rare = torch.logspace(-13, -3, 200, dtype=torch.float64)
    p = torch.cat([rare, torch.linspace(1e-3, 1 - 1e-3, 1500).double(), 1 - rare.flip(0)])
    ends = [wide(d, len(p)).icdf(p), torch.tensor([y, 0.0, 0.7, 1.0]).double()]
    ends += [torch.arange(60).double()] if kind in DISCRETE else []
    ends = torch.unique(torch.cat(ends))
    x, step = (ends[1:] + ends[:-1]) / 2, ends.diff()
    difference = wide(d, len(x)).cdf(x) - (x >= y).double()
    terms = difference**2 * step
    assert found == pytest.approx(float(terms.sum()), rel=2e-3, abs=2e-3)
    assert float(d.crps_above(number(y)[None], -1e9)) == pytest.approx(found, rel=1e-2, abs=1e-2)
    above = float(d.crps_above(number(y)[None], 0.7))
    assert above == pytest.approx(float(terms[x > 0.7].sum()), rel=1e-2, abs=1e-2)


# ---- known implementations -----------------------------------------------------------------------

LEVELS = np.array([1e-9, 1e-4, 0.05, 0.3, 0.5, 0.8, 0.99, 1 - 1e-6])
positive = st.floats(0.1, 20)


def agrees(d: Marginal, known: stats.rv_continuous, y: np.ndarray) -> None:
    """Log-density, CDF and quantiles are those of SciPy, in the tails as well."""
    value = torch.from_numpy(y)
    log = known.logpmf if hasattr(known, "logpmf") else known.logpdf
    assert d.log_prob(value).numpy() == pytest.approx(log(y), rel=1e-9, abs=1e-9)
    assert d.cdf(value).numpy() == pytest.approx(known.cdf(y), rel=1e-8, abs=1e-14)
    quantiles = d.icdf(torch.from_numpy(LEVELS)).numpy()
    assert quantiles == pytest.approx(known.ppf(LEVELS), rel=1e-8, abs=1e-10)


@given(v=st.floats(2.1, 60), loc=st.floats(-5, 5), scale=positive)
def test_student_t(v: float, loc: float, scale: float) -> None:
    d = StudentT(*(number(x) for x in (v, loc, scale)))
    y = loc + scale * np.array([-30.0, -3.0, -0.2, 0.0, 1.0, 12.0])
    agrees(d, stats.t(v, loc, scale), y)
    expected = scoringrules.crps_t(y, v, loc, scale)
    assert d.crps(torch.from_numpy(y)).numpy() == pytest.approx(expected, rel=1e-7, abs=1e-9)


@given(loc=st.floats(-3, 3), scale=st.floats(0.05, 2))
def test_lognormal(loc: float, scale: float) -> None:
    d = LogNormal(number(loc), number(scale))
    y = np.exp(loc + scale * np.array([-6.0, -1.0, 0.0, 2.0, 7.0]))
    agrees(d, stats.lognorm(scale, scale=np.exp(loc)), y)
    expected = scoringrules.crps_lognormal(y, loc, scale)
    assert d.crps(torch.from_numpy(y)).numpy() == pytest.approx(expected, rel=1e-7, abs=1e-9)
    assert float(d.cdf(number(-1.0))) == 0
    assert float(d.log_prob(number(-1.0))) == -math.inf


@given(wet=st.floats(0.02, 0.98), shape=positive, amount=positive)
def test_bernoulli_gamma(wet: float, shape: float, amount: float) -> None:
    gamma = stats.gamma(shape, scale=amount / shape)
    d = BernoulliGamma(*(number(x) for x in (math.log(wet / (1 - wet)), amount, shape)))
    y = gamma.ppf(LEVELS)
    value = torch.from_numpy(y)
    log = np.log(wet) + gamma.logpdf(y)
    assert d.log_prob(value).numpy() == pytest.approx(log, rel=1e-9, abs=1e-9)
    assert d.cdf(value).numpy() == pytest.approx(1 - wet + wet * LEVELS, rel=1e-9)
    again = d.icdf(torch.from_numpy(1 - wet + wet * LEVELS[2:])).numpy()
    assert again == pytest.approx(y[2:], rel=1e-6)
    assert float(d.log_prob(number(0.0)).exp()) == pytest.approx(1 - wet)
    always = BernoulliGamma(number(40.0), number(amount), number(shape))
    expected = scoringrules.crps_gamma(y, shape, rate=shape / amount)
    assert always.crps(value).numpy() == pytest.approx(expected, rel=1e-7, abs=1e-9)
    draws = d.icdf((torch.arange(4000) + 0.5).double() / 4000).numpy()
    ensemble = scoringrules.crps_ensemble(y, np.tile(draws, (len(y), 1)))
    assert d.crps(value).numpy() == pytest.approx(ensemble, rel=0.01, abs=0.01 * amount)


@given(shape=st.floats(0.2, 10), amount=positive, shift=st.floats(0.01, 10))
def test_censored_gamma(shape: float, amount: float, shift: float) -> None:
    d = CensoredGamma(number(amount), number(shape), number(shift))
    y = np.array([0.0, 0.1, 1.0, 5.0, 40.0])
    rate = shape / amount
    expected = scoringrules.crps_csg0(y, shape=shape, rate=rate, shift=shift)
    found = d.crps(torch.from_numpy(y)).numpy()
    assert found == pytest.approx(np.asarray(expected), rel=1e-6, abs=1e-8)
    gamma = stats.gamma(shape, scale=1 / rate)
    assert d.cdf(torch.from_numpy(y)).numpy() == pytest.approx(gamma.cdf(y + shift), rel=1e-9)
    inner = d.log_prob(torch.from_numpy(y[1:])).numpy()
    assert inner == pytest.approx(gamma.logpdf(y[1:] + shift), rel=1e-9, abs=1e-9)


@given(centre=st.floats(0.02, 0.98), concentration=st.floats(0.2, 50))
def test_spiked_beta(centre: float, concentration: float) -> None:
    a, b = centre * concentration, (1 - centre) * concentration
    beta = stats.beta(a, b)
    logits = torch.tensor([-40.0, -40.0, 0.0], dtype=torch.float64)
    pure = SpikedBeta(number(centre), number(concentration), logits)
    y = np.array([0.01, 0.2, 0.5, 0.9, 0.999])
    value = torch.from_numpy(y)
    assert pure.log_prob(value).numpy() == pytest.approx(beta.logpdf(y), rel=1e-8, abs=1e-8)
    assert pure.cdf(value).numpy() == pytest.approx(beta.cdf(y), rel=1e-8, abs=1e-12)
    expected = scoringrules.crps_beta(y, a, b)
    assert pure.crps(value).numpy() == pytest.approx(expected, rel=1e-6, abs=1e-8)
    spiked = SpikedBeta(number(centre), number(concentration), torch.zeros(3).double())
    assert float(spiked.cdf(number(0.0))) == pytest.approx(1 / 3)
    assert float(spiked.below(number(1.0))) == pytest.approx(2 / 3)
    assert spiked.icdf(torch.tensor([0.2, 0.9]).double()).tolist() == [0.0, 1.0]


@given(seed=seeds)
def test_normal_mixture(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight, loc, scale = rng.dirichlet(np.ones(3)), rng.normal(size=3), rng.uniform(0.1, 2, 3)
    parts = [torch.from_numpy(v) for v in (np.log(weight), loc, scale)]
    d, y = NormalMixture(*parts), 1.3
    assert float(d.crps(number(y))) == pytest.approx(
        float(scoringrules.crps_mixnorm(y, loc, scale, weight)), rel=1e-8
    )
    density = (weight * stats.norm(loc, scale).pdf(y)).sum()
    assert float(d.log_prob(number(y)).exp()) == pytest.approx(density, rel=1e-10)


@given(rate=st.floats(0.01, 300))
def test_poisson(rate: float) -> None:
    y = np.array([0.0, 1.0, 2.0, 7.0, round(rate), round(rate + 6 * rate**0.5 + 3)])
    agrees(Poisson(number(rate)), stats.poisson(rate), y)
    found = Poisson(number(rate).expand(6)).crps(torch.from_numpy(y)).numpy()
    if rate < 50:  # where powers of it overflow in scoringrules
        assert found == pytest.approx(scoringrules.crps_poisson(y, rate), rel=1e-6, abs=1e-8)
    counts = np.arange(1000)
    level = stats.poisson(rate).cdf(counts)
    brute = [((level - (counts >= v)) ** 2).sum() for v in y]
    assert found == pytest.approx(np.array(brute), rel=1e-6, abs=1e-8)


@given(rate=st.floats(0.05, 100), shape=st.floats(0.3, 50))
@example(rate=2.0, shape=4.999999999999993)
def test_negative_binomial(rate: float, shape: float) -> None:
    y = np.array([0.0, 1.0, 2.0, 7.0, round(rate), round(3 * rate + 3)])
    agrees(
        NegativeBinomial(number(rate), number(shape)),
        stats.nbinom(shape, shape / (shape + rate)),
        y,
    )
    found = NegativeBinomial(number(rate).expand(6), number(shape)).crps(torch.from_numpy(y))
    counts = np.arange(10_000)
    level = stats.nbinom(shape, shape / (shape + rate)).cdf(counts)
    brute = [((level - (counts >= v)) ** 2).sum() for v in y]
    assert found.numpy() == pytest.approx(np.array(brute), rel=1e-6, abs=1e-8)


def test_classes() -> None:
    d = Categorical(torch.tensor([0.5, 0.3, 0.2]).double().log())
    assert d.cdf(torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0])).tolist() == pytest.approx(
        [0, 0.5, 0.5, 0.8, 1]
    )
    assert d.icdf(torch.tensor([0.1, 0.6, 0.9]).double()).tolist() == [0, 1, 2]
    assert float(d.crps(number(2.0))) == pytest.approx(0.5**2 + 0.8**2)
    assert float(d.log_prob(number(0.5))) == float(d.log_prob(number(3.0))) == -math.inf
    yes = Bernoulli(number(0.0))
    assert float(yes.mean) == 0.5
    assert float(yes.crps(number(1.0))) == 0.25  # the Brier score
    assert float(yes.map(lambda t: t + 1).mean) == pytest.approx(1 / (1 + math.exp(-1)))


@given(seed=seeds)
def test_a_quantile_spline_integrates_its_slopes(seed: int) -> None:
    """Its quantiles are the integral of slopes that are linear between the levels."""
    rng = np.random.default_rng(seed)
    lowest, slopes = rng.normal(size=2), rng.uniform(0.1, 2, (2, 4))
    d = QuantileSpline(torch.from_numpy(lowest), torch.from_numpy(slopes))
    for level in rng.uniform(1 / 5, 4 / 5, 5):
        at = np.append(np.arange(1, 5)[np.arange(1, 5) < 5 * level], 5 * level)
        each = np.stack([np.interp(at, np.arange(1, 5), row) for row in slopes])
        expected = lowest + np.trapezoid(each, at)
        found = d.icdf(number(level))
        assert found.numpy() == pytest.approx(expected)
        assert d.cdf(found).numpy() == pytest.approx(level)


@given(seed=seeds)
def test_the_density_of_a_quantile_spline_is_continuous(seed: int) -> None:
    d = made("quantiles", seed)
    assert isinstance(d, QuantileSpline)
    knots = d.knots[0]
    near = 1e-9 * d.widths.min()
    one = wide(d, len(knots))
    before, after = one.log_prob(knots - near), one.log_prob(knots + near)
    torch.testing.assert_close(before, after, rtol=0, atol=1e-5)


def test_quantiles_learn_from_log_likelihoods() -> None:
    """Fitted to a skewed distribution by gradients of the log-density: its cross-entropy."""
    known = stats.gamma(2.0)
    y = torch.from_numpy(known.ppf((np.arange(400) + 0.5) / 400))
    raw = torch.zeros(16, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([raw], lr=0.05)
    for _ in range(400):
        optimiser.zero_grad()
        loss = -FAMILIES["quantiles"](15).make(raw, 0.0).log_prob(y).mean()
        loss.backward()
        optimiser.step()
    best = -float(np.mean(known.logpdf(y.numpy())))
    assert float(loss.detach()) == pytest.approx(best, abs=0.02)


@settings(max_examples=examples(20))
@given(seed=seeds, y=st.floats(-8, 8))
def test_crps_of_a_quantile_spline(seed: int, y: float) -> None:
    """In closed form, and by quadrature between its knots."""
    d, value = made("quantiles", seed, size=0.7), number(y)[None]
    assert float(d.crps(value)) == pytest.approx(float(Marginal.crps(d, value)), rel=1e-6)


# ---- products, units and special functions -------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_units_of_the_data(kind: str) -> None:
    inner = made(kind, 3, points=4)
    d = Scaled(inner, 0.0 if inner.limits[0] == 0 else 10.0, 2.0)
    y = d.icdf(number(0.7).expand(4))
    assert torch.allclose(d.mean, d.shift + 2 * inner.mean)
    assert torch.allclose(d.stddev, 2 * inner.stddev)
    assert torch.allclose(d.cdf(y), inner.cdf((y - d.shift) / 2))
    assert torch.allclose(d.below(y), inner.below((y - d.shift) / 2))
    assert torch.allclose(d.crps(y), 2 * inner.crps((y - d.shift) / 2))
    log = inner.log_prob((y - d.shift) / 2)
    density = torch.where(d.is_mass(y), log, log - math.log(2))
    assert torch.allclose(d.log_prob(y), density)
    halves = [d.map(lambda t: t[:2]), d.map(lambda t: t[2:])]
    assert torch.equal(concatenate(halves).mean, d.mean)


def test_products_are_independent_outputs() -> None:
    outputs = [made(kind, 1, points=6) for kind in ("gaussian", "bernoulli-gamma", "poisson")]
    both = Product(outputs)
    y = torch.tensor([0.3, 0.0, 2.0]).double().expand(6, 3)
    for method in ("log_prob", "cdf"):
        each = [getattr(o, method)(y[:, j]) for j, o in enumerate(outputs)]
        assert torch.equal(getattr(both, method)(y), torch.stack(each, -1))
    assert both.batch_shape == both.mean.shape == both.stddev.shape == (6, 3)
    assert both.variance.shape == both.icdf(number(0.5)).shape == (6, 3)
    assert both.rsample((5,)).shape == (5, 6, 3)
    assert outputs_of(both) == tuple(outputs)


def test_outputs_of_a_normal_distribution() -> None:
    loc, scale = torch.randn(2, 3, 2), torch.rand(2, 3, 2) + 0.1
    first, second = outputs_of(Normal(loc, scale))
    assert isinstance(first, Gaussian)
    assert torch.equal(second.mean, loc[..., 1])
    with pytest.raises(TypeError, match="predicts Exponential, whose outputs are not known"):
        outputs_of(Exponential(scale))


@given(a=st.floats(0.05, 500), b=st.floats(0.05, 50), x=st.floats(0.01, 0.99))
def test_special_functions_have_derivatives(a: float, b: float, x: float) -> None:
    first, second, third = (number(v).requires_grad_() for v in (a, b, x))
    options = {"eps": 1e-6, "atol": 1e-6, "rtol": 1e-3}
    assert torch.autograd.gradcheck(betainc, (first, second, third), **options)
    assert torch.autograd.gradcheck(lambda s, t: gammainc(s, s * 2 * t), (first, third), **options)
    assert torch.autograd.gradcheck(student_cdf, (first, third), **options)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(DISCRETE) - {"spiked-beta"}))
def test_quantiles_of_single_precision_are_those_of_double_near_one(kind: str) -> None:
    exact = made(kind, 5)
    single = exact.map(lambda t: t.float())
    levels = 1 - torch.logspace(-12, -1, 12, dtype=torch.float64)
    expected, found = (wide(d, len(levels)).icdf(levels) for d in (exact, single))
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=examples(20))
@given(seeds, st.sampled_from(["poisson", "negative-binomial", "quantiles"]), st.floats(0.2, 3))
def test_the_threshold_weighted_crps_in_other_units_is_that_of_the_values(
    seed: int, kind: str, threshold: float
) -> None:
    d = made(kind, seed)
    y, scale, shift = number(2.0)[None], 2.5, 0.0 if kind != "quantiles" else 1.0
    scaled = Scaled(d, shift, scale)
    found = scaled.crps_above(shift + scale * y, shift + scale * threshold)
    torch.testing.assert_close(found, scale * d.crps_above(y, threshold))
