"""The only learned building blocks: a multi-layer perceptron and an attention block."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""An op with its geometry bound:

Queries, keys and values `(batch, …, heads, dh)` to what was attended to.
"""

Positions = Literal["absolute", "relative"]
"""Whether tokens know where they are, as in the paper, or only where they are from each other."""

LARGE = 2**19
"""Numbers per activation from which on memory is dearer than computing something cheap twice."""


def mlp(dim_in: int, dim_out: int, *, dim: int, hidden_layers: int = 2) -> nn.Sequential:
    """Point-wise linear maps with ReLU in between; `dim` is the width of the hidden layers."""
    widths = [dim_in, *[dim] * hidden_layers]
    steps: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        steps += [nn.Linear(before, after), nn.ReLU(inplace=True)]
    return nn.Sequential(*steps, nn.Linear(widths[-1], dim_out))


class AttentionBlock(nn.Module):
    """Pre-norm attention with residual and feed-forward (appendix E, "Common transformer details").

    One norm serves queries and keys alike. Which tokens see which is the business of `attend`.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(
                f"The number of heads must divide the token width, got {heads} heads for width "
                f"{dim}."
            )
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.project = nn.Linear(dim, 3 * dim, bias=False)  # to query, key and value
        self.out = nn.Linear(dim, dim)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(dim), *mlp(dim, dim, dim=dim, hidden_layers=1)
        )

    def forward(
        self,
        x: Float[Tensor, "#batch *n dz"],
        keys_values: tuple[Tensor, Tensor] | None,
        attend: Attend,
    ) -> Float[Tensor, "batch *n dz"]:
        """Update `x` from the keys and values of other tokens, or from its own where that is
        None.
        """
        if keys_values is None:
            return self.update(x, attend(*self._projected(x, self.project.weight)))
        return self.update(x, attend(self.queries(x), *keys_values))

    def queries(self, x: Float[Tensor, "batch *n dz"]) -> Float[Tensor, "batch *n heads dh"]:
        """One query per token."""
        (query,) = self._projected(x, self.project.weight[: x.shape[-1]])
        return query

    def keys_values(self, context: Float[Tensor, "batch *n dz"]) -> tuple[Tensor, Tensor]:
        """One key and one value per token: `(batch, …, heads, dh)` each."""
        key, value = self._projected(context, self.project.weight[context.shape[-1] :])
        return key, value

    def update(
        self, x: Float[Tensor, "#batch *n dz"], attended: Float[Tensor, "batch *n heads dh"]
    ) -> Float[Tensor, "batch *n dz"]:
        """Residual and feed-forward around what was attended to."""
        x = x + self.out(attended.flatten(-2))
        return x + recomputed(x.numel(), self.feed_forward, x)

    def _projected(self, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """What `weight` makes of the normed tokens: queries, keys or values, head by head."""
        z = recomputed(x.numel(), lambda x, weight: F.linear(self.norm(x), weight), x, weight)
        return z.unflatten(-1, (-1, self.heads, x.shape[-1] // self.heads)).unbind(-3)


def recomputed(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function` gives. If its activations are large, `size` numbers each, they are computed
    again for the backward pass instead of being kept.

    A product at the very end is not: only what it was made from is needed.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or size < LARGE:
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


def module_name(source: str) -> str:
    """The name of a source's module: that of the source, but PyTorch has no dots in names."""
    return source.replace(".", "/")
