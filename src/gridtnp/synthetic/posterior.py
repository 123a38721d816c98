"""The exact answer to a synthetic task: a Gaussian process's own posterior, in double precision.

One Cholesky factorisation of the context's covariance, seconds for ten thousand points. For more
points than memory holds, `reach` looks at the context near each target only: kernels that fall off
make that exact to any precision wanted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import psutil
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal

from gridtnp.synthetic.covariances import Covariance


def posterior(
    kernel: Covariance,
    noise: float,
    x: Float[Tensor, "n d"],
    y: Tensor,
    at: Float[Tensor, "m d"],
    *,
    reach: float | None = None,
) -> Normal:
    """The predictive distribution of noisy values `at` some places, given noisy values `y` at `x`.

    With `reach`, values farther from a target than that along any axis are left out.
    """
    if noise <= 0:
        raise ValueError(f"The noise must have a positive standard deviation, got {noise}.")
    x, y, at = x.double(), y.double(), at.double()
    mean = torch.zeros(len(at), dtype=torch.float64)
    variance = torch.full((len(at),), kernel.total, dtype=torch.float64)
    for targets, near in _groups(x, at, reach):
        if len(near) == 0:
            continue
        m, explained = _explain(kernel, noise, x[near], y[near], at[targets])
        mean[targets] = m
        variance[targets] -= explained
    return Normal(mean, (variance.clamp_min(0.0) + noise**2).sqrt())


def finite_rank_posterior(
    basis: Float[Tensor, "n r"],
    noise: float,
    y: Tensor,
    at: Float[Tensor, "m r"],
) -> Normal:
    """The same for functions `basis @ weights` with independent standard normal weights."""
    basis, at = basis.double(), at.double()
    precision = torch.eye(basis.shape[1], dtype=torch.float64) + basis.mT @ basis / noise**2
    root = torch.linalg.cholesky(precision)
    weights = torch.cholesky_solve((basis.mT @ y.double() / noise**2).unsqueeze(-1), root)
    spread = torch.linalg.solve_triangular(root, at.mT, upper=False)
    variance = spread.square().sum(0) + noise**2
    return Normal((at @ weights).squeeze(-1), variance.sqrt())


def _explain(
    kernel: Covariance, noise: float, x: Tensor, y: Tensor, at: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean, and how much of the variance the observations take away."""
    _check_memory(len(x), len(at))
    covariance = kernel.covariance(x, x)
    covariance.diagonal().add_(noise**2)
    root, failed = torch.linalg.cholesky_ex(covariance)
    del covariance
    if failed:
        raise ValueError(
            f"The covariance of {len(x):,} points is not positive definite in double precision: "
            f"the noise {noise:g} is too small for points this close together; "
            f"use at least {math.sqrt(kernel.total * len(x) * 1e-15):.0e}, or fewer points."
        )
    across = torch.linalg.solve_triangular(root, kernel.covariance(x, at), upper=False)
    values = torch.linalg.solve_triangular(root, y.unsqueeze(-1), upper=False)
    return (across.mT @ values).squeeze(-1), across.square().sum(0)


def _check_memory(n: int, m: int) -> None:
    free = psutil.virtual_memory().available
    if 8 * n * (2.5 * n + 2 * m) > free:
        fits = int((math.sqrt(m**2 + 2.5 * free / 8) - m) / 2.5)
        raise ValueError(
            f"The exact posterior of {n:,} context points needs "
            f"{8 * n * (2.5 * n + 2 * m) / 1e9:.0f} "
            f"GB, and {free / 1e9:.0f} GB are free: up to {fits:,} points fit; pass reach=… to use "
            "those near each target only."
        )


def _groups(x: Tensor, at: Tensor, reach: float | None) -> Sequence[tuple[Tensor, Tensor]]:
    """Targets that lie together, with the observations that any of them reaches."""
    if reach is None:
        return [(torch.arange(len(at)), torch.arange(len(x)))]
    block = torch.floor(at / reach).long()
    _, which = block.unique(dim=0, return_inverse=True)
    groups = []
    for g in range(int(which.max()) + 1 if len(at) else 0):
        targets = (which == g).nonzero().squeeze(-1)
        low, high = at[targets].amin(0) - reach, at[targets].amax(0) + reach
        near = ((x >= low) & (x <= high)).all(-1).nonzero().squeeze(-1)
        groups.append((targets, near))
    return groups
