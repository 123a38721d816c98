"""What persists at places: exact, found in tasks, and kept where it helps."""

import pytest
import torch
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gridtnp.kriging.fitting import fit
from gridtnp.kriging.gaussian_process import Inputs, KrigingProcess, crps
from gridtnp.kriging.persistent import SMOOTH, PersistentField
from gridtnp.kriging.remembering import Tasks, _estimates, learn, remember

PLACES, TASKS = 30, 40


def process(places: int = PLACES) -> KrigingProcess:
    options = {"dimensions": 2, "drifts": 1, "distances": 1, "timed": False}
    return KrigingProcess(2, **options, length=0.5, hours=6.0, places=places)


def points(n: int, seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    place = 4 * torch.rand(1, n, 2, generator=g).double() - 2
    return Inputs(place, None, torch.randn(1, n, 2, generator=g).double())


def learned(seed: int, places: int = PLACES) -> PersistentField:
    """A field of which something random is known."""
    g = torch.Generator().manual_seed(seed)
    field = PersistentField(places, 3)
    field.amplitude.fill_(-0.5)
    field.own.fill_(-1.5)
    field.length.copy_(torch.tensor([0.1, -0.2, 0.5]))
    field.places.copy_(torch.randn(places, 3, generator=g).double())
    field.value.copy_(torch.randn(places, generator=g))
    root = torch.randn(places, places, generator=g) / places
    field.error.copy_(root @ root.T + 0.01 * torch.eye(places))
    field.used.fill_(1.0)
    return field


def tasks_of(size: float, *, own: float = 0.0, noise: float = 0.05) -> tuple[Inputs, Tensor]:
    """Weather of its own in every task, plus deviations of places that stay."""
    at, g = points(PLACES, 1), torch.Generator().manual_seed(2)
    r = torch.cdist(at.place[0], at.place[0])
    root = torch.linalg.cholesky((1 + r) * torch.exp(-r) + 1e-8 * torch.eye(PLACES).double())
    stays = root @ torch.randn(PLACES, generator=g).double()
    stays = size * stays + own * torch.randn(PLACES, generator=g).double()
    weather = 0.3 * torch.randn(TASKS, PLACES, generator=g).double() @ root.T
    y = stays + weather + noise * torch.randn(TASKS, PLACES, generator=g).double()
    every = (TASKS, -1, -1)
    return Inputs(at.place.expand(*every), None, at.regressors.expand(*every)), y


@settings(max_examples=examples(10))
@given(st.integers(0, 1000), st.integers(1, 12))
def test_the_posterior_is_that_of_regression_on_estimates_with_errors(seed: int, n: int) -> None:
    field = learned(seed)
    x = torch.cat([field.places[:2], torch.randn(n, 3).double()])[None]
    found = field.at(x, field.posterior())

    def prior(a: Tensor, b: Tensor) -> Tensor:
        r = 3**0.5 * torch.cdist(a / field.length.double().exp(), b / field.length.double().exp())
        same = (a[:, None] == b[None]).all(-1)
        own = field.own.double().mul(2).exp() + SMOOTH * field.amplitude.double().mul(2).exp()
        return field.amplitude.double().mul(2).exp() * (1 + r) * torch.exp(-r) + own * same

    k = prior(field.places, field.places) + field.error.double()
    across = prior(x[0], field.places)
    torch.testing.assert_close(found.mean[0], across @ torch.linalg.solve(k, field.value.double()))
    exact = prior(x[0], x[0]) - across @ torch.linalg.solve(k, across.T)
    torch.testing.assert_close(field.covariance(found, found)[0], exact, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(field.variance(found)[0], exact.diagonal(), rtol=1e-6, atol=1e-8)


def test_only_places_among_the_given_ones_are_known() -> None:
    field, x = learned(3), torch.randn(2, 5, 3).double()
    some = torch.stack([field.places[:8], field.places[4:12]])
    found = field.at(x, field.posterior(some))
    for i, rows in enumerate((slice(0, 8), slice(4, 12))):
        fewer = PersistentField(8, 3)
        for name in ("amplitude", "own", "length"):
            getattr(fewer, name).copy_(getattr(field, name))
        fewer.places.copy_(field.places[rows])
        fewer.value.copy_(field.value[rows])
        fewer.error.copy_(field.error[rows, rows])
        fewer.used.fill_(1.0)
        wanted = fewer.at(x[i : i + 1], fewer.posterior())
        torch.testing.assert_close(found.mean[i], wanted.mean[0])
        torch.testing.assert_close(
            field.covariance(found, found)[i], fewer.covariance(wanted, wanted)[0]
        )


def test_a_field_that_learned_nothing_is_zero() -> None:
    field = PersistentField(4, 3)
    assert not field.known
    found = field.at(torch.randn(1, 6, 3).double(), field.posterior())
    assert not found.mean.any()
    assert field.covariance(found, found).abs().max().item() < 1e-6


def test_estimates_are_those_of_generalised_least_squares() -> None:
    """Of all tasks in one system of equations; some places are missing in some tasks."""
    inputs, y = tasks_of(1.0)
    inputs, y = inputs[:6,], y[:6]
    mask = torch.rand(y.shape, generator=torch.Generator().manual_seed(5)) < 0.7
    made = process()
    made.amplitude.fill_(1.0)  # nothing is an outlier
    tasks = Tasks.of(made, inputs, y, mask)
    value, error = _estimates(made, tasks, 0.5)
    information, sums = error.new_zeros(error.shape), error.new_zeros(len(value))
    for t in range(len(y)):
        rows = torch.nonzero(mask[t])[:, 0]
        at = made.points(inputs[t : t + 1, rows])
        k = made.covariance(at, at)[0] + torch.diag(made.noise_variance(at)[0])
        chosen = torch.zeros(len(rows), len(value)).double()
        chosen[torch.arange(len(rows)), tasks.number[t, rows]] = 1.0
        information += chosen.T @ torch.linalg.solve(k, chosen)
        sums += chosen.T @ torch.linalg.solve(k, y[t, rows] - made.mean(at.inputs)[0])
    torch.testing.assert_close(value, torch.linalg.solve(information, sums), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(error, information.inverse() / 0.5, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(tasks.places[tasks.number[mask]], made.coordinates(inputs)[mask])


def test_the_places_that_were_observed_most_often_are_kept() -> None:
    inputs, y = tasks_of(1.0)
    mask = torch.ones_like(y, dtype=torch.bool)
    mask[:5, ::2] = False
    tasks = Tasks.of(process(places=PLACES // 2), inputs, y, mask)
    assert (tasks.number[:, 1::2] >= 0).all()
    assert (tasks.number[:, ::2] == -1).all()


@pytest.mark.parametrize("own", [0.0, 0.3])
def test_what_persists_is_found_and_predicted_at_places_that_are_not_observed_now(
    own: float,
) -> None:
    inputs, y = tasks_of(0.5, own=own)
    seen = torch.ones_like(y, dtype=torch.bool)
    made = process()
    train, later = slice(0, 30), slice(30, TASKS)
    fit(made, inputs[train,], y[train], seen[train])
    given = seen[later].clone()
    given[:, ::2] = False

    def scores() -> Tensor:
        assert made.persistent is not None
        now = inputs[later,]
        if made.persistent.known:
            x = made.coordinates(now)
            at = made.persistent.at(x, made.persistent.posterior())
            now = Inputs(now.place, None, now.regressors, None, at)
        mean, std = made.predict(made.condition(now, y[later], given), now)
        return crps(y[later] - mean, std)[:, ::2].mean(0)

    before = scores().mean().item()
    counted = remember(made, Tasks.of(made, inputs[train,], y[train], seen[train]), scores)
    assert counted > 0
    assert scores().mean().item() < 0.8 * before


def test_what_does_not_help_is_not_kept() -> None:
    made = process()
    inputs, y = tasks_of(0.0)
    mask = torch.ones_like(y, dtype=torch.bool)
    fit(made, inputs, y, mask)
    before = [p.clone() for p in made.buffers()]
    worse = iter(range(10))
    tasks = Tasks.of(made, inputs, y, mask)
    assert remember(made, tasks, lambda: torch.tensor([float(next(worse))])) == 0.0
    assert all(torch.equal(a, b) for a, b in zip(before, made.buffers(), strict=True))
    assert made.persistent is not None
    assert not made.persistent.known


def test_deviations_where_there_are_none_are_small() -> None:
    made = process()
    inputs, y = tasks_of(0.0)
    mask = torch.ones_like(y, dtype=torch.bool)
    fit(made, inputs, y, mask)
    tasks = Tasks.of(made, inputs, y, mask)
    learn(made, tasks, 1.0)
    assert (y - tasks.rest(made)).std().item() < 0.25 * y.std().item()
