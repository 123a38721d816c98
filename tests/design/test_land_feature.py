"""The share of land is a feature of models whose data lie around a coast."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import gridtnp as gt
from gridtnp.data.coast import LAND
from gridtnp.design.models import COAST_FEWEST, add_land_fraction
from gridtnp.inference.context_reader import ContextReader
from gridtnp.tasks.specification import TaskSpec

BRITAIN, BOHEMIA = ((50.0, 58.0), (-6.0, 1.0)), ((48.5, 51.0), (11.0, 16.0))
TINY = {"dim": 16, "heads": 2, "layers": 1, "cell": 2.0}


def table(area: tuple[tuple[float, float], tuple[float, float]], number: int) -> pd.DataFrame:
    """Stations whose temperature depends on the share of land."""
    rng = np.random.default_rng(0)
    lat, lon = (rng.uniform(*side, number).round(4) for side in area)
    sites = pd.DataFrame({"station": np.arange(number).astype(str), "lat": lat, "lon": lon})
    times = pd.DataFrame({"time": pd.date_range("2020-01-01", periods=30, freq="D")})
    rows = sites.merge(times, how="cross")
    here = [gt.land_fraction(xr.Dataset(coords={"lat": [y], "lon": [x]})).item()
            for y, x in zip(lat, lon, strict=True)]  # fmt: skip
    land = np.repeat(here, len(times))
    rows["t"] = 10 + 5 * land + rng.normal(0, 0.5, len(rows))
    return rows


def dataset(area: tuple = BRITAIN, number: int = 80, **options: object) -> gt.Dataset:
    return gt.Dataset({"stations": table(area, number)}, target="stations.t", **options)


@pytest.mark.parametrize(
    ("data", "added"),
    [
        (dataset(), True),
        (dataset(number=COAST_FEWEST - 1), False),
        (dataset(BOHEMIA), False),
        (dataset(static={LAND: gt.land_fraction(gt.latlon_grid(
            lat=(49.0, 59.0), lon=(-7.0, 2.0), step=0.1))}), False),
    ],
    ids=["coast", "few", "inland", "given"],
)  # fmt: skip
def test_it_is_added_where_it_can_matter(
    data: gt.Dataset, added: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    made, reason = add_land_fraction(data)
    assert (LAND in made.statics) == (added or LAND in data.statics)
    assert (made is data) == (not added)
    assert ("at a coast" in reason) == added
    model = gt.GriddedTNP.for_data(data, **TINY)
    assert ("land fraction" in capsys.readouterr().out) == added
    assert model.config.prior is not None
    assert (LAND in model.config.prior.drift) == (LAND in made.statics)
    assert LAND not in data.statics or not added  # the user's data stay as they are


def test_nobody_has_to_give_it(tmp_path: Path) -> None:
    """Training, evaluation, maps and fresh observations compute it, after loading too."""
    data = dataset()
    train, val, test = data.split(time=["2020-01-20", "2020-01-25"], hold_out_stations=0.2)
    model = gt.GriddedTNP.for_data(train, quiet=True, **TINY)
    model.fit(train, val, recipe=gt.Recipe(3, 4, 1e-3), quiet=True)
    scores = model.evaluate(test, ["kriging-drift", "kriging"]).to_dataframe()
    crps = scores.set_index("forecast")["crps"]
    assert crps["model"] < 0.8 * crps["kriging"]  # which knows of no coast
    assert crps["kriging-drift"] < 0.8 * crps["kriging"]  # rivals know what the model knows
    grid = gt.latlon_grid(lat=(51.0, 57.0), lon=(-5.0, 0.0), step=0.5)
    field = model.predict(test.at("2020-01-27"), at=grid)["t_mean"]
    land = gt.land_fraction(grid)
    assert np.corrcoef(field.to_numpy().ravel(), land.to_numpy().ravel())[0, 1] > 0.9
    model.save(tmp_path / "model")
    again = gt.GriddedTNP.load(tmp_path / "model")
    rows = data.sources["stations"]
    kept = train.context_places["stations"]
    fresh = table(BRITAIN, 80)
    fresh = fresh[(fresh["time"] == "2020-01-27") & fresh["station"].isin(rows.labels[kept])]
    found = again.predict({"stations": fresh}, at=grid)["t_mean"]
    np.testing.assert_allclose(found, field, rtol=1e-5)


def test_a_share_of_land_of_ones_own_must_be_given_again() -> None:
    rows = table(BRITAIN, 8)
    grid = gt.latlon_grid(lat=(49.0, 59.0), lon=(-7.0, 2.0), step=1.0)
    own = xr.full_like(gt.land_fraction(grid), 0.25)
    data = gt.Dataset({"stations": rows}, target="stations.t", static={LAND: own})
    spec = TaskSpec.of(data)
    with pytest.raises(ValueError, match="'land_fraction', which the model was trained with, is"):
        ContextReader.of(spec, {"stations": rows})
    with pytest.raises(ValueError, match=r"features \[\], but the model was trained with \['land"):
        spec.aligned(gt.Dataset({"stations": rows}, target="stations.t"))
    found = ContextReader.of(spec, {"stations": rows}, {LAND: own})
    assert (found.data.static_at("stations") == 0.25).all()
