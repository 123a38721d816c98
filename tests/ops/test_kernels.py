"""Sums with kernels between points and a grid: every back-end against the definition."""

from typing import Any

import pytest
import torch
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gridtnp as gt
from gridtnp import ops
from gridtnp.network.grid_encoders import SEKernel
from gridtnp.ops import BACKENDS, kernels, native

OPS = ("kernel_to_grid", "kernel_from_grid")
FAST = [
    pytest.param(op, b.name, id=f"{op}-{b.name}")
    for op in OPS
    for b in BACKENDS[op]
    if b.name != "reference"
]
SETTINGS = settings(max_examples=examples(6))

X = gt.Axis.span("x", -1.0, 1.0, 7)
GRIDS = {
    "one axis": gt.Grid((X,)),
    "two axes": gt.Grid((X, gt.Axis.span("y", 0.0, 4.0, 9))),
    "a circle": gt.Grid((X, gt.Axis.circle("y", 0.0, 4.0, 20))),
    "the sphere": gt.Grid(
        (gt.Axis.cells("lat", -90.0, 90.0, 12), gt.Axis.circle("lon", -180.0, 360.0, 24)),
        metric="sphere",
    ),
    "a region, and time": gt.Grid(
        (
            gt.Axis.span("lon", -60.0, 10.0, 13),
            gt.Axis.span("time", 0.0, 3.0, 4),
            gt.Axis.span("lat", 20.0, 60.0, 9),
        ),
        metric="sphere",
    ),
}


def places(grid: gt.Grid, batch: int, n: int) -> Tensor:
    low = torch.tensor([a.low for a in grid.axes], dtype=torch.float64)
    high = torch.tensor([a.high for a in grid.axes], dtype=torch.float64)
    return low + (high - low) * torch.rand(batch, n, len(grid.axes), dtype=torch.float64)


def run(
    op: str,
    backend: str,
    kernel: SEKernel,
    x: Tensor,
    values: Tensor,
    mask: Tensor | None,
    dtype: torch.dtype,
    absolute: bool = False,
) -> dict[str, Tensor]:
    """The result, and gradients with respect to the values and the length-scales.

    With `absolute`, all terms of the sums are positive, and the results are their sizes.
    """
    values = values.abs() if absolute else values
    kernel = SEKernel(kernel.grid, kernel.initial).to(dtype)
    values = values.to(dtype).requires_grad_()
    split = kernel.split(x.to(dtype), dtype, mask)
    out = getattr(ops, op)(values, *split, backend=backend)
    slope = torch.arange(out.numel()).mul(7).remainder(17).sub(8).view_as(out).to(dtype) / 8
    slope = slope.abs() if absolute else slope
    grads = torch.autograd.grad((out * slope).sum(), (values, kernel.log_ratio))
    names = ("result", "gradient of values", "gradient of length-scales")
    return dict(zip(names, (out.detach(), *grads), strict=True))


def case(op: str, grid: gt.Grid, batch: int, n: int, width: int) -> tuple[Tensor, Tensor]:
    x = places(grid, batch, n)
    if op == "kernel_to_grid":
        return x, torch.randn(batch, n, width, dtype=torch.float64)
    columns = grid.axes[grid.column].size
    return x, torch.randn(batch, grid.size // columns, columns, width, dtype=torch.float64)


def agrees(
    op: str, backend: str, kernel: SEKernel, batch: int, n: int, width: int, valid: float
) -> None:
    """To twice the error of the definition in single precision, some millionths of the terms, and a
    millionth of the largest; derivatives with respect to length-scales leave out 16 times as much.
    """
    x, values = case(op, kernel.grid, batch, n, width)
    x = x.float().double()
    mask = None if valid == 1 else torch.rand(batch, n) < valid
    if why_not(op, backend, kernel, x, values):
        return
    exact = run(op, "reference", kernel, x, values, mask, torch.float64)
    sizes = run(op, "reference", kernel, x, values, mask, torch.float64, absolute=True)
    plain = run(op, "reference", kernel, x, values, mask, torch.float32)
    found = run(op, backend, kernel, x, values, mask, torch.float32)
    split = kernel.split(x, torch.float64, mask)
    left_out = 1e-6 * kernels.weights(*split).max() * max(1.0, values.abs().max().item())
    for name, wanted in exact.items():
        allowed = 2 * (plain[name] - wanted).abs().max() + 4e-6 * sizes[name].abs().max()
        allowed += left_out * (16 if "scales" in name else 1)
        assert (found[name] - wanted).abs().max() <= allowed, name


def why_not(op: str, backend: str, kernel: SEKernel, x: Tensor, values: Tensor) -> str | None:
    (chosen,) = (b for b in BACKENDS[op] if b.name == backend)
    return chosen.why_not(values.float(), *kernel.split(x.float(), torch.float32))


@pytest.mark.parametrize(("op", "backend"), FAST)
@pytest.mark.parametrize("grid", GRIDS)
@SETTINGS
@given(
    batch=st.integers(1, 2),
    n=st.integers(1, 120),
    width=st.integers(1, 33),
    relative=st.sampled_from([0.02, 0.1, 0.5]),
    valid=st.sampled_from([1.0, 0.6, 0.0]),
    seed=st.integers(0, 9),
)
def test_a_back_end_computes_what_the_definition_does(
    op: str,
    backend: str,
    grid: str,
    batch: int,
    n: int,
    width: int,
    relative: float,
    valid: float,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    extents = {a.name: a.high - a.low for a in GRIDS[grid].axes} | {"great_circle": 60.0}
    scales = [relative * extents[c] for c in GRIDS[grid].components]
    agrees(op, backend, SEKernel(GRIDS[grid], scales), batch, n, width, valid)


@pytest.mark.parametrize("grid", GRIDS)
def test_by_rows_and_columns_the_kernel_is_what_it_is_point_by_point(grid: str) -> None:
    kernel = SEKernel(GRIDS[grid], 0.7 if "sphere" not in GRIDS[grid].metric else 20.0).double()
    x = places(GRIDS[grid], 2, 11)
    nodes = GRIDS[grid].points(dtype=torch.float64).flatten(0, -2)
    wanted = kernel(x.unsqueeze(2), nodes)
    apart, precision, away = kernel.split(x, torch.float64)
    found = kernels.weights(apart, precision, away).unflatten(2, (apart.shape[-1], -1, 1))
    found = GRIDS[grid].from_rows(found.flatten(0, 1)).flatten(1).view(wanted.shape)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_rows_and_columns_of_a_field_can_be_undone() -> None:
    for grid in GRIDS.values():
        u = torch.randn(2, *grid.shape, 3)
        assert torch.equal(grid.from_rows(grid.as_rows(u)), u)


@pytest.mark.parametrize("grid", GRIDS)
def test_what_is_left_out_is_below_a_millionth_of_the_largest_weight(grid: str) -> None:
    """Sums of ones, so that every weight counts: the definition in double precision decides."""
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    shape = GRIDS[grid].components
    kernel = SEKernel(GRIDS[grid], [8.0 if c == "great_circle" else 0.1 for c in shape])
    x = places(GRIDS[grid], 1, 200)
    apart, precision, away = kernel.split(x, torch.float64)
    weights = kernels.weights(apart, precision, away)
    columns = away.across.shape[-1]
    one_by_one = torch.eye(weights.shape[-1]).view(1, -1, columns, weights.shape[-1])
    split = kernel.split(x.float(), torch.float32)
    found = ops.kernel_from_grid(one_by_one, *split, backend="native")
    largest = weights.amax(-1, keepdim=True)
    left_out = found == 0
    assert left_out.any()
    assert (weights[left_out] <= (1e-6 * largest).expand_as(weights)[left_out]).all()
    assert ((found - weights).abs() <= 2e-5 * largest).all()  # coordinates in single precision


@pytest.mark.parametrize("op", OPS)
def test_sums_do_not_depend_on_the_number_of_threads(op: str) -> None:
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    kernel = SEKernel(GRIDS["the sphere"], 9.0)
    x, values = case(op, kernel.grid, 2, 301, 5)
    before = torch.get_num_threads()
    try:
        found: list[dict[str, Tensor]] = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(run(op, "native", kernel, x, values, None, torch.float32))
    finally:
        torch.set_num_threads(before)
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


@pytest.mark.parametrize("op", OPS)
def test_many_points_come_in_pieces(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "WEIGHTS", 1000)
    monkeypatch.setattr("gridtnp.ops.native_kernels.POINTS", 30)
    kernel = SEKernel(GRIDS["two axes"], 0.4)
    for backend in ("dense", "native"):
        agrees(op, backend, kernel, 2, 100, 3, 0.8)


def test_locations_may_have_gradients_and_large_kernels_go_around_the_sphere() -> None:
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    kernel = SEKernel(GRIDS["the sphere"], 9.0)
    x = places(kernel.grid, 1, 5).float().requires_grad_()
    u = torch.randn(1, 12, 24, 2)
    with pytest.raises(ValueError, match="gradients with respect to locations are needed"):
        ops.kernel_from_grid(u, *kernel.split(x, torch.float32), backend="native")
    (slope,) = torch.autograd.grad(ops.kernel_from_grid(u, *kernel.split(x, u.dtype)).sum(), x)
    assert slope.isfinite().all()
    wide = SEKernel(kernel.grid, 40.0).split(x.detach(), torch.float32)
    with pytest.raises(ValueError, match="the kernel reaches around the sphere"):
        ops.kernel_from_grid(u, *wide, backend="native")


def test_no_points_give_no_sums() -> None:
    kernel = SEKernel(GRIDS["two axes"], 0.4)
    for backend in ("native", "dense", "reference"):
        if backend == "native" and isinstance(native.library(), str):
            continue
        split = kernel.split(torch.zeros(1, 0, 2), torch.float32)
        found: Any = ops.kernel_to_grid(torch.zeros(1, 0, 3), *split, backend=backend)
        assert (found == 0).all()
        found = ops.kernel_from_grid(torch.ones(1, 7, 9, 3), *split, backend=backend)
        assert found.shape == (1, 0, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"across": torch.zeros(1, 4, 9)}, r"'away.across' must have the shape \(1, 5, 9\)"),
        ({"across": torch.zeros(1, 5, 8)}, r"'away.across' must have the shape \(1, 5, 9\)"),
        ({"across": torch.zeros(1, 5, 9).long()}, "'away.across' must be a tensor of torch.float"),
        ({"rows": torch.zeros(1, 5, 7)}, "'away' must have rows and cosines, or none"),
        (
            {"rows": torch.zeros(1, 5, 7), "cosines": torch.zeros(1, 5, 6)},
            r"'away.cosines' must have the shape \(1, 5, 7\), got \(1, 5, 6\)",
        ),
    ],
)
def test_distances_that_do_not_fit_are_refused(change: dict[str, Tensor], message: str) -> None:
    kernel = SEKernel(GRIDS["two axes"], 0.4)
    apart, precision, away = kernel.split(torch.zeros(1, 5, 2), torch.float32)
    with pytest.raises(ValueError, match=message):
        ops.kernel_from_grid(torch.zeros(1, 7, 9, 3), apart, precision, away._replace(**change))
    with pytest.raises(ValueError, match="kernel_from_grid: 'precision' must "):
        ops.kernel_from_grid(torch.zeros(1, 7, 9, 3), apart, torch.ones(2), away)
