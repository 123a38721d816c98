"""Smooth models: predictions are continuous in the places of targets and of observations."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gridtnp import Axis, Grid, ModelConfig, PointSet, Task, build_model, preset
from gridtnp.config import (
    Cell,
    Embedded,
    Full,
    GriddedConfig,
    Harmonics,
    Kernel,
    Mean,
    Neighbour,
    PseudoToken,
    Swin,
)
from gridtnp.network.grid_encoders import SmoothPseudoTokenGridEncoder
from gridtnp.network.model import NeuralProcess
from gridtnp.stencils import stencil

LAT, LON = Axis.cells("lat", -90.0, 90.0, 4), Axis.circle("lon", -180.0, 360.0, 8)
GRIDS = {
    "globe": Grid((LAT, LON), "sphere"),
    "box": Grid((Axis.cells("lat", 30.0, 50.0, 4), Axis.cells("lon", 0.0, 20.0, 4)), "sphere"),
}
ENCODERS = {"pt": PseudoToken(), "mean": Mean(), "kernel": Kernel(length_scale=9.0)}
DECODERS: dict[str, Any] = {
    "3": Neighbour(neighbours=9),
    "2": Neighbour(neighbours=4),
    "5": Neighbour(neighbours=(5, 3)),
    "kernel": Kernel(length_scale=9.0, neighbours=9),
}


def config(
    grid: str = "globe", encoder: str = "pt", decoder: str = "3", positions: Any = "relative"
) -> ModelConfig:
    place = (Cell(of=("lat", "lon")),)
    absolute = (Harmonics(degrees=3),) if positions == "absolute" else ()
    shared_with = "s" if decoder == "kernel" else None
    return ModelConfig(
        coordinates=("lat", "lon"),
        sources={"s": 1},
        tokens=Embedded(embedding=(*place, *absolute), shared_with=shared_with),
        architecture=GriddedConfig(
            grid=GRIDS[grid],
            grid_encoder=ENCODERS[encoder],
            processor=Swin(layers=1, window=(2, 2)),
            decoder=DECODERS[decoder],
            positions=positions,
        ),
        dim=8,
        heads=2,
        min_noise=0.1,
    )


def built(config: ModelConfig) -> NeuralProcess:
    """With all parameters away from zero."""
    torch.manual_seed(0)
    model = build_model(config).double().eval()
    for p in model.parameters():
        p.data += 0.3 * torch.randn_like(p)
    return model


def places(grid: Grid, n: int, seed: int) -> Tensor:
    """Within the cells of a grid."""
    generator = torch.Generator().manual_seed(seed)
    low = torch.tensor([a.low - a.step / 2 for a in grid.axes], dtype=torch.float64)
    extent = torch.tensor([a.period for a in grid.axes], dtype=torch.float64)
    return low + extent * torch.rand(1, n, len(grid.axes), generator=generator).double()


def task(grid: Grid, at: Tensor | None = None, moved: Tensor | None = None) -> Task:
    """Twelve observations, the first of which may be moved."""
    x = places(grid, 12, 1)
    if moved is not None:
        x = torch.cat([moved.view(1, 1, -1), x[:, 1:]], 1)
    y = torch.randn(1, 12, 1, generator=torch.Generator().manual_seed(2)).double()
    return Task({"s": PointSet(x, y)}, PointSet(places(grid, 20, 3) if at is None else at))


def borders(grid: Grid, axis: int, across: float) -> Tensor:
    """Places on all borders and grid points of an axis, the seam included."""
    a = grid.axes[axis]
    along = a.low + a.step / 2 * torch.arange(-1 if a.periodic else 0, 2 * a.size - 1)
    other = grid.axes[1 - axis]
    found = torch.full((len(along), 2), other.low - other.step / 2 + other.period * across)
    found[:, axis] = along
    return found.double()


def jump_of_targets(model: NeuralProcess, points: Tensor, axis: int, step: float) -> Tensor:
    """The largest change of the mean over a step, in standard deviations."""
    assert model.grid is not None
    half = torch.zeros(2, dtype=torch.float64)
    half[axis] = step / 2 * model.grid.axes[axis].step
    at = torch.cat([points - half, points + half]).unsqueeze(0)
    found = model(task(model.grid, at))
    before, after = found.mean.chunk(2, 1)
    return ((after - before).abs() / found.stddev.chunk(2, 1)[0]).max()


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("positions", ["relative", "absolute"])
@pytest.mark.parametrize("decoder", DECODERS)
@torch.no_grad()
def test_no_jump_where_a_target_crosses_a_border(grid: str, positions: str, decoder: str) -> None:
    """The jump on a border is that of the same step elsewhere, and falls to zero with the step."""
    model = built(config(grid, decoder=decoder, positions=positions).smooth())
    for axis in (0, 1):
        points = borders(GRIDS[grid], axis, 0.37)
        large, small = (jump_of_targets(model, points, axis, s) for s in (1e-4, 1e-6))
        elsewhere = jump_of_targets(model, points + 0.13 * GRIDS[grid].axes[axis].step, axis, 1e-4)
        assert large <= elsewhere + 1e-2
        assert small <= 2e-2 * large + 1e-9


@torch.no_grad()
def test_the_papers_neighbours_do_jump() -> None:
    model = built(config())
    points = borders(GRIDS["globe"], 1, 0.37)
    hard = jump_of_targets(model, points, 1, 1e-6)
    assert hard > 1e-3
    assert hard > 0.5 * jump_of_targets(model, points, 1, 1e-3)
    assert hard > 100 * jump_of_targets(built(config().smooth()), points, 1, 1e-6)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("encoder", ENCODERS)
@torch.no_grad()
def test_no_jump_where_an_observation_crosses_a_border(grid: str, encoder: str) -> None:
    model = built(config(grid, encoder).smooth())

    def change(points: Tensor, step: Tensor) -> Tensor:
        tasks = [task(GRIDS[grid], moved=p + s) for s in (-step, step) for p in points]
        found = model(Task.stack(tasks))
        before, after = found.mean.chunk(2)
        return ((after - before).abs() / found.stddev.chunk(2)[0]).max()

    for axis in (0, 1):
        step = torch.zeros(2, dtype=torch.float64)
        step[axis] = GRIDS[grid].axes[axis].step / 2
        points = borders(GRIDS[grid], axis, 0.61)
        small = change(points, 1e-6 * step)
        assert small <= 2e-3 * change(points, 1e-3 * step) + 1e-9


@settings(max_examples=examples(10))
@given(
    cell=st.integers(0, 7),
    across=st.floats(0.01, 0.99),
    axis=st.sampled_from([0, 1]),
    grid=st.sampled_from(list(GRIDS)),
    seed=st.integers(0, 1000),
)
@torch.no_grad()
def test_any_weights_are_smooth_at_any_border(
    cell: int, across: float, axis: int, grid: str, seed: int
) -> None:
    model = built(config(grid).smooth())
    torch.manual_seed(seed)
    for p in model.parameters():
        p.data += 0.3 * torch.randn_like(p)
    points = borders(GRIDS[grid], axis, across)[[cell % 7]]
    small = jump_of_targets(model, points, axis, 1e-7)
    assert small <= 1e-2 * jump_of_targets(model, points, axis, 1e-3) + 1e-6


@pytest.mark.parametrize("decoder", ["3", "kernel"])
@pytest.mark.parametrize("positions", ["relative", "absolute"])
@torch.no_grad()
def test_a_pole_is_one_place(decoder: str, positions: str) -> None:
    """For targets and for observations, whatever longitude they come with."""
    model, grid = built(config(decoder=decoder, positions=positions).smooth()), GRIDS["globe"]
    longitude = torch.linspace(-180, 180, 9, dtype=torch.float64)
    for pole in (-90.0, 90.0):
        at = torch.stack([torch.full_like(longitude, pole), longitude], -1)
        mean = model(task(grid, at.unsqueeze(0))).mean
        torch.testing.assert_close(mean, mean[:, :1].expand_as(mean))
        first, second = (model(task(grid, moved=place)).mean for place in at[[1, 4]])
        torch.testing.assert_close(first, second)
        # and the way to it is continuous
        near = model(task(grid, (at - torch.tensor([pole * 1e-7, 0.0])).unsqueeze(0))).mean
        assert (near - mean).abs().max() < 1e-4


@pytest.mark.parametrize("width", [2, 3, 4, 5])
@pytest.mark.parametrize("axis", [LON, LAT, Axis.circle("x", 0.0, 2.0, 2), Axis.span("x", 0, 0, 1)])
def test_weights_are_a_partition_of_unity(width: int, axis: Axis) -> None:
    x = axis.low + axis.step * torch.linspace(-1, axis.size, 301, dtype=torch.float64)
    index, weight, offset = axis.faded(x, width)
    torch.testing.assert_close(weight.sum(-1), torch.ones_like(x))
    assert index.min() >= 0
    assert index.max() < axis.size
    dense = torch.zeros(len(x), axis.size, dtype=torch.float64).scatter_add(1, index, weight)
    assert dense.diff(dim=0).abs().max() < 0.05
    apart = (x.unsqueeze(-1) - axis.low) / axis.step - index - offset
    turns = apart / axis.size if axis.periodic else apart[weight > 0]
    torch.testing.assert_close(turns, turns.round() if axis.periodic else torch.zeros_like(turns))


@torch.no_grad()
def test_relative_positions_stay_relative() -> None:
    """On a torus, a shift by one window changes nothing; on a larger grid, weights still fit."""
    axes = tuple(Axis.circle(name, -1.0, 2.0, 8) for name in ("x1", "x2"))
    torus = ModelConfig(
        coordinates=("x1", "x2"),
        sources={"s": 1},
        tokens=Embedded(embedding=(Cell(of=("x1", "x2")),)),
        architecture=GriddedConfig(
            grid=Grid(axes),
            grid_encoder=PseudoToken(),
            processor=Swin(layers=2, window=(4, 4)),
            decoder=Neighbour(neighbours=9),
            positions="relative",
        ),
        dim=8,
        heads=2,
    ).smooth()
    model, before = built(torus), task(Grid(axes))

    def shifted(points: PointSet) -> PointSet:
        return replace(points, x=(points.x + 1 + torch.tensor([1.0, 0.0])) % 2 - 1)

    after = Task({"s": shifted(before.context["s"])}, shifted(before.target))
    torch.testing.assert_close(model(after).mean, model(before).mean)
    larger = torus.on(Grid(tuple(Axis.circle(name, -2.0, 4.0, 16) for name in ("x1", "x2"))))
    build_model(larger).double().load_state_dict(model.state_dict())


def test_gradients_are_finite_where_weights_vanish() -> None:
    """On borders, grid points and poles, with respect to weights and places."""
    model, grid = built(config().smooth()), GRIDS["globe"]
    at = torch.cat([borders(grid, axis, 0.5) for axis in (0, 1)] + [torch.tensor([[90.0, 0.0]])])
    at = at.double().unsqueeze(0).requires_grad_()
    found = model(
        replace(task(grid, at), context={"s": PointSet(at, torch.ones_like(at[..., :1]))})
    )
    (found.mean.sum() + found.stddev.log().sum()).backward()
    for gradient in (at.grad, *(p.grad for p in model.parameters())):
        assert gradient is not None
        assert gradient.isfinite().all()


def test_smooth_is_a_word_in_the_configuration() -> None:
    smooth = preset("gp/swin-tnp-pt-64x64").relative().smooth()
    assert smooth.architecture.decoder.smooth
    assert smooth.architecture.grid_encoder.smooth
    assert smooth.tokens.embedding == (Cell(of=("x1", "x2"), smooth=True),)
    assert ModelConfig.model_validate_json(smooth.model_dump_json()) == smooth
    full = preset("gp/swin-tnp-pt-32x32-full").smooth()
    assert isinstance(full.architecture.decoder, Full)
    assert preset("gp/cnp").smooth() == preset("gp/cnp")


def test_encoders_of_some_sources_are_smooth() -> None:
    base = config()

    def changed(fusion: str, smooth: Any) -> ModelConfig:
        a = base.architecture.model_copy(
            update={"fusion": fusion, "grid_encoder": PseudoToken(smooth=smooth)}
        )
        both = {"sources": {"s": 1, "field": 1}, "architecture": a}
        return ModelConfig.model_validate(dict(base) | both)

    kinds = [type(e) for e in build_model(changed("multi", ("s",))).fusion.encoders.values()]
    assert [kind is SmoothPseudoTokenGridEncoder for kind in kinds] == [True, False]
    with pytest.raises(
        ValueError, match=r"Unknown source 'fields' in smooth; did you mean 'field'"
    ):
        changed("multi", ("fields",))
    with pytest.raises(ValueError, match="All sources share one grid encoder, which is smooth for"):
        changed("single", ("s",))


def test_a_polar_stencil_has_one_more_node() -> None:
    globe = stencil(GRIDS["globe"], places(GRIDS["globe"], 5, 0), (3, 3))
    assert globe.index.shape == (1, 5, 10)
    assert stencil(GRIDS["box"], places(GRIDS["box"], 5, 0), (3, 3)).index.shape == (1, 5, 9)
    torch.testing.assert_close(globe.weight.sum(-1), torch.ones(1, 5, dtype=torch.float64))
