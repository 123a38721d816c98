"""Nodes around locations, and cell attention with gates: C against PyTorch."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gridtnp import Axis, Grid, ops

LAT, LON = Axis.cells("lat", -90.0, 90.0, 4), Axis.circle("lon", -180.0, 360.0, 8)
TIME = Axis.span("time", 0.0, 5.0, 6)
BOX = (Axis.cells("lat", 30.0, 50.0, 4), Axis.cells("lon", 0.0, 20.0, 4))
GRIDS = {
    "globe": (Grid((LAT, LON), "sphere"), (3, 3)),
    "globe through time": (Grid((TIME, LAT, LON), "sphere"), (2, 3, 5)),
    "time between": (Grid((LAT, TIME, LON), "sphere"), (2, 3, 4)),
    "box": (Grid(BOX, "sphere"), (5, 4)),
    "one grid point, and fewer than the width": (
        Grid((Axis.span("x", 0.0, 0.0, 1), Axis.circle("y", 0.0, 2.0, 2))),
        (3, 5),
    ),
}
NAMES = ("index", "weight", "features")


def places(grid: Grid, n: int = 200) -> Tensor:
    """Also beyond the edges, on grid points, on the borders of cells, and on the poles."""
    torch.manual_seed(0)
    low, step = (torch.tensor([getattr(a, s) for a in grid.axes]) for s in ("low", "step"))
    cells = torch.rand(2, n, len(grid.axes)) * (torch.tensor(grid.shape) + 2) - 1.5
    cells[:, : n // 4] = (2 * cells[:, : n // 4]).round() / 2
    x = low + step * cells
    if "lat" in grid.names:
        latitude = x[..., grid.names.index("lat")].clamp_(-90, 90)
        latitude[:, :2] = torch.tensor([90.0, -90.0]) if grid.polar else latitude[:, :2]
    return x


@pytest.mark.parametrize("name", GRIDS)
def test_c_finds_the_same_nodes(name: str) -> None:
    grid, width = GRIDS[name]
    x = places(grid)
    exact = dict(zip(NAMES, ops.stencil(x.double(), grid, width), strict=True))
    plain, fast = (
        dict(zip(NAMES, ops.stencil(x, grid, width, backend=b), strict=True))
        for b in ("plain", "native")
    )
    assert torch.equal(fast["index"], plain["index"])
    for what in ("weight", "features"):
        assert fast[what].dtype == torch.float32
        errors = [(found[what] - exact[what]).abs().max() for found in (plain, fast)]
        assert errors[1] <= 2 * errors[0] + torch.finfo(torch.float32).eps


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("width", [None, 1, 2, 4, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_c_finds_the_same_neighbours(name: str, width: int | None, dtype: torch.dtype) -> None:
    grid, widths = GRIDS[name]
    widths = widths if width is None else (width,) * len(grid.axes)
    x = places(grid).to(dtype)
    fast, plain = (ops.neighbours(x, grid, widths, backend=b) for b in ("native", "plain"))
    for found, expected in zip(fast, plain, strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(plain[0], grid.neighbours(x, widths)[0])


@pytest.mark.parametrize("backend", [None, "plain"])
def test_neighbours_need_a_width_per_axis(backend: str | None) -> None:
    grid, _ = GRIDS["globe"]
    with pytest.raises(ValueError, match=r"neighbourhood widths .* not one number per axis"):
        ops.neighbours(places(grid), grid, (3,), backend=backend)
    with pytest.raises(ValueError, match="must be at least 1 along each axis"):
        ops.neighbours(places(grid), grid, (3, 0), backend=backend)


@pytest.mark.parametrize("backend", ["plain", "native"])
def test_a_place_that_is_no_number_has_no_weight(backend: str) -> None:
    grid, width = GRIDS["globe"]
    x = torch.tensor([[[torch.nan, 3.0], [10.0, torch.nan]]])
    _, weight, _ = ops.stencil(x, grid, width, backend=backend)
    assert not (weight[..., :-1] > 0).any()


def test_gradients_of_places_are_left_to_pytorch() -> None:
    grid, width = GRIDS["globe"]
    x = places(grid).requires_grad_()
    _, weight, features = ops.stencil(x, grid, width)
    assert weight.requires_grad
    assert features.requires_grad
    with pytest.raises(ValueError, match="cannot run stencil here: gradients with respect to loc"):
        ops.stencil(x, grid, width, backend="native")


def arguments(
    heads: int, dh: int, nodes: tuple[int, ...], poles: int, dtype: torch.dtype = torch.float64
) -> dict[str, Any]:
    torch.manual_seed(0)
    k = poles + torch.Size(nodes).numel()
    batch, n, m, f = 2, 70, 9, 6
    cell = torch.rand(batch, n, max(m, k)).argsort(-1)[..., :k] % m
    log_weight = torch.randn(batch, n, k)
    log_weight[torch.rand(batch, n, k) < 0.3] = -torch.inf

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype)

    gates = (randn(len(nodes), f, heads), randn(len(nodes), f, heads * dh))
    return {
        "query": randn(1, m, heads, dh),
        "key": randn(batch, n, heads, dh),
        "value": randn(batch, n, heads, dh),
        "own_logit": randn(1, m, heads),
        "own_value": randn(1, m, heads, dh),
        "cell": cell,
        "log_weight": log_weight.to(dtype),
        "features": randn(batch, n, sum(nodes), f),
        "gates": ops.Gates(gates[0], gates[1], randn(len(nodes), heads * dh), nodes),
    }


SHAPES = [(4, 8, (2, 2), 0), (2, 3, (2, 1, 2), 1), (8, 16, (3, 2), 1), (12, 5, (2,), 0)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend", ["native", "expanded", "segment"])
def test_gates_keep_to_the_tolerance_rule(shape: tuple[Any, ...], backend: str) -> None:
    exact = ops.gated_cell_attention(**arguments(*shape), backend="reference")
    single = arguments(*shape, torch.float32)
    plain = ops.gated_cell_attention(**single, backend="reference")
    fast = ops.gated_cell_attention(**single, backend=backend)
    for e, p, found in zip(exact, plain, fast, strict=True):
        allowed = 2 * (p - e).abs().max() + 10 * torch.finfo(torch.float32).eps * e.abs().max()
        assert (found - e).abs().max() <= allowed


def test_gates_by_hand() -> None:
    """One point at two nodes, whose features are 1 and 3; the last channel of keys is not read."""
    one = torch.ones(1, 1, 1, 2)
    gates = (torch.tensor([[[0.5]]]), torch.tensor([[[1.0, 10.0]]]), torch.tensor([[2.0, 0.0]]))
    for backend in ("native", "expanded", "segment", "reference"):
        mean, log_sum = ops.gated_cell_attention(
            query=torch.tensor([1.0, 99.0]).expand(1, 2, 1, 2),
            key=torch.tensor([0.0, 7.0]).view(1, 1, 1, 2),
            value=one,
            own_logit=torch.full((1, 2, 1), -torch.inf),
            own_value=one.expand(1, 2, 1, 2),
            cell=torch.tensor([[[0, 1]]]),
            log_weight=torch.tensor([[[0.0, 0.25]]]),
            features=torch.tensor([[[[1.0], [3.0]]]]),
            gates=ops.Gates(gates[0], gates[1], gates[2], (2,)),
            backend=backend,
        )
        torch.testing.assert_close(mean.flatten(0, 2), torch.tensor([[3.0, 10.0], [5.0, 30.0]]))
        assert log_sum.flatten().tolist() == pytest.approx([0.5, 1.75])


def test_training_with_gates_does_not_use_the_op_without_gradients() -> None:
    given = arguments(*SHAPES[0], torch.float32)
    given["value"].requires_grad_()
    mean, _ = ops.gated_cell_attention(**given)
    (gradient,) = torch.autograd.grad(mean.sum(), given["value"])
    exact = arguments(*SHAPES[0])
    exact["value"].requires_grad_()
    mean, _ = ops.gated_cell_attention(**exact, backend="reference")
    (expected,) = torch.autograd.grad(mean.sum(), exact["value"])
    torch.testing.assert_close(gradient, expected.float(), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="cannot run gated_cell_attention here: it has no grad"):
        ops.gated_cell_attention(**given, backend="native")


@pytest.mark.parametrize("name", ["logits", "factors", "one"])
def test_gates_that_do_not_fit_are_refused(name: str) -> None:
    given = arguments(*SHAPES[0])
    gates = given["gates"]
    given["gates"] = gates._replace(**{name: getattr(gates, name)[..., :-1]})
    with pytest.raises(ValueError, match=rf"gated_cell_attention: 'gates\.{name}' must be"):
        ops.gated_cell_attention(**given)
    given["gates"] = gates._replace(nodes=(3, 3))
    with pytest.raises(ValueError, match="'nodes' must fit 2 axes, 4 rows of features and 4 nodes"):
        ops.gated_cell_attention(**given)
