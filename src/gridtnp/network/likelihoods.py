"""Likelihoods: from target tokens to a predictive distribution (the decoder d of section 2.1)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from gridtnp.network.layers import mlp

VARIANCE_FLOOR = 1e-8
"""Added to every variance to keep density and gradient finite where softplus underflows."""


class Likelihood(nn.Module, ABC):
    """A distribution over the outputs of each target; `head` computes its raw parameters."""

    head: nn.Module

    @abstractmethod
    def distribution(self, raw: Float[Tensor, "batch n outputs"]) -> Distribution: ...

    def forward(self, z: Float[Tensor, "batch n dz"]) -> Distribution:
        return self.distribution(self.head(z))


class GaussianLikelihood(Likelihood):
    """Independent normals with σ = σ_min + √softplus(raw) (appendix E), at least in float32."""

    def __init__(
        self, dim_in: int, dim_y: int, *, dim: int, hidden_layers: int = 2, min_noise: float = 0.0
    ) -> None:
        super().__init__()
        if min_noise < 0:
            raise ValueError(f"min_noise={min_noise}: a standard deviation cannot be negative.")
        self.min_noise = min_noise
        self.head = mlp(dim_in, 2 * dim_y, dim=dim, hidden_layers=hidden_layers)

    @torch.no_grad()
    def predict_standard_normal(self) -> None:
        """Set the last layer so that every prediction has mean 0 and standard deviation 1."""
        last = list(self.head.children())[-1]
        assert isinstance(last, nn.Linear)
        last.weight.zero_()
        last.bias.zero_()
        variance = (1 - self.min_noise) ** 2 - VARIANCE_FLOOR
        last.bias[len(last.bias) // 2 :] = math.log(math.expm1(variance))

    def distribution(self, raw: Float[Tensor, "batch n outputs"]) -> Normal:
        """The first half of `raw` are means, the second half raw variances."""
        mean, variance = raw.to(torch.promote_types(raw.dtype, torch.float32)).chunk(2, -1)
        scale = self.min_noise + (F.softplus(variance) + VARIANCE_FLOOR).sqrt()
        return Normal(mean, scale, validate_args=False)
