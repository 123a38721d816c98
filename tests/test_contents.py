"""What a model says about itself when it is printed."""

from dataclasses import replace

import numpy as np
import small
import torch

import gridtnp as gt
from gridtnp.data.dataset import Dataset
from gridtnp.tasks.specification import TaskSpec


def test_a_gridded_model() -> None:
    assert str(small.model()).splitlines() == [
        "GriddedTNP to predict stations.t2m (K)",
        "  context   stations (t2m), era5 (t2m)",
        "  features  elevation, hour",
        "  grid      8 lat (47.56 to 55.44) × 8 lon (-4.375 to 4.375)",
        "  network   swin, 11,746 parameters, width 16",
        "  recipe    20,000 steps of 16 tasks, muon",
    ]


def test_a_gridless_model_of_several_variables() -> None:
    rows = small.table().assign(rain=1.0, wind=2.0)
    rows.loc[::3, "rain"] = np.nan
    data = Dataset({"stations": rows}, target=["stations.t2m", "stations.rain"])
    lines = str(small.gridless(data)).splitlines()
    assert lines[:3] == [
        "GriddedTNP to predict stations.t2m (K), stations.rain (no units)",
        "  context  stations.rain, stations.t2m, stations.wind",
        "  grid     none",
    ]
    assert lines[3].startswith("  network  tnp, ")
    assert lines[3].endswith(" parameters, width 16")


def test_a_forecast_around_the_globe() -> None:
    model, data = small.model(), small.dataset()
    windows = {"era5": "[-6h, 6h]"}
    spec = TaskSpec.of(
        data, window="(-6h, 0h]", windows=windows, lead="12h", target_window="(-3h, 3h]"
    )
    axes = (gt.Axis.cells("lat", -90, 90, 8), gt.Axis.circle("lon", -180, 360, 16))
    model.contents = replace(model.contents, spec=spec, recipe=gt.Recipe(steps=100, batch=2))
    model.network.grid = gt.Grid(axes, "sphere")
    lines = str(model).splitlines()
    assert "  windows   stations (-6h, 0h], era5 [-6h, 6h]" in lines
    assert "  lead      12h" in lines
    assert "  targets   within (-3h, 3h]" in lines
    assert "  grid      8 lat (-78.75 to 78.75) × 16 lon (-180 to 157.5, periodic)" in lines
    assert "  recipe    100 steps of 2 tasks, adamw" in lines
    same = TaskSpec.of(data, window="(-6h, 0h]")
    model.contents = replace(model.contents, spec=same)
    assert "  windows   (-6h, 0h]" in str(model).splitlines()


def test_inference_restores_the_mode() -> None:
    contents = small.model().contents
    contents.network.train()
    with contents.inference():
        assert not contents.network.training
        assert not torch.is_grad_enabled()
    assert contents.network.training
    assert contents.device == torch.device("cpu")
    assert contents.assembler(small.dataset()).grid is contents.network.grid
