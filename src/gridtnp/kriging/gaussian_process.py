"""Gaussian-process regression: the posterior given observations.

It resists outliers: an observation that the others contradict (leave-one-out, in standard
deviations) counts as noisier. The spread is local: the standard deviation is larger where the
observations around a target are worse predicted by each other than the covariance says, and smaller
where they are better predicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gridtnp.kriging.deformation import Deformation
from gridtnp.kriging.persistent import Deviations, PersistentField, exp_of

JITTER = 1e-6
"""Added to the diagonal of covariance matrices, relative to the largest variance or to 1."""
NEAR = 1e-9
"""Points that are nearer to each other, in length scales, coincide."""
LENIENT = 8.0
"""Standardised leave-one-out errors up to this are not outliers, unless fitted otherwise."""
NEIGHBOUR = 6
"""The spacing of observations is the median distance to the neighbour of this number."""
WIDTH = 0.8
"""Standard deviation, in spacings, of the weights of errors around a target."""
SURPRISE = 6.0
"""Largest standardised error that counts for the local spread."""
MEAN_SURPRISE = math.sqrt(2 / math.pi)
"""Mean absolute value of a standard normal variable."""
ROUGHEST = 3.0
"""Largest local spread that makes large errors plausible."""
CONSTANT = 1e6
"""A pseudo-count that makes the local spread constant."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Cartesian places, times in hours, and regressors: those of the drift first; in float64.

    `error` is the variance of readings there beyond the noise of all, where they are observed;
    `persistent` is what is known of these places from other tasks.
    """

    place: Float[Tensor, "*batch n d"]
    time: Float[Tensor, "*batch n"] | None
    regressors: Float[Tensor, "*batch n r"]
    error: Float[Tensor, "*batch n"] | None = None
    persistent: Deviations | None = None

    def __getitem__(self, index: tuple[int | slice | Tensor | None, ...]) -> Inputs:
        time, error = (None if v is None else v[index] for v in (self.time, self.error))
        known = None if self.persistent is None else self.persistent[index]
        return Inputs(self.place[index], time, self.regressors[index], error, known)


@dataclass(frozen=True, eq=False)
class Points:
    """Inputs as a process sees them: `coordinates` in length scales, after the deformation.

    `amplitude` and `noise` are the standard deviations of the local process and of readings.
    """

    inputs: Inputs
    coordinates: Float[Tensor, "*batch n d"]
    amplitude: Float[Tensor, "*batch n"]
    noise: Float[Tensor, "*batch n"]

    def __getitem__(self, index: tuple[int | slice | Tensor | None, ...]) -> Points:
        each = (self.inputs, self.coordinates, self.amplitude, self.noise)
        return Points(*(values[index] for values in each))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, eq=False)
class Posterior:
    """A Gaussian process given observations.

    `residual` is y minus the mean, `excess` the variance of outliers beyond the noise σ² of all,
    `factor` the Cholesky factor of K + σ²I, and `weights` (K + σ²I)⁻¹ times the residual. With
    `surprise`, the standardised leave-one-out errors, the spread is local; `spacing` is the typical
    distance between observations.
    """

    points: Points
    residual: Float[Tensor, "batch n"]
    mask: Bool[Tensor, "batch n"]
    excess: Float[Tensor, "batch n"]
    factor: Float[Tensor, "batch n n"]
    weights: Float[Tensor, "batch n"]
    surprise: Float[Tensor, "batch n"] | None = None
    spacing: Float[Tensor, " batch"] | None = None


class KrigingProcess(nn.Module):
    """Linear regression, plus a Gaussian process of what is left in a task, plus noise.

    The covariance is a mixture of Matérn functions (1/2, 3/2, 5/2) of the distance in space and in
    the first `distances` regressors, after a deformation of both, and exponential in time. In every
    task the process has a random level and random deviations of the coefficients of the first
    `drifts` regressors. Hyper-parameters are fitted (`fitting.py`) and not trained; positive ones
    are kept as logarithms. Places have `dimensions` Cartesian coordinates, `length` is in their
    units. The local spread is a weighted mean of 1, which counts as `pseudo_count` observations,
    and the errors around. Inputs that know their deviations from the regression in other tasks,
    at up to `places` places, have these added.
    """

    amplitude: Tensor
    noise: Tensor
    level: Tensor
    length: Tensor
    hours: Tensor
    drift: Tensor
    feature_length: Tensor
    smoothness: Tensor
    tolerance: Tensor
    pseudo_count: Tensor
    coefficients: Tensor
    constant: Tensor

    def __init__(
        self,
        regressors: int,
        *,
        dimensions: int,
        drifts: int,
        distances: int,
        timed: bool,
        length: float,
        hours: float,
        places: int = 0,
    ) -> None:
        super().__init__()
        self.timed = timed
        self.deformation = Deformation(dimensions + distances)
        self.persistent = PersistentField(places, dimensions + distances) if places else None

        def log(name: str, value: float, *shape: int) -> None:
            self.register_buffer(name, torch.full(shape, math.log(value)))

        log("amplitude", 0.3)
        log("noise", 0.1)
        log("level", 1.0)
        log("length", length)
        log("hours", hours)
        log("drift", 0.5, drifts)
        log("feature_length", 3.0, distances)
        self.register_buffer("smoothness", torch.zeros(3))  # logits of the mixture
        self.register_buffer("tolerance", torch.tensor(LENIENT))
        self.register_buffer("pseudo_count", torch.tensor(CONSTANT))
        self.register_buffer("coefficients", torch.zeros(regressors))
        self.register_buffer("constant", torch.zeros(()))

    def forget(self) -> None:
        """Be as before anything was fitted, except for hyper-parameters to start a search from."""
        self.tolerance.fill_(LENIENT)
        for weights in self.deformation.weights():
            weights.zero_()
        if self.persistent is not None:
            self.persistent.used.zero_()

    def points(self, a: Inputs | Points) -> Points:
        """Inputs as the covariance sees them."""
        if isinstance(a, Points):
            return a
        found = self.deformation(self.coordinates(a))
        dimensions = a.place.shape[-1]
        lengths = torch.cat([exp_of(self.length).expand(dimensions), exp_of(self.feature_length)])
        scaled = torch.cat([found.coordinates / lengths, found.additional], -1)
        amplitude, noise = (
            exp_of(self.amplitude) * found.amplitude,
            exp_of(self.noise) * found.noise,
        )
        return Points(a, scaled, amplitude, noise)

    def coordinates(self, a: Inputs) -> Float[Tensor, "*batch n d"]:
        """What is deformed: places and the regressors that count as distances."""
        return torch.cat([a.place, a.regressors[..., : len(self.feature_length)]], -1)

    def scaled(self, a: Points) -> Float[Tensor, "batch n d"]:
        """Places, features and times in units of their length scales."""
        if not self.timed or a.inputs.time is None:
            return a.coordinates
        return torch.cat([a.coordinates, (a.inputs.time / exp_of(self.hours))[..., None]], -1)

    def mean(self, a: Inputs) -> Float[Tensor, "batch n"]:
        """The linear regression, and what persists."""
        mean = a.regressors @ self.coefficients.double() + self.constant.double()
        return mean if a.persistent is None else mean + a.persistent.mean

    def covariance(self, a: Points, b: Points) -> Float[Tensor, "batch n m"]:
        """Between two sets of points, without noise."""
        local = self._correlation(_distance(a.coordinates, b.coordinates))
        local = local * a.amplitude[:, :, None] * b.amplitude[:, None]
        if self.timed and a.inputs.time is not None and b.inputs.time is not None:
            apart = (a.inputs.time[:, :, None] - b.inputs.time[:, None]).abs()
            local = local * torch.exp(-apart / exp_of(self.hours))
        known = (a.inputs.persistent, b.inputs.persistent)
        if self.persistent is not None and known[0] is not None and known[1] is not None:
            local = local + self.persistent.covariance(known[0], known[1])
        return (
            local + exp_of(self.level).square() + self._drifts(a.inputs) @ self._drifts(b.inputs).mT
        )

    def _correlation(self, r: Float[Tensor, "batch n m"]) -> Float[Tensor, "batch n m"]:
        """The mixture of Matérn functions of a distance in length scales."""
        half, three, five = self.smoothness.double().softmax(0)
        r3, r5 = math.sqrt(3) * r, math.sqrt(5) * r
        smooth = three * (1 + r3) * torch.exp(-r3)
        return half * torch.exp(-r) + smooth + five * (1 + r5 + r5.square() / 3) * torch.exp(-r5)

    def variance(self, a: Points) -> Float[Tensor, "batch n"]:
        """Prior variance, without noise."""
        drift = self._drifts(a.inputs).square().sum(-1)
        variance = a.amplitude.square() + exp_of(self.level).square() + drift
        if self.persistent is None or a.inputs.persistent is None:
            return variance
        return variance + self.persistent.variance(a.inputs.persistent)

    def noise_variance(self, a: Points) -> Float[Tensor, "batch n"]:
        """Of observations at these points, reading errors included where they are known."""
        noise = a.noise.square()
        return noise if a.inputs.error is None else noise + a.inputs.error

    def _drifts(self, a: Inputs) -> Float[Tensor, "batch n d"]:
        return a.regressors[..., : len(self.drift)] * exp_of(self.drift)

    def condition(
        self,
        at: Inputs | Points,
        y: Float[Tensor, "batch n"],
        mask: Bool[Tensor, "batch n"],
        excess: Float[Tensor, "batch n"] | None = None,
    ) -> Posterior:
        """The posterior given the observations where `mask` is true.

        `excess` is the variance of outliers beyond the noise of all.
        """
        points = self.points(at)
        excess = torch.zeros_like(y) if excess is None else excess
        used = mask.to(y.dtype)
        residual = (y - self.mean(points.inputs)) * used
        k = self.covariance(points, points) * used[:, :, None] * used[:, None]
        one = used.new_ones((len(used), 1))
        jitter = JITTER * torch.cat([self.variance(points), one], 1).amax(1, keepdim=True)
        diagonal = used * (self.noise_variance(points) + excess) + (1 - used) + jitter
        factor = torch.linalg.cholesky(k + torch.diag_embed(diagonal))
        weights = torch.cholesky_solve(residual[..., None], factor)[..., 0]
        return Posterior(points, residual, mask, excess, factor, weights)

    def condition_robustly(
        self, at: Inputs | Points, y: Float[Tensor, "batch n"], mask: Bool[Tensor, "batch n"]
    ) -> Posterior:
        """The same with a local spread; outliers get as much more noise as makes them plausible."""
        points = self.points(at)
        given, error, std = self._surprised(self.condition(points, y, mask))
        limit = self.tolerance.double() * self._roughness(given)
        excess = ((error / limit).square() - std.square()).clamp_min(0)
        if torch.compiler.is_compiling() or excess.any():
            given, _, _ = self._surprised(self.condition(points, y, mask, excess))
        return given

    def _surprised(self, given: Posterior) -> tuple[Posterior, Tensor, Tensor]:
        """With a local spread; also leave-one-out errors and standard deviations."""
        error, std = self.leave_one_out(given)
        surprise = (error / std).abs().clamp_max(SURPRISE)
        return replace(given, surprise=surprise, spacing=self._spacing(given)), error, std

    def _spacing(self, given: Posterior) -> Float[Tensor, " batch"]:
        """The median distance of observations from their neighbours."""
        observed = given.points.coordinates
        apart = _distance(observed, observed)
        used = given.mask[:, None] & (apart > NEAR)  # a spacing of replicates would be zero
        padded = F.pad(apart.masked_fill(~used, math.inf), (0, NEIGHBOUR), value=math.inf)
        nearest = padded.topk(NEIGHBOUR, largest=False).values[..., -1]
        nearest = F.pad(nearest.masked_fill(~given.mask, math.nan), (0, 1), value=math.nan)
        return nearest.nanmedian(1).values.nan_to_num(nan=math.inf).clamp_min(NEAR)

    def _roughness(self, given: Posterior) -> Float[Tensor, "batch n"]:
        """How much larger an error may be before it is an outlier: at a front, all errors are."""
        return self.local_spread(given).clamp(1.0, ROUGHEST)

    def predict(self, given: Posterior | None, at: Inputs | Points) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of new observations, noise included: (batch, m) each.

        Without a posterior, those of the prior.
        """
        at = self.points(at)
        mean, variance = self.mean(at.inputs), self.variance(at)
        if given is not None:
            k = self.covariance(at, given.points) * given.mask[:, None].to(mean.dtype)
            mean = mean + (k @ given.weights[..., None])[..., 0]
            half = torch.linalg.solve_triangular(given.factor, k.mT, upper=False)
            variance = (variance - half.square().sum(1)).clamp_min(JITTER)
        std = (variance + self.noise_variance(at)).sqrt()
        if given is not None and given.surprise is not None:
            std = std * self.local_spread(given, at)
        return mean, std

    def local_spread(self, given: Posterior, at: Points | None = None) -> Float[Tensor, "batch m"]:
        """The factor of standard deviations at targets, or at every observation from all others."""
        assert given.surprise is not None
        assert given.spacing is not None
        observed = given.points.coordinates
        distance = _distance(observed if at is None else at.coordinates, observed)
        spacing = given.spacing[:, None, None]
        weight = torch.exp(-0.5 * (distance / (WIDTH * spacing)).square()) * given.mask[:, None]
        if at is None:
            weight = weight - torch.diag_embed(weight.diagonal(dim1=-2, dim2=-1))
        errors = (weight @ given.surprise[..., None])[..., 0] / MEAN_SURPRISE
        prior = self.pseudo_count.double()
        return (prior + errors) / (prior + weight.sum(-1))

    def leave_one_out(self, given: Posterior) -> tuple[Tensor, Tensor]:
        """Error and standard deviation of predicting every observation from all others."""
        n = given.factor.shape[-1]
        eye = torch.eye(n, dtype=given.factor.dtype, device=given.factor.device)
        inverse = torch.cholesky_solve(eye.expand_as(given.factor), given.factor)
        precision = inverse.diagonal(dim1=-2, dim2=-1)
        return given.weights / precision, precision.rsqrt()

    def log_likelihood(self, given: Posterior) -> Float[Tensor, ""]:
        """Log marginal likelihood of the observations, summed over the batch."""
        used = given.mask.to(given.residual.dtype)
        fit = (given.residual * given.weights).sum()
        logs = given.factor.diagonal(dim1=-2, dim2=-1).log() * used
        return -0.5 * fit - logs.sum() - 0.5 * math.log(2 * math.pi) * used.sum()


def crps(error: Tensor, std: Tensor) -> Tensor:
    """Continuous ranked probability score of normal forecasts that are off by `error`."""
    z = error / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return std * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))


def _distance(a: Float[Tensor, "batch n d"], b: Float[Tensor, "batch m d"]) -> Tensor:
    """Euclidean distances, with a gradient of zero where points coincide.

    Of differences: |a|² + |b|² − 2ab would leave rounding errors of 1e-6 between equal points.
    """
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
