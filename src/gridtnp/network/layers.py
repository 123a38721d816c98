"""Building blocks of all networks: the multi-layer perceptron and the attention block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from gridtnp import ops
from gridtnp.ops.checks import opaque
from gridtnp.ops.rows import Add, AddKept, Call, Keep, Linear, Norm, Relu, Step
from gridtnp.stencils import FEATURES, Stencil

M = TypeVar("M", bound=nn.Module)
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""An attention op with its geometry bound: takes queries, keys, values `(batch, …, heads, dh)`."""


class MLP(nn.Sequential):
    """Linear maps, ReLUs and norms, computed by `ops.rowwise`."""

    def forward(self, x: Float[Tensor, "*n _"]) -> Float[Tensor, "*n _"]:  # pyright: ignore
        return ops.rowwise(x, *steps(*self))


def mlp(dim_in: int, dim_out: int, *, dim: int, hidden_layers: int = 2) -> MLP:
    """A point-wise multi-layer perceptron with ReLUs; `dim` is the width of its hidden layers."""
    parts: list[nn.Module] = []
    for layer in range(hidden_layers):
        parts += [nn.Linear(dim if layer else dim_in, dim), nn.ReLU()]
    return MLP(*parts, nn.Linear(dim if hidden_layers else dim_in, dim_out))


KINDS = (nn.Linear, nn.LayerNorm, nn.ReLU, nn.Sequential, MLP)
"""Modules that `steps` knows."""


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
            return self.update(x, attend(*self.projected(x)))
        return self.update(x, attend(self.queries(x), *keys_values))

    def projected(self, x: Float[Tensor, "batch *n dz"]) -> tuple[Tensor, Tensor, Tensor]:
        """One query, key and value per token: `(batch, …, heads, dh)` each."""
        query, key, value = self._projected(x, slice(None))
        return query, key, value

    def queries(self, x: Float[Tensor, "batch *n dz"]) -> Float[Tensor, "batch *n heads dh"]:
        """One query per token."""
        (query,) = self._projected(x, slice(x.shape[-1]))
        return query

    def keys_values(self, context: Float[Tensor, "batch *n dz"]) -> tuple[Tensor, Tensor]:
        """One key and one value per token: `(batch, …, heads, dh)` each."""
        key, value = self._projected(context, slice(context.shape[-1], None))
        return key, value

    def update(
        self, x: Float[Tensor, "#batch *n dz"], attended: Float[Tensor, "batch *n heads dh"]
    ) -> Float[Tensor, "batch *n dz"]:
        """Output projection, residuals and feed-forward."""
        row_steps = (*steps(self.out), Add(x), Keep(), *steps(self.feed_forward), AddKept())
        return ops.rowwise(attended.flatten(-2), *row_steps)

    def _projected(self, x: Tensor, part: slice) -> tuple[Tensor, ...]:
        """Project the normalised tokens to queries, keys or values, split into heads."""
        if is_plain(self.project, nn.Linear):
            weight, bias = self.project.weight, self.project.bias
            projection = Linear(weight[part], None if bias is None else bias[part])
            z = ops.rowwise(x, *steps(self.norm), projection)
        else:
            z = ops.rowwise(x, *steps(self.norm, self.project))[..., part]
        *n, width = z.shape
        dim = x.shape[-1]
        return split_projection(z.reshape(*n, width // dim, self.heads, dim // self.heads))


def steps(*modules: nn.Module) -> list[Step]:
    """The steps of `ops.rowwise` that compute these modules."""
    found: list[Step] = []
    for module in modules:
        if not is_plain(module, *KINDS):
            found.append(Call(module))
        elif isinstance(module, nn.Linear):
            found.append(Linear(module.weight, module.bias))
        elif isinstance(module, nn.ReLU):
            found.append(Relu())
        elif isinstance(module, nn.Sequential):
            found += steps(*module)
        elif len(module.normalized_shape) == 1 and module.weight is not None:
            found.append(Norm(module.weight, module.bias, module.eps))
        else:
            found.append(Call(module))
    return found


def is_plain(module: nn.Module, *kinds: type[M]) -> TypeGuard[M]:
    """Whether a module computes what its type says: no subclass, hook or other `forward`.

    Parametrisations make a subclass.
    """
    return (
        type(module) in kinds
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._backward_hooks
        and not module._backward_pre_hooks
        and "forward" not in module.__dict__
        and not _has_any_global_hook()
    )


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
    if opaque(z) or not z.requires_grad:
        return z.unbind(-3)
    views = _SplitProjection.apply(z)
    assert isinstance(views, tuple)
    return views


class _SplitProjection(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, z: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        return z.unbind(-3)

    @staticmethod
    def backward(_: Any, *grads: Tensor) -> Tensor:  # pyright: ignore
        if torch.is_grad_enabled() or opaque(*grads):
            return torch.stack(grads, -3)
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


class OffsetKeys(nn.Module):
    """Learned keys for the offset between a location and a grid point, along each axis."""

    def __init__(self, axes: int, heads: int, dim: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.zeros(axes, FEATURES, heads, dim))


class OffsetLogits(nn.Module):
    """A learned logit per head for the offset between a token and a grid point."""

    def __init__(self, axes: int, heads: int) -> None:
        super().__init__()
        self.axes = nn.ModuleList(nn.Linear(FEATURES, heads, bias=False) for _ in range(axes))

    def weights(self) -> Float[Tensor, "axes f heads"]:
        return torch.stack([cast(nn.Linear, linear).weight.T for linear in self.axes])


class OffsetGates(nn.Module):
    """Gates on the channels of a token, learned functions of its offset from a grid point.

    A token reaches several grid points; the gates tell each of them where it is seen from.
    """

    def __init__(self, axes: int, dim: int) -> None:
        super().__init__()
        self.axes = nn.ModuleList(nn.Linear(FEATURES, dim) for _ in range(axes))
        for linear in self.axes:
            nn.init.ones_(cast(nn.Linear, linear).bias)

    def forward(
        self, z: Float[Tensor, "batch n dz"], near: Stencil
    ) -> Float[Tensor, "batch n k dz"]:
        z = z.unsqueeze(2)
        for linear, features in zip(self.axes, near.along_axes(), strict=True):
            gate = linear(features.to(cast(nn.Linear, linear).weight.dtype))
            z = (z.unsqueeze(3) * gate.unsqueeze(2)).flatten(2, 3)
        return z

    def weights(self) -> tuple[Float[Tensor, "axes f dz"], Float[Tensor, "axes dz"]]:
        linears = [cast(nn.Linear, linear) for linear in self.axes]
        return torch.stack([one.weight.T for one in linears]), torch.stack(
            [o.bias for o in linears]
        )
