"""Distributions with a density: Student's t, lognormal, normal mixture."""

from __future__ import annotations

import math

import torch
from scipy import special
from torch import Tensor

from gridtnp.distributions.marginals import Marginal, positive_part
from gridtnp.distributions.special import log_beta, scipy_values, student_cdf

ITERATIONS, CLOSE = 100, 1e-12
"""Most iterations of the search for a quantile, and the change, in scales, at which it ends."""


class StudentT(Marginal):
    """Student's t with more than two degrees of freedom, so that it has a variance."""

    def __init__(self, freedom: Tensor, loc: Tensor, scale: Tensor) -> None:
        self.freedom, self.loc, self.scale = freedom, loc, scale
        super().__init__(freedom=freedom, loc=loc, scale=scale)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale**2 * self.freedom / (self.freedom - 2)

    def log_prob(self, value: Tensor) -> Tensor:
        z, half = (value - self.loc) / self.scale, self.freedom / 2
        peak = (half + 0.5).lgamma() - half.lgamma() - 0.5 * (math.pi * self.freedom).log()
        return peak - self.scale.log() - (half + 0.5) * (z**2 / self.freedom).log1p()

    def cdf(self, value: Tensor) -> Tensor:
        return student_cdf(self.freedom, (value - self.loc) / self.scale).to(value)

    def icdf(self, value: Tensor) -> Tensor:
        freedom, p = torch.broadcast_tensors(self.freedom, value)
        return self.loc + self.scale * scipy_values(special.stdtrit, freedom, p).to(self.loc)

    def crps(self, value: Tensor) -> Tensor:
        v, z = self.freedom.double(), ((value - self.loc) / self.scale).double()
        density = (self.log_prob(value) + self.scale.log()).double().exp()
        half = torch.full_like(v, 0.5)
        spread = (log_beta(half, v - 0.5) - 2 * log_beta(half, v / 2)).exp()
        found = z * (2 * student_cdf(v, z) - 1) + 2 * density * (v + z**2) / (v - 1)
        return self.scale * (found - 2 * v.sqrt() / (v - 1) * spread)

    def corrects(self, mean: Tensor, std: Tensor) -> Marginal:
        return StudentT(self.freedom, mean + std * self.loc, std * self.scale)


class LogNormal(Marginal):
    """A positive variable whose logarithm is normal."""

    limits = (0.0, math.inf)

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        self.loc, self.scale = loc, scale
        super().__init__(loc=loc, scale=scale)

    @property
    def mean(self) -> Tensor:
        return (self.loc + self.scale**2 / 2).exp()

    @property
    def variance(self) -> Tensor:
        return (self.scale**2).expm1() * (2 * self.loc + self.scale**2).exp()

    def log_prob(self, value: Tensor) -> Tensor:
        log = torch.where(value > 0, value, 1.0).log()
        z = (log - self.loc) / self.scale
        density = -0.5 * z**2 - log - self.scale.log() - 0.5 * math.log(2 * math.pi)
        return torch.where(value > 0, density, -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        return torch.where(value > 0, torch.special.ndtr(self._standardised(value)), 0.0)

    def icdf(self, value: Tensor) -> Tensor:
        z = torch.special.ndtri(value.double())  # in single precision, levels near 1 are 1
        return (self.loc + self.scale * z).exp().to(self.loc)

    def crps(self, value: Tensor) -> Tensor:
        z, ndtr = self._standardised(value), torch.special.ndtr
        inside = torch.where(value > 0, ndtr(z), 0.0)
        shifted = torch.where(value > 0, ndtr(z - self.scale), 0.0)
        spread = ndtr(self.scale / 2**0.5) - 1
        return value * (2 * inside - 1) - 2 * self.mean * (shifted + spread)

    def corrects(self, mean: Tensor, std: Tensor) -> Marginal:
        """At 0 and 0.7, the prior's mean and coefficient of variation."""
        amount = positive_part(mean, std)
        variance = (std / amount).clamp(0.05, 3.0).square().log1p()
        scale = (self.scale * variance.sqrt() / 0.7).clamp(max=3.0)
        return LogNormal(self.loc + amount.log() - variance / 2, scale)

    def _standardised(self, value: Tensor) -> Tensor:
        return (torch.where(value > 0, value, 1.0).log() - self.loc) / self.scale


class NormalMixture(Marginal):
    """A mixture of normals; the last axis of all parameters is the component."""

    def __init__(self, log_weight: Tensor, loc: Tensor, scale: Tensor) -> None:
        self.log_weight, self.loc, self.scale = log_weight, loc, scale
        super().__init__(log_weight=log_weight, loc=loc, scale=scale)

    def _points_shape(self) -> torch.Size:
        return self.loc.shape[:-1]

    @property
    def weight(self) -> Tensor:
        return self.log_weight.exp()

    @property
    def mean(self) -> Tensor:
        return (self.weight * self.loc).sum(-1)

    @property
    def variance(self) -> Tensor:
        deviation = self.loc - self.mean[..., None]
        return (self.weight * (self.scale**2 + deviation**2)).sum(-1)

    def positive_part(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of max(Y, 0)."""
        z = self.loc / self.scale
        above, density = torch.special.ndtr(z), torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        mean = (self.weight * (self.loc * above + self.scale * density)).sum(-1).clamp_min(0.0)
        square = (self.loc**2 + self.scale**2) * above + self.loc * self.scale * density
        variance = (self.weight * square).sum(-1) - mean**2
        return mean, variance.clamp_min(0.0).sqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        z = (value[..., None] - self.loc) / self.scale
        log = -0.5 * z**2 - self.scale.log() - 0.5 * math.log(2 * math.pi)
        return torch.logsumexp(self.log_weight + log, -1)

    def cdf(self, value: Tensor) -> Tensor:
        z = (value[..., None] - self.loc) / self.scale
        return (self.weight * torch.special.ndtr(z)).sum(-1)

    def icdf(self, value: Tensor) -> Tensor:
        """By Newton's method, or bisection where it would leave the components' quantiles."""
        p = value.double().expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        normal = torch.special.ndtri(p)
        ends = self.loc + self.scale * normal[..., None]
        low, high = ends.amin(-1), ends.amax(-1)
        found = (self.mean + self.stddev * normal).clamp(low, high)
        weight = self.log_weight.double().softmax(-1)  # single precision ends before levels near 1
        density = weight / (self.scale * math.sqrt(2 * math.pi))
        close = CLOSE * self.scale.amin(-1)
        for _ in range(ITERATIONS):
            z = (found[..., None] - self.loc) / self.scale
            over = (weight * torch.special.ndtr(z)).sum(-1) - p
            low, high = torch.where(over < 0, found, low), torch.where(over < 0, high, found)
            step = found - over / (density * torch.exp(-0.5 * z**2)).sum(-1)
            middle = (low + high) / 2
            last, found = found, torch.where((step >= low) & (step <= high), step, middle)
            if not ((found - last).abs() > close).any():
                break
        return found.to(self.loc)

    def crps(self, value: Tensor) -> Tensor:
        weight = self.weight
        pairs = (self.scale[..., None, :] ** 2 + self.scale[..., :, None] ** 2).sqrt()
        apart = _absolute(self.loc[..., None, :] - self.loc[..., :, None], pairs)
        spread = (weight[..., None, :] * weight[..., :, None] * apart).sum((-2, -1))
        return (weight * _absolute(value[..., None] - self.loc, self.scale)).sum(-1) - spread / 2

    def corrects(self, mean: Tensor, std: Tensor) -> Marginal:
        loc, scale = mean[..., None] + std[..., None] * self.loc, std[..., None] * self.scale
        return NormalMixture(self.log_weight, loc, scale)


def _absolute(mean: Tensor, std: Tensor) -> Tensor:
    """The mean absolute value of a normal variable."""
    z = mean / std
    density = torch.exp(-0.5 * z**2) / (2 * math.pi) ** 0.5
    return 2 * std * density + mean * (2 * torch.special.ndtr(z) - 1)
