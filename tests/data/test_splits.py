"""Stations that stand close together are held out together, wherever cell borders would fall."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gridtnp.data.dataset import Dataset


def stations(places: list[tuple[float, float]], days: int = 3) -> pd.DataFrame:
    """One station per place."""
    times = pd.date_range("2019-03-01", periods=days, freq="1D")
    rows = [
        {"time": time, "station": f"S{i:02d}", "lat": lat, "lon": lon, "t2m": float(i + day)}
        for day, time in enumerate(times)
        for i, (lat, lon) in enumerate(places)
    ]
    return pd.DataFrame(rows)


FAR = [(30.0 + i, 10.0) for i in range(18)]
"""Places a degree apart."""


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        ((40.00499, 5.0), (40.00501, 5.0), True),  # 2 m apart, on both sides of a hundredth
        ((40.0, 5.00499), (40.0, 5.00501), True),
        ((40.0, 179.9999), (40.0, -179.9999), True),  # across the date line
        ((89.9999, 0.0), (89.9999, 170.0), True),  # across the pole
        ((40.0, 5.0), (40.0, 5.009), True),
        ((40.0, 5.0), (40.012, 5.0), False),
        ((40.0051, 5.0051), (40.0149, 5.0149), False),  # in one cell of rounding, 1.4 km apart
    ],
)
def test_stations_within_a_hundredth_of_a_degree_share_a_part(
    one: tuple[float, float], other: tuple[float, float], near: bool
) -> None:
    data = Dataset({"obs": stations([*FAR, one, other])}, target="obs.t2m")
    labels = data.sources["obs"].labels
    assert labels is not None
    together = []
    for seed in range(30):
        train, _, test = data.split(hold_out_stations=0.5, seed=seed)
        part = train.context_places["obs"] * 1 + 2 * (test.target_places == 1)
        together.append(set(part[labels == "S18"]) == set(part[labels == "S19"]))
    assert all(together) == near


def test_a_chain_of_neighbours_is_one_group() -> None:
    chain = [(40.0 + 0.008 * i, 5.0) for i in range(6)]
    data = Dataset({"obs": stations([*FAR, *chain])}, target="obs.t2m")
    labels = data.sources["obs"].labels
    assert labels is not None
    for seed in range(20):
        train, _, _ = data.split(hold_out_stations=0.5, seed=seed)
        last = np.isin(labels, [f"S{18 + i}" for i in range(6)])
        assert len(set(train.context_places["obs"][last])) == 1


def test_what_others_observe_beside_a_held_out_station_is_held_out() -> None:
    beside = [(lat + 0.004, lon - 0.004) for lat, lon in FAR]
    sources = {"obs": stations(FAR), "other": stations(beside), "far": stations([(0.0, 0.0)])}
    for seed in range(5):
        train, _, _ = Dataset(sources, target="obs.t2m").split(hold_out_stations=0.5, seed=seed)
        kept = train.context_places
        np.testing.assert_array_equal(kept["obs"], kept["other"])
        assert kept["far"].all()


def test_a_ship_is_held_out_where_it_passes_a_held_out_station() -> None:
    times = pd.date_range("2019-03-01", periods=3, freq="1D")
    ship = pd.DataFrame(
        {"time": times, "ship": "A", "lat": [0.0, 30.003, 31.5], "lon": [0.0, 10.0, 10.0], "t": 1.0}
    )
    data = Dataset({"obs": stations(FAR), "ships": ship}, target="obs.t2m")
    train, _, _ = data.split(["2019-03-02", "2019-03-03"], hold_out_stations=["S00"])
    assert train.context_places["ships"].tolist() == [True, False, True]


def test_a_dense_network_is_one_group_and_points_to_blocks() -> None:
    line = [(40.0 + 0.005 * i, 5.0) for i in range(20)]
    with pytest.raises(
        ValueError,
        match=r"holds out 0 of 1 stations .*within 0\.01 degrees count as one.*blocks",
    ):
        Dataset({"obs": stations(line)}, target="obs.t2m").split(hold_out_stations=0.2)


def test_places_too_dense_to_tell_apart_are_refused_before_memory_runs_out() -> None:
    rng = np.random.default_rng(0)
    walk = pd.DataFrame(
        {
            "lat": 48 + rng.uniform(0, 0.005, 8000),
            "lon": 11 + rng.uniform(0, 0.005, 8000),
            "t": rng.normal(size=8000),
            "station": [f"p{i}" for i in range(8000)],
        }
    )
    with pytest.raises(
        ValueError, match=r"^The 8,000 locations of source 'obs' are too dense to hold out single"
    ):
        Dataset({"obs": walk}, target="obs.t").split(hold_out_stations=0.2)


def test_a_seed_holds_out_the_stations_that_it_always_did() -> None:
    """The order of stations a degree apart is that of their rounded coordinates."""
    rng = np.random.default_rng(0)
    places = [(40 + 0.003 * (i % 3), float(lon)) for i, lon in enumerate(rng.permutation(30))]
    data = Dataset({"obs": stations(places)}, target="obs.t2m")
    train, _, test = data.split(hold_out_stations=0.2, seed=3)
    labels = data.sources["obs"].labels
    assert labels is not None
    assert test.target_places is not None
    order = np.lexsort([[p[1] for p in places], np.round([100 * p[0] for p in places])])
    held = np.random.default_rng(3).permutation(30)[:6]
    assert set(labels[test.target_places]) == {f"S{i:02d}" for i in order[held[3:]]}
    assert set(labels[~train.context_places["obs"]]) == {f"S{i:02d}" for i in order[held]}


def test_a_part_splits_among_its_own_stations() -> None:
    """What one split holds out is in no context of another, nor a target of its training."""
    others = pd.DataFrame({"lat": [p[0] for p in FAR], "lon": 10.0, "u10": 1.0})
    data = Dataset({"obs": stations(FAR), "others": others}, target="obs.t2m")
    first, val, test = data.split(hold_out_stations=0.4)
    train, second_val, second_test = first.split(hold_out_stations=0.4, seed=1)
    for part in (train, second_val, second_test):
        for name in data.sources:
            assert not (part.context_places[name] & ~first.context_places[name]).any()
        assert not (part.target_places & (val.target_places | test.target_places)).any()
    held = [p.target_places for p in (train, second_val, second_test)]
    np.testing.assert_array_equal(np.sum(held, 0), first.target_places)
    assert [p.held_out for p in (train, second_val, second_test)] == [False, True, True]
    # those of a test part are its held-out stations, all seen from the same context
    part, _, _ = test.split(hold_out_stations=0.5)
    np.testing.assert_array_equal(part.context_places["obs"], first.context_places["obs"])
    assert (part.target_places & test.target_places).any()
    assert not (part.target_places & ~test.target_places).any()


def test_stations_that_another_split_holds_out_cannot_be_named() -> None:
    data = Dataset({"obs": stations(FAR)}, target="obs.t2m")
    first, _, _ = data.split(["2019-03-02", "2019-03-03"], hold_out_stations=["S03"])
    with pytest.raises(ValueError, match=r"^Unknown station 'S03' of source 'obs'"):
        first.split(hold_out_stations=["S03", "S04"])
