"""Tasks: the right observations at the right times, and the same ones whoever draws them."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
import weather
import xarray as xr
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import gridtnp as gt
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.task import PointSet, Task
from gridtnp.tasks.sampling import Context, Sampler
from gridtnp.tasks.selection import (
    Block,
    Count,
    Fraction,
    Gap,
    Rest,
    Selection,
    TaskRandom,
    Whole,
    within,
)


def dataset() -> Dataset:
    return Dataset({"stations": weather.stations()}, target="stations.t2m")


def points(some: PointSet, element: int = 0) -> list[tuple[float, ...]]:
    """Coordinates and values of the points that are used, to compare as sets."""
    assert some.y is not None
    used = slice(None) if some.mask is None else some.mask[element]
    rows = torch.cat([some.x[element][used], some.y[element][used]], -1)
    return [tuple(row) for row in rows.tolist()]


def expected(frame: pd.DataFrame) -> set[tuple[float, ...]]:
    rows = frame[["lat", "lon", "t2m"]].to_numpy(np.float32)
    return {tuple(row) for row in rows.tolist()}


def equal(a: Task, b: Task) -> None:
    pairs = [(a.target, b.target), *((a.context[k], b.context[k]) for k in a.context)]
    for one, other in pairs:
        for name in ("x", "y", "mask", "features"):
            left, right = getattr(one, name), getattr(other, name)
            assert (left is None and right is None) or torch.equal(left, right)


# ---- what is in a task ---------------------------------------------------------------------------


def test_context_and_rest_are_all_there_was_at_that_time() -> None:
    frame = weather.stations()
    sampler = Sampler(dataset(), {"stations": Fraction(0.1, 0.9)}, batch=4)
    days = [expected(day) for _, day in frame.groupby("time")]
    for index in range(5):
        task = sampler.draw(index)
        for element in range(4):
            seen, asked = points(task.context["stations"], element), points(task.target, element)
            assert set(seen) | set(asked) in days
            assert len(seen) + len(asked) == 12
            assert not set(seen) & set(asked)


def test_values_come_with_their_own_place_time_and_features() -> None:
    frame = weather.stations()
    data = Dataset(
        {"stations": frame},
        target="stations.t2m",
        static={"height": "stations.elevation"},
        features=("day_of_year", "hours"),
    )
    sampler = Sampler(
        data,
        {"stations": Count(5)},
        Whole(),
        window="(-48h, 0h]",
        lead="24h",
        coordinates=("time", "lat", "lon"),
        batch=3,
    )
    known = {
        (np.float32(r.lat), np.float32(r.lon), r.time): (np.float32(r.t2m), r.elevation)
        for r in frame.itertuples()
    }
    task = sampler.draw(0)
    seen = 0
    for some, low, high in ((task.context["stations"], -48, 0), (task.target, 24, 24)):
        assert some.y is not None
        assert some.features is not None
        assert some.features.dtype == torch.float64
        for element in range(3):
            for x, y, features in zip(
                some.x[element].numpy(),
                some.y[element].numpy(),
                some.features[element].numpy(),
                strict=True,
            ):
                when = pd.Timestamp(0) + pd.Timedelta(hours=features[3])
                value, elevation = known[(x[1], x[2], when)]
                assert y[0] == value
                assert features[0] == elevation
                assert low - 1e-9 < float(x[0]) <= high
                assert x[0] != -48
                seen += 1
    assert seen == 3 * (5 + 12)


def test_a_lead_needs_both_ends_within_the_data() -> None:
    sampler = Sampler(dataset(), {"stations": Whole()}, Whole(), lead="72h")
    assert sampler.times is not None
    assert len(sampler.times) == 5
    with pytest.raises(
        ValueError, match=r"^Part 'all' has no time for a task with lead '30D' and windows"
    ):
        Sampler(dataset(), {"stations": Whole()}, Whole(), lead="30D")


def test_training_starts_where_its_data_do() -> None:
    train, _, _ = dataset().split(["2019-03-05", "2019-03-07"])
    sampler = Sampler(train, {"stations": Whole()}, Whole(), lead="24h")
    assert sampler.times is not None
    assert [str(t)[:10] for t in sampler.times] == ["2019-03-01", "2019-03-02", "2019-03-03"]


def test_sources_without_times_have_the_task_s_own() -> None:
    relief = weather.field()[["u10"]].isel(time=0, drop=True)
    data = Dataset(
        {"stations": weather.stations(), "relief": relief},
        target="stations.t2m",
        features=("day_of_year",),
    )
    sampler = Sampler(data, coordinates=("time", "lat", "lon"), batch=2)
    task = sampler.draw(0)
    still, target = task.context["relief"], task.target
    assert still.n == 20
    assert (still.x[..., 0] == 0).all()
    assert still.features is not None
    assert target.features is not None
    assert torch.equal(still.features[:, 0], target.features[:, 0])


def test_tasks_at_regular_times_see_irregular_observations() -> None:
    rng = np.random.default_rng(0)
    minutes = np.sort(rng.choice(3000, 60, replace=False))
    frame = pd.DataFrame(
        {
            "time": pd.Timestamp("2020-01-01") + pd.to_timedelta(minutes, unit="min"),
            "lat": rng.uniform(-5, 5, 60),
            "lon": np.linspace(175, 185, 60),
            "sst": rng.normal(size=60),
        }
    )
    data = Dataset({"ships": frame}, target="ships.sst")
    sampler = Sampler(
        data, {"ships": Whole()}, Whole(), window="(-6h, 0h]", target_window="(0h, 6h]", every="6h"
    )
    assert sampler.times is not None
    assert (sampler.times.astype("datetime64[h]").astype(int) % 6 == 0).all()
    total = 0
    for task in sampler.in_order():
        assert task.target.mask is not None or task.target.n
        total += sum(len(points(task.target, i)) for i in range(task.target.batch))
        assert (task.target.x[..., 1] < 186).all()
    inside = frame[frame.time > pd.Timestamp(sampler.times[0])]
    assert 0.7 * len(inside) <= total <= len(inside)


def test_longitudes_are_in_one_range_across_the_date_line() -> None:
    frame = weather.stations()
    frame = frame.assign(lon=180 + frame.lon)
    frame["lon"] = frame.lon.where(frame.lon < 180, frame.lon - 360)
    data = Dataset({"stations": frame}, target="stations.t2m")
    task = Sampler(data, {"stations": Whole()}, Whole()).draw(0)
    assert (task.target.x[..., 1] > 175).all()
    assert (task.target.x[..., 1] < 185).all()


def test_missing_values_are_never_selected() -> None:
    frame = weather.stations().assign(rain=1.0)
    frame.loc[::2, "t2m"] = np.nan
    frame.loc[::3, "rain"] = np.nan
    data = Dataset({"s": frame}, target="s.t2m")
    sampler = Sampler(data, {"s.t2m": Whole(), "s.rain": Whole(), "s": Whole()}, Whole(), batch=2)
    task = sampler.at("2019-03-02")
    day = frame[frame.time == "2019-03-02"]
    assert task.target.n == int(day.t2m.notna().sum())
    assert task.context["s.rain"].n == int(day.rain.notna().sum())
    assert task.context["s"].n == int((day.rain.notna() & day.t2m.notna()).sum())


def test_sets_of_a_group_see_the_same_stations() -> None:
    frame = weather.stations(number=30).assign(rain=1.0)
    frame.loc[::3, "rain"] = np.nan
    data = Dataset({"s": frame}, target="s.t2m")
    some = Fraction(0.3, 0.5)
    grouped = {f"s.{name}": Context(some, group="s") for name in ("rain", "t2m")}
    for context in (grouped, None):  # by default they are a group
        task = Sampler(data, context, batch=4).draw(1)
        for i in range(4):
            rain = {p[:2] for p in points(task.context["s.rain"], i)}
            t2m = {p[:2] for p in points(task.context["s.t2m"], i)}
            assert rain < t2m
            assert not t2m & {p[:2] for p in points(task.target, i)}
    task = Sampler(data, {"s.rain": some, "s.t2m": some}, batch=4).draw(1)
    assert not {p[:2] for p in points(task.context["s.rain"])} <= {
        p[:2] for p in points(task.context["s.t2m"])
    }


def test_held_out_stations_are_targets_alone() -> None:
    frame = weather.stations()
    parts = dataset().split(["2019-03-04", "2019-03-06"], hold_out_stations=0.5)
    seen = [set(), set()]
    for part in parts:
        sampler = Sampler(part, batch=2)
        for task in itertools.islice(sampler.in_order(), 3):
            for i in range(task.target.batch):
                seen[0] |= {p[:2] for p in points(task.context["stations"], i)}
                if part.part != "train":
                    seen[1] |= {p[:2] for p in points(task.target, i)}
    assert not seen[0] & seen[1]
    assert len(seen[0] | seen[1]) == frame.station.nunique()


def test_a_part_never_looks_back_into_another() -> None:
    parts = dataset().split(["2019-03-04", "2019-03-06"], gap="1D")
    for part, first in zip(parts, ("2019-03-01", "2019-03-05", "2019-03-07"), strict=True):
        sampler = Sampler(
            part,
            {"stations": Whole()},
            Whole(),
            window="(-96h, 96h]",
            coordinates=("time", "lat", "lon"),
        )
        assert sampler.times is not None
        assert str(sampler.times[0])[:10] == first
        days = len(sampler.times)
        task = sampler.at(sampler.times[0])
        assert task.context["stations"].n == 12 * days
        hours = task.context["stations"].x[..., 0].unique().tolist()
        assert hours == [24.0 * day for day in range(days)]


def test_held_out_blocks_of_a_grid_are_targets_alone() -> None:
    parts = Dataset({"grid": weather.field()}, target="grid.t2m").split(
        hold_out_stations=0.4, blocks=1.5
    )
    places = []
    for part in parts:
        sampler = Sampler(part, {"grid": Fraction(0.5) if part.part == "train" else Whole()})
        task = sampler.draw(0)
        places.append({p[:2] for i in range(8) for p in points(task.target, i)})
        seen = {p[:2] for i in range(8) for p in points(task.context["grid"], i)}
        assert not seen & (places[-1] if part.part != "train" else set())
    assert not places[0] & places[1]
    assert not places[1] & places[2]
    assert not places[0] & places[2]


def test_a_time_to_predict_at_needs_no_targets() -> None:
    part = dataset().at("2019-03-02T12:00")
    task = Sampler(part, {"stations": Whole()}, window="(-24h, 0h]").at("2019-03-02T12:00")
    assert task.target.n == 0
    assert task.context["stations"].n == 12
    (again,) = Sampler(part, {"stations": Whole()}, window="(-24h, 0h]").in_order()
    equal(again, task)
    assert Sampler(part, {"stations": Whole()}, window="(-24h, 0h]").draw(0).target.batch == 8
    still = Dataset({"s": weather.stations(days=1).drop(columns="time")}, target="s.t2m")
    with pytest.raises(ValueError, match=r"^Source 's' has no times to choose from\.$"):
        still.at("2019")
    with pytest.raises(ValueError, match=r"^Source 's' has no times to split by\.$"):
        still.split(["2018", "2019"])


def test_places_without_static_features_are_not_used() -> None:
    lat, lon = np.arange(45.0, 51.0), np.arange(-6.0, 7.0)
    height = xr.DataArray(np.ones((6, 13)), {"lat": lat, "lon": lon}, ("lat", "lon"), "height")
    data = Dataset(
        {"stations": weather.stations()}, target="stations.t2m", static={"height": height}
    )
    task = Sampler(data, {"stations": Whole()}, Whole()).draw(0)
    assert (task.target.x[..., 0] <= 51).all()
    assert 0 < task.target.n < 12


def test_normalised_tasks() -> None:
    data = Dataset(
        {"stations": weather.stations()},
        target="stations.t2m",
        static={"height": "stations.elevation"},
    )
    fitted = Normaliser.fit(data)
    plain = Sampler(data, seed=1).draw(0)
    made = Sampler(data, seed=1, normaliser=fitted).draw(0)
    assert plain.target.y is not None
    assert made.target.y is not None
    used = slice(None) if made.target.mask is None else made.target.mask
    back = fitted.restore(("stations.t2m",), made.target.y[used].double().numpy())
    np.testing.assert_allclose(back, plain.target.y[used].numpy(), atol=1e-5)
    assert made.target.features is not None
    assert made.target.features.abs().max() < 3


def test_places_to_predict_at_have_the_same_coordinates_and_features_as_targets() -> None:
    lat, lon = np.arange(45.0, 56.0), np.arange(-6.0, 7.0)
    relief = xr.DataArray(lat[:, None] + lon, {"lat": lat, "lon": lon}, ("lat", "lon"), "relief")
    data = Dataset(
        {"stations": weather.stations()},
        target="stations.t2m",
        static={"relief": relief},
        features=("day_of_year", "solar_elevation"),
    )
    sampler = Sampler(
        data,
        {"stations": Count(3)},
        Whole(),
        lead="24h",
        coordinates=("time", "lat", "lon"),
        normaliser=Normaliser.fit(data),
        batch=1,
    )
    task_time = np.datetime64("2019-03-02", "ms")
    target = sampler.at(task_time).target
    source = data.sources["stations"]
    rows = np.arange(
        *source.rows(task_time + np.timedelta64(1, "D"), task_time + np.timedelta64(25, "h"))
    )
    times = source.times_of(rows)
    made = sampler.assembler.query(source.lat[rows], source.lon[rows] + 360, times, task_time)
    assert target.features is not None
    assert made.features is not None
    torch.testing.assert_close(made.x, target.x)
    torch.testing.assert_close(made.features, target.features)
    assert made.y is None
    outside = sampler.assembler.query(np.array([50.0, 20.0]), np.zeros(2), None, task_time)
    assert outside.mask is not None
    assert outside.mask.tolist() == [[True, False]]
    assert (outside.x[0, 0] == torch.tensor([0.0, 50.0, 0.0])).all()
    message = r"^The task has no time, which coordinate 'time' needs\.$"
    with pytest.raises(ValueError, match=message):
        sampler.assembler.query(np.array([50.0]), np.zeros(1))


def test_a_model_trains_on_them() -> None:
    frame = weather.stations()
    data = Dataset(
        {"stations": frame, "era5": weather.field()},
        target="stations.t2m",
        features=("day_of_year",),
        units={"stations.t2m": "K"},
    )
    sampler = Sampler(data, window="(-24h, 0h]", normaliser=Normaliser.fit(data), batch=2)
    grid = gt.Grid((gt.Axis.span("lat", 47, 56, 8), gt.Axis.span("lon", -5, 5, 8)), "sphere")
    config = gt.ModelConfig(
        coordinates=("lat", "lon"),
        features=data.feature_names,
        sources={"stations": 1, "era5": 2},
        tokens=gt.config.Embedded(
            embedding=(gt.config.Harmonics(degrees=4), gt.config.Raw(of=data.feature_names))
        ),
        architecture=gt.config.GriddedConfig(
            grid=grid,
            grid_encoder=gt.config.PseudoToken(),
            processor=gt.config.Swin(layers=1, window=(4, 4)),
            decoder=gt.config.Neighbour(neighbours=9),
        ),
        dim=16,
    )
    model = gt.build_model(config)
    loss = model.loss(sampler.draw(0))
    loss.backward()
    assert loss.isfinite()


def test_the_data_in_the_box_become_tasks() -> None:
    stations, terrain = gt.demo.load()
    data = Dataset(
        {"stations": stations}, target="stations.tmax", static=terrain, features=("month",)
    )
    assert data.feature_names == ("elevation", "month_sin", "month_cos")
    assert data.target[0].units == "degC"
    assert all(note.action == "masked" for note in data.notes)
    train, _, test = data.split(["1985", "1990"], gap="31D", hold_out_stations=0.2)
    normaliser = Normaliser.fit(train)
    for part in (train, test):
        task = Sampler(part, normaliser=normaliser, batch=2).draw(0)
        assert task.target.y is not None
        assert task.target.y.abs().max() < 4
        assert task.context["stations.tmax"].n > task.target.n or part is train

    simulated, sites = gt.demo.weather()
    t2m = gt.observe(simulated["t2m"], sites)
    globe = Dataset(
        {"t2m": t2m, "skt": simulated["skt"]}, target="t2m", static={"land": simulated["land"]}
    )
    context = {"t2m": Fraction(0.0001, 0.3, per="batch"), "skt": Whole()}
    task = Sampler(globe, context, Whole(), batch=2).draw(0)
    assert task.target.n == len(sites)
    assert task.context["skt"].n == 48 * 96
    assert task.target.features is not None
    assert 0 < task.target.features.mean() < 1


# ---- selection -----------------------------------------------------------------------------------


def random_state(
    seed: int = 0, shared: float = 0.5, centre: tuple[float, float] = (50.0, 0.0)
) -> TaskRandom:
    return TaskRandom(np.random.default_rng(seed), shared, centre)


@settings(max_examples=examples(60))
@given(
    st.integers(0, 50),
    st.one_of(
        st.builds(
            Fraction, st.floats(0, 0.5), st.floats(0.5, 1), st.sampled_from(["task", "batch"])
        ),
        st.builds(Count, st.integers(0, 30), st.integers(30, 80)),
        st.builds(Block, st.floats(0, 20)),
        st.builds(Gap, st.floats(0, 20), st.builds(Count, st.integers(0, 30))),
        st.just(Whole()),
    ),
    st.integers(0, 5),
)
def test_selections_take_each_observation_at_most_once(
    n: int, selection: Selection, seed: int
) -> None:
    source = dataset().sources["stations"]
    rows = np.arange(7, 7 + n)
    selected = selection.select(source, rows, random_state(seed)).tolist()
    assert len(set(selected)) == len(selected)
    assert set(selected) <= set(rows.tolist())


def test_fractions_and_counts_have_their_size() -> None:
    source, rows = dataset().sources["stations"], np.arange(90)

    def size(selection: Selection, seed: int = 0) -> int:
        return len(selection.select(source, rows, random_state(seed, shared=0.5)))

    assert size(Fraction(0.25)) == 23
    assert size(Fraction(0.2, 0.4, per="batch")) == 27
    assert size(Fraction(1e-6)) == 1
    assert size(Fraction(0.0)) == 0
    assert size(Count(7)) == 7
    assert size(Count(2000)) == 90
    assert {size(Count(1, 3), seed) for seed in range(40)} == {1, 2, 3}
    assert min(size(Fraction(0.1, 0.9), seed) for seed in range(40)) < 20
    assert max(size(Fraction(0.1, 0.9), seed) for seed in range(40)) > 70


def test_a_gap_and_a_block_share_the_place_and_leave_nothing_out() -> None:
    sampler = Sampler(
        Dataset({"grid": weather.field()}, target="grid.t2m"),
        {"grid": Gap(1.5)},
        Block(1.5),
        batch=3,
    )
    for index in range(4):
        task = sampler.draw(index)
        for i in range(3):
            outside = {p[:2] for p in points(task.context["grid"], i)}
            inside = {p[:2] for p in points(task.target, i)}
            assert inside
            assert not outside & inside
            assert len(outside) + len(inside) == 20


def test_within_is_a_great_circle() -> None:
    lat, lon = np.array([0.0, 0.0, 89.0, 0.0]), np.array([179.0, 174.0, 0.0, -179.0])
    assert within(lat, lon, (0.0, 180.0), 1.001).tolist() == [True, False, False, True]
    assert within(lat, lon, (89.0, 180.0), 2.001).tolist() == [False, False, True, False]


def test_impossible_selections_are_refused() -> None:
    for low, high in ((-0.1, None), (0.5, 0.2), (0.5, 1.5)):
        with pytest.raises(
            ValueError, match=r"^Fraction\(.*\) is not a range within 0 to 1; give the"
        ):
            Fraction(low, high)
    with pytest.raises(
        ValueError, match=r"^Count\(5, 2\) is not a range of counts; give the lower end"
    ):
        Count(5, 2)
    with pytest.raises(
        ValueError, match=r"leaves no target at .*; select fewer observations as context\.$"
    ):
        Sampler(dataset(), {"stations": Whole()}, Rest()).draw(0)


# ---- streams -------------------------------------------------------------------------------------


def test_a_stream_is_the_same_for_any_number_of_workers() -> None:
    data = Dataset(
        {"stations": weather.stations(), "era5": weather.field()[["u10"]]}, target="stations.t2m"
    )
    sampler = Sampler(data, window="(-24h, 0h]", batch=3, seed=5)
    alone = [sampler.draw(index) for index in range(8)]
    for workers in (1, 3):
        stream = sampler.stream(workers=workers)
        for task in alone:
            equal(next(stream), task)
        stream.close()  # type: ignore[attr-defined]
    later = sampler.stream(5, workers=2, ahead=2)
    equal(next(later), alone[5])
    again = Sampler(data, window="(-24h, 0h]", batch=3, seed=5)
    equal(again.draw(3), alone[3])
    other = Sampler(data, window="(-24h, 0h]", batch=3, seed=6).draw(3)
    assert other.target.x.shape != alone[3].target.x.shape or not torch.equal(
        other.target.x, alone[3].target.x
    )
    with pytest.raises(ValueError, match=r"^workers=0: at least one is needed\.$"):
        next(sampler.stream(workers=0))


def test_all_times_in_order_are_all_times_once() -> None:
    frame = weather.stations()
    sampler = Sampler(dataset(), {"stations": Count(3)}, Whole(), batch=3)
    found = [set(points(t.target, i)) for t in sampler.in_order() for i in range(t.target.batch)]
    assert found == [expected(day) for _, day in frame.groupby("time")]


def test_data_without_times_make_tasks_too() -> None:
    frame = weather.stations(days=1).drop(columns="time")
    data = Dataset({"s": frame}, target="s.t2m")
    task = Sampler(data, {"s": Fraction(0.5)}, batch=2).draw(0)
    assert task.context["s"].n == 6
    assert task.target.n == 6
    assert len(list(Sampler(data, {"s": Fraction(0.5)}).in_order())) == 1
    with pytest.raises(
        ValueError, match=r"^Source 's' has no times, which coordinate 'time' needs\.$"
    ):
        Sampler(data, coordinates=("time", "lat", "lon"))


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^Unknown source 'ships'; "):
        Sampler(dataset(), {"ships": Whole()})
    with pytest.raises(ValueError, match=r"^Unknown coordinate 'depth'; "):
        Sampler(dataset(), coordinates=("depth", "lat"))
    with pytest.raises(ValueError, match=r"^batch=0: a batch needs at least one task\.$"):
        Sampler(dataset(), batch=0)


def test_a_part_without_values_of_the_target_is_told() -> None:
    frame = weather.stations().assign(rain=1.0)
    frame.loc[frame.time >= "2019-03-06", "rain"] = np.nan
    _, _, test = Dataset({"s": frame}, target="s.rain").split(["2019-03-04", "2019-03-06"])
    with pytest.raises(
        ValueError, match=r"random times of part 'test' have no value of \['rain'\]"
    ):
        Sampler(test, {"s.t2m": Whole()}, Whole()).draw(0)


# ---- the paper's set-ups -------------------------------------------------------------------------


def test_the_gaussian_process_of_the_paper() -> None:
    """Functions numbered by their time, seen at random places of a square."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "time": np.repeat(pd.date_range("2000", periods=4, freq="1h"), 1100),
            "lat": rng.uniform(-6, 6, 4400),
            "lon": rng.uniform(-6, 6, 4400),
            "value": rng.normal(size=4400),
        }
    )
    data = Dataset({"observations": frame}, target="observations.value")
    task = Sampler(data, {"observations": Count(1000)}).draw(0)
    assert task.context["observations"].x.shape == (8, 1000, 2)
    assert task.target.x.shape == (8, 100, 2)


def test_the_stations_of_the_paper() -> None:
    """A share of the stations, the same for a whole batch, and all of a coarse grid."""
    ds = weather.field()
    stations = weather.stations(days=6)
    stations = stations.drop_duplicates("station")
    t2m = pd.concat([stations.assign(time=t) for t in weather.TIMES])
    data = Dataset({"t2m": t2m, "skt": ds[["u10"]].rename(u10="skt")}, target="t2m.t2m")
    context = {"t2m": Fraction(0.0001, 0.3, per="batch"), "skt": Whole()}
    task = Sampler(data, context, Whole()).draw(0)
    assert task.context["t2m"].mask is None
    assert task.context["skt"].x.shape == (8, 20, 2)
    assert task.target.x.shape == (8, 12, 2)


def test_the_wind_of_the_paper() -> None:
    """Four hours of six components, each seen at places of its own, at one share."""
    rng = np.random.default_rng(0)
    shape = (9, 3, 6, 7)
    ds = xr.Dataset(
        {c: (("time", "level", "lat", "lon"), rng.normal(size=shape)) for c in "uv"},
        {
            "time": pd.date_range("2009-06-01", periods=9, freq="1h"),
            "level": [700, 850, 1000],
            "lat": np.linspace(25, 49, 6),
            "lon": np.linspace(-125, -66, 7),
        },
    )
    names = [f"{c}_{level}" for level in (700, 850, 1000) for c in "uv"]
    data = Dataset({"era5": ds}, target=[f"era5.{name}" for name in names], features=("hours",))
    some = Fraction(0.05, 0.25, per="batch")
    sampler = Sampler(
        data,
        {name.replace("_", ""): Context(some, of=f"era5.{name}") for name in names},
        targets=Fraction(0.25),
        window="[0h, 3h]",
        target_window="[0h, 3h]",
        coordinates=("time", "lat", "lon"),
    )
    task = sampler.draw(0)
    assert set(task.context) == {f"{c}{level}" for level in (700, 850, 1000) for c in "uv"}
    assert len({points.x.shape for points in task.context.values()}) == 1
    assert task.target.y is not None
    assert task.target.y.shape == (8, 42, 6)
    assert set(task.target.x[..., 0].unique().tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert not torch.equal(task.context["u700"].x, task.context["v700"].x)


def test_raw_batches_are_what_the_tasks_in_order_are_made_of() -> None:
    data = Dataset({"s": weather.stations()}, target="s.t2m")
    sampler = Sampler(data, {"s": Fraction(0.5)}, batch=3)
    batches = list(sampler.raw_batches())
    assert [len(raw.target) for raw in batches] == [3, 3, 2]
    for raw, task in zip(batches, sampler.in_order(), strict=True):
        again = sampler.assemble(raw)
        assert torch.equal(again.target.x, task.target.x)
        assert torch.equal(again.context["s"].x, task.context["s"].x)
        seen, asked = raw.context["s"][0].rows, raw.target[0].rows
        assert sorted([*seen, *asked]) == sorted({*seen, *asked})
    assert sampler.times is not None
    (some,) = sampler.raw_batches(sampler.times[[5, 2]])
    assert [target.time for target in some.target] == sampler.times[[5, 2]].tolist()


def test_times_whose_only_observation_is_in_the_context_are_passed_over() -> None:
    frame = weather.stations()
    lonely = frame.time == frame.time.max()
    frame = frame[~lonely | (frame.station == "S00")]
    sampler = Sampler(Dataset({"s": frame}, target="s.t2m"), {"s": Fraction(0.5)}, batch=4)
    assert sampler.times is not None
    assert len(sampler.times) == 8
    assert [task.target.batch for task in sampler.in_order()] == [4, 3]
    with pytest.raises(
        ValueError, match=r"leaves no target at 2019-03-08; select fewer observations as"
    ):
        sampler.at("2019-03-08")


def test_few_stations_always_leave_a_target() -> None:
    """Even if values are missing."""
    table = weather.stations(3, 30)
    table["rain"] = 1.0
    table.loc[table.index % 4 != 0, "t2m"] = np.nan
    data = Dataset({"stations": table}, target="stations.t2m")
    sampler = Sampler(data, batch=4)
    for index in range(50):
        target = sampler.draw(index).target
        mask = torch.ones(target.x.shape[:2]) if target.mask is None else target.mask
        assert (mask.sum(1) >= 1).all()
