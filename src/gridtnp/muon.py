"""Muon, an optimiser for weight matrices: momentum whose direction is made orthogonal.

Every singular value of a step is about one, so that rare directions are learned as fast as common
ones (Jordan et al., 2024). Matrices of one shape are treated together and in their own precision.
PyTorch's own version treats them one by one in bfloat16, which processors are slow at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


class Muon(torch.optim.Optimizer):
    """Steps are as large as AdamW's, so that a learning rate means about the same for both."""

    def __init__(
        self,
        weights: Sequence[Tensor],
        *,
        rate: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        for p in weights:
            if p.ndim < 2:
                raise ValueError(
                    f"Muon takes weight matrices, got one of shape {tuple(p.shape)}; leave it to "
                    "AdamW."
                )
        settings = {"lr": rate, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(weights, settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore
        assert closure is None
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault(tuple(p.flatten(1).shape), []).append(p)
            for shape, weights in alike.items():
                rate = 0.2 * max(shape) ** 0.5 * group["lr"]
                directions = torch.stack([self._momentum(p, group["momentum"]) for p in weights])
                for p, update in zip(weights, orthogonal(directions), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(update.view_as(p), alpha=-rate)

    def _momentum(self, p: Tensor, momentum: float) -> Tensor:
        """Nesterov's, as a matrix."""
        assert p.grad is not None
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        mean = state["momentum_buffer"].lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(mean, momentum).flatten(1)


def orthogonal(matrices: Float[Tensor, "n a b"], steps: int = 5) -> Float[Tensor, "n a b"]:
    """The same singular vectors, singular values near one, by a quintic iteration.

    Values far below the largest need more steps to get there.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (2.0315 * (gram @ gram) - 4.7750 * gram) @ x
    return x.mT if tall else x
