"""The only learned building blocks: a multi-layer perceptron and an attention block."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""An op with its geometry bound:

Queries, keys and values `(batch, …, heads, dh)` to what was attended to.
"""


def mlp(dim_in: int, dim_out: int, *, dim: int, hidden_layers: int = 2) -> nn.Sequential:
    """Point-wise linear maps with ReLU in between; `dim` is the width of the hidden layers."""
    widths = [dim_in, *[dim] * hidden_layers]
    steps: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        steps += [nn.Linear(before, after), nn.ReLU()]
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
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(dim), *mlp(dim, dim, dim=dim, hidden_layers=1)
        )

    def keys_values(self, context: Float[Tensor, "batch *n dz"]) -> tuple[Tensor, Tensor]:
        """One key and one value per token: `(batch, …, heads, dh)` each."""
        return self._split(self.norm(context))

    def forward(
        self,
        x: Float[Tensor, "batch *n dz"],
        context: Float[Tensor, "batch2 *m dz"] | None,
        attend: Attend,
    ) -> Float[Tensor, "batch3 *n dz"]:
        """Update `x` from `context`, or from itself where that is None."""
        normed = self.norm(x)
        query = self.query(normed).unflatten(-1, (self.heads, -1))
        key, value = self._split(normed if context is None else self.norm(context))
        x = x + self.out(attend(query, key, value).flatten(-2))
        return x + self.feed_forward(x)

    def _split(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        key, value = self.key_value(normed).chunk(2, -1)
        return key.unflatten(-1, (self.heads, -1)), value.unflatten(-1, (self.heads, -1))
