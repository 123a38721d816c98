"""Sums with squared-exponential kernels between points and a grid, and their back-ends.

The weight between a point and the grid point of row r and column c is exp(-½ (apart[r] + precision
d²)), where d² is the squared distance that `Away` tells. `reference` defines the sums. `dense`
computes all weights, some points at a time, and in training again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gridtnp.ops.checks import mixed, opaque

WEIGHTS = 2**22
"""At most this many weights are computed at once in PyTorch."""


class Away(NamedTuple):
    """Distances of points to a grid: `across[c]` squared or, on the sphere, the great circle whose
    haversine is `rows[r] + cosines[r] · across[c]`, in degrees.
    """

    across: Tensor
    rows: Tensor | None = None
    cosines: Tensor | None = None

    def squared(self) -> Tensor:
        """The squared distance of all pairs, `(batch, n, rows or 1, columns)`."""
        across = self.across.unsqueeze(-2)
        if self.rows is None or self.cosines is None:
            return across
        near = self.rows.unsqueeze(-1) + self.cosines.unsqueeze(-1) * across
        tiny = torch.finfo(near.dtype).tiny  # the square root has no finite gradient at zero
        far = (1 - near).clamp_min(tiny).sqrt()
        return torch.rad2deg(2 * torch.atan2(near.clamp_min(tiny).sqrt(), far)).square()

    def some(self, part: slice) -> Away:
        """Those of some points."""
        return Away(*(None if t is None else t[:, part] for t in self))  # pyright: ignore


def check(op: str, apart: Tensor, precision: Tensor, away: Away, columns: int | None) -> None:
    """Raise unless the distances fit the points, and the columns of the grid if they are known."""
    batch, n, rows = apart.shape
    if (away.rows is None) != (away.cosines is None):
        raise ValueError(f"{op}: 'away' must have rows and cosines, or none of them.")
    sizes = {"across": columns, "rows": rows, "cosines": rows}
    for (name, size), t in zip(sizes.items(), away, strict=True):
        if t is None:
            continue
        if not isinstance(t, Tensor) or not t.is_floating_point() or mixed(t, apart):
            raise ValueError(f"{op}: 'away.{name}' must be a tensor of {apart.dtype}.")
        if t.device != apart.device:
            raise ValueError(
                f"{op}: 'away.{name}' is on {t.device}, but 'apart' on {apart.device}."
            )
        if t.ndim != 3 or t.shape[:2] != (batch, n) or size not in (None, t.shape[-1]):
            wanted = f"({batch}, {n}, {'columns' if size is None else size})"
            raise ValueError(
                f"{op}: 'away.{name}' must have the shape {wanted}, got {tuple(t.shape)}."
            )
    if precision.ndim:
        raise ValueError(
            f"{op}: 'precision' must be a single number, got {tuple(precision.shape)}."
        )


def weights(apart: Tensor, precision: Tensor, away: Away) -> Tensor:
    """Weights of all pairs, `(batch, n, rows · columns)`."""
    return torch.exp(-0.5 * (apart.unsqueeze(-1) + precision * away.squared())).flatten(2)


# ---- the definition ------------------------------------------------------------------------------


def to_grid_reference(z: Tensor, apart: Tensor, precision: Tensor, away: Away) -> Tensor:
    w = weights(apart, precision, away)
    total = (w.unsqueeze(-1) * z.unsqueeze(2)).sum(1)
    return total.unflatten(1, (apart.shape[-1], away.across.shape[-1]))


def from_grid_reference(u: Tensor, apart: Tensor, precision: Tensor, away: Away) -> Tensor:
    w = weights(apart, precision, away)
    return (w.unsqueeze(-1) * u.flatten(1, 2).unsqueeze(1)).sum(2)


# ---- dense, in pieces ----------------------------------------------------------------------------


def to_grid(z: Tensor, apart: Tensor, precision: Tensor, away: Away) -> Tensor:
    shape = (apart.shape[-1], away.across.shape[-1])
    total = z.new_zeros(z.shape[0], shape[0] * shape[1], z.shape[-1])
    for part in _parts(apart, away):
        given = (z[:, part], apart[:, part], precision, *away.some(part))
        total = total + _piece(_piece_to_grid, *given)
    return total.unflatten(1, shape)


def from_grid(u: Tensor, apart: Tensor, precision: Tensor, away: Away) -> Tensor:
    pieces = [
        _piece(_piece_from_grid, u.flatten(1, 2), apart[:, part], precision, *away.some(part))
        for part in _parts(apart, away)
    ]
    return torch.cat(pieces, 1)


def _piece_to_grid(z: Tensor, apart: Tensor, precision: Tensor, *away: Any) -> Tensor:
    return weights(apart, precision, Away(*away)).to(z.dtype).mT @ z


def _piece_from_grid(u: Tensor, apart: Tensor, precision: Tensor, *away: Any) -> Tensor:
    return weights(apart, precision, Away(*away)).to(u.dtype) @ u


def _piece(run: Callable[..., Tensor], *given: Any) -> Tensor:
    if opaque(*given) or not torch.is_grad_enabled():
        return run(*given)
    found = checkpoint(run, *given, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(found, Tensor)
    return found


def _parts(apart: Tensor, away: Away) -> list[slice]:
    """Points whose weights are computed at once: all, where sizes may be symbols."""
    if opaque(apart):
        return [slice(None)]
    batch, n, rows = apart.shape
    size = max(1, WEIGHTS // max(1, batch * rows * away.across.shape[-1]))
    return [slice(first, first + size) for first in range(0, max(n, 1), size)]
