"""Likelihoods: from target tokens to a predictive distribution (the decoder d of section 2.1).

A network whose outputs are all normal has a `GaussianLikelihood`, as in the paper. Other networks
have a `ProductLikelihood` of one family per output, which maps raw numbers of any size to the
parameters of a distribution: positive ones are limited to a wide range, so that densities and their
gradients are finite.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution, Normal
from torch.special import ndtri

from gridtnp.distributions.continuous import LogNormal, NormalMixture, StudentT
from gridtnp.distributions.discrete import Bernoulli, Categorical, NegativeBinomial, Poisson
from gridtnp.distributions.kinds import Likelihood, second_of_pairs
from gridtnp.distributions.marginals import Gaussian, Marginal, Product
from gridtnp.distributions.mixed import BernoulliGamma, CensoredGamma, SpikedBeta
from gridtnp.distributions.quantile_spline import QuantileSpline
from gridtnp.network.layers import mlp

VARIANCE_FLOOR = 1e-8
"""Added to every variance to keep density and gradient finite where softplus underflows."""
LOGIT = 15.0
"""Largest logit of a probability."""
MOST_CORRELATED = 0.999
"""Largest correlation of two outputs."""


class LikelihoodHead(nn.Module, ABC):
    """A distribution over the outputs of each target; `head` computes its raw parameters."""

    head: nn.Module

    @abstractmethod
    def distribution(self, raw: Float[Tensor, "batch n outputs"]) -> Distribution: ...

    def forward(self, z: Float[Tensor, "batch n dz"]) -> Distribution:
        return self.distribution(self.head(z))


class GaussianLikelihood(LikelihoodHead):
    """Independent normals with σ = σ_min + √softplus(raw) (appendix E), at least in float32."""

    def __init__(
        self, dim_in: int, dim_y: int, *, dim: int, hidden_layers: int = 2, min_noise: float = 0.0
    ) -> None:
        super().__init__()
        _require_noise(min_noise)
        self.min_noise = min_noise
        self.head = mlp(dim_in, 2 * dim_y, dim=dim, hidden_layers=hidden_layers)

    @torch.no_grad()
    def predict_standard_normal(self) -> None:
        """Set the last layer so that every prediction has mean 0 and standard deviation 1."""
        last = _last_layer(self.head)
        last.weight.zero_()
        last.bias.zero_()
        last.bias[len(last.bias) // 2 :] = _raw_of_one(self.min_noise)

    def distribution(self, raw: Float[Tensor, "batch n outputs"]) -> Normal:
        """The first half of `raw` are means, the second half raw variances."""
        mean, variance = raw.to(torch.promote_types(raw.dtype, torch.float32)).chunk(2, -1)
        scale = self.min_noise + (F.softplus(variance) + VARIANCE_FLOOR).sqrt()
        return Normal(mean, scale, validate_args=False)


@dataclass(frozen=True)
class Family:
    """A kind of distribution: how many raw numbers it takes, and what it makes of them.

    `make` gets the raw numbers of one output along the last axis, and the lower bound of noise;
    `correlation` the same numbers, if the output is correlated with the one before. The raw number
    `width`, if there is one, is about the logarithm of the relative spread.
    """

    size: int
    make: Callable[[Tensor, float], Marginal]
    correlation: Callable[[Tensor], Tensor] | None = None
    width: int | None = None


class ProductLikelihood(LikelihoodHead):
    """Outputs that each have a family of their own, at least in float32.

    They are independent, but for the pairs of a bivariate normal distribution.
    """

    def __init__(
        self,
        dim_in: int,
        families: Sequence[Family],
        *,
        dim: int,
        hidden_layers: int = 2,
        min_noise: float = 0.0,
    ) -> None:
        super().__init__()
        _require_noise(min_noise)
        self.min_noise, self.families = min_noise, tuple(families)
        self.head = mlp(dim_in, sum(self._sizes), dim=dim, hidden_layers=hidden_layers)

    @property
    def _sizes(self) -> list[int]:
        return [family.size for family in self.families]

    @torch.no_grad()
    def predict_standard_normal(self) -> None:
        """Set the last layer so that every prediction corrects nothing (`Marginal.corrects`)."""
        last, start = _last_layer(self.head), 0
        last.weight.zero_()
        last.bias.zero_()
        for family in self.families:
            if family in (GAUSSIAN, CORRELATED):
                last.bias[start + 1] = _raw_of_one(self.min_noise)
            start += family.size

    @torch.no_grad()
    def calibrate(self, j: int, trust: float, log_spread: float) -> None:
        """Scale what output `j` has learned, from 1, as it is, to 0, as with fresh weights, and
        its relative spread, if the family has a `width`. The weights of the last layer change.
        """
        last, family = _last_layer(self.head), self.families[j]
        start = sum(self._sizes[:j])
        last.weight[start : start + family.size] *= trust
        last.bias[start : start + family.size] *= trust
        if family.width is not None:
            last.bias[start + family.width] += log_spread

    def distribution(self, raw: Float[Tensor, "batch n outputs"]) -> Product:
        pieces = raw.to(torch.promote_types(raw.dtype, torch.float32)).split(self._sizes, -1)
        pairs = list(zip(self.families, pieces, strict=True))
        correlations = {
            j: family.correlation(piece)
            for j, (family, piece) in enumerate(pairs)
            if family.correlation is not None
        }
        made = [family.make(piece, self.min_noise) for family, piece in pairs]
        return Product(made, correlations)


# ---- families ------------------------------------------------------------------------------------


def gaussian(raw: Tensor, noise: float) -> Gaussian:
    """As in `GaussianLikelihood`."""
    return Gaussian(raw[..., 0], _scale(raw[..., 1], noise))


def correlation(raw: Tensor) -> Tensor:
    """Of a normal output with the one before; 0 at first, and never quite 1 in size."""
    return MOST_CORRELATED * raw[..., 2].tanh()


def student_t(raw: Tensor, noise: float) -> StudentT:
    """The noise is a lower bound of the scale."""
    freedom = 2 + limited(raw[..., 2], 0.1, 100.0, start=4.0)
    return StudentT(freedom, raw[..., 0], _scale(raw[..., 1], noise))


def lognormal(raw: Tensor, noise: float) -> LogNormal:
    """The noise is a lower bound of the standard deviation of the logarithm."""
    loc = 12 * (raw[..., 0] / 12).tanh()
    return LogNormal(loc, noise + limited(raw[..., 1], 1e-3, 3.0, start=0.7))


def bernoulli_gamma(raw: Tensor, noise: float) -> BernoulliGamma:
    """The noise is a lower bound of the coefficient of variation of positive amounts."""
    amount, shape = _gamma(raw[..., 1], raw[..., 2], noise)
    return BernoulliGamma(_logit(raw[..., 0]), amount, shape)


def censored_gamma(raw: Tensor, noise: float) -> CensoredGamma:
    """The noise is a lower bound of the coefficient of variation before censoring."""
    amount, shape = _gamma(raw[..., 0], raw[..., 1], noise)
    return CensoredGamma(amount, shape, limited(raw[..., 2], 1e-4, 1e2, start=0.3))


def spiked_beta(raw: Tensor, noise: float) -> SpikedBeta:
    """The noise is a lower bound of the standard deviation at the centre of the range."""
    centre = (6 * (raw[..., 0] / 6).tanh()).sigmoid()
    sharpest = max(min(1e4, 0.25 / noise**2) if noise else 1e4, 1.0)
    sharpness = limited(raw[..., 1], 0.1, sharpest, start=min(2.0, sharpest / 2))
    # both parameters are at least 0.3, so that quantiles near 1 are not rounded to it
    a, b = 0.3 + centre * sharpness, 0.3 + (1 - centre) * sharpness
    return SpikedBeta(a / (a + b), a + b, _logit(raw[..., 2:5]))


def normal_mixture(raw: Tensor, noise: float) -> NormalMixture:
    """The noise is a lower bound of every component's standard deviation.

    Components start at different places; from the same one, all would learn the same.
    """
    weight, loc, scale = raw.chunk(3, -1)
    start = torch.linspace(-1, 1, loc.shape[-1], dtype=loc.dtype, device=loc.device)
    return NormalMixture(_logit(weight).log_softmax(-1), loc + start, _scale(scale, noise))


def quantile_spline(raw: Tensor, noise: float) -> QuantileSpline:
    """The noise is the standard deviation of the narrowest normal that it can be."""
    number = raw.shape[-1] - 1
    levels = torch.arange(1, number + 1, dtype=raw.dtype, device=raw.device) / (number + 1)
    normal = (0.5 * ndtri(levels) ** 2).exp() * math.sqrt(2 * math.pi) / (number + 1)
    narrow = max(noise, 1e-4)
    slopes = normal * (narrow + limited(raw[..., 1:], 1e-4, 1e3, start=1.0))
    # from the middle outwards, so that the first raw number moves all quantiles
    widths = (slopes[..., :-1] + slopes[..., 1:]) / 2
    return QuantileSpline(raw[..., 0] - widths[..., : number // 2].sum(-1), slopes)


def bernoulli(raw: Tensor, noise: float) -> Bernoulli:  # noqa: ARG001
    """Yes or no; there is no noise to bound."""
    return Bernoulli(_logit(raw[..., 0]))


def categorical(raw: Tensor, noise: float) -> Categorical:  # noqa: ARG001
    """One of several classes; there is no noise to bound."""
    return Categorical(_logit(raw))


def poisson(raw: Tensor, noise: float) -> Poisson:  # noqa: ARG001
    """Counts whose variance is their mean; there is no noise to bound."""
    return Poisson(limited(raw[..., 0], 1e-4, 1e5, start=1.0))


def negative_binomial(raw: Tensor, noise: float) -> NegativeBinomial:  # noqa: ARG001
    """Counts whose variance is above their mean; there is no noise to bound."""
    rate = limited(raw[..., 0], 1e-4, 1e5, start=1.0)
    return NegativeBinomial(rate, limited(raw[..., 1], 1e-2, 1e3, start=1.0))


GAUSSIAN = Family(2, gaussian)
CORRELATED = Family(3, gaussian, correlation)
FAMILIES: dict[str, Callable[[int], Family]] = {
    "gaussian": lambda _: GAUSSIAN,
    "bivariate-gaussian": lambda _: GAUSSIAN,
    "student-t": lambda _: Family(3, student_t),
    "lognormal": lambda _: Family(2, lognormal, width=1),
    "bernoulli-gamma": lambda _: Family(3, bernoulli_gamma, width=2),
    "censored-gamma": lambda _: Family(3, censored_gamma, width=1),
    "spiked-beta": lambda _: Family(5, spiked_beta),
    "normal-mixture": lambda k: Family(3 * k, normal_mixture),
    "quantiles": lambda k: Family(k + 1, quantile_spline),
    "bernoulli": lambda _: Family(1, bernoulli),
    "categorical": lambda k: Family(k, categorical),
    "poisson": lambda _: Family(1, poisson),
    "negative-binomial": lambda _: Family(2, negative_binomial),
}
"""Families by name, for a number of components, classes or quantiles."""


def families(likelihoods: Sequence[Likelihood]) -> list[Family]:
    """The families of all outputs; the second one of a pair has a correlation with the first."""
    pairs = zip(likelihoods, second_of_pairs(likelihoods), strict=True)
    return [CORRELATED if second else FAMILIES[one.kind](one.size) for one, second in pairs]


def limited(raw: Tensor, low: float, high: float, *, start: float) -> Tensor:
    """A positive number between two limits, exponential in `raw` between them; 0 is `start`."""
    middle, half = (math.log(low) + math.log(high)) / 2, (math.log(high) - math.log(low)) / 2
    offset = half * math.atanh((math.log(start) - middle) / half)
    return (middle + half * ((raw + offset) / half).tanh()).exp()


def _gamma(amount: Tensor, variation: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Mean and shape of a gamma distribution, from raw mean and coefficient of variation."""
    ratio = noise + limited(variation, 0.03, 5.0, start=1.0)
    return limited(amount, 1e-4, 1e3, start=1.0), ratio**-2


def _scale(raw: Tensor, noise: float) -> Tensor:
    return noise + (F.softplus(raw) + VARIANCE_FLOOR).sqrt()


def _logit(raw: Tensor) -> Tensor:
    return LOGIT * (raw / LOGIT).tanh()


def _raw_of_one(noise: float) -> float:
    """The raw variance for which the standard deviation is 1."""
    return math.log(math.expm1((1 - noise) ** 2 - VARIANCE_FLOOR))


def _last_layer(head: nn.Module) -> nn.Linear:
    last = list(head.children())[-1]
    assert isinstance(last, nn.Linear)
    return last


def _require_noise(min_noise: float) -> None:
    if min_noise < 0:
        raise ValueError(f"min_noise={min_noise}: a standard deviation cannot be negative.")
