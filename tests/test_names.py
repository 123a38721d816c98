"""Names of columns such as `PM2.5` work from the data to the written prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import small
import xarray as xr

import gridtnp as gt

NAMES = ("PM2.5", "t [degC]", "2m temperature", "Größe", "a:b", "t[red]")


@pytest.fixture(scope="module")
def data() -> gt.Dataset:
    """Two variables of every name, with gaps, so that each is a context set of its own."""
    rows = small.table().drop(columns="t2m")
    rng = np.random.default_rng(0)
    for name in NAMES:
        rows[name] = rng.normal(10, 3, len(rows))
        rows.loc[rng.random(len(rows)) < 0.1, name] = np.nan
    return gt.Dataset({"my obs": rows}, target=[f"my obs.{name}" for name in NAMES])


@pytest.fixture(scope="module")
def model(data: gt.Dataset) -> gt.GriddedTNP:
    made = gt.GriddedTNP.for_data(data, "tiny", dim=8, heads=2)
    return made.fit(data, recipe=gt.Recipe(steps=2, batch=2), quiet=True)


def test_it_trains_and_evaluates(data: gt.Dataset, model: gt.GriddedTNP) -> None:
    found = model.evaluate(data, ["nearest"], train=data)
    text = str(found)
    for name in NAMES:
        assert name in text


@pytest.mark.parametrize("kind", ["nc", "zarr", "parquet", "csv"])
def test_predictions_are_written_and_read_under_these_names(
    data: gt.Dataset, model: gt.GriddedTNP, tmp_path: Path, kind: str
) -> None:
    grid = gt.latlon_grid(lat=(49, 51), lon=(-1, 1), step=1.0)
    path = tmp_path / f"a.{kind}"
    model.predict(data.at("2019-03-01T12:00"), grid, to=path)
    if kind in ("nc", "zarr"):
        with xr.open_dataset(path) if kind == "nc" else xr.open_zarr(path) as made:
            assert {f"{name}_mean" for name in NAMES} <= set(map(str, made.data_vars))
            assert all(np.isfinite(made[f"{name}_mean"]).all() for name in NAMES)
    else:
        table = pd.read_csv(path) if kind == "csv" else pd.read_parquet(path)
        assert all(np.isfinite(table[f"{name}_mean"]).all() for name in NAMES)


def test_it_is_saved_and_loaded(data: gt.Dataset, model: gt.GriddedTNP, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    again = gt.GriddedTNP.load(tmp_path / "model")
    at = data.at("2019-03-01T12:00")
    places = pd.DataFrame({"lat": [50.0], "lon": [0.5]})
    pd.testing.assert_frame_equal(again.predict(at, places), model.predict(at, places))


@pytest.mark.slow
@pytest.mark.compiled
def test_it_is_exported(model: gt.GriddedTNP, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="leaves out the pretrained process"):
        assert model.export(tmp_path / "a.pt2").exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("a.b", r"^Source name 'a\.b': must be printable, without dots and slashes; rename it\.$"),
        ("a/b", r"^Source name 'a/b': must be printable, without dots and slashes"),
        ("", r"^Source name '': must be printable, without dots and slashes; rename it\.$"),
    ],
)  # fmt: skip
def test_source_names_that_cannot_work_are_refused_at_once(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        gt.Dataset({name: small.table()}, target=name)
