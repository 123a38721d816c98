"""`gt.interpolate`: invariances, forms, times, covariates, and sentences for bad input."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import gridtnp as gt
from gridtnp.pretrain.fields import FieldPrior, draw_at

RNG = np.random.default_rng(0)
X = RNG.random((60, 2)) * 10
Y = np.sin(X[:, 0]) + 0.5 * np.cos(X[:, 1] / 2) + 0.1 * RNG.normal(size=60)
AT = RNG.random((25, 2)) * 10


def plain(x: np.ndarray = X, y: np.ndarray = Y, at: np.ndarray = AT, **options) -> dict:
    found = gt.interpolate((x, y), at, **options)
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def expected() -> dict:
    return plain()


def same(found: dict, expected: dict, rtol: float = 1e-4) -> None:
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=rtol, atol=rtol, err_msg=name)


def test_a_smooth_field_is_interpolated(expected: dict) -> None:
    truth = np.sin(AT[:, 0]) + 0.5 * np.cos(AT[:, 1] / 2)
    assert np.abs(expected["mean"] - truth).mean() < 0.3 * Y.std()
    assert (np.abs(expected["mean"] - truth) < 3 * expected["std"]).all()
    assert (expected["q05"] < expected["mean"]).all()
    assert (expected["mean"] < expected["q95"]).all()


def test_units_of_the_values_do_not_matter(expected: dict) -> None:
    found = plain(y=1.8 * Y + 32)
    same(found, {"mean": 1.8 * expected["mean"] + 32, "std": 1.8 * expected["std"]})


def test_shift_and_scale_of_the_coordinates_do_not_matter(expected: dict) -> None:
    same(plain(1000 * X + 5e4, at=1000 * AT + 5e4), expected)


def test_the_order_of_rows_does_not_matter(expected: dict) -> None:
    order = np.random.default_rng(1).permutation(len(Y))
    same(plain(X[order], Y[order]), expected)


def test_the_order_of_rows_does_not_matter_on_a_lattice() -> None:
    x = np.stack(np.meshgrid(np.arange(7.0), np.arange(7.0)), -1).reshape(-1, 2)
    y, at = np.sin(x @ [1.0, 0.7]), np.array([[2.3, 3.1], [3.0, 3.0]])
    order = np.random.default_rng(1).permutation(len(y))
    same(plain(x[order], y[order], at), plain(x, y, at))


@pytest.mark.parametrize("turn", [[[0, 1], [-1, 0]], [[-1, 0], [0, 1]], [[0, 1], [1, 0]]])
def test_rotation_by_a_right_angle_and_mirroring_do_not_matter(turn: list, expected: dict) -> None:
    matrix = np.array(turn, float)
    same(plain(X @ matrix, at=AT @ matrix), expected)


MANY = np.random.default_rng(5).random((600, 2)) * 30
"""Places that are interpolated in tiles."""


@pytest.mark.parametrize("what", ["units", "order", "scale", "turned", "mirrored"])
def test_the_same_holds_for_many_observations(what: str) -> None:
    x, at = MANY, np.random.default_rng(6).random((200, 2)) * 30
    y = np.sin(x[:, 0] / 2) + np.cos(x[:, 1] / 3) + 0.1 * np.random.default_rng(7).normal(size=600)
    expected, factor, tolerance = plain(x, y, at), 1.0, 1e-3
    match what:
        case "units":
            y, factor = 1.8 * y, 1.8
        case "order":
            order = np.random.default_rng(1).permutation(600)
            x, y = x[order], y[order]
        case "scale":
            x, at = 1000 * x + 5e4, 1000 * at + 5e4
        case "turned":
            x, at, tolerance = x @ [[0, 1], [-1, 0]], at @ [[0, 1], [-1, 0]], 0.05  # other tiles
        case _:
            x, at, tolerance = x * [-1, 1], at * [-1, 1], 0.05
    found = plain(x, y, at)
    error = np.abs(found["mean"] / factor - expected["mean"]) / expected["std"]
    assert error.max() < tolerance
    np.testing.assert_allclose(found["std"], factor * expected["std"], rtol=tolerance)


def test_duplicated_rows_sharpen_no_more_than_second_readings_would(expected: dict) -> None:
    twice = plain(np.concatenate([X, X]), np.concatenate([Y, Y]))
    assert np.median(twice["std"] / expected["std"]) > 0.98  # the same reading, given twice
    noisy = Y + 0.1 * np.random.default_rng(2).normal(size=60)
    second = plain(np.concatenate([X, X]), np.concatenate([Y, noisy]))
    assert np.median(second["std"] / expected["std"]) > 1 / np.sqrt(2)


def test_far_from_all_observations_the_spread_grows(expected: dict) -> None:
    far = plain(at=np.array([[60.0, 60.0]]))
    assert far["std"][0] > 1.5 * np.median(expected["std"])


def test_samples_have_the_predicted_moments_and_are_smooth(expected: dict) -> None:
    at = np.concatenate([AT, AT + 1e-3])
    found = plain(at=at, samples=300)
    drawn = np.stack([found[f"sample{i + 1}"] for i in range(300)])
    error = (drawn.mean(0) - found["mean"]) / found["std"]
    assert np.abs(error).max() < 0.35
    assert np.abs(drawn.std(0) / found["std"] - 1).max() < 0.35
    same({"mean": found["mean"][:25]}, {"mean": expected["mean"]})


# ---- forms ---------------------------------------------------------------------------------------


def stations(number: int = 30) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    lat, lon = rng.uniform(45, 50, number), rng.uniform(5, 12, number)
    elevation = rng.uniform(0, 2000, number)
    t = 20 - 0.0065 * elevation + np.sin(lat) + 0.1 * rng.normal(size=number)
    return pd.DataFrame({"lat": lat, "lon": lon, "elevation": elevation, "t": t})


def test_a_table_of_stations_becomes_a_grid() -> None:
    grid = gt.latlon_grid(lat=(46, 49), lon=(6, 11), step=1)
    found = gt.interpolate(stations(), grid, quantiles=(0.1,), samples=2)
    assert isinstance(found, xr.Dataset)
    assert set(found) == {"t_mean", "t_std", "t_q10", "t_sample"}
    assert found["t_sample"].dims == ("sample", "lat", "lon")


def test_a_table_may_have_a_column_in_its_index_too() -> None:
    table = stations().assign(station=[f"S{i}" for i in range(30)])
    indexed = table.set_index("station", drop=False)
    found, plain = gt.interpolate(indexed, indexed), gt.interpolate(table, table)
    np.testing.assert_array_equal(found["t_mean"], plain["t_mean"])
    assert found.index.equals(indexed.index)
    plane = indexed.rename(columns={"lat": "y", "lon": "x"})
    assert len(gt.interpolate(plane, plane)) == 30


def test_an_xarray_field_with_gaps_is_filled() -> None:
    lat, lon = np.arange(40.0, 50), np.arange(0.0, 10)
    field = xr.DataArray(
        np.sin(lat)[:, None] + np.cos(lon), {"lat": lat, "lon": lon}, ("lat", "lon"), "t"
    )
    holes = field.where(np.random.default_rng(0).random(field.shape) > 0.3)
    found = gt.interpolate(holes, field)
    assert isinstance(found, xr.Dataset)
    assert float(abs(found["t_mean"] - field).mean()) < 0.15


def test_covariates_as_columns_as_a_field_and_as_arrays_agree() -> None:
    table, places = stations(), stations(40).iloc[30:]
    by_name = gt.interpolate(table, places.drop(columns="t"), covariates="elevation")
    assert isinstance(by_name, pd.DataFrame)
    assert np.abs(by_name["t_mean"] - places["t"]).mean() < 0.5
    plane = table.rename(columns={"lon": "x", "lat": "y"})
    target = places.rename(columns={"lon": "x", "lat": "y"})
    named = gt.interpolate(plane, target, value="t", covariates=["elevation"])
    arrays = gt.interpolate(
        (table[["lon", "lat"]].to_numpy(), table["t"].to_numpy()),
        places[["lon", "lat"]].to_numpy(),
        covariates=(table["elevation"], places["elevation"]),
    )
    assert isinstance(named, pd.DataFrame)
    assert isinstance(arrays, dict)
    np.testing.assert_allclose(named["t_mean"], arrays["mean"])
    lat, lon = np.arange(44.0, 52), np.arange(4.0, 14)
    flat = xr.DataArray(np.add.outer(lat, lon), {"lat": lat, "lon": lon}, ("lat", "lon"), "h")
    own = gt.interpolate(
        table.assign(h=table["lat"] + table["lon"]),
        places.assign(h=places["lat"] + places["lon"]),
        value="t",
        covariates="h",
    )
    field = gt.interpolate(table, places, value="t", covariates=flat)
    assert isinstance(own, pd.DataFrame)
    assert isinstance(field, pd.DataFrame)
    np.testing.assert_allclose(own["t_mean"], field["t_mean"], rtol=1e-6)


def test_each_time_is_interpolated_by_itself() -> None:
    table = pd.concat([stations().assign(time=t) for t in ("2020-01-01", "2020-01-02")])
    table.loc[table["time"] == "2020-01-02", "t"] += 5
    places = stations(33).iloc[30:][["lat", "lon"]]
    found = gt.interpolate(table, places, value="t")
    assert isinstance(found, pd.DataFrame)
    first, second = (
        found[found["time"] == t]["t_mean"].to_numpy() for t in np.unique(found["time"])
    )
    np.testing.assert_allclose(second - first, 5.0, rtol=1e-6)
    later = gt.interpolate(table, places.assign(time="2020-01-02"), value="t")
    assert isinstance(later, pd.DataFrame)
    np.testing.assert_allclose(later["t_mean"], second)
    with pytest.warns(UserWarning, match="3 places are at times without observations"):
        gt.interpolate(table, places.assign(time="2021-01-02"), value="t")


def test_the_date_line_and_the_pole_are_places_as_others() -> None:
    rng = np.random.default_rng(0)
    lat, lon = 85 + 5 * rng.random(40), rng.uniform(-180, 180, 40)
    table = pd.DataFrame({"lat": lat, "lon": lon, "t": np.cos(np.deg2rad(lon)) * (90 - lat)})
    at = ([90.0, 90.0, 86.0, 86.0], [0.0, 123.0, 180.0, -180.0])
    found = gt.interpolate(table, at)
    assert isinstance(found, dict)
    np.testing.assert_allclose(found["t_mean"][::2], found["t_mean"][1::2], atol=1e-9)


# ---- bad input -----------------------------------------------------------------------------------


def test_two_observations_are_too_few() -> None:
    with pytest.raises(ValueError, match="2 observations are too few to interpolate; at least 3"):
        plain(X[:2], Y[:2])


def test_equal_values_say_nothing_of_the_spread() -> None:
    with pytest.raises(ValueError, match="All 60 observations are 1, which says nothing"):
        plain(y=np.ones(60))


def test_one_place_is_not_enough() -> None:
    with pytest.raises(ValueError, match="All 60 observations are at one place"):
        plain(np.ones((60, 2)))


def test_missing_values_are_left_out_and_counted() -> None:
    y = np.where(np.arange(60) < 3, np.nan, Y)
    with pytest.warns(UserWarning, match="3 of 60 observations are NaN and are left out"):
        found = plain(y=y)
    same(found, plain(X[3:], Y[3:]))
    y[3] = np.inf
    with pytest.warns(UserWarning, match="4 of 60 observations are NaN or infinite and are left"):
        plain(y=y)
    with pytest.warns(UserWarning, match="1 of 57 observations are infinite and are left out"):
        plain(X[3:], y[3:])


@pytest.mark.parametrize("form", ["table", "xarray"])
def test_a_time_without_values_is_nan_and_named(form: str) -> None:
    grid = gt.latlon_grid(lat=(46, 49), lon=(6, 9), step=1)
    days = xr.Dataset(
        {"t": (("time", "lat", "lon"), np.random.default_rng(0).normal(size=(2, 4, 4)))},
        {"time": pd.date_range("2020-01-01", periods=2), "lat": grid["lat"], "lon": grid["lon"]},
    )
    days["t"][1] = np.nan
    given = days if form == "xarray" else days.to_dataframe().reset_index()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = gt.interpolate(given, grid)
    texts = [str(w.message) for w in told]
    assert any(re.match("2020-01-02.*: 0 observations are too few", text) for text in texts)
    assert isinstance(found, xr.Dataset)
    assert bool(found["t_mean"].isel(time=0).notnull().all())
    assert bool(found["t_mean"].isel(time=1).isnull().all())


@pytest.mark.parametrize(
    "observed", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 10))]
)
def test_intervals_hold_with_few_observations(observed: int) -> None:
    inside = []
    for number in range(60):
        task = draw_at(FieldPrior(), (77, observed, number), 1, observed, 24).task
        context, target = task.context["observations"], task.target
        x, y, at, truth = (
            np.asarray(part[0], float) for part in (context.x, context.y, target.x, target.y)
        )
        if len(np.unique(x, axis=0)) > 1:
            found = plain(x, y[:, 0] - 1e3, at)  # far from zero
            inside.append((found["q05"] < truth[:, 0] - 1e3) & (truth[:, 0] - 1e3 < found["q95"]))
    assert 0.84 < np.mean(inside) < 0.95


# ---- values that are never negative --------------------------------------------------------------

RAIN = np.maximum(Y, 0)


def test_what_is_never_negative_is_not_predicted_so(expected: dict) -> None:
    found = plain(y=RAIN, quantiles=(0.05, 0.5, 0.95), exceed=[0, 0.5], samples=400)
    assert min(found[name].min() for name in found) >= 0
    assert (found["q05"] == 0).any()
    drawn = np.stack([found[f"sample{i + 1}"] for i in range(400)])
    assert drawn.min() == 0
    np.testing.assert_allclose(drawn.mean(0), found["mean"], atol=0.08)
    np.testing.assert_allclose(drawn.std(0), found["std"], atol=0.08)
    np.testing.assert_allclose((drawn > 0.5).mean(0), found["above_0.5"], atol=0.1)
    np.testing.assert_allclose((drawn > 0).mean(0), found["above_0"], atol=0.1)
    scaled = plain(y=25.4 * RAIN, quantiles=(0.05, 0.5, 0.95), exceed=[0, 12.7])
    for name in ("mean", "std", "q05", "q50", "q95"):
        np.testing.assert_allclose(scaled[name], 25.4 * found[name], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(scaled["above_12.7"], found["above_0.5"], atol=1e-4)
    assert expected["q05"].min() < 0
    assert (plain(y=RAIN, exceed=-1)["above_-1"] == 1).all()


def test_kelvins_and_degrees_are_not_clipped(expected: dict) -> None:
    far = Y - Y.min() + 2.1 * Y.std()
    same(plain(y=far), {"q05": expected["q05"] - Y.min() + 2.1 * Y.std()})
    near = Y - Y.min()
    assert plain(y=near, value="tmax", quantiles=[0.001])["tmax_q001"].min() < 0
    assert plain(y=near, value="rain", quantiles=[0.001])["rain_q001"].min() == 0


def test_probabilities_have_columns_as_in_predict(tmp_path: Path) -> None:
    from gridtnp.cli.commands import main

    stations().drop(columns="elevation").to_csv(tmp_path / "obs.csv", index=False)
    words = ["interpolate", str(tmp_path / "obs.csv"), "--at", "lat=46:49,lon=6:11,step=1"]
    main([*words, "-o", str(tmp_path / "map.nc"), "--exceed", "10", "0.5"])
    with xr.open_dataset(tmp_path / "map.nc") as found:
        assert found["t_above_10"].attrs["long_name"] == "probability of t > 10"
        assert bool((found["t_above_10"] <= found["t_above_0.5"]).all())


def test_the_command_names_a_column_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gridtnp.cli.commands import main

    monkeypatch.chdir(tmp_path)
    stations().to_csv(tmp_path / "places.csv", index=False)
    stations().assign(rain=1.0).to_csv(tmp_path / "obs.csv", index=False)
    with pytest.raises(SystemExit):
        main(["interpolate", str(tmp_path / "obs.csv"), "--at", "places.csv", "-o", "map.csv"])
    assert "has several: ['t', 'rain']; name it: --value t." in capsys.readouterr().err


def test_values_that_often_stand_for_missing_are_named() -> None:
    values = np.append(Y[:-2], [-9999, -9999])
    message = r"^2 of 60 observations: t is -9999, which often stands for missing; make it NaN\.$"
    with pytest.warns(UserWarning, match=message):
        plain(y=values, value="t")


@pytest.mark.parametrize("names", [("X", "Y"), ("Easting", "Northing")])
def test_a_plane_may_be_in_capital_letters(names: tuple[str, str], expected: dict) -> None:
    table, at = (pd.DataFrame(rows, columns=[*names]) for rows in (X, AT))
    found = gt.interpolate(table.assign(t=Y), at)
    same({"mean": found["t_mean"]}, {"mean": expected["mean"]})
    grid = xr.Dataset(coords={names[0]: [2.0, 3.0], names[1]: [4.0]})
    if names[0] == "X":
        found = gt.interpolate(table.assign(t=Y), grid)
        same(
            {"mean": found["t_mean"].squeeze()},
            {"mean": plain(at=np.array([[2, 4], [3, 4]]))["mean"]},
        )
    with pytest.raises(ValueError, match=r"^The places have latitudes and longitudes, but the obs"):
        gt.interpolate(table.assign(t=Y), pd.DataFrame({"lat": [1.0], "lon": [2.0]}))


def test_missing_places_are_refused() -> None:
    with pytest.raises(ValueError, match="Some observations have no place"):
        plain(np.where(np.arange(120).reshape(60, 2) < 2, np.nan, X))
    with pytest.raises(ValueError, match="Some places are NaN or infinite; drop them"):
        plain(at=np.array([[np.nan, 1.0]]))


def test_a_place_without_its_covariate_is_nan_and_said() -> None:
    places = stations(33).iloc[30:].drop(columns="t")
    places.iloc[0, 2] = np.nan
    with pytest.warns(UserWarning, match="1 of 3 places have no covariate; their answer is NaN"):
        found = gt.interpolate(stations(), places, covariates="elevation")
    assert isinstance(found, pd.DataFrame)
    assert found["t_mean"].isna().tolist() == [True, False, False]
    with pytest.raises(ValueError, match="The places have no column 'elevation', a covariate"):
        gt.interpolate(stations(), places[["lat", "lon"]], covariates="elevation")
    with pytest.raises(ValueError, match="Unknown covariate 'elevatoin'"):
        gt.interpolate(stations(), places, covariates="elevatoin")


def test_unclear_tables_are_refused() -> None:
    table = stations()
    with pytest.raises(
        ValueError, match=r"the table has several: \['t', 'u'\]; name it: value='t'"
    ):
        gt.interpolate(table.assign(u=1.0), table)
    with pytest.raises(ValueError, match="Unknown column 'tt'"):
        gt.interpolate(table, table, value="tt")
    with pytest.raises(ValueError, match="no latitude 'lat' or 'y' among"):
        gt.interpolate(table[["t", "lon"]], table)
    with pytest.raises(ValueError, match="cannot be a list"):
        gt.interpolate([1, 2], table)
    with pytest.raises(ValueError, match="latitude 145"):
        gt.interpolate(table.assign(lat=table["lat"] + 100), table)
    with pytest.raises(ValueError, match="the places are an array"):
        gt.interpolate(table, np.zeros((2, 2)), value="t")
    with pytest.raises(ValueError, match="do not match; give one row and one value"):
        gt.interpolate((X, Y[:5]), AT)
    with pytest.raises(ValueError, match="do not have the 2 coordinates"):
        plain(at=np.zeros((3, 3)))


def test_places_on_a_line_are_interpolated() -> None:
    x = np.linspace(0, 10, 60)
    at = np.array([1.05, 7.3])
    found = plain(x, np.sin(x), at)
    np.testing.assert_allclose(found["mean"], np.sin(at), atol=0.05)
    same(plain(x[:, None], np.sin(x), at[:, None]), found)


def test_samples_are_a_number_from_zero_on() -> None:
    with pytest.raises(ValueError, match="samples=-1: must be the number of samples"):
        plain(samples=-1)


def test_covariates_need_a_row_per_place_and_more_observations_than_there_are() -> None:
    with pytest.raises(ValueError, match="do not match 60 observations and 25 places; give a row"):
        plain(covariates=(np.ones(60), np.ones(24)))
    some, there = RNG.random((6, 4)), RNG.random((25, 4))
    with pytest.raises(ValueError, match="6 observations are too few for 4 covariates; give at le"):
        plain(X[:6], Y[:6], covariates=(some, there))


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_writes_a_map_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gridtnp.cli.commands import main

    stations().drop(columns="elevation").to_csv(tmp_path / "obs.csv", index=False)
    words = ["interpolate", str(tmp_path / "obs.csv"), "--at", "lat=46:49,lon=6:11,step=1"]
    main([*words, "-o", str(tmp_path / "map.nc"), "--plot"])
    assert (tmp_path / "map.png").stat().st_size > 10_000
    assert "map.nc" in capsys.readouterr().out
    with xr.open_dataset(tmp_path / "map.nc") as found:
        assert {"t_mean", "t_std", "t_q05", "t_q95"} <= set(found)
    with pytest.raises(SystemExit):
        main([*words, "-o", str(tmp_path / "map.nc")])
    assert "already exists" in capsys.readouterr().err


def test_the_picture_has_the_observations_of_its_time_and_says_that_they_were_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    from gridtnp.cli.commands import main

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, _: drawn.append(figure))
    days = pd.concat([stations().assign(valid_time=f"2020-01-0{d}T12:00Z") for d in (1, 2)])
    days.drop(columns="elevation").iloc[:-3].to_csv(tmp_path / "obs.csv", index=False)
    words = ["interpolate", str(tmp_path / "obs.csv"), "--at", "lat=46:49,lon=6:11,step=1"]
    main([*words, "-o", str(tmp_path / "map.nc"), "--plot"])
    axes = drawn[0].axes
    assert drawn[0].get_suptitle() == "t, 2020-01-02 12:00 UTC"
    inside = stations().iloc[:-3].query("46 <= lat <= 49 and 6 <= lon <= 11")
    np.testing.assert_allclose(axes[1].collections[0].get_offsets(), inside[["lon", "lat"]])
    assert axes[2].get_title() == "misfit at the observations used"
