"""Stationary covariance functions (kernels) of Gaussian processes, and their spectra.

Kernels with a `LogUniform` length-scale and `OneOf` several kernels are random:
`kernel.sampled(generator)` is a definite one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from scipy.special import ive
from torch import Tensor


@dataclass(frozen=True)
class LogUniform:
    """A log-uniform random number, sampled for every task."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise ValueError(
                f"LogUniform({self.low}, {self.high}) is not a range of positive numbers; give the "
                "lower end first."
            )

    def sample(self, generator: torch.Generator) -> float:
        u = torch.rand((), generator=generator, dtype=torch.float64).item()
        return self.low * (self.high / self.low) ** u


Scale = float | LogUniform
LengthScale = Scale | tuple[Scale, ...]
"""One for all axes, or one for each."""


class Covariance(ABC):
    """A stationary covariance function."""

    @abstractmethod
    def sampled(self, generator: torch.Generator) -> Covariance:
        """The kernel with random length-scales replaced by samples."""

    @abstractmethod
    def covariance(
        self, a: Float[Tensor, "*batch n d"], b: Float[Tensor, "*batch m d"]
    ) -> Float[Tensor, "*batch n m"]:
        """Covariances of the function's values at `a` and at `b`, in double precision."""

    @abstractmethod
    def spectrum(self, waves: Sequence[Tensor], periods: Sequence[float]) -> Tensor:
        """Variances of the Fourier modes on a torus with these periods; they sum to `total`.

        `waves` holds integer wavenumbers, one tensor per axis that broadcast against each other.
        """

    @abstractmethod
    def periods(self, extent: Sequence[float], negligible: float) -> tuple[float, ...]:
        """Periods of a torus large enough that a box of this extent does not feel the wrapping.

        `negligible` is the share of the variance by which covariances may be wrong.
        """

    @abstractmethod
    def reach(self, axes: int, negligible: float) -> tuple[float, ...]:
        """The distance along each axis beyond which the correlation is `negligible`."""

    @property
    @abstractmethod
    def total(self) -> float:
        """Variance of the function."""


@dataclass(frozen=True)
class _Scaled(Covariance):
    """A kernel with length-scales and a variance."""

    length_scale: LengthScale
    variance: float = 1.0

    def __post_init__(self) -> None:
        scales = self.length_scale if isinstance(self.length_scale, tuple) else [self.length_scale]
        for s in scales:
            if not isinstance(s, LogUniform) and not 0 < s < math.inf:
                raise ValueError(f"length_scale={s}: must be positive.")
        if not 0 < self.variance < math.inf:
            raise ValueError(f"variance={self.variance}: must be positive.")

    def sampled(self, generator: torch.Generator) -> Covariance:
        def fixed(s: Scale) -> float:
            return s.sample(generator) if isinstance(s, LogUniform) else s

        scale = self.length_scale
        scales = tuple(map(fixed, scale)) if isinstance(scale, tuple) else fixed(scale)
        return replace(self, length_scale=scales)

    def scales(self, axes: int) -> tuple[float, ...]:
        scale = self.length_scale
        each = scale if isinstance(scale, tuple) else (scale,) * axes
        if len(each) != axes:
            raise ValueError(
                f"{len(each)} length-scales for {axes} axes; give one for all axes or one for each."
            )
        if any(isinstance(s, LogUniform) for s in each):
            raise ValueError(
                "The length-scale is a range; fix it first with kernel.sampled(generator)."
            )
        return each  # pyright: ignore[reportReturnType]

    @property
    def total(self) -> float:
        return self.variance


class _Isotropic(_Scaled):
    """A function of the distance divided by the length-scales."""

    def covariance(
        self, a: Float[Tensor, "*batch n d"], b: Float[Tensor, "*batch m d"]
    ) -> Float[Tensor, "*batch n m"]:
        scale = torch.tensor(self.scales(a.shape[-1]), dtype=torch.float64, device=a.device)
        a, b = a.double() / scale, b.double() / scale
        squares = a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2)
        squared = torch.addcmul(squares, a @ b.mT, a.new_tensor(-2.0)).clamp_min_(0.0)
        return self._of_squared_distance(squared).mul_(self.variance)

    def spectrum(self, waves: Sequence[Tensor], periods: Sequence[float]) -> Tensor:
        scales = self.scales(len(waves))
        squared = waves[0].new_zeros(())
        volume = 1.0
        for wave, period, scale in zip(waves, periods, scales, strict=True):
            squared = squared + (wave * (2 * math.pi * scale / period)).square()
            volume *= scale / period
        return self._density(squared, len(waves)) * (self.variance * volume)

    def periods(self, extent: Sequence[float], negligible: float) -> tuple[float, ...]:
        reach = self.reach(len(extent), negligible)
        return tuple(e + r for e, r in zip(extent, reach, strict=True))

    def reach(self, axes: int, negligible: float) -> tuple[float, ...]:
        return tuple(s * self._cutoff(negligible) for s in self.scales(axes))

    @abstractmethod
    def _of_squared_distance(self, squared: Tensor) -> Tensor: ...

    @abstractmethod
    def _density(self, squared: Tensor, axes: int) -> Tensor:
        """Spectral density at a squared angular frequency, for unit length-scales."""

    @abstractmethod
    def _cutoff(self, negligible: float) -> float:
        """The distance beyond which the correlation is negligible, for unit length-scales."""


@dataclass(frozen=True)
class SquaredExponential(_Isotropic):
    """exp(-d² / 2), the paper's kernel: infinitely smooth."""

    def _of_squared_distance(self, squared: Tensor) -> Tensor:
        return squared.mul_(-0.5).exp_()

    def _density(self, squared: Tensor, axes: int) -> Tensor:
        return (2 * math.pi) ** (axes / 2) * torch.exp(-0.5 * squared)

    def _cutoff(self, negligible: float) -> float:
        return math.sqrt(-2 * math.log(negligible))


@dataclass(frozen=True)
class Matern(_Isotropic):
    """Matérn with smoothness 1/2 (exponential, rough), 3/2 or 5/2."""

    smoothness: float = 2.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.smoothness not in (0.5, 1.5, 2.5):
            raise ValueError(f"smoothness={self.smoothness}: must be 0.5, 1.5 or 2.5.")

    def _of_squared_distance(self, squared: Tensor) -> Tensor:
        d = (2 * self.smoothness * squared).sqrt_()
        polynomial = {0.5: 1.0, 1.5: 1 + d, 2.5: 1 + d + d.square() / 3}[self.smoothness]
        return polynomial * torch.exp(-d)

    def _density(self, squared: Tensor, axes: int) -> Tensor:
        nu = self.smoothness
        log = (
            axes * math.log(2)
            + axes / 2 * math.log(math.pi)
            + math.lgamma(nu + axes / 2)
            - math.lgamma(nu)
            + nu * math.log(2 * nu)
        )
        return math.exp(log) * (2 * nu + squared).pow(-(nu + axes / 2))

    def _cutoff(self, negligible: float) -> float:
        low, high = 0.0, 1e4
        for _ in range(60):
            middle = (low + high) / 2
            at = self._of_squared_distance(torch.tensor(middle**2, dtype=torch.float64)).item()
            low, high = (middle, high) if at > negligible else (low, middle)
        return high


@dataclass(frozen=True)
class Periodic(_Scaled):
    """The product over axes of exp(-2 sin²(π d / period) / ℓ²)."""

    period: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.period < math.inf:
            raise ValueError(f"period={self.period}: must be positive.")

    def covariance(
        self, a: Float[Tensor, "*batch n d"], b: Float[Tensor, "*batch m d"]
    ) -> Float[Tensor, "*batch n m"]:
        total = 0.0
        for axis, scale in enumerate(self.scales(a.shape[-1])):
            apart = a[..., axis].double().unsqueeze(-1) - b[..., axis].double().unsqueeze(-2)
            total = total + (torch.sin(apart * (math.pi / self.period)) / scale).square()
        assert isinstance(total, Tensor)
        return self.variance * torch.exp(-2 * total)

    def spectrum(self, waves: Sequence[Tensor], periods: Sequence[float]) -> Tensor:
        del periods  # always the kernel's period
        variance = torch.tensor(self.variance, dtype=torch.float64)
        for wave, scale in zip(waves, self.scales(len(waves)), strict=True):
            bessel = ive(wave.abs().numpy(), 1 / scale**2)  # scaled, so that it cannot overflow
            variance = variance * torch.as_tensor(bessel)
        return variance

    def periods(self, extent: Sequence[float], negligible: float) -> tuple[float, ...]:
        del negligible  # exact on a torus with the kernel's period
        return (self.period,) * len(extent)

    def reach(self, axes: int, negligible: float) -> tuple[float, ...]:
        del negligible  # the correlation never falls off
        return (math.inf,) * axes


@dataclass(frozen=True)
class Sum(Covariance):
    """The sum of several kernels, for functions that vary on several scales."""

    kernels: tuple[Covariance, ...]

    def __post_init__(self) -> None:
        if not self.kernels:
            raise ValueError("Sum has no kernels; give at least one.")
        if any(isinstance(k, Periodic) for k in self.kernels):
            raise ValueError(
                "Sum cannot hold a periodic kernel, because all its kernels share one torus."
            )

    def sampled(self, generator: torch.Generator) -> Covariance:
        return Sum(tuple(k.sampled(generator) for k in self.kernels))

    def covariance(
        self, a: Float[Tensor, "*batch n d"], b: Float[Tensor, "*batch m d"]
    ) -> Float[Tensor, "*batch n m"]:
        total = self.kernels[0].covariance(a, b)
        for kernel in self.kernels[1:]:
            total += kernel.covariance(a, b)
        return total

    def spectrum(self, waves: Sequence[Tensor], periods: Sequence[float]) -> Tensor:
        return torch.stack([k.spectrum(waves, periods) for k in self.kernels]).sum(0)

    def periods(self, extent: Sequence[float], negligible: float) -> tuple[float, ...]:
        each = [k.periods(extent, negligible) for k in self.kernels]
        return tuple(map(max, zip(*each, strict=True)))

    def reach(self, axes: int, negligible: float) -> tuple[float, ...]:
        each = [k.reach(axes, negligible) for k in self.kernels]
        return tuple(map(max, zip(*each, strict=True)))

    @property
    def total(self) -> float:
        return sum(k.total for k in self.kernels)


@dataclass(frozen=True)
class OneOf:
    """One of several kernels for every task, all equally likely."""

    kernels: tuple[Covariance, ...]

    def __post_init__(self) -> None:
        if not self.kernels:
            raise ValueError("OneOf has no kernels; give at least one.")

    def sampled(self, generator: torch.Generator) -> Covariance:
        which = int(torch.randint(len(self.kernels), (), generator=generator))
        return self.kernels[which].sampled(generator)
