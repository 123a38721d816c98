"""A model's predictions scored on data, beside baselines that learn from the training part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from torch.distributions import Laplace

import gridtnp as gt
from gridtnp.config import Embedded, GriddedConfig, Harmonics, Neighbour, PseudoToken, Raw, Swin
from gridtnp.estimator import GriddedTNP
from gridtnp.evaluation.baselines import BASELINES, PREDICT_SPREAD, default_baselines
from gridtnp.tasks.specification import TaskSpec

ALL = (
    *("nearest", "idw", "bilinear", "kriging", "kriging-drift", "regression-kriging"),
    *("gpboost", "boosting", "persistence", "climatology", "pretrained"),
    *("normal-scores", "empirical-climatology"),
)


def table(days: int = 40, stations: int = 24) -> pd.DataFrame:
    """Temperatures that fall with height, on a level of their own every day."""
    rng = np.random.default_rng(0)
    sites = pd.DataFrame(
        {
            "station": [f"S{i:02d}" for i in range(stations)],
            "lat": rng.uniform(45, 49, stations),
            "lon": rng.uniform(6, 14, stations),
            "elevation": rng.uniform(200, 3000, stations),
        }
    )
    times = pd.DataFrame({"time": pd.date_range("2001-01-01", periods=days, freq="1D")})
    times["level"] = rng.normal(0, 4, days)
    frame = times.merge(sites, how="cross")
    frame["t"] = frame["level"] - 0.0065 * frame["elevation"] + rng.normal(0, 0.5, len(frame))
    return frame.drop(columns="level")


def field(days: int = 40) -> xr.Dataset:
    """The daily level, at sea level."""
    level = table(days).groupby("time").t.max().to_numpy()
    lat, lon = np.arange(44.0, 50.1, 1.0), np.arange(5.0, 15.1, 1.0)
    values = np.broadcast_to(level[:, None, None], (days, len(lat), len(lon))).copy()
    times = pd.date_range("2001-01-01", periods=days, freq="1D")
    coords = {"time": times, "lat": lat, "lon": lon}
    return xr.Dataset({"t": (("time", "lat", "lon"), values, {"units": "degC"})}, coords)


def dataset(frame: pd.DataFrame | None = None, **more: object) -> gt.Dataset:
    known: dict[str, object] = {
        "target": "stations.t",
        "static": {
            "elevation": xr.DataArray(
                np.full((2, 2), 1000.0), {"lat": [40.0, 55.0], "lon": [0.0, 20.0]}, ("lat", "lon")
            )
        },
        "units": {"stations.t": "degC"},
    }
    sources = {"stations": table() if frame is None else frame, "field": field()}
    return gt.Dataset(sources, **(known | more))  # type: ignore[arg-type]


def model_for(data: gt.Dataset, **times: str) -> GriddedTNP:
    spec = TaskSpec.of(data, **times)  # type: ignore[arg-type]
    area = gt.Grid((gt.Axis.span("lat", 44, 50, 4), gt.Axis.span("lon", 5, 15, 4)), "sphere")
    embedding: list[Harmonics | Raw] = [Harmonics()]
    embedding += [Raw(of=data.feature_names)] if data.feature_names else []
    config = gt.ModelConfig(
        coordinates=("lat", "lon"),
        features=data.feature_names,
        sources={name: len(of.variables) for name, of in spec.contexts.items()},
        dim_y=len(spec.target),
        tokens=Embedded(embedding=tuple(embedding), shared_with=next(iter(spec.contexts))),
        architecture=GriddedConfig(
            grid=area,
            grid_encoder=PseudoToken(),
            processor=Swin(layers=1, window=(2, 2)),
            decoder=Neighbour(neighbours=9),
        ),
        dim=8,
        heads=2,
    )
    torch.manual_seed(0)
    return GriddedTNP(config, spec, gt.Normaliser.fit(data))


@pytest.fixture(scope="module")
def parts() -> tuple[gt.Dataset, gt.Dataset, gt.Dataset]:
    return dataset().split(time=["2001-01-25", "2001-02-01"], hold_out_stations=0.5)


@pytest.fixture(scope="module")
def model(parts: tuple[gt.Dataset, gt.Dataset, gt.Dataset]) -> GriddedTNP:
    return model_for(parts[0])


Parts = tuple[gt.Dataset, gt.Dataset, gt.Dataset]


def test_every_baseline_runs_and_knowing_the_height_pays(model: GriddedTNP, parts: Parts) -> None:
    assert set(ALL) == set(BASELINES)
    pytest.importorskip("gpboost")
    found = model.evaluate(parts[2], ALL)
    rows = found.to_dataframe().set_index("forecast")
    assert rows.index.tolist() == ["model", *ALL]
    assert rows["crps"].idxmin() in ("kriging-drift", "regression-kriging")
    for name in ("kriging-drift", "regression-kriging"):
        assert rows.loc[name, "rmse"] < 1.0 < rows.loc["kriging", "rmse"]
    assert rows["spread"].to_dict() == {
        **dict.fromkeys(("model", *PREDICT_SPREAD), "predicted"),
        **dict.fromkeys(("nearest", "idw", "bilinear", "persistence"), "training errors"),
    }
    assert rows["units"].eq("degC").all()
    assert rows["points"].eq(6 * 9).all()
    assert found.split == (
        "6 stations never seen, 9 times from 2001-02-01 to 2001-02-09, all after the training part"
    )
    assert found.notes == (
        "persistence: no station has earlier values to use; it is the nearest value",
    )
    assert rows.loc["persistence", "crps"] == rows.loc["nearest", "crps"]
    # spreads that were measured in training fit the test
    assert rows.loc["bilinear", "coverage_90"] > 0.6


def test_the_model_is_scored_in_the_units_of_the_data(model: GriddedTNP, parts: Parts) -> None:
    found = model.evaluate(parts[2], [])
    sampler = model.spec.sampler(parts[2], model.normaliser, batch=3)
    losses, targets = [], []
    with torch.no_grad():
        for task in sampler.in_order():
            losses.append(model.network.loss(task).item())
            assert task.target.y is not None
            targets.append(task.target.y.flatten())
    scale = model.normaliser.scale(model.spec.target)
    row = found.to_dataframe().iloc[0]
    assert row["log_likelihood"] == pytest.approx(-np.mean(losses) - np.log(scale[0]), rel=1e-4)
    restored = model.normaliser.restore(model.spec.target, torch.cat(targets)[:, None].numpy())
    np.testing.assert_allclose(np.sort(found.observed[:, 0]), np.sort(restored[:, 0]), atol=1e-3)
    frame = found.predictions().merge(table(), on=["time", "station"])
    assert len(frame) == len(found.observed)
    np.testing.assert_allclose(frame["observed"], frame["t"], atol=1e-4)
    np.testing.assert_allclose(frame["lat_x"], frame["lat_y"])


def test_batches_and_modes_do_not_matter(model: GriddedTNP, parts: Parts) -> None:
    model.network.train()
    one = model.evaluate(parts[2], [], batch=1)
    assert model.network.training
    model.network.eval()
    many = model.evaluate(parts[2], [], batch=64)
    assert not model.network.training
    for what in ("mean", "std"):
        first, second = (getattr(e.forecasts["model"], what) for e in (one, many))
        np.testing.assert_allclose(first, second, atol=1e-4)


def test_persistence_uses_the_past_where_stations_are_known() -> None:
    train, _, test = dataset().split(time=["2001-01-25", "2001-02-01"])
    model = model_for(train, lead="1D")
    found = model.evaluate(test, ["persistence", "nearest"])
    frame = found.predictions()
    known = table().set_index(["station", "time"]).t
    before = [
        known[(s, t - pd.Timedelta("1D"))] for s, t in zip(frame.station, frame.time, strict=True)
    ]
    np.testing.assert_allclose(frame["persistence_mean"], before, atol=1e-4)
    assert "never seen" not in found.split


def test_a_limit_spreads_the_times_and_says_so(model: GriddedTNP, parts: Parts) -> None:
    found = model.evaluate(parts[2], [], limit=3)
    assert len(np.unique(found.time)) == 3  # type: ignore[arg-type]
    assert found.notes == ("3 of 9 times, evenly spaced",)
    with pytest.raises(ValueError, match=r"^limit=0: must be at least 1\.$"):
        model.evaluate(parts[2], [], limit=0)


def test_points_that_a_baseline_cannot_predict_are_left_out_for_all() -> None:
    small = field().sel(lat=slice(44, 46))
    data = gt.Dataset({"stations": table(), "field": small}, target="stations.t")
    train, _, test = data.split(time=["2001-01-25", "2001-02-01"], hold_out_stations=0.5)
    model = model_for(train)
    whole, part = model.evaluate(test, []), model.evaluate(test, ["bilinear"])
    assert 0 < len(part.observed) < len(whole.observed)
    assert part.lat.max() <= 47.0001
    missing = len(whole.observed) - len(part.observed)
    assert part.notes[0] == (
        f"left out: {missing} of {len(whole.observed)} points that not all forecasts predict "
        f"(missing: bilinear {missing})"
    )


def test_several_variables_with_gaps_each_have_a_table() -> None:
    frame = table().assign(rain=lambda t: t.t * 2 + 1)
    frame.loc[::7, "rain"] = np.nan
    data = gt.Dataset({"stations": frame}, target=["stations.rain", "stations.t"])
    train, _, test = data.split(time=["2001-01-25", "2001-02-01"], hold_out_stations=0.5)
    found = model_for(train).evaluate(test, ["nearest", "kriging", "climatology"])
    rows = found.to_dataframe().set_index(["variable", "forecast"])
    assert rows.loc[("rain", "climatology"), "mae"] == pytest.approx(
        2 * rows.loc[("t", "climatology"), "mae"], rel=0.3
    )
    assert len(found.summaries()) == 2


def test_without_times_stations_are_resampled() -> None:
    frame = table(days=1).drop(columns="time")
    data = gt.Dataset({"stations": frame}, target="stations.t")
    train, _, test = data.split(hold_out_stations=0.5)
    found = model_for(train).evaluate(test, ["nearest", "idw", "kriging", "climatology"])
    assert found.time is None
    assert found.split == "6 stations never seen"
    assert len(found.observed) == 6
    assert found.to_dataframe()["crps_low"].notna().all()


def test_a_grid_can_be_the_target() -> None:
    data = gt.Dataset({"field": field()}, target="field.t")
    train, _, test = data.split(time=["2001-01-25", "2001-02-01"])
    model = model_for(train)
    found = model.evaluate(test, ["nearest", "climatology", "persistence"], limit=2)
    assert "grid points, 2 times from 2001-02-01 to 2001-02-09" in found.split
    assert found.to_dataframe()["crps"].notna().all()
    assert len(found.per("station").query("forecast == 'model'")) == len(np.unique(found.station))
    with pytest.raises(ValueError, match=r"gridded source other than the target's, .* \['field'\]"):
        model.evaluate(test, ["bilinear"])
    with pytest.raises(ValueError, match=r"^\['bilinear:field'\] predict no point that all others"):
        model.evaluate(test, ["bilinear:field"], limit=2)  # its own points are what is asked for


# ---- defaults ------------------------------------------------------------------------------------


def test_the_strongest_baselines_are_the_default(model: GriddedTNP, parts: Parts) -> None:
    names = default_baselines(model.spec, parts[2])
    assert names == ("regression-kriging", "kriging-drift", "kriging", "bilinear")
    found = model.evaluate(parts[2], limit=3)
    assert list(found.forecasts) == ["model", *names]
    alone = model.evaluate(parts[2], [], limit=3)
    assert list(alone.forecasts) == ["model"]


def test_the_defaults_follow_the_data_and_the_task() -> None:
    data = gt.Dataset({"stations": table()}, target="stations.t")
    spec = TaskSpec.of(data)
    assert default_baselines(spec, data) == ("regression-kriging", "kriging")
    assert default_baselines(spec, data, trained=False) == ("nearest", "idw")
    later = TaskSpec.of(data, lead="1D")
    assert default_baselines(later, data)[-1] == "persistence"
    both = dataset()
    whole = TaskSpec.of(both)
    blind = whole.model_copy(update={"contexts": {"field": whole.contexts["field"]}})
    assert default_baselines(blind, both) == ("regression-kriging", "climatology", "bilinear")


def test_a_default_baseline_that_does_not_work_is_left_out_with_a_note() -> None:
    frame = table().assign(t=4.0)
    small = field().sel(lat=slice(44, 46))
    data = gt.Dataset({"stations": frame, "field": small}, target="stations.t")
    train, _, test = data.split(time=["2001-01-25", "2001-02-01"], hold_out_stations=0.5)
    found = model_for(train).evaluate(test)
    assert "kriging" not in found.forecasts
    assert "bilinear" not in found.forecasts
    assert any(
        note.startswith("left out: kriging, because 't' is 4 throughout the training part")
        for note in found.notes
    )
    assert any(
        note.startswith("left out: bilinear, which predicts ") and note.endswith("% of the points")
        for note in found.notes
    )


# ---- what cannot be ------------------------------------------------------------------------------


def test_a_few_stations_are_enough_for_rivals() -> None:
    """One in ten of the training stations is a target of theirs, but at least one."""
    train, _, test = dataset(table(stations=6)).split(
        ["2001-01-21", "2001-01-31"], hold_out_stations=0.34
    )
    evaluation = model_for(train).evaluate(test)
    assert {"regression-kriging", "kriging"} <= set(evaluation.to_dataframe()["forecast"])


def test_a_baseline_that_is_left_out_is_one_sentence() -> None:
    train, _, test = dataset(table(stations=4)[::4]).split(["2001-01-21", "2001-01-31"])
    notes = model_for(train).evaluate(test).notes
    note = next(note for note in notes if note.startswith("left out: kriging, because"))
    assert note.endswith("no training time has two observations of 't', which kriging needs")


def test_bad_names_and_missing_parts_are_refused(model: GriddedTNP, parts: Parts) -> None:
    with pytest.raises(
        ValueError, match=r"^Unknown baseline 'krigging'; did you mean 'kriging'\?$"
    ):
        model.evaluate(parts[2], ["krigging"])
    whole = dataset()
    with pytest.raises(
        ValueError, match=r"^Baseline 'kriging' needs training data, but part 'all' was not made by"
    ):
        model.evaluate(whole, ["kriging"])
    other = gt.Dataset({"stations": table(), "field": field()}, target="field.t")
    with pytest.raises(
        ValueError, match=r"have target \['field\.t'\], but the model predicts \['stations\.t'\]; "
    ):
        model.evaluate(other, [])
    with pytest.warns(UserWarning, match="units differ"):
        kelvin = dataset(units={"stations.t": "K"})
    with pytest.raises(
        ValueError, match=r"^stations\.t is in 'K', but the model was trained in 'degC'; con"
    ):
        model.evaluate(kelvin, [])


def test_without_training_data_a_baseline_is_a_point_forecast(model: GriddedTNP) -> None:
    found = model.evaluate(dataset(), ["nearest"], limit=3)
    rows = found.to_dataframe().set_index("forecast")
    assert rows.loc["nearest", "spread"] == "none"
    assert rows.loc["nearest", "crps"] == pytest.approx(rows.loc["nearest", "mae"])
    assert "part 'all' may have been trained on, which flatters the model" in found.notes


def test_training_data_may_be_given(model: GriddedTNP, parts: Parts) -> None:
    fresh = dataset()
    found = model.evaluate(fresh, ["kriging", "nearest"], train=parts[0], limit=2)
    assert found.to_dataframe()["spread"].tolist() == ["predicted", "predicted", "training errors"]


def test_a_part_without_targets_is_refused() -> None:
    frame = table().assign(wind=1.0)
    frame.loc[frame.time >= "2001-02-01", "t"] = np.nan
    test = dataset(frame).split(time=["2001-01-25", "2001-02-01"])[2]
    model = model_for(test.training or test)
    with pytest.raises(
        ValueError, match=r"^Part 'test' has no values of \['stations\.t'\] to predict; evaluate"
    ):
        model.evaluate(test, [])


def test_a_drift_needs_static_features_and_interpolation_observations() -> None:
    data = gt.Dataset({"stations": table(), "field": field()}, target="stations.t")
    train, _, test = data.split(time=["2001-01-25", "2001-02-01"])
    model = model_for(train)
    with pytest.raises(
        ValueError, match=r"^Baseline 'kriging-drift' needs static .* use 'kriging'\.$"
    ):
        model.evaluate(test, ["kriging-drift"])
    blind = model.spec.model_copy(update={"contexts": {"field": model.spec.contexts["field"]}})
    model.contents = replace(model.contents, spec=blind)
    with pytest.raises(
        ValueError, match=r"^Baseline 'nearest' needs observations of \['t'\], but the"
    ):
        model.evaluate(test, ["nearest"])


def test_constant_targets_are_noted(tmp_path: Path) -> None:
    frame = table().assign(t=4.0)
    data = gt.Dataset({"stations": frame}, target="stations.t")
    train, _, test = data.split(time=["2001-01-25", "2001-02-01"], hold_out_stations=0.5)
    model = model_for(train)
    found = model.evaluate(test, ["nearest", "climatology"])
    assert "t is 4 at every point; skill says little" in found.notes
    assert found.to_dataframe()["crps"].iloc[1] == 0.0
    assert "nearest" in str(found)
    assert set(found.calibration()["t"]) == {"model"}
    found.save(tmp_path)
    with pytest.raises(ValueError, match=r"^'t' is 4 throughout the training part, but kriging"):
        model.evaluate(test, ["kriging"])


def test_distributions_must_be_known(model: GriddedTNP, parts: Parts) -> None:
    class Heavy(type(model.network)):  # type: ignore[misc]
        def forward(self, task: gt.Task) -> Laplace:
            answer = super().forward(task)
            return Laplace(answer.mean, answer.stddev)

    network = model.network
    network.__class__ = Heavy
    try:
        with pytest.raises(
            TypeError, match=r"^The network predicts Laplace, whose outputs are not known"
        ):
            model.evaluate(parts[2], [])
    finally:
        network.__class__ = Heavy.__base__
