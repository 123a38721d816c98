"""The only learned building blocks: a multi-layer perceptron and an attention block."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from gridtnp.recompute import added, parts, rowwise

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""An op with its geometry bound:

Queries, keys and values `(batch, …, heads, dh)` to what was attended to.
"""

Positions = Literal["absolute", "relative"]
"""Whether tokens know where they are, as in the paper, or only where they are from each other."""


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
        *first, last = self.feed_forward
        assert isinstance(last, nn.Linear)

        def body(x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
            x = added(self.out(attended), x)
            hidden = x
            for step in first:
                hidden = step(hidden)
            return hidden, x

        attended = attended.flatten(-2)
        weights = [p for module in (self.out, *first) for p in module.parameters()]
        return rowwise(body, (x.expand_as(attended), attended), weights, last.weight, last.bias)

    def _projected(self, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """What `weight` makes of the normed tokens: queries, keys or values, head by head."""
        z = rowwise(lambda x: (self.norm(x), None), (x,), [*self.norm.parameters()], weight)
        return parts(z.unflatten(-1, (-1, self.heads, x.shape[-1] // self.heads)))


def module_name(source: str) -> str:
    """The name of a source's module: that of the source, but PyTorch has no dots in names."""
    return source.replace(".", "/")
