"""Covariances that differ from place to place: valid, fitted, and kept only where they help."""

import pytest
import torch
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gridtnp.kriging import fitting
from gridtnp.kriging.fitting import deform, fit
from gridtnp.kriging.gaussian_process import Inputs, KrigingProcess, crps

PLACES = 90


def process() -> KrigingProcess:
    options = {"dimensions": 2, "drifts": 1, "distances": 1, "timed": False}
    return KrigingProcess(2, **options, length=0.5, hours=6.0)


def points(n: int, seed: int, batch: int = 1) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    place = 4 * torch.rand(1, n, 2, generator=g).double() - 2
    regressors = torch.randn(1, n, 2, generator=g).double()
    return Inputs(place.expand(batch, -1, -1), None, regressors.expand(batch, -1, -1))


def deformed(seed: int, size: float) -> KrigingProcess:
    """With random weights."""
    made, g = process(), torch.Generator().manual_seed(seed)
    made.deformation.start(made.coordinates(points(50, 0))[0], g)
    for weights in made.deformation.weights():
        weights += size * torch.randn(weights.shape, generator=g)
    return made


def rough_west(tasks: int) -> tuple[Inputs, Tensor]:
    """Ten times as short a length scale in the west, where amplitudes are larger, too."""
    at = points(PLACES, 1, tasks)
    x, y = at.place.unbind(-1)
    stretched = torch.where(x < 0, 5 * x, 0.5 * x)
    place = torch.stack([stretched, torch.where(x < 0, 5 * y, 0.5 * y)], -1)
    r = torch.cdist(place, place)
    size = torch.where(x < 0, 1.0, 0.3)
    k = size[:, :, None] * size[:, None] * (1 + r) * torch.exp(-r)
    root = torch.linalg.cholesky(k + 1e-4 * torch.eye(PLACES).double())
    g = torch.Generator().manual_seed(2)
    return at, (root @ torch.randn(tasks, PLACES, 1, generator=g).double())[..., 0]


def test_it_is_the_identity_until_it_is_fitted() -> None:
    made, at = process(), points(20, 0)
    found = made.deformation(made.coordinates(at))
    assert torch.equal(found.coordinates, made.coordinates(at))
    assert not found.additional.any()
    assert (found.amplitude == 1).all()
    assert (found.noise == 1).all()


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 10_000), size=st.floats(0, 2))
def test_a_deformed_covariance_is_a_covariance(seed: int, size: float) -> None:
    made = deformed(seed, size)
    at = made.points(points(40, seed))
    k = made.covariance(at, at)
    assert torch.allclose(k, k.mT)
    assert torch.linalg.eigvalsh(k).min() > -1e-8 * k.diagonal(dim1=1, dim2=2).max()
    assert k.diagonal(dim1=1, dim2=2) == pytest.approx(made.variance(at).numpy())
    assert (made.noise_variance(at) > 0).all()


def test_the_posterior_of_a_deformed_process_is_exact() -> None:
    made, seen, asked = deformed(3, 0.5), points(30, 4), points(9, 5)
    y = torch.randn(1, 30).double()
    mean, std = made.predict(made.condition(seen, y, torch.ones(1, 30) > 0), asked)
    residual, trend = (y - made.mean(seen))[..., None], made.mean(asked)
    seen, asked = made.points(seen), made.points(asked)
    noise = torch.diag_embed(made.noise_variance(seen))
    jitter = 1e-6 * max(1.0, float(made.variance(seen).max())) * torch.eye(30).double()
    k, across = made.covariance(seen, seen) + noise + jitter, made.covariance(asked, seen)
    known = trend + (across @ torch.linalg.solve(k, residual))[..., 0]
    assert mean.numpy() == pytest.approx(known.numpy(), abs=1e-8)
    explained = (across * torch.linalg.solve(k, across.mT).mT).sum(-1)
    variance = made.variance(asked) - explained + made.noise_variance(asked)
    assert std.square().numpy() == pytest.approx(variance.numpy(), abs=1e-8)


def test_a_covariance_that_differs_from_place_to_place_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fitting, "STEPS", 160)
    at, y = rough_west(24)
    made, some = process(), torch.arange(PLACES) < 70
    fit(made, at[:16, some], y[:16, some], torch.ones(16, 70) > 0)

    def scores() -> Tensor:
        """At places never seen, and other times."""
        seen = made.condition(at[16:, some], y[16:, some], torch.ones(8, 70) > 0)
        mean, std = made.predict(seen, at[16:, ~some])
        return crps(y[16:, ~some] - mean, std).mean(0)

    before = scores().mean()
    saved = deform(made, at[:16, some], y[:16, some], torch.ones(16, 70) > 0, scores)
    assert saved > 0.02
    assert scores().mean().item() == pytest.approx((1 - saved) * before.item())
    found = made.deformation(made.coordinates(at[:1, :]))
    west = at.place[0, :, 0] < -0.5
    assert found.amplitude[0, west].mean() > 1.2 * found.amplitude[0, ~west].mean()


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "STEPS", 12)
    monkeypatch.setattr(fitting, "SCORED", 2)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("scores", [[1.0] * 7, [1.0, *(1.1, 0.999, 0.995, 1.0, 1.2, 1.3), 0.992]])
def test_without_a_gain_nothing_is_deformed(scores: list[float]) -> None:
    at, y = rough_west(4)
    made, left = process(), iter(scores)
    before = [p.clone() for p in made.buffers()]
    everywhere = torch.ones(30).double()
    assert deform(made, at, y, torch.ones(4, PLACES) > 0, lambda: next(left) * everywhere) == 0
    assert all(torch.equal(p, q) for p, q in zip(made.buffers(), before, strict=True))
    assert next(left, None) is None


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize(("noise", "kept"), [(0.3, True), (3.0, False)])
def test_a_gain_that_chance_explains_deforms_nothing(noise: float, kept: bool) -> None:
    """Here one of 0.1 on average, at 25 places that differ."""
    at, y = rough_west(4)
    made, first = process(), True
    differences = torch.linspace(-1.7, 1.7, 25).double()

    def scores() -> Tensor:
        nonlocal first
        given = torch.full((25,), 2.0) if first else 1.9 + noise * differences
        first = False
        return given.double()

    assert (deform(made, at, y, torch.ones(4, PLACES) > 0, scores) > 0) == kept


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize(("fitted_again", "kept", "saved"), [(0.85, 2, 0.2), (0.7, 7, 0.3)])
def test_the_best_deformation_is_kept(fitted_again: float, kept: int, saved: float) -> None:
    """With the other hyper-parameters as they were then, or fitted again, if that is better."""
    at, y = rough_west(4)
    made, seen = process(), []

    def scores() -> Tensor:
        seen.append([p.clone() for p in made.buffers()])
        given = [1.0, 0.9, 0.8, 0.95, 0.8, 1.0, 1.0, fitted_again]
        return torch.full((9,), given[len(seen) - 1]).double()

    assert deform(made, at, y, torch.ones(4, PLACES) > 0, scores) == pytest.approx(saved)
    assert len(seen) == 8
    assert all(torch.equal(p, q) for p, q in zip(made.buffers(), seen[kept], strict=True))
    weights = made.deformation.weights()
    assert all(any(torch.equal(p, q) for q in seen[2]) for p in weights)


def test_a_single_place_supports_no_deformation() -> None:
    """The standard error over one place is unknown."""
    made, at = process(), points(PLACES, 1, 4)
    y = torch.randn(4, PLACES, generator=torch.Generator().manual_seed(0)).double()
    left = iter([1.0, *[0.1] * 100])
    scores = lambda: torch.full((1,), next(left)).double()  # noqa: E731
    assert deform(made, at, y, torch.ones(4, PLACES) > 0, scores) == 0
