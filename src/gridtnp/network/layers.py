"""Building blocks of all networks: the multi-layer perceptron and the attention block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeGuard, TypeVar, cast

import torch
import torch.nn.functional as F
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
            return self.update(x, attend(*self._projected(x, slice(None))))
        return self.update(x, attend(self.queries(x), *keys_values))

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
        return split_projection(z.unflatten(-1, (-1, self.heads, x.shape[-1] // self.heads)))


def steps(*modules: nn.Module) -> Iterator[Step]:
    """The steps of `ops.rowwise` that compute these modules."""
    for module in modules:
        if is_plain(module, nn.Sequential, MLP):
            yield from steps(*module.children())
        elif is_plain(module, nn.Linear):
            yield Linear(module.weight, module.bias)
        elif (
            is_plain(module, nn.LayerNorm)
            and len(module.normalized_shape) == 1
            and module.weight is not None
        ):
            yield Norm(module.weight, module.bias, module.eps)
        elif is_plain(module, nn.ReLU):
            yield Relu()
        else:
            yield Call(module)


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
    """Learned keys for the offset between a location and a grid point, as a bias of attention."""

    def __init__(self, axes: int, heads: int, dim: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.zeros(axes, FEATURES, heads, dim))

    def forward(
        self, query: Float[Tensor, "batch n heads dh"], offsets: OffsetBias
    ) -> Float[Tensor, "batch n k heads"]:
        heads, dim = query.shape[-2:]
        # all heads in one product, with zeros between the channels of one and the keys of another
        apart = torch.eye(heads, dtype=query.dtype, device=query.device) * dim**-0.5
        keys = self.keys.unsqueeze(-1) * apart.view(heads, 1, heads)
        keys = keys.permute(2, 3, 0, 1, 4).flatten(2).flatten(0, 1)
        logits = query.flatten(-2) @ torch.cat([keys, keys], -1)
        rows = (offsets.log_weight.flatten(0, 1), (logits * offsets.features).flatten(0, 1))
        bias = torch.addmm(*rows, offsets.to_nodes)
        return bias.unflatten(1, (-1, heads)).unflatten(0, query.shape[:2])


class OffsetBias(NamedTuple):
    """What the layers of a decoder share to turn logits of offsets into a bias of each node.

    The features are those of the offset from the first node, and the same turned by a right angle;
    a sum of both with the cosine and the sine of an angle is a turn by that angle.
    """

    features: Float[Tensor, "batch n f"]
    to_nodes: Float[Tensor, "f k"]
    log_weight: Float[Tensor, "batch n k"]

    @staticmethod
    def of(near: Stencil, heads: int, like: Tensor) -> OffsetBias:
        """For `heads` heads and the dtype of a tensor."""
        features = near.features()
        sine, cosine = features.chunk(2, -1)
        both = torch.stack([features, torch.cat([-cosine, sine], -1)], 2).flatten(2)
        turns = torch.stack(near.turns(near.cells(like))).movedim(1, -1).flatten(0, 2)
        return OffsetBias(
            both.to(like.dtype).repeat_interleave(heads, -1),
            torch.kron(F.pad(turns, (0, near.poles)), torch.eye(heads).to(like)),
            near.log_weight.to(like.dtype).repeat_interleave(heads, -1),
        )


class OffsetLogits(nn.Module):
    """A learned logit per head for the offset between a token and a grid point."""

    def __init__(self, axes: int, heads: int) -> None:
        super().__init__()
        self.axes = nn.ModuleList(nn.Linear(FEATURES, heads, bias=False) for _ in range(axes))

    def forward(self, near: Stencil) -> Float[Tensor, "batch n k heads"]:
        return functools.reduce(_outer_sum, at_nodes(self.axes, near))


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
        for gate in at_nodes(self.axes, near):
            z = (z.unsqueeze(3) * gate.unsqueeze(2)).flatten(2, 3)
        return z


def at_nodes(linears: nn.ModuleList, near: Stencil) -> Iterator[Float[Tensor, "batch n _ out"]]:
    """A linear map per axis, of the features of the offset from each node along that axis."""
    features = near.features()
    for axis, (linear, nodes) in enumerate(zip(linears, near.nodes, strict=True)):
        assert isinstance(linear, nn.Linear)
        cells = torch.arange(nodes, dtype=features.dtype, device=features.device).unsqueeze(-1)
        cosine, sine = (t[:, [axis]].to(linear.weight.dtype) for t in near.turns(cells))
        to_sine, to_cosine = linear.weight.chunk(2, -1)
        turned = torch.cat([to_cosine, -to_sine], -1)
        weight = linear.weight * cosine + turned * sine
        bias = None if linear.bias is None else linear.bias.repeat(len(weight))
        found = F.linear(features[:, :, axis].to(weight.dtype), weight.flatten(0, 1), bias)
        yield found.unflatten(-1, (len(weight), -1))


def _outer_sum(
    a: Float[Tensor, "batch n k heads"], b: Float[Tensor, "batch n w heads"]
) -> Float[Tensor, "batch n _ heads"]:
    """The sums of all pairs."""
    return (a.unsqueeze(3) + b.unsqueeze(2)).flatten(2, 3)
