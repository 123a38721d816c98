"""Configurations refuse, in a sentence, what cannot be built."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from gridtnp import Axis, Grid, ModelConfig, build_model
from gridtnp.config import (
    ANPConfig,
    Cell,
    CNPConfig,
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
    Values,
    ViT,
)

GRID = Grid((Axis.span("x1", 0.0, 1.0, 8), Axis.circle("x2", 0.0, 1.0, 8)))


def config(**changes: Any) -> ModelConfig:
    waves = Fourier(of=("x1", "x2"), per_column=4, shortest=0.1, longest=1.0)
    gridded = {"grid": GRID, "grid_encoder": PseudoToken(), "decoder": Neighbour(neighbours=9)}
    gridded["processor"] = Swin(layers=1, window=(4, 4))
    gridded |= changes.pop("gridded", {})
    common: dict[str, Any] = {
        "coordinates": ("x1", "x2"),
        "sources": {"obs": 1},
        "tokens": Embedded(embedding=(waves,)),
        "architecture": GriddedConfig(**gridded),
        "dim": 8,
        "heads": 2,
    }
    return ModelConfig(**(common | changes))


def test_unknown_and_negative_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        config(widht=3)
    with pytest.raises(ValidationError, match="greater than 0"):
        config(dim=-8)
    with pytest.raises(ValidationError, match="greater than 0"):
        config(sources={"obs": 0})
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        config(min_noise=-0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": {"my obs": 1}}, "source name must be a plain word"),
        ({"sources": {"keys": 1}}, "free to use"),
        (
            {"tokens": Embedded(embedding=(Cell(of=("x3",)),))},
            r"one of \['x1', 'x2'\], got 'x3'; did you mean 'x",
        ),
        (
            {"tokens": Embedded(embedding=(Cell(of=("x1",)),), shared_with="ops")},
            "did you mean 'obs'",
        ),
        ({"coordinates": ("x2", "x1")}, "must be the grid's axes in their order"),
        ({"tokens": Values()}, "Value tokens need a kernel grid encoder"),
        ({"tokens": Values(), "architecture": CNPConfig()}, "models without a grid need embedded"),
        (
            {"tokens": Embedded(embedding=(Cell(of=("x1",)),)), "architecture": ANPConfig()},
            "Relative inputs need a grid",
        ),
        (
            {"gridded": {"decoder": Kernel(length_scale=0.1)}},
            "kernel decoder does not read target tokens",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"gridded": {"processor": Swin(window=(3, 4))}},
            r"side of 3 does not divide axis 'x1' of 8 grid points; choose one of \[1, 2, 4, 8\]",
        ),
        ({"gridded": {"processor": Swin(window=(4,))}}, "window sides must be one number per axis"),
        (
            {"gridded": {"processor": Swin(window=(4, 4), shift=(4, 0))}},
            "shift must be smaller than its window",
        ),
        ({"gridded": {"processor": ViT(patch=(3, 1))}}, "Patches of 3 must divide axis 'x1'"),
        (
            {"gridded": {"processor": UNet(depth=4)}},
            "Patches of 2 must divide axis 'x1' of 1 grid points",
        ),
        (
            {"gridded": {"processor": HierarchicalSwin(window=(4, 4), merge=(2, 2))}},
            "side of 4 does not divide axis 'x1' of 2",
        ),
        (
            {"gridded": {"grid_encoder": PseudoToken(shared=("x9",))}},
            "shared along the grid's axes",
        ),
        ({"gridded": {"decoder": Neighbour(neighbours=(3, 3, 3))}}, "one number per axis"),
        (
            {"gridded": {"grid_encoder": Kernel(length_scale=(1.0, 2.0, 3.0))}},
            "one for each of",
        ),
        ({"heads": 3}, "heads must divide the token width"),
        (
            {
                "tokens": Embedded(
                    embedding=(Fourier(of=("x1",), per_column=3, shortest=0.1, longest=1.0),)
                )
            },
            "in pairs",
        ),
    ],
)
def test_what_cannot_be_built_says_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(config(**changes))


def test_even_kernels_and_four_dimensional_convolutions_are_refused() -> None:
    with pytest.raises(ValueError, match="odd size, got 4"):
        build_model(config(gridded={"processor": UNet(depth=1, kernel=4)}))
    axes = tuple(Axis.span(f"x{i}", 0.0, 1.0, 4) for i in range(1, 5))
    four = {"grid": Grid(axes), "processor": UNet(depth=1), "decoder": Full()}
    waves = Fourier(of=("x1",), per_column=4, shortest=0.1, longest=1.0)
    with pytest.raises(ValueError, match="one to three axes, got 4; use Swin or ViT"):
        build_model(
            config(
                coordinates=("x1", "x2", "x3", "x4"),
                tokens=Embedded(embedding=(waves,)),
                gridded=four,
            )
        )


def test_the_same_seed_builds_the_same_model_and_layers_start_differently() -> None:
    def weights() -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        return build_model(
            config(gridded={"processor": Swin(layers=2, window=(4, 4))})
        ).state_dict()

    first, second = weights(), weights()
    assert all(torch.equal(first[name], second[name]) for name in first)
    name = "processor.layers.{}.blocks.0.project.weight"
    assert not torch.equal(first[name.format(0)], first[name.format(1)])
