"""Kriging inside a network: Gaussian-process regression on the context, corrected by a network.

The posterior of a Gaussian process given the context has a closed form. `KrigedNetwork` adds it to
the features of every point, and its network predicts what is left, in units of the posterior's
standard deviation. Fresh weights correct nothing, so training starts from kriging; the
hyper-parameters are learned with the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from scipy.spatial import KDTree
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from gridtnp.network.model import NeuralProcess, Signature
from gridtnp.task import PointSet, Task

EXACT = 256
"""Larger contexts are not factorised as a whole: each target uses its nearest observations."""
NEAREST = 32
"""Nearest observations per target in large contexts."""
JITTER = 1e-6
"""Added to the diagonal of covariance matrices."""
FITTED = 200
"""Observations of a task that hyper-parameters are fitted to."""
ENTRIES = 2**23
"""Entries of a covariance matrix that are held at once without gradients."""
COLUMNS = ("kriging_mean", "kriging_log_std", "kriging_residual")
"""Features added for each output: posterior mean, log σ, and the standardised residual of an
observation given all others."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """What the covariance depends on: Cartesian places, times in hours, features; in float64."""

    place: Float[Tensor, "*batch n d"]
    time: Float[Tensor, "*batch n"] | None
    features: Float[Tensor, "*batch n p"]

    def __getitem__(self, index: tuple[int | slice | Tensor | None, ...]) -> Inputs:
        time = None if self.time is None else self.time[index]
        return Inputs(self.place[index], time, self.features[index])


@dataclass(frozen=True, eq=False)
class Posterior:
    """A Gaussian process given observations: the Cholesky factor of K + σ²I, and (K + σ²I)⁻¹y."""

    inputs: Inputs
    y: Float[Tensor, "batch n"]
    mask: Bool[Tensor, "batch n"]
    factor: Float[Tensor, "batch n n"]
    weights: Float[Tensor, "batch n"]


class GaussianProcess(nn.Module):
    """Matérn 3/2 in space and features, exponential in time; a level, a linear drift, and noise.

    Hyper-parameters are learned as logarithms. `length` is in the units of places.
    """

    def __init__(self, features: int, *, timed: bool, length: float, hours: float) -> None:
        super().__init__()

        def log(value: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.full(shape, math.log(value)))

        self.amplitude, self.noise, self.level = log(0.3), log(0.1), log(1.0)
        self.length, self.hours = log(length), log(hours) if timed else None
        self.drift, self.feature_length = log(0.5, features), log(3.0, features)

    def covariance(self, a: Inputs, b: Inputs) -> Float[Tensor, "batch n m"]:
        """Between two sets of points, without noise."""
        length, width, drift = map(_exp, (self.length, self.feature_length, self.drift))
        x = torch.cat([a.place / length, a.features / width], -1)
        y = torch.cat([b.place / length, b.features / width], -1)
        r = math.sqrt(3) * _distance(x, y)
        local = _exp(self.amplitude).square() * (1 + r) * torch.exp(-r)
        if self.hours is not None and a.time is not None and b.time is not None:
            apart = (a.time[:, :, None] - b.time[:, None]).abs()
            local = local * torch.exp(-apart / _exp(self.hours))
        trend = (a.features * drift) @ (b.features * drift).transpose(1, 2)
        return local + _exp(self.level).square() + trend

    def variance(self, a: Inputs) -> Float[Tensor, "batch n"]:
        """Prior variance, without noise."""
        drift = (a.features * _exp(self.drift)).square().sum(-1)
        return _exp(self.amplitude).square() + _exp(self.level).square() + drift

    def condition(
        self, inputs: Inputs, y: Float[Tensor, "batch n"], mask: Bool[Tensor, "batch n"]
    ) -> Posterior:
        """The posterior given the observations where `mask` is true."""
        used = mask.to(y.dtype)
        k = self.covariance(inputs, inputs) * used[:, :, None] * used[:, None]
        diagonal = used * _exp(self.noise).square() + (1 - used) + JITTER
        factor = torch.linalg.cholesky(k + torch.diag_embed(diagonal))
        weights = torch.cholesky_solve((y * used)[..., None], factor)[..., 0]
        return Posterior(inputs, y, mask, factor, weights)

    def predict(self, given: Posterior, at: Inputs) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of new observations, noise included: (batch, m) each."""
        k = self.covariance(at, given.inputs) * given.mask[:, None].to(at.place.dtype)
        mean = (k @ given.weights[..., None])[..., 0]
        half = torch.linalg.solve_triangular(given.factor, k.transpose(1, 2), upper=False)
        variance = (self.variance(at) - half.square().sum(1)).clamp_min(JITTER)
        return mean, (variance + _exp(self.noise).square()).sqrt()

    def leave_one_out(self, given: Posterior) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every observation given all others."""
        n = given.factor.shape[-1]
        eye = torch.eye(n, dtype=given.factor.dtype, device=given.factor.device)
        inverse = torch.cholesky_solve(eye.expand_as(given.factor), given.factor)
        precision = inverse.diagonal(dim1=-2, dim2=-1)
        return given.y - given.weights / precision, precision.rsqrt()

    def log_likelihood(self, given: Posterior) -> Float[Tensor, ""]:
        """Log marginal likelihood of the observations, summed over the batch."""
        used = given.mask.to(given.y.dtype)
        fit = (given.y * used * given.weights).sum()
        logs = given.factor.diagonal(dim1=-2, dim2=-1).log() * used
        return -0.5 * fit - logs.sum() - 0.5 * math.log(2 * math.pi) * used.sum()

    def fit(
        self, inputs: Inputs, y: Float[Tensor, "batch n"], mask: Bool[Tensor, "batch n"]
    ) -> None:
        """Maximise the marginal likelihood (empirical Bayes), as kriging does."""
        parameters = list(self.parameters())
        search = torch.optim.LBFGS(parameters, max_iter=60, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            search.zero_grad()
            value = -self.log_likelihood(self.condition(inputs, y, mask)) / mask.sum()
            # a weak prior keeps hyper-parameters that the data do not determine near their start
            value = value + 1e-3 * sum(
                (p - s).square().sum() for p, s in zip(parameters, start, strict=True)
            )
            value.backward()
            return value

        start = [p.detach().clone() for p in parameters]
        search.step(loss)


class KrigedNetwork(NeuralProcess):
    """A network that corrects the posterior of one Gaussian process per output.

    `outputs` holds the context set and the column where each output is observed, `features` the
    columns of features that the covariance sees.
    """

    def __init__(
        self,
        signature: Signature,
        network: NeuralProcess,
        outputs: Sequence[tuple[str, int]],
        features: Sequence[int],
        *,
        length: float,
        hours: float,
    ) -> None:
        super().__init__(signature, network.grid)
        self.network = network
        self.outputs, self.features = tuple(outputs), list(features)
        timed = "time" in signature.coordinates
        self.processes = nn.ModuleList(
            GaussianProcess(len(self.features), timed=timed, length=length, hours=hours)
            for _ in self.outputs
        )

    def encode(
        self, context: Mapping[str, PointSet]
    ) -> tuple[list[Posterior | Observations], object]:
        device = next(iter(context.values())).x.device.type
        with torch.autocast(device, enabled=False):
            given = [self._condition(context, j) for j in range(len(self.outputs))]
            extended = {
                name: _extended(points, self._at_context(name, points, given))
                for name, points in context.items()
            }
        return given, self.network.encode(extended)

    def decode(
        self, encoding: tuple[list[Posterior | Observations], object], target: PointSet
    ) -> Distribution:
        given, inner = encoding
        with torch.autocast(target.x.device.type, enabled=False):
            at = self._inputs(target)
            found = [self._predict(j, posterior, at) for j, posterior in enumerate(given)]
            mean, std = (torch.stack([pair[i] for pair in found], -1) for i in range(2))
            columns = torch.stack([mean, std.log(), torch.zeros_like(mean)], -1).flatten(-2)
        rest = self.network.decode(inner, _extended(target, columns))
        mean, std = mean.to(rest.mean.dtype), std.to(rest.mean.dtype)
        return Normal(mean + std * rest.mean, std * rest.stddev, validate_args=False)

    def fit_prior(self, tasks: Sequence[Task]) -> None:
        """Fit the hyper-parameters to training tasks by maximum likelihood, as kriging does."""
        for j in range(len(self.outputs)):
            points = self._observed(tasks, j)
            assert points.y is not None
            mask = torch.ones_like(points.y[..., 0]) > 0 if points.mask is None else points.mask
            self._process(j).fit(self._inputs(points), points.y[..., 0].double(), mask)

    def _observed(self, tasks: Sequence[Task], j: int) -> PointSet:
        """Some observations of an output in every task, context and targets alike."""
        name, column = self.outputs[j]
        generator, found = torch.Generator().manual_seed(0), []
        for task in tasks:
            for b in range(task.target.batch):
                both = []
                for points, k in ((task.context[name], column), (task.target, j)):
                    used = slice(None) if points.mask is None else points.mask[b]
                    assert points.y is not None
                    features = None if points.features is None else points.features[b : b + 1, used]
                    y = points.y[b : b + 1, used, k : k + 1]
                    both.append(PointSet(points.x[b : b + 1, used], y, None, features))
                whole = _joined(*both)
                order = torch.randperm(whole.n, generator=generator)[:FITTED]
                found.append(whole.select(order))
        return PointSet.stack(found)

    # ---- kriging ---------------------------------------------------------------------------------

    def _process(self, j: int) -> GaussianProcess:
        return cast(GaussianProcess, self.processes[j])

    def _condition(self, context: Mapping[str, PointSet], j: int) -> Posterior | Observations:
        name, column = self.outputs[j]
        points = context[name]
        assert points.y is not None
        y, inputs = points.y[..., column].double(), self._inputs(points)
        mask = torch.ones_like(y, dtype=torch.bool) if points.mask is None else points.mask
        if not torch.compiler.is_compiling() and y.shape[1] > EXACT:
            return Observations(inputs, y, mask)
        return self._process(j).condition(inputs, y, mask)

    def _at_context(
        self, name: str, points: PointSet, given: Sequence[Posterior | Observations]
    ) -> Float[Tensor, "batch n c"]:
        """The features of a context set: leave-one-out for outputs that it observes, else zeros."""
        columns = []
        for j, posterior in enumerate(given):
            if self.outputs[j][0] != name:
                columns += [points.x.new_zeros(points.x.shape[:2]).double()] * len(COLUMNS)
                continue
            if isinstance(posterior, Observations):
                mean, std = self._from_nearest(j, posterior, posterior.inputs, skip=1)
            else:
                mean, std = self._process(j).leave_one_out(posterior)
            columns += [mean, std.log(), (posterior.y - mean) / std]
        return torch.stack(columns, -1)

    def _predict(
        self, j: int, given: Posterior | Observations, at: Inputs
    ) -> tuple[Tensor, Tensor]:
        if isinstance(given, Observations):
            return self._from_nearest(j, given, at)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._process(j).predict(given, at)
        size = max(ENTRIES // max(given.y.numel(), 1), 1)
        pieces = range(0, max(at.place.shape[1], 1), size)
        found = [self._process(j).predict(given, at[:, i : i + size]) for i in pieces]
        return torch.cat([m for m, _ in found], 1), torch.cat([s for _, s in found], 1)

    def _from_nearest(
        self, j: int, given: Observations, at: Inputs, skip: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Every target from its own nearest observations, without the `skip` first ones."""
        process, means, stds = self._process(j), [], []
        for b in range(len(given.y)):
            index = given.nearest(b, at.place[b], NEAREST + skip)[:, skip:]
            size = index.shape[0] if torch.is_grad_enabled() else 4096
            for i in range(0, max(len(index), 1), size):
                some = index[i : i + size]
                y = given.y[b][some]
                near = process.condition(given.inputs[b, some], y, torch.ones_like(y) > 0)
                mean, std = process.predict(near, at[b, i : i + size, None])
                means.append(mean[:, 0])
                stds.append(std[:, 0])
        shape = at.place.shape[:2]
        return torch.cat(means).view(shape), torch.cat(stds).view(shape)

    def _inputs(self, points: PointSet) -> Inputs:
        """Unit vectors in degrees for latitudes and longitudes, plain coordinates otherwise."""
        names = self.signature.coordinates
        columns = {name: points.x[..., i].double() for i, name in enumerate(names)}
        time = columns.pop("time", None)
        if {"lat", "lon"} <= set(columns):
            phi, turn = torch.deg2rad(columns["lat"]), torch.deg2rad(columns["lon"])
            place = torch.stack([phi.cos() * turn.cos(), phi.cos() * turn.sin(), phi.sin()], -1)
            place = torch.rad2deg(place)
        else:
            place = torch.stack(list(columns.values()), -1)
        features = place[..., :0]
        if self.features and points.features is not None:
            features = points.features[..., self.features].double()
        return Inputs(place, time, features)


@dataclass(frozen=True, eq=False)
class Observations:
    """A context that is too large to factorise."""

    inputs: Inputs
    y: Float[Tensor, "batch n"]
    mask: Bool[Tensor, "batch n"]

    def nearest(self, b: int, place: Float[Tensor, "m d"], number: int) -> Int[Tensor, "m k"]:
        """The nearest observations of batch element `b` to each place, nearest first."""
        rows = torch.nonzero(self.mask[b])[:, 0]
        if not len(rows):
            return rows.expand(len(place), 0)
        tree = KDTree(self.inputs.place[b][rows].detach().cpu().numpy())
        _, index = tree.query(place.detach().cpu().numpy(), min(number, len(rows)))
        index = index.reshape(len(place), -1)
        return rows[torch.from_numpy(index).to(rows.device)]


def _exp(log: Tensor) -> Tensor:
    return log.double().exp()


def _distance(a: Float[Tensor, "batch n d"], b: Float[Tensor, "batch m d"]) -> Tensor:
    """Euclidean distances, with a finite gradient where points coincide."""
    norms = a.square().sum(-1)[:, :, None] + b.square().sum(-1)[:, None]
    return ((norms - 2 * a @ b.transpose(1, 2)).clamp_min(0) + 1e-12).sqrt()


def _joined(a: PointSet, b: PointSet) -> PointSet:
    """The points of both, which have no masks."""
    assert a.y is not None
    assert b.y is not None
    features = None
    if a.features is not None and b.features is not None:
        features = torch.cat([a.features, b.features], 1)
    return PointSet(torch.cat([a.x, b.x], 1), torch.cat([a.y, b.y], 1), None, features)


def _extended(points: PointSet, columns: Tensor) -> PointSet:
    """With more features."""
    features = points.x[..., :0] if points.features is None else points.features
    dtype = torch.promote_types(points.x.dtype, features.dtype)
    return replace(points, features=torch.cat([features.to(dtype), columns.to(dtype)], -1))
