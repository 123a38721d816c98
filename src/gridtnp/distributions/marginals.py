"""`Marginal`: the distribution of one variable at every point, possibly with point masses.

A model that is not Gaussian predicts a `Product` of marginals, one for each target variable. Where
a distribution has point masses, such as rain at zero, `log_prob` is the logarithm of the mass there
and of the density elsewhere.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints

NODES = 24
"""Quantiles on each side of the observation in a CRPS that has no closed form."""


class Marginal(Distribution):
    """One number per point. `parameters` have the shape of the points, some one axis more."""

    has_rsample = True
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # pyright: ignore
    limits: tuple[float, float] = (-np.inf, np.inf)
    """The lowest and the highest possible value."""
    is_gaussian = False

    def __init__(self, **parameters: Tensor) -> None:
        self.parameters = parameters
        super().__init__(self._points_shape(), validate_args=False)

    def _points_shape(self) -> torch.Size:
        return next(iter(self.parameters.values())).shape

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor: ...

    @abstractmethod
    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ value)."""

    @abstractmethod
    def icdf(self, value: Tensor) -> Tensor:
        """The lowest y with P(Y ≤ y) ≥ value."""

    def below(self, value: Tensor) -> Tensor:
        """P(Y < value), which differs from the CDF at point masses."""
        return torch.where(self.is_mass(value), self._mass_below(value), self.cdf(value))

    def is_mass(self, value: Tensor) -> Tensor:
        """True where the value has a probability rather than a density."""
        return torch.zeros_like(value, dtype=torch.bool)

    def _mass_below(self, value: Tensor) -> Tensor:
        return (self.cdf(value) - self.log_prob(value).exp()).clamp_min(0)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients by implicit differentiation of the CDF."""
        shape = torch.Size(sample_shape) + self.batch_shape
        first = next(iter(self.parameters.values()))
        p = torch.rand(shape, dtype=torch.float64, device=first.device)
        with torch.no_grad():
            drawn = self.icdf(p.clamp(1e-12, 1 - 1e-12))
            density = self.log_prob(drawn).exp()
        if not torch.is_grad_enabled():
            return drawn
        level = self.cdf(drawn)
        moved = drawn - (level - level.detach()) / density.clamp_min(1e-30)
        return torch.where(self.is_mass(drawn), drawn, moved)

    def crps(self, value: Tensor) -> Tensor:
        """The continuous ranked probability score, by Gauss quadrature over quantiles.

        It is twice the integral of the quantile loss, in two parts that meet at the observation.
        """
        return self.crps_above(value, -np.inf)

    def crps_above(self, value: Tensor, threshold: float) -> Tensor:
        """The threshold-weighted CRPS: of what lies above the threshold only.

        It is the CRPS of max(Y, threshold) (Allen, Ginsbourger and Ziegel, 2023).
        """
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        # quadratic in the nodes near 0 and 1, where quantiles may grow without limit
        position, weight = (nodes + 1) / 2, weights / 2
        weight = weight * 6 * position * (1 - position)
        position = position**2 * (3 - 2 * position)
        y = value.double().clamp_min(threshold)
        total = torch.zeros_like(y)
        for start, end in pairwise(self._kinks(value.double(), threshold)):
            for x, w in zip(position.tolist(), weight.tolist(), strict=True):
                p = (start + (end - start) * x).clamp(max=1 - 1e-13)
                q = self.icdf(p).double().clamp_min(threshold)
                loss = torch.maximum(p * (y - q), (1 - p) * (q - y))
                total = total + 2 * w * (end - start) * loss
        return total

    def _kinks(self, value: Tensor, threshold: float) -> Tensor:
        """Levels from 0 to 1 between which the quantile loss is smooth."""
        low, high = self.limits
        found = [torch.zeros_like(value), self.cdf(value), torch.ones_like(value)]
        if math.isfinite(threshold):
            found.append(self.cdf(torch.full_like(value, threshold)))
        if math.isfinite(low):
            found.append(self.cdf(torch.full_like(value, low)))
        if math.isfinite(high):
            found.append(self.below(torch.full_like(value, high)))
        return torch.stack(found).double().sort(0).values

    def corrects(self, mean: Tensor, std: Tensor) -> Marginal:  # noqa: ARG002
        """This distribution as a correction of a Gaussian prior in the same units.

        A network that says nothing predicts the prior, as far as a distribution of this kind can
        have its mean and standard deviation.
        """
        return self

    @property
    def corrects_prior(self) -> bool:
        """Whether `corrects` depends on the prior; classes, for example, have none."""
        return type(self).corrects is not Marginal.corrects

    def map(self, change: Callable[[Tensor], Tensor]) -> Marginal:
        """The same distribution with changed parameters, such as at some of the points."""
        return self._with({name: change(value) for name, value in self.parameters.items()})

    def _with(self, parameters: dict[str, Tensor]) -> Marginal:
        return type(self)(**parameters)


class Gaussian(Marginal):
    """Normal distribution."""

    is_gaussian = True

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        self.normal = Normal(loc, scale, validate_args=False)
        super().__init__(loc=loc, scale=scale)

    @property
    def mean(self) -> Tensor:
        return self.normal.mean

    @property
    def variance(self) -> Tensor:
        return self.normal.variance

    @property
    def stddev(self) -> Tensor:
        return self.normal.stddev

    def log_prob(self, value: Tensor) -> Tensor:
        return self.normal.log_prob(value)

    def cdf(self, value: Tensor) -> Tensor:
        return torch.special.ndtr((value - self.normal.loc) / self.normal.scale)

    def icdf(self, value: Tensor) -> Tensor:
        return self.normal.icdf(value)

    def crps(self, value: Tensor) -> Tensor:
        return self.normal.scale * _standard_crps((value - self.normal.loc) / self.normal.scale)


class Scaled(Marginal):
    """`shift + scale * Y`: a distribution of normalised values in the units of the data."""

    def __init__(self, inner: Marginal, shift: float, scale: float) -> None:
        self.inner, self.shift, self.scale = inner, shift, scale
        self.limits = (shift + scale * inner.limits[0], shift + scale * inner.limits[1])
        super().__init__(**inner.parameters)

    def _points_shape(self) -> torch.Size:
        return self.inner.batch_shape

    def _normalised(self, value: Tensor) -> Tensor:
        return (value - self.shift) / self.scale

    @property
    def mean(self) -> Tensor:
        return self.shift + self.scale * self.inner.mean

    @property
    def variance(self) -> Tensor:
        return self.scale**2 * self.inner.variance

    def log_prob(self, value: Tensor) -> Tensor:
        found = self.inner.log_prob(self._normalised(value))
        return torch.where(self.is_mass(value), found, found - np.log(self.scale))

    def cdf(self, value: Tensor) -> Tensor:
        return self.inner.cdf(self._normalised(value))

    def below(self, value: Tensor) -> Tensor:
        return self.inner.below(self._normalised(value))

    def crps_above(self, value: Tensor, threshold: float) -> Tensor:
        level = (threshold - self.shift) / self.scale
        return self.scale * self.inner.crps_above(self._normalised(value), level)

    def icdf(self, value: Tensor) -> Tensor:
        return self.shift + self.scale * self.inner.icdf(value)

    def is_mass(self, value: Tensor) -> Tensor:
        return self.inner.is_mass(self._normalised(value))

    def crps(self, value: Tensor) -> Tensor:
        return self.scale * self.inner.crps(self._normalised(value))

    def _with(self, parameters: dict[str, Tensor]) -> Marginal:
        return Scaled(self.inner._with(parameters), self.shift, self.scale)


class Product(Distribution):
    """Outputs with distributions of different kinds; the last axis is the output.

    They are independent, but for pairs of normal ones: `correlations[j]` is that of j - 1 and j.
    `log_prob` of the second one is then given the first, so that their sum is the joint density.
    """

    has_rsample = True
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # pyright: ignore

    def __init__(
        self, outputs: Iterable[Marginal], correlations: Mapping[int, Tensor] | None = None
    ) -> None:
        self.outputs, self.correlations = tuple(outputs), dict(correlations or {})
        shape = (*self.outputs[0].batch_shape, len(self.outputs))
        super().__init__(torch.Size(shape), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real

    @property
    def mean(self) -> Tensor:
        return torch.stack([output.mean for output in self.outputs], -1)

    @property
    def variance(self) -> Tensor:
        return torch.stack([output.variance for output in self.outputs], -1)

    @property
    def stddev(self) -> Tensor:
        return torch.stack([output.stddev for output in self.outputs], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        found = self._each("log_prob", value)
        if not self.correlations:
            return found
        columns = list(found.unbind(-1))
        for j, correlation in self.correlations.items():
            first, second = self.outputs[j - 1 : j + 1]
            z = (value[..., j - 1] - first.mean) / first.stddev
            scale = second.stddev * (1 - correlation**2).sqrt()
            given = Gaussian(second.mean + second.stddev * correlation * z, scale)
            columns[j] = given.log_prob(value[..., j])
        return torch.stack(columns, -1)

    def cdf(self, value: Tensor) -> Tensor:
        return self._each("cdf", value)

    def icdf(self, value: Tensor) -> Tensor:
        return self._each("icdf", value)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = [output.rsample(sample_shape) for output in self.outputs]
        for j, correlation in self.correlations.items():
            pair = self.outputs[j - 1 : j + 1]
            first, own = (
                (y - output.mean) / output.stddev
                for y, output in zip(drawn[j - 1 : j + 1], pair, strict=True)
            )
            drawn[j] = pair[1].mean + pair[1].stddev * _correlated(first, own, correlation)
        return torch.stack(drawn, -1)

    def _each(self, method: str, value: Tensor) -> Tensor:
        values = value.expand(*value.shape[:-1], len(self.outputs)) if value.dim() else value
        parts = values.unbind(-1) if value.dim() else [values] * len(self.outputs)
        pairs = zip(self.outputs, parts, strict=True)
        return torch.stack([getattr(output, method)(part) for output, part in pairs], -1)


def concatenate(pieces: Sequence[Marginal]) -> Marginal:
    """The points of several distributions of the same kind, along the first axis."""
    first = pieces[0]
    joined = {k: torch.cat([piece.parameters[k] for piece in pieces]) for k in first.parameters}
    return first._with(joined)


def outputs_of(distribution: Distribution) -> tuple[Marginal, ...]:
    """The marginals of what a network predicts; its last axis is the output."""
    if isinstance(distribution, Product):
        return distribution.outputs
    if isinstance(distribution, Normal):
        pairs = zip(distribution.loc.unbind(-1), distribution.scale.unbind(-1), strict=True)
        return tuple(Gaussian(loc, scale) for loc, scale in pairs)
    raise TypeError(
        f"The network predicts {type(distribution).__name__}, whose outputs are not known; return "
        "a normal distribution, or a Product of marginals."
    )


def of_readings(distribution: Distribution, error: Tensor | None) -> Distribution:
    """The distribution of readings with some error (standard deviation); the last axis is the
    output.

    The errors of normal outputs are added to their variance; others stay as they are.
    """
    if error is None:
        return distribution
    if isinstance(distribution, Normal):
        scale = torch.hypot(distribution.scale, error.to(distribution.scale))
        return Normal(distribution.loc, scale, validate_args=False)
    outputs, correlations = list(outputs_of(distribution)), {}
    for j, output in enumerate(outputs):
        if output.is_gaussian:
            outputs[j] = Gaussian(output.mean, torch.hypot(output.stddev, error[..., j]))
    for j, correlation in correlations_of(distribution).items():
        before = outputs_of(distribution)[j - 1 : j + 1]
        pairs = zip(before, outputs[j - 1 : j + 1], strict=True)
        first, second = (old.stddev / new.stddev for old, new in pairs)
        correlations[j] = correlation * first * second
    return Product(outputs, correlations)


def moments(outputs: Sequence[Marginal]) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations in double precision; the last axis is the output."""
    mean, std = (
        torch.stack([getattr(output, k).double().cpu() for output in outputs], -1).numpy()
        for k in ("mean", "stddev")
    )
    return mean, std


def from_normal(distribution: Distribution, normal: Tensor) -> Tensor:
    """Standard normal numbers to samples by quantiles: a Gaussian copula of the outputs."""
    if isinstance(distribution, Normal):
        return distribution.mean + distribution.stddev * normal
    each = list(normal.unbind(-1))
    for j, correlation in correlations_of(distribution).items():
        each[j] = _correlated(each[j - 1], each[j], correlation)
    pairs = zip(outputs_of(distribution), each, strict=True)
    return torch.stack([_from_normal(output, z) for output, z in pairs], -1)


def correlations_of(distribution: Distribution) -> dict[int, Tensor]:
    """Correlations of pairs of normal outputs, by the number of the second one."""
    return distribution.correlations if isinstance(distribution, Product) else {}


def _correlated(first: Tensor, own: Tensor, correlation: Tensor) -> Tensor:
    """Standard normal numbers with some correlation to the first ones."""
    return correlation * first + (1 - correlation**2).sqrt() * own


def _from_normal(output: Marginal, normal: Tensor) -> Tensor:
    if output.is_gaussian:
        return output.mean + output.stddev * normal
    return output.icdf(torch.special.ndtr(normal.double()).clamp(1e-12, 1 - 1e-12)).to(normal)


def positive_part(mean: Tensor, std: Tensor) -> Tensor:
    """The mean of max(Y, 0) for a normal variable Y, but not quite zero."""
    z = mean / std
    density = torch.exp(-0.5 * z**2) / (2 * np.pi) ** 0.5
    return (std * density + mean * torch.special.ndtr(z)).clamp_min(1e-3)


def logit(share: Tensor) -> Tensor:
    """The logit of a share between 0 and 1, at most 4 in size."""
    return torch.logit(share.clamp(0.018, 0.982))


def _standard_crps(z: Tensor) -> Tensor:
    """CRPS of a standard normal forecast."""
    density = torch.exp(-0.5 * z**2) / (2 * np.pi) ** 0.5
    return z * (2 * torch.special.ndtr(z) - 1) + 2 * density - np.pi**-0.5
