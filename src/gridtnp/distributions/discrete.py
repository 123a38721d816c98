"""Distributions of whole numbers: yes or no, classes, and counts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from scipy import special
from torch import Tensor

from gridtnp.distributions.marginals import Marginal, positive_part
from gridtnp.distributions.marginals import logit as limited_logit
from gridtnp.distributions.special import scipy_values


class IntegerMarginal(Marginal):
    """Whole numbers from 0; every value is a point mass."""

    limits = (0.0, math.inf)

    def is_mass(self, value: Tensor) -> Tensor:
        return value == value.floor()

    def _mass_below(self, value: Tensor) -> Tensor:
        return self.cdf(value - 1)

    def crps_above(self, value: Tensor, threshold: float) -> Tensor:
        """As for every distribution; the CDF is constant between whole numbers."""
        y = value.double()
        top = torch.stack([self.icdf(torch.full_like(y, 1 - 1e-9)).double().max(), y.max()]).max()
        total = torch.zeros_like(y)
        for k in range(max(math.floor(threshold), 0) if threshold > 0 else 0, int(top) + 1):
            width = min(k + 1 - threshold, 1.0)
            passed = (y <= k).double()
            total = total + width * (self.cdf(torch.full_like(y, k)) - passed).square()
        return total

    def _log_mass(self, value: Tensor, log_mass: Tensor, highest: float = math.inf) -> Tensor:
        """The logarithm of the mass, for values that are possible."""
        possible = (value >= 0) & (value <= highest) & (value == value.floor())
        return torch.where(possible, log_mass, -math.inf)


class Categorical(IntegerMarginal):
    """Classes 0 to k - 1, in their order; the last axis of `logits` is the class."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.limits = (0.0, logits.shape[-1] - 1.0)
        super().__init__(logits=logits)

    def _points_shape(self) -> torch.Size:
        return self.logits.shape[:-1]

    @property
    def probabilities(self) -> Tensor:
        return self.logits.softmax(-1)

    def _classes(self) -> Tensor:
        return torch.arange(self.logits.shape[-1], device=self.logits.device).to(self.logits)

    @property
    def mean(self) -> Tensor:
        return (self.probabilities * self._classes()).sum(-1)

    @property
    def variance(self) -> Tensor:
        deviation = self._classes() - self.mean[..., None]
        return (self.probabilities * deviation**2).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        highest = self.logits.shape[-1] - 1
        index = value.clamp(0, highest).long()
        shape = torch.broadcast_shapes(index.shape, self.batch_shape)
        log = self.logits.log_softmax(-1).expand(*shape, -1)
        found = log.gather(-1, index.expand(shape)[..., None])[..., 0]
        return self._log_mass(value, found, highest)

    def cdf(self, value: Tensor) -> Tensor:
        return (self.probabilities * (self._classes() <= value[..., None])).sum(-1).clamp(max=1)

    def icdf(self, value: Tensor) -> Tensor:
        level = self.probabilities.cumsum(-1)[..., :-1]
        return (level < value.to(level)[..., None]).sum(-1).to(self.logits)

    def crps(self, value: Tensor) -> Tensor:
        """The ranked probability score."""
        level = self.probabilities.double().cumsum(-1)[..., :-1]
        passed = (value[..., None] <= self._classes()[:-1]).double()
        return (level - passed).square().sum(-1)


class Bernoulli(Categorical):
    """0 or 1."""

    def __init__(self, logit: Tensor) -> None:
        super().__init__(torch.stack([torch.zeros_like(logit), logit], -1))
        self.parameters = {"logit": logit}

    def corrects(self, mean: Tensor, std: Tensor) -> Marginal:  # noqa: ARG002
        return Bernoulli(self.parameters["logit"] + limited_logit(mean))


class Poisson(IntegerMarginal):
    """Counts with a variance equal to their mean."""

    def __init__(self, rate: Tensor) -> None:
        self.rate = rate
        super().__init__(rate=rate)

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def variance(self) -> Tensor:
        return self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        y = value.clamp_min(0)
        return self._log_mass(value, y * self.rate.log() - self.rate - (y + 1).lgamma())

    def cdf(self, value: Tensor) -> Tensor:
        y, rate = torch.broadcast_tensors(value.floor(), self.rate)
        return torch.where(y < 0, 0.0, scipy_values(special.pdtr, y.clamp_min(0), rate).to(value))

    def icdf(self, value: Tensor) -> Tensor:
        p, rate = torch.broadcast_tensors(value.double(), self.rate.double())
        start = scipy_values(special.pdtrik, p, rate).nan_to_num(0.0).ceil().clamp_min(0)
        return _lowest(self, p, start).to(self.rate)

    def crps(self, value: Tensor) -> Tensor:
        y, rate = value.double(), self.rate.double()
        mass = self.log_prob(y).exp()
        bessel = scipy_values(lambda r: special.ive(0, 2 * r) + special.ive(1, 2 * r), rate)
        return (y - rate) * (2 * self.cdf(y) - 1) + 2 * rate * mass - rate * bessel

    def corrects(self, mean: Tensor, std: Tensor) -> Marginal:
        return Poisson(self.rate * positive_part(mean, std))


class NegativeBinomial(IntegerMarginal):
    """Counts with variance `rate` + `rate`² / `shape`."""

    def __init__(self, rate: Tensor, shape: Tensor) -> None:
        self.rate, self.shape = rate, shape
        super().__init__(rate=rate, shape=shape)

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def variance(self) -> Tensor:
        return self.rate + self.rate**2 / self.shape

    def log_prob(self, value: Tensor) -> Tensor:
        y, r = value.clamp_min(0), self.shape
        logit = self.rate.log() - r.log()
        log = (y + r).lgamma() - r.lgamma() - (y + 1).lgamma()
        return self._log_mass(value, log + y * F.logsigmoid(logit) + r * F.logsigmoid(-logit))

    def cdf(self, value: Tensor) -> Tensor:
        y, r, rate = torch.broadcast_tensors(value.floor(), self.shape, self.rate)
        level = scipy_values(special.betainc, r, y.clamp_min(0) + 1, r / (r + rate))
        return torch.where(y < 0, 0.0, level.to(value))

    def icdf(self, value: Tensor) -> Tensor:
        p, r, rate = torch.broadcast_tensors(value.double(), self.shape, self.rate)
        start = scipy_values(special.nbdtrik, p, r, r / (r + rate))
        return _lowest(self, p, start.nan_to_num(0.0).ceil().clamp_min(0)).to(self.rate)

    def crps(self, value: Tensor) -> Tensor:
        y, r, rate = torch.broadcast_tensors(
            value.double(), self.shape.double(), self.rate.double()
        )
        success = r / (r + rate)
        above = NegativeBinomial(rate * (r + 1) / r, r + 1).cdf(y - 1)
        # Pfaff's transformation of ₂F₁(r + 1, ½; 2; z), which SciPy cannot evaluate near whole r
        ratio = 4 * (1 - success) / (2 - success) ** 2
        half = torch.full_like(r, 0.5)
        series = scipy_values(special.hyp2f1, half, 1 - r, torch.full_like(r, 2.0), ratio)
        tail = success * (2 * above - 1) + success / (2 - success) * series
        return y * (2 * self.cdf(y) - 1) - r * (1 - success) / success**2 * tail

    def corrects(self, mean: Tensor, std: Tensor) -> Marginal:
        return NegativeBinomial(self.rate * positive_part(mean, std), self.shape)


def _lowest(counts: IntegerMarginal, p: Tensor, start: Tensor) -> Tensor:
    """The lowest count whose CDF reaches `p`, from a guess that is off by a few."""
    found = start
    for _ in range(3):
        found = torch.where(counts.cdf(found) < p, found + 1, found)
    for _ in range(3):
        lower = (found - 1).clamp_min(0)
        found = torch.where(counts.cdf(lower) >= p, lower, found)
    return found
