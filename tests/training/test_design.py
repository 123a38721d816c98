"""Designs: grids that cover the data, reasons for every choice, and options that override them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import weather
from exploring import examples
from fitting_cases import dataset, parts
from hypothesis import given, settings
from hypothesis import strategies as st

from gridtnp.config import Harmonics, Raw
from gridtnp.data.dataset import Dataset
from gridtnp.estimator import GriddedTNP
from gridtnp.grid import Axis, Grid
from gridtnp.network.build import build_model
from gridtnp.network.presets import preset
from gridtnp.recipes import Recipe, recipe
from gridtnp.training.design import SIZES, ModelOptions, design
from gridtnp.training.estimates import Estimate
from gridtnp.training.grid_design import Extent, make_grid


@settings(max_examples=examples(60))
@given(
    south=st.floats(-80, 60),
    height=st.floats(0.01, 20),
    west=st.floats(-180, 150),
    width=st.floats(0.01, 360),
    points=st.integers(1, 100_000),
    window=st.sampled_from([4, 8]),
)
def test_grids_cover_the_data_with_a_multiple_of_the_window(
    south: float, height: float, west: float, width: float, points: int, window: int
) -> None:
    extent = Extent(south, south + height, west, west + width)
    grid = make_grid(extent, points, max_cells=1024, window=window)
    assert all(size % window == 0 for size in grid.shape)
    rng = np.random.default_rng(0)
    lat, lon = rng.uniform(south, south + height, 200), rng.uniform(west, west + width, 200)
    x = torch.tensor(np.stack([lat, lon], -1), dtype=torch.float64)
    grid.check(x)  # nothing is beyond an edge
    inside = grid.inside(x).abs().max()
    assert inside <= 0.5 + 1e-6
    assert grid.axis("lon").periodic == (width > 300)


def test_cells_hold_a_few_points_and_are_about_square() -> None:
    grid = make_grid(Extent(37, 41, -109, -102), 400, max_cells=10_000, window=4)
    assert 1 < 400 / grid.size < 5
    lat, lon = grid.axis("lat").step, grid.axis("lon").step * np.cos(np.deg2rad(39))
    assert 0.5 < lat / lon < 2


def test_choices_come_with_reasons_and_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    train, _, _ = parts()
    model = GriddedTNP.for_data(train)
    printed = capsys.readouterr().out
    names = ("grid", "window", "positions", "fusion", "width", "features", "normalisation")
    for name in (*names, "likelihood", "device", "recipe"):
        assert f"\n  {name} " in printed
    assert "4 lat × 4 lon, cells of 1.68° × 1.96°: covers 48.19 to 54.65 N, " in printed
    assert "E; about 14 observations per task, " in printed
    assert "quick: 600 steps of 4 tasks, muon" in printed
    parameters = sum(p.numel() for p in model.network.parameters())
    assert f"{parameters:,} parameters, about" in printed
    assert "minute" in printed
    assert Raw(of=("day_of_year_sin", "day_of_year_cos")) in model.config.tokens.embedding


def test_precision_is_chosen_by_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    train, _, _ = parts()
    assert design(train, ModelOptions()).recipe.precision == "float32"
    monkeypatch.setattr("gridtnp.training.design.device_here", lambda: torch.device("cuda"))
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda **_: True)
    found = design(train, ModelOptions())
    assert found.recipe == replace(recipe("quick"), precision="bfloat16")
    assert ("device", "cuda", "matrix products in bfloat16") in found.reasons
    asked_for = design(train, ModelOptions(recipe="quick"))
    assert asked_for.recipe == recipe("quick")


def test_the_recipe_that_is_printed_is_the_one_that_is_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    train, _, _ = parts()
    own = Recipe(2, 2)
    model = GriddedTNP.for_data(train, recipe=own, dim=8, heads=2, layers=1)
    assert "as given: 2 steps of 2 tasks, adamw" in capsys.readouterr().out
    model.fit(train)
    assert "recipe" not in capsys.readouterr().out  # it was printed before
    model.fit(train, recipe=Recipe(3, 2))
    assert capsys.readouterr().out.startswith("recipe: 3 steps of 2 tasks, adamw\n")
    model.fit(train, minutes=1e-9)
    assert capsys.readouterr().out.startswith("recipe: 1 steps of 2 tasks, adamw\n")


def test_the_same_seed_gives_the_same_weights_whatever_was_drawn_before() -> None:
    train, _, _ = parts()
    first = GriddedTNP.for_data(train, quiet=True)
    torch.rand(7)
    second = GriddedTNP.for_data(train, quiet=True)
    other = GriddedTNP.for_data(train, quiet=True, seed=1)
    pairs = zip(*(m.network.parameters() for m in (first, second, other)), strict=True)
    same = [(torch.equal(a, b), torch.equal(a, c)) for a, b, c in pairs]
    assert all(equal for equal, _ in same)
    assert not all(equal for _, equal in same)


def test_every_choice_can_be_made_by_name() -> None:
    train, _, _ = parts()
    grid = Grid((Axis.cells("lat", 47, 56, 8), Axis.cells("lon", -5, 5, 8)), "sphere")
    model = GriddedTNP.for_data(
        train,
        *("small",),
        grid=grid,
        window=(2, 4),
        dim=8,
        heads=2,
        layers=1,
        neighbours=4,
        positions="absolute",
        fusion="multi",
        min_noise=0.1,
        recipe="gp",
        quiet=True,
    )
    a = model.config.architecture
    assert (a.grid, a.processor.window, a.processor.layers) == (grid, (2, 4), 1)
    assert (a.decoder.neighbours, a.positions, a.fusion) == (4, "absolute", "multi")
    assert (model.config.dim, model.config.heads, model.config.min_noise) == (8, 2, 0.1)
    assert isinstance(model.recipe, Recipe)
    assert model.recipe.steps == 500_000
    assert Harmonics() in model.config.tokens.embedding
    fine = GriddedTNP.for_data(train, cell=0.5, quiet=True).config.architecture.grid
    assert fine.axis("lat").step == pytest.approx(0.5, rel=0.3)


@pytest.mark.parametrize("size", list(SIZES))
def test_all_sizes_make_a_model_that_learns_from_its_batch(size: str) -> None:
    train, _, _ = parts()
    found = design(train, ModelOptions(size=size))
    network = build_model(found.config)
    network.loss(found.task).backward()
    assert all(p.grad is not None for p in network.parameters())
    assert found.config.dim == SIZES[size].dim


def test_windows_through_time_get_an_axis_of_time() -> None:
    model = GriddedTNP.for_data(dataset(), context_window="(-3D, 0h]", lead="1D", quiet=True)
    axis = model.config.architecture.grid.axis("time")
    assert (axis.low, axis.high) == (pytest.approx(-72, abs=0.01), 24.0)
    assert axis.size == 5
    assert model.spec.coordinates == ("time", "lat", "lon")
    task = model.spec.sampler(dataset(), model.normaliser, batch=2).draw(0)
    model.network.loss(task).backward()


def test_data_around_the_globe_get_a_circle() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "station": [f"S{i}" for i in range(80)],
            "time": pd.Timestamp("2020-01-01"),
            "lat": rng.uniform(-80, 80, 80),
            "lon": rng.uniform(-180, 180, 80),
            "t": rng.normal(size=80),
        }
    )
    model = GriddedTNP.for_data(Dataset({"world": table}, target="world.t"), quiet=True)
    grid = model.config.architecture.grid
    assert grid.periodic == (False, True)
    assert grid.axis("lon").period == pytest.approx(360)


def test_several_sources_have_a_grid_each() -> None:
    data = Dataset(
        {"gauges": weather.stations(), "era": weather.field()[["u10"]]}, target="gauges.t2m"
    )
    assert GriddedTNP.for_data(data, quiet=True).config.architecture.fusion == "multi"


def test_a_configuration_of_ones_own_must_fit_the_data() -> None:
    train, _, _ = parts()
    own = GriddedTNP.for_data(train, dim=8, heads=2, quiet=True).config
    assert GriddedTNP.for_data(train, config=own, quiet=True).config == own
    with pytest.raises(
        ValueError, match=r"config= has sources .*, but the data have \{'gauges': 1\}"
    ):
        GriddedTNP.for_data(train, config=preset("stations/swin-tnp-pt-64x128"), quiet=True)


def test_sources_that_do_not_overlap_are_reported() -> None:
    gauges = weather.stations()
    far = weather.field()[["u10"]].assign_coords(lat=weather.LATS - 80)
    with pytest.raises(ValueError, match=r"'era' \(.*\) does not overlap with 'gauges'"):
        GriddedTNP.for_data(
            Dataset({"gauges": gauges, "era": far}, target="gauges.t2m"), quiet=True
        )
    late = weather.field()[["u10"]].assign_coords(time=weather.TIMES + pd.Timedelta("900D"))
    with pytest.raises(ValueError, match=r"'era' \(2021.*has no observation in the .*widen"):
        GriddedTNP.for_data(
            Dataset({"gauges": gauges, "era": late}, target="gauges.t2m"), quiet=True
        )


def test_a_target_that_cannot_be_learned_is_reported() -> None:
    table = weather.stations()
    table["t2m"] = 3.0
    with pytest.raises(
        ValueError, match=r"Target 'gauges\.t2m' is 3 everywhere in the training part"
    ):
        GriddedTNP.for_data(Dataset({"gauges": table}, target="gauges.t2m"), quiet=True)
    table = weather.stations()
    table["rain"] = 1.0
    table.loc[table["time"] < "2019-03-06", "t2m"] = np.nan
    data = Dataset({"gauges": table}, target="gauges.t2m")
    train, _, _ = data.split(time=["2019-03-04", "2019-03-06"])
    with pytest.raises(ValueError, match=r"has no values in the training part to normalise it by"):
        GriddedTNP.for_data(train, quiet=True)


def test_unknown_names_are_reported() -> None:
    with pytest.raises(ValueError, match=r"Unknown size 'tinny'; did you mean 'tiny'"):
        ModelOptions(size="tinny")
    with pytest.raises(ValueError, match=r"Unknown recipe 'quik'; did you mean 'quick'"):
        ModelOptions(recipe="quik")
    with pytest.raises(ValueError, match=r"layer"):
        ModelOptions.model_validate({"layer": 3})


def test_estimates_read_well() -> None:
    assert "about 12 MB of memory and about 30 minutes for 1,800 steps" in str(
        Estimate(1000, 12 * 2**20, 1.0, 1800)
    )
    assert "2.0 GB of memory and about 5 hours" in str(Estimate(1000, 2 * 2**30, 10.0, 1800))
    assert "and less than a minute" in str(Estimate(1000, 2**20, 0.001, 1800))
