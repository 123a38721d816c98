"""Optimisers by name, and their state as named tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gridtnp.muon import Muon
from gridtnp.recipes import Recipe

STATE = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")
"""What AdamW and Muon remember of a parameter."""
SMALLEST = 16
"""Rows and columns from which on a matrix is worth an orthogonal step."""


def make_optimisers(network: nn.Module, recipe: Recipe) -> list[Optimizer]:
    """AdamW for everything, or Muon for the matrices inside and AdamW for the rest."""
    rate, decay = recipe.rate, recipe.weight_decay
    if recipe.optimiser == "adamw":
        return [torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)]
    inner = [
        module.weight
        for module in network.modules()
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
        and min(module.weight.shape[0], module.weight[0].numel()) >= SMALLEST
    ]
    chosen = set(map(id, inner))
    rest = [p for p in network.parameters() if id(p) not in chosen]
    made: list[Optimizer] = []
    if inner:
        made.append(Muon(inner, rate=rate, weight_decay=decay))
    if rest:
        made.append(torch.optim.AdamW(rest, lr=rate, weight_decay=0.0))
    return made


def state_of(
    named: Iterable[tuple[str, nn.Parameter]], optimisers: Iterable[Optimizer]
) -> dict[str, Tensor]:
    """`exp_avg.<parameter>` and so on."""
    states = [o.state for o in optimisers]
    tensors = {}
    for name, p in named:
        for state in states:
            for key, value in state[p].items() if p in state else ():
                tensors[f"{key}.{name}"] = torch.as_tensor(value)
    return tensors


def restore(
    named: Iterable[tuple[str, nn.Parameter]],
    optimisers: Iterable[Optimizer],
    tensors: Mapping[str, Tensor],
) -> None:
    """The inverse of `state_of`."""
    owners = {p: o for o in optimisers for group in o.param_groups for p in group["params"]}
    for name, p in named:
        state = {key: tensors[f"{key}.{name}"] for key in STATE if f"{key}.{name}" in tensors}
        if state:
            owners[p].state[p] = {k: v if k == "step" else v.to(p.device) for k, v in state.items()}
