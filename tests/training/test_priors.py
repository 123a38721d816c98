"""Fitting what a network corrects: persistent effects of stations are found and subtracted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gridtnp as gt
from gridtnp.data.normalisation import TERMS, Normaliser, StationEffects, terms
from gridtnp.training.priors import fit_prior

STATIONS, TIMES = 40, 60


def table(effect: float, seed: int = 0) -> pd.DataFrame:
    """Smooth fields that change from day to day, and a deviation of every station that does not."""
    rng = np.random.default_rng(seed)
    lat, lon = rng.uniform(45, 50, STATIONS), rng.uniform(0, 8, STATIONS)
    own = effect * rng.standard_normal(STATIONS)
    own[0] = 3 * effect  # one that stands out
    frames = []
    for day in pd.date_range("2001-01-01", periods=TIMES, freq="7D"):
        a, b, c = rng.standard_normal(3)
        field = a + b * np.sin(lat / 2 + c) + a * np.cos(lon / 3)
        values = field + own + 0.05 * rng.standard_normal(STATIONS)
        frames.append(
            pd.DataFrame(
                {"station": range(STATIONS), "time": day, "lat": lat, "lon": lon, "t": values}
            )
        )
    return pd.concat(frames)


def model_for(data: gt.Dataset) -> gt.GriddedTNP:
    return gt.GriddedTNP.for_data(data, dim=8, heads=2, layers=1, quiet=True)


def test_effects_of_stations_are_found() -> None:
    data = gt.Dataset({"gauges": table(0.5)}, target="gauges.t")
    fitted = fit_prior(model_for(data).contents, data, 0)
    found = fitted.normaliser.stations
    assert found is not None
    scale = fitted.normaliser.std["gauges.t"]
    where = table(0.5).drop_duplicates("station").set_index("station")
    index = [int(np.abs(found.lat - lat).argmin()) for lat in where["lat"]]
    rng = np.random.default_rng(0)
    rng.uniform(45, 50, STATIONS), rng.uniform(0, 8, STATIONS)
    own = 0.5 * rng.standard_normal(STATIONS)
    own[0] = 1.5
    constant = found.coefficients[index, 0, 0] * scale
    assert np.corrcoef(constant, own)[0, 1] > 0.9
    # the context speaks for the surroundings, the targets for themselves
    before = model_for(data).contents.sampler(data, batch=1).draw(0)
    after = fitted.sampler(data, batch=1).draw(0)
    name = next(iter(before.context))
    moved = after.context[name].y - before.context[name].y
    assert moved.abs().max().item() * scale > 0.3
    np.testing.assert_array_equal(after.target.y, before.target.y)


def test_predictions_at_new_stations_gain() -> None:
    data = gt.Dataset({"gauges": table(0.5)}, target="gauges.t")
    train, val, _ = data.split(time=["2001-10-01", "2001-12-01"], hold_out_stations=0.3)
    plain, told = model_for(train), model_for(train)
    recipe = gt.Recipe(1, 2, 1e-9)
    told.fit(train, recipe=recipe, quiet=True)
    plain.fit(train, recipe=recipe, quiet=True)
    plain.contents = replace(
        plain.contents, normaliser=replace(plain.contents.normaliser, stations=None)
    )
    scores = [m.evaluate(val, ()).to_dataframe()["rmse"][0] for m in (plain, told)]
    assert scores[1] < scores[0]


def test_moving_platforms_and_grids_have_none() -> None:
    ships = table(0.0)
    rng = np.random.default_rng(1)
    ships["lat"], ships["lon"] = rng.uniform(45, 50, len(ships)), rng.uniform(0, 8, len(ships))
    data = gt.Dataset({"ships": ships.drop(columns="station")}, target="ships.t")
    assert fit_prior(model_for(data).contents, data, 0).normaliser.stations is None


def test_they_are_kept_with_the_model(tmp_path: Path) -> None:
    data = gt.Dataset({"gauges": table(0.5)}, target="gauges.t")
    model = model_for(data).fit(data, recipe=gt.Recipe(1, 2), quiet=True)
    again = gt.GriddedTNP.load(model.save(tmp_path / "model"))
    place = table(0.5).drop_duplicates("station")[["lat", "lon"]]
    one = data.at("2001-02-05")
    pd.testing.assert_frame_equal(
        model.predict(one, at=place, progress=False), again.predict(one, at=place, progress=False)
    )


def test_terms_are_periodic_and_unknown_places_have_no_effect(tmp_path: Path) -> None:
    times = np.array(["2001-03-01T06", "2002-03-01T06", "2001-09-01T18"], "datetime64[ms]")
    made = terms(times, 3)
    np.testing.assert_allclose(made[0], made[1], atol=0.02)
    assert made[0, 3] == pytest.approx(1)  # a quarter of a day
    np.testing.assert_array_equal(terms(None, 2)[:, 1:], 0)
    effects = StationEffects(
        "gauges", ("t",), np.array([45.0]), np.array([3.0]), np.ones((1, TERMS, 1))
    )
    Normaliser({"gauges.t": 1.0}, {"gauges.t": 2.0}, effects).to_json(tmp_path / "n.json")
    read = Normaliser.from_json(tmp_path / "n.json")
    assert read.mean == {"gauges.t": 1.0}
    assert read.stations is not None
    data = gt.Dataset({"gauges": table(0.1)}, target="gauges.t")
    source = data.sources["gauges"]
    assert not read.stations.at(source.lat, source.lon).any()
    assert read.stations.at(np.array([45.0]), np.array([363.0])).all()
    assert read.stations.coefficients.shape == (1, TERMS, 1)
