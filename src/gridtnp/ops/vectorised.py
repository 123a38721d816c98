"""Attention ops without loops, in plain PyTorch, on any device.

Sums over points run in at least float32, forwards and backwards: in half precision, long sums would
stop growing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def _sum_dtype(t: Tensor) -> torch.dtype:
    return torch.promote_types(t.dtype, torch.float32)


def _flat_index(index: Tensor, rows: int) -> Tensor:
    """Flattened indices into `(batch * rows)`, from indices into the `rows` of each element."""
    start = torch.arange(index.shape[0], device=index.device) * rows
    return (index + start.view(-1, *[1] * (index.ndim - 1))).flatten()


def cell_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_logit: Tensor,
    own_value: Tensor,
    cell: Tensor,
    valid: Tensor | None,
) -> tuple[Tensor, Tensor]:
    batch, _, heads, size = key.shape
    cells, copies = query.shape[1], cell.shape[-1]
    exact = _sum_dtype(key)
    to = _flat_index(cell, cells)

    def per_cell(t: Tensor) -> Tensor:
        return t.to(exact).expand(batch, *t.shape[1:]).flatten(0, 1)

    def per_member(t: Tensor) -> Tensor:
        return t.unsqueeze(2).expand(-1, -1, copies, -1, -1).flatten(0, 2)

    own = per_cell(own_logit)
    logits = (per_cell(query)[to] * per_member(key)).sum(-1) * size**-0.5
    if valid is not None:
        logits = logits.masked_fill(~valid.flatten().unsqueeze(-1), -torch.inf)
    with torch.no_grad():  # the result does not depend on the subtracted maximum
        top = own.scatter_reduce(0, to.unsqueeze(-1).expand(-1, heads), logits, "amax")
    own_weight = (own - top).exp()
    weight = (logits - top[to]).exp()
    total = own_weight.index_add(0, to, weight)
    mixed = (own_weight.unsqueeze(-1) * per_cell(own_value)).index_add(
        0, to, weight.unsqueeze(-1) * per_member(value)
    )
    out = (mixed / total.unsqueeze(-1)).to(value.dtype)
    return out.unflatten(0, (batch, cells)), (top + total.log()).unflatten(0, (batch, cells))


def cell_sum(z: Tensor, cell: Tensor, weight: Tensor, cells: int) -> Tensor:
    batch, _, width = z.shape
    exact = _sum_dtype(z)
    parts = weight.unsqueeze(-1).to(exact) * z.unsqueeze(2)
    total = parts.new_zeros(batch * cells, width).index_add(
        0, _flat_index(cell, cells), parts.flatten(0, 2)
    )
    return total.to(z.dtype).unflatten(0, (batch, cells))


def neighbour_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    valid: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    rows = _flat_index(index, key.shape[1])
    exact = _sum_dtype(key)
    near_key, near_value = (
        t.to(exact).flatten(0, 1)[rows].unflatten(0, index.shape) for t in (key, value)
    )
    logits = torch.einsum("bnhd,bnkhd->bnkh", query.to(exact), near_key).to(exact)
    logits = logits * query.shape[-1] ** -0.5
    if bias is not None:
        logits = logits + bias
    if valid is not None:
        logits = logits.masked_fill(~valid.unsqueeze(-1), torch.finfo(exact).min)
    weight = torch.softmax(logits, 2)
    if valid is not None:
        weight = weight * valid.unsqueeze(-1)  # zero if no neighbour is valid
    return torch.einsum("bnkh,bnkhd->bnhd", weight.to(exact), near_value).to(value.dtype)


def stencil_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    log_weight: Tensor,
    features: Tensor,
    offset_keys: Tensor,
    nodes: Sequence[int],
) -> Tensor:
    exact = _sum_dtype(key)
    logits = torch.einsum("bnhd,afhd->abnfh", query.to(exact), offset_keys.to(exact)).to(exact)
    logits = logits * query.shape[-1] ** -0.5
    bias = logits.new_zeros(*query.shape[:2], 1, query.shape[2])
    for along, rows in zip(logits.unbind(), features.split(list(nodes), 2), strict=True):
        of_rows = torch.einsum("bnfh,bnwf->bnwh", along, rows.to(exact)).to(exact)
        bias = (bias.unsqueeze(3) + of_rows.unsqueeze(2)).flatten(2, 3)
    bias = F.pad(bias, (0, 0, 0, index.shape[-1] - bias.shape[2])) + log_weight.unsqueeze(-1)
    return neighbour_attention(query, key, value, index, log_weight > -torch.inf, bias)


def to_windows(u: Tensor, window: Sequence[int]) -> Tensor:
    """`(batch, *grid, heads, dh)` as `(batch * windows, heads, points of a window, dh)`."""
    axes = len(window)
    split = [u.shape[0]]
    for size, w in zip(u.shape[1 : axes + 1], window, strict=True):
        split += [size // w, w]
    outer = [0, *range(1, 2 * axes, 2)]
    inner = range(2, 2 * axes + 1, 2)
    u = u.reshape(*split, *u.shape[axes + 1 :]).permute(*outer, 2 * axes + 1, *inner, 2 * axes + 2)
    return u.flatten(-axes - 1, -2).flatten(0, axes)


def from_windows(u: Tensor, shape: Sequence[int], window: Sequence[int]) -> Tensor:
    """The inverse of `to_windows`; `shape` is `(batch, *grid, heads, dh)`."""
    axes = len(window)
    counts = [size // w for size, w in zip(shape[1:-2], window, strict=True)]
    u = u.reshape(shape[0], *counts, shape[-2], *window, shape[-1])
    order = [0]
    for axis in range(axes):
        order += [1 + axis, 2 + axes + axis]
    return u.permute(*order, 1 + axes, 2 + 2 * axes).reshape(shape)


def window_labels(
    grid: Sequence[int],
    window: Sequence[int],
    shift: Sequence[int],
    periodic: Sequence[bool],
    device: torch.device,
) -> Tensor | None:
    """Labels of the points of each rolled window: those from opposite edges have different ones.

    None if no window spans an edge.
    """
    label = torch.zeros((), dtype=torch.long, device=device)
    cut = False
    for size, s, wraps in zip(grid, shift, periodic, strict=True):
        rolled_in = torch.zeros(size, dtype=torch.long, device=device)
        if s and not wraps:
            rolled_in = (torch.arange(size, device=device) >= size - s).long()
            cut = True
        label = label.unsqueeze(-1) * 2 + rolled_in
    return to_windows(label[None, ..., None, None], window).flatten(1) if cut else None


def window_mask(
    grid: Sequence[int],
    window: Sequence[int],
    shift: Sequence[int],
    periodic: Sequence[bool],
    device: torch.device,
) -> Tensor | None:
    """Which pairs of points in each rolled window may attend to each other; None if all may."""
    label = window_labels(grid, window, shift, periodic, device)
    return None if label is None else (label.unsqueeze(-1) == label.unsqueeze(-2)).unsqueeze(1)


def window_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Sequence[int],
    shift: Sequence[int],
    periodic: Sequence[bool],
    bias: Tensor | None,
) -> Tensor:
    grid = query.shape[1:-2]
    dims = [1 + d for d, s in enumerate(shift) if s]
    back = [s for s in shift if s]
    if dims:
        query, key, value = (t.roll([-s for s in back], dims) for t in (query, key, value))
    mask = window_mask(grid, window, shift, periodic, query.device)
    if mask is not None:
        mask = mask.repeat(query.shape[0], 1, 1, 1)
    if bias is not None:
        mask = bias if mask is None else torch.where(mask, bias, -torch.inf)
    q, k, v = (to_windows(t, window) for t in (query, key, value))
    out = from_windows(F.scaled_dot_product_attention(q, k, v, attn_mask=mask), query.shape, window)
    return out.roll(back, dims) if dims else out


def full_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    if key.shape[1] == 0:
        return torch.zeros_like(query)
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    any_key = mask.any(1)
    safe = mask | ~any_key.unsqueeze(-1)  # avoids NaN; the result is zeroed below
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=safe[:, None, None, :])
    return out.transpose(1, 2) * any_key.view(-1, 1, 1, 1)
