"""Configurations refuse what cannot be built."""

from typing import Any

import pytest
import torch

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
    with pytest.raises(ValueError, match=r"^Unknown setting 'widht' of ModelConfig; leave it out"):
        config(widht=3)
    with pytest.raises(ValueError, match=r"^dim=-8: must be greater than 0"):
        config(dim=-8)
    with pytest.raises(ValueError, match=r"^sources\.obs=0: must be greater than 0"):
        config(sources={"obs": 0})
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        config(min_noise=-0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": {"my/obs": 1}}, "Source name 'my/obs' is reserved, or not 'source' or"),
        ({"sources": {"obs.": 1}}, "Source name 'obs.' is reserved, or not 'source' or"),
        ({"sources": {"keys": 1}}, "Source name 'keys' is reserved"),
        (
            {"tokens": Embedded(embedding=(Cell(of=("x3",)),))},
            "Unknown coordinate or feature 'x3' in an embedding; did you mean 'x",
        ),
        (
            {"tokens": Embedded(embedding=(Cell(of=("x1",)),), shared_with="ops")},
            "Unknown source 'ops' in shared_with; did you mean 'obs'",
        ),
        ({"coordinates": ("x2", "x1")}, r"\('x2', 'x1'\) are not the grid's axes \('x1', 'x2'\)"),
        ({"tokens": Values()}, "Value tokens need a kernel grid encoder"),
        ({"tokens": Values(), "architecture": CNPConfig()}, "Value tokens need a grid"),
        (
            {"tokens": Embedded(embedding=(Cell(of=("x1",)),)), "architecture": ANPConfig()},
            "A Cell embedding needs a grid",
        ),
        (
            {"gridded": {"decoder": Kernel(length_scale=0.1)}},
            "kernel decoder does not use target tokens",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"gridded": {"processor": Swin(window=(3, 4))}},
            r"side 3 does not divide axis 'x1' of 8 grid points; choose one of \[1, 2, 4, 8\]",
        ),
        (
            {"gridded": {"processor": Swin(window=(4,))}},
            r"window sides \(4,\) are not one number per",
        ),
        (
            {"gridded": {"processor": Swin(window=(4, 4), shift=(4, 0))}},
            "Shift 4 along axis 'x1' is outside 0 to 3",
        ),
        ({"gridded": {"processor": ViT(patch=(3, 1))}}, "Patch size 3 does not divide axis 'x1'"),
        (
            {"gridded": {"processor": UNet(depth=4)}},
            "Patch size 2 does not divide axis 'x1' of 1 grid points",
        ),
        (
            {"gridded": {"processor": HierarchicalSwin(window=(4, 4), merge=(2, 2))}},
            "Window side 4 does not divide axis 'x1' of 2",
        ),
        (
            {"gridded": {"grid_encoder": PseudoToken(shared=("x9",))}},
            r"cannot be shared along \['x9'\]; the grid's axes are \('x1', 'x2'\)",
        ),
        ({"gridded": {"decoder": Neighbour(neighbours=(3, 3, 3))}}, "not one number per axis"),
        (
            {"gridded": {"grid_encoder": Kernel(length_scale=(1.0, 2.0, 3.0))}},
            r"\[1.0, 2.0, 3.0\] do not fit the distance components \('x1', 'x2'\)",
        ),
        ({"heads": 3}, "heads=3 does not divide the token width 8"),
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
    with pytest.raises(ValueError, match="kernel=4: must be a positive odd number"):
        build_model(config(gridded={"processor": UNet(depth=1, kernel=4)}))
    axes = tuple(Axis.span(f"x{i}", 0.0, 1.0, 4) for i in range(1, 5))
    four = {"grid": Grid(axes), "processor": UNet(depth=1), "decoder": Full()}
    waves = Fourier(of=("x1",), per_column=4, shortest=0.1, longest=1.0)
    with pytest.raises(ValueError, match="has 4 axes, but convolutions take one to three; use"):
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
