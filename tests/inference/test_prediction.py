"""Predictions: the form of the query, the same numbers for the same data, files, and gaps."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import small
import torch
import xarray as xr
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from gridtnp.data.dataset import Dataset
from gridtnp.data.places import latlon_grid
from gridtnp.estimator import GriddedTNP
from gridtnp.grid import EARTH_RADIUS
from gridtnp.inference.conditioning import Conditioner
from gridtnp.network.model import PIECE
from gridtnp.recipes import Recipe
from gridtnp.sources.coordinates import unit_vectors
from gridtnp.sources.quality import DataWarning
from gridtnp.tasks.specification import TaskSpec

NOON = "2019-03-01T12:00"
SPREAD = 5.0


@pytest.fixture(scope="module")
def model() -> GriddedTNP:
    return small.model()


@pytest.fixture(scope="module")
def data() -> Dataset:
    return small.dataset()


def grid(step: float = 1.0) -> xr.Dataset:
    return latlon_grid(lat=(47.5, 55.5), lon=(-4.5, 4.5), step=step)


# ---- what comes back -----------------------------------------------------------------------------


def test_a_grid_comes_back_with_everything_asked_for(model: GriddedTNP, data: Dataset) -> None:
    asked = grid()
    answer = model.predict(data.at(NOON), asked, quantiles=(0.025, 0.5))
    assert isinstance(answer, xr.Dataset)
    assert list(answer) == ["t2m_mean", "t2m_std", "t2m_q025", "t2m_q50", "t2m_support"]
    for name in ("lat", "lon"):
        assert answer[name].values.tobytes() == asked[name].values.tobytes()
    assert answer.time == np.datetime64(NOON)
    assert answer.t2m_mean.attrs["units"] == "K"
    assert answer.t2m_support.attrs["units"] == "km"
    np.testing.assert_allclose(answer.t2m_q50, answer.t2m_mean, atol=1e-4)
    np.testing.assert_allclose(
        answer.t2m_q025, answer.t2m_mean - 1.959964 * answer.t2m_std, atol=1e-3
    )


def test_the_numbers_are_those_of_the_network(model: GriddedTNP, data: Dataset) -> None:
    rows = small.table()
    rows = rows[(rows.time == NOON) & rows.t2m.notna()]
    answer = model.predict(data.at(NOON), rows)
    task = model.spec.sampler(
        data, model.normaliser, {"stations": _whole()}, targets=_whole(), batch=1
    ).at(NOON)
    with torch.no_grad():
        made = model.network(task)
    scale = model.normaliser.scale(model.spec.target)
    mean = model.normaliser.restore(model.spec.target, made.mean[0].double().numpy())
    order = np.lexsort([rows.lon, rows.lat])
    assert isinstance(answer, pd.DataFrame)
    assert answer.index.equals(rows.index)
    np.testing.assert_allclose(answer.t2m_mean.to_numpy()[order], mean[:, 0], atol=1e-5 * SPREAD)
    np.testing.assert_allclose(
        answer.t2m_std.to_numpy()[order], made.stddev[0, :, 0].numpy() * scale[0], rtol=1e-5
    )
    assert answer.attrs["units"]["t2m_std"] == "K"


def test_arrays_come_back_as_arrays(model: GriddedTNP, data: Dataset) -> None:
    places = (np.array([50.0, 51.0]), np.array([0.0, 359.0]))
    one = model.predict(data.at(NOON), places)
    many = model.predict(data, places, times=[NOON, "2019-03-01T18:00"])
    assert isinstance(one, dict)
    assert isinstance(many, dict)
    assert many["t2m_mean"].shape == (2, 2)
    np.testing.assert_array_equal(many["t2m_mean"][0], one["t2m_mean"])


def test_many_times_are_the_same_as_one_by_one(model: GriddedTNP, data: Dataset) -> None:
    asked, times = grid(2.0), small.TIMES[:4]
    many = model.predict(data, asked, times=times)
    own = model.predict(data, asked.assign_coords(time=times))
    rows = pd.DataFrame({"y": [50.0, 51.0], "x": [1.0, 2.0]}, index=["a", "b"])
    table = model.predict(data, rows, times=times)
    assert isinstance(many, xr.Dataset)
    assert isinstance(own, xr.Dataset)
    assert isinstance(table, pd.DataFrame)
    assert many.t2m_mean.dims == ("time", "lat", "lon")
    xr.testing.assert_equal(many, own)
    assert list(table.index) == ["a", "b"] * 4
    for time in times:
        one = model.predict(data.at(time), asked)
        assert isinstance(one, xr.Dataset)
        np.testing.assert_array_equal(many.t2m_mean.sel(time=time), one.t2m_mean)
        alone = model.predict(data.at(time), rows)
        assert isinstance(alone, pd.DataFrame)
        mine = table[table.time == time]
        np.testing.assert_allclose(mine.t2m_mean, alone.t2m_mean, atol=1e-5)
        np.testing.assert_array_equal(mine.t2m_support, alone.t2m_support)


def test_the_network_is_left_as_it_was(model: GriddedTNP, data: Dataset) -> None:
    model.network.train()
    model.predict(data.at(NOON), grid(2.0))
    assert model.network.training
    assert all(p.grad is None for p in model.network.parameters())
    model.network.eval()


# ---- the same data, whatever they look like ------------------------------------------------------


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(lon=rows.lon % 360)


SAME = {
    "longitudes from 0 to 360": lambda t, f, h: (
        _wide(t),
        f.assign_coords(lon=f.lon % 360).sortby("lon"),
        h.assign_coords(lon=h.lon % 360).sortby("lon"),
    ),
    "latitudes reversed": lambda t, f, h: (t, f.isel(lat=slice(None, None, -1)), h[::-1]),
    "dimensions shuffled": lambda t, f, h: (t, f.transpose("lon", "time", "lat"), h.T),
    "rows shuffled": lambda t, f, h: (t.sample(frac=1.0, random_state=1), f, h),
    "columns renamed": lambda t, f, h: (
        t.rename(columns={"lat": "Latitude", "lon": "nav_lon", "time": "date", "station": "id"}),
        f.rename(lat="y", lon="longitude", time="valid_time"),
        h.rename(lat="latitude", lon="x"),
    ),
    "single precision": lambda t, f, h: (
        t.astype(dict.fromkeys(("lat", "lon", "elevation", "t2m"), np.float32)),
        f.astype(np.float32).assign_coords(lat=f.lat.astype("f4"), lon=f.lon.astype("f4")),
        h.astype(np.float32).assign_coords(lat=h.lat.astype("f4"), lon=h.lon.astype("f4")),
    ),
}


@pytest.mark.parametrize("change", SAME)
def test_the_form_of_the_data_does_not_matter(
    model: GriddedTNP, data: Dataset, change: str
) -> None:
    asked = grid()
    before = model.predict(data.at(NOON), asked)
    table, field, heights = SAME[change](small.table(), small.field(), small.heights())
    given = {"stations": table, "era5": field}
    after = model.predict(given, asked, times=[NOON], static={"elevation": heights})
    assert isinstance(before, xr.Dataset)
    assert isinstance(after, xr.Dataset)
    for name in ("t2m_mean", "t2m_std", "t2m_q05"):
        difference = np.abs(after[name].values[0] - before[name].values).max()
        assert difference < 1e-6 * SPREAD, name
    np.testing.assert_allclose(after.t2m_support[0], before.t2m_support, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_form_of_the_question_does_not_matter(
    model: GriddedTNP, data: Dataset, dtype: type
) -> None:
    asked = grid()
    before = model.predict(data.at(NOON), asked)
    turned = asked.assign_coords(lon=(asked.lon % 360).astype(dtype), lat=asked.lat.astype(dtype))
    turned = turned.isel(lat=slice(None, None, -1)).rename(lat="latitude")
    after = model.predict(data.at(NOON), turned)
    assert isinstance(before, xr.Dataset)
    assert isinstance(after, xr.Dataset)
    for name in ("latitude", "lon"):
        assert after[name].dtype == dtype
        assert after[name].values.tobytes() == turned[name].values.tobytes()
    flipped = after.t2m_mean.values[::-1]
    assert np.abs(flipped - before.t2m_mean.values).max() < 1e-6 * SPREAD
    rows = asked.to_dataframe().reset_index().sample(frac=1.0, random_state=0)
    table = model.predict(data.at(NOON), rows)
    assert isinstance(table, pd.DataFrame)
    back = table.set_index(["lat", "lon"]).t2m_mean.to_xarray()
    assert np.abs(back.values - before.t2m_mean.values).max() < 1e-6 * SPREAD


def test_longitudes_are_cut_where_they_were_in_training() -> None:
    rows = small.table().assign(lon=lambda t: (t.lon + 180.0 + 180.0) % 360.0 - 180.0)
    field = small.field().assign_coords(lon=small.LONS + 180.0)
    relief = small.heights()
    relief = relief.assign_coords(lon=relief.lon + 180.0)
    data = small.dataset(rows, field, relief)
    assert data.west == 0.0  # across the date line
    model = small.model(small.dataset())
    shifted = TaskSpec.of(data)
    east = rows[rows.lon > 0]  # on one side alone: nothing there says where to cut
    assert Dataset({"stations": east}, target="stations.t2m").west == -180.0
    contents = replace(model.contents, spec=shifted)
    conditioner = Conditioner.of(contents, {"stations": rows}, {"elevation": relief})
    assembler = replace(conditioner.assembler, grid=None)
    points = assembler.query(np.array([50.0]), np.array([-179.0]), task_time=np.datetime64(NOON))
    assert points.x[0, 0].tolist() == [50.0, 181.0]


# ---- fresh data ----------------------------------------------------------------------------------


def test_sources_may_be_missing(model: GriddedTNP) -> None:
    static = {"elevation": small.heights()}
    only = model.predict({"era5": small.field()}, grid(), times=[NOON], static=static)
    assert isinstance(only, xr.Dataset)
    assert np.isfinite(only.t2m_mean).all()
    assert only.t2m_mean.attrs["units"] == "K"  # as in training
    bare = small.table().drop(columns="t2m").assign(rain=1.0)
    with pytest.warns(
        DataWarning, match=r"^The context has no stations\.t2m, which the model was trained with"
    ):
        same = model.predict(
            {"stations": bare, "era5": small.field()}, grid(), times=[NOON], static=static
        )
    assert isinstance(same, xr.Dataset)
    np.testing.assert_array_equal(same.t2m_mean, only.t2m_mean)


def test_static_features_may_come_with_the_places(model: GriddedTNP, data: Dataset) -> None:
    rows = small.table()
    at_noon = rows[rows.time == NOON].drop(columns=["t2m", "station"])
    full = model.predict(data, at_noon)
    alone = model.predict({"stations": rows}, at_noon)  # no field at all
    renamed = model.predict(data, at_noon.rename(columns={"elevation": "ALT"}))
    without = model.predict(data, at_noon.drop(columns="elevation"))
    assert isinstance(full, pd.DataFrame)
    assert isinstance(alone, pd.DataFrame)
    assert isinstance(renamed, pd.DataFrame)
    assert isinstance(without, pd.DataFrame)
    assert np.isfinite(alone.t2m_mean).all()
    np.testing.assert_array_equal(renamed.t2m_mean, full.t2m_mean)
    assert np.abs(without.t2m_mean - full.t2m_mean).max() > 1e-4
    relief = grid().assign(elevation=(("lon", "lat"), np.full((10, 9), 500.0)))
    flat = model.predict(data.at(NOON), relief)
    field = model.predict(data.at(NOON), grid())
    assert isinstance(flat, xr.Dataset)
    assert isinstance(field, xr.Dataset)
    assert np.abs(flat.t2m_mean - field.t2m_mean).max() > 1e-4


@pytest.mark.parametrize(
    ("context", "static", "sentence"),
    [
        (
            lambda: {"satations": small.table()},
            None,
            r"^Unknown source 'satations' for this model; did you mean 'stations'\?$",
        ),
        (
            small.table,
            None,
            r"^context is one DataFrame: must give every source a name",
        ),
        (
            dict,
            None,
            r"^The context is empty; give at least one source of \['era5', 'stations'\]\.$",
        ),
        (
            lambda: {"era5": small.field()},
            None,
            "^The static feature 'elevation', which the model was trained with, is missing; give",
        ),
        (
            lambda: {"era5": small.field().rename(t2m="rain")},
            small.heights(),
            r"^The context has \['era5.rain'\], but nothing that the model was trained with: \['",
        ),
        (
            lambda: small.dataset(),
            small.heights(),
            "^static= is for fresh sources, but the context is a Dataset, which has its own",
        ),
        (
            lambda: Dataset({"era5": small.field()}, target="era5.t2m"),
            None,
            r"^The data have features \[\], but the model was trained with \['elevation', 'hour'\]",
        ),
        (
            lambda: small.dataset(),
            None,
            r"^The query has no time and the context has 6; choose one, data.at\('2019-03-02 06:00",
        ),
    ],
)
def test_contexts_that_do_not_fit(
    model: GriddedTNP, context: object, static: object, sentence: str
) -> None:
    made = context()  # type: ignore[operator]
    with pytest.raises(ValueError, match=sentence):
        model.predict(made, grid(), static=static)  # type: ignore[arg-type]


def test_questions_that_do_not_fit(model: GriddedTNP, data: Dataset) -> None:
    with pytest.raises(ValueError, match=r"^times= is given, but the query has times already"):
        model.predict(data, grid().assign_coords(time=small.TIMES), times=[NOON])
    with pytest.raises(ValueError, match=r"^times=\[\] is empty; give at least one time"):
        model.predict(data, grid(), times=[])
    with pytest.raises(ValueError, match=r"^Quantile 5 is not between 0 and 1\.$"):
        model.predict(data.at(NOON), grid(), quantiles=(5,))
    with pytest.raises(ValueError, match=r"^chunk=0: a chunk needs at least one point"):
        model.predict(data.at(NOON), grid(), chunk=0)
    with pytest.raises(ValueError, match=r"^2019-03-02 is not in the target window '\[0h, 0h\]'"):
        model.predict(data.at(NOON), grid(), times=["2019-03-02"])


def test_units_that_changed_are_reported(model: GriddedTNP) -> None:
    rows = small.table()
    rows.attrs["units"] = {"t2m": "degC"}
    with pytest.warns(DataWarning, match=r"stations.t2m is in 'degC', but was in 'K' when"):
        model.predict({"stations": rows}, rows[rows.time == NOON])


# ---- gaps ----------------------------------------------------------------------------------------


def test_points_outside_of_the_grid_are_missing_and_counted(
    model: GriddedTNP, data: Dataset
) -> None:
    wide = latlon_grid(lat=(44.5, 57.5), lon=(-4.5, 4.5), step=1.0)
    with pytest.warns(DataWarning, match=r"30 of 140 points lie outside of the model's grid \(lat"):
        answer = model.predict(data.at(NOON), wide)
    assert isinstance(answer, xr.Dataset)
    covered = np.isfinite(answer.t2m_mean).all("lon")
    assert answer.lat.values[covered].tolist() == np.arange(46.5, 57.0).tolist()
    assert not np.isfinite(answer.t2m_support.sel(lat=44.5)).any()
    with pytest.raises(
        ValueError, match=r"^Nothing can be predicted: 2 of 2 points lie outside of the model's"
    ):
        model.predict(data.at(NOON), (np.array([57.0, 57.5]), np.array([0.0, 0.0])))


def test_places_without_a_static_feature_are_missing(model: GriddedTNP) -> None:
    relief = small.heights().sel(lat=slice(45, 52))
    with pytest.warns(
        DataWarning, match=r"^30 of 90 points have no \['elevation'\] and are NaN\.$"
    ):
        answer = model.predict(
            {"era5": small.field()}, grid(), times=[NOON], static={"elevation": relief}
        )
    assert isinstance(answer, xr.Dataset)
    assert np.isfinite(answer.t2m_mean[0]).all("lon").values.tolist() == [True] * 6 + [False] * 3


def test_observations_outside_of_the_grid_are_dropped_and_counted(
    model: GriddedTNP, data: Dataset
) -> None:
    far = small.table().assign(lat=lambda t: t.lat + 25, station=lambda t: t.station + "far")
    given = {"stations": pd.concat([small.table(), far]), "era5": small.field()}
    static = {"elevation": small.heights()}
    many = int((far.t2m.notna() & (far.time == NOON)).sum())
    sentence = rf"^{many} observations outside of the model's grid \(lat .*\) are dropped\.$"
    with pytest.warns(DataWarning, match=sentence):
        answer = model.predict(given, grid(), times=[NOON], static=static)
    expected = model.predict(data, grid(), times=[NOON])
    assert isinstance(answer, xr.Dataset)
    assert isinstance(expected, xr.Dataset)
    np.testing.assert_array_equal(answer.t2m_mean, expected.t2m_mean)


def test_a_time_without_observations_is_reported(model: GriddedTNP, data: Dataset) -> None:
    times = ["2019-03-01T03:00", NOON, "2019-03-01T15:00"]
    sentence = "^there are no observations at 2019-03-01 03:00 and 1 other times, so the model pred"
    with pytest.warns(DataWarning, match=sentence):
        answer = model.predict(data, grid(), times=times)
    assert isinstance(answer, xr.Dataset)
    assert np.isfinite(answer.t2m_mean).all()
    assert np.isfinite(answer.t2m_support).all(("lat", "lon")).values.tolist() == [
        False,
        True,
        False,
    ]


def test_a_time_without_a_field_is_reported(model: GriddedTNP) -> None:
    """Stations alone may be far from enough where the network was trained with a field."""
    static, field = {"elevation": small.heights()}, small.field()
    later = field.isel(time=field["time"] > np.datetime64(NOON))
    with pytest.warns(DataWarning, match=f"^era5 has no field at {NOON.replace('T', ' ')}, so the"):
        model.predict(
            {"stations": small.table(), "era5": later}, grid(), times=[NOON], static=static
        )


@settings(max_examples=examples(25))
@given(st.integers(0, 10_000), st.booleans())
def test_support_is_the_distance_to_the_nearest_observation(seed: int, held_out: bool) -> None:
    rng = np.random.default_rng(seed)
    data = small.dataset(small.table(12, seed))
    part = data.split(hold_out_stations=0.5, seed=seed)[2] if held_out else data
    lat, lon = rng.uniform(47, 56, 20), rng.uniform(-5, 5, 20)
    model = small.model(data)
    answer = model.predict(part.at(NOON), (lat, lon))
    rows = small.table(12, seed)
    rows = rows[(rows.time == NOON) & rows.t2m.notna()]
    if held_out:
        kept = data.sources["stations"].labels[part.context_places["stations"]]  # type: ignore[index]
        rows = rows[rows.station.isin(kept)]
    if not len(rows):
        rows = small.field().isel(time=0).to_dataframe().reset_index()
    turn = np.deg2rad(lon[:, None] - rows.lon.to_numpy())
    a, b = np.deg2rad(lat)[:, None], np.deg2rad(rows.lat.to_numpy())
    cosine = np.sin(a) * np.sin(b) + np.cos(a) * np.cos(b) * np.cos(turn)
    nearest = EARTH_RADIUS * np.arccos(np.clip(cosine, -1, 1)).min(1)
    assert isinstance(answer, dict)
    np.testing.assert_allclose(answer["t2m_support"], nearest, atol=1e-3)


def test_places_are_unit_vectors() -> None:
    vectors = unit_vectors(np.array([90.0, 0.0, 0.0]), np.array([12.0, 0.0, -90.0]))
    np.testing.assert_allclose(vectors, [[0, 0, 1], [1, 0, 0], [0, -1, 0]], atol=1e-15)


# ---- time: leads, windows, regular tasks ---------------------------------------------------------


def _whole() -> object:
    from gridtnp.tasks.selection import Whole

    return Whole()


def conditioner(**times: object) -> Conditioner:
    data = small.dataset()
    spec = TaskSpec.of(data, **times)  # type: ignore[arg-type]
    return Conditioner.of(replace(small.model(data).contents, spec=spec), data)


def tasks(found: Conditioner, *valid: str) -> list[str]:
    made = found.reader._task_times(np.array(valid, "datetime64[ms]"))
    return [str(t.astype("datetime64[m]"))[5:] for t in made]


def test_every_time_belongs_to_the_nearest_task() -> None:
    assert tasks(conditioner(), NOON) == ["03-01T12:00"]
    assert tasks(conditioner(lead="6h"), NOON) == ["03-01T06:00"]
    after = conditioner(target_window="[1h, 3h]")
    assert tasks(after, NOON) == ["03-01T11:00"]
    regular = conditioner(target_window="(-6h, 0h]", every="6h")
    assert tasks(regular, NOON, "2019-03-01T12:01", "2019-03-01T17:00") == [
        "03-01T12:00",
        "03-01T18:00",
        "03-01T18:00",
    ]
    with pytest.raises(
        ValueError, match=r"^2019-03-01 13:00 is not in the target window '\[0h, 0h"
    ):
        tasks(conditioner(every="6h"), "2019-03-01T13:00")


@settings(max_examples=examples(60))
@given(
    st.integers(0, 3000),
    st.integers(-20, 20),
    st.integers(1, 20),
    st.integers(-10, 10),
    st.integers(1, 12),
)
def test_tasks_are_the_nearest_by_brute_force(
    minute: int, low: int, length: int, lead: int, every: int
) -> None:
    found = _CONDITIONER.get("it") or _CONDITIONER.setdefault("it", conditioner())
    window = f"[{low}min, {low + length}min)"
    spec = found.spec.model_copy(
        update={"target_window": window, "lead": f"{lead}min", "every": f"{every}min"}
    )
    changed = replace(found, reader=replace(found.reader, spec=spec))
    now = minute - lead
    fits = [
        t for t in range(now - 60, now + 60) if t % every == 0 and low <= now - t < low + length
    ]
    valid = np.array([minute * 60_000], "datetime64[ms]")
    if not fits:
        with pytest.raises(ValueError, match="is not in the target window"):
            changed.reader._task_times(valid)
        return
    task = changed.reader._task_times(valid).astype(np.int64)[0] / 60_000
    assert task in fits
    assert abs(task - now) == min(abs(t - now) for t in fits)


_CONDITIONER: dict[str, Conditioner] = {}


def test_a_forecast_says_when_it_was_made(data: Dataset) -> None:
    model = small.model()
    model.contents = replace(model.contents, spec=TaskSpec.of(data, lead="6h"))
    answer = model.predict(data.at(NOON), grid())
    many = model.predict(data, grid(), times=["2019-03-01T18:00", "2019-03-02T00:00"])
    assert isinstance(answer, xr.Dataset)
    assert isinstance(many, xr.Dataset)
    assert answer.time == np.datetime64("2019-03-01T18:00")
    assert answer.init_time == np.datetime64(NOON)
    np.testing.assert_array_equal(many.init_time, many.time - np.timedelta64(6, "h"))
    np.testing.assert_array_equal(many.t2m_mean[0], answer.t2m_mean)


# ---- much of it ----------------------------------------------------------------------------------


def test_the_chunk_does_not_matter(model: GriddedTNP, data: Dataset) -> None:
    rng = np.random.default_rng(0)
    places = rng.uniform(47, 56, 3 * PIECE + 17), rng.uniform(-5, 5, 3 * PIECE + 17)
    few, many = (model.predict(data.at(NOON), places, chunk=c) for c in (1, 10**6))
    assert isinstance(few, dict)
    assert isinstance(many, dict)
    for name, values in many.items():
        np.testing.assert_array_equal(few[name], values)


MEMORY = """
import re, sys
from pathlib import Path
def peak():  # of this program; that of getrusage includes the parent's before exec
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 2**20
sys.path.insert(0, {tests!r})
import numpy as np, pandas as pd, torch
import small
from gridtnp.data.places import latlon_grid
torch.set_num_threads(1)
model = small.model()
rng = np.random.default_rng(0)
n = {observations}
rows = pd.DataFrame({{
    "lat": rng.uniform(47, 56, n), "lon": rng.uniform(-5, 5, n), "elevation": 100.0,
    "time": np.datetime64("2019-03-01"), "t2m": rng.normal(280, 5, n), "station": np.arange(n),
}})
side = round({points} ** 0.5)
lat, lon = np.linspace(47, 56, side), np.linspace(-5, 5, side)
import xarray as xr
grid = xr.Dataset(coords={{"lat": lat, "lon": lon}})
before = peak()
answer = model.predict({{"stations": rows}}, grid, static={{"elevation": small.heights()}})
assert bool(np.isfinite(answer.t2m_mean).all())
assert answer.t2m_mean.size >= 0.99 * {points}
after = peak()
print(before, after)
"""


def peak(points: int, observations: int) -> tuple[float, float]:
    """GB before and after."""
    code = MEMORY.format(
        tests=str(Path(__file__).parent.parent), points=points, observations=observations
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after = map(float, done.stdout.split())
    return before, after


def test_memory_is_bounded() -> None:
    before, after = peak(200_000, 50_000)
    assert after < 1.5
    assert after - before < 0.6


@pytest.mark.slow
def test_a_million_points_and_800_000_observations() -> None:
    assert peak(1_000_000, 800_000)[1] < 4.0


def test_a_prediction_at_a_context_station_agrees_with_it_within_its_noise() -> None:
    """Also where regression alone is wrong: waves that move from day to day."""
    rng = np.random.default_rng(0)
    lat, lon = rng.uniform(45, 49, 40), rng.uniform(6, 12, 40)
    noise, tables = 0.2, []
    for day in pd.date_range("2001-01-01", periods=24):
        north, east = rng.uniform(0, 2 * np.pi, 2)
        t = 10 + 3 * np.sin(1.5 * lat + north) * np.sin(1.5 * lon + east)
        t = t + rng.normal(0, noise, 40)
        tables.append(pd.DataFrame({"time": day, "lat": lat, "lon": lon, "t": t}))
    rows = pd.concat(tables).assign(station=lambda r: r["lat"].astype(str))
    train, val, test = Dataset({"s": rows}, target="s.t").split(time=["2001-01-17", "2001-01-21"])
    model = GriddedTNP.for_data(train, dim=16, heads=2, layers=1, quiet=True)
    model.fit(train, val, recipe=Recipe(4, 2, 1e-3), quiet=True)
    observed = rows[rows["time"] == "2001-01-22"].reset_index(drop=True)
    found = model.predict(test.at("2001-01-22"), at=observed[["station", "lat", "lon"]])
    error = found["t_mean"].to_numpy() - observed["t"].to_numpy()
    line = np.stack([np.ones(40), lat, lon], 1)
    regression = observed["t"] - line @ np.linalg.lstsq(line, observed["t"], rcond=None)[0]
    assert np.sqrt(np.mean(regression**2)) > 5 * noise
    assert np.sqrt(np.mean(error**2)) < 1.5 * noise
    assert np.abs(error).max() < 4 * noise


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["nc", "zarr"])
@pytest.mark.parametrize("own", [True, False])
def test_grids_stream_to_disk(
    model: GriddedTNP, data: Dataset, tmp_path: Path, ending: str, own: bool
) -> None:
    times = small.TIMES[[1, 2, 3]] + pd.to_timedelta([0, 0, 500], unit="ms")
    asked = grid(2.0)
    if own:
        asked = asked.assign_coords(valid_time=("step", times), lat=asked.lat.astype(np.float32))
        like = xr.zeros_like(asked.lon * asked.valid_time.dt.day * asked.lat).astype(float)
        asked = asked.assign(like=like)
    raw = {} if own else {"times": times}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # half a second after six
        path = model.predict(data, asked, to=tmp_path / f"out.{ending}", **raw)  # type: ignore[arg-type]
        whole = model.predict(data, asked, **raw)  # type: ignore[arg-type]
    assert path == tmp_path / f"out.{ending}"
    assert [p.name for p in tmp_path.iterdir()] == [f"out.{ending}"]
    open_it = xr.open_dataset if ending == "nc" else xr.open_zarr
    assert isinstance(whole, xr.Dataset)
    with open_it(path) as stored:
        assert stored.t2m_mean.dims == (("lon", "step", "lat") if own else ("time", "lat", "lon"))
        for name in whole.variables:
            np.testing.assert_array_equal(stored[name], whole[name])
        assert stored.t2m_mean.attrs == whole.t2m_mean.attrs
        assert stored.lat.values.tobytes() == whole.lat.values.tobytes()
        assert stored.attrs["Conventions"] == "CF-1.11"


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_tables_stream_to_disk(
    model: GriddedTNP, data: Dataset, tmp_path: Path, ending: str
) -> None:
    rows = pd.DataFrame({"lat": [50.0, 51.0, 52.0], "lon": [1.0, 2.0, 3.0], "name": list("abc")})
    path = model.predict(data, rows, times=small.TIMES, to=tmp_path / f"out.{ending}")
    whole = model.predict(data, rows, times=small.TIMES)
    assert isinstance(whole, pd.DataFrame)
    if ending == "csv":
        stored = pd.read_csv(path, parse_dates=["time"])  # type: ignore[arg-type]
    else:
        stored = pd.read_parquet(path)  # type: ignore[arg-type]
        import pyarrow.parquet as pq

        assert pq.ParquetFile(path).num_row_groups == len(small.TIMES)
    pd.testing.assert_frame_equal(
        stored, whole.reset_index(drop=True), check_dtype=False, check_exact=False, atol=1e-5
    )


def test_a_grid_may_become_rows(model: GriddedTNP, data: Dataset, tmp_path: Path) -> None:
    model.predict(data, grid(4.0), times=small.TIMES[:2], to=tmp_path / "out.parquet")
    stored = pd.read_parquet(tmp_path / "out.parquet")
    assert len(stored) == 2 * 3 * 3
    assert {"time", "lat", "lon", "t2m_mean"} <= set(stored)


def test_files_that_cannot_be(model: GriddedTNP, data: Dataset, tmp_path: Path) -> None:
    part, rows = data.at(NOON), pd.DataFrame({"lat": [50.0], "lon": [1.0]})
    with pytest.raises(ValueError, match=r"^A table cannot be written to .*out\.nc'; use \.parq"):
        model.predict(part, rows, to=tmp_path / "out.nc")
    with pytest.raises(
        ValueError, match=r"^Arrays cannot be written to .*; ask for a table or a grid"
    ):
        model.predict(part, ([50.0], [1.0]), to=tmp_path / "out.csv")
    with pytest.raises(ValueError, match=r"^Predictions cannot be written to .*out\.grib'; use"):
        model.predict(part, rows, to=tmp_path / "out.grib")
    with pytest.raises(FileNotFoundError, match=r"^No such folder: .*none'; create it"):
        model.predict(part, rows, to=tmp_path / "none" / "out.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["nc", "zarr"])
def test_what_is_there_survives(
    model: GriddedTNP, data: Dataset, tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"out.{ending}"
    model.predict(data.at(NOON), grid(4.0), to=path)
    with pytest.raises(FileExistsError, match=r"already exists; pass overwrite=True to replace it"):
        model.predict(data.at(NOON), grid(4.0), to=path)
    with pytest.raises(ValueError, match=r"^Nothing can be predicted: 100 of 100 points lie"):
        model.predict(
            data.at(NOON), latlon_grid(lat=(0, 9), lon=(0, 9), step=1), to=path, overwrite=True
        )
    open_it = xr.open_dataset if ending == "nc" else xr.open_zarr
    with open_it(path) as stored:
        assert stored.sizes == {"lat": 3, "lon": 3}
    model.predict(data.at(NOON), grid(2.0), to=path, overwrite=True)
    with open_it(path) as stored:
        assert stored.sizes == {"lat": 5, "lon": 5}
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
