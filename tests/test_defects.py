"""Known ways to get this model family wrong, one test each, showing that it is right here.

The numbers refer to a list of defects found in earlier research code.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from gridtnp import Axis, Grid, ModelConfig, PointSet, Task, build_model, preset
from gridtnp.config import Embedded, Fourier, GriddedConfig, Neighbour, PseudoToken, Swin
from gridtnp.evaluation.results import Evaluation, Prediction
from gridtnp.network.embeddings import SphericalHarmonics
from gridtnp.network.grid_decoders import AttentionGridDecoder
from gridtnp.network.grid_encoders import (
    KernelGridEncoder,
    MeanGridEncoder,
    PseudoTokenGridEncoder,
    SEKernel,
)
from gridtnp.network.grid_processors import SwinLayer, SwinProcessor
from gridtnp.network.likelihoods import GaussianLikelihood
from gridtnp.ops import vectorised
from gridtnp.synthetic.covariances import SquaredExponential
from gridtnp.synthetic.processes import GaussianProcess, draw_at
from gridtnp.task import TokenSet

DOUBLE = torch.float64
GLOBE = Grid((Axis.cells("lat", -90.0, 90.0, 8), Axis.circle("lon", -180.0, 360.0, 128)), "sphere")


def reach(layer: SwinLayer, grid: Grid, start: tuple[int, ...]) -> set[tuple[int, ...]]:
    """The grid points whose output changes with the token at `start`."""
    u = torch.randn(1, *grid.shape, 4, dtype=DOUBLE, requires_grad=True)
    changed = set()
    out = layer.double()(u)
    for index in torch.cartesian_prod(*(torch.arange(n) for n in grid.shape)).view(-1, len(start)):
        place = tuple(index.tolist())
        (gradient,) = torch.autograd.grad(out[(0, *place)].sum(), u, retain_graph=True)
        if gradient[(0, *start)].abs().max() > 0:
            changed.add(place)
    return changed


def swin(grid: Grid, window: tuple[int, ...], shift: tuple[int, ...]) -> SwinLayer:
    return SwinLayer(grid, dim=4, heads=2, window=window, shift=shift)


def test_01_a_grid_that_the_window_divides_is_not_padded() -> None:
    u = torch.randn(2, 8, 12, 2, 3)
    assert vectorised.to_windows(u, (4, 4)).shape == (2 * 2 * 3, 2, 16, 3)
    mask = vectorised.window_mask((8, 12), (4, 4), (2, 2), (False, False), u.device)
    assert mask is not None
    assert mask.shape == (2 * 3, 1, 16, 16)
    assert vectorised.window_mask((8, 12), (4, 4), (0, 0), (False, False), u.device) is None
    assert vectorised.window_mask((8, 12), (4, 4), (2, 2), (True, True), u.device) is None


def test_02_shifted_windows_reach_across_the_borders_of_plain_ones() -> None:
    grid = Grid((Axis.span("x1", 0.0, 1.0, 8), Axis.span("x2", 0.0, 1.0, 8)))
    reached = reach(swin(grid, (4, 4), (2, 2)), grid, (0, 0))
    assert reached == {(i, j) for i in range(6) for j in range(6)}


def test_03_windows_roll_over_the_seam_of_a_periodic_axis_only() -> None:
    grid = Grid((Axis.span("x1", 0.0, 1.0, 4), Axis.circle("x2", 0.0, 1.0, 12)))
    reached = reach(swin(grid, (4, 4), (0, 2)), grid, (0, 0))
    assert {column for _, column in reached} == {10, 11, 0, 1, 2, 3, 4, 5}


def test_04_one_window_holds_all_four_time_steps() -> None:
    grid = Grid((Axis.span("time", 0.0, 3.0, 4), Axis.span("x", 0.0, 1.0, 4)))
    for step in range(4):
        reached = reach(swin(grid, (4, 4), (0, 2)), grid, (step, 0))
        assert {time for time, _ in reached} == {0, 1, 2, 3}


def test_05_windows_may_have_unequal_sides_and_must_divide_the_grid() -> None:
    grid = Grid((Axis.span("x1", 0.0, 1.0, 6), Axis.span("x2", 0.0, 1.0, 8)))
    reached = reach(swin(grid, (3, 4), (1, 2)), grid, (0, 0))
    assert reached == {(i, j) for i in range(4) for j in range(6)}
    with pytest.raises(ValueError, match="Window side 4 does not divide axis 'x1' of 6"):
        swin(grid, (4, 4), (2, 2))


def test_06_neighbours_and_cells_wrap_at_the_seam_of_longitude() -> None:
    x = torch.tensor([[[0.0, -179.9]]])
    index, valid = GLOBE.neighbours(x, (1, 3))
    assert valid.all()
    assert set((index % 128).flatten().tolist()) == {127, 0, 1}
    encoder = KernelGridEncoder(GLOBE, length_scale=10.0, width=(1, 1))
    u = encoder([TokenSet(torch.tensor([[[0.0, 179.9]]]), torch.ones(1, 1, 1))])
    assert u.flatten().nonzero().flatten().tolist() == [4 * 128 + 0]  # nearest to -180, not to 177


def test_07_any_number_of_neighbours_works_and_is_rounded_as_the_paper_says() -> None:
    grid = Grid((Axis.span("x1", 0.0, 1.0, 8), Axis.span("x2", 0.0, 1.0, 8)))
    assert [grid.width(k)[0] for k in (1, 2, 4, 9, 10, 16, 17, 25)] == [1, 2, 2, 3, 4, 4, 5, 5]
    targets = TokenSet(torch.rand(1, 5, 2), torch.randn(1, 5, 8))
    u = torch.randn(1, 8, 8, 8)
    decoder = AttentionGridDecoder((grid,), dim=8, heads=2, width=grid.width(1))
    z = decoder(targets, decoder.prepare([u]))
    # one neighbour: its value, whatever the query
    value = decoder.blocks[0].keys_values(u.flatten(1, 2))[1]  # pyright: ignore
    own = value[0, grid.nearest(targets.x)[0]].flatten(-2)
    expected = targets.z[0] + decoder.blocks[0].out(own)  # pyright: ignore
    expected = expected + decoder.blocks[0].feed_forward(expected)  # pyright: ignore
    torch.testing.assert_close(z[0], expected)


def test_08_no_point_of_a_crowded_cell_is_lost() -> None:
    grid = Grid((Axis.span("x1", 0.0, 1.0, 4), Axis.span("x2", 0.0, 1.0, 4)))
    n = 100_000
    x = torch.rand(1, n, 2)
    x[:, : n // 2] *= 0.1
    encoder = MeanGridEncoder(grid, dim=1, shared=grid.names)
    mean = (
        encoder([TokenSet(x, torch.arange(n).view(1, n, 1).double())])
        - encoder.pseudo_tokens.values
    ).flatten()
    cell = grid.nearest(x)[0]
    expected = [torch.arange(n).double()[cell == m].mean() for m in range(16)]
    torch.testing.assert_close(mean.double(), torch.stack(expected), rtol=1e-9, atol=1e-3)


def test_09_indices_are_exact_beyond_two_to_the_24_cells() -> None:
    grid = Grid((Axis.span("x1", 0.0, 8191.0, 8192), Axis.circle("x2", 0.0, 4096.0, 4096)))
    index = torch.tensor([2**24 + 1, 2**24 + 3, grid.size - 1, grid.size - 2])
    assert torch.equal(grid.nearest(grid.points_at(index)), index)


def test_10_memory_does_not_follow_the_most_crowded_cell() -> None:
    """With half the points in one cell, no tensor is as large as cells times the fullest cell."""
    grid = Grid((Axis.span("x1", 0.0, 1.0, 64), Axis.span("x2", 0.0, 1.0, 64)))
    n, dim = 4000, 32  # C pads fewer columns to as many
    x = torch.rand(1, n, 2)
    x[:, : n // 2] *= 0.001
    encoder = PseudoTokenGridEncoder(grid, dim=dim, heads=2, width=(1, 1))
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, tuple | list) else [out]:
                if isinstance(t, Tensor):
                    largest = max(largest, t.numel())
            return out

    with Watch():
        encoder([TokenSet(x, torch.randn(1, n, dim))])
    assert largest <= 4 * dim * (n + grid.size)


def small_model(dim: int = 8) -> ModelConfig:
    waves = Fourier(of=("x1", "x2"), per_column=4, shortest=0.1, longest=4.0)
    grid = Grid((Axis.span("x1", 0.0, 1.0, 4), Axis.span("x2", 0.0, 1.0, 4)))
    return ModelConfig(
        coordinates=("x1", "x2"),
        sources={"a": 1, "b": 2},
        tokens=Embedded(embedding=(waves,), shared_with="a"),
        architecture=GriddedConfig(
            grid=grid,
            grid_encoder=PseudoToken(),
            processor=Swin(layers=2, window=(2, 2)),
            decoder=Neighbour(neighbours=9),
        ),
        dim=dim,
        heads=2,
    )


def points(n: int, dim_y: int) -> PointSet:
    return PointSet(torch.rand(2, n, 2), torch.randn(2, n, dim_y))


def test_11_empty_contexts_and_single_points_work_and_bad_locations_are_refused() -> None:
    model = build_model(small_model())
    assert model(Task({"a": points(0, 1)}, points(3, 1))).mean.isfinite().all()
    single = Grid((Axis.span("time", 5.0, 5.0, 1), Axis.span("x", 0.0, 1.0, 4)))
    encoder = PseudoTokenGridEncoder(single, dim=8, heads=2, width=(1, 1))
    assert encoder([TokenSet(torch.rand(1, 3, 2), torch.randn(1, 3, 8))]).isfinite().all()
    with pytest.raises(ValueError, match="x is NaN or infinite at 1 points"):
        PointSet(torch.tensor([[[0.1, float("nan")]]]))
    with pytest.raises(ValueError, match="more than one cell outside"):
        model(
            Task({"a": PointSet(torch.full((2, 1, 2), 50.0), torch.zeros(2, 1, 1))}, points(3, 1))
        )


def test_12_sources_may_differ_in_size_be_missing_and_come_in_any_order() -> None:
    config = small_model()
    multi = config.architecture.model_copy(update={"fusion": "multi"})
    for kind in (config, config.model_copy(update={"architecture": multi})):
        model = build_model(kind)
        a, b, target = points(7, 1), points(3, 2), points(4, 1)
        both = model(Task({"a": a, "b": b}, target)).mean
        torch.testing.assert_close(model(Task({"b": b, "a": a}, target)).mean, both)
        assert not torch.allclose(model(Task({"a": a}, target)).mean, both)
    convcnp = build_model(preset("wind/convcnp-24x60"))
    sources = {name: _wind_points(n) for n, name in enumerate(convcnp.signature.sources, start=2)}
    target = replace(_wind_points(3), y=None)
    forwards = convcnp(Task(sources, target)).mean
    backwards = convcnp(Task(dict(reversed(sources.items())), target)).mean
    torch.testing.assert_close(forwards, backwards)


def _wind_points(n: int) -> PointSet:
    low, extent = torch.tensor([0.0, 25.0, -125.0]), torch.tensor([3.0, 24.0, 59.0])
    hours = torch.full((1, n, 1), 437_000.0)
    return PointSet(low + extent * torch.rand(1, n, 3), torch.randn(1, n, 1), None, hours)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_13_other_precisions_and_autocast_work(dtype: torch.dtype) -> None:
    model = build_model(small_model())
    task = Task({"a": points(7, 1)}, points(4, 1))
    exact = model(task).mean
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (model(task).mean - exact).abs().max() < 0.1
    other = model.to(dtype)(task.to(dtype=dtype)).mean
    assert (other - exact).abs().max() < (1e-5 if dtype == torch.float64 else 0.1)


def test_14_harmonics_distinguish_north_from_south_and_have_one_pole() -> None:
    embed = SphericalHarmonics(10)
    north, south = embed(torch.tensor([[50.0, 10.0], [-50.0, 10.0]], dtype=DOUBLE))
    assert (north - south).abs().max() > 0.1
    equator = embed(torch.tensor([[0.0, 0.0], [0.0, 40.0]], dtype=DOUBLE))
    assert (equator[0] - equator[1]).abs().max() > 0.1
    pole = embed(torch.tensor([[90.0, 0.0], [90.0, 77.0]], dtype=DOUBLE))
    torch.testing.assert_close(pole[0], pole[1], rtol=0, atol=1e-12)


def test_15_great_circles_are_finite_at_antipodes_and_enter_the_kernel_squared() -> None:
    generator = torch.Generator().manual_seed(1)
    lat = torch.rand(10_000, 1, generator=generator) * 180 - 90
    lon = torch.rand(10_000, 1, generator=generator) * 360 - 180
    here, there = torch.cat([lat, lon], -1), torch.cat([-lat, lon + 180], -1)
    distance = GLOBE.distance(here, there)
    assert distance.isfinite().all()
    torch.testing.assert_close(distance, torch.full_like(distance, 180.0), rtol=0, atol=1e-3)
    kernel = SEKernel(GLOBE, 20.0)
    along = kernel(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 30.0]]))
    torch.testing.assert_close(along, torch.exp(torch.tensor([-0.5 * (30 / 20) ** 2])))
    meridian = GLOBE.distance(torch.tensor([[10.0, 60.0]]), torch.tensor([[35.0, 60.0]]))
    torch.testing.assert_close(meridian, torch.tensor([[25.0]]))


def test_16_a_length_scale_is_the_standard_deviation_of_the_kernel() -> None:
    line = Grid((Axis.span("x1", 0.0, 9.0, 10), Axis.span("x2", 0.0, 9.0, 10)))
    kernel = SEKernel(line, (2.0, 5.0))
    assert kernel.length_scales == {"x1": 2.0, "x2": 5.0}
    weight = kernel(torch.tensor([0.0, 0.0]), torch.tensor([2.0, 5.0]))
    torch.testing.assert_close(weight, torch.exp(torch.tensor(-0.5 - 0.5)))


def test_17_tiny_variances_have_finite_gradients() -> None:
    raw = torch.tensor([[[0.0, -150.0]]], requires_grad=True)
    GaussianLikelihood(4, 1, dim=4).distribution(raw).log_prob(torch.ones(1, 1, 1)).sum().backward()
    assert raw.grad is not None
    assert raw.grad.isfinite().all()


def functions(length_scale: float, context: int, targets: int) -> GaussianProcess:
    return GaussianProcess(
        box=((-1.0, 1.0),) * 2,
        context=context,
        targets=targets,
        kernel=SquaredExponential(length_scale),
        noise=0.1,
    )


def test_18_the_exact_answer_adds_variances_and_belongs_to_its_own_task() -> None:
    process = functions(0.5, context=20, targets=5)
    for draw in (draw_at(process, 0, index, 2) for index in range(2)):
        seen, at = draw.task.context["observations"], draw.task.target.x.double()
        assert seen.y is not None
        x = seen.x.double()

        def kernel(a: Tensor, b: Tensor) -> Tensor:
            return torch.exp(-0.5 * (torch.cdist(a, b) / 0.5) ** 2)

        inverse = torch.linalg.inv(kernel(x, x) + 0.1**2 * torch.eye(20, dtype=DOUBLE))
        mean = kernel(at, x) @ inverse @ seen.y.double()
        inner = (kernel(at, x) @ inverse * kernel(at, x)).sum(-1, keepdim=True)
        answer = draw.posterior()
        torch.testing.assert_close(answer.mean, mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(answer.variance, 1 - inner + 0.1**2, rtol=0, atol=1e-6)


def test_19_samples_have_the_full_prior_variance_and_separate_inputs() -> None:
    task = draw_at(functions(0.1, context=200, targets=100), 0, 0, 64).task
    y = task.context["observations"].y
    assert y is not None
    assert y.square().mean().item() == pytest.approx(1 + 0.1**2, rel=0.05)
    assert (task.target.x[0] - task.target.x[1]).abs().min() > 0


def test_20_grids_have_as_many_points_as_they_say_and_no_end_twice() -> None:
    lat, lon = Axis.cells("lat", -90.0, 90.0, 180), Axis.circle("lon", -180.0, 360.0, 360)
    points = Grid((lat, lon), "sphere").points(dtype=DOUBLE)
    assert points.shape == (180, 360, 2)
    assert (points[0, 0, 0], points[-1, 0, 0]) == (-89.5, 89.5)
    assert (points[0, 0, 1], points[0, -1, 1]) == (-180.0, 179.0)


def test_21_the_rmse_is_one_root_over_all_targets() -> None:
    times = np.repeat(np.array(["2020-01-01", "2020-01-02"], "datetime64[ms]"), 4)
    evaluation = Evaluation(
        variables={"t": None},
        time=times,
        station=np.tile(["A", "B", "C", "D"], 2),
        lat=np.tile(np.arange(4.0), 2),
        lon=np.tile(np.arange(4.0), 2),
        observed=np.repeat([0.0, 2.0], 4)[:, None],
        forecasts={"model": Prediction(np.zeros((8, 1)), np.ones((8, 1)))},
        split="two days",
    )
    rmse = evaluation.to_dataframe()["rmse"].item()
    assert rmse == pytest.approx(2.0**0.5)  # the mean of the two days' roots would be 1


def test_22_building_and_predicting_leave_the_global_random_state_alone() -> None:
    model = build_model(small_model())
    task = Task({"a": points(7, 1)}, points(4, 1))
    before = torch.get_rng_state()
    model(task)
    model.loss(task)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.compiled
def test_23_no_checking_decorator_is_left_in_production() -> None:
    assert not hasattr(SwinProcessor.forward, "__wrapped__")
    assert not hasattr(Grid.nearest, "__wrapped__")


def test_24_layers_and_source_encoders_start_with_different_weights() -> None:
    model = build_model(preset("wind/swin-tnp-multi-pt-24x60"))
    state = model.state_dict()
    for pattern in (
        "processor.layers.{}.blocks.0.project.weight",
        "decoder.blocks.{}.project.weight",
    ):
        weights = [state[pattern.format(layer)] for layer in range(5)]
        assert len({w.sum().item() for w in weights}) == 5
    encoders = [v for k, v in state.items() if k.endswith("block.project.weight")]
    assert len({w.sum().item() for w in encoders}) == 6
