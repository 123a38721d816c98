"""Cell attention to points that several cells share, gated by the offset from each: back-ends.

`expanded` turns every point into one for each of its nodes and lets any back-end of cell attention
do the rest. C (attention.c) computes logits and gates where they are needed; it has no backward
pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gridtnp.ops import native
from gridtnp.ops.checks import mixed
from gridtnp.ops.native_attention import cells_and_points, rows_of
from gridtnp.ops.stencils import check_nodes


class Gates(NamedTuple):
    """Linear functions of the features of offsets along each axis, and the nodes along each.

    Functions add up to a logit per head, and multiply to a factor for each channel of the values.
    """

    logits: Tensor  # (axes, f, heads)
    factors: Tensor  # (axes, f, dz)
    one: Tensor  # (axes, dz): added to the factors
    nodes: tuple[int, ...]


def check(value: Tensor, features: Tensor, cell: Tensor, gates: Gates) -> None:
    """Raise unless the functions fit the features and values."""
    op, axes, f = "gated_cell_attention", len(gates.nodes), features.shape[-1]
    heads, size = value.shape[2:]
    sizes: dict[str, tuple[int, ...]] = {
        "logits": (axes, f, heads),
        "factors": (axes, f, heads * size),
        "one": (axes, heads * size),
    }
    for (name, shape), t in zip(sizes.items(), gates, strict=False):
        if not isinstance(t, Tensor) or t.shape != shape or mixed(t, value):
            raise ValueError(f"{op}: 'gates.{name}' must be a tensor of {value.dtype} and {shape}.")
    check_nodes(op, gates.nodes, gates.logits, features, cell)


def expanded(
    attention: Callable[..., tuple[Tensor, Tensor]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_logit: Tensor,
    own_value: Tensor,
    cell: Tensor,
    log_weight: Tensor,
    features: Tensor,
    gates: Gates,
) -> tuple[Tensor, Tensor]:
    heads, size = key.shape[-2:]
    k = cell.shape[-1]
    logits = features.new_zeros(*features.shape[:2], 1, heads)
    values = value.flatten(2).unsqueeze(2)
    at_poles = values.expand(-1, -1, k - math.prod(gates.nodes), -1)
    for rows, to_logits, to_factors, one in zip(
        features.split(list(gates.nodes), 2), *gates[:3], strict=True
    ):
        along = rows @ to_logits.to(rows.dtype)
        logits = (logits.unsqueeze(3) + along.unsqueeze(2)).flatten(2, 3)
        factors = rows.to(to_factors.dtype) @ to_factors + one
        values = (values.unsqueeze(3) * factors.unsqueeze(2)).flatten(2, 3)
    values = torch.cat([values, at_poles], 2).flatten(1, 2).unflatten(-1, (heads, size))
    valid = log_weight > -torch.inf
    bias = F.pad(logits, (0, 0, 0, at_poles.shape[2])) + log_weight.where(valid, 0.0).unsqueeze(-1)
    keys = key[..., :-1].unsqueeze(2).expand(-1, -1, k, -1, -1)
    keys = torch.cat([keys, bias.to(key.dtype).unsqueeze(-1)], -1).flatten(1, 2)
    query = torch.cat([query[..., :-1], torch.full_like(query[..., :1], size**0.5)], -1)
    pairs = (t.flatten(1).unsqueeze(-1) for t in (cell, valid))
    return attention(query, keys, values, own_logit, own_value, *pairs)


def why_not(*arguments: object) -> str | None:
    """The reason why C cannot run with these arguments."""
    *tensors, gates = arguments
    assert isinstance(gates, Gates)
    tensors = (*tensors, *gates[:3])
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors):
        return "it has no gradients"
    return native.why_not(*tensors)


def in_c(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_logit: Tensor,
    own_value: Tensor,
    cell: Tensor,
    log_weight: Tensor,
    features: Tensor,
    gates: Gates,
) -> tuple[Tensor, Tensor]:
    batch, size = key.shape[0], key.shape[-1]
    query = torch.cat([query[..., :-1], torch.zeros_like(query[..., :1])], -1)
    arguments = (query, key, value, own_logit, own_value, cell, log_weight > -torch.inf)
    sizes, tokens = cells_and_points(*arguments)
    out, log_sum = (
        t.expand(batch, *t.shape[1:]).clone(memory_format=torch.contiguous_format)
        for t in (own_value, own_logit)
    )
    axes, f = gates.logits.shape[:2]
    about = (axes, f, math.prod(gates.nodes), sum(gates.nodes), rows_of(gates.nodes)[1])
    tables = [native.contiguous(t) for t in (features, log_weight, *gates[:3])]
    native.call("cell_forward", *sizes, *tokens, *about, *tables, out, log_sum, size**-0.5)
    return out, log_sum
