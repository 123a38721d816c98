"""Random functions with a given covariance, at any number of places, in the time of one fast
Fourier transform.

A stationary function on a torus is a sum of waves with independent random amplitudes, whose
variances are the kernel's spectrum. The torus is larger than the box of interest, so that its far
sides do not feel each other. The waves are summed by a transform on a lattice, and read off between
its points by quintic splines; what splines do to each wave is known and divided out beforehand.
What is left of an error is known too (`Lattice.error`), and the lattice is made fine enough.
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
"""Share of the variance that splines may get wrong."""
MISSING = 1e-4
"""Share of the variance in waves too short for the lattice:

It is made up for by independent noise.
"""
LARGEST = 2**20
"""Lattice points at most; the roughest kernels are left with more to be made up for."""
SPLINE = 6
"""Lattice points per axis that a value is read from."""


@dataclass(frozen=True)
class Lattice:
    """How functions of one kernel are drawn on one box."""

    low: tuple[float, ...]
    periods: tuple[float, ...]
    amplitude: Tensor
    missing: float
    error: float

    def draw(
        self, x: Float[Tensor, "batch n d"], generator: torch.Generator
    ) -> Float[Tensor, "batch n"]:
        """Independent functions, one per batch element, at that element's places."""
        batch, n, _ = x.shape
        pairs = (batch + 1) // 2
        shape = self.amplitude.shape
        normal = torch.randn(pairs, *shape, 2, generator=generator)
        modes = torch.view_as_complex(normal) * self.amplitude
        field = torch.fft.ifftn(modes, dim=tuple(range(1, modes.ndim)), norm="forward")
        functions = torch.view_as_real(field).movedim(-1, 1).flatten(0, 1)[:batch]  # two of each
        values = self._read(functions, x)
        if self.missing > 1e-12:
            rest = torch.randn(batch, n, generator=generator)
            values = values + math.sqrt(self.missing) * rest
        return values

    def _read(self, functions: Tensor, x: Tensor) -> Tensor:
        batch, n, axes = x.shape
        index = torch.zeros((batch, n, 1), dtype=torch.long)
        weight = torch.ones((batch, n, 1))
        for axis in range(axes):
            size = functions.shape[1 + axis]
            place = (x[..., axis].double() - self.low[axis]) * (size / self.periods[axis])
            first, w = _spline(place)
            along = (first.unsqueeze(-1) + torch.arange(SPLINE)) % size
            index = (index.unsqueeze(-1) * size + along.unsqueeze(-2)).flatten(-2)
            weight = (weight.unsqueeze(-1) * w.float().unsqueeze(-2)).flatten(-2)
        flat = functions.flatten(1)
        return (flat.gather(1, index.flatten(1)).view_as(weight) * weight).sum(-1)


@functools.lru_cache(maxsize=8)
def lattice(kernel: Covariance, box: tuple[tuple[float, float], ...]) -> Lattice:
    """The coarsest lattice with a negligible error, or the finest one allowed."""
    extent = [high - low for low, high in box]
    periods = kernel.periods(extent, NEGLIGIBLE)
    best: tuple[Tensor, float, float] | None = None
    for size in _sizes():
        longest = max(periods)
        shape = [max(8, _fast(math.ceil(size * p / longest))) for p in periods]
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
    """Of all modes; the variance of those beyond the lattice; and what splines get wrong."""
    waves = []
    for axis, size in enumerate(shape):
        wave = torch.fft.fftfreq(size, 1 / size, dtype=torch.float64)
        waves.append(wave.view(-1, *[1] * (len(shape) - axis - 1)))
    spectrum = kernel.spectrum(waves, periods)
    through = torch.ones((), dtype=torch.float64)
    wrong = torch.zeros((), dtype=torch.float64)
    for wave, size in zip(waves, shape, strict=True):
        turn = (wave / size).abs()
        through = through * torch.sinc(turn) ** SPLINE
        wrong = wrong + 2 * (turn / (1 - turn)) ** (2 * SPLINE)
    kept = spectrum * (wrong < 0.1)  # waves that splines cannot carry are left to the rest
    missing = max(0.0, kernel.total - kept.sum().item())
    error = (kept * wrong).sum().item() / kernel.total
    return (kept.sqrt() / through).float(), missing, error


def _spline(place: Tensor) -> tuple[Tensor, Tensor]:
    """The first of six lattice points around a place, and the weights of all of them."""
    whole = place.floor()
    t = place - whole
    weights = []
    for j in range(SPLINE):
        u = t + (SPLINE // 2 - 1 - j)  # distance from the j-th of the points, -3 to 3
        u = u.abs()
        total = torch.zeros_like(u)
        for k in range(SPLINE // 2 + 1):
            sign = (-1) ** k * math.comb(SPLINE, k) / math.factorial(SPLINE - 1)
            total = total + sign * (SPLINE / 2 - k - u).clamp_min(0.0) ** (SPLINE - 1)
        weights.append(total)
    return whole.long() - (SPLINE // 2 - 1), torch.stack(weights, -1)


def _sizes() -> Sequence[int]:
    return [_fast(round(16 * 2 ** (i / 2))) for i in range(40)]


def _fast(size: int) -> int:
    """The next even number that a Fourier transform likes."""
    candidates = (
        2 * 2**a * 3**b * 5**c
        for a, b, c in itertools.product(range(22), range(4), range(3))
        if 2 * 2**a * 3**b * 5**c >= size
    )
    return min(candidates)
