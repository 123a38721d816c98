"""Closed-form scores against other libraries, brute force, and forecasters known to be right."""

import numpy as np
import pytest
import scoringrules
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from gridtnp.evaluation import scores

NUMBER = st.floats(-50, 50)
SPREAD = st.floats(0.01, 30)


def of(*values: float) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value]) for value in values)


@given(NUMBER, NUMBER, SPREAD)
def test_scores_agree_with_scoringrules(y: float, mean: float, std: float) -> None:
    expected = scoringrules.crps_normal(y, mean, std)
    assert scores.crps(*of(y, mean, std))[0] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    if abs(y - mean) < 30 * std:  # beyond, its densities are zero
        expected = -scoringrules.logs_normal(y, mean, std)
        assert scores.log_density(*of(y, mean, std))[0] == pytest.approx(expected)


def test_crps_is_the_area_between_the_distribution_and_the_step() -> None:
    x = np.linspace(-30, 30, 600_001)
    for y, mean, std in [(1.0, 0.5, 2.0), (-4.0, 0.0, 0.5), (0.0, 0.0, 1.0)]:
        area = np.sum((norm.cdf(x, mean, std) - (x >= y)) ** 2) * (x[1] - x[0])
        assert scores.crps(*of(y, mean, std))[0] == pytest.approx(area, abs=1e-3)


@given(NUMBER, NUMBER, SPREAD)
def test_densities_and_pit_agree_with_scipy(y: float, mean: float, std: float) -> None:
    assert scores.log_density(*of(y, mean, std))[0] == pytest.approx(norm.logpdf(y, mean, std))
    assert scores.pit(*of(y, mean, std))[0] == pytest.approx(norm.cdf(y, mean, std))
    z = (y - mean) / std
    assert scores.normalised_log_density(*of(y, mean, std))[0] == pytest.approx(norm.logpdf(z))


@given(NUMBER, NUMBER, SPREAD, st.sampled_from(scores.LEVELS))
def test_an_interval_is_between_quantiles(y: float, mean: float, std: float, level: float) -> None:
    low, high = norm.ppf([0.5 - level / 2, 0.5 + level / 2], mean, std)
    assert scores.inside(*of(y, mean, std), level)[0] == float(low <= y <= high)


def test_a_level_must_be_a_probability() -> None:
    with pytest.raises(ValueError, match=r"^Level 90 of an interval is not between 0 and 1\.$"):
        scores.inside(*of(0.0, 0.0, 1.0), 90)


def test_a_point_forecast_has_an_absolute_error_and_nothing_else() -> None:
    point = of(3.0, 1.0, 0.0)
    assert scores.crps(*point)[0] == 2.0
    for score in (scores.log_density, scores.pit, scores.normalised_log_density):
        assert np.isnan(score(*point)[0])
    assert np.isnan(scores.inside(*point, 0.9)[0])


def test_skill() -> None:
    found = scores.skill(np.array([1.0, 2.0, 4.0, 1.0]), np.array([2.0, 2.0, 2.0, 0.0]))
    np.testing.assert_array_equal(found, [0.5, 0.0, -1.0, np.nan])


# ---- forecasters that are right, and wrong -------------------------------------------------------


def forecaster(narrow: float = 1.0, shift: float = 0.0) -> tuple[np.ndarray, ...]:
    """20,000 forecasts with the right mean and spread, or with a known fault."""
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=20_000), rng.uniform(0.5, 3.0, 20_000)
    observed = mean + std * rng.normal(size=20_000)
    return observed, mean + shift, std * narrow


def test_a_perfect_forecaster_is_calibrated() -> None:
    perfect = forecaster()
    assert kstest(scores.pit(*perfect), "uniform").pvalue > 0.01
    assert scores.normalised_log_density(*perfect).mean() == pytest.approx(-1.419, abs=0.02)
    for level in scores.LEVELS:
        assert scores.inside(*perfect, level).mean() == pytest.approx(level, abs=0.01)
    bins = scores.spread_skill(*perfect)
    np.testing.assert_allclose(bins.error, bins.spread, rtol=0.06)
    assert bins.spread[-1] > 2 * bins.spread[0]


@pytest.mark.parametrize(("narrow", "shift"), [(0.5, 0.0), (2.0, 0.0), (1.0, 0.5)])
def test_a_wrong_forecaster_is_not(narrow: float, shift: float) -> None:
    perfect, wrong = forecaster(), forecaster(narrow, shift)
    assert kstest(scores.pit(*wrong), "uniform").pvalue < 1e-6
    assert abs(scores.normalised_log_density(*wrong).mean() + 1.419) > 0.05
    assert scores.crps(*wrong).mean() > scores.crps(*perfect).mean()
    assert scores.log_density(*wrong).mean() < scores.log_density(*perfect).mean()
    assert abs(scores.inside(*wrong, 0.5).mean() - 0.5) > 0.01


def test_too_narrow_and_too_wide_are_told_apart() -> None:
    narrow, wide = forecaster(0.5), forecaster(2.0)
    assert scores.inside(*narrow, 0.9).mean() < 0.65
    assert scores.inside(*wide, 0.9).mean() > 0.99
    edges, middle = [0, -1], [9, 10]
    found = scores.pit_histogram(scores.pit(*narrow))
    assert found[edges].min() > 2 * found[middle].max()
    assert scores.spread_skill(*narrow).error.mean() > scores.spread_skill(*narrow).spread.mean()


def test_histograms_and_coverage_are_counts() -> None:
    values = np.array([0.01, 0.49, 0.51, 0.99, 1.0])
    np.testing.assert_allclose(scores.pit_histogram(values, 2), [0.4, 0.6])
    errors = np.random.default_rng(1).normal(size=1000)
    levels = np.array([0.1, 0.5, 0.9])
    brute = [np.mean(np.abs(errors) <= norm.ppf(0.5 + level / 2)) for level in levels]
    np.testing.assert_allclose(scores.coverage(errors, levels), brute)


def test_bins_of_spread_have_equal_numbers_and_a_constant_spread_makes_one() -> None:
    observed, mean, std = (values[:1000] for values in forecaster())
    bins = scores.spread_skill(observed, mean, std)
    order = np.argsort(std).reshape(10, 100)
    np.testing.assert_allclose(bins.count, 100, atol=1)
    rms = np.sqrt(((observed - mean)[order] ** 2).mean(1))
    np.testing.assert_allclose(bins.error, rms, rtol=0.1)
    one = scores.spread_skill(observed, mean, np.full(1000, 2.0))
    assert one.spread.tolist() == [2.0]
    assert one.error[0] == pytest.approx(np.sqrt(((observed - mean) ** 2).mean()))
    assert scores.spread_skill(observed[:30], mean[:30], std[:30]).count.tolist() == [30]
