"""Distributions with a density: Student's t, lognormal, normal mixture, spline of quantiles."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
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


class QuantileSpline(Marginal):
    """Linear interpolation between quantiles at fixed levels, with exponential tails.

    The k quantiles have equally spaced levels 1 / (k + 1), …, k / (k + 1): `lowest` is the first,
    `widths` are the distances between them along a last axis, and `tails` the scales of the lower
    and the upper tail.
    """

    def __init__(self, lowest: Tensor, widths: Tensor, tails: Tensor) -> None:
        self.lowest, self.widths, self.tails = lowest, widths, tails
        self.knots = lowest[..., None] + F.pad(widths, (1, 0)).cumsum(-1)
        super().__init__(lowest=lowest, widths=widths, tails=tails)

    @property
    def step(self) -> float:
        """The probability between two knots, and of each tail."""
        return 1 / (self.knots.shape[-1] + 1)

    @property
    def mean(self) -> Tensor:
        a, b = self.knots[..., :-1], self.knots[..., 1:]
        low, high = self._ends()
        ends = low - self.tails[..., 0] + high + self.tails[..., 1]
        return self.step * (((a + b) / 2).sum(-1) + ends)

    @property
    def variance(self) -> Tensor:
        centre = self.mean[..., None]
        a, b = self.knots[..., :-1] - centre, self.knots[..., 1:] - centre
        ends = torch.stack(self._ends(), -1) - centre
        outward = torch.stack([-self.tails[..., 0], self.tails[..., 1]], -1)
        tails = (ends**2 + 2 * ends * outward + 2 * self.tails**2).sum(-1)
        return self.step * (((a**2 + a * b + b**2) / 3).sum(-1) + tails)

    def log_prob(self, value: Tensor) -> Tensor:
        low, high = self._ends()
        under, over = self.tails[..., 0], self.tails[..., 1]
        left = (value - low).clamp(max=0) / under - under.log()
        right = (high - value).clamp(max=0) / over - over.log()
        inner = -self._at(self.widths, self._segment(value)).log()
        found = torch.where(value < low, left, torch.where(value > high, right, inner))
        return found + math.log(self.step)

    def cdf(self, value: Tensor) -> Tensor:
        low, high = self._ends()
        left = self.step * ((value - low).clamp(max=0) / self.tails[..., 0]).exp()
        right = 1 - self.step * ((high - value).clamp(max=0) / self.tails[..., 1]).exp()
        segment = self._segment(value)
        start, width = self._at(self.knots, segment), self._at(self.widths, segment)
        inner = self.step * (1 + segment + (value - start) / width)
        return torch.where(value < low, left, torch.where(value > high, right, inner))

    def icdf(self, value: Tensor) -> Tensor:
        p = value.double().expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        low, high = self._ends()
        left = low + self.tails[..., 0] * (p / self.step).clamp(max=1).log()
        right = high - self.tails[..., 1] * ((1 - p) / self.step).clamp(max=1).log()
        place = (p / self.step - 1).clamp(0, self.knots.shape[-1] - 1)
        segment = place.floor().long().clamp(max=self.knots.shape[-1] - 2)
        width = self._at(self.widths, segment)
        inner = self._at(self.knots, segment) + (place - segment) * width
        found = torch.where(p < self.step, left, torch.where(p > 1 - self.step, right, inner))
        return found.to(self.knots)

    def crps(self, value: Tensor) -> Tensor:
        """∫ F² below the observation plus ∫ (1 − F)² above it, segment by segment."""
        a, b, y = self.knots[..., :-1], self.knots[..., 1:], value[..., None]
        split = torch.maximum(torch.minimum(y, b), a)
        start = self.step * torch.arange(1, a.shape[-1] + 1, device=a.device)
        level, end = start + self.step * (split - a) / self.widths, start + self.step
        below = (split - a) * _mean_square(start, level)
        above = (b - split) * _mean_square(1 - level, 1 - end)
        low, high = self._ends()
        left = _tail_crps((low - value) / self.tails[..., 0], self.step) * self.tails[..., 0]
        right = _tail_crps((value - high) / self.tails[..., 1], self.step) * self.tails[..., 1]
        return (below + above).sum(-1) + left + right

    def _kinks(self, value: Tensor, threshold: float) -> Tensor:
        levels = [torch.full_like(value, self.step * i) for i in range(1, self.knots.shape[-1] + 1)]
        return torch.cat([super()._kinks(value, threshold), torch.stack(levels)]).sort(0).values

    def corrects(self, mean: Tensor, std: Tensor) -> Marginal:
        wide = std[..., None]
        return QuantileSpline(mean + std * self.lowest, wide * self.widths, wide * self.tails)

    def _ends(self) -> tuple[Tensor, Tensor]:
        return self.knots[..., 0], self.knots[..., -1]

    def _segment(self, value: Tensor) -> Tensor:
        """The number of the segment between knots, the nearest for values in the tails."""
        return (value[..., None] >= self.knots[..., 1:-1]).sum(-1)

    def _at(self, values: Tensor, index: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(index.shape, values.shape[:-1])
        wide = values.expand(*shape, values.shape[-1])
        return wide.gather(-1, index.expand(shape)[..., None])[..., 0]


def _mean_square(a: Tensor, b: Tensor) -> Tensor:
    """Of a linear function from a to b."""
    return (a**2 + a * b + b**2) / 3


def _tail_crps(beyond: Tensor, mass: float) -> Tensor:
    """The integral over an exponential tail of scale 1 that begins at 0 and holds `mass`.

    Of its squared probability beyond each point, but up to the observation, where it is in the
    tail, of the squared rest.
    """
    inside = beyond.clamp_min(0)
    return inside - 2 * mass * (1 - torch.exp(-inside)) + mass**2 / 2


def _absolute(mean: Tensor, std: Tensor) -> Tensor:
    """The mean absolute value of a normal variable."""
    z = mean / std
    density = torch.exp(-0.5 * z**2) / (2 * math.pi) ** 0.5
    return 2 * std * density + mean * (2 * torch.special.ndtr(z) - 1)
