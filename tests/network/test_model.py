"""Models: what they compute, what they refuse, and which symmetries they have."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gridtnp import Axis, Grid, ModelConfig, NeuralProcess, PointSet, Task, build_model, preset
from gridtnp.config import (
    CNN,
    Cell,
    CNPConfig,
    Embedded,
    Fourier,
    GriddedConfig,
    Harmonics,
    Neighbour,
    PseudoToken,
    Swin,
    ViT,
)
from gridtnp.network.likelihoods import GaussianLikelihood

GLOBE = Grid((Axis.cells("lat", -90.0, 90.0, 8), Axis.circle("lon", -180.0, 360.0, 16)), "sphere")


def globe_model(processor: Any, **changes: Any) -> NeuralProcess:
    relative = (Cell(of=("lon",)), Fourier(of=("lat",), per_column=8, shortest=10.0, longest=360.0))
    config = ModelConfig(
        coordinates=("lat", "lon"),
        sources={"stations": 1, "ships": 2},
        tokens=changes.get("tokens", Embedded(embedding=relative)),
        architecture=GriddedConfig(
            grid=GLOBE,
            grid_encoder=PseudoToken(shared=changes.get("shared", ("lon",))),
            processor=processor,
            decoder=Neighbour(neighbours=9),
        ),
        dim=16,
        heads=2,
    )
    return build_model(config).double()


def globe_task(n: int = 40) -> Task:
    def points(count: int, dim_y: int) -> PointSet:
        low, extent = torch.tensor([-90.0, -180.0]).double(), torch.tensor([180.0, 360.0]).double()
        x = low + extent * torch.rand(2, count, 2).double()
        return PointSet(x, torch.randn(2, count, dim_y).double())

    return Task({"stations": points(n, 1), "ships": points(n + 9, 2)}, points(25, 1))


def test_points_are_validated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever makes them: a model only reorders them, and small tasks are mostly such work."""
    model, task = globe_model(Swin(layers=1, window=(4, 4))), globe_task()
    validated: list[PointSet] = []
    monkeypatch.setattr(PointSet, "__post_init__", lambda points: validated.append(points))
    with torch.no_grad():
        model(task)
    assert not validated
    with torch.no_grad():
        model(Task({"ships": task.context["ships"]}, task.target))
    assert validated  # the empty source


def turned(task: Task, degrees: float) -> Task:
    """The globe turned by some degrees; longitudes stay within -180 and 180."""

    def turn(points: PointSet) -> PointSet:
        lon = (points.x[..., 1:] + degrees + 180).remainder(360) - 180
        return PointSet(torch.cat([points.x[..., :1], lon], -1), points.y)

    return Task({name: turn(points) for name, points in task.context.items()}, turn(task.target))


def prediction(model: NeuralProcess, task: Task) -> Tensor:
    distribution = model(task)
    return torch.stack([distribution.mean, distribution.stddev]).detach()


@pytest.mark.parametrize("cells", [4, 8, 12])
def test_swin_tnp_predicts_the_same_on_a_turned_globe(cells: int) -> None:
    """Windows tile the grid, so the turn is by whole windows: 4 cells of 22.5 degrees."""
    model, task = globe_model(Swin(layers=2, window=(4, 4))), globe_task()
    torch.testing.assert_close(
        prediction(model, turned(task, cells * 22.5)), prediction(model, task), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("processor", [ViT(layers=2), CNN(layers=2, kernel=3)])
@pytest.mark.parametrize("cells", [1, 3, 15])
def test_vit_and_cnn_predict_the_same_when_turned_by_any_whole_cells(
    processor: Any, cells: int
) -> None:
    model, task = globe_model(processor), globe_task()
    torch.testing.assert_close(
        prediction(model, turned(task, cells * 22.5)), prediction(model, task), rtol=0, atol=1e-10
    )


def test_absolute_inputs_distinguish_a_turned_globe() -> None:
    model = globe_model(Swin(layers=2, window=(4, 4)), tokens=Embedded(embedding=(Harmonics(),)))
    task = globe_task()
    assert (prediction(model, turned(task, 90.0)) - prediction(model, task)).abs().max() > 1e-3


def test_longitudes_of_any_range_give_the_same_prediction() -> None:
    model, task = globe_model(Swin(layers=2, window=(4, 4))), globe_task()

    def shift(points: PointSet) -> PointSet:
        return PointSet(points.x + torch.tensor([0.0, 360.0]).double(), points.y)

    shifted = Task({k: shift(p) for k, p in task.context.items()}, shift(task.target))
    expected = prediction(model, task)
    torch.testing.assert_close(prediction(model, shifted), expected, rtol=0, atol=1e-9)


def test_loss_is_the_mean_over_targets_of_the_sum_over_outputs() -> None:
    model, task = globe_model(Swin(layers=1, window=(4, 4))), globe_task()
    assert task.target.y is not None
    p = model(task)
    density = -0.5 * ((task.target.y - p.mean) / p.stddev) ** 2 - p.stddev.log()
    expected = -(density - 0.5 * math.log(2 * math.pi)).sum(-1).mean()
    torch.testing.assert_close(model.loss(task), expected)
    mask = torch.arange(25).expand(2, -1) < 10
    some = PointSet(task.target.x[:, :10], task.target.y[:, :10])
    masked = PointSet(task.target.x, task.target.y, mask)
    torch.testing.assert_close(model.loss(task.at(masked)), model.loss(task.at(some)))


def test_encoding_once_serves_targets_in_pieces() -> None:
    model, task = globe_model(Swin(layers=2, window=(4, 4))), globe_task()
    encoding = model.encode(task.context)
    pieces = [
        model.decode(encoding, task.target.select(slice(i, i + 7))).mean for i in (0, 7, 14, 21)
    ]
    torch.testing.assert_close(torch.cat(pieces, 1), model(task).mean)


def test_training_reduces_the_loss() -> None:
    model, task = globe_model(Swin(layers=2, window=(4, 4))).float(), globe_task()
    task = Task(
        {
            name: PointSet(p.x.float(), p.y.float())
            for name, p in task.context.items()
            if p.y is not None
        },
        PointSet(task.target.x.float(), torch.sin(task.target.x[..., :1].float() / 30)),
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = model.loss(task).item()
    for _ in range(40):
        optimiser.zero_grad()
        loss = model.loss(task)
        loss.backward()
        optimiser.step()
    assert model.loss(task).item() < first - 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"station": "stations"},
            r"^Unknown source 'station' in the context; did you mean 'stations'\?$",
        ),
        (
            {"xyz": "stations"},
            r"^Unknown source 'xyz' in the context; choose one of \['ships', 'stations'\]\.$",
        ),
    ],
)
def test_unknown_source_is_refused(change: dict[str, str], message: str) -> None:
    model, task = globe_model(Swin(layers=1, window=(4, 4))), globe_task()
    context = {new: task.context[old] for new, old in change.items()}
    with pytest.raises(ValueError, match=message):
        model(Task(context, task.target))


def test_wrong_columns_are_refused() -> None:
    model, task = globe_model(Swin(layers=1, window=(4, 4))), globe_task()
    with pytest.raises(ValueError, match="source 'stations' have 2 outputs, but the model has 1"):
        model(Task({"stations": task.context["ships"]}, task.target))
    with pytest.raises(ValueError, match="targets have 2 outputs, but the model has 1"):
        model(task.at(task.context["ships"]))
    extra = PointSet(task.target.x, None, None, torch.zeros(2, 25, 1).double())
    with pytest.raises(ValueError, match=r"have 1 features, but the model takes 0: \(\)"):
        model(Task({}, extra))
    flat = PointSet(task.target.x[..., :1])
    with pytest.raises(ValueError, match=r"have 1 coordinates, .* takes 2: \('lat', 'lon'\)"):
        model(Task({}, flat))
    with pytest.raises(ValueError, match="have no outputs y, which the loss needs"):
        model.loss(task.at(PointSet(task.target.x)))


def test_points_far_outside_the_grid_are_refused_unless_masked() -> None:
    grid = Grid((Axis.span("x", 0.0, 7.0, 8),))
    waves = Fourier(of=("x",), per_column=4, shortest=0.1, longest=10.0)
    config = ModelConfig(
        coordinates=("x",),
        sources={"obs": 1},
        tokens=Embedded(embedding=(waves,)),
        architecture=GriddedConfig(
            grid=grid,
            grid_encoder=PseudoToken(),
            processor=Swin(layers=1, window=(4,)),
            decoder=Neighbour(neighbours=3),
        ),
        dim=8,
        heads=2,
    )
    model = build_model(config)
    x = torch.tensor([[[0.5], [-0.9], [7.9], [90.0]]])
    mask = torch.tensor([[True, True, True, False]])
    far, near = PointSet(x, torch.zeros(1, 4, 1)), PointSet(x, torch.zeros(1, 4, 1), mask)
    target = PointSet(torch.tensor([[[1.0]]]))
    with pytest.raises(ValueError, match=r"1 of 4 points of source 'obs' are more .*'x'.*90"):
        model(Task({"obs": far}, target))
    with pytest.raises(ValueError, match="1 of 4 targets are more than one cell outside"):
        model(Task({}, far))
    assert model(Task({"obs": near}, target)).mean.isfinite().all()


def test_latitude_beyond_the_pole_is_refused() -> None:
    model = globe_model(Swin(layers=1, window=(4, 4)))
    with pytest.raises(ValueError, match="'lat'"):
        model(Task({}, PointSet(torch.tensor([[[90.5, 0.0]]]).double())))


def test_models_without_a_grid_take_any_place() -> None:
    waves = Fourier(of=("x",), per_column=4, shortest=0.1, longest=10.0)
    config = ModelConfig(
        coordinates=("x",),
        sources={"obs": 1},
        tokens=Embedded(embedding=(waves,)),
        architecture=CNPConfig(),
        dim=8,
        heads=2,
    )
    far = PointSet(torch.tensor([[[1e4]]]), torch.zeros(1, 1, 1))
    assert build_model(config)(Task({"obs": far}, far)).mean.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("value", [-3e38, -1e6, -200.0, -90.0, 0.0, 90.0, 1e6])
def test_density_and_gradient_are_finite_for_any_raw_variance(
    value: float, dtype: torch.dtype
) -> None:
    raw = torch.tensor([[[0.3, value]]], dtype=dtype, requires_grad=True)
    distribution = GaussianLikelihood(4, 1, dim=4).distribution(raw)
    density = distribution.log_prob(torch.tensor([[[-2.0]]])).sum()
    density.backward()
    assert raw.grad is not None
    assert density.isfinite()
    assert raw.grad.isfinite().all()
    assert distribution.stddev.min() > 0


def test_standard_deviation_is_the_appendix_formula() -> None:
    raw = torch.tensor([[[1.0, 2.0, -0.5, 0.7]]], dtype=torch.float64)
    distribution = GaussianLikelihood(4, 2, dim=4, min_noise=0.1).distribution(raw)
    torch.testing.assert_close(distribution.mean, raw[..., :2])
    variance = torch.log1p(raw[..., 2:].exp())
    torch.testing.assert_close(distribution.stddev, 0.1 + variance.sqrt(), rtol=0, atol=1e-7)
    with pytest.raises(ValueError, match=r"min_noise=-0\.1: a standard deviation cannot be n"):
        GaussianLikelihood(4, 1, dim=4, min_noise=-0.1)


@pytest.mark.parametrize("piece", [1, 7, 64])
def test_predictions_do_not_depend_on_the_size_of_pieces(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, task = globe_model(Swin(layers=2, window=(4, 4))), globe_task()
    with torch.no_grad():
        expected = prediction(model, task)
        monkeypatch.setattr("gridtnp.network.model.PIECE", piece)
        torch.testing.assert_close(prediction(model, task), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("precision", ["float64", "float32", "autocast"])
@pytest.mark.parametrize("piece", [7, 64])
def test_gradients_do_not_depend_on_pieces_nor_on_recomputation(
    piece: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, task = globe_model(Swin(layers=2, window=(4, 4))), globe_task()
    dtype = torch.float64 if precision == "float64" else torch.float32
    model, task = model.to(dtype), task.to(dtype=dtype)

    def gradients() -> torch.Tensor:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            loss = model.loss(task)
        loss.backward()
        parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return torch.cat([loss.detach().view(1), *parts])

    kept = gradients()
    monkeypatch.setattr("gridtnp.network.model.PIECE", piece)
    monkeypatch.setattr("gridtnp.ops.rows.LARGE", 0)
    again = gradients()
    close = {"float64": 1e-13, "float32": 1e-5, "autocast": 0.02}[precision]
    assert (again - kept).norm() <= close * kept.norm()


def test_recomputing_keeps_less(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = globe_model(Swin(layers=2, window=(4, 4))), globe_task()

    def kept() -> int:
        sizes: dict[int, int] = {}

        def pack(t: torch.Tensor) -> torch.Tensor:
            sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = model.loss(task)
        total = sum(sizes.values())
        loss.backward()
        return total

    before = kept()
    monkeypatch.setattr("gridtnp.ops.rows.LARGE", 0)
    assert kept() < 0.8 * before


@pytest.mark.parametrize("fusion", ["single", "multi"])
def test_a_variable_of_a_source_can_be_a_source(fusion: str) -> None:
    """Sources named `source.variable`, as in a `Dataset`, work in models with a module for each."""
    names = {"stations.tmax": 1, "stations.tmin": 1}
    base = preset("gp/swin-tnp-pt-32x32")
    tokens = base.tokens.model_copy(update={"shared_with": "stations.tmax"})
    a = base.architecture.model_copy(update={"fusion": fusion})
    swin = base.model_copy(
        update={"sources": names, "tokens": tokens, "architecture": a, "dim": 16}
    )
    x, y = torch.rand(1, 9, 2), torch.rand(1, 9, 1)
    task = Task({name: PointSet(x, y) for name in names}, PointSet(x, y))
    cnp = preset("gp/cnp").model_copy(update={"sources": names, "tokens": tokens, "dim": 16})
    for config in (swin, cnp):
        model = build_model(ModelConfig.model_validate(dict(config)))
        model.loss(task).backward()
        again = build_model(config)
        again.load_state_dict(model.state_dict())
        torch.testing.assert_close(again(task).mean, model(task).mean)
