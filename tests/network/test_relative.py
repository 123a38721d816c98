"""Relative positions: nothing depends on where on the grid it happens, and weights fit any grid."""

import pytest
import torch

from gridtnp import Axis, Grid, ModelConfig, PointSet, Task, build_model, preset
from gridtnp.config import (
    Cell,
    Embedded,
    Fourier,
    Full,
    GriddedConfig,
    Neighbour,
    PseudoToken,
    Raw,
    Swin,
    ViT,
)
from gridtnp.network.grid_decoders import AttentionGridDecoder
from gridtnp.network.grid_processors import WindowBias


def config(cells: int = 8, layers: int = 2, periodic: bool = False) -> ModelConfig:
    names = ("x1", "x2")
    axes = [
        Axis.circle(n, -1.0, 2.0, cells)
        if periodic
        else Axis.cells(n, -cells / 8, cells / 8, cells)
        for n in names
    ]
    return ModelConfig(
        coordinates=names,
        sources={"observations": 1},
        tokens=Embedded(embedding=(Cell(of=names),)),
        architecture=GriddedConfig(
            grid=Grid(tuple(axes)),
            grid_encoder=PseudoToken(),
            processor=Swin(layers=layers, window=(4, 4)),
            decoder=Neighbour(neighbours=9),
            positions="relative",
        ),
        dim=16,
        heads=2,
    )


def built(config: ModelConfig) -> torch.nn.Module:
    """With all parameters away from zero, so that biases matter."""
    torch.manual_seed(0)
    model = build_model(config).double().eval()
    for p in model.parameters():
        p.data += 0.2 * torch.randn_like(p)
    return model


def task(n: int = 40) -> Task:
    g = torch.Generator().manual_seed(1)
    x = 2 * torch.rand(1, n, 2, generator=g, dtype=torch.float64) - 1
    y = torch.randn(1, n, 1, generator=g, dtype=torch.float64)
    return Task({"observations": PointSet(x[:, 10:], y[:, 10:])}, PointSet(x[:, :10]))


@torch.no_grad()
def test_the_same_everywhere_on_a_torus() -> None:
    """Shifted by one window, predictions stay the same: there are no absolute positions."""
    model, before = built(config(periodic=True)), task()

    def shifted(points: PointSet) -> PointSet:
        return PointSet((points.x + 1 + torch.tensor([1.0, 0.0])) % 2 - 1, points.y)

    after = Task({"observations": shifted(before.context["observations"])}, shifted(before.target))
    torch.testing.assert_close(model(after).mean, model(before).mean)
    # Those of an absolute model change.
    absolute = config(periodic=True)
    a = absolute.architecture.model_copy(update={"positions": "absolute"})
    other = built(absolute.model_copy(update={"architecture": a}))
    assert (other(after).mean - other(before).mean).abs().max() > 1e-3


@torch.no_grad()
def test_trained_weights_work_on_a_larger_grid() -> None:
    small, large = config(8), config(16)
    model, there = built(small), build_model(small.on(large.architecture.grid)).double().eval()
    there.load_state_dict(model.state_dict())
    deep = task()
    # In the middle of the larger grid, with one layer and no edge in reach, nothing differs.
    shallow, same = built(config(8, layers=1)), config(8, layers=1).on(large.architecture.grid)
    wide = build_model(same).double().eval()
    wide.load_state_dict(shallow.state_dict())
    inner = Task(deep.context, PointSet(deep.target.x * 0.2))
    assert there(deep).mean.isfinite().all()
    torch.testing.assert_close(wide(inner).mean, shallow(inner).mean)


@torch.no_grad()
def test_neighbours_are_distinguished_by_their_positions() -> None:
    model, before = built(config()), task()
    mean = model(before).mean
    for neighbour_keys in model.decoder.places:
        neighbour_keys.keys.zero_()
    assert (model(before).mean - mean).abs().max() > 1e-3


def test_window_bias_is_one_number_per_offset() -> None:
    bias = WindowBias((2, 3), heads=2)
    bias.table.data = torch.arange(2 * 15, dtype=torch.float32).view(2, 15)
    table = bias()
    places = [(i, j) for i in range(2) for j in range(3)]
    seen: dict[tuple[int, int], float] = {}
    for a, (i, j) in enumerate(places):
        for b, (k, m) in enumerate(places):
            value = table[0, a, b].item()
            assert seen.setdefault((i - k, j - m), value) == value
    assert len(set(seen.values())) == len(seen) == 15


def test_every_parameter_of_a_relative_model_learns() -> None:
    model = built(config())
    full = task()
    target = PointSet(full.target.x, torch.randn(1, 10, 1, dtype=torch.float64))
    model.loss(Task(full.context, target)).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.abs().sum() > 0, name


def test_a_preset_can_be_made_relative() -> None:
    relative = preset("gp/swin-tnp-pt-64x64").relative()
    sizes = [
        sum(p.numel() for p in build_model(c).parameters())
        for c in (preset("gp/swin-tnp-pt-64x64"), relative)
    ]
    assert relative.architecture.positions == "relative"
    assert sizes[1] < sizes[0]
    assert ModelConfig.model_validate_json(relative.model_dump_json()) == relative


def test_bad_input() -> None:
    base = config()

    def changed(**update: object) -> None:
        a = dict(base.architecture) | update
        ModelConfig.model_validate(dict(base) | {"architecture": GriddedConfig(**a)})

    with pytest.raises(ValueError, match="Full attention has no relative positions; use a Swin"):
        changed(processor=ViT())
    with pytest.raises(ValueError, match="Full attention has no relative positions; use a Swin"):
        changed(decoder=Full())
    grids = (base.architecture.grid,)
    with pytest.raises(ValueError, match="no relative positions; use a neighbour decoder"):
        AttentionGridDecoder(grids, dim=8, heads=2, width=None, positions="relative")
    waves = Fourier(of=("x1", "x2"), per_column=4, shortest=0.1, longest=1.0)
    with pytest.raises(ValueError, match=r"fourier embedding of \('x1', 'x2'\) has absolute pos"):
        ModelConfig.model_validate(dict(base) | {"tokens": Embedded(embedding=(waves,))})
    with pytest.raises(ValueError, match="The model has no grid, which relative positions need"):
        preset("gp/cnp").relative()
    with pytest.raises(ValueError, match="The model has no relative positions, which another"):
        preset("gp/swin-tnp-pt-64x64").on(base.architecture.grid)
    other = Grid(tuple(Axis.cells(n, -1.0, 1.0, 16) for n in ("x1", "x2")))
    with pytest.raises(
        ValueError, match=r"\[0.125, 0.125\], but the model needs .* \[0.25, 0.25\]"
    ):
        base.on(other)
    extra = (Cell(of=("x1", "x2")), Raw(of=("height",)))
    fine = dict(base) | {"features": ("height",), "tokens": Embedded(embedding=extra)}
    assert ModelConfig.model_validate(fine).features == ("height",)
