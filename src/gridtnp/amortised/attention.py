"""Attention of observations, and of any places, to the nearest observations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from gridtnp.amortised.neighbours import RADIAL, Near, flat_index, take
from gridtnp.amortised.threads import in_order

PIECE = 2**11
"""Places that attend to their neighbours at once, if no gradients are needed; more leave the cache.
"""


@dataclass(frozen=True, eq=False)
class Attended:
    """Observations as places attend to them whose tokens all start alike."""

    start: Float[Tensor, "batch 1 dz"]
    logits: Float[Tensor, "batch n heads"]
    values: Float[Tensor, "heads bn dh"]


class NeighbourBlock(nn.Module):
    """Attention to the nearest observations, by content and distance, and an MLP."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.norm_context = nn.LayerNorm(dim)
        self.query, self.key_value = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.bias = nn.Sequential(nn.Linear(RADIAL, 32), nn.SiLU(), nn.Linear(32, 2 * heads))
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim)
        )

    def forward(self, z: Float[Tensor, "batch n dz"], near: Near) -> Float[Tensor, "batch n dz"]:
        """Observations attend to each other."""
        q = self._queries(z)
        keys, values = self._keys_and_values(z)

        def piece(p: slice) -> Tensor:
            some = near[:, p]
            k = take(keys, some.index).unflatten(-1, (self.heads, -1))
            logits = (q[:, p].unsqueeze(2) * k).sum(-1)
            return self._attend(z[:, p], logits, values, some)

        return _in_pieces(piece, near)

    def attended(
        self, start: Float[Tensor, "batch 1 dz"], context: Float[Tensor, "batch n dz"]
    ) -> Attended:
        """Everything about a context that does not depend on the place."""
        keys, values = self._keys_and_values(context)
        logits = (self._queries(start) * keys.unflatten(-1, (self.heads, -1))).sum(-1)
        return Attended(start, logits, values)

    def at(self, given: Attended, near: Near) -> Float[Tensor, "batch m dz"]:
        """Places attend to a context."""

        def piece(p: slice) -> Tensor:
            some = near[:, p]
            return self._attend(given.start, take(given.logits, some.index), given.values, some)

        return _in_pieces(piece, near)

    def _queries(self, z: Tensor) -> Float[Tensor, "batch n heads dh"]:
        q = self.query(self.norm(z)).unflatten(-1, (self.heads, -1))
        return q / math.sqrt(q.shape[-1])

    def _keys_and_values(self, context: Tensor) -> tuple[Tensor, Float[Tensor, "heads bn dh"]]:
        keys, values = self.key_value(self.norm_context(context)).chunk(2, -1)
        return keys, values.flatten(0, 1).unflatten(-1, (self.heads, -1)).transpose(
            0, 1
        ).contiguous()

    def _attend(
        self,
        z: Tensor,
        logits: Float[Tensor, "batch m k heads"],
        values: Float[Tensor, "heads bn dh"],
        near: Near,
    ) -> Float[Tensor, "batch m dz"]:
        bias, gate = self.bias(near.radial).chunk(2, -1)
        logits = (logits + bias + near.log_weight[..., None]).movedim(-1, 0).contiguous()
        attention = logits.softmax(-1) * (1 + gate.movedim(-1, 0))
        rows = flat_index(near.index, values.shape[1] // len(z)).flatten(0, 1)
        found = [
            embedding_bag(rows, v, per_sample_weights=a.flatten(0, 1), mode="sum")
            for v, a in zip(values, attention, strict=True)
        ]  # sums of values by attention, without a copy of them for every place
        z = z + self.out(torch.cat(found, -1).unflatten(0, near.index.shape[:2]))
        return z + self.mlp(z)


def _in_pieces(attend: Callable[[slice], Tensor], near: Near) -> Tensor:
    batch, number = near.index.shape[:2]
    size = max(1, number if torch.is_grad_enabled() else PIECE // batch)
    pieces = [slice(i, i + size) for i in range(0, number, size)] or [slice(0, 0)]
    return torch.cat(list(in_order(attend, pieces)), 1)
