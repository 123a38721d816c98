"""Kriging of normal scores: for rain, wind speed, counts and whatever else is not Gaussian.

Values become standard normal scores by their empirical distribution in training, scores are
predicted by regression kriging, and the predicted normal distribution goes back through the same
curve. Reading errors are not used. Values with a point mass, such as no rain, are censored scores:
all that is known is that they are below (or between) some numbers. A distribution that comes back
has these point masses too.

`approximate` replaces censored scores by noisy ones that say the same (expectation propagation:
Minka, 2001; Rasmussen and Williams, 2006, section 3.6), and `impute` draws them from their exact
distribution (Gibbs sampling), so that parameters can be fitted to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float

from gridtnp.baselines.interpolation import DistributionBaseline, Points, RawTask
from gridtnp.baselines.kriging import JITTER, KrigingParameters, covariance_at
from gridtnp.baselines.regression import RegressionKriging, Regressors
from gridtnp.distributions.marginals import Marginal
from gridtnp.distributions.transformed import NormalScores, TransformedNormal
from gridtnp.distributions.truncated import Bounds, draw, draw_one, truncated_moments

SWEEPS = 40
"""Most sweeps of expectation propagation."""
CONVERGED = 1e-4
"""Change of a posterior mean, in standard deviations of the process, that ends it."""
DAMPING = 0.8
LEAST = 1e-6
"""Least precision of an observation that says almost nothing."""
GROUP = 400
"""Observations that are treated together; more are split by place."""
DRAWS = 12
"""Sweeps of Gibbs sampling."""
POINTS = 300
"""Most observations, and most targets, of a training task that parameters are fitted to."""
REFITS = 2
"""Times that parameters are fitted again, to scores drawn with the last ones."""


@dataclass(frozen=True, eq=False)
class NormalScoreKriging(DistributionBaseline):
    """Regression kriging of scores, and the curve of every variable."""

    curves: tuple[NormalScores, ...]
    inner: RegressionKriging

    @classmethod
    def fit(
        cls,
        raw_tasks: Iterable[RawTask],
        values: Sequence[Float[np.ndarray, " n"]],
        names: Sequence[str],
        regressors: Regressors,
        *,
        drift: bool,
        observed: bool,
    ) -> NormalScoreKriging:
        """`values` are those of every variable in training; the rest as for regression kriging."""
        curves = []
        for name, own in zip(names, values, strict=True):
            try:
                curves.append(NormalScores.fit(own))
            except ValueError as error:
                raise ValueError(f"{name!r} never varies in training. {error}") from error
        rng = np.random.default_rng(0)
        tasks = [_subset(task, rng) for task in raw_tasks]
        made, inner = None, None
        for _ in range(1 + REFITS):
            scored = [_scored(task, curves, made, rng) for task in tasks]
            inner = RegressionKriging.fit(scored, names, regressors, drift=drift, observed=observed)
            made = cls(tuple(curves), inner)
            if all(len(curve.masses) == 0 for curve in curves):
                break  # every score is known
        assert made is not None
        return made

    def notes(self) -> tuple[str, ...]:
        return self.inner.notes()

    def marginals(self, raw_task: RawTask) -> tuple[Marginal, ...]:
        mean, std = self._scores(raw_task)
        pairs = zip(self.curves, mean.T, std.T, strict=True)
        return tuple(
            TransformedNormal(torch.from_numpy(m.copy()), torch.from_numpy(s.copy()), curve)
            for curve, m, s in pairs
        )

    def _scores(self, raw_task: RawTask) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the scores at the targets."""
        kriging, regression = self.inner.kriging, self.inner.regression
        trend = regression.predict(raw_task, raw_task.targets)
        if kriging is None:
            return trend, np.broadcast_to(regression.rmse, trend.shape)
        here = regression.predict(raw_task, raw_task.observed)
        values, extra = np.full(here.shape, np.nan), np.zeros(here.shape)
        x = kriging.inputs(raw_task, raw_task.observed)
        for v, curve in enumerate(self.curves):
            known = np.isfinite(raw_task.values[:, v])
            low, high = (end - here[known, v] for end in curve.interval(raw_task.values[known, v]))
            found = approximate(kriging.processes[v], x[known], low, high)
            values[known, v], extra[known, v] = found
        residual, std = kriging.predict(replace(raw_task, values=values, extra=extra))
        assert std is not None
        return trend + residual, std


def _subset(task: RawTask, rng: np.random.Generator) -> RawTask:
    """At most `POINTS` observations and targets."""
    observed, targets = (
        np.sort(rng.permutation(len(points.lat))[:POINTS])
        for points in (task.observed, task.targets)
    )
    return replace(
        task,
        observed=task.observed.at(observed),
        values=task.values[observed],
        targets=task.targets.at(targets),
        truth=task.truth[targets],
        extra=None,
        truth_error=None,
    )


def _scored(
    task: RawTask,
    curves: Sequence[NormalScores],
    fitted: NormalScoreKriging | None,
    rng: np.random.Generator,
) -> RawTask:
    """The task in scores; those of point masses are drawn, given all others if something is
    fitted.
    """
    number, values = len(task.values), np.concatenate([task.values, task.truth])
    scores = np.full(values.shape, np.nan)
    for v, curve in enumerate(curves):
        known = np.isfinite(values[:, v])
        low, high = curve.interval(values[known, v])
        kriging = None if fitted is None else fitted.inner.kriging
        if fitted is None or kriging is None:
            zero = np.zeros(len(low))
            drawn = draw(zero, zero + 1, low, high, rng)
            scores[known, v] = np.where(low == high, low, drawn)
            continue
        both = Points.concatenate(task.observed, task.targets).at(np.flatnonzero(known))
        trend = fitted.inner.regression.predict(task, both)[:, v]
        x = kriging.inputs(task, both)
        found = impute(kriging.processes[v], x, low - trend, high - trend, rng)
        scores[known, v] = trend + found
    return replace(task, values=scores[:number], truth=scores[number:])


# ---- censored scores ---------------------------------------------------------------------------


def approximate(
    process: KrigingParameters, x: Float[np.ndarray, "n d"], low: Bounds, high: Bounds
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Values, and their variance beyond the noise of all, in place of intervals."""
    values, extra = low.copy(), np.zeros(len(low))
    if not (high > low).any():
        return values, extra
    for some in _groups(x):
        values[some], extra[some] = _propagate(process, x[some], low[some], high[some])
    return values, extra


def _propagate(
    process: KrigingParameters, x: Float[np.ndarray, "n d"], low: Bounds, high: Bounds
) -> tuple[np.ndarray, np.ndarray]:
    a, b = ((bound - process.mean) / process.std for bound in (low, high))
    k, noise = covariance_at(process, x).numpy(), process["noise"] ** 2
    k[np.diag_indices(len(k))] += JITTER
    censored = b > a
    precision = np.where(censored, LEAST, 1 / noise)
    shift = np.where(censored, 0.0, a / noise)  # precision times mean
    last = np.full(len(a), np.inf)
    for _ in range(SWEEPS):
        mean, variance = _posterior(k, precision, shift)
        if np.abs(mean - last).max() < CONVERGED:
            break
        last = mean
        # what all other observations say about each: the cavity
        rest = np.maximum(1 / variance - precision, LEAST)
        around, spread = (mean / variance - shift) / rest, 1 / rest
        total = spread + noise
        first, second = truncated_moments(around, np.sqrt(total), a, b)
        new_mean = around + spread / total * (first - around)
        new_variance = spread - spread**2 / total * (1 - second / total)
        wanted = np.clip(1 / np.maximum(new_variance, 1e-12) - rest, LEAST, 1 / noise)
        wanted_shift = new_mean / new_variance - around * rest
        precision = np.where(censored, precision + DAMPING * (wanted - precision), precision)
        shift = np.where(censored, shift + DAMPING * (wanted_shift - shift), shift)
    value = np.where(censored, shift / precision, a)
    extra = np.where(censored, np.maximum(1 / precision - noise, 0.0), 0.0)
    return value * process.std + process.mean, extra * process.std**2


def _posterior(
    k: np.ndarray, precision: np.ndarray, shift: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the process at its observations, of some precision each."""
    root = np.sqrt(precision)
    half = np.linalg.cholesky(np.eye(len(k)) + root[:, None] * k * root)
    solved = torch.linalg.solve_triangular(
        torch.from_numpy(half), torch.from_numpy(root[:, None] * k), upper=False
    ).numpy()
    variance = np.maximum(np.diag(k) - (solved**2).sum(0), 1e-12)
    return k @ shift - solved.T @ (solved @ shift), variance


def impute(
    process: KrigingParameters,
    x: Float[np.ndarray, "n d"],
    low: Bounds,
    high: Bounds,
    rng: np.random.Generator,
) -> Float[np.ndarray, " n"]:
    """Values drawn between the bounds, jointly, given those that are known."""
    a, b = ((bound - process.mean) / process.std for bound in (low, high))
    found = a.copy()
    for some in _groups(x):
        known = np.isfinite(a[some]) & (a[some] == b[some])
        k = covariance_at(process, x[some]).numpy()
        k[np.diag_indices(len(k))] += process["noise"] ** 2 + JITTER
        inverse = np.linalg.inv(k)
        spread = 1 / np.sqrt(np.diag(inverse))
        size = np.sqrt(np.diag(k))
        ends = a[some], b[some]
        y = np.where(known, a[some], draw(np.zeros(len(k)), size, *ends, rng))
        censored = np.flatnonzero(~known)
        for _ in range(DRAWS):
            for i, level in zip(censored, rng.random(len(censored)), strict=True):
                centre = y[i] - inverse[i] @ y * spread[i] ** 2
                y[i] = draw_one(centre, spread[i], ends[0][i], ends[1][i], level)
        found[some] = y
    return np.where(high > low, found * process.std + process.mean, low)


def _groups(x: np.ndarray) -> list[np.ndarray]:
    """Neighbouring observations, at most `GROUP` together: halves along the longest axis."""
    waiting, found = [np.arange(len(x))], []
    while waiting:
        some = waiting.pop()
        if len(some) <= GROUP:
            found.append(some)
            continue
        axis = int(np.ptp(x[some, :4], axis=0).argmax())
        order = some[np.argsort(x[some, axis], kind="stable")]
        waiting += np.array_split(order, 2)
    return [some for some in found if len(some)]
