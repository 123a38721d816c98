"""Definitions of the attention ops: readable loops that other back-ends are tested against."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q·k / √dh) v of one query `(heads, dh)` and keys and values `(n, heads, dh)`."""
    if key.shape[0] == 0:
        return torch.zeros_like(query)
    logits = (query * key).sum(-1) / query.shape[-1] ** 0.5
    if bias is not None:
        logits = logits + bias
    return (torch.softmax(logits, 0).unsqueeze(-1) * value).sum(0)


def _table(rows: list[Tensor], like: Tensor) -> Tensor:
    """The rows of all batch elements in one tensor, also if there are none."""
    return torch.stack(rows).view(like.shape) if rows else torch.zeros_like(like)


def cell_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_logit: Tensor,
    own_value: Tensor,
    cell: Tensor,
    valid: Tensor | None,
) -> tuple[Tensor, Tensor]:
    batch, cells = key.shape[0], query.shape[1]
    query, own_value = (t.expand(batch, -1, -1, -1) for t in (query, own_value))
    own_logit = own_logit.expand(batch, -1, -1)
    member = torch.ones_like(cell, dtype=torch.bool) if valid is None else valid
    means, sums = [], []
    for b, m in itertools.product(range(batch), range(cells)):
        inside = ((cell[b] == m) & member[b]).any(-1)
        logits = (query[b, m] * key[b, inside]).sum(-1) / query.shape[-1] ** 0.5
        logits = torch.cat([own_logit[b, m, None], logits])
        values = torch.cat([own_value[b, m, None], value[b, inside]])
        means.append((torch.softmax(logits, 0).unsqueeze(-1) * values).sum(0))
        sums.append(torch.logsumexp(logits, 0))
    return _table(means, own_value), _table(sums, own_logit)


def cell_sum(z: Tensor, cell: Tensor, weight: Tensor, cells: int) -> Tensor:
    rows = []
    for b, m in itertools.product(range(z.shape[0]), range(cells)):
        share = torch.where(cell[b] == m, weight[b], 0.0).sum(-1)
        rows.append((share.unsqueeze(-1) * z[b]).sum(0))
    return _table(rows, z.new_zeros(z.shape[0], cells, z.shape[-1]))


def neighbour_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    valid: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    rows = []
    for b, n in itertools.product(range(query.shape[0]), range(query.shape[1])):
        used = torch.ones_like(index[b, n], dtype=torch.bool) if valid is None else valid[b, n]
        near = index[b, n][used]
        extra = None if bias is None else bias.expand(query.shape[0], -1, -1, -1)[b, n][used]
        rows.append(attend(query[b, n], key[b, near], value[b, near], extra))
    return _table(rows, query)


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
    found = []
    for b, n in itertools.product(range(query.shape[0]), range(query.shape[1])):
        per_axis = features[b, n].split(list(nodes))
        keys = list(key[b, index[b, n]])
        for i, rows in enumerate(itertools.product(*per_axis)):
            for row, of_axis in zip(rows, offset_keys, strict=True):
                keys[i] = keys[i] + (row.view(-1, 1, 1) * of_axis).sum(0)
        used = log_weight[b, n] > -torch.inf
        weight = log_weight[b, n][used].unsqueeze(-1)
        values = value[b, index[b, n][used]]
        found.append(attend(query[b, n], torch.stack(keys)[used], values, weight))
    return _table(found, query)


def window_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Sequence[int],
    shift: Sequence[int],
    periodic: Sequence[bool],
    bias: Tensor | None,
) -> Tensor:
    sizes = query.shape[1:-2]

    def window_of(position: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """The window of a grid point, and its rank inside a full window."""
        index, rank = [], 0
        for p, size, w, s, wraps in zip(position, sizes, window, shift, periodic, strict=True):
            shifted = (p - s) % size if wraps else p - s
            index.append(shifted // w)
            rank = rank * w + shifted % w
        return tuple(index), rank

    points = [window_of(p) for p in itertools.product(*(range(size) for size in sizes))]
    q, k, v = (t.flatten(1, -3) for t in (query, key, value))
    rows = []
    for b, n in itertools.product(range(q.shape[0]), range(len(points))):
        own_window, rank = points[n]
        same = [i for i, (other, _) in enumerate(points) if other == own_window]
        extra = None if bias is None else bias[:, rank, [points[i][1] for i in same]].T
        rows.append(attend(q[b, n], k[b, same], v[b, same], extra))
    return _table(rows, query)


def full_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    rows = []
    for b, n in itertools.product(range(query.shape[0]), range(query.shape[1])):
        used = slice(None) if mask is None else mask[b]
        rows.append(attend(query[b, n], key[b, used], value[b, used]))
    return _table(rows, query)
