"""Designs: grids that cover the data, reasons for every choice, and options that override them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import weather
import xarray as xr
from exploring import examples
from fitting_cases import dataset, parts
from hypothesis import given, settings
from hypothesis import strategies as st

from gridtnp.config import Harmonics, Raw, Swin
from gridtnp.data.dataset import Dataset
from gridtnp.design.grids import Extent, make_grid
from gridtnp.design.models import SIZES, ModelOptions, design
from gridtnp.estimator import GriddedTNP
from gridtnp.grid import Axis, Grid
from gridtnp.network.build import build_model
from gridtnp.network.presets import preset
from gridtnp.recipes import Recipe, recipe
from gridtnp.task import PointSet, Task
from gridtnp.tasks.selection import Fraction
from gridtnp.training.estimates import Estimate


@settings(max_examples=examples(60))
@given(
    south=st.floats(-80, 60),
    height=st.floats(0.01, 20),
    west=st.floats(-180, 150),
    width=st.floats(0.01, 360),
    cell=st.floats(0.05, 50.0),
    window=st.sampled_from([4, 8]),
)
def test_grids_cover_the_data_with_a_multiple_of_the_window(
    south: float, height: float, west: float, width: float, cell: float, window: int
) -> None:
    extent = Extent(south, south + height, west, west + width)
    grid = make_grid(extent, cell, window=window)
    assert all(size % window == 0 for size in grid.shape)
    rng = np.random.default_rng(0)
    lat, lon = rng.uniform(south, south + height, 200), rng.uniform(west, west + width, 200)
    x = torch.tensor(np.stack([lat, lon], -1), dtype=torch.float64)
    grid.check(x)  # nothing is beyond an edge
    inside = grid.inside(x).abs().max()
    assert inside <= 0.5 + 1e-6
    assert grid.axis("lon").periodic == (width > 300)


def table(lat: np.ndarray, lon: np.ndarray, days: int = 4) -> pd.DataFrame:
    """Values at places on some days."""
    times = pd.date_range("2020-01-01", periods=days, freq="1D")
    rng = np.random.default_rng(0)
    index = pd.MultiIndex.from_product([times, range(len(lat))]).to_frame(index=False)
    who = index[1].to_numpy()
    names = np.array([f"S{i}" for i in range(len(lat))])
    columns = {"time": index[0], "station": names[who], "lat": lat[who], "lon": lon[who]}
    return pd.DataFrame(columns | {"t": rng.normal(size=len(who))})


def hourly() -> pd.DataFrame:
    start, days = pd.Timestamp("2020-01-01"), table(*scattered(60), 72)
    return days.assign(time=start + (days["time"] - start) / 24)


def gridded(step: float, west: float = -110.0, east: float = -100.0, days: int = 4) -> xr.Dataset:
    lat, lon = np.arange(35.0, 43.0 + 1e-6, step), np.arange(west, east + 1e-6, step)
    times = pd.date_range("2020-01-01", periods=days, freq="1D")
    values = np.random.default_rng(1).normal(size=(days, len(lat), len(lon)))
    return xr.Dataset(
        {"t": (("time", "lat", "lon"), values)}, {"time": times, "lat": lat, "lon": lon}
    )


def scattered(number: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.uniform(36, 42, number), rng.uniform(-109, -101, number)


def found(sources: dict[str, Any], **options: Any) -> tuple[Grid, str]:
    """The grid of a design, and the reason for it."""
    static = options.pop("static", None)
    made = design(Dataset(sources, target="s.t", static=static), ModelOptions(**options))
    return made.config.architecture.grid, made.reasons[0][2]


def test_cells_hold_about_one_station_and_are_about_square() -> None:
    lat, lon = scattered()
    grid, reason = found({"s": table(lat, lon)})
    assert 0.2 < 200 / grid.size < 0.8
    cells = grid.nearest(torch.tensor(np.stack([lat, lon], -1)))
    assert 200 / len(cells.unique()) < 1.4
    assert reason.endswith("1.2 locations of a task per occupied cell")
    height, width = grid.axis("lat").step, grid.axis("lon").step * np.cos(np.deg2rad(39))
    assert 0.6 < height / width < 1.6


def test_clusters_get_finer_cells_than_their_mean_density_says() -> None:
    rng = np.random.default_rng(0)
    lat, lon = scattered(20)
    towns = (
        (lat[:, None] + rng.normal(0, 0.2, (20, 5))),
        (lon[:, None] + rng.normal(0, 0.2, (20, 5))),
    )
    clustered, _ = found({"s": table(*(x.ravel() for x in towns))})
    even, _ = found({"s": table(*scattered(100))})
    assert clustered.axis("lat").step < 0.8 * even.axis("lat").step


def test_a_size_limits_the_cells_and_says_so() -> None:
    lat, lon = scattered(3000)
    grid, reason = found({"s": table(lat, lon, 1)})
    assert 700 < grid.size < 1400
    assert "limited by the size's 1,024 cells; one needs cells of 0.0" in reason
    finer, _ = found({"s": table(lat, lon, 1)}, size="small")
    assert finer.size > 3 * grid.size
    given_cell, reason = found({"s": table(lat, lon, 1)}, cell=2.0)
    assert given_cell.axis("lat").step == pytest.approx(2.0, rel=0.6)
    assert reason.endswith("per occupied cell, as given")


def test_cells_are_as_fine_as_a_gridded_source() -> None:
    stations = table(*scattered(30))
    alone, _ = found({"s": stations})
    grid, reason = found({"s": stations, "era": gridded(0.5)})
    assert alone.axis("lat").step > 0.8
    assert grid.axis("lat").step == pytest.approx(0.5 * np.cos(np.deg2rad(39)), rel=0.2)
    assert reason.endswith("per occupied cell, as fine as 'era'")
    _, reason = found({"s": stations, "era": gridded(0.125)})
    assert "limited by the size's 1,024 cells; 'era' has cells of 0.09" in reason
    coarse, _ = found({"s": stations, "era": gridded(4.0)})
    assert coarse.axis("lat").step < 2  # and the stations decide where it is coarse


def test_static_fields_never_widen_the_grid() -> None:
    stations = table(*scattered(50))
    lat, lon = np.linspace(-90, 90, 37), np.linspace(-180, 175, 72)
    relief = xr.DataArray(np.ones((37, 72)), {"lat": lat, "lon": lon}, ("lat", "lon"))
    alone, _ = found({"s": stations})
    with_two, _ = found({"s": stations}, static={"relief": relief, "land": relief + 1})
    assert with_two == alone


def test_a_global_field_does_not_make_a_region_global() -> None:
    stations = table(*scattered(50))
    grid, _ = found({"s": stations, "era": gridded(1.0, -180.0, 179.0)})
    assert not any(grid.periodic)
    assert -118 < grid.axis("lon").low < -109
    assert -101 < grid.axis("lon").high < -92


def change_when_raised(model: GriddedTNP) -> torch.Tensor:
    """How much predictions change if all observations rise by three standard deviations."""
    data, half = Dataset({"s": hourly()}, target="s.t"), {"s": Fraction(0.5, spare=True)}
    task = model.spec.sampler(data, model.normaliser, half, batch=2).draw(0)
    seen = task.context["s"]
    assert seen.y is not None
    raised = PointSet(seen.x, seen.y + 3.0, seen.mask, seen.features)
    with torch.no_grad():
        before, after = (model.network(t).mean for t in (task, Task({"s": raised}, task.target)))
    change = (after - before).abs()[..., 0]
    return change.flatten() if task.target.mask is None else change[task.target.mask]


@pytest.mark.parametrize(
    "times",
    [
        {},
        {"context_window": "(-6h, 0h]"},
        {"lead": "3h", "context_window": "(-3h, 0h]"},
        {"lead": "24h", "context_window": "(-12h, 0h]"},
    ],
    ids=["nowcast", "window", "forecast", "day ahead"],
)
def test_raised_observations_change_every_prediction(times: dict[str, str]) -> None:
    """Of an untrained network: otherwise nothing could be learned from them."""
    data = Dataset({"s": hourly()}, target="s.t")
    model = GriddedTNP.for_data(data, prior="none", quiet=True, **times)
    assert (change_when_raised(model) > 0).all()
    if "time" in model.config.architecture.grid.names:
        grid, window = model.config.architecture.grid, model.config.architecture.processor.window
        assert window[0] == grid.axis("time").size


def test_windows_that_hide_the_observations_are_refused() -> None:
    data = Dataset({"s": hourly()}, target="s.t")
    times = {"lead": "3h", "context_window": "(-3h, 0h]"}
    lat, lon = Axis.cells("lat", 35, 43, 8), Axis.cells("lon", -110, -100, 8)
    grid = Grid((Axis.span("time", -3, 3, 7), lat, lon), "sphere")
    given_parts = {"grid": grid, "neighbours": (1, 3, 3), "quiet": True, "prior": "none"}
    message = r"No observation reaches a target: with attention windows of \(1, 4, 4\) .* \+3 h; "
    with pytest.raises(ValueError, match=message + "use a window of 7 along time"):
        GriddedTNP.for_data(data, **given_parts, **times, window=(1, 4, 4))
    model = GriddedTNP.for_data(data, **given_parts, **times, window=(7, 4, 4))
    assert (change_when_raised(model) > 0).all()
    seeing = model.config
    narrow = {"processor": Swin(layers=2, window=(1, 4, 4))}
    blind = seeing.model_copy(
        update={"architecture": seeing.architecture.model_copy(update=narrow)}
    )
    with pytest.raises(ValueError, match=message):
        GriddedTNP.for_data(data, quiet=True, config=blind, **times)
    refused = GriddedTNP(blind, model.spec, model.normaliser)
    assert (change_when_raised(refused) == 0).all()  # and rightly so


def test_windows_widen_where_targets_would_see_too_little() -> None:
    data = Dataset({"s": table(*scattered(30))}, target="s.t")
    usual, fine = (GriddedTNP.for_data(data, quiet=True, cell=cell) for cell in (None, 0.2))
    windows = [m.config.architecture.processor.window for m in (usual, fine)]
    assert windows == [(4, 4), (8, 8)]


def test_choices_come_with_reasons_and_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    train, _, _ = parts()
    model = GriddedTNP.for_data(train)
    printed = capsys.readouterr().out
    names = ("grid", "window", "positions", "fusion", "width", "features", "normalisation")
    for name in (*names, "likelihood", "device", "recipe"):
        assert f"\n  {name} " in printed
    assert "8 lat × 8 lon, cells of 1.08° × 1.25°: covers 48.19 to 54.65 N, " in printed
    assert "E; 1.2 locations of a task per occupied cell\n" in printed
    assert "4 × 4 cells: with 2 layers a target sees everything within lat " in printed
    assert "quick: 1,000 steps of 8 tasks, muon" in printed
    parameters = sum(p.numel() for p in model.network.parameters())
    assert f"{parameters:,} parameters, about" in printed
    assert "minute" in printed
    assert Raw(of=("day_of_year_sin", "day_of_year_cos")) in model.config.tokens.embedding


def test_precision_is_chosen_by_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    train, _, _ = parts()
    assert design(train, ModelOptions()).recipe.precision == "float32"
    monkeypatch.setattr("gridtnp.design.models.device_here", lambda: torch.device("cuda"))
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
    assert capsys.readouterr().out.startswith("recipe: 1e-09 minutes, about 1 steps of 2 tasks")


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
    assert axis.size == 4
    assert model.config.architecture.processor.window[0] == 4
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
