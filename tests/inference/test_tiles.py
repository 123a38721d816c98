"""Tiles: the network on a part of its grid predicts what it predicts on all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
import xarray as xr
from test_parts import read

from gridtnp.config import CNN, GriddedConfig, Kriging, ModelConfig, Swin, UNet, ViT
from gridtnp.data.dataset import Dataset
from gridtnp.data.places import latlon_grid
from gridtnp.estimator import GriddedTNP
from gridtnp.grid import Axis, Grid
from gridtnp.inference.tiles import Cut, network_on, tile
from gridtnp.network.kriging import KrigedNetwork

GRID = latlon_grid(lat=(47.25, 55.75), lon=(-4.75, 4.75), step=0.5)
TIME = small.TIMES[2]
SIZES = {"lat": 5, "lon": 7}


def on(model: GriddedTNP, **changes: Any) -> GriddedTNP:
    """The model with other parts, on a grid of many cells."""
    axes = (Axis.cells("lat", 47.0, 56.0, 48), Axis.cells("lon", -5.0, 5.0, 40))
    a = model.config.architecture
    assert isinstance(a, GriddedConfig)
    prior = changes.pop("prior", None)
    processor = changes.pop("processor", Swin(layers=2, window=(4, 4)))
    made = a.model_copy(update={"grid": Grid(axes, "sphere"), "processor": processor, **changes})
    given = dict(model.config) | {"architecture": made, "prior": prior}
    torch.manual_seed(1)
    return GriddedTNP(ModelConfig.model_validate(given), model.spec, model.normaliser)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return small.dataset()


@pytest.fixture(scope="module")
def model(data: Dataset) -> GriddedTNP:
    return small.model(data)


KRIGING = Kriging(
    of=(("stations", 0),), features=("elevation",), drift=("elevation",), length_scale=3.0
)
CASES: dict[str, Any] = {
    "swin": lambda m: on(m),
    "swin, other windows": lambda m: on(m, processor=Swin(layers=1, window=(6, 5), shift=(1, 2))),
    "cnn": lambda m: on(m, processor=CNN(layers=2, kernel=3)),
    "kriging": lambda m: on(m, prior=KRIGING),
    "pretrained": lambda m: on(m, prior=KRIGING.model_copy(update={"pretrained": True})),
    "smooth": lambda m: GriddedTNP((s := on(m)).config.smooth(), s.spec, s.normaliser),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=pytest.mark.slow) if c in ("swin, other windows", "kriging") else c
        for c in CASES
    ],
)
def test_tiles_are_the_whole_but_for_rounding(
    model: GriddedTNP, data: Dataset, tmp_path: Path, case: str
) -> None:
    """Inside of the tiles and at their borders; and no tile is the whole grid."""
    made = CASES[case](model)
    if isinstance(made.network, KrigedNetwork):  # whose fresh weights correct nothing
        for p in made.network.network.parameters():
            p.data.normal_(0, 0.3)
        made.network.share.fill_(0.5)  # of the pretrained process, if there is one
    whole = made.predict(data, GRID, times=[TIME])
    to = made.predict(
        data, GRID, times=[TIME], to=tmp_path / "a.zarr", regions=SIZES, progress=False
    )
    found = read(to)
    assert found.t2m_mean.encoding["chunks"] == (1, 5, 7)
    spread = float(whole.t2m_mean.std())
    for name in ("t2m_mean", "t2m_std", "t2m_q05"):
        difference = np.abs(found[name] - whole[name])
        assert float(difference.max()) < 1e-4 * spread, name
    np.testing.assert_array_equal(found.t2m_support, whole.t2m_support)
    x = torch.tensor([[47.25, -4.75], [49.25, -1.75]])
    cells = tile(made.config, x)
    assert cells[0][0] == cells[1][0] == 0
    assert cells[0][1] < 48
    assert cells[1][1] < 40
    part = network_on(made.contents, cells)
    cut = part.network if isinstance(part, KrigedNetwork) else part
    assert isinstance(cut, Cut)
    assert cut.network.grid is not None
    assert cut.network.grid.shape == tuple(last - first for first, last in cells)


def test_a_smaller_halo_would_not_do(
    model: GriddedTNP, data: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So the test above can fail."""
    made = on(model)
    whole = made.predict(data, GRID, times=[TIME])

    def narrow(config: ModelConfig, x: torch.Tensor) -> Any:
        a = config.architecture
        assert isinstance(a, GriddedConfig)
        cells = [axis.nearest(x[:, i]).tolist() for i, axis in enumerate(a.grid.axes)]
        return tuple((low // 4 * 4, (high // 4 + 1) * 4) for low, high in cells)

    monkeypatch.setattr("gridtnp.inference.prediction.tile", narrow)
    to = made.predict(data, GRID, times=[TIME], to=tmp_path / "a.zarr", regions=SIZES)
    assert float(np.abs(read(to).t2m_mean - whole.t2m_mean).max()) > 1e-4 * float(
        whole.t2m_mean.std()
    )


def test_models_without_a_halo_are_refused(
    model: GriddedTNP, data: Dataset, tmp_path: Path
) -> None:
    to = tmp_path / "a.zarr"
    for processor, why in (
        (
            ViT(layers=1),
            "a ViT attends to the whole grid; split along time alone, such as regions=",
        ),
        (UNet(depth=1), "a U-Net pools the grid, and its tiles would not line up; split along"),
    ):
        made = on(model, processor=processor)
        with pytest.raises(ValueError, match=f"^This model cannot predict tiles, because {why}"):
            made.predict(data, GRID, times=[TIME], to=to, regions=SIZES)
    with pytest.raises(ValueError, match="because a tnp attends to all observations; split along"):
        small.gridless(data).predict(data, GRID, times=[TIME], to=to, regions=SIZES)
    assert not list(tmp_path.iterdir())


def test_periodic_axes_and_time_stay_whole(model: GriddedTNP) -> None:
    config = on(model).config
    a = config.architecture
    assert isinstance(a, GriddedConfig)
    axes = (Axis.cells("lat", -90.0, 90.0, 48), Axis.circle("lon", -180.0, 360.0, 40))
    made = a.model_copy(update={"grid": Grid(axes, "sphere")})
    around = config.model_copy(update={"architecture": made})
    assert tile(around, torch.tensor([[-88.0, 0.0], [-80.0, 10.0]]))[1] == (0, 40)


def test_a_tile_outside_of_the_grid_is_missing(
    model: GriddedTNP, data: Dataset, tmp_path: Path
) -> None:
    far = xr.Dataset(coords={"lat": [10.0, 50.0], "lon": [0.0, 1.0]})
    sizes = {"time": 6, "lat": 1}
    given: dict[str, Any] = {"times": small.TIMES, "to": tmp_path / "b.zarr", "regions": sizes}
    with pytest.warns(match=r"^12 of 12 points lie outside of the model's grid .* and are NaN\.$"):
        model.predict(data, far, part=(0, 2), **given)
    model.predict(data, far, part=(1, 2), **given)
    there = np.isfinite(read(tmp_path / "b.zarr").t2m_mean).all(("time", "lon"))
    assert there.values.tolist() == [False, True]
