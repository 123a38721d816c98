"""Baselines that interpolate, against brute force on great circles and exact fields."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import weather
import xarray as xr
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from gridtnp.baselines.interpolation import Bilinear, InverseDistance, Nearest, RawTask
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.tasks.selection import Fraction
from gridtnp.tasks.specification import TaskSpec


def raw_tasks(data: Dataset, share: float = 0.5, **times: str) -> tuple[TaskSpec, list[RawTask]]:
    spec = TaskSpec.of(data, **times)
    own = [n for n, c in spec.contexts.items() if c.source == spec.target_source]
    sampler = spec.sampler(data, Normaliser.fit(data), dict.fromkeys(own, Fraction(share)))
    return spec, [s for raw in sampler.raw_batches() for s in RawTask.each(data, spec, raw)]


def great_circle(lat: float, lon: float, lats: np.ndarray, lons: np.ndarray) -> np.ndarray:
    a, b = np.deg2rad([lat, lon]), np.deg2rad([lats, lons])
    cosine = np.sin(a[0]) * np.sin(b[0]) + np.cos(a[0]) * np.cos(b[0]) * np.cos(a[1] - b[1])
    return np.arccos(np.clip(cosine, -1, 1))


@settings(max_examples=examples(25))
@given(st.integers(0, 10_000), st.sampled_from([-180.0, 0.0, 170.0]))
def test_nearest_and_inverse_distance_are_those_of_brute_force(seed: int, west: float) -> None:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "station": [f"S{i}" for i in range(30)],
            "lat": rng.uniform(-90, 90, 30),
            "lon": west + rng.uniform(0, 180, 30),
            "t": rng.normal(size=30),
        }
    )
    _, found = raw_tasks(Dataset({"s": table}, target="s.t"))
    raw_task = found[0]
    near, idw = Nearest().predict(raw_task), InverseDistance(neighbours=4).predict(raw_task)
    assert near[1] is None
    assert idw[1] is None
    for i in range(len(raw_task.truth)):
        angle = great_circle(
            raw_task.targets.lat[i],
            raw_task.targets.lon[i],
            raw_task.observed.lat,
            raw_task.observed.lon,
        )
        order = np.argsort(angle)
        assert near[0][i, 0] == raw_task.values[order[0], 0]
        weight = (2 * np.sin(angle[order[:4]] / 2)) ** -2.0  # through the earth
        expected = (weight * raw_task.values[order[:4], 0]).sum() / weight.sum()
        assert idw[0][i, 0] == pytest.approx(expected, rel=1e-6)


def test_the_latest_of_a_place_is_the_nearest_in_time() -> None:
    data = Dataset({"s": weather.stations()}, target="s.t2m")
    spec, found = raw_tasks(data, 1.0, window="(-3D, 0h]", lead="1D")
    raw_task = found[4]
    mean, _ = Nearest().predict(raw_task)
    for i, station in enumerate(raw_task.targets.station):
        own = np.flatnonzero(raw_task.observed.station == station)
        last = own[np.argmax(raw_task.observed.time[own])]  # type: ignore[index]
        assert raw_task.observed.time[last] == raw_task.time  # type: ignore[index]
        assert mean[i, 0] == raw_task.values[last, 0]
    assert spec.lead == "1D"


def test_an_observation_at_the_very_place_is_the_answer() -> None:
    frame = weather.stations()
    twin = frame[frame.station == "S00"].assign(station="T00")
    both = pd.concat([frame, twin], ignore_index=True)
    data = Dataset({"s": both}, target="s.t2m")
    _, found = raw_tasks(data)
    seen = [(s, i) for s in found for i, n in enumerate(s.targets.station) if n in ("S00", "T00")]
    checked = 0
    for raw_task, i in seen:
        there = np.isin(raw_task.observed.station, ["S00", "T00"])
        if there.any():
            checked += 1
            for baseline in (Nearest(), InverseDistance()):
                assert baseline.predict(raw_task)[0][i, 0] == pytest.approx(raw_task.truth[i, 0])
    assert checked


def test_variables_that_are_missing_here_and_there_are_interpolated_from_where_they_are() -> None:
    frame = weather.stations(30).assign(rain=lambda t: t.t2m * 2)
    frame.loc[::3, "rain"] = np.nan
    data = Dataset({"s": frame}, target=["s.t2m", "s.rain"])
    spec, found = raw_tasks(data)
    assert set(spec.contexts) == {"s.t2m", "s.rain"}
    mean, _ = Nearest().predict(found[0])
    raw_task = found[0]
    assert np.isnan(raw_task.values[:, 1]).any()
    for i in range(len(mean)):
        for v in range(2):
            there = np.flatnonzero(np.isfinite(raw_task.values[:, v]))
            angle = great_circle(
                *(raw_task.targets.lat[i], raw_task.targets.lon[i]),
                *(raw_task.observed.lat[there], raw_task.observed.lon[there]),
            )
            assert mean[i, v] == raw_task.values[there[angle.argmin()], v]


def test_nothing_observed_gives_no_answer() -> None:
    _, found = raw_tasks(Dataset({"s": weather.stations()}, target="s.t2m"), 0.0)
    empty = found[0]
    if len(empty.values):
        pytest.fail("a share of zero must leave the context empty")
    assert np.isnan(Nearest().predict(empty)[0]).all()
    assert np.isnan(InverseDistance().predict(empty)[0]).all()


# ---- gridded fields ------------------------------------------------------------------------------


def plane(units: str = "degC", name: str = "t2m") -> xr.Dataset:
    """A field that is linear in latitude and longitude, another one every day."""
    lat, lon = np.arange(46.0, 58.0, 2.0)[::-1], np.arange(0.0, 360.0, 2.0)
    days = pd.date_range("2019-03-01", periods=8, freq="1D")
    east = (lon + 180) % 360 - 180
    values = lat[:, None] + 0.1 * east + np.arange(8)[:, None, None]
    coords = {"time": days, "lat": lat, "lon": lon}
    return xr.Dataset({name: (("time", "lat", "lon"), values, {"units": units})}, coords)


def with_field(field: xr.Dataset) -> Dataset:
    units = {"stations.t2m": "degC"}
    sources = {"stations": weather.stations(), "era5": field}
    return Dataset(sources, target="stations.t2m", units=units)


def test_a_linear_field_is_interpolated_exactly() -> None:
    data = with_field(plane())
    spec, found = raw_tasks(data)
    bilinear = Bilinear.of(data, spec)
    for day, raw_task in enumerate(found):
        expected = raw_task.targets.lat + 0.1 * raw_task.targets.lon + day
        mean, std = bilinear.predict(raw_task)
        np.testing.assert_allclose(mean[:, 0], expected, atol=1e-4)
        assert std is None


def test_with_a_lead_the_last_known_field_is_taken() -> None:
    data = with_field(plane())
    spec, found = raw_tasks(data, 1.0, lead="2D", window="(-2D, 0h]")
    mean, _ = Bilinear.of(data, spec).predict(found[3])
    at = found[3].targets
    assert at.time is not None
    np.testing.assert_allclose(mean[:, 0], at.lat + 0.1 * at.lon + 3, atol=1e-4)


def test_kelvin_and_celsius_are_converted() -> None:
    field = plane("K")
    field["t2m"] = (field.t2m + 273.15).assign_attrs(units="K")
    with pytest.warns(UserWarning, match="units differ"):
        data = with_field(field)
    spec, found = raw_tasks(data)
    expected = found[0].targets.lat + 0.1 * found[0].targets.lon
    mean, _ = Bilinear.of(data, spec).predict(found[0])
    np.testing.assert_allclose(mean[:, 0], expected, atol=1e-3)


def test_a_field_may_be_named() -> None:
    data = with_field(plane(name="skin"))
    spec, found = raw_tasks(data)
    with pytest.raises(
        ValueError,
        match=r"^No gridded variable is called 't2m' .*\['era5\.skin'\], such as 'bilinear",
    ):
        Bilinear.of(data, spec)
    with pytest.raises(
        ValueError, match=r"^Unknown gridded variable 'era5\.skn'; did you mean 'era5\.skin'\?"
    ):
        Bilinear.of(data, spec, "era5.skn")
    mean, _ = Bilinear.of(data, spec, "era5.skin").predict(found[0])
    assert np.isfinite(mean).all()


@pytest.mark.parametrize("name", ["2m_temperature", "2t", "t", "Temperature"])
def test_other_common_names_are_known(name: str) -> None:
    data = with_field(plane(name=name))
    assert Bilinear.of(data, TaskSpec.of(data)).fields[0].context == "era5"


def test_other_units_are_refused() -> None:
    with pytest.warns(UserWarning, match="units differ"):
        data = with_field(plane("mm"))
    with pytest.raises(
        ValueError, match=r"^era5\.t2m is in 'mm', but target t2m in 'degC'; convert one of them"
    ):
        Bilinear.of(data, TaskSpec.of(data))


def test_without_a_grid_there_is_nothing_to_interpolate() -> None:
    data = Dataset({"s": weather.stations()}, target="s.t2m")
    with pytest.raises(ValueError, match=r"needs a gridded source other than .* \['s'\] has none"):
        Bilinear.of(data, TaskSpec.of(data))


def test_beyond_the_grid_there_is_no_answer() -> None:
    field = plane().sel(lat=slice(50, 46))
    data = with_field(field)
    spec, found = raw_tasks(data)
    mean, _ = Bilinear.of(data, spec).predict(found[0])
    north = found[0].targets.lat > 52.001
    assert north.any()
    assert np.isnan(mean[north]).all()
    assert np.isfinite(mean[~north]).all()
