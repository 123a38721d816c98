"""Observations outside of a model's grid: dropped with one warning, by all alike."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import small
import xarray as xr

import gridtnp as gt
from gridtnp.data.dataset import Dataset
from gridtnp.estimator import GriddedTNP
from gridtnp.sources.quality import DataWarning
from gridtnp.tasks.area import on_grid
from gridtnp.tasks.specification import TaskSpec

FAR = ["S003far", "S007far", "S020far"]
HELD_OUT = [f"S{i:03d}" for i in range(8)]
GRID = r"the model's grid \(lat 47\.5625 to 55\.4375, lon -4\.375 to 4\.375\)"
BASELINES = ("nearest", "idw", "bilinear", "kriging", "kriging-drift", "persistence", "climatology")
Parts = tuple[Dataset, Dataset, Dataset]


def rows(far: bool) -> pd.DataFrame:
    table = small.table()
    distant = table.assign(lat=table.lat + 25, station=table.station + "far")
    distant = distant[distant.station.isin(FAR)]
    return pd.concat([distant, table], ignore_index=True) if far else table


def split(data: Dataset, held_out: list[str] | None = None) -> Parts:
    return data.split(["2019-03-01T12:00", "2019-03-02"], hold_out_stations=held_out)


def parts(far: bool, held_out: bool) -> Parts:
    names = [*HELD_OUT, *FAR[:2][: 2 * far]] if held_out else None
    return split(small.dataset(rows(far)), names)


@pytest.mark.parametrize("held_out", [False, True])
def test_evaluate_scores_the_rest(held_out: bool) -> None:
    model = small.model()
    _, _, near = parts(far=False, held_out=held_out)
    _, _, test = parts(far=True, held_out=held_out)
    expected = model.evaluate(near, BASELINES)
    with pytest.warns(DataWarning) as caught:
        found = model.evaluate(test, BASELINES)
    (warning,) = caught
    used = test.sources["stations"]
    assert isinstance(used.times, np.ndarray)
    later = used.times >= np.datetime64("2019-03-02")
    outside = later & (used.lat > 60)
    assert str(warning.message) == (
        f"{outside.sum()} of {later.sum()} observations of 'stations' in part 'test' lie outside "
        "of the model's grid (lat 47.5625 to 55.4375, lon -4.375 to 4.375) and are dropped."
    )
    for name in ("time", "station", "lat", "lon", "observed"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for name, forecast in expected.forecasts.items():
        np.testing.assert_array_equal(found.forecasts[name].mean, forecast.mean)
        np.testing.assert_array_equal(found.forecasts[name].std, forecast.std)
    labels = used.labels
    assert labels is not None
    asked = later & np.isin(labels, [*HELD_OUT, *FAR[:2]]) if held_out else later
    assert found.notes == (
        f"left out as targets: {(asked & outside).sum()} of {asked.sum()} observations of "
        "'stations' outside of the model's grid (lat 47.5625 to 55.4375, lon -4.375 to 4.375)",
        *expected.notes,
    )
    assert found.split == expected.split


def losses(folder: Path) -> list[float]:
    """Of training and validation."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [v for line in lines for k, v in json.loads(line).items() if k in ("loss", "validation")]


@pytest.mark.parametrize("held_out", [False, True])
def test_fit_learns_from_the_rest(tmp_path: Path, held_out: bool) -> None:
    recipe = gt.Recipe(steps=4, batch=2, validate_every=2)
    weights = []
    for far in (False, True):
        model, (train, val, _) = small.model(), parts(far, held_out)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(train, val, recipe=recipe, out=tmp_path / str(far), quiet=True)
        assert len(caught) == far
        if far:
            count = r"\d of \d+ observations of 'stations' in part"
            message = rf"{count} 'train', {count} 'val' lie outside of {GRID} and are dropped\."
            assert re.fullmatch(message, str(caught[0].message))
        weights.append(model.network.state_dict())
    assert len(losses(tmp_path / "True")) == 6
    assert losses(tmp_path / "True") == pytest.approx(losses(tmp_path / "False"), abs=1e-6)
    for name, value in weights[0].items():
        np.testing.assert_allclose(weights[1][name], value, atol=1e-6)


def test_warnings_point_to_the_caller(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--check-shapes"):
        pytest.skip("checks put functions of their own on the stack")
    model, (train, _, test) = small.model(), parts(far=True, held_out=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.evaluate(test, limit=1)
        model.fit(train, recipe=gt.Recipe(steps=1, batch=1), quiet=True)
        model.predict(test.at("2019-03-02"), ([50.0], [0.0]))
        model.sample(1, test.at("2019-03-02"), ([50.0], [0.0]))
    assert [warning.filename for warning in caught] == [__file__] * 4


def test_a_model_may_be_designed_for_a_part_of_the_area(capsys: pytest.CaptureFixture[str]) -> None:
    train, _, _ = parts(far=True, held_out=False)
    model = GriddedTNP.for_data(train, grid=small.model().network.grid)
    assert "8 lat × 8 lon" in capsys.readouterr().out
    with pytest.warns(DataWarning, match="in part 'train' lie outside of the model's grid"):
        model.fit(train, recipe=gt.Recipe(steps=1, batch=2), quiet=True)


def test_grids_are_counted_by_location_and_keep_their_edge() -> None:
    field = small.field().pad(lat=4, mode="edge")
    field = field.assign_coords(lat=45.0 + 0.5 * np.arange(field.sizes["lat"]))
    field = field.sel(lat=slice(45.5, None))
    model, data = small.model(), small.dataset(grid=field)
    part = model.contents.sampler(data).data
    inside = part.context_places["era5"]
    lat = part.sources["era5"].lat
    np.testing.assert_array_equal(inside, (lat >= 47.5625 - 1.125) & (lat <= 55.4375 + 1.125))
    assert set(part.context_places) == {"era5"}
    assert part.target_places is None
    number = int((~inside).sum())
    message = rf"^{number} of {len(lat)} locations of 'era5' lie outside of {GRID} and are dropped"
    with pytest.warns(DataWarning, match=message):
        found = model.evaluate(data, ["bilinear"])
    assert not any("left out as targets" in note for note in found.notes)
    assert np.isfinite(found.forecasts["bilinear"].mean).all()


def test_nothing_on_the_grid_is_an_error() -> None:
    model = small.model()
    data = small.dataset(rows(far=True)).split(
        ["2019-03-01T12:00", "2019-03-02"], hold_out_stations=FAR
    )
    message = rf"^No observation of target source 'stations' in part 'test' lies on {GRID}; use"
    with pytest.warns(DataWarning), pytest.raises(ValueError, match=message):
        model.evaluate(data[2])


def test_data_on_the_grid_are_left_alone() -> None:
    data, grid = small.dataset(), small.model().network.grid
    assert grid is not None
    assert on_grid(data, grid) is data
    times = gt.Grid((gt.Axis.span("time", -6, 0, 3),))
    assert on_grid(data, times) is data


def test_models_without_a_grid_use_everything() -> None:
    data = Dataset({"stations": rows(far=True)}, target="stations.t2m")
    found = small.gridless(data).evaluate(data, limit=2)
    assert found.lat.max() > 60
    assert found.notes[0].startswith("2 of 6 times")


def test_time_windows_beyond_the_grid_are_reported() -> None:
    data = Dataset({"stations": small.table()}, target="stations.t2m")
    axes = (
        gt.Axis.span("time", -6, 0, 3),
        gt.Axis.cells("lat", 47.0, 56.0, 8),
        gt.Axis.cells("lon", -5.0, 5.0, 8),
    )
    grid = gt.Grid(axes, "sphere")
    spec = TaskSpec.of(data, coordinates=("time", "lat", "lon"), window="[-9h, 0h]")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec.warn_outside([data], grid, stacklevel=1)  # a cell beyond the axis still counts
    longer = spec.model_copy(update={"window": "(-24h, 0h]"})
    message = (
        r"^the time windows of \['stations'\] exceed the time axis of the model's grid \(time -6"
    )
    with pytest.warns(DataWarning, match=message):
        longer.warn_outside([data], grid, stacklevel=1)
    sampler = longer.sampler(data, gt.Normaliser.fit(data), {"stations": gt.Whole()}, grid=grid)
    task = replace(sampler, targets=gt.Whole()).at("2019-03-02")
    points = task.context["stations"]
    assert points.mask is not None
    assert points.x[points.mask][:, 0].min() == -6
    assert (~points.mask).any()


def test_predict_drops_the_same_observations() -> None:
    model = small.model()
    grid = gt.latlon_grid(lat=(48, 55), lon=(-4, 4), step=1.0)
    noon = "2019-03-01T12:00"
    with pytest.warns(DataWarning, match=rf"^\d observations outside of {GRID} are dropped\.$"):
        found = model.predict(small.dataset(rows(far=True)).at(noon), grid)
    expected = model.predict(small.dataset().at(noon), grid)
    xr.testing.assert_equal(found, expected)
