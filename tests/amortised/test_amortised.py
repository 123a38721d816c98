"""The process behind the model in the box: gradients, masks, tiles, continuity, the estimator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gridtnp as gt
from gridtnp.amortised import neighbours, posterior
from gridtnp.amortised.network import SOURCE
from gridtnp.amortised.process import Condition, Correlation, Shape, tabulated
from gridtnp.amortised.profile import LENGTHS, LEVEL, NOISES, PLAIN, profile
from gridtnp.amortised.weights import WEIGHTS, load, pretrained
from gridtnp.pretrain.fields import FieldPrior, draw_at
from gridtnp.task import PointSet, Task


def double(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_gradients_of_the_correlation_and_of_the_posterior() -> None:
    squared, weights, shrink = double(1, 3, 4) * 3, double(1, 6, seed=1), double(1, seed=2)
    inputs = tuple(v.requires_grad_() for v in (squared, weights, shrink))
    assert torch.autograd.gradcheck(Correlation.apply, inputs)
    a = double(2, 4, 4)
    k = (a @ a.mT + torch.eye(4)).requires_grad_()
    across, y = double(2, 4, 3, seed=3).requires_grad_(), double(2, 4, seed=4)

    def conditioned(k: torch.Tensor, across: torch.Tensor) -> object:
        return Condition.apply((k + k.mT) / 2, across, y)

    assert torch.autograd.gradcheck(conditioned, (k, across))


def test_predictions_use_the_same_correlation_as_training() -> None:
    weights, shrink = double(3, 6, seed=1), torch.tensor([0.06, 0.2, 0.9]).double()
    squared = torch.exp(24 * double(3, 40, 50) - 16)  # from coincident to 50 length-scales
    squared[:, 0] = 0
    expected = Correlation.apply(squared, weights / weights.sum(1, keepdim=True), shrink)
    found = tabulated(squared, Shape(weights / weights.sum(1, keepdim=True), shrink))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
    far = tabulated(torch.full((3, 1, 1), 1e9).double(), Shape(weights, shrink))
    assert (far < 1e-8).all()


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_observations_are_profiled_as_by_ordinary_factorisations(share: float) -> None:
    x, y = 5 * double(1, 30, 2), double(1, 30, seed=1)
    mask = double(1, 30, seed=2) >= share
    index = neighbours.Index(x, mask).nearest(x, 13)[1]
    found = profile(x, y, mask, neighbours.without_self(index))
    lengths = [length for length in LENGTHS for _ in range(2 * len(NOISES))]
    for i in torch.nonzero(mask[0])[:, 0].tolist():
        near = [j for j in index[0, i].tolist() if j != i and mask[0, j]]
        for c in (0, 4, PLAIN - 1):
            s = torch.cdist(x[0, [*near, i]], x[0, [*near, i]]) / lengths[c]
            five = (1 + 5**0.5 * s + 5 / 3 * s**2) * torch.exp(-(5**0.5) * s)
            rough = c % (2 * len(NOISES)) < len(NOISES)
            k = (torch.exp(-s) if rough else five) + LEVEL
            k = k + NOISES[c % len(NOISES)] * torch.eye(len(k))
            weights = torch.linalg.solve(k[:-1, :-1], k[:-1, -1])
            std = (k[-1, -1] - weights @ k[:-1, -1]).sqrt()
            error = (y[0, i] - weights @ y[0, near]) / std
            expected = torch.stack([error, std.log()])
            torch.testing.assert_close(
                torch.stack([found.error[0, i, c], found.log_std[0, i, c]]).double(),
                expected,
                rtol=1e-4,
                atol=1e-5,
            )


def test_masked_observations_change_nothing() -> None:
    task = draw_at(FieldPrior(), (7,), 1, 40, 10).task
    context = task.context[SOURCE]
    assert context.y is not None
    x, y = (torch.cat([v, 100 + v[:, :5]], 1) for v in (context.x, context.y))
    mask = torch.arange(45)[None] < 40
    masked = Task({SOURCE: PointSet(x, y, mask)}, task.target)
    with torch.no_grad():
        torch.testing.assert_close(pretrained()(masked).mean, pretrained()(task).mean)


def test_tiles_agree_with_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    task = draw_at(FieldPrior("Matérn 3/2"), (8, 2), 1, 700, 150).task
    with torch.no_grad():
        whole = pretrained()(task)
        monkeypatch.setattr(posterior, "EXACT", 100)
        monkeypatch.setattr(neighbours, "DENSE", 100)
        tiled = pretrained()(task)
    error = ((tiled.mean - whole.mean) / whole.stddev).abs()
    assert error.median() < 0.02
    assert error.quantile(0.95) < 0.2
    ratio = tiled.stddev / whole.stddev
    assert ratio.min() > 0.9
    assert ratio.max() < 1.2


def test_places_where_many_observations_are_replicated_are_places_as_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.concatenate([np.ones((200, 2)), 5 * double(100, 2).numpy()])
    y = np.sin(x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=300)
    monkeypatch.setattr(posterior, "EXACT", 100)  # the centre of many tiles is the place itself
    found = gt.interpolate((x, y), np.ones((1, 2)))
    assert isinstance(found, dict)
    assert abs(found["mean"][0] - y[:200].mean()) < 0.05


def along_a_line(number: int) -> Task:
    """Places along the diagonal of the observations."""
    context = draw_at(FieldPrior("squared exponential"), (9,), 1, 300, 1).task.context
    x = context[SOURCE].x.double()
    line = torch.linspace(0, 1, number, dtype=torch.float64)[None, :, None]
    low, high = x.amin(1), x.amax(1)
    return Task(context, PointSet(low[:, None] + line * (high - low)[:, None]))


def test_predictions_are_continuous_in_the_place() -> None:
    with torch.no_grad():
        found = pretrained()(along_a_line(4001))
    for values in (found.mean[0, :, 0], found.stddev[0, :, 0].log()):
        assert values.diff().abs().max() < 0.05 * values.std() + 0.02


def test_tiles_have_no_borders(monkeypatch: pytest.MonkeyPatch) -> None:
    task = along_a_line(4001)
    with torch.no_grad():
        whole = pretrained()(task)
        monkeypatch.setattr(posterior, "EXACT", 100)
        monkeypatch.setattr(posterior, "AROUND", 64)
        tiled = pretrained()(task)
    apart = (tiled.mean - whole.mean)[0, :, 0] / whole.stddev[0, :, 0]
    assert apart.abs().max() > 0.05  # tiles are seen at all
    assert apart.diff().abs().max() < 0.01
    assert (tiled.stddev / whole.stddev)[0, :, 0].log().diff().abs().max() < 0.01


def test_the_weights_say_how_they_were_made() -> None:
    about = load()[1]
    assert {"settings", "steps", "held_out", "commit", "command"} <= set(about)
    assert WEIGHTS.stat().st_size < 4e6


def test_the_estimator_predicts_as_interpolate_does() -> None:
    rng = np.random.default_rng(0)
    X, at = rng.random((40, 3)), rng.random((7, 3))
    y = X[:, 0] - 2 + 3 * X[:, 2] + 0.1 * rng.normal(size=40)
    mean, std = gt.GriddedTNPRegressor().fit(X, y).predict(at, return_std=True)
    found = gt.interpolate((X[:, :2], y), at[:, :2], covariates=(X[:, 2:], at[:, 2:]))
    assert isinstance(found, dict)
    np.testing.assert_allclose(mean, found["mean"])
    np.testing.assert_allclose(std, found["std"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_the_estimator_passes_the_checks_of_scikit_learn(request: pytest.FixtureRequest) -> None:
    from sklearn.utils.estimator_checks import check_estimator

    known = {}
    if request.config.getoption("--check-shapes"):  # which check types, too
        known["check_do_not_raise_errors_in_init_or_set_params"] = "gives a float for an int"
    found = check_estimator(
        gt.GriddedTNPRegressor(), expected_failed_checks=known, on_fail=None, on_skip=None
    )
    failed = {f"{c['check_name']}: {c['exception']}" for c in found if c["status"] == "failed"}
    assert not failed


@pytest.mark.slow
def test_many_observations_and_targets_are_interpolated_in_bounded_memory() -> None:
    import resource

    rng = np.random.default_rng(0)
    x = rng.random((6000, 2)) * 80
    y = np.sin(x[:, 0] / 5) + 0.1 * rng.normal(size=len(x))
    at = rng.random((20_000, 2)) * 80
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = gt.interpolate((x, y), at)
    assert isinstance(found, dict)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 3e6  # kB
    error = found["mean"] - np.sin(at[:, 0] / 5)
    assert np.sqrt((error**2).mean()) < 0.08


def test_of_the_nearest_each_observation_loses_itself_once() -> None:
    x = double(2, neighbours.DENSE + 4, 2)
    few = torch.arange(len(x[0])) < 9  # fewer than are asked for, so that the last one is repeated
    index = neighbours.Index(x, torch.stack([few, few | True])).nearest(x, 13)[1]
    others = neighbours.without_self(index)
    assert others.shape == (2, len(x[0]), 12)
    assert not (others[1] == torch.arange(len(x[0]))[:, None]).any()


def test_few_observations_are_interpolated_alike_beside_many() -> None:
    """Whatever their units: the spacing of four places is that of four places."""
    x, y = 100 * double(2, 24, 2), double(2, 24, seed=1)
    mask = torch.ones(2, 24, dtype=torch.bool)
    mask[0, 4:] = False
    both = neighbours.units_of(x, y, mask)
    alone = neighbours.units_of(x[:1, :4], y[:1, :4], mask[:1, :4])
    torch.testing.assert_close(both.spacing[:1], alone.spacing)
