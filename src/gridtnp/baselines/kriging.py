"""Kriging: the exact posterior of a Gaussian process, time by time.

The covariance is a Matérn-3/2 function of distance, plus a random level per time, plus noise. If
observations have several times, it also decays with the time between them. Kriging with external
drift adds a linear trend in the static features (elevation), which then count as distances too; it
is the baseline to beat in mountains. Parameters maximise the marginal likelihood of training times.
With very many observations, each target is predicted from the nearest ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.spatial import KDTree
from torch import Tensor

from gridtnp.baselines.interpolation import KM_PER_HOUR, Baseline, Forecast, Points, RawTask

TIMES, POINTS = 16, 200
"""Training times to fit the parameters to, and most observations of each."""
MAX_OBSERVATIONS = 1500
"""Most observations of a time for the exact posterior; if there are more, the nearest are used."""
NEIGHBOURS = 64
"""Observations that a target is predicted from if there are too many of them."""
CHUNK = 512
"""Targets predicted at once from their nearest observations."""
JITTER = 1e-6
"""Added to the diagonal of a covariance, so that stations may share a location."""


@dataclass(frozen=True, eq=False)
class KrigingParameters:
    """The Gaussian process of one variable.

    `mean` and `std` are of the variable, `centre` and `scale` of the static features. `log_values`
    are the logarithms of the covariance's parameters, in the order of `names`.
    """

    mean: float
    std: float
    centre: Float[np.ndarray, " df"]
    scale: Float[np.ndarray, " df"]
    log_values: Float[Tensor, " k"]
    timed: bool

    @property
    def names(self) -> list[str]:
        features = range(len(self.centre))
        own = [f"{what}_{k}" for k in features for what in ("drift", "length")]
        return ["amplitude", "length", "noise", "level", *["hours"][: int(self.timed)], *own]

    def __getitem__(self, name: str) -> float:
        """A parameter: in kilometres, hours, or standard deviations of the variable or feature."""
        return float(self.log_values[self.names.index(name)].exp())


class Kriging(Baseline):
    """One Gaussian process per variable, conditioned on the observations."""

    def __init__(
        self,
        processes: Sequence[KrigingParameters],
        *,
        drift: bool,
        max_observations: int = MAX_OBSERVATIONS,
    ) -> None:
        self.processes, self.drift = tuple(processes), drift
        self.max_observations = max_observations
        self._reduced = 0

    @classmethod
    def fit(cls, raw_tasks: Iterable[RawTask], names: Sequence[str], *, drift: bool) -> Kriging:
        """Fit the parameters to the observations and targets of training tasks."""
        rng = np.random.default_rng(0)
        found: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = [[] for _ in names]
        for raw_task in raw_tasks:
            both = (raw_task.observed, raw_task.targets)
            x = np.concatenate([_inputs(p, raw_task.time, drift) for p in both])
            values, extra = _all_values(raw_task)
            for v, data in enumerate(found):
                some = _subset(x, np.flatnonzero(np.isfinite(values[:, v])), rng)
                if len(some) > 1 and len(data) < TIMES:
                    data.append((x[some], values[some, v], extra[some, v]))
        fitted = [_fit(name, data) for name, data in zip(names, found, strict=True)]
        return cls(fitted, drift=drift)

    @property
    def of_readings(self) -> bool:
        return False  # it knows the errors of its observations

    def notes(self) -> tuple[str, ...]:
        if not self._reduced:
            return ()
        times, most = f"{self._reduced} time{'s' * (self._reduced > 1)}", self.max_observations
        return (
            f"kriging: {times} had more than {most:,} observations; each target is predicted from "
            f"its {NEIGHBOURS} nearest",
        )

    def inputs(self, raw_task: RawTask, points: Points) -> Float[np.ndarray, "n d"]:
        """Where points of a task are, for a process."""
        return _inputs(points, raw_task.time, self.drift)

    def predict(self, raw_task: RawTask) -> Forecast:
        mean, std = (np.full(raw_task.truth.shape, np.nan) for _ in range(2))
        x = self.inputs(raw_task, raw_task.observed)
        at = self.inputs(raw_task, raw_task.targets)
        usable = np.isfinite(at).all(1)
        reduced = False
        for v, process in enumerate(self.processes):
            known = np.isfinite(raw_task.values[:, v])
            given = process, x[known], raw_task.values[known, v], at[usable]
            extra = None if raw_task.extra is None else raw_task.extra[known, v]
            if known.sum() > self.max_observations:
                found = nearest_posterior(*given, self.max_observations, extra=extra)
                reduced = True
            else:
                found = posterior(*given, extra)
            mean[usable, v], std[usable, v] = found
        self._reduced += reduced
        return mean, std


def covariance_at(process: KrigingParameters, x: Float[np.ndarray, "n d"]) -> Tensor:
    """The covariance at some points without noise, in units of the process."""
    places = _scaled(process, x)
    return _covariance(process.log_values, _Pairs.of(places, places, process.timed))


def posterior(
    process: KrigingParameters,
    x: Float[np.ndarray, "n d"],
    values: Float[np.ndarray, " n"],
    at: Float[np.ndarray, "m d"],
    extra: Float[np.ndarray, " n"] | None = None,
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Mean and standard deviation of new observations at `at`, given observations at `x`.

    `extra` is the variance of every observation beyond the noise that all have.
    """
    observed, new = _scaled(process, x), _scaled(process, at)
    y = torch.as_tensor((values - process.mean) / process.std)[:, None]
    noise = process["noise"] ** 2
    root = _root(covariance_at(process, x), noise + _in_units(process, extra))
    across = _covariance(process.log_values, _Pairs.of(observed, new, process.timed))
    explained = torch.linalg.solve_triangular(root, across, upper=False)
    mean = explained.mT @ torch.linalg.solve_triangular(root, y, upper=False)
    own = _Pairs.of(new[:, None], new[:, None], process.timed)
    variance = _covariance(process.log_values, own)[:, 0, 0] - explained.square().sum(0) + noise
    std = variance.clamp_min(noise).sqrt()
    return mean[:, 0].numpy() * process.std + process.mean, std.numpy() * process.std


def nearest_posterior(
    process: KrigingParameters,
    x: Float[np.ndarray, "n d"],
    values: Float[np.ndarray, " n"],
    at: Float[np.ndarray, "m d"],
    most: int = MAX_OBSERVATIONS,
    neighbours: int = NEIGHBOURS,
    extra: Float[np.ndarray, " n"] | None = None,
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """`posterior` for many observations: of the deviations from the trend, each target sees only
    its nearest observations, in units of the length-scales.

    The trend (level and drift) is estimated from a random subset of at most `most` observations.
    The variance is that of universal kriging.
    """
    observed, new = _scaled(process, x), _scaled(process, at)
    y = torch.as_tensor((values - process.mean) / process.std)[:, None]
    noise = process["noise"] ** 2
    own_noise = noise + _in_units(process, np.zeros(len(x)) if extra is None else extra)

    def local(a: Tensor, b: Tensor) -> Tensor:
        return _covariance(process.log_values, _Pairs.of(a, b, process.timed), trend=False)

    some = torch.as_tensor(np.random.default_rng(0).permutation(len(x))[:most])
    root = _root(local(observed[some], observed[some]), own_noise[some])
    basis = torch.linalg.solve_triangular(root, _basis(process, observed[some]), upper=False)
    white = torch.linalg.solve_triangular(root, y[some], upper=False)
    precision = torch.eye(basis.shape[1], dtype=basis.dtype) + basis.mT @ basis
    uncertainty = torch.linalg.inv(precision)
    trend = uncertainty @ (basis.mT @ white)
    deviation = y - _basis(process, observed) @ trend

    tree = KDTree(_in_lengths(process, observed))
    means, variances = [], []
    for targets in new.split(CHUNK):
        index = tree.query(_in_lengths(process, targets), min(neighbours, len(x)))[1]
        near = torch.as_tensor(index.reshape(len(targets), -1))
        root = _root(local(observed[near], observed[near]), own_noise[near])
        across = local(observed[near], targets[:, None])
        right = [across, deviation[near], _basis(process, observed[near])]
        solved = torch.linalg.solve_triangular(root, torch.cat(right, -1), upper=False)
        explained, white, basis = solved[..., :1], solved[..., 1:2], solved[..., 2:]
        own = local(targets[:, None], targets[:, None])[:, 0, 0]
        # what the neighbours do not say about the target's trend
        rest = _basis(process, targets) - (explained.mT @ basis)[:, 0]
        variance = own - explained.square().sum((1, 2)) + ((rest @ uncertainty) * rest).sum(1)
        means.append((explained * white).sum((1, 2)) + (_basis(process, targets) @ trend)[:, 0])
        variances.append((variance + noise).clamp_min(noise))
    mean, std = torch.cat(means).numpy(), torch.cat(variances).sqrt().numpy()
    return mean * process.std + process.mean, std * process.std


def _in_units(process: KrigingParameters, variance: np.ndarray | None) -> Tensor:
    """A variance in units of the process; none is zero."""
    units = 0.0 if variance is None else variance / process.std**2
    return torch.as_tensor(units, dtype=torch.float64)


def _root(covariance: Tensor, noise: Tensor) -> Tensor:
    """Cholesky factor of the covariance of observations."""
    covariance.diagonal(dim1=-2, dim2=-1).add_(noise + JITTER)
    return torch.linalg.cholesky(covariance)


def _basis(process: KrigingParameters, points: Tensor) -> Tensor:
    """Level and features, scaled such that their coefficients have unit variance."""
    drift = [process[f"drift_{k}"] for k in range(len(process.centre))]
    level = torch.full_like(points[..., :1], process["level"])
    return torch.cat([level, points[..., 4:] * points.new_tensor(drift)], -1)


def _in_lengths(process: KrigingParameters, points: Tensor) -> np.ndarray:
    """Points in units of the length-scales: an exponent of the covariance in every direction."""
    lengths = [process["length"]] * 3 + [process["hours"] if process.timed else np.inf]
    lengths += [process[f"length_{k}"] for k in range(len(process.centre))]
    scale = np.sqrt(3) / np.array(lengths)
    scale[3] /= np.sqrt(3)  # time decays with exp(-hours), without Matérn's factor
    return points.numpy() * scale


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Pairs of points: squared distance, hours apart, and per feature the squared difference and
    the product.
    """

    distance: Tensor
    hours: Tensor | None
    squares: tuple[Tensor, ...]
    products: tuple[Tensor, ...]

    @classmethod
    def of(cls, a: Tensor, b: Tensor, timed: bool) -> _Pairs:
        def differences(k: int) -> Tensor:
            return a[..., :, None, k] - b[..., None, :, k]

        features = range(4, a.shape[-1])
        return cls(
            sum((differences(k).square() for k in range(3)), torch.zeros(())),
            differences(3).abs() if timed else None,
            tuple(differences(k).square() for k in features),
            tuple(a[..., :, None, k] * b[..., None, :, k] for k in features),
        )


def _covariance(log_values: Tensor, pairs: _Pairs, *, trend: bool = True) -> Tensor:
    """Covariance without noise, and without level and drift if there is no `trend`."""
    values = list(log_values.exp())
    amplitude, length, _, level = values[:4]
    own = values[5:] if pairs.hours is not None else values[4:]
    squared = pairs.distance / length**2
    for square, feature_length in zip(pairs.squares, own[1::2], strict=True):
        squared = squared + square / feature_length**2
    r = (3 * squared + 1e-12).sqrt()
    covariance = amplitude**2 * (1 + r) * torch.exp(-r)
    if pairs.hours is not None:
        covariance = covariance * torch.exp(-pairs.hours / values[4])
    if not trend:
        return covariance
    for product, drift in zip(pairs.products, own[::2], strict=True):
        covariance = covariance + drift**2 * product
    return covariance + level**2


def _subset(x: np.ndarray, known: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """At most `POINTS` observations to fit to: half of them at random, which shows long lengths,
    half around one of them, which shows lengths shorter than the spacing of a random subset.
    """
    some = rng.permutation(known)
    if len(some) <= POINTS:
        return some
    spread, rest = some[: POINTS // 2], some[POINTS // 2 :]
    distance = np.linalg.norm(x[rest, :3] - x[spread[0], :3], axis=1)
    return np.concatenate([spread, rest[np.argsort(distance)[: POINTS - len(spread)]]])


def _inputs(points: Points, now: np.datetime64 | None, drift: bool) -> Float[np.ndarray, "n d"]:
    """Kilometres, hours and, with a drift, static features."""
    places = points.kilometres(now)
    places[:, 3] /= KM_PER_HOUR
    return np.concatenate([places, points.static.astype(np.float64)], -1) if drift else places


def _scaled(process: KrigingParameters, x: np.ndarray) -> Tensor:
    features = (x[:, 4:] - process.centre) / process.scale
    return torch.as_tensor(np.concatenate([x[:, :4], features], -1))


def _all_values(raw_task: RawTask) -> tuple[np.ndarray, np.ndarray]:
    """Observations and targets, and the variances of their reading errors."""
    own = np.zeros_like(raw_task.values) if raw_task.extra is None else raw_task.extra
    error = raw_task.truth_error
    rest = np.zeros_like(raw_task.truth) if error is None else error.astype(np.float64) ** 2
    return np.concatenate([raw_task.values, raw_task.truth]), np.concatenate([own, rest])


def _fit(name: str, data: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> KrigingParameters:
    if not data:
        raise ValueError(
            f"No training time has two observations of {name!r}, which kriging needs; leave it out."
        )
    values, x = (np.concatenate([one[k] for one in data]) for k in (1, 0))
    if values.std() <= 1e-9 * abs(values.mean()):
        raise ValueError(
            f"{name!r} is {values[0]:g} throughout the training part, but kriging needs a variable "
            "that varies; leave it out."
        )
    timed = any(np.ptp(x[:, 3]) > 0 for x, _, _ in data)
    start, bounds = _start(x, timed)
    centre, scale = x[:, 4:].mean(0), x[:, 4:].std(0)
    scale = np.where(scale > 0, scale, 1.0)
    mean, std = float(values.mean()), float(values.std())
    process = KrigingParameters(mean, std, centre, scale, torch.as_tensor(np.log(start)), timed)

    longest = max(len(y) for _, y, _ in data)
    points = torch.zeros(len(data), longest, x.shape[1], dtype=torch.float64)
    target = torch.zeros(len(data), longest, 1, dtype=torch.float64)
    used = torch.zeros(len(data), longest, dtype=torch.bool)
    errors = torch.zeros(len(data), longest, dtype=torch.float64)
    for i, (places, y, extra) in enumerate(data):
        errors[i, : len(y)] = _in_units(process, extra)
        points[i, : len(y)] = _scaled(process, places)
        target[i, : len(y), 0] = torch.as_tensor((y - mean) / std)
        used[i, : len(y)] = True
    pairs, both = _Pairs.of(points, points, timed), used[:, :, None] & used[:, None, :]

    def loss(log_values: np.ndarray) -> tuple[float, np.ndarray]:
        """Negative log marginal likelihood per observation, and its gradient."""
        p = torch.tensor(log_values, requires_grad=True)
        covariance = torch.where(both, _covariance(p, pairs), 0.0)
        diagonal = torch.where(used, (2 * p[2]).exp() + errors + JITTER, 1.0)
        root = torch.linalg.cholesky(covariance + torch.diag_embed(diagonal))
        fit = torch.linalg.solve_triangular(root, target, upper=False).square().sum() / 2
        log_determinant = root.diagonal(dim1=-2, dim2=-1).log().sum()
        total = (fit + log_determinant) / used.sum()
        total.backward()
        assert p.grad is not None
        return total.item(), p.grad.numpy()

    best = minimize(loss, np.log(start), jac=True, bounds=np.log(bounds), options={"maxiter": 60})
    return KrigingParameters(mean, std, centre, scale, torch.as_tensor(best.x), timed)


def _start(x: np.ndarray, timed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Initial values of the parameters, and their bounds."""
    extent = max(float(np.linalg.norm(np.ptp(x[:, :3], axis=0))), 1.0)
    span = max(float(np.ptp(x[:, 3])), 1.0)
    table = [
        (0.5, 0.01, 30.0),  # amplitude
        (extent / 5, extent / 1000, extent * 10),  # length
        (0.3, 0.01, 3.0),  # noise
        (1.0, 0.01, 30.0),  # level
        *[(span, span / 1000, span * 1000)][: int(timed)],  # hours
        *[(0.5, 0.01, 30.0), (2.0, 0.05, 100.0)] * (x.shape[1] - 4),  # drift and length per feature
    ]
    start, low, high = np.array(table).T
    return start, np.stack([low, high], -1)
