"""The only learned building blocks: a multi-layer perceptron and an attention block."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gridtnp import ops
from gridtnp.ops.rows import Add, AddKept, Keep, Linear, Norm, Relu, Step

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""An op with its geometry bound:

Queries, keys and values `(batch, …, heads, dh)` to what was attended to.
"""


class Perceptron(nn.Sequential):
    """Row by row through linear maps, ReLUs and norms."""

    def forward(self, x: Float[Tensor, "*n _"]) -> Float[Tensor, "*n _"]:  # pyright: ignore
        return ops.rowwise(x, *steps(self))


def mlp(dim_in: int, dim_out: int, *, dim: int, hidden_layers: int = 2) -> Perceptron:
    """Point-wise linear maps with ReLU in between; `dim` is the width of the hidden layers."""
    widths = [dim_in, *[dim] * hidden_layers]
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return Perceptron(*parts, nn.Linear(widths[-1], dim_out))


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
        attended = attended.flatten(-2)
        around = (*steps(self.out), Add(x), Keep(), *steps(self.feed_forward), AddKept())
        return ops.rowwise(attended, *around)

    def _projected(self, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """What `weight` makes of the normed tokens: queries, keys or values, head by head."""
        z = ops.rowwise(x, *steps(self.norm), Linear(weight))
        return parts(z.unflatten(-1, (-1, self.heads, x.shape[-1] // self.heads)))


def steps(*modules: nn.Module) -> Iterator[Step]:
    """What modules do row by row."""
    for module in modules:
        match module:
            case nn.Sequential():
                yield from steps(*module)
            case nn.Linear():
                yield Linear(module.weight, module.bias)
            case nn.LayerNorm():
                yield Norm(module.weight, module.bias, module.eps)
            case nn.ReLU():
                yield Relu()
            case _:
                raise TypeError(f"{type(module).__name__} is not something that rows go through.")


def module_name(source: str) -> str:
    """The name of a source's module: that of the source, but PyTorch has no dots in names."""
    return source.replace(".", "/")


def parts(z: Float[Tensor, "*n parts heads dh"]) -> tuple[Float[Tensor, "*n heads dh"], ...]:
    """Queries, keys or values that one projection made, as views.

    Where their gradients lie side by side as they do, as those of the C back-end, these are taken
    as the projection's without a copy.
    """
    if torch.compiler.is_compiling() or not z.requires_grad:
        return z.unbind(-3)
    found = _Parts.apply(z)
    assert isinstance(found, tuple)
    return found


class _Parts(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, z: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        return z.unbind(-3)

    @staticmethod
    @once_differentiable
    def backward(_: Any, *grads: Tensor) -> Tensor:  # pyright: ignore
        first = grads[0]
        whole = torch.empty((*first.shape[:-2], len(grads), *first.shape[-2:]), device="meta")
        places = [
            (g.untyped_storage().data_ptr(), g.storage_offset() - i * whole.stride(-3), g.stride())
            for i, g in enumerate(grads)
        ]
        expected = (places[0][0], first.storage_offset(), whole.select(-3, 0).stride())
        if all(place == expected for place in places):
            return first.as_strided(whole.shape, whole.stride())
        return torch.stack(grads, -3)
