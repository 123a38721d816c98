"""Synthetic tasks and their exact answers, against independent implementations and brute force."""

import math
import warnings

import numpy as np
import pytest
import torch
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from torch.distributions import Normal

from gridtnp.synthetic.covariances import (
    Covariance,
    LogUniform,
    Matern,
    OneOf,
    Periodic,
    SquaredExponential,
    Sum,
)
from gridtnp.synthetic.posterior import finite_rank_posterior, posterior
from gridtnp.synthetic.processes import (
    SOURCE,
    GaussianProcess,
    Process,
    RankLimitedProcess,
    Sawtooth,
    StudentNoise,
    draw_at,
    stream,
)
from gridtnp.synthetic.spectral import MISSING, NEGLIGIBLE, lattice

with warnings.catch_warnings():  # it is compiled in a way that PyTorch wants to drop
    warnings.simplefilter("ignore", DeprecationWarning)
    import gpytorch

KERNELS: dict[str, Covariance] = {
    "se": SquaredExponential(0.4),
    "se-anisotropic": SquaredExponential((0.3, 0.9), variance=2.0),
    "matern-1/2": Matern(0.7, smoothness=0.5),
    "matern-3/2": Matern(0.5, smoothness=1.5),
    "matern-5/2": Matern((0.5, 0.3), smoothness=2.5),
    "periodic": Periodic(0.8, period=1.3),
    "two scales": Sum((SquaredExponential(0.2, variance=0.3), Matern(1.0, smoothness=1.5))),
}
BOX = ((-1.0, 1.0), (0.0, 1.5))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exact(**changes: object) -> GaussianProcess:
    values = {"box": BOX, "context": 40, "targets": 20, "kernel": SquaredExponential(0.4)}
    return GaussianProcess(**(values | changes))  # pyright: ignore[reportArgumentType]


# ---- kernels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothness", [0.5, 1.5, 2.5])
def test_matern_is_that_of_two_other_libraries(smoothness: float) -> None:
    x = torch.rand(30, 2, dtype=torch.float64, generator=generator())
    ours = Matern((0.3, 0.7), variance=1.7, smoothness=smoothness).covariance(x, x)
    theirs = 1.7 * sk.Matern([0.3, 0.7], nu=smoothness)(x.numpy())
    np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-6)
    kernel = gpytorch.kernels.MaternKernel(nu=smoothness, ard_num_dims=2).double()
    kernel.lengthscale = torch.tensor([0.3, 0.7])
    torch.testing.assert_close(ours, 1.7 * kernel(x).to_dense().detach(), rtol=0, atol=1e-6)


def test_squared_exponential_and_periodic_are_those_of_another_library() -> None:
    x = torch.rand(30, 1, dtype=torch.float64, generator=generator())
    ours = SquaredExponential(0.3).covariance(x, x).numpy()
    np.testing.assert_allclose(ours, sk.RBF(0.3)(x.numpy()), atol=1e-10)
    ours = Periodic(0.8, period=0.37).covariance(x, x).numpy()
    np.testing.assert_allclose(ours, sk.ExpSineSquared(0.8, 0.37)(x.numpy()), atol=1e-10)


@pytest.mark.parametrize("name", KERNELS)
def test_spectrum_sums_to_the_covariance(name: str) -> None:
    """The sum of all waves is the covariance, at zero and at a distance."""
    kernel = KERNELS[name]
    extent = [high - low for low, high in BOX]
    periods = kernel.periods(extent, 1e-8)
    size = 1024
    wave = torch.fft.fftfreq(size, 1 / size, dtype=torch.float64)
    spectrum = kernel.spectrum([wave[:, None], wave[None, :]], periods)
    covariance = torch.fft.fft2(spectrum).real
    rough = "1/2" in name
    for i, j in ((0, 0), (30, 0), (0, 50), (70, 20)):
        apart = torch.tensor([[i * periods[0] / size, j * periods[1] / size]], dtype=torch.float64)
        if (apart.squeeze() > torch.tensor(extent)).any():
            continue
        truth = kernel.covariance(torch.zeros(1, 2), apart).item()
        assert covariance[i, j].item() == pytest.approx(truth, abs=1e-2 if rough else 1e-4)


def test_ranges_and_choices_are_made_definite() -> None:
    many = OneOf((SquaredExponential(LogUniform(0.1, 1.0)), Matern(0.3)))
    kernels = [many.sampled(generator(seed)) for seed in range(40)]
    scales = [k.length_scale for k in kernels if isinstance(k, SquaredExponential)]
    assert 5 < len(scales) < 35
    assert all(isinstance(s, float) and 0.1 <= s <= 1 for s in scales)
    assert len(set(scales)) == len(scales)
    with pytest.raises(
        ValueError, match=r"is a range; fix it first with kernel.sampled\(generator\)"
    ):
        SquaredExponential(LogUniform(0.1, 1.0)).covariance(torch.zeros(1, 2), torch.zeros(1, 2))


# ---- the sampler -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_samples_have_the_covariance_of_the_kernel(name: str) -> None:
    """Statistical, with a fixed seed: five standard errors for every pair of 12 places."""
    kernel, count = KERNELS[name], 1000
    box = BOX[:1] if "1/2" in name else BOX  # rough in two dimensions takes a large lattice
    low = torch.tensor([b[0] for b in box])
    extent = torch.tensor([b[1] - b[0] for b in box])
    x = low + extent * torch.rand(12, len(box), generator=generator(1))
    x[1] = x[0] + 0.01  # close together, and at opposite corners
    x[2], x[3] = low, low + extent
    sampler, g = lattice(kernel, box), generator(2)
    places = x.expand(50, -1, -1)
    draws = torch.cat([sampler.draw(places, g).double() for _ in range(count // 50)])
    found = draws.mT @ draws / count
    truth = kernel.covariance(x, x)
    variance = truth.diagonal()
    error = ((variance[:, None] * variance[None] + truth.square()) / count).sqrt()
    slack = 2 * sampler.missing + 10 * sampler.error * kernel.total
    assert ((found - truth).abs() <= 5 * error + slack).all()
    assert draws.mean(0).abs().max() < 5 * math.sqrt(kernel.total / count)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_smooth_samples_are_exact_in_any_dimension(axes: int) -> None:
    """A sample is linear in the amplitudes of the waves, so that each wave can be checked alone:
    interpolation must return the wave itself.
    """
    box, kernel = ((0.0, 1.0),) * axes, SquaredExponential(0.5)
    sampler = lattice(kernel, box)
    assert sampler.error < NEGLIGIBLE
    assert sampler.missing < MISSING
    x = torch.rand(1, 7, axes, generator=generator())
    amplitude = sampler.amplitude
    modes = (amplitude > 1e-3 * amplitude.max()).nonzero()
    for mode in modes[torch.randperm(len(modes), generator=generator(1))[:200]]:
        one = torch.zeros(amplitude.shape, dtype=torch.complex64)
        one[tuple(mode)] = amplitude[tuple(mode)]
        function = torch.fft.ifftn(one, norm="forward").real.unsqueeze(0)
        found = sampler._interpolate(function, x)[0]
        sizes = torch.tensor(amplitude.shape)
        wave = torch.where(mode > sizes // 2, mode - sizes, mode) / torch.tensor(sampler.periods)
        numbers = [torch.round(w * p) for w, p in zip(wave, sampler.periods, strict=True)]
        variance = kernel.spectrum([w.double() for w in numbers], sampler.periods).item()
        true = math.sqrt(variance) * torch.cos(2 * math.pi * (x[0] * wave).sum(-1))
        torch.testing.assert_close(found, true, rtol=0, atol=2e-4)


def test_functions_of_a_batch_are_independent_and_at_different_points() -> None:
    draw = exact(context=300, targets=1).draw(generator(), 6)
    x = draw.task.context[SOURCE].x
    assert len({tuple(row[0].tolist()) for row in x}) == 6
    same = torch.zeros(600, 30, 2) + 0.3
    f = lattice(SquaredExponential(0.4), BOX).draw(same, generator())[:, 0]
    assert abs(torch.corrcoef(torch.stack([f[::2], f[1::2]]))[0, 1]) < 5 / math.sqrt(300)


def test_batches_come_from_the_seed_alone() -> None:
    process = exact(kernel=OneOf((SquaredExponential(LogUniform(0.2, 0.6)), Matern(0.4))))
    one = stream(process, seed=5, batch=3)
    several = stream(process, seed=5, batch=3, workers=3, ahead=7)
    later = stream(process, seed=5, batch=3, start=2)
    draws = [next(one) for _ in range(4)]
    for i, (a, b) in enumerate(zip(draws, several, strict=False)):
        torch.testing.assert_close(a.task.target.y, b.task.target.y, rtol=0, atol=0)
        torch.testing.assert_close(a.task.context[SOURCE].x, b.task.context[SOURCE].x)
        assert a.kernels == b.kernels
        if i == 3:
            break
    torch.testing.assert_close(next(later).task.target.y, draws[2].task.target.y, rtol=0, atol=0)
    other = draw_at(process, 6, 0, 3).task.target.y
    assert other is not None
    assert draws[0].task.target.y is not None
    assert not torch.equal(other, draws[0].task.target.y)
    for it in (one, several, later):
        it.close()  # pyright: ignore[reportAttributeAccessIssue]


def test_number_of_context_points_can_vary() -> None:
    process = exact(context=(3, 9))
    sizes = {process.draw(generator(seed), 2).task.context[SOURCE].n for seed in range(60)}
    assert sizes == set(range(3, 10))


# ---- the exact answer --------------------------------------------------------------------------


def test_one_observation_has_a_closed_form() -> None:
    kernel, noise = SquaredExponential(0.5, variance=2.0), 0.3
    x, y, at = torch.zeros(1, 1), torch.tensor([1.5]), torch.tensor([[0.4]])
    k = 2 * math.exp(-0.5 * (0.4 / 0.5) ** 2)
    answer = posterior(kernel, noise, x, y, at)
    assert answer.mean.item() == pytest.approx(k / (2 + 0.09) * 1.5, abs=1e-7)
    assert answer.variance.item() == pytest.approx(2 + 0.09 - k**2 / (2 + 0.09), abs=1e-7)


def test_no_observation_leaves_the_prior() -> None:
    none = torch.zeros(0, 2)
    answer = posterior(SquaredExponential(0.5), 0.1, none, torch.zeros(0), torch.rand(4, 2))
    torch.testing.assert_close(answer.mean, torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(answer.variance, torch.full((4,), 1.01, dtype=torch.float64))


@pytest.mark.parametrize("name", ["se", "matern-1/2", "matern-5/2"])
def test_posterior_is_that_of_two_other_libraries(name: str) -> None:
    kernel, noise = KERNELS[name], 0.2
    x = torch.rand(60, 2, dtype=torch.float64, generator=generator(1))
    at = torch.rand(25, 2, dtype=torch.float64, generator=generator(2))
    y = torch.randn(60, dtype=torch.float64, generator=generator(3))
    ours = posterior(kernel, noise, x, y, at)
    assert isinstance(kernel, SquaredExponential | Matern)
    nu = kernel.smoothness if isinstance(kernel, Matern) else None
    scales = kernel.scales(2)
    theirs = sk.RBF(scales) if nu is None else sk.Matern(scales, nu=nu)
    regressor = GaussianProcessRegressor(theirs, alpha=noise**2, optimizer=None)
    mean, std = regressor.fit(x.numpy(), y.numpy()).predict(at.numpy(), return_std=True)
    np.testing.assert_allclose(ours.mean.numpy(), mean, atol=1e-7)
    np.testing.assert_allclose(ours.stddev.numpy(), np.sqrt(std**2 + noise**2), atol=1e-7)

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, likelihood: gpytorch.likelihoods.GaussianLikelihood) -> None:
            super().__init__(x, y, likelihood)
            base = (
                gpytorch.kernels.RBFKernel(ard_num_dims=2)
                if nu is None
                else gpytorch.kernels.MaternKernel(nu=nu, ard_num_dims=2)
            )
            base.lengthscale = torch.tensor(scales)
            self.kernel = base

        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(
                torch.zeros(len(x), dtype=x.dtype), self.kernel(x)
            )

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = noise**2
    model = Exact(likelihood).double().eval()
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        other = likelihood.eval()(model(at))
    torch.testing.assert_close(ours.mean, other.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.variance, other.variance, rtol=0, atol=1e-6)


def test_looking_only_nearby_is_exact_where_the_kernel_falls_off() -> None:
    process = exact(
        box=((-3.0, 3.0), (-3.0, 3.0)), context=900, targets=50, kernel=SquaredExponential(0.25)
    )
    draw = process.draw(generator(), 1)
    full, near = draw.posterior(), draw.posterior(reach=2.5)
    torch.testing.assert_close(near.mean, full.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(near.stddev, full.stddev, rtol=0, atol=1e-3)
    nearer = draw.posterior(reach=0.2)
    assert (nearer.stddev - full.stddev).max() > 1e-3


def test_the_exact_answer_is_calibrated_and_hard_to_beat() -> None:
    """Its normalised errors are standard normal, and any other mean or spread scores less."""
    draws = [draw_at(exact(), 0, i, 8) for i in range(40)]
    y = torch.cat([d.task.target.y for d in draws if d.task.target.y is not None]).double()
    answers = [d.posterior() for d in draws]
    mean, std = torch.cat([a.mean for a in answers]), torch.cat([a.stddev for a in answers])
    z = ((y - mean) / std).flatten()
    count = 320  # errors of one task depend on each other: count the tasks
    assert abs(z.mean()) < 5 / math.sqrt(count)
    assert abs(z.square().mean() - 1) < 5 * math.sqrt(2 / count)
    best = Normal(mean, std).log_prob(y).mean()
    for worse in (Normal(mean, 1.3 * std), Normal(mean, std / 1.3), Normal(mean + 0.1, std)):
        assert worse.log_prob(y).mean() < best


@given(st.integers(0, 10**6))
@settings(max_examples=examples(10))
def test_a_finite_rank_posterior_is_the_usual_one_of_its_covariance(seed: int) -> None:
    g = generator(seed)
    basis = torch.randn(30, 4, dtype=torch.float64, generator=g)
    y = torch.randn(20, dtype=torch.float64, generator=g)
    answer = finite_rank_posterior(basis[:20], 0.3, y, basis[20:])
    covariance = basis @ basis.mT
    gain = torch.linalg.solve(
        covariance[:20, :20] + 0.09 * torch.eye(20, dtype=torch.float64), covariance[:20, 20:]
    )
    torch.testing.assert_close(answer.mean, gain.mT @ y)
    spread = (covariance[20:, 20:] - gain.mT @ covariance[:20, 20:]).diagonal() + 0.09
    torch.testing.assert_close(answer.variance, spread)


def test_a_full_rank_root_is_the_covariance() -> None:
    process = RankLimitedProcess(
        box=BOX, context=30, targets=10, kernel=Matern(0.5, smoothness=0.5), rank=40
    )
    draw = process.draw(generator(), 1)
    assert draw.basis is not None
    x = torch.cat([draw.task.context[SOURCE].x[0], draw.task.target.x[0]])
    root = draw.basis[0]
    torch.testing.assert_close(root @ root.mT, process.kernel.covariance(x, x), rtol=0, atol=1e-6)
    usual = posterior(
        process.kernel,
        0.1,
        x[:30],
        draw.task.context[SOURCE].y[0, :, 0],
        x[30:],  # pyright: ignore
    )
    torch.testing.assert_close(draw.posterior().mean[0, :, 0], usual.mean, rtol=0, atol=1e-5)


def test_a_rank_beyond_what_the_kernel_has_is_filled_up() -> None:
    """Very smooth functions have fewer directions than points, and not the same number each."""
    process = RankLimitedProcess(
        box=((-0.5, 0.5),) * 2, context=60, targets=40, kernel=SquaredExponential(0.8)
    )
    draw = process.draw(generator(), 4)
    assert draw.basis is not None
    assert draw.basis.shape == (4, 100, 100)
    assert draw.basis.square().sum(-1).sub(1).abs().max() < 1e-6
    assert draw.posterior().mean.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize(("length_scale", "share"), [(0.1, 0.04), (0.5, 0.5)])
def test_rank_limited_samples_lose_as_much_variance_as_the_papers(
    length_scale: float, share: float
) -> None:
    process = RankLimitedProcess(
        box=((-6.0, 6.0),) * 2,
        context=10_000,
        targets=1_000,
        kernel=SquaredExponential(length_scale),
    )
    draw = process.draw(generator(), 1)
    assert draw.basis is not None
    assert draw.basis[0].square().sum(-1).mean().item() == pytest.approx(share, rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(("length_scale", "score"), [(0.5, 0.836), (0.1, -0.191)])
def test_the_score_of_the_exact_answer_at_the_papers_size(
    length_scale: float, score: float
) -> None:
    process = GaussianProcess(
        box=((-6.0, 6.0),) * 2,
        context=10_000,
        targets=1_000,
        kernel=SquaredExponential(length_scale),
    )
    draw = process.draw(generator(), 1)
    y = draw.task.target.y
    assert y is not None
    found = draw.posterior().log_prob(y.double()).flatten()
    error = found.std().item() / math.sqrt(len(found))
    assert found.mean().item() == pytest.approx(score, abs=4 * error)


# ---- other families ----------------------------------------------------------------------------


def test_sawtooth_is_straight_but_for_its_jumps() -> None:
    process = Sawtooth(box=((-2.0, 2.0),), context=2000, targets=1, noise=1e-6)
    points = process.draw(generator(3), 1).task.context[SOURCE]
    assert points.y is not None
    order = points.x[0, :, 0].argsort()
    x, y = points.x[0, order, 0], points.y[0, order, 0]
    slopes = (y.diff() / x.diff())[x.diff() > 1e-4]
    assert (slopes - slopes.median()).abs().lt(0.05 * slopes.median().abs()).float().mean() > 0.97
    assert y.abs().max() <= 1.001


def test_heavy_noise_has_its_distribution_and_no_exact_answer() -> None:
    noise = StudentNoise(0.1, freedom=3.0)
    values = noise.draw(torch.Size((100_000,)), generator()).sort().values
    for p in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert values[int(p * 100_000)].item() == pytest.approx(0.1 * t.ppf(p, 3.0), abs=0.004)
    draw = exact(noise=noise).draw(generator(), 2)
    with pytest.raises(ValueError, match=r"no exact posterior; only .* with Gaussian noise"):
        draw.posterior()


def test_space_and_time() -> None:
    process = exact(
        box=((0.0, 24.0), (-1.0, 1.0), (-1.0, 1.0)),
        kernel=SquaredExponential((6.0, 0.5, 0.5)),
        context=200,
        targets=30,
    )
    draw = process.draw(generator(), 2)
    assert draw.task.target.x.shape == (2, 30, 3)
    y = draw.task.target.y
    assert y is not None
    prior = Normal(0.0, math.sqrt(1.01)).log_prob(y).mean()
    assert draw.posterior().log_prob(y.double()).mean() > prior


# ---- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SquaredExponential(0.0), "length_scale=0.0: must be positive"),
        (lambda: SquaredExponential((0.1, -1.0)), "length_scale=-1.0: must be positive"),
        (lambda: Matern(0.1, smoothness=2.0), "smoothness=2.0: must be 0.5, 1.5 or 2.5"),
        (lambda: SquaredExponential(0.1, variance=-1.0), "variance=-1.0: must be positive"),
        (lambda: LogUniform(0.5, 0.1), r"LogUniform\(0.5, 0.1\) is not a range of positive"),
        (lambda: Periodic(0.5, period=0.0), "period=0.0: must be positive"),
        (lambda: OneOf(()), "OneOf has no kernels; give at least one"),
        (lambda: Sum(()), "Sum has no kernels; give at least one"),
        (lambda: Sum((Periodic(1.0),)), "Sum cannot hold a periodic kernel"),
        (lambda: StudentNoise(0.0), r"StudentNoise\(0.0, 3.0\): .* must be positive"),
        (lambda: exact(noise=0.0), "noise=0.0: the standard deviation must be positive"),
        (lambda: exact(noise=math.nan), "noise=nan: the standard deviation must be positive"),
        (lambda: exact(box=()), "box has 0 axes: must have one to three"),
        (lambda: exact(box=((1.0, -1.0),)), "from 1.0 to -1.0; .* the lower one first"),
        (lambda: exact(targets=0), "targets=0: must be at least 1"),
        (lambda: exact(context=(5, 3)), r"context=\(5, 3\): .* a range, lower end first"),
        (lambda: exact(context=-1), "context=-1: must be a number from 0"),
        (
            lambda: posterior(SquaredExponential(1.0), 0.0, *[torch.zeros(1, 1)] * 3),
            "noise=0.0: the standard deviation must be positive",
        ),
        (lambda: next(stream(exact(), seed=0, batch=1, workers=0)), "workers=0: at least one"),
        (
            lambda: exact(kernel=SquaredExponential((1.0, 1.0, 1.0))).draw(generator(), 1),
            "3 length-scales for 2 axes; give one for all axes or one for each",
        ),
    ],
)
def test_bad_input(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_points_too_close_for_their_noise() -> None:
    x = torch.rand(200, 1, generator=generator())
    with pytest.raises(ValueError, match=r"200 points is not positive definite .* use at least"):
        posterior(SquaredExponential(5.0), 1e-12, x, torch.zeros(200), x)


def test_more_points_than_memory_says_what_fits() -> None:
    x = torch.zeros(1, 2).expand(3_000_000, 2)
    with pytest.raises(ValueError, match=r"use at most [\d,]+ points, or pass reach="):
        posterior(SquaredExponential(0.5), 0.1, x, torch.zeros(1).expand(len(x)), x[:10])


def test_process_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Process(BOX, 1, 1)  # pyright: ignore[reportAbstractUsage]
