"""Normalisation: fitted to the training part only, and inverted exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import weather
import xarray as xr
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import PAPER, Normaliser


def test_it_is_fitted_to_the_training_part_only() -> None:
    frame = weather.stations()
    data = Dataset(
        {"stations": frame}, target="stations.t2m", static={"height": "stations.elevation"}
    )
    train, _, _ = data.split(["2019-03-04", "2019-03-06"], hold_out_stations=["S01", "S05"])
    fitted = Normaliser.fit(train)
    seen = frame[(frame.time < "2019-03-04") & ~frame.station.isin(["S01", "S05"])]
    assert fitted.mean["stations.t2m"] == pytest.approx(seen.t2m.mean(), rel=1e-6)
    assert fitted.std["stations.t2m"] == pytest.approx(seen.t2m.std(ddof=0), rel=1e-6)
    later = frame.assign(t2m=frame.t2m.where(frame.time < "2019-03-04", 1e6))
    changed = Dataset({"stations": later}, target="stations.t2m")
    again = Normaliser.fit(changed.split(["2019-03-04", "2019-03-06"])[0])
    assert again.mean["stations.t2m"] < 100


def test_missing_values_are_ignored_and_chunks_merged(tmp_path: Path) -> None:
    ds = weather.field(np.float32)
    ds["t2m"][0, :2] = np.nan
    ds.chunk(time=1).to_zarr(tmp_path / "a.zarr", consolidated=False)
    loaded = Normaliser.fit(Dataset({"g": ds}, target="g.t2m"))
    lazy = Normaliser.fit(Dataset({"g": tmp_path / "a.zarr"}, target="g.t2m", memory=200))
    values = ds.t2m.values[np.isfinite(ds.t2m.values)].astype(np.float64)
    for fitted in (loaded, lazy):
        assert fitted.mean["g.t2m"] == pytest.approx(values.mean(), rel=1e-9)
        assert fitted.std["g.t2m"] == pytest.approx(values.std(), rel=1e-6)


def test_a_long_lazy_source_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridtnp.data.normalisation.STEPS", 3)
    ds = weather.field(np.float32)
    ds.chunk(time=1).to_zarr(tmp_path / "a.zarr", consolidated=False)
    fitted = Normaliser.fit(Dataset({"g": tmp_path / "a.zarr"}, target="g.t2m", memory=200))
    values = ds.t2m.values[[0, 2, 5]].astype(np.float64)
    assert fitted.mean["g.t2m"] == pytest.approx(values.mean(), rel=1e-9)


def test_a_constant_is_only_shifted() -> None:
    frame = weather.stations().assign(t2m=5.0)
    fitted = Normaliser.fit(Dataset({"s": frame}, target="s.t2m"))
    assert (fitted.mean["s.t2m"], fitted.std["s.t2m"]) == (5.0, 1.0)


def test_a_variable_without_training_values_is_refused() -> None:
    frame = weather.stations().assign(rain=1.0)
    frame.loc[frame.time < "2019-03-04", "rain"] = np.nan
    train, _, _ = Dataset({"s": frame}, target="s.t2m").split(["2019-03-04", "2019-03-06"])
    with pytest.raises(ValueError, match=r"^Variable 's\.rain' has no values in the training part"):
        Normaliser.fit(train)


@settings(max_examples=examples(100))
@given(
    st.floats(-1e4, 1e4),
    st.floats(1e-3, 1e4),
    st.lists(st.floats(-1e5, 1e5, width=32), min_size=1, max_size=20),
)
def test_normalising_and_restoring_is_the_identity(
    mean: float, std: float, values: list[float]
) -> None:
    made = Normaliser({"a.b": mean, "a.c": 0.0}, {"a.b": std, "a.c": 1.0})
    given_values = np.array(values, np.float32)[:, None]
    both = np.concatenate([given_values, given_values], 1)
    back = made.restore(("a.b", "a.c"), made.normalise(("a.b", "a.c"), both))
    np.testing.assert_allclose(back, both, rtol=0, atol=1e-15 * (abs(mean) + 1e5) * 8)
    np.testing.assert_array_equal(back[:, 1], both[:, 1])
    assert made.scale(("a.c", "a.b")).tolist() == [1.0, std]


def test_it_survives_a_file_bit_for_bit(tmp_path: Path) -> None:
    made = Normaliser({"a.b": 1 / 3}, {"a.b": 2 / 7})
    made.to_json(tmp_path / "normaliser.json")
    assert Normaliser.from_json(tmp_path / "normaliser.json") == made


def test_the_constants_of_the_paper_by_name() -> None:
    ds = weather.field()[["t2m"]].rename(t2m="2m_temperature")
    levels = xr.DataArray([700, 850], dims="level", coords={"level": [700, 850]})
    ds["u"] = weather.field().u10 * levels
    data = Dataset({"era5": ds}, target="era5.2m_temperature")
    made = Normaliser.paper(data)
    assert made.mean["era5.2m_temperature"] == PAPER["t2m"][0]
    assert made.std["era5.u_850"] == 8.188043
    with pytest.raises(
        ValueError, match=r"^Unknown variable 'u10' of 'g' among the paper's constants; did"
    ):
        Normaliser.paper(Dataset({"g": weather.field()}, target="g.t2m"))


def test_bad_constants_and_names() -> None:
    with pytest.raises(ValueError, match=r"^'a\.b' has mean 0\.0 and standard deviation 0\.0; "):
        Normaliser({"a.b": 0.0}, {"a.b": 0.0})
    with pytest.raises(ValueError, match=r"^Unknown variable 'a\.c' in the normaliser; did you"):
        Normaliser({"a.b": 0.0}, {"a.b": 1.0}).scale(("a.c",))
