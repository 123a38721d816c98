"""Samples of stationary Gaussian processes at any points, by a fast Fourier transform.

A stationary function on a torus is a sum of waves with independent random amplitudes, whose
variances are the kernel's spectrum. The torus exceeds the box, so that opposite sides are not
correlated. An FFT sums the waves on a lattice and quintic B-splines interpolate between its points.
The amplitudes are divided by the response of the spline to each wave; the aliasing that remains is
known (`Lattice.error`), and the lattice is made fine enough for it to be negligible.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gridtnp.synthetic.covariances import Covariance

NEGLIGIBLE = 1e-6
"""Largest share of the variance that aliasing may cost."""
MISSING = 1e-4
"""Largest share of the variance in waves too short for the lattice, replaced by white noise."""
LARGEST = 2**20
"""Maximum number of lattice points; the roughest kernels exceed `MISSING` at this size."""
SPLINE = 6
"""Lattice points per axis that a value is interpolated from."""


@dataclass(frozen=True)
class Lattice:
    """Samples functions of one kernel on one box."""

    low: tuple[float, ...]
    periods: tuple[float, ...]
    amplitude: Tensor
    missing: float
    error: float

    def draw(
        self, x: Float[Tensor, "batch n d"], generator: torch.Generator
    ) -> Float[Tensor, "batch n"]:
        """Sample one function per batch element, at the points of that element."""
        batch, n, _ = x.shape
        pairs = (batch + 1) // 2
        shape = self.amplitude.shape
        normal = torch.randn(pairs, *shape, 2, generator=generator)
        modes = torch.view_as_complex(normal) * self.amplitude
        field = torch.fft.ifftn(modes, dim=tuple(range(1, modes.ndim)), norm="forward")
        # real and imaginary part are two independent functions
        functions = torch.view_as_real(field).movedim(-1, 1).flatten(0, 1)[:batch]
        values = self._interpolate(functions, x)
        if self.missing > 1e-12:
            noise = torch.randn(batch, n, generator=generator)
            values = values + math.sqrt(self.missing) * noise
        return values

    def _interpolate(self, functions: Tensor, x: Tensor) -> Tensor:
        batch, n, axes = x.shape
        index = torch.zeros((batch, n, 1), dtype=torch.long)
        weight = torch.ones((batch, n, 1))
        for axis in range(axes):
            size = functions.shape[1 + axis]
            position = (x[..., axis].double() - self.low[axis]) * (size / self.periods[axis])
            first, w = _spline(position)
            along = (first.unsqueeze(-1) + torch.arange(SPLINE)) % size
            index = (index.unsqueeze(-1) * size + along.unsqueeze(-2)).flatten(-2)
            weight = (weight.unsqueeze(-1) * w.float().unsqueeze(-2)).flatten(-2)
        flat = functions.flatten(1)
        return (flat.gather(1, index.flatten(1)).view_as(weight) * weight).sum(-1)


@functools.lru_cache(maxsize=8)
def lattice(kernel: Covariance, box: tuple[tuple[float, float], ...]) -> Lattice:
    """The coarsest lattice with a negligible error, or the finest of at most `LARGEST` points."""
    extent = [high - low for low, high in box]
    periods = kernel.periods(extent, NEGLIGIBLE)
    best: tuple[Tensor, float, float] | None = None
    for size in _sizes():
        longest = max(periods)
        shape = [max(8, _fft_size(math.ceil(size * p / longest))) for p in periods]
        if best is not None and math.prod(shape) > LARGEST:
            break
        best = _amplitudes(kernel, shape, periods)
        _, missing, error = best
        if missing <= MISSING * kernel.total and error <= NEGLIGIBLE:
            break
    assert best is not None
    return Lattice(tuple(low for low, _ in box), periods, *best)


def _amplitudes(
    kernel: Covariance, shape: Sequence[int], periods: Sequence[float]
) -> tuple[Tensor, float, float]:
    """Amplitudes of all modes, the variance missing on the lattice, and the aliasing error."""
    waves = []
    for axis, size in enumerate(shape):
        wave = torch.fft.fftfreq(size, 1 / size, dtype=torch.float64)
        waves.append(wave.view(-1, *[1] * (len(shape) - axis - 1)))
    spectrum = kernel.spectrum(waves, periods)
    response = torch.ones((), dtype=torch.float64)
    aliasing = torch.zeros((), dtype=torch.float64)
    for wave, size in zip(waves, shape, strict=True):
        frequency = (wave / size).abs()
        response = response * torch.sinc(frequency) ** SPLINE
        aliasing = aliasing + 2 * (frequency / (1 - frequency)) ** (2 * SPLINE)
    kept = spectrum * (aliasing < 0.1)  # splines cannot represent shorter waves
    missing = max(0.0, kernel.total - kept.sum().item())
    error = (kept * aliasing).sum().item() / kernel.total
    return (kept.sqrt() / response).float(), missing, error


def _spline(position: Tensor) -> tuple[Tensor, Tensor]:
    """The first of the lattice points around a position, and the B-spline weights of all."""
    floor = position.floor()
    t = position - floor
    weights = []
    for j in range(SPLINE):
        u = t + (SPLINE // 2 - 1 - j)  # distance from the j-th point, -3 to 3
        u = u.abs()
        total = torch.zeros_like(u)
        for k in range(SPLINE // 2 + 1):
            sign = (-1) ** k * math.comb(SPLINE, k) / math.factorial(SPLINE - 1)
            total = total + sign * (SPLINE / 2 - k - u).clamp_min(0.0) ** (SPLINE - 1)
        weights.append(total)
    return floor.long() - (SPLINE // 2 - 1), torch.stack(weights, -1)


def _sizes() -> Sequence[int]:
    return [_fft_size(round(16 * 2 ** (i / 2))) for i in range(40)]


def _fft_size(size: int) -> int:
    """The next even size with small prime factors, which FFTs are fast for."""
    candidates = (
        2 * 2**a * 3**b * 5**c
        for a, b, c in itertools.product(range(22), range(4), range(3))
        if 2 * 2**a * 3**b * 5**c >= size
    )
    return min(candidates)
