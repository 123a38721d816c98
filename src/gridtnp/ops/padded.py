"""Cell attention as the paper describes it: cells padded to the fullest one, with a mask.

Kept for comparison: its cost depends on the most crowded cell, not on the number of points.
"""

from __future__ import annotations

import torch
from torch import Tensor


def cell_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_logit: Tensor,
    own_value: Tensor,
    cell: Tensor,
    valid: Tensor | None,
) -> tuple[Tensor, Tensor]:
    batch, n, heads, size = key.shape
    cells = query.shape[1]
    start = torch.arange(batch, device=cell.device).view(-1, 1, 1) * cells
    member = torch.ones_like(cell, dtype=torch.bool) if valid is None else valid
    to = (cell + start)[member]
    point = torch.arange(batch * n, device=cell.device).view(batch, n, 1).expand_as(cell)[member]
    to, order = to.sort()
    point = point[order]
    count = torch.bincount(to, minlength=batch * cells)
    rank = torch.arange(len(to), device=to.device) - (count.cumsum(0) - count)[to]
    fullest = int(count.max()) if len(to) else 0

    def pad(t: Tensor) -> Tensor:
        zeros = t.new_zeros(batch * cells, fullest, heads, size)
        return zeros.index_put((to, rank), t.flatten(0, 1)[point])

    query = query.expand(batch, -1, -1, -1).flatten(0, 1)
    own_value = own_value.expand(batch, -1, -1, -1).flatten(0, 1)
    own_logit = own_logit.expand(batch, -1, -1).flatten(0, 1)
    mask = torch.arange(fullest, device=to.device) < count.unsqueeze(-1)
    logits = torch.einsum("chd,cnhd->cnh", query, pad(key)) * size**-0.5
    logits = logits.masked_fill(~mask.unsqueeze(-1), -torch.inf)
    logits = torch.cat([own_logit.unsqueeze(1).to(logits.dtype), logits], 1)
    values = torch.cat([own_value.unsqueeze(1), pad(value)], 1)
    out = torch.einsum("cnh,cnhd->chd", torch.softmax(logits, 1), values)
    log_sum = torch.logsumexp(logits, 1)
    return out.unflatten(0, (batch, cells)), log_sum.unflatten(0, (batch, cells))
