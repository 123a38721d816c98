"""Receptive fields: what a network can see is what a perturbation shows that it sees."""

import pytest
import torch

from gridtnp import Axis, Grid, ModelConfig, PointSet, Task, build_model
from gridtnp.config import (
    CNN,
    Embedded,
    Fourier,
    Full,
    GriddedConfig,
    HierarchicalSwin,
    Kernel,
    Neighbour,
    PseudoToken,
    Swin,
    UNet,
    ViT,
)
from gridtnp.design.receptive_field import reach_in_cells, reaches

SPAN, CIRCLE = Axis.cells("x", 0.0, 24.0, 24), Axis.circle("x", 0.0, 24.0, 24)
PARTS = {
    "swin": (Swin(layers=1, window=(4,)), Neighbour(neighbours=3)),
    "swin, unshifted": (Swin(layers=2, window=(4,), shift=(0,)), Neighbour(neighbours=1)),
    "swin, even": (Swin(layers=2, window=(4,), shift=(1,)), Neighbour(neighbours=2)),
    "hierarchy": (
        HierarchicalSwin(stages=(1, 1), window=(3,), merge=(2,)),
        Neighbour(neighbours=3),
    ),
    "convolutions": (CNN(layers=2, kernel=3), Neighbour(neighbours=3)),
    "vit": (ViT(layers=1, patch=(2,)), Neighbour(neighbours=1)),
    "full": (Swin(layers=1, window=(4,)), Full()),
}


def architecture(axis: Axis, name: str, encoder: int = 1) -> GriddedConfig:
    processor, decoder = PARTS[name]
    return GriddedConfig(
        grid=Grid((axis,)),
        grid_encoder=PseudoToken(neighbours=encoder),
        processor=processor,
        decoder=decoder,
    )


@pytest.mark.parametrize("axis", [SPAN, CIRCLE], ids=["span", "circle"])
@pytest.mark.parametrize(("name", "encoder"), [*((name, 1) for name in PARTS), ("swin", 3)])
def test_it_is_what_gradients_show(axis: Axis, name: str, encoder: int) -> None:
    a = architecture(axis, name, encoder)
    embedding = Fourier(of=("x",), per_column=4, shortest=1.0, longest=24.0)
    torch.manual_seed(0)
    network = build_model(
        ModelConfig(
            coordinates=("x",),
            sources={"s": 1},
            tokens=Embedded(embedding=(embedding,)),
            architecture=a,
            dim=8,
            heads=2,
        )
    )
    observed = torch.arange(24.0) + 0.3
    targets = torch.linspace(0.1, 23.9, 17)
    y = torch.randn(1, 24, 1, requires_grad=True)
    task = Task({"s": PointSet(observed[None, :, None], y)}, PointSet(targets[None, :, None]))
    mean = network(task).mean[0, :, 0]
    seen = [torch.autograd.grad(m, y, retain_graph=True)[0].flatten() != 0 for m in mean]
    assert torch.equal(torch.stack(seen), reaches(a, "x", observed, targets))


def test_a_unet_sees_at_least_what_is_said() -> None:
    a = GriddedConfig(
        grid=Grid((SPAN,)),
        grid_encoder=Kernel(length_scale=1.0),
        processor=UNet(depth=2, kernel=3),
        decoder=Kernel(length_scale=1.0, neighbours=1),
    )
    found = reaches(a, "x", torch.tensor([12.5]), torch.arange(24.0) + 0.5)[:, 0]
    assert found[8:16].all()
    assert not found[0]


@pytest.mark.parametrize(
    ("layers", "window", "cells"), [(1, 4, 2), (2, 4, 6), (1, 8, 4), (2, 8, 12), (1, 24, 23)]
)
def test_the_reach_is_that_of_the_worst_cell(layers: int, window: int, cells: int) -> None:
    a = architecture(SPAN, "swin").model_copy(
        update={
            "processor": Swin(layers=layers, window=(window,)),
            "decoder": Neighbour(neighbours=1),
        }
    )
    assert reach_in_cells(a, "x") == cells
    wider = a.model_copy(update={"decoder": Neighbour(neighbours=3)})
    assert reach_in_cells(wider, "x") == min(23, cells + 1)
