"""Optimisers: AdamW and Muon, and their state as named tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from gridtnp.recipes import Recipe

STATE = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")
"""State of AdamW and Muon for a parameter."""
MIN_SIZE = 16
"""Smallest number of rows and of columns of a matrix that Muon is used for."""


def make_optimisers(network: nn.Module, recipe: Recipe) -> list[Optimizer]:
    """AdamW for all parameters, or Muon for weight matrices and AdamW for the rest."""
    rate, decay = recipe.rate, recipe.weight_decay
    if recipe.optimiser == "adamw":
        return [torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)]
    matrices = [
        module.weight
        for module in network.modules()
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
        and min(module.weight.shape[0], module.weight[0].numel()) >= MIN_SIZE
    ]
    with_muon = set(map(id, matrices))
    rest = [p for p in network.parameters() if id(p) not in with_muon]
    optimisers: list[Optimizer] = []
    if matrices:
        optimisers.append(Muon(matrices, rate=rate, weight_decay=decay))
    if rest:
        optimisers.append(torch.optim.AdamW(rest, lr=rate, weight_decay=0.0))
    return optimisers


def optimiser_state(
    named: Iterable[tuple[str, nn.Parameter]], optimisers: Iterable[Optimizer]
) -> dict[str, Tensor]:
    """State tensors by name: `exp_avg.<parameter>` etc."""
    states = [o.state for o in optimisers]
    tensors = {}
    for name, p in named:
        for state in states:
            for key, value in state[p].items() if p in state else ():
                tensors[f"{key}.{name}"] = torch.as_tensor(value)
    return tensors


def restore_optimiser_state(
    named: Iterable[tuple[str, nn.Parameter]],
    optimisers: Iterable[Optimizer],
    tensors: Mapping[str, Tensor],
) -> None:
    """The inverse of `optimiser_state`."""
    owners = {p: o for o in optimisers for group in o.param_groups for p in group["params"]}
    for name, p in named:
        state = {key: tensors[f"{key}.{name}"] for key in STATE if f"{key}.{name}" in tensors}
        if state:
            owners[p].state[p] = {k: v if k == "step" else v.to(p.device) for k, v in state.items()}


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates, for weight matrices.

    Updates are scaled to the size of AdamW's, so that both can use the same learning rate.
    """

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
                    f"Muon is for weight matrices, got a parameter of shape {tuple(p.shape)}; use "
                    "AdamW for it."
                )
        defaults = {"lr": rate, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(weights, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(tuple(p.flatten(1).shape), []).append(p)
            for shape, weights in by_shape.items():
                rate = 0.2 * max(shape) ** 0.5 * group["lr"]
                directions = torch.stack([self._momentum(p, group["momentum"]) for p in weights])
                for p, update in zip(weights, orthogonal(directions), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(update.view_as(p), alpha=-rate)

    def _momentum(self, p: Tensor, momentum: float) -> Tensor:
        """Nesterov momentum, flattened to a matrix."""
        assert p.grad is not None
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        mean = state["momentum_buffer"].lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(mean, momentum).flatten(1)


def orthogonal(matrices: Float[Tensor, "n a b"], steps: int = 5) -> Float[Tensor, "n a b"]:
    """Orthogonalise by a quintic Newton-Schulz iteration: singular values move close to one.

    Singular values far below the largest need more steps.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (2.0315 * (gram @ gram) - 4.7750 * gram) @ x
    return x.mT if tall else x
