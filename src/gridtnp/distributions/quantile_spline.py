"""`QuantileSpline`: a distribution of any shape, from its quantiles at equally spaced levels.

Between two levels, the slope of the quantile function Q is linear, so that Q is a quadratic spline,
the density 1 / Q' is continuous, and everything has a closed form. A continuous density matters for
training: if it jumped at a quantile, the log-likelihood would jump where an observation crosses it,
which no gradient shows.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from gridtnp.distributions.marginals import Marginal


class QuantileSpline(Marginal):
    """A quadratic spline of quantiles, with exponential tails.

    The k quantiles have equally spaced levels 1 / (k + 1), …, k / (k + 1): `lowest` is the first.
    `slopes`, along a last axis, are those of the quantile function at these levels, per step from
    one level to the next; the first and the last are also the scales of the tails.
    """

    def __init__(self, lowest: Tensor, slopes: Tensor) -> None:
        self.lowest, self.slopes = lowest, slopes
        self.left, self.right = slopes[..., :-1], slopes[..., 1:]
        self.widths = (self.left + self.right) / 2
        self.knots = lowest[..., None] + F.pad(self.widths, (1, 0)).cumsum(-1)
        super().__init__(lowest=lowest, slopes=slopes)

    @property
    def step(self) -> float:
        """The probability between two knots, and of each tail."""
        return 1 / (self.knots.shape[-1] + 1)

    @property
    def mean(self) -> Tensor:
        a, b, c = self.knots[..., :-1], self.left, (self.right - self.left) / 2
        ends = self.knots[..., [0, -1]] + self._outward()
        return self.step * ((a + b / 2 + c / 3).sum(-1) + ends.sum(-1))

    @property
    def variance(self) -> Tensor:
        centre = self.mean[..., None]
        a, b, c = self.knots[..., :-1] - centre, self.left, (self.right - self.left) / 2
        inner = a**2 + a * b + (b**2 + 2 * a * c) / 3 + b * c / 2 + c**2 / 5
        ends, outward = self.knots[..., [0, -1]] - centre, self._outward()
        tails = ends**2 + 2 * ends * outward + 2 * outward**2
        return self.step * (inner.sum(-1) + tails.sum(-1))

    def log_prob(self, value: Tensor) -> Tensor:
        segment = self._segment(value)
        start, width, left, right = (
            self._at(v, segment) for v in (self.knots, self.widths, self.left, self.right)
        )
        slope = _slope((value - start) / width, left, right)
        under, over = self._tail_excess(value)
        return math.log(self.step) - slope.log() - under - over

    def cdf(self, value: Tensor) -> Tensor:
        segment = self._segment(value)
        start, width, left, right = (
            self._at(v, segment) for v in (self.knots, self.widths, self.left, self.right)
        )
        inner = self.step * (1 + segment + _level((value - start) / width, left, right))
        under, over = self._tail_excess(value)
        tails = self.step * torch.exp(-under), 1 - self.step * torch.exp(-over)
        return torch.where(under > 0, tails[0], torch.where(over > 0, tails[1], inner))

    def icdf(self, value: Tensor) -> Tensor:
        p = value.double().expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        low, high = self.knots[..., 0], self.knots[..., -1]
        under = low + self.slopes[..., 0] * (p / self.step).clamp(max=1).log()
        over = high - self.slopes[..., -1] * ((1 - p) / self.step).clamp(max=1).log()
        place = (p / self.step - 1).clamp(0, self.knots.shape[-1] - 1)
        segment = place.floor().long().clamp(max=self.knots.shape[-1] - 2)
        start, left, right = (self._at(v, segment) for v in (self.knots, self.left, self.right))
        v = place - segment
        inner = start + v * (left + v * (right - left) / 2)
        found = torch.where(p < self.step, under, torch.where(p > 1 - self.step, over, inner))
        return found.to(self.knots)

    def crps(self, value: Tensor) -> Tensor:
        """∫ F² below the observation plus ∫ (1 − F)² above it, segment by segment."""
        share = (value[..., None] - self.knots[..., :-1]) / self.widths
        v, h = _level(share, self.left, self.right), self.step
        start = h * torch.arange(1, self.knots.shape[-1], device=v.device)
        below = _squared_level(v, start, h, self.left, self.right)
        above = _squared_level(1 - v, 1 - h - start, h, self.right, self.left)
        under, over = self._tail_excess(value)
        tails = (
            _tail_crps(under, h) * self.slopes[..., 0] + _tail_crps(over, h) * self.slopes[..., -1]
        )
        return (below + above).sum(-1) + tails

    def _kinks(self, value: Tensor, threshold: float) -> Tensor:
        levels = [torch.full_like(value, self.step * i) for i in range(1, self.knots.shape[-1] + 1)]
        return torch.cat([super()._kinks(value, threshold), torch.stack(levels)]).sort(0).values

    def corrects(self, mean: Tensor, std: Tensor) -> Marginal:
        return QuantileSpline(mean + std * self.lowest, std[..., None] * self.slopes)

    def _outward(self) -> Tensor:
        """How far the means of the lower and the upper tail are from its knot."""
        return torch.stack([-self.slopes[..., 0], self.slopes[..., -1]], -1)

    def _tail_excess(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """How far a value lies in the lower and in the upper tail, in scales of the tail."""
        under = (self.knots[..., 0] - value).clamp(min=0) / self.slopes[..., 0]
        return under, (value - self.knots[..., -1]).clamp(min=0) / self.slopes[..., -1]

    def _segment(self, value: Tensor) -> Tensor:
        """The number of the segment between knots, the nearest for values in the tails."""
        return (value[..., None] >= self.knots[..., 1:-1]).sum(-1)

    def _at(self, values: Tensor, index: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(index.shape, values.shape[:-1])
        wide = values.expand(*shape, values.shape[-1])
        return wide.gather(-1, index.expand(shape)[..., None])[..., 0]


def _slope(share: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The slope of quantiles at a share of the distance between two knots.

    Linear in the level, hence its square linear in the value.
    """
    share = share.clamp(0, 1)
    return ((1 - share) * left**2 + share * right**2).sqrt()


def _level(share: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The level at a share of the distance between two knots, from 0 to 1 between theirs."""
    return share.clamp(0, 1) * (left + right) / (left + _slope(share, left, right))


def _squared_level(v: Tensor, start: Tensor, step: float, left: Tensor, right: Tensor) -> Tensor:
    """∫ (start + step w)² (left + (right − left) w) dw from 0 to v."""
    change = right - left
    quadratic = 2 * start * step * left + start**2 * change
    cubic = step**2 * left + 2 * start * step * change
    terms = v / 4 * step**2 * change + cubic / 3
    return v * (start**2 * left + v * (quadratic / 2 + v * terms))


def _tail_crps(excess: Tensor, mass: float) -> Tensor:
    """The integral over an exponential tail of scale 1 that begins at 0 and holds `mass`.

    Of its squared probability beyond each point, but up to the observation, where it is in the
    tail, of the squared rest.
    """
    return excess - 2 * mass * (1 - torch.exp(-excess)) + mass**2 / 2
