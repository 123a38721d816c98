"""Ops without parameters: attention with different geometries, and row-wise computations.

The last back-end of each op is its readable definition; the others compute the same, faster. By
default the first back-end in the table that can run and is not slower than others for the given
sizes is used; one requested by name runs or raises, and `with backends(…)` prefers some in a whole
model.
Keys and values are projected before they are gathered, once per token. Tensors are
`(batch, tokens, heads, head size)`. Attention over an empty set is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gridtnp.grid import Grid
from gridtnp.ops import (
    checks,
    gated,
    kernels,
    native,
    native_attention,
    native_kernels,
    native_rows,
    padded,
    reference,
    rows,
    stencils,
    vectorised,
)
from gridtnp.ops.gated import Gates as Gates
from gridtnp.ops.kernels import Away as Away


def _always(*_: object) -> str | None:
    return None


@dataclass(frozen=True)
class Backend:
    """One implementation of an op.

    `why_not` returns the reason why it cannot run with the given arguments, or None. `why_slower`
    returns the reason why it can but another one is faster; then it runs only on request.
    """

    name: str
    run: Callable[..., Any]
    why_not: Callable[..., str | None] = _always
    why_slower: Callable[..., str | None] = _always

    def suits(self, tracing: bool, arguments: Sequence[object]) -> bool:
        """Whether there is neither reason; sizes must not be looked at while a graph is traced."""
        if tracing and self.why_not(*arguments) is not None:
            return False
        if self.why_slower(*arguments) is not None:  # the cheaper one
            return False
        return tracing or self.why_not(*arguments) is None


BACKENDS: dict[str, tuple[Backend, ...]] = {
    "cell_attention": (
        Backend("native", native_attention.cell_attention, native.why_not),
        Backend("segment", vectorised.cell_attention),
        Backend("padded", padded.cell_attention),
        Backend("reference", reference.cell_attention),
    ),
    "gated_cell_attention": (
        Backend("native", gated.in_c, gated.why_not),
        Backend(
            "expanded",
            partial(gated.expanded, native_attention.cell_attention),
            lambda *arguments: native.why_not(*arguments[:-1], *arguments[-1][:3]),
        ),
        Backend("segment", partial(gated.expanded, vectorised.cell_attention)),
        Backend("reference", partial(gated.expanded, reference.cell_attention)),
    ),
    "cell_sum": (
        Backend("native", native_attention.cell_sum, native.why_not),
        Backend("segment", vectorised.cell_sum),
        Backend("reference", reference.cell_sum),
    ),
    "kernel_to_grid": (
        Backend("native", native_kernels.to_grid, native_kernels.why_not),
        Backend("dense", kernels.to_grid),
        Backend("reference", kernels.to_grid_reference),
    ),
    "kernel_from_grid": (
        Backend("native", native_kernels.from_grid, native_kernels.why_not),
        Backend("dense", kernels.from_grid),
        Backend("reference", kernels.from_grid_reference),
    ),
    "neighbour_attention": (
        Backend("native", native_attention.neighbour_attention, native.why_not),
        Backend("gather", vectorised.neighbour_attention),
        Backend("reference", reference.neighbour_attention),
    ),
    "neighbours": (
        Backend("native", stencils.neighbours_in_c, stencils.why_not_neighbours),
        Backend("plain", stencils.neighbours),
    ),
    "stencil": (
        Backend("native", stencils.in_c, stencils.why_not),
        Backend("plain", stencils.plain),
    ),
    "stencil_attention": (
        Backend("native", native_attention.stencil_attention, native.why_not),
        Backend("gather", vectorised.stencil_attention),
        Backend("reference", reference.stencil_attention),
    ),
    "window_attention": (
        Backend("native", native_attention.window_attention, native.why_not),
        Backend("batched", vectorised.window_attention),
        Backend("reference", reference.window_attention),
    ),
    "full_attention": (
        Backend(
            "native",
            native_attention.full_attention,
            native.why_not,
            native_attention.why_slower_full,
        ),
        Backend("sdpa", vectorised.full_attention),
        Backend("reference", reference.full_attention),
    ),
    "rowwise": (
        Backend("native", native_rows.rowwise, native_rows.why_not, native_rows.why_slower),
        Backend("recomputed", rows.recomputed, rows.why_not_recomputed),
        Backend("plain", rows.plain),
    ),
}


GROUPS: dict[str, tuple[str, ...]] = {
    "vectorised": ("segment", "dense", "gather", "batched", "sdpa", "plain"),
    "reference": ("reference", "plain"),
}
"""Names in `backends` for several: plain PyTorch, and the definitions."""

_preferred: ContextVar[tuple[str, ...]] = ContextVar("preferred back-ends", default=())


@contextmanager
def backends(*names: str) -> Generator[None]:
    """Prefer these back-ends in all ops, in this order, wherever they can run.

    `"vectorised"` is plain PyTorch, `"reference"` the definition of each op, `"native"` C. It holds
    for the current thread; backward passes run where their forward passes did, and in compiled
    graphs nothing changes.
    """
    known = {b.name for table in BACKENDS.values() for b in table} | GROUPS.keys()
    for name in names:
        if name not in known:
            raise ValueError(f"No op has a back-end {name!r}; choose from {sorted(known)}.")
    token = _preferred.set(tuple(each for name in names for each in GROUPS.get(name, (name,))))
    try:
        yield
    finally:
        _preferred.reset(token)


def _run(op: str, backend: str | None, *arguments: object) -> Any:
    table = BACKENDS[op]
    if backend is None:
        tracing = torch.compiler.is_compiling()
        for name in () if tracing else _preferred.get():
            for candidate in table:
                if candidate.name == name and candidate.why_not(*arguments) is None:
                    return candidate.run(*arguments)
        for candidate in table:
            if candidate.suits(tracing, arguments):
                return candidate.run(*arguments)
    for candidate in table:
        if candidate.name == backend:
            reason = candidate.why_not(*arguments)
            if reason is not None:
                raise ValueError(f"Back-end {backend!r} cannot run {op} here: {reason}.")
            return candidate.run(*arguments)
    raise ValueError(f"{op} has no back-end {backend!r}; choose one of {[b.name for b in table]}.")


@checks.checked
def cell_attention(
    query: Float[Tensor, "#batch m heads dh"],
    key: Float[Tensor, "batch n heads dh"],
    value: Float[Tensor, "batch n heads dh"],
    own_logit: Float[Tensor, "#batch m heads"],
    own_value: Float[Tensor, "#batch m heads dh"],
    cell: Int[Tensor, "batch n k"],
    valid: Bool[Tensor, "batch n k"] | None = None,
    *,
    backend: str | None = None,
) -> tuple[Float[Tensor, "batch m heads dh"], Float[Tensor, "batch m heads"]]:
    """Each cell attends to its points and to itself (eq. 5).

    Point n belongs to the cells `cell[n]`; valid ones are distinct.

    Returns the attention output and the log-sum-exp of the logits. Passing both as `own_value` and
    `own_logit` of another call attends to the points of both calls, exactly.
    """
    cell = checks.within("cell_attention", "cell", cell, query.shape[1], valid)
    return _run("cell_attention", backend, query, key, value, own_logit, own_value, cell, valid)


@checks.checked
def gated_cell_attention(
    query: Float[Tensor, "#batch m heads dh"],
    key: Float[Tensor, "batch n heads dh"],
    value: Float[Tensor, "batch n heads dh"],
    own_logit: Float[Tensor, "#batch m heads"],
    own_value: Float[Tensor, "#batch m heads dh"],
    cell: Int[Tensor, "batch n k"],
    log_weight: Float[Tensor, "batch n k"],
    features: Float[Tensor, "batch n rows f"],
    gates: Gates,
    *,
    backend: str | None = None,
) -> tuple[Float[Tensor, "batch m heads dh"], Float[Tensor, "batch m heads"]]:
    """Cell attention to points, each at all nodes around it: those of a stencil.

    To the logit of a point at a node, `log_weight` and functions of the offset are added; the last
    channel of each head makes room for them, so that those of queries and keys do not count.
    Values are multiplied by functions of the offset (see `Gates`), except at the poles. Nodes with
    a `log_weight` of -inf are left out.
    """
    gated.check(value, features, cell, gates)
    valid = log_weight > -torch.inf
    cell = checks.within("gated_cell_attention", "cell", cell, query.shape[1], valid)
    arguments = (query, key, value, own_logit, own_value, cell, log_weight, features, gates)
    return _run("gated_cell_attention", backend, *arguments)


@checks.checked
def cell_sum(
    z: Float[Tensor, "batch n dz"],
    cell: Int[Tensor, "batch n k"],
    weight: Float[Tensor, "batch n k"],
    cells: int,
    *,
    backend: str | None = None,
) -> Float[Tensor, "batch {cells} dz"]:
    """The weighted sum of the points of each cell (eq. 8)."""
    cell = checks.within("cell_sum", "cell", cell, cells, None)
    return _run("cell_sum", backend, z, cell, weight, cells)


@checks.checked
def kernel_to_grid(
    z: Float[Tensor, "batch n dz"],
    apart: Float[Tensor, "batch n rows"],
    precision: Float[Tensor, ""],
    away: Away,
    *,
    backend: str | None = None,
) -> Float[Tensor, "batch rows columns dz"]:
    """The sum of all points at every grid point, weighted by a kernel (eq. 8; see `kernels`)."""
    kernels.check("kernel_to_grid", apart, precision, away, None)
    return _run("kernel_to_grid", backend, z, apart, precision, away)


@checks.checked
def kernel_from_grid(
    u: Float[Tensor, "batch rows columns dz"],
    apart: Float[Tensor, "batch n rows"],
    precision: Float[Tensor, ""],
    away: Away,
    *,
    backend: str | None = None,
) -> Float[Tensor, "batch n dz"]:
    """The sum of all grid points at every point, weighted by a kernel (appendix A)."""
    kernels.check("kernel_from_grid", apart, precision, away, u.shape[2])
    return _run("kernel_from_grid", backend, u, apart, precision, away)


@checks.checked
def neighbour_attention(
    query: Float[Tensor, "batch n heads dh"],
    key: Float[Tensor, "batch m heads dh"],
    value: Float[Tensor, "batch m heads dh"],
    index: Int[Tensor, "batch n k"],
    valid: Bool[Tensor, "batch n k"] | None = None,
    bias: Float[Tensor, "#batch n k heads"] | None = None,
    *,
    backend: str | None = None,
) -> Float[Tensor, "batch n heads dh"]:
    """Each query attends to the keys at its `index` (eq. 6); `bias` is added to the logits."""
    index = checks.within("neighbour_attention", "index", index, key.shape[1], valid)
    return _run("neighbour_attention", backend, query, key, value, index, valid, bias)


@checks.checked
def neighbours(
    x: Float[Tensor, "batch n dx"],
    grid: Grid,
    width: Sequence[int],
    *,
    backend: str | None = None,
) -> tuple[Int[Tensor, "batch n k"], Bool[Tensor, "batch n k"]]:
    """Flat indices of the nearest `width` grid points per axis, and which of them are valid.

    This is `Grid.neighbours`, which says more.
    """
    width = grid.per_axis(width, "neighbourhood widths")
    return _run("neighbours", backend, x, grid, width)


@checks.checked
def stencil(
    x: Float[Tensor, "batch n dx"],
    grid: Grid,
    width: Sequence[int],
    *,
    backend: str | None = None,
) -> tuple[Int[Tensor, "batch n k"], Float[Tensor, "batch n k"], Float[Tensor, "batch n rows f"]]:
    """The nodes around locations: flat indices, weights, and features of offsets.

    The nodes are the product of rows along each axis of the grid, `width` on most, and then those
    of the nearer pole, if any. Features are sines and cosines of the offset from each row.
    """
    width = grid.per_axis(width, "neighbourhood widths")
    return _run("stencil", backend, x, grid, width)


@checks.checked
def stencil_attention(
    query: Float[Tensor, "batch n heads dh"],
    key: Float[Tensor, "batch m heads dh"],
    value: Float[Tensor, "batch m heads dh"],
    index: Int[Tensor, "batch n k"],
    log_weight: Float[Tensor, "batch n k"],
    features: Float[Tensor, "batch n rows f"],
    offset_keys: Float[Tensor, "axes f heads dh"],
    nodes: Sequence[int],
    *,
    backend: str | None = None,
) -> Float[Tensor, "batch n heads dh"]:
    """Each query attends to the nodes of its stencil; `log_weight` is added to the logits.

    The first are the product of `nodes` along each axis, whose features are `rows`, axis by axis.
    Their keys are those at `index` plus, for each axis, `offset_keys` times the features of the
    row. Nodes with a `log_weight` of -inf are left out.
    """
    stencils.check_nodes("stencil_attention", nodes, offset_keys, features, index)
    valid = log_weight > -torch.inf
    index = checks.within("stencil_attention", "index", index, key.shape[1], valid)
    arguments = (query, key, value, index, log_weight, features, offset_keys, tuple(nodes))
    return _run("stencil_attention", backend, *arguments)


@checks.checked
def window_attention(
    query: Float[Tensor, "batch *grid heads dh"],
    key: Float[Tensor, "batch *grid heads dh"],
    value: Float[Tensor, "batch *grid heads dh"],
    window: Sequence[int],
    shift: Sequence[int],
    periodic: Sequence[bool],
    bias: Float[Tensor, "heads w w"] | None = None,
    *,
    backend: str | None = None,
) -> Float[Tensor, "batch *grid heads dh"]:
    """Grid points attend to the points of their window; windows tile the grid from `shift` on.

    Windows wrap around periodic axes; on other axes, the parts of a window at opposite edges do not
    attend to each other.
    """
    grid, points = query.shape[1:-2], math.prod(window)
    for name, given in {"window": window, "shift": shift, "periodic": periodic}.items():
        if len(given) != len(grid):
            raise ValueError(
                f"window_attention: {name!r} must have {len(grid)} entries, got {len(given)}."
            )
    if bias is not None and bias.shape[1:] != (points, points):
        raise ValueError(
            f"window_attention: 'bias' must be for windows of {points} points, got one for "
            f"{tuple(bias.shape[1:])}."
        )
    for size, w, s in zip(grid, window, shift, strict=True):
        if w < 1 or size % w or not 0 <= s < w:
            raise ValueError(
                f"Windows {tuple(window)} with shifts {tuple(shift)} do not fit the grid "
                f"{tuple(grid)}; windows must divide it and shifts be smaller than "
                "windows."
            )
    return _run("window_attention", backend, query, key, value, window, shift, periodic, bias)


@checks.checked
def full_attention(
    query: Float[Tensor, "batch n heads dh"],
    key: Float[Tensor, "batch m heads dh"],
    value: Float[Tensor, "batch m heads dh"],
    mask: Bool[Tensor, "batch m"] | None = None,
    *,
    backend: str | None = None,
) -> Float[Tensor, "batch n heads dh"]:
    """Each query attends to all keys where the mask is True (eq. 3)."""
    return _run("full_attention", backend, query, key, value, mask)


@checks.checked
def rowwise(
    x: Float[Tensor, "*n _"], *steps: rows.Step, backend: str | None = None
) -> Float[Tensor, "*n _"]:
    """Apply the steps to every row, in order."""
    if not steps:
        return x
    rows.check(x, steps)
    return _run("rowwise", backend, x, steps)
