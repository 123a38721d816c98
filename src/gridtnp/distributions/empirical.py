"""`Empirical`: the distribution of some values that are equally likely."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gridtnp.distributions.marginals import Marginal


class Empirical(Marginal):
    """Equally likely `members` along the last axis, sorted; there is no density (NaN)."""

    def __init__(self, members: Tensor) -> None:
        self.members = members
        super().__init__(members=members)

    def _points_shape(self) -> torch.Size:
        return self.members.shape[:-1]

    @property
    def mean(self) -> Tensor:
        return self.members.mean(-1)

    @property
    def variance(self) -> Tensor:
        return self.members.var(-1, correction=0)

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.full(torch.broadcast_shapes(value.shape, self.batch_shape), math.nan)

    def cdf(self, value: Tensor) -> Tensor:
        return (self.members <= value[..., None]).to(self.members).mean(-1)

    def below(self, value: Tensor) -> Tensor:
        return (self.members < value[..., None]).to(self.members).mean(-1)

    def icdf(self, value: Tensor) -> Tensor:
        number = self.members.shape[-1]
        index = (value.double() * number).ceil().long().clamp(1, number) - 1
        index = index.expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        wide = self.members.expand(*index.shape, number)
        return wide.gather(-1, index[..., None])[..., 0]

    def is_mass(self, value: Tensor) -> Tensor:
        return (self.members == value[..., None]).any(-1)

    def crps(self, value: Tensor) -> Tensor:
        """Mean distance to the observation, minus half of that between members."""
        number = self.members.shape[-1]
        rank = 2 * torch.arange(1, number + 1).to(self.members) - number - 1
        spread = (self.members * rank).sum(-1) / number**2
        return (self.members - value[..., None]).abs().mean(-1) - spread

    def crps_above(self, value: Tensor, threshold: float) -> Tensor:
        above = Empirical(self.members.clamp_min(threshold))
        return above.crps(value.clamp_min(threshold))
