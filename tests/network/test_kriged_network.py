"""Kriging inside a network: exact where it should be, and corrected by a network that learns."""

import math
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import small
import torch
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern
from torch import Tensor
from torch.distributions import Distribution

from gridtnp import Axis, Grid, GriddedTNP, ModelConfig, PointSet, Task, build_model, testing
from gridtnp.config import (
    Cell,
    Embedded,
    GriddedConfig,
    GriddedField,
    Kriging,
    Neighbour,
    PseudoToken,
    Raw,
    Swin,
    Values,
)
from gridtnp.evaluation import scores
from gridtnp.kriging import fitting
from gridtnp.kriging.fitting import PSEUDO_COUNTS, TOLERATED, fit
from gridtnp.kriging.gaussian_process import (
    JITTER,
    LENIENT,
    MEAN_SURPRISE,
    NEIGHBOUR,
    WIDTH,
    Inputs,
    KrigingProcess,
    crps,
)
from gridtnp.network import kriging
from gridtnp.network.kriging import KrigedNetwork
from gridtnp.recipes import Recipe
from gridtnp.training import calibration, prior_fitting
from gridtnp.training.calibration import (
    SPREADS,
    calibrate_network,
    calibrated_spread,
    calibration_gain,
)
from gridtnp.training.prior_fitting import fit_prior

GRID = Grid((Axis.cells("lat", 40.0, 48.0, 8), Axis.cells("lon", 0.0, 8.0, 8)), "sphere")


def config(**changes: object) -> ModelConfig:
    values: dict[str, object] = {
        "coordinates": ("lat", "lon"),
        "sources": {"stations": 2, "ships": 1},
        "features": ("elevation",),
        "tokens": Embedded(embedding=(Cell(of=("lat", "lon")), Raw(of=("elevation",)))),
        "architecture": GriddedConfig(
            grid=GRID,
            grid_encoder=PseudoToken(),
            processor=Swin(layers=1, window=(4, 4)),
            decoder=Neighbour(neighbours=9),
            positions="relative",
        ),
        "dim": 16,
        "heads": 2,
        "min_noise": 0.01,
        "prior": Kriging(of=(("stations", 1),), drift=("elevation",), length_scale=2.0),
    }
    return ModelConfig.model_validate(values | changes)


def points(n: int, dim_y: int, seed: int, batch: int = 2) -> PointSet:
    g = torch.Generator().manual_seed(seed)
    place = torch.tensor([40.5, 0.5]) + 7 * torch.rand(batch, n, 2, generator=g)
    y = torch.randn(batch, n, dim_y, generator=g)
    return PointSet(place, y, None, torch.randn(batch, n, 1, generator=g))


def task(n: int = 30, m: int = 12) -> Task:
    return Task({"stations": points(n, 2, 0), "ships": points(9, 1, 1)}, points(m, 1, 2))


def inputs(n: int, seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    return Inputs(
        torch.randn(1, n, 3, generator=g).double(), None, torch.randn(1, n, 3, generator=g).double()
    )


def fresh(length: float) -> KrigingProcess:
    return KrigingProcess(
        3, dimensions=3, drifts=2, distances=2, timed=False, length=length, hours=6.0
    )


def flat_process() -> KrigingProcess:
    """In the plane, without regressors."""
    options = {"dimensions": 2, "drifts": 0, "distances": 0, "timed": False}
    return KrigingProcess(0, **options, length=1.0, hours=6.0)


def process() -> KrigingProcess:
    made = fresh(1.3)
    for p in made.buffers(recurse=False):
        p += 0.2 * torch.randn_like(p)
    return made


def test_the_posterior_is_that_of_a_gaussian_process() -> None:
    made, seen, asked = process(), inputs(25, 0), inputs(7, 1)
    y = torch.randn(1, 25).double()
    mean, std = made.predict(made.condition(seen, y, torch.ones(1, 25) > 0), asked)

    def table(x: Inputs) -> np.ndarray:
        features = x.regressors[..., :2]
        parts = [x.place / made.length.exp(), features / made.feature_length.exp()]
        return torch.cat([*parts, features * made.drift.exp()], -1)[0].double().numpy()

    def trend(x: Inputs) -> np.ndarray:
        return (x.regressors[0] @ made.coefficients.double() + made.constant).numpy()

    class Part:
        """A kernel of some columns."""

        def __init__(self, kernel: object, columns: slice) -> None:
            self.kernel, self.columns = kernel, columns

        def __call__(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return self.kernel(a[:, self.columns], b[:, self.columns])  # type: ignore[operator]

    amplitude, level = (float(p.exp()) for p in (made.amplitude, made.level))
    parts = [
        ConstantKernel(amplitude**2 * w) * Matern(1.0, nu=nu)
        for w, nu in zip(made.smoothness.double().softmax(0).tolist(), (0.5, 1.5, 2.5), strict=True)
    ]
    local = Part(parts[0] + parts[1] + parts[2], slice(0, 5))
    drift = Part(DotProduct(0.0), slice(5, 7))

    def covariance(a: Inputs, b: Inputs) -> np.ndarray:
        x, z = table(a), table(b)
        return local(x, z) + drift(x, z) + level**2

    noise = float(made.noise.exp()) ** 2
    jitter = JITTER * max(1.0, made.variance(made.points(seen)).max().item())
    k = covariance(seen, seen) + (noise + jitter) * np.eye(25)
    cross = covariance(asked, seen)
    expected = trend(asked) + cross @ np.linalg.solve(k, y[0].numpy() - trend(seen))
    spread = covariance(asked, asked) - cross @ np.linalg.solve(k, cross.T)
    np.testing.assert_allclose(mean[0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(std[0] ** 2, np.diag(spread) + noise, rtol=1e-5)


def test_leave_one_out_leaves_one_out() -> None:
    made, seen = process(), inputs(12, 0)
    y, everyone = torch.randn(1, 12).double(), torch.ones(1, 12) > 0
    error, std = made.leave_one_out(made.condition(seen, y, everyone))
    for i in range(12):
        others = everyone.clone()
        others[0, i] = False
        given = made.condition(seen, y, others)
        alone = made.predict(given, seen[:, i : i + 1])
        torch.testing.assert_close((y - error)[0, i], alone[0][0, 0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(std[0, i], alone[1][0, 0], rtol=1e-4, atol=1e-5)


def test_fitting_raises_the_likelihood_and_finds_the_noise() -> None:
    torch.manual_seed(0)
    made, seen, truth = fresh(5.0), inputs(150, 0), fresh(0.7)
    truth.noise.fill_(np.log(0.05))
    k = truth.covariance(truth.points(seen), truth.points(seen)) + 1e-8 * torch.eye(150).double()
    y = (torch.linalg.cholesky(k) @ torch.randn(150, 1).double())[..., 0]
    y, everyone = y + 0.05 * torch.randn(1, 150).double(), torch.ones(1, 150) > 0
    y = y + 2 * seen.regressors[..., 2] + 1  # which regression explains

    def score() -> float:
        return made.log_likelihood(made.condition(seen, y, everyone)).item()

    before = score()
    truth.coefficients[2], truth.constant = 2, torch.ones(())
    fit(made, seen, y, everyone)
    assert score() > before + 10
    assert score() > truth.log_likelihood(truth.condition(seen, y, everyone)).item()
    assert made.noise.exp().item() < 0.15
    assert made.coefficients[2].item() == pytest.approx(2, abs=0.1)
    assert not any(p.requires_grad for p in made.buffers())
    jitter = JITTER * made.variance(made.points(seen)).max().clamp_min(1)
    exact = torch.distributions.MultivariateNormal(
        made.mean(seen)[0],
        made.covariance(made.points(seen), made.points(seen))[0]
        + torch.eye(150).double() * (made.noise.double().exp() ** 2 + jitter),
    )
    assert score() == pytest.approx(exact.log_prob(y[0]).item(), rel=1e-6)


def test_fresh_weights_predict_what_kriging_predicts() -> None:
    network, one = build_model(config()), task()
    assert isinstance(network, KrigedNetwork)
    made = network(one)
    seen = one.context["stations"]
    assert seen.y is not None
    gp = network.process(0)
    none = seen.x[..., :0]
    given = gp.condition_robustly(
        network._inputs(seen, none), seen.y[..., 1].double(), torch.ones(seen.x.shape[:2]) > 0
    )
    mean, std = gp.predict(given, network._inputs(one.target, one.target.x[..., :0]))
    torch.testing.assert_close(made.mean[..., 0].double(), mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(made.stddev[..., 0].double(), std, rtol=1e-4, atol=1e-5)


def test_all_neighbours_are_as_good_as_the_whole_context(monkeypatch: pytest.MonkeyPatch) -> None:
    network, one = build_model(config()), task()
    before = network(one)
    monkeypatch.setattr(kriging, "EXACT", 5)
    monkeypatch.setattr(kriging, "NEAREST", 30)
    after = network(one)
    _close(before.mean, after.mean, 1e-4)
    _close(before.stddev, after.stddev, 1e-4)
    with torch.no_grad():
        monkeypatch.setattr(kriging, "ENTRIES", 64)  # and in pieces
        _close(before.mean, network(one).mean, 1e-4)


def test_of_two_readings_at_a_place_each_is_left_out_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, one = build_model(config()), points(20, 2, 0)
    assert isinstance(network, KrigedNetwork)
    twice = {k: torch.cat([v, v], 1) for k, v in vars(one).items() if v is not None}
    twice["y"] = torch.randn(2, 40, 2, generator=torch.Generator().manual_seed(4))
    seen = network.observed(0, PointSet(**twice), 1, twice["x"][..., :0])
    monkeypatch.setattr(KrigingProcess, "condition_robustly", KrigingProcess.condition)
    gp = network.process(0)
    exact, _ = gp.leave_one_out(gp.condition(seen.inputs, seen.y, seen.mask))
    monkeypatch.setattr(kriging, "EXACT", 5)
    monkeypatch.setattr(kriging, "NEAREST", 39)
    found, _ = network._leave_one_out(0, *network.posterior(0, seen))
    _close(found, exact, 1e-3)


def test_many_observations_and_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kriging, "EXACT", 5)
    assert build_model(config())(task(m=0)).mean.shape == (2, 0, 1)


def _close(a: Tensor, b: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_the_prediction_is_continuous_in_the_place_of_a_target_with_fresh_weights() -> None:
    network, one = build_model(config()), task()
    border = torch.tensor([[[44.0, 3.3], [44.0 - 1e-4, 3.3], [44.0 + 1e-4, 3.3]]]).expand(2, -1, -1)
    made = network(one.at(PointSet(border, None, None, torch.zeros(2, 3, 1))))
    assert (made.mean[:, 1:] - made.mean[:, :1]).abs().max().item() < 1e-3


def test_empty_and_masked_contexts_give_the_prior() -> None:
    network, one = build_model(config()), task()
    nothing = network(Task({}, one.target))
    seen = one.context["stations"]
    masked = replace(seen, mask=torch.zeros(seen.x.shape[:2]) > 0)
    torch.testing.assert_close(
        network(Task({"stations": masked}, one.target)).stddev, nothing.stddev
    )
    assert nothing.mean.abs().max().item() < 1e-6


@pytest.mark.parametrize("kind", ["kriged"])
def test_contract(kind: str) -> None:  # noqa: ARG001
    testing.check_neural_process(partial(build_model, config()), GRID)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim_y": 2}, "prior observes 1 outputs, but the model has 2"),
        ({"prior": Kriging(of=(("ship", 0),))}, "Unknown source 'ship' in the prior; did you mean"),
        ({"prior": Kriging(of=(("ships", 1),))}, "Column 1 of source 'ships' in the prior"),
        (
            {"prior": Kriging(of=(("ships", 0),), drift=("height",))},
            "Unknown feature 'height' in the prior",
        ),
        (
            {
                "prior": Kriging(
                    of=(None,), fields=(GriddedField(source="ship", columns=(0,), grid=GRID),)
                )
            },
            "Unknown source 'ship' in the prior",
        ),
        (
            {
                "prior": Kriging(
                    of=(None,),
                    fields=(GriddedField(source="ships", columns=(0,), grid=Grid(GRID.axes[:1])),),
                )
            },
            r"grid of field 'ships' in the prior has axes \('lat',\)",
        ),
        ({"tokens": Values()}, "Value tokens"),
        ({"min_noise": 1.0}, "min_noise=1: must be below 1"),
    ],
)
def test_priors_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_a_model_with_a_prior_is_fitted_saved_and_loaded(tmp_path: object) -> None:
    data = small.dataset()
    model = GriddedTNP.for_data(data, dim=16, heads=2, layers=1, quiet=True)
    assert isinstance(model.network, KrigedNetwork)
    model.fit(data, recipe=Recipe(3, 2, 1e-3), quiet=True)
    once = data.at(small.TIMES[2])
    places = small.table()[["station", "lat", "lon", "elevation"]].drop_duplicates("station")
    before = model.predict(once, at=places, progress=False)
    again = GriddedTNP.load(model.save(f"{tmp_path}/model"))
    after = again.predict(once, at=places, progress=False)
    np.testing.assert_array_equal(before["t2m_mean"], after["t2m_mean"])
    assert np.isfinite(
        model.sample(2, once, at=places, subset=4, progress=False)["t2m_sample0"]
    ).all()


def test_kriging_takes_less_than_half_of_a_short_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What validation tasks decide on is left out when its time is over."""

    def too_late(*_: Any) -> float:
        raise AssertionError("there is no time for this")

    data, limits = small.dataset(), []
    monkeypatch.setattr(prior_fitting, "remember", too_late)
    monkeypatch.setattr(prior_fitting, "deform", too_late)

    def over(*given: Any) -> Any:
        limits.append(given[3] - time.perf_counter())
        return fit_prior(*given[:3], until=0.0)

    monkeypatch.setattr(prior_fitting, "fit_prior", over)
    model = GriddedTNP.for_data(data, dim=16, heads=2, layers=1, quiet=True)
    model.fit(data, data, recipe=Recipe(1, 2, 1e-3), minutes=0.001)
    assert limits[0] < 0.0004 * 60  # seconds
    assert "no time for all that could be fitted; more minutes" in capsys.readouterr().out
    model.fit(data, recipe=Recipe(1, 2, 1e-3), quiet=True)
    assert limits[1] == math.inf


def test_without_observations_of_the_target_it_is_regression() -> None:
    """On a gridded source, whose values are interpolated to the targets."""
    field = GriddedField(source="ships", columns=(0,), grid=GRID)
    network = build_model(config(prior=Kriging(of=(None,), drift=("elevation",), fields=(field,))))
    assert isinstance(network, KrigedNetwork)
    at = GRID.points().flatten(0, 1)[None].repeat(4, 1, 1)

    def one(seed: int) -> Task:
        g = torch.Generator().manual_seed(seed)
        target = points(40, 1, seed, batch=4)
        slope = torch.randn(4, 2, generator=g)
        plane = (at * slope[:, None]).sum(-1, keepdim=True)
        ships = PointSet(at, plane / 40, None, torch.zeros(4, 64, 1))
        y = 3 * (target.x * slope[:, None]).sum(-1, keepdim=True) / 40 + 0.5
        return Task({"ships": ships}, replace(target, y=y))

    fit_prior(network, [one(seed) for seed in range(4)])
    made, wanted = network(one(9)), one(9).target.y
    assert wanted is not None
    x = one(9).target.x - torch.tensor([44.0, 4.0])
    inner = (x.abs() < 3).all(-1)  # not beyond the last grid points
    assert (made.mean - wanted)[inner].abs().max().item() < 0.1 * wanted.std().item()


def test_the_design_regresses_on_gridded_sources_and_can_be_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = small.dataset()
    model = GriddedTNP.for_data(data, dim=16, heads=2, layers=1)
    assert "kriging: the network corrects regression on" in " ".join(
        capsys.readouterr().out.split()
    )
    assert model.config.prior is not None
    assert GriddedTNP.for_data(data, prior="none", quiet=True).config.prior is None


def test_calibrated_intervals_hold_what_they_say() -> None:
    network, one = build_model(config()), task(m=2000)
    assert isinstance(network, KrigedNetwork)
    made, g = network(one), torch.Generator().manual_seed(0)
    noise = 1.3 * made.stddev * torch.randn(made.mean.shape, generator=g)
    wide = replace(one.target, y=made.mean + noise)
    calibrate_network(network, [Task(one.context, wide)])
    assert network.log_spread.exp().item() == pytest.approx(1.3, rel=0.1)
    torch.testing.assert_close(network(one).mean, made.mean)
    calibrate_network(network, [task(m=3)])  # too few
    assert network.log_spread.item() == 0
    assert network.trust.item() == 1


@pytest.mark.parametrize(
    ("places", "times", "near"), [(400, 400, 1.25), (3, 400, 1.05), (400, 2, 1.05), (400, 1, 1.0)]
)
def test_few_places_or_times_calibrate_little(places: int, times: int, near: float) -> None:
    """Errors differ by 60 % from place to place and from time to time."""
    g = torch.Generator().manual_seed(3)
    size = [torch.exp(0.6 * torch.randn(n, generator=g)) for n in (places, times)]
    size = [each / each.mean() for each in size]
    z = size[0][:, None] * size[1] * torch.randn(places, times, generator=g)
    z = z / z.abs().quantile(0.9) * 1.3 * 1.6448536
    place, time = torch.meshgrid(torch.arange(places), torch.arange(times), indexing="ij")
    found = math.exp(calibrated_spread(z.flatten(), place.flatten(), time.flatten()))
    assert 1 <= found <= 1.3
    assert found == pytest.approx(near, abs=0.06)
    assert (found == 1) == (times == 1)


def corrected(m: int) -> tuple[KrigedNetwork, Task, Distribution, Distribution]:
    """A network with random weights, a task, and its forecast without and with correction."""
    torch.manual_seed(0)
    network, one = build_model(config()), task(m=m)
    assert isinstance(network, KrigedNetwork)
    prior = network(one)
    for p in network.parameters():
        p.data += 0.6 * torch.randn_like(p)
    return network, one, prior, network(one)


@pytest.mark.parametrize("places", [pytest.param(5, marks=pytest.mark.slow), 200])
def test_a_correction_that_chance_explains_is_not_trusted(
    places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is right at slightly more than half of the places, and wrong at the others."""
    network, one, prior, full = corrected(places)
    sign = torch.where(torch.arange(places) % 5 < 3, 1.0, -1.0)[:, None]
    y = prior.mean + 0.25 * sign * (full.mean - prior.mean)
    given = [Task(one.context, replace(one.target, y=y))] * (200 // places)
    calibrate_network(network, given)
    assert (network.trust.item() > 0) == (places == 200)
    monkeypatch.setattr(calibration, "_is_certain", lambda _: True)
    calibrate_network(network, given)
    assert network.trust.item() > 0


@pytest.mark.parametrize("scale", [0.5, 0.9, 1.2, 3.0])
def test_the_gain_of_calibration_is_that_of_a_scaled_spread(scale: float) -> None:
    y = scale * torch.randn(500, 2, generator=torch.Generator().manual_seed(0)).double()
    squares = y.square().mean(0)
    best = squares.sqrt().clamp(*SPREADS)
    plain, scaled = (torch.distributions.Normal(0.0, s).log_prob(y) for s in (1.0, best))
    gain = calibration_gain(squares.tolist())
    assert gain == pytest.approx((scaled - plain).sum(-1).mean().item())
    assert gain > 0


def test_a_correction_is_trusted_as_far_as_validation_supports_it() -> None:
    network, one, prior, full = corrected(200)
    assert (full.mean - prior.mean).abs().mean() > prior.stddev.mean()
    for trust in (0.0, 0.5, 1.0):
        y = prior.mean.lerp(full.mean, trust)
        y = y + 1e-3 * torch.randn(y.shape)
        calibrate_network(network, [Task(one.context, replace(one.target, y=y))])
        assert network.trust.item() == trust
    network.trust.fill_(0.0)
    torch.testing.assert_close(network(one).mean, prior.mean)
    torch.testing.assert_close(network(one).stddev, prior.stddev * network.log_spread.exp())


def test_an_outlier_does_not_move_the_prediction() -> None:
    torch.manual_seed(1)
    made, seen, asked = fresh(2.0), inputs(60, 0), inputs(20, 1)
    made.tolerance.fill_(TOLERATED)
    k = made.covariance(made.points(seen), made.points(seen)) + 0.01 * torch.eye(60).double()
    y = (torch.linalg.cholesky(k) @ torch.randn(60, 1).double())[..., 0] + made.mean(seen)
    everyone = torch.ones(1, 60) > 0
    clean = made.predict(made.condition(seen, y, everyone), asked)[0]
    wrong = y.clone()
    wrong[0, 7] += 50
    others = everyone.clone()
    others[0, 7] = False
    exact = made.predict(made.condition(seen, wrong, everyone), asked)[0]
    robust = made.predict(made.condition_robustly(seen, wrong, everyone), asked)[0]
    without = made.predict(made.condition(seen, y, others), asked)[0]
    assert (exact - clean).abs().max() > 1  # as in ordinary kriging
    assert (robust - without).abs().max() < 0.05 * (exact - without).abs().max()
    plausible = made.condition_robustly(seen, y, everyone)
    error, std = made.leave_one_out(made.condition(seen, y, everyone))
    assert (error / std).abs().max() < TOLERATED
    torch.testing.assert_close(plausible.weights, made.condition(seen, y, everyone).weights)


def test_outliers_are_kept_if_leaving_them_out_gains_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    seen, everyone = inputs(100, 0), torch.ones(1, 100) > 0
    y = torch.randn(1, 100).double()
    y[0, ::20] *= 20
    made, plain = fresh(5.0), fresh(5.0)
    monkeypatch.setattr(fitting, "GAIN", 0.9)
    fit(made, seen, y, everyone)
    fitting._maximise(plain, seen, y, everyone)
    assert made.tolerance == LENIENT
    for name, value in plain.named_buffers():
        if name != "pseudo_count":
            torch.testing.assert_close(made.get_buffer(name), value)


def test_the_crps_is_that_of_the_scores() -> None:
    error, std = torch.randn(50).double(), torch.rand(50).double() + 0.1
    expected = scores.crps(error.numpy(), np.zeros(50), std.numpy())
    np.testing.assert_allclose(crps(error, std), expected)


def test_hyper_parameters_are_fitted_without_outliers() -> None:
    torch.manual_seed(0)
    truth, seen = fresh(0.7), inputs(150, 0)
    truth.noise.fill_(np.log(0.05))
    k = truth.covariance(truth.points(seen), truth.points(seen)) + 0.05**2 * torch.eye(150).double()
    y = (torch.linalg.cholesky(k) @ torch.randn(150, 1).double())[..., 0]
    wrong, everyone = y.clone(), torch.ones(1, 150) > 0
    wrong[0, ::30] += 40 * torch.randn(5).double()
    clean, robust, misled = fresh(5.0), fresh(5.0), fresh(5.0)
    fit(clean, seen, y, everyone)
    fit(robust, seen, wrong, everyone)
    fitting._maximise(misled, seen, wrong, everyone)
    assert clean.tolerance == LENIENT
    assert robust.tolerance == TOLERATED
    for made in (clean, robust):
        assert made.noise.exp().item() < 0.15
        assert made.amplitude.exp().item() == pytest.approx(0.3, rel=0.3)
    assert max(misled.noise.exp().item(), misled.amplitude.exp().item()) > 1


@pytest.mark.parametrize(("n", "masked"), [(25, 0), (25, 4), (5, 0), (1, 0), (3, 3)])
def test_the_local_spread_is_a_weighted_mean_of_the_errors_around(n: int, masked: int) -> None:
    made, seen, asked = process(), inputs(n, 0), inputs(7, 1)
    made.pseudo_count.fill_(1.5)
    y, mask = torch.randn(1, n).double(), torch.arange(n)[None] >= masked
    given = made.condition_robustly(seen, y, mask)
    assert given.surprise is not None
    scaled = [
        torch.cat(
            [x.place / made.length.exp(), x.regressors[..., :2] / made.feature_length.exp()], -1
        )
        for x in (seen, asked)
    ]
    observed, targets = (x[0, : len(x[0])].numpy() for x in scaled)
    observed, z = observed[masked:], given.surprise[0, masked:].numpy()
    apart = np.linalg.norm(observed[:, None] - observed, axis=-1)
    numbered = np.sort(np.where(apart > 0, apart, np.inf), 1)[:, :NEIGHBOUR]
    spacing = np.sort(numbered[:, -1])[(len(z) - 1) // 2] if len(z) > NEIGHBOUR else np.inf

    def expected(at: np.ndarray, skip: int | None) -> float:
        weight = np.exp(-0.5 * (np.linalg.norm(observed - at, axis=-1) / WIDTH / spacing) ** 2)
        weight = np.delete(weight, [] if skip is None else [skip])
        errors = np.delete(z, [] if skip is None else [skip]) / MEAN_SURPRISE
        return (1.5 + weight @ errors) / (1.5 + weight.sum())

    found = made.local_spread(given, made.points(asked))
    np.testing.assert_allclose(found[0], [expected(at, None) for at in targets], rtol=1e-5)
    plain = made.predict(replace(given, surprise=None), asked)[1]
    torch.testing.assert_close(made.predict(given, asked)[1], plain * found)
    own = made.local_spread(given)[0, masked:]
    np.testing.assert_allclose(own, [expected(x, i) for i, x in enumerate(observed)], rtol=1e-5)


def test_replicates_have_a_finite_local_spread() -> None:
    made, one = fresh(2.0), inputs(1, 0)
    made.pseudo_count.fill_(1.0)
    seen = one[:, torch.zeros(20, dtype=torch.long)]
    given = made.condition_robustly(seen, torch.randn(1, 20).double(), torch.ones(1, 20) > 0)
    mean, std = made.predict(given, inputs(5, 1))
    assert torch.isfinite(mean).all()
    assert torch.isfinite(std).all()


def test_where_observations_disagree_the_spread_is_larger() -> None:
    """Rough in the west, smooth in the east: both halves are calibrated."""
    torch.manual_seed(0)
    flat = Inputs(4 * torch.rand(1, 600, 2).double() - 2, None, torch.zeros(1, 600, 0).double())
    truth = flat_process()
    k = truth.covariance(truth.points(flat), truth.points(flat)) + 1e-8 * torch.eye(600).double()
    y = (torch.linalg.cholesky(k) @ torch.randn(600, 1).double())[..., 0]
    west = flat.place[0, :, 0] < 0
    y = y + torch.where(west, 0.3, 0.03) * torch.randn(1, 600).double()
    seen, asked = flat[:, :300], flat[:, 300:]
    made = flat_process()
    fit(made, seen, y[:, :300], torch.ones(1, 300) > 0)
    assert made.pseudo_count < PSEUDO_COUNTS[-1]
    given = made.condition_robustly(seen, y[:, :300], torch.ones(1, 300) > 0)
    mean, std = made.predict(given, asked)
    constant = made.predict(replace(given, surprise=None), asked)[1]
    error, here = y[0, 300:] - mean[0], west[300:]
    assert std[0, here].mean() > 2 * std[0, ~here].mean()
    for half in (here, ~here):
        assert 0.65 < (error[half] / std[0, half]).square().mean().sqrt() < 1.35
    assert (error[~here] / constant[0, ~here]).square().mean().sqrt() < 0.6
    assert crps(error, std[0]).mean() < 0.97 * crps(error, constant[0]).mean()


def test_what_was_chosen_for_other_data_is_forgotten() -> None:
    """A network that was not trusted could not learn from them."""
    network = build_model(config())
    assert isinstance(network, KrigedNetwork)
    gp = network.process(0)
    network.trust.fill_(0.0)
    network.log_spread.fill_(0.3)
    gp.tolerance.fill_(TOLERATED)
    for weights in gp.deformation.weights():
        weights.normal_(generator=torch.Generator().manual_seed(0))
    fit_prior(network, [task()])
    assert network.log_spread.item() == 0
    assert gp.tolerance.item() == LENIENT
    assert not any(weights.any() for weights in gp.deformation.weights())
    network.loss(task()).backward()
    assert any(p.grad is not None and bool(p.grad.any()) for p in network.parameters())
