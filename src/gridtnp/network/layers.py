"""Building blocks of all networks: the multi-layer perceptron and the attention block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gridtnp import ops
from gridtnp.ops.rows import Add, AddKept, Keep, Linear, Norm, Relu, Step

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""An attention op with its geometry bound: takes queries, keys, values `(batch, …, heads, dh)`."""


class MLP(nn.Sequential):
    """Linear maps, ReLUs and norms, computed by `ops.rowwise`."""

    def forward(self, x: Float[Tensor, "*n _"]) -> Float[Tensor, "*n _"]:  # pyright: ignore
        return ops.rowwise(x, *steps(self))


def mlp(dim_in: int, dim_out: int, *, dim: int, hidden_layers: int = 2) -> MLP:
    """A point-wise multi-layer perceptron with ReLUs; `dim` is the width of its hidden layers."""
    parts: list[nn.Module] = []
    for layer in range(hidden_layers):
        parts += [nn.Linear(dim if layer else dim_in, dim), nn.ReLU()]
    return MLP(*parts, nn.Linear(dim if hidden_layers else dim_in, dim_out))


class AttentionBlock(nn.Module):
    """Pre-norm attention and feed-forward with residuals (appendix E, common transformer details).

    Queries and keys share one layer norm. `attend` decides which tokens attend to which.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"heads={heads} does not divide the token width {dim}.")
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
        """Update `x` by cross-attention to `keys_values`, or by self-attention if it is None."""
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
        """Output projection, residuals and feed-forward."""
        row_steps = (*steps(self.out), Add(x), Keep(), *steps(self.feed_forward), AddKept())
        return ops.rowwise(attended.flatten(-2), *row_steps)

    def _projected(self, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """Project the normalised tokens to queries, keys or values, split into heads."""
        z = ops.rowwise(x, *steps(self.norm), Linear(weight))
        return split_projection(z.unflatten(-1, (-1, self.heads, x.shape[-1] // self.heads)))


def steps(*modules: nn.Module) -> Iterator[Step]:
    """The steps of `ops.rowwise` that compute these modules."""
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
                raise TypeError(f"{type(module).__name__} is not a row-wise module.")


def module_name(source: str) -> str:
    """The name of a source's submodule; PyTorch does not allow dots."""
    return source.replace(".", "/")


def split_projection(
    z: Float[Tensor, "*n parts heads dh"],
) -> tuple[Float[Tensor, "*n heads dh"], ...]:
    """Split a joint projection into queries, keys or values, as views.

    In the backward pass, gradients that are views of one tensor of the same layout (as the C
    back-end returns them) are joined without a copy.
    """
    if torch.compiler.is_compiling() or not z.requires_grad:
        return z.unbind(-3)
    views = _SplitProjection.apply(z)
    assert isinstance(views, tuple)
    return views


class _SplitProjection(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, z: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        return z.unbind(-3)

    @staticmethod
    @once_differentiable
    def backward(_: Any, *grads: Tensor) -> Tensor:  # pyright: ignore
        first = grads[0]
        joint = torch.empty((*first.shape[:-2], len(grads), *first.shape[-2:]), device="meta")
        layouts = [
            (g.untyped_storage().data_ptr(), g.storage_offset() - i * joint.stride(-3), g.stride())
            for i, g in enumerate(grads)
        ]
        expected = (layouts[0][0], first.storage_offset(), joint.select(-3, 0).stride())
        if all(layout == expected for layout in layouts):
            return first.as_strided(joint.shape, joint.stride())
        return torch.stack(grads, -3)
