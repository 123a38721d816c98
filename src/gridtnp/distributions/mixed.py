"""Distributions with point masses at the ends of their range: rain, cloud cover, humidity."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from scipy import special
from torch import Tensor

from gridtnp.distributions.marginals import Marginal, logit, positive_part
from gridtnp.distributions.special import TINY, betainc, gammainc, log_beta, scipy_values

SHAPES = 0.01, 1e4
"""Limits of the shape of a gamma distribution that corrects a prior."""


class BernoulliGamma(Marginal):
    """Zero, or with probability sigmoid(`logit`) a gamma variable of some mean and shape."""

    limits = (0.0, math.inf)

    def __init__(self, logit: Tensor, amount: Tensor, shape: Tensor) -> None:
        self.logit, self.amount, self.shape = logit, amount, shape
        super().__init__(logit=logit, amount=amount, shape=shape)

    @property
    def wet(self) -> Tensor:
        """The probability that it is not zero."""
        return self.logit.sigmoid()

    @property
    def mean(self) -> Tensor:
        return self.wet * self.amount

    @property
    def variance(self) -> Tensor:
        return self.wet * self.amount**2 * ((-self.logit).sigmoid() + 1 / self.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        y = torch.where(value > 0, value, 1.0)
        density = _gamma_log_density(y, self.shape, self.amount) + F.logsigmoid(self.logit)
        found = torch.where(value > 0, density, F.logsigmoid(-self.logit))
        return torch.where(value < 0, -math.inf, found)

    def cdf(self, value: Tensor) -> Tensor:
        dry = (-self.logit.double()).sigmoid()
        level = dry + self.wet.double() * self._gamma_cdf(value)
        return torch.where(value < 0, 0.0, level).to(value)

    def icdf(self, value: Tensor) -> Tensor:
        p = value.double().expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        wet = self.wet.double()
        level = ((p - (1 - wet)) / wet).clamp(0, 1)
        return _gamma_quantile(self.shape, self.amount, level).to(self.amount)

    def is_mass(self, value: Tensor) -> Tensor:
        return value == 0

    def _mass_below(self, value: Tensor) -> Tensor:
        return torch.zeros_like(value)

    def crps(self, value: Tensor) -> Tensor:
        wet, amount, shape = self.wet.double(), self.amount.double(), self.shape.double()
        y = value.double().clamp_min(0)
        apart = y * (2 * self._gamma_cdf(y) - 1)
        apart = apart + amount * (1 - 2 * gammainc(shape + 1, y * shape / amount))
        distance = (1 - wet) * y + wet * apart
        spread = wet * (1 - wet) * amount + wet**2 * _gamma_spread(shape, amount)
        return distance - spread + (-value.double()).clamp_min(0)

    def corrects(self, mean: Tensor, std: Tensor) -> Marginal:
        """At logit 0, amount 1 and shape 1, the part of the prior that is positive."""
        wet = torch.special.ndtr(mean / std).clamp(0.02, 0.98)
        amount = positive_part(mean, std) / wet
        shape = (self.shape * (amount / std).square().clamp(0.1, 400.0)).clamp(*SHAPES)
        return BernoulliGamma(self.logit + logit(wet), self.amount * amount, shape)

    def _gamma_cdf(self, value: Tensor) -> Tensor:
        return gammainc(self.shape, value.clamp_min(0) * self.shape / self.amount)


class CensoredGamma(Marginal):
    """max(0, G - `shift`) with a gamma variable G (Scheuerer and Hamill, 2015)."""

    limits = (0.0, math.inf)

    def __init__(self, amount: Tensor, shape: Tensor, shift: Tensor) -> None:
        self.amount, self.shape, self.shift = amount, shape, shift
        super().__init__(amount=amount, shape=shape, shift=shift)

    @property
    def mean(self) -> Tensor:
        return self._moments()[0].to(self.amount)

    @property
    def variance(self) -> Tensor:
        first, second = self._moments()
        return (second - first**2).clamp_min(1e-12).to(self.amount)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and mean square: partial moments of the gamma distribution above the shift."""
        a, shift, scale = self.shape.double(), self.shift.double(), self._scale()
        over = [1 - gammainc(a + i, shift / scale) for i in range(3)]
        first = a * scale * over[1] - shift * over[0]
        square = a * (a + 1) * scale**2 * over[2]
        return first, square - 2 * shift * a * scale * over[1] + shift**2 * over[0]

    def _scale(self) -> Tensor:
        return self.amount.double() / self.shape.double()

    def log_prob(self, value: Tensor) -> Tensor:
        y = torch.where(value > 0, value, 1.0) + self.shift
        density = _gamma_log_density(y, self.shape, self.amount)
        mass = gammainc(self.shape, self.shift.double() / self._scale()).clamp_min(TINY).log()
        found = torch.where(value > 0, density, mass.to(density))
        return torch.where(value < 0, -math.inf, found)

    def cdf(self, value: Tensor) -> Tensor:
        level = gammainc(self.shape, (value.clamp_min(0) + self.shift).double() / self._scale())
        return torch.where(value < 0, 0.0, level).to(value)

    def icdf(self, value: Tensor) -> Tensor:
        p = value.double().expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        found = _gamma_quantile(self.shape, self.amount, p) - self.shift
        return found.clamp_min(0).to(self.amount)

    def is_mass(self, value: Tensor) -> Tensor:
        return value == 0

    def _mass_below(self, value: Tensor) -> Tensor:
        return torch.zeros_like(value)

    def crps(self, value: Tensor) -> Tensor:
        a, scale = self.shape.double(), self._scale()
        y = (value.double().clamp_min(0) + self.shift) / scale
        c = self.shift.double() / scale
        dry, next_dry = gammainc(a, c), gammainc(a + 1, c)
        found = y * (2 * gammainc(a, y) - 1) - c * dry**2
        found = found + a * (1 + 2 * dry * next_dry - dry**2 - 2 * gammainc(a + 1, y))
        half = torch.full_like(a, 0.5)
        last = a / math.pi * log_beta(half, a + 0.5).exp() * (1 - gammainc(2 * a, 2 * c))
        return scale * (found - last) + (-value.double()).clamp_min(0)

    def corrects(self, mean: Tensor, std: Tensor) -> Marginal:
        """At amount 1 and shape 1, the prior, censored at zero."""
        amount = positive_part(mean + self.shift, std)
        shape = (self.shape * (amount / std).square().clamp(0.1, 400.0)).clamp(*SHAPES)
        return CensoredGamma(self.amount * amount, shape, self.shift)


class SpikedBeta(Marginal):
    """A beta variable between 0 and 1, with point masses at 0 and at 1.

    `logits` of 0, of 1 and of the beta variable are along a last axis.
    """

    limits = (0.0, 1.0)

    def __init__(self, centre: Tensor, concentration: Tensor, logits: Tensor) -> None:
        self.a, self.b = centre * concentration, (1 - centre) * concentration
        self.centre, self.concentration, self.logits = centre, concentration, logits
        super().__init__(centre=centre, concentration=concentration, logits=logits)

    def _shares(self) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities of 0, of 1 and of what lies between."""
        low, high, between = self.logits.softmax(-1).unbind(-1)
        return low, high, between

    @property
    def mean(self) -> Tensor:
        _, high, between = self._shares()
        return high + between * self.centre

    @property
    def variance(self) -> Tensor:
        low, high, between = self._shares()
        own = self.centre * (1 - self.centre) / (1 + self.concentration)
        mean = self.mean
        around = between * (own + (self.centre - mean) ** 2)
        return around + low * mean**2 + high * (1 - mean) ** 2

    def log_prob(self, value: Tensor) -> Tensor:
        low, high, between = self.logits.log_softmax(-1).unbind(-1)
        inside = (value > 0) & (value < 1)
        y = torch.where(inside, value, 0.5)
        density = (self.a - 1) * y.log() + (self.b - 1) * (-y).log1p() - log_beta(self.a, self.b)
        found = torch.where(inside, density + between, torch.where(value <= 0, low, high))
        return torch.where((value < 0) | (value > 1), -math.inf, found)

    def cdf(self, value: Tensor) -> Tensor:
        low, _, between = self._shares()
        level = low + between * betainc(self.a, self.b, value.clamp(0, 1))
        found = torch.where(value >= 1, 1.0, level.to(value))
        return torch.where(value < 0, 0.0, found)

    def icdf(self, value: Tensor) -> Tensor:
        low, high, between = (share.double() for share in self._shares())
        p = value.double().expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        level = ((p - low) / between).clamp(0, 1)
        a, b, level = torch.broadcast_tensors(self.a, self.b, level)
        found = scipy_values(special.betaincinv, a, b, level)
        found = torch.where(p > 1 - high, 1.0, torch.where(p <= low, 0.0, found))
        return found.to(self.centre)

    def is_mass(self, value: Tensor) -> Tensor:
        return (value == 0) | (value == 1)

    def crps(self, value: Tensor) -> Tensor:
        low, high, between = (share.double() for share in self._shares())
        a, b, centre = self.a.double(), self.b.double(), self.centre.double()
        y = value.double().clamp(0, 1)
        apart = y * (2 * betainc(a, b, y) - 1) + centre * (1 - 2 * betainc(a + 1, b, y))
        own = 2 * centre / a * (log_beta(2 * a, 2 * b) - 2 * log_beta(a, b)).exp()
        distance = low * y + high * (1 - y) + between * apart
        spread = low * high + between * (low * centre + high * (1 - centre)) + between**2 * own
        return distance - spread + (value.double() - y).abs()

    def corrects(self, mean: Tensor, std: Tensor) -> Marginal:  # noqa: ARG002
        """Between the point masses, a beta variable with the prior's mean at a centre of 1/2."""
        centre = (logit(self.centre) + logit(mean)).sigmoid()
        return SpikedBeta(centre, self.concentration, self.logits)


def _gamma_log_density(value: Tensor, shape: Tensor, mean: Tensor) -> Tensor:
    y, k = value.double(), shape.double()  # large terms of a large shape cancel
    x = y * k / mean
    return (k * x.log() - x - k.lgamma() - y.log()).to(mean)


def _gamma_quantile(shape: Tensor, mean: Tensor, level: Tensor) -> Tensor:
    wide = torch.broadcast_tensors(shape.double(), level)
    return scipy_values(special.gammaincinv, *wide) * mean.double() / shape.double()


def _gamma_spread(shape: Tensor, mean: Tensor) -> Tensor:
    """Half the mean distance of two independent gamma variables."""
    return mean / shape * (-log_beta(torch.full_like(shape, 0.5), shape)).exp()
