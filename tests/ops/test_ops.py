"""Every back-end of every op against the loops that define it, forward and backward.

The tests run over the table `gridtnp.ops.BACKENDS`: a new back-end is tested by being listed there,
a new op needs a way to make arguments and a plain formula in `MAKE` and `PLAIN` below. `rowwise` is
tested in `test_rows.py`, sums with kernels in `test_kernels.py`, stencils and gates in
`test_stencils.py`.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gridtnp as gt
from gridtnp import ops
from gridtnp.ops import BACKENDS, Backend

SETTINGS = settings(max_examples=examples(40))
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
HEADS, DH = 2, 3

Arguments = dict[str, Any]  # in the order of the op's signature
Spec = Mapping[str, Any]  # sizes and choices that arguments are made of

OTHERS = (  # tested elsewhere
    *("rowwise", "kernel_to_grid", "kernel_from_grid"),
    *("neighbours", "stencil", "gated_cell_attention"),
)
OPS = [op for op in BACKENDS if op not in OTHERS]
EVERY = [pytest.param(op, b.name, id=f"{op}-{b.name}") for op in OPS for b in BACKENDS[op]]
FAST = [p for p in EVERY if p.values[1] != "reference"]


def of(op: str, among: list[Any] = EVERY) -> list[Any]:
    """The back-ends of one op, to be parametrised over."""
    return [pytest.param(p.values[1], id=p.values[1]) for p in among if p.values[0] == op]


# ---- making arguments ----------------------------------------------------------------------------


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def tokens(spec: Spec, *shape: int) -> Tensor:
    return randn(*shape, spec.get("heads", HEADS), spec.get("dh", DH))


def members(spec: Spec) -> tuple[Tensor, Tensor | None]:
    """Every point in `k` different cells; invalid entries point anywhere, repetitions included."""
    batch, n, cells, k = (spec[name] for name in ("batch", "n", "cells", "k"))
    different = torch.rand(batch, n, cells).argsort(-1)[..., :k]
    if spec.get("crowded"):
        different = torch.full((batch, n, 1), cells // 2)
    if spec["valid"] is None:
        return different, None
    rest = k - different.shape[-1]
    valid = torch.rand(different.shape) < spec["valid"]
    valid = torch.cat([valid, torch.zeros(batch, n, rest, dtype=torch.bool)], -1)
    anywhere = torch.randint(cells, (batch, n, k))
    cell = torch.cat([different, anywhere[..., k - rest :]], -1)
    return torch.where(valid, cell, anywhere), valid


def make_cell_attention(spec: Spec) -> Arguments:
    batch, n, cells, scale = spec["batch"], spec["n"], spec["cells"], spec.get("scale", 1)
    one, own = (1 if spec.get(name) else batch for name in ("shared", "own_shared"))
    cell, valid = members(spec)
    return {
        "query": tokens(spec, one, cells),
        "key": tokens(spec, batch, n) * scale,
        "value": tokens(spec, batch, n),
        "own_logit": randn(own, cells, spec.get("heads", HEADS)) * scale,
        "own_value": tokens(spec, own, cells),
        "cell": cell,
        "valid": valid,
    }


def make_cell_sum(spec: Spec) -> Arguments:
    batch, n = spec["batch"], spec["n"]
    cell, valid = members(spec)
    weight = randn(*cell.shape)
    weight = weight if valid is None else weight * valid
    return {"z": randn(batch, n, 4), "cell": cell, "weight": weight, "cells": spec["cells"]}


def make_neighbour_attention(spec: Spec) -> Arguments:
    batch, n, cells, k, scale = (
        *(spec[s] for s in ("batch", "n", "cells", "k")),
        spec.get("scale", 1),
    )
    valid, bias = spec["valid"], spec.get("bias")
    return {
        "query": tokens(spec, batch, n) * scale,
        "key": tokens(spec, batch, cells),
        "value": tokens(spec, batch, cells),
        "index": torch.randint(cells, (batch, n, k)),
        "valid": None if valid is None else torch.rand(batch, n, k) < valid,
        "bias": None
        if bias is None
        else randn(1 if bias == "shared" else batch, n, k, spec.get("heads", HEADS)),
    }


def make_stencil_attention(spec: Spec) -> Arguments:
    """As many nodes as the product along the axes, and `poles` more."""
    batch, n, cells, nodes, f = *(spec[s] for s in ("batch", "n", "cells", "nodes")), 3
    k = math.prod(nodes) + spec["poles"]
    log_weight = randn(batch, n, k)
    if spec["valid"] is not None:
        log_weight[torch.rand(batch, n, k) >= spec["valid"]] = -torch.inf
    return {
        "query": tokens(spec, batch, n) * spec.get("scale", 1),
        "key": tokens(spec, batch, cells),
        "value": tokens(spec, batch, cells),
        "index": torch.randint(cells, (batch, n, k)),
        "log_weight": log_weight,
        "features": randn(batch, n, sum(nodes), f),
        "offset_keys": tokens(spec, len(nodes), f),
        "nodes": nodes,
    }


def make_window_attention(spec: Spec) -> Arguments:
    window, shift = spec["window"], spec["shift"]
    grid = [w * count for w, count in zip(window, spec["windows"], strict=True)]
    query, key, value = (tokens(spec, spec["batch"], *grid) for _ in range(3))
    return {
        "query": query * spec.get("scale", 1),
        "key": key,
        "value": value,
        "window": window,
        "shift": shift,
        "periodic": spec["periodic"],
        "bias": randn(spec.get("heads", HEADS), *[math.prod(window)] * 2) if spec["bias"] else None,
    }


def make_full_attention(spec: Spec) -> Arguments:
    batch, n, m = spec["batch"], spec["n"], spec["m"]
    mask = None if spec["valid"] is None else torch.rand(batch, m) < spec["valid"]
    if mask is not None and spec.get("one_empty"):
        mask[0] = False
    return {
        "query": tokens(spec, batch, n) * spec.get("scale", 1),
        "key": tokens(spec, batch, m),
        "value": tokens(spec, batch, m),
        "mask": mask,
    }


MAKE: dict[str, Callable[[Spec], Arguments]] = {
    "cell_attention": make_cell_attention,
    "cell_sum": make_cell_sum,
    "neighbour_attention": make_neighbour_attention,
    "stencil_attention": make_stencil_attention,
    "window_attention": make_window_attention,
    "full_attention": make_full_attention,
}


def make(op: str, seed: int = 0, **spec: Any) -> Arguments:
    torch.manual_seed(seed)
    return MAKE[op](spec)


# ---- the same in plain PyTorch: dense, in the precision of its arguments -------------------------


def plain_cell_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_logit: Tensor,
    own_value: Tensor,
    cell: Tensor,
    valid: Tensor | None,
) -> tuple[Tensor, Tensor]:
    inside = cell.unsqueeze(1) == torch.arange(query.shape[1], device=cell.device).view(-1, 1, 1)
    inside = (inside if valid is None else inside & valid.unsqueeze(1)).any(-1)
    query = query.expand(key.shape[0], -1, -1, -1)
    logits = torch.einsum("bmhd,bnhd->bmhn", query, key) / query.shape[-1] ** 0.5
    logits = logits.masked_fill(~inside.unsqueeze(2), -torch.inf)
    own_logit = own_logit.expand(key.shape[0], -1, -1).unsqueeze(-1)
    logits = torch.cat([own_logit, logits], -1)
    weight = torch.softmax(logits, -1)
    mean = weight[..., :1] * own_value + torch.einsum("bmhn,bnhd->bmhd", weight[..., 1:], value)
    return mean, torch.logsumexp(logits, -1)


def plain_cell_sum(z: Tensor, cell: Tensor, weight: Tensor, cells: int) -> Tensor:
    inside = cell.unsqueeze(1) == torch.arange(cells, device=cell.device).view(-1, 1, 1)
    return torch.where(inside, weight.unsqueeze(1), 0.0).sum(-1) @ z


def plain_neighbour_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    valid: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """The logits of all pairs, then a gather: no sum over queries but in the products."""
    valid = torch.ones_like(index, dtype=torch.bool) if valid is None else valid
    per_head = index.unsqueeze(2).expand(-1, -1, query.shape[2], -1)
    every = torch.einsum("bnhd,bmhd->bnhm", query, key) / query.shape[-1] ** 0.5
    logits = every.gather(-1, per_head)
    logits = logits if bias is None else logits + bias.transpose(-1, -2)
    logits = logits.masked_fill(~valid.unsqueeze(2), torch.finfo(logits.dtype).min)
    weight = torch.softmax(logits, -1) * valid.unsqueeze(2)
    dense = torch.zeros_like(every).scatter_add(-1, per_head, weight)
    return torch.einsum("bnhm,bmhd->bnhd", dense, value)


def plain_stencil_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    log_weight: Tensor,
    features: Tensor,
    offset_keys: Tensor,
    nodes: Sequence[int],
) -> Tensor:
    """A bias for every node, from a table that says which rows of features are its own."""
    first = np.cumsum([0, *nodes])
    own = torch.zeros(index.shape[-1], len(nodes), features.shape[2], device=query.device)
    for node, position in enumerate(itertools.product(*(range(n) for n in nodes))):
        for axis, row in enumerate(position):
            own[node, axis, first[axis] + row] = 1
    logits = torch.einsum("bnhd,afhd->bnafh", query, offset_keys) / query.shape[-1] ** 0.5
    bias = torch.einsum("bnafh,bnrf,kar->bnkh", logits, features, own.to(query.dtype))
    valid = log_weight > -torch.inf
    bias = bias + log_weight.masked_fill(~valid, 0.0).unsqueeze(-1)
    return plain_neighbour_attention(query, key, value, index, valid, bias)


def window_of(size: int, window: int, shift: int, periodic: bool) -> tuple[np.ndarray, np.ndarray]:
    """For each position on an axis, the number of its window and its rank in a full window.

    The axis is a partial window of `shift` points, full ones, and the rest; or full ones, rolled.
    """
    rank = np.roll(np.tile(np.arange(window), size // window), shift)
    if periodic:
        return np.roll(np.repeat(np.arange(size // window), window), shift), rank
    pieces = [shift, *[window] * ((size - shift) // window)]
    pieces.append(size - sum(pieces))
    return np.repeat(np.arange(len(pieces)), pieces), rank


def same_window(
    grid: Sequence[int], window: Sequence[int], shift: Sequence[int], periodic: Sequence[bool]
) -> tuple[np.ndarray, np.ndarray]:
    """Which pairs of flat positions share a window, and the rank of each in its window."""
    same, ranks = np.ones((1, 1), dtype=bool), np.zeros(1, dtype=int)
    for size, w, s, wraps in zip(grid, window, shift, periodic, strict=True):
        number, rank = window_of(size, w, s, wraps)
        same = np.kron(same, number[:, None] == number[None, :])
        ranks = (ranks[:, None] * w + rank[None, :]).ravel()
    return same, ranks


def plain_window_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Sequence[int],
    shift: Sequence[int],
    periodic: Sequence[bool],
    bias: Tensor | None,
) -> Tensor:
    same, rank = same_window(query.shape[1:-2], window, shift, periodic)
    q, k, v = (t.flatten(1, -3) for t in (query, key, value))
    logits = torch.einsum("bnhd,bmhd->bhnm", q, k) / query.shape[-1] ** 0.5
    if bias is not None:
        logits = logits + bias[:, rank[:, None], rank[None, :]]
    logits = logits.masked_fill(~torch.tensor(same, device=q.device), -torch.inf)
    return torch.einsum("bhnm,bmhd->bnhd", torch.softmax(logits, -1), v).view(query.shape)


def plain_full_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    logits = torch.einsum("bnhd,bmhd->bhnm", query, key) / query.shape[-1] ** 0.5
    if mask is not None:
        logits = logits.masked_fill(~mask[:, None, None], torch.finfo(logits.dtype).min)
    weight = torch.softmax(logits, -1)
    weight = weight if mask is None else weight * mask[:, None, None]
    return torch.einsum("bhnm,bmhd->bnhd", weight, value)


PLAIN: dict[str, Callable[..., Any]] = {
    "cell_attention": plain_cell_attention,
    "cell_sum": plain_cell_sum,
    "neighbour_attention": plain_neighbour_attention,
    "stencil_attention": plain_stencil_attention,
    "window_attention": plain_window_attention,
    "full_attention": plain_full_attention,
}


# ---- running and comparing -----------------------------------------------------------------------


def on(arguments: Arguments, dtype: torch.dtype, device: str) -> Arguments:
    """The arguments there, floating-point ones cast and ready to collect gradients."""

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.detach().to(device)
        return value.to(dtype).requires_grad_() if value.is_floating_point() else value

    return {name: move(value) for name, value in arguments.items()}


RESULTS = ("result", "logarithm of the sum")
"""The results of an op, in order; most have only the first."""


def evaluate(
    run: Callable[..., Any],
    arguments: Arguments,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    of: Sequence[str] = RESULTS,
) -> dict[str, Tensor]:
    """The results, and the gradients of a weighted sum of those in `of`."""
    arguments = on(arguments, dtype, device)
    out = run(*arguments.values())
    results = dict(zip(RESULTS, out if isinstance(out, tuple) else (out,), strict=False))
    assert results["result"].dtype == dtype
    loss = torch.zeros((), dtype=torch.float64, device=device)
    for name in results.keys() & set(of):
        slope = torch.arange(results[name].numel(), device=device).mul(7).remainder(17).sub(8)
        loss = loss + (results[name] * slope.view_as(results[name]).to(dtype) / 8).sum()
    leaves = {n: v for n, v in arguments.items() if isinstance(v, Tensor) and v.requires_grad}
    gradients: Sequence[Tensor | None] = [None] * len(leaves)
    if loss.requires_grad:
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        assert gradient is None or gradient.dtype == dtype
        results[f"gradient of {name}"] = torch.zeros_like(leaf) if gradient is None else gradient
    return {name: value.detach().cpu() for name, value in results.items()}


def backend_run(op: str, backend: str) -> Callable[..., Any]:
    """The public function of an op with this back-end."""
    return lambda *arguments: getattr(ops, op)(*arguments, backend=backend)


def why_not(
    op: str, backend: str, arguments: Arguments, dtype: torch.dtype, device: str
) -> str | None:
    (found,) = (b for b in BACKENDS[op] if b.name == backend)
    return found.why_not(*on(arguments, dtype, device).values())


def refuses(op: str, backend: str, arguments: Arguments, dtype: torch.dtype, device: str) -> bool:
    """Whether the back-end cannot compute with these: that in C has single precision alone, and
    must say so itself. A machine without a compiler is a reason to skip.
    """
    reason = why_not(op, backend, arguments, dtype, device)
    if reason is None:
        return False
    if (dtype, device) == (torch.float32, "cpu"):
        pytest.skip(f"the back-end {backend!r} cannot run: {reason}")
    assert backend == "native"
    with pytest.raises(ValueError, match=f"'native' cannot run {op} here: {reason}"):
        backend_run(op, backend)(*on(arguments, dtype, device).values())
    return True


def agree(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    """Up to `tolerance`, relative to the largest number where that is more than one."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].isfinite().all(), name
        largest = max(1.0, value.abs().max().item()) if value.numel() else 1.0
        torch.testing.assert_close(
            got[name].double(),
            value,
            rtol=0,
            atol=tolerance * largest,
            msg=lambda text, name=name: f"{name}: {text}",
        )


PRECISIONS = {torch.float64: 1e-10, torch.float32: 1e-5}
"""How close back-ends come to the reference in double precision, logits being of order one."""


def close_to_reference(
    op: str, backend: str, spec: Spec, seed: int, dtype: torch.dtype, device: str
) -> None:
    """Compare on arguments that `dtype` represents, unless it is refused."""
    arguments = make(op, seed, **spec)
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            arguments[name] = value.to(dtype).double()
    if refuses(op, backend, arguments, dtype, device):
        return
    got = evaluate(backend_run(op, backend), arguments, dtype, device)
    expected = evaluate(backend_run(op, "reference"), arguments)
    agree(got, expected, PRECISIONS[dtype] * spec.get("scale", 1))


# ---- equal to the reference ----------------------------------------------------------------------


HEAD = {
    "heads": st.integers(1, 3),
    "dh": st.sampled_from([1, 2, 3, 4, 5, 8, 11, 16, 24, 32]),
    "scale": st.sampled_from([1, 30]),
}


def window_specs() -> st.SearchStrategy[Spec]:
    """One to four axes with windows of unequal sides, at most 48 grid points in all."""

    def complete(sides: list[tuple[int, int]]) -> st.SearchStrategy[Spec]:
        return st.fixed_dictionaries(
            HEAD
            | {
                "batch": st.integers(1, 2),
                "window": st.just([w for w, _ in sides]),
                "windows": st.just([count for _, count in sides]),
                "shift": st.tuples(*(st.integers(0, w - 1) for w, _ in sides)),
                "periodic": st.tuples(*(st.booleans() for _ in sides)),
                "bias": st.booleans(),
            }
        )

    def fit(sides: list[tuple[int, int]]) -> list[tuple[int, int]]:
        room, fitted = 48, []
        for w, count in sides:
            w = min(w, room)
            count = min(count, room // w)
            room //= w * count
            fitted.append((w, count))
        return fitted

    side = st.tuples(st.integers(1, 4), st.integers(1, 3))
    return st.lists(side, min_size=1, max_size=4).map(fit).flatmap(complete)


POINTS = HEAD | {
    "batch": st.integers(1, 3),
    "n": st.integers(0, 7),
    "cells": st.integers(1, 6),
    "k": st.integers(1, 4),
    "valid": st.sampled_from([None, 0.0, 0.5, 1.0]),
}
SPECS: dict[str, st.SearchStrategy[Spec]] = {
    "cell_attention": st.fixed_dictionaries(
        POINTS | {"crowded": st.booleans(), "shared": st.booleans(), "own_shared": st.booleans()}
    ),
    "cell_sum": st.fixed_dictionaries(POINTS | {"crowded": st.booleans()}),
    "neighbour_attention": st.fixed_dictionaries(
        POINTS | {"bias": st.sampled_from([None, "shared", "each"])}
    ),
    "stencil_attention": st.fixed_dictionaries(
        {name: of for name, of in POINTS.items() if name != "k"}
        | {
            "nodes": st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
            "poles": st.integers(0, 2),
        }
    ),
    "window_attention": window_specs(),
    "full_attention": st.fixed_dictionaries(
        HEAD
        | {
            "batch": st.integers(1, 3),
            "n": st.integers(0, 5),
            "m": st.integers(0, 6),
            "valid": st.sampled_from([None, 0.0, 0.5, 1.0]),
            "one_empty": st.booleans(),
        }
    ),
}


def test_every_op_is_tested() -> None:
    assert set(OPS) == set(MAKE) == set(PLAIN) == set(SPECS)


@pytest.mark.parametrize("op", OPS)
def test_the_reference_is_what_the_formula_says(op: str) -> None:
    @SETTINGS
    @given(SPECS[op], st.integers(0, 2**31))
    def check(spec: Spec, seed: int) -> None:
        arguments = make(op, seed, **spec)
        agree(evaluate(backend_run(op, "reference"), arguments), evaluate(PLAIN[op], arguments))

    check()


@pytest.mark.parametrize(("op", "backend"), FAST)
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_back_end_computes_what_the_reference_does(
    op: str, backend: str, dtype: torch.dtype, device: str
) -> None:
    @SETTINGS
    @given(SPECS[op], st.integers(0, 2**31))
    def check(spec: Spec, seed: int) -> None:
        close_to_reference(op, backend, spec, seed, dtype, device)

    check()


MORE: dict[str, Spec] = {
    "cell_attention": {"n": 9, "cells": 5, "k": 3, "valid": 0.6, "dh": 8},
    "cell_sum": {"n": 9, "cells": 5, "k": 3, "valid": 0.6},
    "neighbour_attention": {"n": 9, "cells": 5, "k": 3, "valid": 0.6, "dh": 8, "bias": "each"},
    "stencil_attention": {
        "n": 9,
        "cells": 5,
        "nodes": (2, 3),
        "poles": 1,
        "valid": 0.6,
        "dh": 8,
    },
    "window_attention": {
        "window": (2, 3),
        "windows": (2, 2),
        "shift": (1, 1),
        "periodic": (False, True),
        "bias": True,
        "dh": 8,
    },
    "full_attention": {"n": 4, "m": 9, "valid": 0.6, "dh": 8},
}
FEW = {"batch": 2, "cells": 5, "k": 1, "valid": None}
EDGES: dict[str, dict[str, Spec]] = {
    "cell_attention": {
        "no points": {**FEW, "n": 0},
        "no points and a mask": {**FEW, "n": 0, "k": 2, "valid": 0.5},
        "one point": {**FEW, "n": 1},
        "all points masked": {**FEW, "n": 6, "k": 2, "valid": 0.0},
        "one crowded cell": {**FEW, "n": 80, "crowded": True},
        "empty cells": {**FEW, "n": 2, "cells": 9},
        "one cell": {**FEW, "n": 7, "cells": 1},
        "points in several cells": {**FEW, "n": 9, "k": 3},
        "some of them invalid": {**FEW, "n": 9, "k": 3, "valid": 0.5},
        "fewer cells than entries": {**FEW, "n": 6, "cells": 2, "k": 4, "valid": 0.7},
        "cells shared by the batch": {
            **FEW,
            "n": 9,
            "batch": 3,
            "shared": True,
            "own_shared": True,
        },
        "queries alone shared": {**FEW, "n": 9, "shared": True},
        "own logits alone shared": {**FEW, "n": 9, "own_shared": True},
        "large logits": {**FEW, "n": 9, "scale": 1000},
    },
    "cell_sum": {
        "no points": {**FEW, "n": 0},
        "one point": {**FEW, "n": 1},
        "all points masked": {**FEW, "n": 6, "k": 2, "valid": 0.0},
        "one crowded cell": {**FEW, "n": 80, "crowded": True},
        "empty cells": {**FEW, "n": 2, "cells": 9},
        "some entries invalid": {**FEW, "n": 9, "k": 3, "valid": 0.5},
    },
    "neighbour_attention": {
        "no queries": {**FEW, "n": 0, "k": 3, "valid": 0.5, "bias": "each"},
        "one query, one neighbour": {**FEW, "n": 1, "cells": 1},
        "nothing valid": {**FEW, "n": 4, "k": 3, "valid": 0.0},
        "some with nothing": {**FEW, "n": 12, "k": 2, "valid": 0.4, "bias": "each"},
        "bias": {**FEW, "n": 6, "k": 3, "bias": "each"},
        "bias shared by the batch": {**FEW, "n": 6, "k": 3, "valid": 0.7, "bias": "shared"},
        "one crowded cell": {**FEW, "n": 60, "cells": 1, "k": 2},
        "large logits": {**FEW, "n": 6, "k": 3, "valid": 0.5, "scale": 1000},
    },
    "stencil_attention": {
        "no queries": {**FEW, "n": 0, "nodes": (2, 3), "poles": 0},
        "one query, one node": {**FEW, "n": 1, "nodes": (1,), "poles": 0},
        "nothing valid": {**FEW, "n": 4, "nodes": (2, 2), "poles": 1, "valid": 0.0},
        "some with nothing": {**FEW, "n": 12, "nodes": (2,), "poles": 0, "valid": 0.4},
        "three axes and poles": {**FEW, "n": 6, "nodes": (2, 1, 3), "poles": 2, "valid": 0.7},
        "one crowded cell": {**FEW, "n": 60, "cells": 1, "nodes": (3, 3), "poles": 1},
        "large logits": {**FEW, "n": 9, "nodes": (2, 3), "poles": 1, "scale": 1000},
    },
    "window_attention": {
        f"window {window}, {'bias' if bias else 'no bias'}, periodic {periodic}": {
            "batch": 2,
            "window": window,
            "windows": windows,
            "shift": shift,
            "periodic": periodic,
            "bias": bias,
        }
        for window, windows, shift, periodics in (
            ((4,), (3,), (2,), [(False,), (True,)]),
            ((3,), (1,), (1,), [(False,), (True,)]),
            ((2, 1), (1, 2), (1, 0), [(False, False), (True, False)]),
            ((1, 4, 1), (2, 2, 3), (0, 2, 0), [(True, False, True)]),
            ((4, 2), (2, 3), (3, 1), list(itertools.product((False, True), repeat=2))),
            ((1, 4, 2), (2, 1, 3), (0, 2, 1), [(False, False, True), (True, True, False)]),
            ((2, 1, 3, 2), (1, 2, 2, 1), (1, 0, 2, 1), [(False, True, True, False)]),
        )
        for periodic in periodics
        for bias in (False, True)
    },
    "full_attention": {
        "no keys": {"batch": 2, "n": 3, "m": 0, "valid": None},
        "no keys and a mask": {"batch": 2, "n": 3, "m": 0, "valid": 0.5},
        "no queries": {"batch": 2, "n": 0, "m": 3, "valid": 0.5},
        "one key": {"batch": 2, "n": 3, "m": 1, "valid": None},
        "all masked": {"batch": 2, "n": 3, "m": 4, "valid": 0.0},
        "one batch element masked": {"batch": 3, "n": 3, "m": 4, "valid": 0.7, "one_empty": True},
        "large logits": {"batch": 2, "n": 3, "m": 9, "valid": 0.7, "scale": 1000},
    },
}


@pytest.mark.parametrize(
    ("op", "backend", "edge"),
    [
        pytest.param(*p.values, edge, id=f"{p.id}-{edge}")
        for p in FAST
        for edge in EDGES.get(p.values[0], {})
    ],
)
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_back_end_computes_what_the_reference_does_at_the_edges(
    op: str, backend: str, edge: str, dtype: torch.dtype, device: str
) -> None:
    close_to_reference(op, backend, EDGES[op][edge], 0, dtype, device)


@pytest.mark.parametrize(("op", "backend"), [p for p in FAST if p.values[0] != "cell_sum"])
@pytest.mark.parametrize("dh", [1, 4, 7, 8, 11, 16, 24, 32, 64])
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("device", DEVICES)
def test_heads_may_have_any_size(
    op: str, backend: str, dh: int, dtype: torch.dtype, device: str
) -> None:
    spec = {**MORE[op], "batch": 2, "heads": 3, "dh": dh}
    close_to_reference(op, backend, spec, 0, dtype, device)


def layouts(t: Tensor) -> dict[str, Tensor]:
    """Memory layouts that occur in models: views of a projection, transposed, expanded."""
    filler = torch.full_like(t, torch.nan if t.is_floating_point() else 0)
    wide = torch.cat([filler, t, filler], -1)
    heads = min(2, t.ndim)
    return {
        "columns of something wider": wide[..., t.shape[-1] : 2 * t.shape[-1]],
        "heads of something wider": torch.stack([filler, t, filler], -1 - heads).select(
            -1 - heads, 1
        ),
        "first and last axes exchanged": t.transpose(0, -1).contiguous().transpose(0, -1),
        "first axes exchanged": t.transpose(0, 1).contiguous().transpose(0, 1),
        "batch repeated": t[:1].expand_as(t),
        "rows repeated": t[:, :1].expand_as(t),
    }


@pytest.mark.parametrize(("op", "backend"), FAST)
@pytest.mark.parametrize("layout", layouts(torch.zeros(1, 1)))
@pytest.mark.parametrize("who", ["all", "all but the query"])
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("device", DEVICES)
def test_the_layout_in_memory_does_not_matter(
    op: str, backend: str, layout: str, who: str, dtype: torch.dtype, device: str
) -> None:
    """Neither that of the arguments nor that of the incoming gradient."""
    arguments = on(make(op, batch=2, **MORE[op]), dtype, device)
    if refuses(op, backend, arguments, dtype, device):
        return
    turned = {
        name: layouts(v.detach())[layout]
        if isinstance(v, Tensor) and (who == "all" or name != "query")
        else v
        for name, v in arguments.items()
    }
    plain = {n: v.contiguous() if isinstance(v, Tensor) else v for n, v in turned.items()}

    def run(values: Arguments) -> list[Tensor]:
        leaves = [v for v in values.values() if isinstance(v, Tensor) and v.is_floating_point()]
        leaves = [v.detach().requires_grad_() for v in leaves]  # shares the memory, keeps strides
        spare = iter(leaves)
        given_values = [
            next(spare) if isinstance(v, Tensor) and v.is_floating_point() else v
            for v in values.values()
        ]
        out = backend_run(op, backend)(*given_values)
        results = list(out) if isinstance(out, tuple) else [out]
        expanded = [torch.full((), 0.5, dtype=r.dtype, device=device).expand_as(r) for r in results]
        return [*results, *torch.autograd.grad(results, leaves, expanded)]

    for got, expected in zip(run(turned), run(plain), strict=True):
        tolerance = PRECISIONS[dtype] * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


MIXED = [
    ("cell_attention", "own_logit"),
    ("cell_attention", "own_value"),
    ("neighbour_attention", "bias"),
    ("window_attention", "bias"),
    ("cell_sum", "weight"),
]


@pytest.mark.parametrize(
    ("op", "backend", "name"),
    [
        pytest.param(*p.values, n, id=f"{p.id}-{n}")
        for p in EVERY
        for o, n in MIXED
        if o == p.values[0]
    ],
)
def test_one_argument_in_another_precision_is_refused(op: str, backend: str, name: str) -> None:
    """Memory is never reinterpreted.

    Double precision among single, not half: misread, it gives wrong numbers, but nothing is read
    out of bounds.
    """
    arguments = on(make(op, batch=2, **MORE[op]), torch.float32, "cpu")
    arguments = {n: v.detach() if isinstance(v, Tensor) else v for n, v in arguments.items()}
    arguments[name] = arguments[name].double()
    with pytest.raises(ValueError, match=r"is of torch\.float"):
        backend_run(op, backend)(*arguments.values())


# ---- what the definitions say --------------------------------------------------------------------


def finite_and_zero(found: dict[str, Tensor]) -> None:
    for name, value in found.items():
        assert value.isfinite().all(), name
        assert (value == 0).all(), name


@pytest.mark.parametrize("backend", of("full_attention"))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("m", [0, 4])
def test_full_attention_to_nothing_is_zero_with_finite_gradients(
    backend: str, dtype: torch.dtype, m: int
) -> None:
    arguments = make("full_attention", batch=2, n=3, m=m, valid=0.0)
    if refuses("full_attention", backend, arguments, dtype, "cpu"):
        return
    finite_and_zero(evaluate(backend_run("full_attention", backend), arguments, dtype))


@pytest.mark.parametrize("backend", of("neighbour_attention"))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [None, "each"])
def test_neighbour_attention_to_nothing_is_zero_with_finite_gradients(
    backend: str, dtype: torch.dtype, bias: str | None
) -> None:
    arguments = make("neighbour_attention", batch=2, n=3, cells=4, k=2, valid=0.0, bias=bias)
    if refuses("neighbour_attention", backend, arguments, dtype, "cpu"):
        return
    finite_and_zero(evaluate(backend_run("neighbour_attention", backend), arguments, dtype))


@pytest.mark.parametrize("backend", of("cell_attention"))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [0, 6])
def test_a_cell_without_points_attends_to_itself_alone(
    backend: str, dtype: torch.dtype, n: int
) -> None:
    arguments = make("cell_attention", batch=2, n=n, cells=3, k=2, valid=0.0)
    if refuses("cell_attention", backend, arguments, dtype, "cpu"):
        return
    run = backend_run("cell_attention", backend)
    found = evaluate(run, arguments, dtype, of=["result"])
    assert torch.equal(found["result"], arguments["own_value"].to(dtype))
    log_sum = found["logarithm of the sum"].to(dtype)
    assert torch.equal(log_sum, arguments["own_logit"].to(dtype))
    for name in ("query", "key", "value", "own_logit"):
        assert (found[f"gradient of {name}"] == 0).all(), name


@pytest.mark.parametrize("backend", of("cell_sum"))
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_sums_of_no_points_are_zero(backend: str, dtype: torch.dtype) -> None:
    arguments = make("cell_sum", batch=2, n=0, cells=3, k=2, valid=None)
    if refuses("cell_sum", backend, arguments, dtype, "cpu"):
        return
    found = evaluate(backend_run("cell_sum", backend), arguments, dtype)
    assert found["result"].shape == (2, 3, 4)
    finite_and_zero(found)


@pytest.mark.parametrize("backend", of("cell_attention"))
def test_cell_attention_by_hand(backend: str) -> None:
    """Cell 0 has points of weight 1 and 2 and value 1 and 4, and its own of weight 3 and value 7.

    Cell 1 has a point that is not valid, and its own of weight 3 and value 5.
    """
    key = torch.tensor([1.0, 2.0, 9.0]).log().view(1, 3, 1, 1)
    value = torch.tensor([1.0, 4.0, 100.0]).view(1, 3, 1, 1)
    own_logit = torch.tensor([3.0, 3.0]).log().view(1, 2, 1)
    own_value = torch.tensor([7.0, 5.0]).view(1, 2, 1, 1)
    cell = torch.tensor([[[0], [0], [1]]])
    valid = torch.tensor([[[True], [True], [False]]])
    query = torch.ones(1, 2, 1, 1)
    mean, log_sum = ops.cell_attention(
        query, key, value, own_logit, own_value, cell, valid, backend=backend
    )
    assert mean.flatten().tolist() == pytest.approx([(1 * 1 + 2 * 4 + 3 * 7) / 6, 5.0])
    assert log_sum.flatten().tolist() == pytest.approx([math.log(6), math.log(3)])


@pytest.mark.parametrize("backend", of("cell_attention"))
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("cuts", [(0,), (4,), (12,), (1, 1, 7)], ids=str)
def test_points_may_come_in_pieces(backend: str, dtype: torch.dtype, cuts: tuple[int, ...]) -> None:
    """The results of one piece are inputs of the next; all points at once give the same."""
    arguments = make("cell_attention", batch=2, n=12, cells=4, k=3, valid=0.7, own_shared=True)
    if refuses("cell_attention", backend, arguments, dtype, "cpu"):
        return
    run = backend_run("cell_attention", backend)

    def pieces(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        own_logit: Tensor,
        own_value: Tensor,
        cell: Tensor,
        valid: Tensor,
    ) -> tuple[Tensor, Tensor]:
        for start, stop in itertools.pairwise((0, *cuts, 12)):
            part = slice(start, stop)
            own_value, own_logit = run(
                query,
                key[:, part],
                value[:, part],
                own_logit,
                own_value,
                cell[:, part],
                valid[:, part],
            )
        return own_value, own_logit

    got = evaluate(pieces, arguments, dtype)
    expected = evaluate(run, arguments, dtype)
    agree(got, {name: v.double() for name, v in expected.items()}, PRECISIONS[dtype])


@pytest.mark.parametrize("backend", of("cell_attention", FAST))
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", RESULTS)
def test_either_result_of_cell_attention_can_be_differentiated_alone(
    backend: str, dtype: torch.dtype, name: str
) -> None:
    arguments = make("cell_attention", batch=2, **MORE["cell_attention"])
    if refuses("cell_attention", backend, arguments, dtype, "cpu"):
        return
    got = evaluate(backend_run("cell_attention", backend), arguments, dtype, of=[name])
    expected = evaluate(backend_run("cell_attention", "reference"), arguments, of=[name])
    agree(got, expected, PRECISIONS[dtype])


@pytest.mark.parametrize("backend", of("cell_sum"))
def test_a_point_adds_its_weight_to_every_one_of_its_cells(backend: str) -> None:
    z = torch.tensor([[[1.0, 10.0], [2.0, 20.0]]])
    cell, weight = torch.tensor([[[0, 2], [2, 2]]]), torch.tensor([[[0.5, 1.0], [2.0, 3.0]]])
    out = ops.cell_sum(z, cell, weight, 4, backend=backend)
    assert out.tolist() == [[[0.5, 5.0], [0.0, 0.0], [11.0, 110.0], [0.0, 0.0]]]


# ---- the tolerance rule --------------------------------------------------------------------------

BIGGER: dict[str, Spec] = {
    "cell_attention": {"n": 400, "cells": 12, "k": 3, "valid": 0.7, "shared": True},
    "cell_sum": {"n": 400, "cells": 12, "k": 3, "valid": 0.7},
    "neighbour_attention": {"n": 120, "cells": 30, "k": 9, "valid": 0.7, "bias": "each"},
    "stencil_attention": {"n": 120, "cells": 30, "nodes": (3, 3), "poles": 1, "valid": 0.7},
    "window_attention": {
        "window": (4, 3),
        "windows": (2, 4),
        "shift": (2, 1),
        "periodic": (False, True),
        "bias": True,
    },
    "full_attention": {"n": 60, "m": 200, "valid": 0.7},
}


def within_twice_plain(
    op: str,
    backend: str,
    arguments: Arguments,
    dtype: torch.dtype,
    device: str,
    exact: Callable[..., Any],
) -> None:
    """The largest error of the result and of every gradient is at most twice that of plain PyTorch.

    The slack is what sums in single precision may gather in roundings, in whatever order they run:
    the root of the number of terms. In half precision it is next to nothing.
    """
    if refuses(op, backend, arguments, dtype, device):
        return
    for name, value in arguments.items():  # start from numbers that all precisions have
        if isinstance(value, Tensor) and value.is_floating_point():
            arguments[name] = value.to(dtype).double()
    roundings = max(max(v.shape) for v in arguments.values() if isinstance(v, Tensor)) ** 0.5
    truth = evaluate(exact, arguments)
    plain = evaluate(PLAIN[op], arguments, dtype, device)
    fast = evaluate(backend_run(op, backend), arguments, dtype, device)
    for name, true in truth.items():
        slack = roundings * torch.finfo(torch.float32).eps * true.abs().max().item()
        allowed = 2 * (plain[name].double() - true).abs().max().item() + slack
        error = (fast[name].double() - true).abs().max().item()
        assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"


@pytest.mark.parametrize(("op", "backend"), FAST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_back_end_errs_more_than_twice_as_much_as_plain_pytorch(
    op: str, backend: str, dtype: torch.dtype, device: str, seed: int
) -> None:
    arguments = make(op, seed, batch=2, dh=16, **BIGGER[op])
    within_twice_plain(op, backend, arguments, dtype, device, backend_run(op, "reference"))


CROWD = 20_000


@pytest.mark.parametrize("backend", of("cell_sum", FAST))
@pytest.mark.parametrize("device", DEVICES)
def test_a_crowded_cell_is_summed_in_half_precision_without_losing_members(
    backend: str, device: str
) -> None:
    """Adding ones in bfloat16 would stop at 256."""
    z = torch.ones(1, CROWD, 1, dtype=torch.bfloat16, device=device)
    cell = torch.ones(1, CROWD, 1, dtype=torch.long, device=device)
    arguments = {"z": z, "cell": cell, "weight": torch.ones_like(z), "cells": 3}
    if refuses("cell_sum", backend, arguments, torch.bfloat16, device):
        return
    out = ops.cell_sum(z, cell, torch.ones_like(z), 3, backend=backend)
    assert out.dtype == torch.bfloat16
    assert out.flatten().tolist() == [0, torch.tensor(float(CROWD)).bfloat16().item(), 0]


@pytest.mark.parametrize("backend", of("cell_sum", FAST))
def test_every_point_of_many_cells_is_counted(backend: str) -> None:
    """Defect 8: none of many points overwrites another."""
    cell = torch.randint(50, (1, CROWD, 1))
    ones = torch.ones(1, CROWD, 1)
    out = ops.cell_sum(ones, cell, ones, 50, backend=backend)
    assert torch.equal(out.flatten().long(), cell.flatten().bincount(minlength=50))


@pytest.mark.parametrize("backend", of("cell_attention", FAST))
@pytest.mark.parametrize("device", DEVICES)
def test_a_crowded_cell_is_averaged_in_half_precision_without_losing_members(
    backend: str, device: str
) -> None:
    """First 10000 zeros, then 10000 ones, all equally important: if sums stop growing, not 1/2."""
    value = torch.zeros(1, CROWD, 1, 1, dtype=torch.bfloat16, device=device)
    value[:, CROWD // 2 :] = 1
    own = torch.zeros(1, 2, 1, 1, dtype=torch.bfloat16, device=device)
    cell = torch.zeros(1, CROWD, 1, dtype=torch.long, device=device)
    arguments = (own, torch.zeros_like(value), value, own.squeeze(-1), own, cell, None)
    named = {str(place): value for place, value in enumerate(arguments)}
    if refuses("cell_attention", backend, named, torch.bfloat16, device):
        return
    mean, log_sum = ops.cell_attention(*arguments, backend=backend)
    assert mean.flatten().tolist() == pytest.approx([0.5, 0.0], abs=2**-8)
    assert log_sum.flatten().tolist() == pytest.approx([math.log(CROWD), 0.0], rel=2**-8)


def crowd(op: str) -> Arguments:
    """A crowd at one place whose contributions to the gradients there add up."""
    torch.manual_seed(0)
    key = torch.randn(1, CROWD, HEADS, DH)
    value = key + 0.1 * torch.randn(1, CROWD, HEADS, DH)
    few = [torch.randn(1, 3, HEADS, DH) for _ in range(2)]
    place = torch.ones(1, CROWD, 1, dtype=torch.long)
    if op == "cell_attention":
        return dict(
            zip(
                ("query", "key", "value", "own_logit", "own_value", "cell", "valid"),
                (few[0], key, value, few[1][..., 0], few[1], place, None),
                strict=True,
            )
        )
    return {
        "query": key,
        "key": few[0],
        "value": few[1],
        "index": torch.cat([place, place + 1], -1),
        "valid": None,
        "bias": None,
    }


@pytest.mark.parametrize(
    ("op", "backend"),
    [p for p in FAST if p.values[0] in ("cell_attention", "neighbour_attention")],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", DEVICES)
def test_gradients_at_a_crowded_place_keep_to_the_tolerance_rule(
    op: str, backend: str, dtype: torch.dtype, device: str
) -> None:
    """The gradients of many points at one cell are summed without losing members, too."""
    within_twice_plain(op, backend, crowd(op), dtype, device, PLAIN[op])


# ---- how far a token reaches ---------------------------------------------------------------------


def reach(
    backend: str,
    grid: tuple[int, ...],
    window: Sequence[int],
    shifts: Sequence[Sequence[int]],
    periodic: Sequence[bool],
    token: tuple[int, ...],
) -> np.ndarray:
    """Which places change when one token does, after passes with these shifts.

    In single precision, which all back-ends have.
    """
    torch.manual_seed(0)
    z = torch.randn(1, *grid, 1, 2, dtype=torch.float32).repeat(2, *[1] * (len(grid) + 2))
    z[(1, *token)] += 1
    for shift in shifts:
        z = ops.window_attention(z, z, z, window, shift, periodic, backend=backend)
    return ((z[1] - z[0]).abs().amax((-1, -2)) > 1e-5).numpy()


@pytest.mark.parametrize("backend", of("window_attention"))
def test_a_plain_and_a_shifted_pass_reach_the_next_windows_and_not_beyond_the_edges(
    backend: str,
) -> None:
    """Defects 1 and 2: token (0, 0) reaches rows and columns 0 to 5, no more and no less."""
    expected = np.zeros((8, 8), dtype=bool)
    expected[:6, :6] = True
    passes = ((0, 0), (2, 2))
    got = reach(backend, (8, 8), (4, 4), passes, (False, False), (0, 0))
    np.testing.assert_array_equal(got, expected)
    got = reach(backend, (8, 8), (4, 4), passes, (False, False), (7, 7))
    np.testing.assert_array_equal(got, expected[::-1, ::-1])
    alone = reach(backend, (8, 8), (4, 4), ((2, 2),), (False, False), (0, 7))
    assert {tuple(p) for p in np.argwhere(alone).tolist()} == {(0, 6), (0, 7), (1, 6), (1, 7)}


@pytest.mark.parametrize("backend", of("window_attention"))
def test_on_a_circle_tokens_reach_across_the_seam(backend: str) -> None:
    """Defect 3: column 0 reaches columns 0 to 5 and the last two; rows still end at the edge."""
    got = reach(backend, (8, 12), (4, 4), ((0, 0), (2, 2)), (False, True), (0, 0))
    assert np.flatnonzero(got.any(0)).tolist() == [0, 1, 2, 3, 4, 5, 10, 11]
    assert np.flatnonzero(got.any(1)).tolist() == [0, 1, 2, 3, 4, 5]
    assert got.sum() == 6 * 8
    last = reach(backend, (8, 12), (4, 4), ((2, 2),), (False, True), (4, 11))
    assert np.flatnonzero(last.any(0)).tolist() == [0, 1, 10, 11]
    assert np.flatnonzero(last.any(1)).tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("backend", of("window_attention"))
@pytest.mark.parametrize("token", range(4))
def test_a_window_as_long_as_its_axis_mixes_all_of_it(backend: str, token: int) -> None:
    """Defect 4: four time steps, window 4, shift 0."""
    assert reach(backend, (4,), (4,), ((0,),), (False,), (token,)).all()
    steps = reach(backend, (4, 8), (4, 4), ((0, 2),), (False, True), (token, 0))
    assert steps.any(1).all()


@pytest.mark.parametrize("backend", of("window_attention"))
@pytest.mark.parametrize("token", [(0, 0, 0), (1, 5, 2), (3, 3, 0), (2, 2, 3)])
@pytest.mark.parametrize("periodic", [(False, False, False), (True, False, True)])
def test_reach_is_what_set_logic_says(
    backend: str, token: tuple[int, int, int], periodic: tuple[bool, bool, bool]
) -> None:
    """Defect 5: sides of all lengths."""
    grid, window, shifts = (4, 6, 4), (2, 3, 4), ((0, 0, 0), (1, 1, 2))
    got = reach(backend, grid, window, shifts, periodic, token)
    first, second = (same_window(grid, window, shift, periodic)[0] for shift in shifts)
    expected = (first.astype(int) @ second.astype(int) > 0)[np.ravel_multi_index(token, grid)]
    np.testing.assert_array_equal(got.ravel(), expected)


@pytest.mark.parametrize(
    ("grid", "window", "shift"),
    [
        ((8, 8), (3, 4), (0, 0)),
        ((8, 8), (4, 16), (0, 0)),
        ((8, 8), (4, 0), (0, 0)),
        ((8, 8), (4, -4), (0, 0)),
        ((8, 8), (4, 4), (4, 0)),
        ((8, 8), (4, 4), (0, -1)),
        ((6,), (4,), (0,)),
    ],
)
def test_windows_that_do_not_divide_are_refused(
    grid: tuple[int, ...], window: tuple[int, ...], shift: tuple[int, ...]
) -> None:
    def listed(values: tuple[int, ...]) -> str:
        return str(values).replace("(", r"\(").replace(")", r"\)")

    z = torch.zeros(1, *grid, HEADS, DH)
    message = (
        rf"Windows {listed(window)} with shifts {listed(shift)} do not fit the grid "
        rf"{listed(grid)}; windows must divide it and shifts be smaller"
    )
    for backend in (None, *(b.name for b in BACKENDS["window_attention"])):
        with pytest.raises(ValueError, match=message):
            ops.window_attention(z, z, z, window, shift, (True,) * len(grid), backend=backend)


# ---- choosing a back-end -------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_the_table_ends_with_the_reference_and_names_are_different(op: str) -> None:
    names = [b.name for b in BACKENDS[op]]
    assert names[-1] == "reference"
    assert len(set(names)) == len(names)
    assert callable(getattr(ops, op))


@pytest.mark.parametrize("op", OPS)
def test_an_unknown_back_end_is_refused_with_the_list(op: str) -> None:
    edge = next(iter(EDGES[op].values()))
    names = ", ".join(f"'{b.name}'" for b in BACKENDS[op])
    message = rf"{op} has no back-end 'abacus'; choose one of \[{names}\]"
    with pytest.raises(ValueError, match=message):
        getattr(ops, op)(*make(op, **edge).values(), backend="abacus")


@pytest.mark.parametrize("op", OPS)
def test_without_a_name_the_first_that_can_runs_and_by_name_it_runs_or_says_why(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    seen: list[tuple[Any, ...]] = []

    def backend(name: str, reason: str | None) -> Backend:
        def run(*arguments: Any) -> Any:
            calls.append(name)
            return PLAIN[op](*arguments)

        def why(*arguments: Any) -> str | None:
            seen.append(arguments)
            return reason

        return Backend(name, run, why)

    table = (backend("gpu", "it needs a GPU"), backend("good", None), backend("slow", None))
    monkeypatch.setitem(BACKENDS, op, table)
    arguments = make(op, **list(EDGES[op].values())[-1])
    run = getattr(ops, op)
    run(*arguments.values())
    run(*arguments.values(), backend="slow")
    assert calls == ["good", "slow"]
    with pytest.raises(ValueError, match=f"'gpu' cannot run {op} here: it needs a GPU"):
        run(*arguments.values(), backend="gpu")
    assert calls == ["good", "slow"]
    for given_arguments in seen:  # the reason is found from the very arguments
        assert all(a is b for a, b in zip(given_arguments, arguments.values(), strict=True))


@pytest.mark.parametrize("op", OPS)
def test_without_a_name_the_result_is_that_of_the_reference(op: str) -> None:
    arguments = make(op, **list(EDGES[op].values())[-1])
    agree(evaluate(getattr(ops, op), arguments), evaluate(backend_run(op, "reference"), arguments))


def test_back_ends_can_be_chosen_for_a_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[str, str]] = []

    def noted(op: str, backend: Backend) -> Backend:
        def run(*arguments: Any) -> Any:
            used.append((op, backend.name))
            return backend.run(*arguments)

        return Backend(backend.name, run, backend.why_not)

    for op, table in BACKENDS.items():
        monkeypatch.setitem(BACKENDS, op, tuple(noted(op, b) for b in table))
    torch.manual_seed(0)
    network = gt.build_model(gt.preset("gp/swin-tnp-pt-32x32"))
    context = gt.PointSet(torch.rand(1, 9, 2), torch.randn(1, 9, 1))
    task = gt.Task({"observations": context}, gt.PointSet(torch.rand(1, 4, 2)))

    def run(*names: str) -> tuple[dict[str, set[str]], Tensor]:
        used.clear()
        with torch.no_grad(), ops.backends(*names):
            mean = network(task).mean
        return {op: {b for o, b in used if o == op} for op, _ in used}, mean

    by_default, mean = run()
    expected = {"cell_attention": "segment", "neighbour_attention": "gather"}
    expected |= {"window_attention": "batched", "rowwise": "plain", "neighbours": "plain"}
    for names in (("vectorised",), ("padded", "vectorised"), ("vectorised", "native")):
        found, other = run(*names)
        wanted = expected | ({"cell_attention": "padded"} if "padded" in names else {})
        assert found == {op: {name} for op, name in wanted.items()}
        torch.testing.assert_close(other, mean, rtol=1e-4, atol=1e-4)
    assert run("padded")[0] == by_default | {"cell_attention": {"padded"}}  # and the rest as ever
    assert run()[0] == by_default
    with ops.backends("vectorised"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(run).result()[0] == by_default  # another thread
        with ops.backends("reference"):
            z = torch.zeros(1, 2, 1, 1)
            used.clear()
            ops.full_attention(z, z, z)
            ops.full_attention(z, z, z, backend="sdpa")  # what a call asks for goes first
            assert used == [("full_attention", "reference"), ("full_attention", "sdpa")]
    with pytest.raises(ValueError, match=r"No op has a back-end 'abacus'; choose from \["):
        ops.backends("abacus").__enter__()
