"""Wrong arguments of public ops are refused in a sentence; none crashes the process.

They run without `--check-shapes`, whose own errors would come first.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gridtnp import ops
from gridtnp.ops.rows import Add, Linear, Norm, Relu

pytestmark = pytest.mark.compiled
OTHERS = (  # tested elsewhere
    *("rowwise", "kernel_to_grid", "kernel_from_grid"),
    *("neighbours", "stencil", "gated_cell_attention"),
)
OPS = [op for op in ops.BACKENDS if op not in OTHERS]


def good(op: str) -> dict[str, Any]:
    """Arguments that fit."""
    t, grid = torch.randn(2, 6, 2, 3), torch.randn(2, 2, 3, 2, 3)
    index = torch.rand(2, 6, 6).argsort(-1)[..., :4]  # different ones
    valid = torch.rand(2, 6, 4) < 0.7
    points: dict[str, Any] = {"query": t, "key": t, "value": t}
    return {
        "cell_attention": {**points, "own_logit": t[..., 0], "own_value": t}
        | {"cell": index, "valid": valid},
        "cell_sum": {"z": t.flatten(2), "cell": index, "weight": torch.rand(2, 6, 4), "cells": 6},
        "neighbour_attention": {**points, "index": index, "valid": valid}
        | {"bias": torch.randn(1, 6, 4, 2)},
        "stencil_attention": {**points, "index": index, "log_weight": torch.randn(2, 6, 4)}
        | {"features": torch.randn(2, 6, 3, 5), "offset_keys": torch.randn(2, 5, 2, 3)}
        | {"nodes": (1, 2)},
        "window_attention": {"query": grid, "key": grid, "value": grid, "window": (2, 3)}
        | {"shift": (0, 0), "periodic": (False, True), "bias": torch.randn(2, 6, 6)},
        "full_attention": {**points, "mask": torch.rand(2, 6) < 0.7},
    }[op]


TENSORS = [(op, name) for op in OPS for name, v in good(op).items() if isinstance(v, Tensor)]
FLOATS = [(op, name) for op, name in TENSORS if good(op)[name].is_floating_point()]
FREE = {("full_attention", "query", "one row less"), ("cell_sum", "z", "one number less")}
"""Sizes that no other argument shares."""
MISTAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "one row less": lambda t: t[:, :-1],
    "one number less": lambda t: t[..., :-1],
    "one dimension less": lambda t: t[0],
    "one dimension more": lambda t: t[None],
    "another batch": lambda t: torch.cat([t, t, t]),
    "nothing": lambda t: t[:0],
    "another device": lambda t: t.to("meta"),
    "booleans or whole numbers": lambda t: t.bool() if t.is_floating_point() else t.float(),
    "whole numbers": lambda t: t.short() if t.dtype != torch.int64 else t.bool(),
    "complex numbers": lambda t: t.to(torch.complex64),
}


@pytest.mark.parametrize(
    ("op", "name", "mistake"),
    [
        (op, name, mistake)
        for op, name in TENSORS
        for mistake in MISTAKES
        if (op, name, mistake) not in FREE
    ],
)
@pytest.mark.parametrize("backend", [None, "native"])
def test_wrong_tensors_are_refused(op: str, name: str, mistake: str, backend: str | None) -> None:
    arguments = good(op)
    arguments[name] = MISTAKES[mistake](arguments[name])
    if backend is not None and all(b.name != backend for b in ops.BACKENDS[op]):
        backend = None
    with pytest.raises(ValueError, match=f"{op}: '[a-z_]+' (must|is on)"):
        getattr(ops, op)(**arguments, backend=backend)


def test_messages_name_the_shape_that_came_and_the_one_that_must() -> None:
    arguments = good("neighbour_attention")
    arguments["valid"] = arguments["valid"][:, :4]
    message = (
        r"neighbour_attention: 'valid' must have the shape \(batch=2, n=6, k=4\), got \(2, 4, 4\)"
    )
    with pytest.raises(ValueError, match=message):
        ops.neighbour_attention(**arguments)
    arguments["valid"] = torch.ones(2, 6, 4)
    with pytest.raises(ValueError, match=r"'valid' must be of booleans, got torch.float32"):
        ops.neighbour_attention(**arguments)
    arguments = good("neighbour_attention")
    arguments["key"] = arguments["key"].to("meta")
    with pytest.raises(ValueError, match=r"'key' is on meta, but 'query' on cpu"):
        ops.neighbour_attention(**arguments)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("cell_attention", "cell"),
        ("cell_sum", "cell"),
        ("neighbour_attention", "index"),
    ],
)
@pytest.mark.parametrize("wrong", [-1, 6, 10**12, -(10**12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_index_out_of_range_is_refused(
    op: str, name: str, wrong: int, dtype: torch.dtype
) -> None:
    """In the first batch element an index that is too large would name a row of the second."""
    arguments = {
        n: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v
        for n, v in good(op).items()
    } | ({} if op == "cell_sum" else {"valid": None})
    arguments[name][0, 0, 0] = wrong
    with pytest.raises(ValueError, match=rf"{op}: '{name}' must be from 0 to 5, got -?\d"):
        getattr(ops, op)(**arguments)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("cell_attention", "cell"),
        ("neighbour_attention", "index"),
    ],
)
@pytest.mark.parametrize("wrong", [-1, 6, 10**12])
def test_an_invalid_entry_may_point_anywhere(op: str, name: str, wrong: int) -> None:
    for backend in ops.BACKENDS[op]:
        arguments = good(op)
        arguments["valid"][0, 0, 0] = False
        expected = getattr(ops, op)(**arguments, backend="reference")
        arguments[name][0, 0, 0] = wrong
        found = getattr(ops, op)(**arguments, backend=backend.name)
        torch.testing.assert_close(found, expected)
        arguments["valid"][0, 0, 0] = True
        with pytest.raises(ValueError, match="must be from 0 to 5"):
            getattr(ops, op)(**arguments, backend=backend.name)


@pytest.mark.parametrize(
    "change",
    [
        {"bias": torch.zeros(2, 5, 5)},
        {"window": (2,)},
        {"shift": (0, 0, 0)},
        {"periodic": (True,)},
    ],
)
def test_windows_of_another_number_of_axes_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"window_attention: '[a-z]+' must"):
        ops.window_attention(**good("window_attention") | change)


@pytest.mark.parametrize("op", [op for op in OPS if op != "cell_sum"])
def test_heads_without_numbers_are_refused(op: str) -> None:
    arguments = {
        n: v[..., :0] if n in ("query", "key", "value", "own_value", "offset_keys") else v
        for n, v in good(op).items()
    }
    with pytest.raises(ValueError, match=f"{op}: 'query' must not have empty heads"):
        getattr(ops, op)(**arguments)


@pytest.mark.parametrize(("op", "name"), FLOATS)
def test_double_and_single_precision_are_not_mixed(op: str, name: str) -> None:
    arguments = good(op)
    arguments[name] = arguments[name].double()
    for backend in (None, *(b.name for b in ops.BACKENDS[op])):
        with pytest.raises(ValueError, match=rf"{op}: '\w+' is of torch\.float\d+, but '\w+' of"):
            getattr(ops, op)(**arguments, backend=backend)


@pytest.mark.parametrize("op", [op for op in OPS if op != "cell_sum"])
def test_no_heads_are_refused(op: str) -> None:
    heads = {"own_logit": -1, "bias": 0 if op == "window_attention" else -1}
    heads |= dict.fromkeys(("query", "key", "value", "own_value", "offset_keys"), -2)
    arguments = {n: v.narrow(heads[n], 0, 0) if n in heads else v for n, v in good(op).items()}
    for backend in (None, *(b.name for b in ops.BACKENDS[op])):
        with pytest.raises(ValueError, match=f"{op}: 'query' must not have empty heads"):
            getattr(ops, op)(**arguments, backend=backend)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dimension", [0, 1])
def test_empty_tensors_give_what_the_definition_gives(op: str, dimension: int) -> None:
    """No batch elements, or neither queries nor keys; backward, too."""
    shared = ("bias",) if op == "window_attention" or dimension == 0 else ()
    shared = (*shared, "offset_keys")
    for backend in (None, *(b.name for b in ops.BACKENDS[op])):
        arguments = {
            n: v.narrow(dimension, 0, 0) if isinstance(v, Tensor) and n not in shared else v
            for n, v in good(op).items()
        }
        leaf = arguments.get("value", arguments.get("z")).requires_grad_()
        found = getattr(ops, op)(**arguments, backend=backend)
        found = found[0] if isinstance(found, tuple) else found
        size = (*leaf.shape[:1], 6, 6) if op == "cell_sum" else leaf.shape
        assert found.shape == size
        assert not found.any()
        if found.requires_grad:
            (grad,) = torch.autograd.grad(found.sum(), leaf)
            assert grad.shape == leaf.shape


WEIGHT, ONE = torch.randn(4, 4), torch.ones(4)


@pytest.mark.parametrize("backend", [None, "native", "plain"])
@pytest.mark.parametrize(
    "step", [Linear(WEIGHT), Linear(WEIGHT, ONE), Norm(ONE, ONE, 1e-5), Add(ONE)]
)
def test_rows_and_steps_are_of_one_precision(step: Any, backend: str | None) -> None:
    message = r"Step 1, \w+, is of torch\.float32, but the rows of torch\.float64"
    with pytest.raises(ValueError, match=message):
        ops.rowwise(torch.zeros(5, 4, dtype=torch.float64), step, backend=backend)


@pytest.mark.parametrize("backend", [b.name for b in ops.BACKENDS["rowwise"]])
@pytest.mark.parametrize(("n", "before", "after"), [(0, 4, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_rows_may_be_empty(
    n: int, before: int, after: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridtnp.ops.rows.LARGE", 0)
    x, weight = torch.randn(n, before), torch.randn(after, before)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    y = ops.rowwise(x, Relu(), Linear(weight), Relu(), backend=backend)
    assert y.shape == (n, after)
    assert not y.any()
    for grad, leaf in zip(torch.autograd.grad(y.sum(), leaves), leaves, strict=True):
        assert grad.shape == leaf.shape
        assert not grad.any()


@pytest.mark.parametrize("backend", [None, "native", "plain"])
@pytest.mark.parametrize(
    "x",
    [
        torch.ones(5, 4, dtype=torch.bool),
        torch.ones(5, 4, dtype=torch.int64),
        torch.ones(5, 4, dtype=torch.complex64),
    ],
)
def test_rows_must_be_of_floating_point_numbers(x: Tensor, backend: str | None) -> None:
    for steps in ((Relu(),), (Norm(ONE, ONE, 1e-5),), (Linear(WEIGHT),)):
        with pytest.raises(ValueError, match="rowwise: 'x' must be of floating-point numbers"):
            ops.rowwise(x, *steps, backend=backend)


@pytest.mark.parametrize("backend", [None, "native", "plain"])
@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Linear(WEIGHT.long()), "Step 1, Linear, must be of floating-point numbers"),
        (Linear(WEIGHT, ONE.bool()), "Step 1, Linear, must be of floating-point numbers"),
        (
            Linear(WEIGHT[0]),
            r"Step 1, Linear, must have a weight of 2 dimensions, got a shape of \(4,",
        ),
        (Norm(WEIGHT, None, 1e-5), "Step 1, Norm, must have a weight of 1 dimension"),
        (Add(torch.zeros(3, 4)), r"Step 1, Add, must add rows that broadcast to \(5, 4\), got"),
        (Add(torch.zeros(2, 5, 4)), r"Step 1, Add, must add rows that broadcast to \(5, 4\), got"),
        (Add(torch.zeros(())), "Step 1, Add, must add rows that broadcast"),
        (Add(torch.zeros(5, 4, device="meta")), "Step 1, Add, is on meta, but the rows on cpu"),
    ],
)
def test_steps_of_other_numbers_shapes_or_devices_are_refused(
    step: Any, message: str, backend: str | None
) -> None:
    with pytest.raises(ValueError, match=message):
        ops.rowwise(torch.zeros(5, 4), step, backend=backend)


@pytest.mark.parametrize("backend", [None, "native", "plain"])
def test_a_single_row_may_come_alone(backend: str | None) -> None:
    x = torch.randn(4)
    found = ops.rowwise(x, Linear(WEIGHT, ONE), Relu(), backend=backend)
    torch.testing.assert_close(found, (WEIGHT @ x + ONE).relu())
    with pytest.raises(ValueError, match="rowwise: 'x' must have the shape"):
        ops.rowwise(torch.tensor(1.0), Relu(), backend=backend)


@pytest.mark.parametrize("backend", [b.name for b in ops.BACKENDS["rowwise"]])
def test_a_norm_may_have_no_bias(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridtnp.ops.rows.LARGE", 0)
    x, weight = torch.randn(7, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    found = ops.rowwise(x, Norm(weight, None, 1e-5), Relu(), backend=backend)
    expected = torch.nn.functional.layer_norm(x, (5,), weight).relu()
    torch.testing.assert_close(found, expected)
    for grads in zip(
        *(torch.autograd.grad(y.square().sum(), [x, weight]) for y in (found, expected)),
        strict=True,
    ):
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("wider", [False, True])
@pytest.mark.parametrize(
    "layout", [(1, 0, 2, 3), (3, 1, 2, 0), (2, 1, 0, 3), (0, 2, 1, 3), (3, 2, 1, 0)]
)
@pytest.mark.parametrize(
    "shape", [(3, 1, 2, 4), (1, 3, 2, 4), (3, 1, 1, 4), (3, 2, 1, 1), (1, 1, 2, 4), (1, 1, 4, 1)]
)
def test_dimensions_of_size_one_may_have_any_stride(
    shape: tuple[int, ...], layout: tuple[int, ...], wider: bool
) -> None:
    """`contiguous` returns such tensors as they are."""
    back = [layout.index(d) for d in range(4)]

    def turned(t: Tensor) -> Tensor:
        there = t.permute(layout).clone(memory_format=torch.contiguous_format)
        if wider:
            there = torch.cat([there, there * torch.nan], -1)[..., : there.shape[-1]]
        return there.permute(back)

    batch, n = shape[:2]
    query, key, value = (torch.randn(shape) for _ in range(3))
    index = torch.randint(0, n, (batch, n, 2))
    calls = [
        lambda q, k, v, b: ops.neighbour_attention(q, k, v, index, backend=b),
        lambda q, k, v, b: ops.cell_attention(q, k, v, q[..., 0], v, index[..., :1], backend=b)[0],
        lambda q, k, v, b: ops.window_attention(q, k, v, (n,), (0,), (False,), backend=b),
    ]
    for call in calls:
        leaves = [turned(t).detach().requires_grad_() for t in (query, key, value)]
        results = [call(*leaves, backend) for backend in ("native", "reference")]
        torch.testing.assert_close(*results)
        grads = [torch.autograd.grad(r.sin().sum(), leaves) for r in results]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def test_keys_and_values_of_invalid_neighbours_are_not_read() -> None:
    query, key, value = (torch.randn(1, 4, 2, 16) for _ in range(3))
    index = torch.tensor([[[0, 3], [1, 3], [2, 3], [0, 3]]])
    valid = torch.tensor([True, False]).expand(1, 4, 2)
    key[:, 3] = value[:, 3] = torch.nan
    found = ops.neighbour_attention(query, key, value, index, valid, backend="native")
    expected = ops.neighbour_attention(query, key, value, index, valid, backend="reference")
    torch.testing.assert_close(found, expected)


def test_memory_that_could_not_be_had_is_an_error() -> None:
    """No queries need no numbers, but each would have more neighbours than any memory holds."""
    none, one = torch.zeros(1, 0, 1, 1), torch.zeros(1, 1, 1, 1)
    index = torch.zeros(1, 0, 2**50, dtype=torch.int64)
    with pytest.raises(MemoryError, match="Not enough memory for neighbour_forward"):
        ops.neighbour_attention(none, one, one, index, backend="native")


def strange(t: Tensor) -> dict[str, Tensor]:
    """Tensors with the right shape and dtype whose memory is not what it seems."""
    freed = t.clone()
    freed.untyped_storage().resize_(0)
    return {
        "negated lazily": torch.complex(t, -t).conj().imag,
        "zeros without memory": torch._efficientzerotensor(t.shape),
        "freed": freed,
        "sparse": t.to_sparse(),
    }


@pytest.mark.parametrize("kind", strange(torch.zeros(1)))
def test_memory_that_is_not_what_it_seems_does_not_reach_c(kind: str) -> None:
    x = strange(torch.rand(5, 4))[kind]
    if kind == "negated lazily":
        torch.testing.assert_close(ops.rowwise(x, Linear(WEIGHT)), x @ WEIGHT.T)
    with pytest.raises(ValueError, match="'native' cannot run rowwise here: "):
        ops.rowwise(x, Linear(WEIGHT), backend="native")


def test_gradients_may_be_lazily_negated() -> None:
    x = torch.randn(5, 4, requires_grad=True)
    slope = torch.complex(x.detach(), x.detach()).conj().imag
    (found,) = torch.autograd.grad(ops.rowwise(x, Linear(WEIGHT), backend="native"), x, slope)
    torch.testing.assert_close(found, -x.detach() @ WEIGHT)
