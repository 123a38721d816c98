"""Datasets: descriptions, warnings, units, static features and splits."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import jaxtyping
import numpy as np
import pandas as pd
import pytest
import weather
import xarray as xr
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from gridtnp.data.dataset import Dataset
from gridtnp.design.grids import extent_of
from gridtnp.sources.coordinates import wrap
from gridtnp.sources.quality import DataWarning
from gridtnp.sources.source import Records


def dataset(**more: object) -> Dataset:
    return Dataset({"stations": weather.stations()}, target="stations.t2m", **more)  # type: ignore[arg-type]


def heights() -> xr.DataArray:
    lat, lon = np.arange(45.0, 60.0), np.arange(-6.0, 7.0)
    return xr.DataArray(lat[:, None] * 10 + lon, {"lat": lat, "lon": lon}, ("lat", "lon"), "height")


def test_a_global_field_does_not_tear_stations_across_the_date_line() -> None:
    stations = weather.stations().assign(lon=lambda t: (t.lon + 179.0 + 180.0) % 360.0 - 180.0)
    lat, lon = np.arange(-90.0, 91.0, 10.0), np.arange(-180.0, 180.0, 10.0)
    shape = (len(weather.TIMES), len(lat), len(lon))
    coordinates = {"time": weather.TIMES, "lat": lat, "lon": lon}
    field = xr.Dataset({"t2m": (("time", "lat", "lon"), np.ones(shape))}, coordinates)
    data = Dataset({"stations": stations, "era5": field}, target="stations.t2m")
    assert np.ptp(wrap(data.sources["stations"].lon, data.west)) < 10.0
    assert extent_of(data).east - extent_of(data).west < 100.0
    assert Dataset({"stations": stations, "era5": field}, target="era5.t2m").west == -180.0


# ---- contents ------------------------------------------------------------------------------------


def test_the_description_lists_sources_and_features(capsys: pytest.CaptureFixture[str]) -> None:
    data = Dataset(
        {"stations": weather.stations(), "era5": weather.field()},
        target="stations.t2m",
        features=("day_of_year",),
        units={"stations.t2m": "K"},
    )
    data.describe()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Dataset (all) to predict stations.t2m"
    assert lines[1].startswith("  stations: 96 observations at 12 stations, ")
    assert lines[1].endswith(" E, 2019-03-01 to 2019-03-08")
    assert lines[2].startswith("    t2m  K, ")
    assert lines[3] == "    known at each place: elevation"
    assert lines[4].startswith("  era5: grid of 4 × 5, 6 times, 50 to 53.75 N, -2.5 to 2.5 E, ")
    assert lines[-1] == "  features: day_of_year_sin, day_of_year_cos"


def test_units_of_a_whole_source_are_those_of_its_variables() -> None:
    frame = weather.stations().assign(gust=5.0, sigma=0.5)
    data = Dataset(
        {"stations": frame},
        target="stations.t2m",
        units={"stations": "K"},
        error={"stations.t2m": "sigma"},
    )
    units = {v.name: v.units for v in data.sources["stations"].variables}
    assert units["t2m"] == units["gust"] == "K"
    assert units["sigma"] != "K"


def test_what_is_dropped_is_warned_about_and_logged(tmp_path: Path) -> None:
    frame = weather.stations()
    frame = pd.concat([frame, frame.iloc[:2]], ignore_index=True)
    with pytest.warns(
        DataWarning, match=r"^stations: 2 of 98 dropped: duplicates \(for example row 96"
    ):
        data = Dataset({"stations": frame}, target="stations.t2m")
    assert "2 of 98 dropped: duplicates" in repr(data)
    data.write_log(tmp_path / "data.json")
    log = json.loads((tmp_path / "data.json").read_text())
    assert log["notes"][0]["count"] == 2
    assert log["notes"][0]["example"].startswith("row 96: S00 at 2019-03-01")
    assert log["target"] == ["stations.t2m"]
    assert log["fingerprint"] == data.fingerprint()


def test_the_fingerprint_is_of_the_data() -> None:
    frame = weather.stations()
    same = Dataset({"stations": frame.sample(frac=1.0, random_state=0)}, target="stations.t2m")
    other = Dataset({"stations": frame.assign(t2m=frame.t2m + 1)}, target="stations.t2m")
    assert dataset().fingerprint() == same.fingerprint()
    assert dataset().fingerprint() != other.fingerprint()


def test_units_that_differ_between_sources_are_reported() -> None:
    frame = weather.stations()
    frame.attrs["units"] = {"t2m": "degC"}
    with pytest.warns(
        DataWarning, match=r"era5: 1 noticed: units differ, t2m is in K here and in degC"
    ):
        Dataset({"stations": frame, "era5": weather.field()}, target="stations.t2m")
    with pytest.warns(
        DataWarning, match=r"units unknown, t2m differs from that of stations as K does from °C"
    ):
        Dataset({"stations": weather.stations(), "era5": weather.field()}, target="stations.t2m")


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn shape checks off, to pass wrong types on purpose."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.usefixtures("unchecked")
def test_names_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^Unknown source 'station'; did you mean 'stations'\?$"):
        Dataset({"stations": weather.stations()}, target="station.t2m")
    with pytest.raises(ValueError, match=r"^Unknown feature 'months'; did you mean 'month'\?$"):
        dataset(features=("months",))
    with pytest.raises(ValueError, match=r"^Source name 'a\.b': must be printable, without dots"):
        Dataset({"a.b": weather.stations()}, target="a.b.t2m")
    with pytest.raises(ValueError, match=r"^sources is empty: a dataset needs at least one"):
        Dataset({}, target="a.b")
    with pytest.raises(TypeError, match=r"^Source 'a' is of type dict; it must be a pandas table"):
        Dataset({"a": {"lat": [1]}}, target="a.b")  # type: ignore[dict-item]
    two = {"a": weather.stations(), "b": weather.stations()}
    with pytest.raises(
        ValueError, match=r"^The targets are of sources \['a', 'b'\]; they must be of one"
    ):
        Dataset(two, target=["a.t2m", "b.t2m"])


def test_variables_with_missing_values_become_separate_context_sets() -> None:
    frame = weather.stations().assign(rain=1.0)
    assert Dataset({"s": frame}, target="s.t2m").contexts == ("s",)
    frame.loc[3, "rain"] = np.nan
    assert Dataset({"s": frame}, target="s.t2m").contexts == ("s.rain", "s.t2m")


def test_rows_with_some_of_several_targets_are_counted() -> None:
    frame = weather.stations().assign(rain=1.0)
    frame.loc[[3, 5], "rain"] = np.nan
    frame.loc[[5], "t2m"] = np.nan  # neither is there
    both = Dataset({"s": frame}, target=["s.t2m", "s.rain"])
    assert f"s: 1 of {len(frame) - 1} masked: as targets: only some of the target" in str(both)
    assert "as targets" not in str(Dataset({"s": frame}, target="s.t2m"))


def test_context_sets_do_not_depend_on_the_memory() -> None:
    ds = weather.field()
    ds["u10"] = ds["u10"].where(ds.lat > 51)
    for memory in (2**20, 200):
        data = Dataset({"g": ds}, target="g.t2m", memory=memory)
        assert (data.sources["g"].loaded is None) == (memory == 200)
        assert data.contexts == ("g.t2m", "g.u10")
    assert "u10  m s-1, on disk, 25 % missing at the first time" in repr(data)
    assert "t2m  K, on disk, not scanned" in repr(data)


def test_the_description_of_many_variables_lazy_sources_and_parts(tmp_path: Path) -> None:
    ds = weather.field(np.float32)
    many = xr.Dataset({f"v{i}": ds.t2m + i for i in range(5)})
    many.to_zarr(tmp_path / "a.zarr", consolidated=False)
    data = Dataset({"g": tmp_path / "a.zarr"}, target="g", memory=500)
    assert repr(data).startswith("Dataset (all) to predict 5 variables of g\n")
    assert "v0  K, on disk, not scanned" in repr(data)
    assert [v.units for v in data.target] == ["K"] * 5
    assert len(data.fingerprint()) == 32
    train, val, _ = dataset().split(["2019-03-04", "2019-03-06"], hold_out_stations=0.5)
    assert repr(train).startswith("Dataset (train) to predict stations.t2m, before 2019-03-04\n")
    assert (
        repr(val)
        .splitlines()[0]
        .endswith("from 2019-03-04 and before 2019-03-06, at held-out locations")
    )


def test_missing_values_are_shown() -> None:
    frame = weather.stations()
    frame.loc[:23, "t2m"] = np.nan
    assert "20.19, 25 % missing" in repr(Dataset({"s": frame}, target="s.t2m"))


# ---- features ------------------------------------------------------------------------------------


def test_static_fields_are_sampled_at_every_place() -> None:
    data = Dataset(
        {"stations": weather.stations(), "era5": weather.field()[["u10"]]},
        target="stations.t2m",
        static={"height": heights()},
        features=("hour",),
    )
    assert data.feature_names == ("height", "hour_sin", "hour_cos")
    for source in data.sources.values():
        expected = source.lat * 10 + source.lon
        np.testing.assert_allclose(data.static_at(source.name)[:, 0], expected, rtol=1e-5)
    everywhere = data.features_at(
        np.array([50.5]), np.array([0.5]), np.array(["2019-03-01T06:00"], "datetime64[ms]")
    )
    np.testing.assert_allclose(everywhere, [[505.5, 1, 0]], atol=1e-4)


@pytest.mark.parametrize("name", ["elev", "elevation", "altitude"])
def test_a_station_knows_its_own_elevation_better(name: str) -> None:
    frame = weather.stations().rename(columns={"elevation": "elev"})
    frame.loc[frame.station == "S03", "elev"] = np.nan
    data = Dataset({"stations": frame}, target="stations.t2m", static={name: heights()})
    source = data.sources["stations"]
    known = np.isfinite(source.columns["elev"])
    np.testing.assert_array_equal(
        data.static_at("stations")[known, 0], source.columns["elev"][known]
    )
    expected = (source.lat * 10 + source.lon)[~known]
    assert len(expected) == 8
    np.testing.assert_allclose(data.static_at("stations")[~known, 0], expected, rtol=1e-5)


def test_static_fields_may_come_as_one_dataset() -> None:
    both = xr.Dataset({"height": heights(), "slope": heights() * 0 + 2})
    data = dataset(static=both)
    assert data.feature_names == ("height", "slope")
    assert (data.static_at("stations")[:, 1] == 2).all()
    assert data.features_at(np.array([50.0]), np.array([0.0])).tolist() == [[500.0, 2.0]]


def test_a_column_alone_serves_its_own_source_alone() -> None:
    static = {"height": "stations.elevation"}
    data = dataset(static=static)
    assert data.feature_names == ("height",)
    with pytest.raises(
        ValueError, match=r"^Feature 'height' is known only at stations; to predict elsewhere"
    ):
        data.features_at(np.array([50.0]), np.array([0.0]))
    sources = {"stations": weather.stations(), "era5": weather.field()[["u10"]]}
    with pytest.raises(
        ValueError, match=r"^Source 'era5' has no column for feature 'height', which every source"
    ):
        Dataset(sources, target="stations.t2m", static=static)
    with pytest.raises(
        ValueError, match=r"^Unknown column 'elev' of source 'stations'; did you mean"
    ):
        dataset(static={"height": "stations.elev"})


def test_locations_without_a_static_value_are_masked() -> None:
    small = heights().sel(lat=slice(45, 50))
    data = dataset(static={"height": small})
    (note,) = data.notes
    assert note.action == "masked"
    assert note.why == "no value of ['height'] there"
    source = data.sources["stations"]
    assert note.count == int((source.lat > 51).sum())


def test_a_static_field_must_be_one() -> None:
    with pytest.raises(
        ValueError, match=r"^Static field 't2m' has 6 times; select one, e\.g\. ds\.isel\(time=0\)"
    ):
        dataset(static={"t2m": weather.field()[["t2m"]]})
    with pytest.raises(
        ValueError, match=r"^Static field 'h' is not on a latitude-longitude grid; to use a column"
    ):
        dataset(static={"h": weather.stations(days=1)})


@pytest.mark.parametrize("called", ["elevation", "Altitude", "height"])
@pytest.mark.parametrize("other", [heights() * 0, weather.field()["t2m"]])
def test_a_static_field_is_found_by_its_name_in_a_dataset(called: str, other: xr.DataArray) -> None:
    name = "elevation" if called == "Altitude" else called
    terrain = heights().interp(lat=weather.LATS, lon=weather.LONS)
    other = other.reindex_like(terrain)
    frame = weather.stations().drop(columns="elevation")
    for source in (xr.Dataset({called: terrain, "a": other}), xr.Dataset({called: terrain})):
        data = Dataset({"s": frame}, target="s.t2m", static={name: source})
        assert data.features_at(np.array([52.5]), np.array([0.0])).tolist() == [[525.0]]


def test_a_static_field_that_no_name_tells_is_chosen() -> None:
    still = xr.Dataset({"b": heights(), "a": heights() * 0})
    with pytest.raises(
        ValueError,
        match=r"^None of \['a', 'b'\] is called 'elevation'; choose one of them: "
        r"static=\{'elevation': ds\['a'\]\}\.$",
    ):
        dataset(static={"elevation": still})
    terrain = heights().interp(lat=weather.LATS, lon=weather.LONS)
    data = dataset(static={"relief": weather.field().assign(b=terrain)})  # the only one
    assert data.features_at(np.array([52.5]), np.array([0.0])).tolist() == [[525.0]]


def test_features_of_time_need_times() -> None:
    frame = weather.stations(days=1).drop(columns="time")
    data = Dataset({"s": frame}, target="s.t2m", features=("month",))
    with pytest.raises(ValueError, match=r"^Features \['month'\] need times, but there are none"):
        data.features_at(np.array([50.0]), np.array([0.0]))


# ---- splits --------------------------------------------------------------------------------------


def targets(data: Dataset) -> set[tuple[str, str]]:
    """Which station at which time a part may predict."""
    source = data.sources[data.target_source]
    assert isinstance(source, Records)
    assert source.times is not None
    assert source.labels is not None
    keep = np.ones(source.size, bool) if data.target_places is None else data.target_places.copy()
    if data.period is not None:
        keep &= (source.times >= data.period[0]) & (source.times < data.period[1])
    return {(str(a), str(b)) for a, b in zip(source.labels[keep], source.times[keep], strict=True)}


@settings(max_examples=examples(40))
@given(
    st.integers(1, 3),
    st.integers(2, 3),
    st.integers(0, 20),
    st.floats(0.2, 0.8),
    st.integers(0, 3),
    st.sampled_from(["time", "stations", "blocks", "both"]),
)
def test_parts_never_share_a_station_and_time(
    first: int, length: int, gap: int, share: float, seed: int, kind: str
) -> None:
    data = dataset()
    start = np.datetime64("2019-03-01") + first
    arguments: dict[str, object] = {"seed": seed}
    if kind in ("time", "both"):
        arguments |= {"time": [start, start + length], "gap": f"{gap}h"}
    if kind != "time":
        arguments["hold_out_stations"] = share
    if kind == "blocks":
        arguments["blocks"] = 1.5
    train, val, test = data.split(**arguments)  # type: ignore[arg-type]
    parts = [targets(part) for part in (train, val, test)]
    for one, other in itertools.combinations(parts, 2):
        assert not one & other
    assert all(parts)
    if kind != "time":
        names = [{station for station, _ in part} for part in parts]
        for one, other in itertools.combinations(names, 2):
            assert not one & other
        for part in (train, val, test):
            assert np.array_equal(part.context_places["stations"], train.target_places)
    if kind in ("time", "both"):
        latest = max(when for _, when in parts[0])
        earliest = min(when for _, when in parts[1])
        assert np.datetime64(latest) < start
        assert np.datetime64(earliest) >= start + np.timedelta64(gap, "h")


@pytest.mark.parametrize("none", [0, 0.0, None])
def test_a_fraction_of_zero_holds_out_no_station(none: float | None) -> None:
    borders = ["2019-03-04", "2019-03-06"]
    expected = dataset().split(borders)
    for part, other in zip(dataset().split(borders, hold_out_stations=none), expected, strict=True):
        assert targets(part) == targets(other)
        assert part.context_places == {}
        assert part.target_places is None
        assert not part.held_out
    with pytest.raises(ValueError, match=r"^Nothing to split by; "):
        dataset().split(hold_out_stations=none)
    with pytest.raises(ValueError, match=r"^blocks=2 has no effect without hold_out_stations; "):
        dataset().split(borders, hold_out_stations=none, blocks=2)


def test_stations_at_the_same_location_are_in_the_same_part() -> None:
    frame = weather.stations()
    twin = frame.assign(station=frame.station + "b", lat=frame.lat + 0.001)
    frame = pd.concat([frame, twin], ignore_index=True)
    data = Dataset({"stations": frame}, target="stations.t2m")
    for seed in range(5):
        train, _, _ = data.split(hold_out_stations=0.5, seed=seed)
        kept = {station for station, _ in targets(train)}
        assert {name[:3] for name in kept if name.endswith("b")} == {n for n in kept if len(n) == 3}


def test_what_others_observe_at_held_out_places_is_held_out_too() -> None:
    frame = weather.stations()
    rain = frame.assign(rain=1.0, station=frame.station + "r").drop(columns="t2m")
    far = rain.assign(lat=10.0, station="far").drop_duplicates("time")
    sources = {"t": frame, "r": pd.concat([rain, far]), "grid": weather.field()[["u10"]]}
    for blocks in (None, 1.5):
        parts = Dataset(sources, target="t.t2m").split(hold_out_stations=0.5, blocks=blocks)
        for part in parts:
            assert set(part.context_places) == {"t", "r"}
            kept = {}
            for name, places in part.context_places.items():
                labels = part.sources[name].labels
                assert labels is not None
                kept[name] = set(labels[places].tolist())
            assert kept["r"] == {f"{station}r" for station in kept["t"]} | {"far"}


def test_blocks_of_a_grid_can_be_held_out_but_single_points_cannot() -> None:
    data = Dataset({"grid": weather.field()}, target="grid.t2m")
    train, _, test = data.split(hold_out_stations=0.4, blocks=1.5)
    assert train.target_places is not None
    assert test.target_places is not None
    assert len(train.target_places) == 20
    assert not (train.target_places & test.target_places).any()
    with pytest.raises(
        ValueError,
        match=r"^Source 'grid' is a grid, where held-out points leak through their neighb",
    ):
        data.split(hold_out_stations=0.4)


def test_a_grid_with_2d_coordinates_is_held_out_as_any_grid() -> None:
    lat, lon = np.meshgrid(weather.LATS, weather.LONS, indexing="ij")
    curved = weather.field().drop_vars(["lat", "lon"]).rename(lat="y", lon="x")
    curved = curved.assign_coords(lat=(("y", "x"), lat), lon=(("y", "x"), lon))
    data = Dataset({"grid": curved}, target="grid.t2m")
    assert "grid: 20 grid points, 6 times" in repr(data)
    with pytest.raises(ValueError, match=r"^Source 'grid' is a grid, where held-out points leak"):
        data.split(hold_out_stations=0.2)
    regular = Dataset({"grid": weather.field()}, target="grid.t2m")
    for part, same in zip(
        data.split(hold_out_stations=0.4, blocks=1),
        regular.split(hold_out_stations=0.4, blocks=1),
        strict=True,
    ):
        np.testing.assert_array_equal(part.target_places, same.target_places)


def test_stations_can_be_named() -> None:
    train, val, test = dataset().split(
        ["2019-03-04", "2019-03-06"], hold_out_stations=["S01", "S05"]
    )
    assert {station for station, _ in targets(test)} == {"S01", "S05"}
    assert "S01" not in {station for station, _ in targets(train) | targets(val)}
    with pytest.raises(
        ValueError, match=r"^Unknown station 'S1' of source 'stations'; did you mean 'S\d1'\?$"
    ):
        dataset().split(hold_out_stations=["S1"])
    with pytest.raises(ValueError, match=r"^No stations are left for validation, because named"):
        dataset().split(hold_out_stations=["S01"])


def test_a_grid_has_no_stations_to_name() -> None:
    data = Dataset({"grid": weather.field()}, target="grid.t2m")
    message = r"^Source 'grid' is a grid without named stations; give a fraction"
    with pytest.raises(ValueError, match=message):
        data.split(["2019-03-01T12", "2019-03-02"], hold_out_stations=["a"], blocks=1)


def test_random_rows_are_refused_with_the_reason() -> None:
    message = r"^rows=0\.2: a random split of rows leaks, because training has the same station's"
    with pytest.raises(ValueError, match=message):
        dataset().split(rows=0.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"^Nothing to split by; give dates \(time=\['2018', '2019'\]\), a fraction"),
        ({"time": ["2019-03-05"]}, r"^time=\['2019-03-05'\]: must be two dates"),
        ({"time": ["2019-03-06", "2019-03-04"]}, r"^time=.*: must be two dates, .* later start"),
        (
            {"time": ["2019-03-04", "2019-03-06"], "gap": "3D"},
            r"^gap='3D': .* shorter than the valid",
        ),
        ({"time": ["2019-03-04", "2019-03-06"], "gap": "-1D"}, r"^gap='-1D': must not be negative"),
        (
            {"time": ["2020-03-04", "2020-03-06"]},
            r"^Part 'val' has no observations of 'stations' from 2020-03-04 and before 2020-03-06",
        ),
        (
            {"time": ["2019-03-04", "2019-03-06"], "blocks": 2},
            r"^blocks=2 has no effect without hold",
        ),
        ({"hold_out_stations": 0.5, "gap": "1D"}, r"^gap='1D' has no effect without time; give"),
        ({"hold_out_stations": 1.5}, r"^hold_out_stations=1\.5: must be a fraction between"),
        ({"hold_out_stations": -0.5}, r"^hold_out_stations=-0\.5: must be a fraction between"),
        (
            {"hold_out_stations": 0.01},
            r"^hold_out_stations=0\.01 holds out 0 of 12 stations \(those .*, but at least two",
        ),
        (
            {"hold_out_stations": 0.5, "blocks": 90},
            r"holds out 1 of 2 blocks, .* the fraction or the size of the blocks\.$",
        ),
        ({"hold_out_stations": 0.5, "blocks": 0}, r"^blocks=0: must be a positive size in degrees"),
    ],
)
def test_splits_that_make_no_sense(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataset().split(**arguments)  # type: ignore[arg-type]


def test_every_part_knows_the_training_part_of_its_split() -> None:
    train, val, test = dataset().split(["2019-03-04", "2019-03-06"])
    assert train.training is val.training is test.training is train
    assert test.at("2019-03-07").training is train
    assert dataset().training is None


def test_a_part_tells_which_targets_it_has() -> None:
    """Its sources are printed as a whole, which must not look as if training had all of them."""
    train, _, test = dataset().split(["2019-03-04", "2019-03-06"], hold_out_stations=0.5)
    assert (
        repr(train).splitlines()[1]
        == "  targets at 6 of 12 stations and 3 times, of these sources:"
    )
    assert repr(test).splitlines()[1].startswith("  targets at 3 of 12 stations and ")
    assert "targets" not in repr(dataset())


def test_places_without_names_are_not_called_stations() -> None:
    buoys = weather.stations().drop(columns="station")
    data = Dataset({"buoys": buoys}, target="buoys.t2m")
    assert "96 observations at 12 locations, " in repr(data)


@pytest.mark.usefixtures("unchecked")
def test_a_source_or_target_without_a_name_is_one_sentence() -> None:
    table = weather.stations()
    with pytest.raises(ValueError, match=r"^sources is one DataFrame: must give every source a na"):
        Dataset(table, target="t2m")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^Target 't2m' has no source; did you mean 'obs\.t2m'\?"):
        Dataset({"obs": table}, target="t2m")
    with pytest.raises(ValueError, match=r"^time=\['2019'\]: must be two dates"):
        Dataset({"obs": table}, target="obs.t2m").split("2019")
