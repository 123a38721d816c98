"""Kriging, the baseline of geostatistics: the exact posterior of a Gaussian process, time by time.

The covariance is a Matérn function of distance, an unknown level for every time, and noise. Where
observations have several times, it also falls off with time. With a drift, values depend linearly
on the static features (elevation), which also count as distances: kriging with external drift, the
fair rival in mountains. Its constants maximise the marginal likelihood of training times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from gridtnp.evaluation.interpolation import SPEED, Baseline, Forecast, Points, RawTask

TIMES, POINTS = 16, 200
"""Training times that the constants are fitted to, and observations of each at most."""
MOST = 1500
"""Observations that one time is predicted from at most; of more, a random part is taken."""
JITTER = 1e-6
"""Of unit variance; keeps factorisations possible where stations share a place."""


@dataclass(frozen=True, eq=False)
class KrigingParameters:
    """One variable's Gaussian process: its scale, that of the features, and the logarithms of its
    constants, `names` in order.
    """

    mean: float
    std: float
    centre: Float[np.ndarray, " df"]
    size: Float[np.ndarray, " df"]
    constants: Float[Tensor, " k"]
    timed: bool

    @property
    def names(self) -> list[str]:
        features = range(len(self.centre))
        own = [f"{what}_{k}" for k in features for what in ("drift", "reach")]
        return ["amplitude", "length", "noise", "level", *["hours"][: int(self.timed)], *own]

    def __getitem__(self, name: str) -> float:
        """A constant: kilometres, hours, or in units of the variable's (or feature's) spread."""
        return float(self.constants[self.names.index(name)].exp())


class Kriging(Baseline):
    """A Gaussian process for every variable, conditioned on what was observed."""

    def __init__(
        self, processes: Sequence[KrigingParameters], *, drift: bool, most: int = MOST
    ) -> None:
        self.processes, self.drift, self.most = tuple(processes), drift, most
        self._reduced = 0

    @classmethod
    def fit(cls, raw_tasks: Iterable[RawTask], names: Sequence[str], *, drift: bool) -> Kriging:
        """To observations and targets of training raw_tasks, in the order they come."""
        rng = np.random.default_rng(0)
        found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in names]
        for raw_task in raw_tasks:
            both = (raw_task.observed, raw_task.asked)
            x = np.concatenate([_inputs(p, raw_task.time, drift) for p in both])
            values = np.concatenate([raw_task.values, raw_task.truth])
            for v, data in enumerate(found):
                there = rng.permutation(np.flatnonzero(np.isfinite(values[:, v])))[:POINTS]
                if len(there) > 1 and len(data) < TIMES:
                    data.append((x[there], values[there, v]))
        fitted = [_fit(name, data) for name, data in zip(names, found, strict=True)]
        return cls(fitted, drift=drift)

    def notes(self) -> tuple[str, ...]:
        if not self._reduced:
            return ()
        said = f"kriging: {self._reduced} time{'s' * (self._reduced > 1)} had more than "
        return (said + f"{self.most:,} observations; so many were used at random",)

    def predict(self, raw_task: RawTask) -> Forecast:
        mean, std = np.zeros(raw_task.truth.shape), np.zeros(raw_task.truth.shape)
        x, at = (_inputs(p, raw_task.time, self.drift) for p in (raw_task.observed, raw_task.asked))
        reduced = False
        for v, process in enumerate(self.processes):
            there = np.flatnonzero(np.isfinite(raw_task.values[:, v]))
            if len(there) > self.most:
                there = np.random.default_rng(0).permutation(there)[: self.most]
                reduced = True
            mean[:, v], std[:, v] = posterior(process, x[there], raw_task.values[there, v], at)
        self._reduced += reduced
        return mean, std


def posterior(
    process: KrigingParameters,
    x: Float[np.ndarray, "n d"],
    values: Float[np.ndarray, " n"],
    at: Float[np.ndarray, "m d"],
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Mean and spread of new observations `at` some places, given others at `x`."""
    here, there = _scaled(process, x), _scaled(process, at)
    y = torch.as_tensor((values - process.mean) / process.std)[:, None]
    noise = process["noise"] ** 2
    covariance = _covariance(process.constants, _Pairs.of(here, here, process.timed))
    covariance.diagonal().add_(noise + JITTER)
    root = torch.linalg.cholesky(covariance)
    across = _covariance(process.constants, _Pairs.of(here, there, process.timed))
    known = torch.linalg.solve_triangular(root, across, upper=False)
    mean = known.mT @ torch.linalg.solve_triangular(root, y, upper=False)
    own = _Pairs.of(there[:, None], there[:, None], process.timed)
    variance = _covariance(process.constants, own)[:, 0, 0] - known.square().sum(0) + noise
    std = variance.clamp_min(noise).sqrt()
    return mean[:, 0].numpy() * process.std + process.mean, std.numpy() * process.std


@dataclass(frozen=True, eq=False)
class _Pairs:
    """What the covariance of two sets of points depends on."""

    distance: Tensor
    hours: Tensor | None
    apart: tuple[Tensor, ...]
    product: tuple[Tensor, ...]

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


def _covariance(constants: Tensor, pairs: _Pairs) -> Tensor:
    """Without noise; Matérn with smoothness 3/2."""
    c = list(constants.exp())
    amplitude, length, _, level = c[:4]
    own = c[5:] if pairs.hours is not None else c[4:]
    squared = pairs.distance / length**2
    for apart, reach in zip(pairs.apart, own[1::2], strict=True):
        squared = squared + apart / reach**2
    r = (3 * squared + 1e-12).sqrt()
    local = amplitude**2 * (1 + r) * torch.exp(-r)
    if pairs.hours is not None:
        local = local * torch.exp(-pairs.hours / c[4])
    for product, drift in zip(pairs.product, own[::2], strict=True):
        local = local + drift**2 * product
    return local + level**2


def _inputs(points: Points, now: np.datetime64 | None, drift: bool) -> Float[np.ndarray, "n d"]:
    """Kilometres in space, hours, and the static features if they are to be used."""
    places = points.kilometres(now)
    places[:, 3] /= SPEED
    return np.concatenate([places, points.static.astype(np.float64)], -1) if drift else places


def _scaled(process: KrigingParameters, x: np.ndarray) -> Tensor:
    features = (x[:, 4:] - process.centre) / process.size
    return torch.as_tensor(np.concatenate([x[:, :4], features], -1))


def _fit(name: str, data: list[tuple[np.ndarray, np.ndarray]]) -> KrigingParameters:
    if not data:
        raise ValueError(
            f"Kriging is fitted to training times with two observations or more, but {name!r} has "
            "none; leave it out."
        )
    values, x = np.concatenate([y for _, y in data]), np.concatenate([x for x, _ in data])
    if values.std() <= 1e-9 * abs(values.mean()):
        raise ValueError(
            f"Kriging needs a variable that varies, but {name!r} is {values[0]:g} throughout the "
            "training part; leave it out."
        )
    timed = any(np.ptp(x[:, 3]) > 0 for x, _ in data)
    start, bounds = _start(x, timed)
    centre, size = x[:, 4:].mean(0), x[:, 4:].std(0)
    size = np.where(size > 0, size, 1.0)
    mean, std = float(values.mean()), float(values.std())
    process = KrigingParameters(mean, std, centre, size, torch.as_tensor(np.log(start)), timed)

    longest = max(len(y) for _, y in data)
    points = torch.zeros(len(data), longest, x.shape[1], dtype=torch.float64)
    target = torch.zeros(len(data), longest, 1, dtype=torch.float64)
    used = torch.zeros(len(data), longest, dtype=torch.bool)
    for i, (places, y) in enumerate(data):
        points[i, : len(y)] = _scaled(process, places)
        target[i, : len(y), 0] = torch.as_tensor((y - mean) / std)
        used[i, : len(y)] = True
    pairs, both = _Pairs.of(points, points, timed), used[:, :, None] & used[:, None, :]

    def loss(constants: np.ndarray) -> tuple[float, np.ndarray]:
        """Negative log marginal likelihood per observation, and its gradient."""
        c = torch.tensor(constants, requires_grad=True)
        covariance = torch.where(both, _covariance(c, pairs), 0.0)
        diagonal = torch.where(used, (2 * c[2]).exp() + JITTER, 1.0)
        root = torch.linalg.cholesky(covariance + torch.diag_embed(diagonal))
        fit = torch.linalg.solve_triangular(root, target, upper=False).square().sum() / 2
        size = root.diagonal(dim1=-2, dim2=-1).log().sum()
        total = (fit + size) / used.sum()
        total.backward()
        assert c.grad is not None
        return total.item(), c.grad.numpy()

    best = minimize(loss, np.log(start), jac=True, bounds=np.log(bounds), options={"maxiter": 60})
    return KrigingParameters(mean, std, centre, size, torch.as_tensor(best.x), timed)


def _start(x: np.ndarray, timed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Where the search begins, and the bounds that it keeps to."""
    extent = max(float(np.linalg.norm(np.ptp(x[:, :3], axis=0))), 1.0)
    span = max(float(np.ptp(x[:, 3])), 1.0)
    table = [
        (0.5, 0.01, 30.0),  # amplitude
        (extent / 5, extent / 1000, extent * 10),  # length
        (0.3, 0.01, 3.0),  # noise
        (1.0, 0.01, 30.0),  # level
        *[(span, span / 1000, span * 1000)][: int(timed)],  # hours
        *[(0.5, 0.01, 30.0), (2.0, 0.05, 100.0)] * (x.shape[1] - 4),  # drift and reach
    ]
    start, low, high = np.array(table).T
    return start, np.stack([low, high], -1)
