"""Likelihoods:

From a target's token to a predictive distribution (the decoder d of section 2.1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from gridtnp.network.layers import mlp

VARIANCE_FLOOR = 1e-8
"""Added to every variance. It keeps density and gradient finite where softplus underflows."""


class Likelihood(nn.Module, ABC):
    """A distribution over the outputs of every target: `head` makes raw outputs, point by point."""

    head: nn.Module

    @abstractmethod
    def distribution(self, raw: Float[Tensor, "batch n outputs"]) -> Distribution: ...

    def forward(self, z: Float[Tensor, "batch n dz"]) -> Distribution:
        return self.distribution(self.head(z))


class GaussianLikelihood(Likelihood):
    """Independent normals:

    Σ = σ_min + √softplus(raw), as in appendix E; at least in single precision.
    """

    def __init__(
        self, dim_in: int, dim_y: int, *, dim: int, hidden_layers: int = 2, min_noise: float = 0.0
    ) -> None:
        super().__init__()
        if min_noise < 0:
            raise ValueError(
                "The minimum noise is a standard deviation and cannot be negative, got "
                f"{min_noise}."
            )
        self.min_noise = min_noise
        self.head = mlp(dim_in, 2 * dim_y, dim=dim, hidden_layers=hidden_layers)

    def distribution(self, raw: Float[Tensor, "batch n outputs"]) -> Normal:
        """From raw outputs: the first half are means, the second half raw variances."""
        mean, variance = raw.to(torch.promote_types(raw.dtype, torch.float32)).chunk(2, -1)
        scale = self.min_noise + (F.softplus(variance) + VARIANCE_FLOOR).sqrt()
        return Normal(mean, scale, validate_args=False)
