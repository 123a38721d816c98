"""Intervals by blocks of time and stations: they cover the truth where points would not."""

import numpy as np
import pytest

from gridtnp.evaluation.bootstrap import (
    autocorrelation_time,
    bootstrap_means,
    interval,
    place_blocks,
    time_blocks,
)

TIMES = np.datetime64("2000-01-01", "ms") + np.arange(160) * np.timedelta64(1, "D")


def wandering(seed: int, persistence: float, number: int = 160) -> np.ndarray:
    """Errors around zero, each like the one before it."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=number) * np.sqrt(1 - persistence**2)
    series = np.zeros(number)
    series[0] = rng.normal()
    for t in range(1, number):
        series[t] = persistence * series[t - 1] + noise[t]
    return series


def covers(block: str | None, persistence: float) -> float:
    """How often an interval of 95 % holds the true mean, zero."""
    hits = 0
    for seed in range(150):
        errors = wandering(seed, persistence)
        blocks = time_blocks(TIMES, errors, block)
        draws = bootstrap_means(errors[:, None], [blocks])[:, 0]
        low, high = interval(errors.mean(), draws, int(blocks.max()) + 1)
        hits += low <= 0 <= high
    return hits / 150


def test_intervals_cover_the_truth_for_independent_times() -> None:
    assert 0.9 <= covers(None, 0.0) <= 0.99


def test_blocks_cover_the_truth_where_single_times_do_not() -> None:
    assert covers("1D", 0.8) < 0.7
    assert covers(None, 0.8) > 0.87


def test_the_autocorrelation_time_counts_correlated_steps() -> None:
    assert autocorrelation_time(np.random.default_rng(0).normal(size=2000)) == pytest.approx(
        1.0, abs=0.2
    )
    long = np.mean([autocorrelation_time(wandering(seed, 0.8, 4000)) for seed in range(10)])
    assert long == pytest.approx(9.0, rel=0.25)  # (1 + 0.8) / (1 - 0.8)
    assert autocorrelation_time(np.ones(50)) == 1.0


def test_blocks_of_a_given_length_hold_that_many_days() -> None:
    twice = np.repeat(TIMES, 2)
    blocks = time_blocks(twice, np.zeros(320), "10D")
    assert np.bincount(blocks).tolist() == [20] * 16
    with pytest.raises(ValueError, match=r"^block='0h': the length of a block must be positive\.$"):
        time_blocks(twice, np.zeros(320), "0h")


def test_blocks_are_never_so_long_that_few_are_left() -> None:
    assert len(np.unique(time_blocks(TIMES, np.linspace(0, 1, 160)))) >= 8


def test_many_times_make_a_bounded_number_of_blocks() -> None:
    times = TIMES[0] + np.arange(5000) * np.timedelta64(1, "h")
    errors = np.random.default_rng(0).normal(size=5000)
    assert len(np.unique(time_blocks(times, errors))) == 200


def test_a_draw_is_the_mean_of_blocks_drawn_with_replacement() -> None:
    rng = np.random.default_rng(3)
    terms, block = rng.normal(size=(30, 2)), rng.integers(0, 4, 30)
    draws = bootstrap_means(terms, [block], seed=5)
    drawn = np.random.default_rng(5).integers(4, size=(1000, 4))
    for draw, blocks in list(zip(draws, drawn, strict=True))[:20]:
        rows = np.concatenate([np.flatnonzero(block == b) for b in blocks])
        np.testing.assert_allclose(draw, terms[rows].mean(0))


def test_few_blocks_make_wider_intervals() -> None:
    draws = np.random.default_rng(0).normal(size=100_000)
    low, high = interval(0.0, draws, 10_000)
    assert (low, high) == (pytest.approx(-1.96, abs=0.02), pytest.approx(1.96, abs=0.02))
    assert interval(0.0, draws, 8)[1] == pytest.approx(2.365 * np.sqrt(8 / 7), abs=0.03)


def test_one_block_says_nothing_about_uncertainty() -> None:
    assert np.isnan(bootstrap_means(np.ones((5, 1)), [np.zeros(5, int)])).all()


def test_two_kinds_of_clusters_are_drawn_independently_and_their_weights_multiply() -> None:
    rng = np.random.default_rng(3)
    terms = rng.normal(size=(60, 2))
    block, station = rng.integers(0, 4, 60), rng.integers(0, 5, 60)
    draws = bootstrap_means(terms, [block, station], seed=5)
    again = np.random.default_rng(5)
    blocks, stations = (again.integers(n, size=(1000, n)) for n in (4, 5))
    for i in range(20):
        weight = np.bincount(blocks[i], minlength=4)[block].astype(float)
        weight *= np.bincount(stations[i], minlength=5)[station]
        np.testing.assert_allclose(draws[i], weight @ terms / weight.sum())
    one = np.zeros(60, int)  # a single station is not resampled
    np.testing.assert_array_equal(
        bootstrap_means(terms, [block, one]), bootstrap_means(terms, [block])
    )


def test_where_stations_differ_more_than_times_the_interval_says_so() -> None:
    """20 stations with errors of their own at 100 times: the mean is that of 20 values."""
    hits, ratios = 0, []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        errors = (rng.normal(size=20)[None] + 0.3 * rng.normal(size=(100, 20))).ravel()
        time, station = np.repeat(np.arange(100), 20), np.tile(np.arange(20), 100)
        width = []
        for kinds in ([time], [time, station]):
            draws = bootstrap_means(errors[:, None], kinds)[:, 0]
            low, high = interval(errors.mean(), draws, 20)
            width.append(high - low)
            hits += len(kinds) == 2 and low <= 0 <= high
        ratios.append(width[1] / width[0])
    assert min(ratios) > 5
    assert hits / 60 > 0.87


def test_draws_without_any_point_are_left_out() -> None:
    """Two stations that never report at the same time."""
    terms, both = np.arange(2.0)[:, None], np.arange(2)
    draws = bootstrap_means(terms, [both, both])
    assert len(draws) == pytest.approx(875, abs=40)  # one in eight draws misses both
    assert np.isfinite(draws).all()


def test_many_places_are_grouped_with_their_neighbours() -> None:
    rng = np.random.default_rng(0)
    lat, lon = rng.uniform(-60, 60, 5000), rng.uniform(-180, 180, 5000)
    name = np.arange(5000)
    block = place_blocks(np.tile(name, 2), np.tile(lat, 2), np.tile(lon, 2))
    assert (block[:5000] == block[5000:]).all()
    counts = np.bincount(block)
    assert 100 <= len(counts) <= 200
    assert counts.max() <= 1.2 * counts.min()
    extent = [np.ptp(lat[block[:5000] == b]) for b in range(len(counts))]
    assert np.median(extent) < 30
    few = place_blocks(np.array(["b", "a", "b"]), np.zeros(3), np.zeros(3))
    assert few.tolist() == [1, 0, 1]
