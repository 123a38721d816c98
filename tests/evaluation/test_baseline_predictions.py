"""Fitted baselines predict maps and tables in the form of the model's predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import small
import weather
import xarray as xr

import gridtnp as gt
from gridtnp.evaluation.baseline_predictions import BaselinePredictor

NOON = "2019-03-01T12:00"


@pytest.fixture(scope="module")
def fitted() -> BaselinePredictor:
    return gt.baseline("regression-kriging", small.dataset())


def test_maps_and_tables_have_the_form_of_the_models(
    fitted: BaselinePredictor, tmp_path: Path
) -> None:
    data, model = small.dataset(), small.model()
    grid = gt.latlon_grid(lat=(48, 55), lon=(-4, 4), step=1.0)
    ours, theirs = (which.predict(data.at(NOON), grid) for which in (fitted, model))
    assert list(ours) == list(theirs)
    assert ours.sizes == theirs.sizes
    for name in theirs.variables:
        assert ours[name].attrs == theirs[name].attrs
    xr.testing.assert_allclose(ours["t2m_support"], theirs["t2m_support"])
    assert (ours["t2m_q05"] < ours["t2m_mean"]).all()
    assert (ours["t2m_mean"] < ours["t2m_q95"]).all()
    table = pd.DataFrame({"lat": [50.0, 51.0], "lon": [0.0, 1.0], "name": ["a", "b"]})
    rows = fitted.predict(data, table, times=[NOON], quantiles=[])
    same = ours.sel(lat=xr.DataArray([50, 51]), lon=xr.DataArray([0, 1]))
    np.testing.assert_allclose(rows["t2m_mean"], same["t2m_mean"], rtol=1e-6)
    assert rows["name"].tolist() == ["a", "b"]
    path = fitted.predict(data, grid, times=small.TIMES[:2], to=tmp_path / "map.nc")
    with xr.open_dataset(path) as written:
        assert written.sizes["time"] == 2


def test_at_a_station_it_is_what_evaluate_predicts() -> None:
    """The same baseline, asked for the held-out stations of the test."""
    data = small.dataset()
    train, _, test = data.split(hold_out_stations=0.4)
    scores = small.model(train).evaluate(test, ["kriging-drift"])
    expected = scores.predictions().query("time == @NOON")
    where = expected[["lat", "lon"]].merge(
        small.table()[["lat", "lon", "elevation"]].drop_duplicates()
    )
    found = gt.baseline("kriging-drift", train).predict(test.at(NOON), where)
    np.testing.assert_allclose(found["t2m_mean"], expected["kriging-drift_mean"], rtol=1e-6)
    np.testing.assert_allclose(found["t2m_std"], expected["kriging-drift_std"], rtol=1e-5)


@pytest.mark.parametrize("name", ["nearest", "bilinear", "climatology", "persistence"])
def test_every_kind_predicts_from_fresh_sources(name: str) -> None:
    found = gt.baseline(name, small.dataset(), like=small.model())
    rows = small.table()
    fresh = {"stations": rows[rows.time == NOON], "era5": small.field().sel(time=[NOON])}
    answer = found.predict(
        fresh, (np.array([50.0]), np.array([1.0])), static={"elevation": small.heights()}
    )
    assert np.isfinite(answer["t2m_mean"]).all()
    assert np.isfinite(answer["t2m_std"]).all()


@pytest.mark.parametrize("kind", ["named", "unnamed", "panel", "curvilinear", "grid"])
def test_places_without_a_station_have_no_past_of_their_own(kind: str) -> None:
    """Persistence is the nearest value there, and climatology that of all stations."""
    table, at = weather.stations(), pd.DataFrame({"lat": [49.0, 54.0], "lon": [-3.0, 3.0]})
    source = weather.field() if kind == "grid" else table
    if kind == "unnamed":
        source = table.drop(columns="station")
    if kind == "panel":
        places = table.groupby("station")[["lat", "lon"]].first()
        grid = table.set_index(["time", "station"])[["t2m"]].to_xarray()
        source = grid.assign_coords({n: ("station", places[n].to_numpy()) for n in ("lat", "lon")})
    if kind == "curvilinear":
        lat, lon = np.meshgrid(weather.LATS, weather.LONS, indexing="ij")
        source = weather.field().rename(lat="y", lon="x").drop_vars(["y", "x"])
        source = source.assign_coords(lat=(("y", "x"), lat), lon=(("y", "x"), lon))
    data = gt.Dataset({"obs": source}, target="obs.t2m")
    time = data.times()[4]
    found = {
        name: gt.baseline(name, data).predict(data.at(time), at)["t2m_mean"]
        for name in ("persistence", "nearest", "climatology")
    }
    np.testing.assert_array_equal(found["persistence"], found["nearest"])
    assert found["nearest"][0] != found["nearest"][1]
    assert found["climatology"][0] == found["climatology"][1]


def test_the_field_alone_is_enough_for_the_regression(fitted: BaselinePredictor) -> None:
    fresh = {"era5": small.field().sel(time=[NOON])}
    found = fitted.predict(
        fresh, (np.array([50.0]), np.array([1.0])), static={"elevation": small.heights()}
    )
    assert np.isfinite(found["t2m_mean"]).all()


def test_points_without_a_feature_are_nan_with_a_warning(fitted: BaselinePredictor) -> None:
    at = (np.array([50.0, 89.0]), np.array([0.0, 0.0]))
    with pytest.warns(UserWarning, match=r"^1 of 2 points cannot be predicted by 'regression-krig"):
        found = fitted.predict(small.dataset().at(NOON), at)
    assert np.isnan(found["t2m_mean"]).tolist() == [False, True]
    with pytest.raises(ValueError, match=r"^Baseline 'regression-kriging' cannot predict any of"):
        fitted.predict(small.dataset().at(NOON), (np.array([89.0]), np.array([0.0])))


def test_names_and_quantiles_are_checked(fitted: BaselinePredictor) -> None:
    with pytest.raises(ValueError, match=r"^Unknown baseline 'krigging'; did you mean 'kriging'\?"):
        gt.baseline("krigging", small.dataset())
    with pytest.raises(ValueError, match=r"^Baseline 'kriging' has no training data; give a Data"):
        gt.baseline("kriging")
    with pytest.raises(ValueError, match=r"^Quantile 2 is not between 0 and 1"):
        fitted.predict(small.dataset().at(NOON), (np.zeros(1), np.zeros(1)), quantiles=[2])
