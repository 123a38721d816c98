"""Exact posteriors of Gaussian processes, in double precision: the best answer to a task.

One Cholesky factorisation of the context's covariance takes seconds for ten thousand points. Where
it does not fit into memory, `reach` restricts the context to points near each target; the error
falls with the kernel.
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
    """Predictive distribution of noisy values `at` some points, given noisy values `y` at `x`.

    Observations farther from a target than `reach` along any axis are left out.
    """
    if noise <= 0:
        raise ValueError(f"noise={noise}: the standard deviation must be positive.")
    x, y, at = x.double(), y.double(), at.double()
    mean = torch.zeros(len(at), dtype=torch.float64)
    variance = torch.full((len(at),), kernel.total, dtype=torch.float64)
    for targets, near in _groups(x, at, reach):
        if len(near) == 0:
            continue
        m, explained = _condition(kernel, noise, x[near], y[near], at[targets])
        mean[targets] = m
        variance[targets] -= explained
    return Normal(mean, (variance.clamp_min(0.0) + noise**2).sqrt())


def finite_rank_posterior(
    basis: Float[Tensor, "n r"],
    noise: float,
    y: Tensor,
    at: Float[Tensor, "m r"],
) -> Normal:
    """Predictive distribution of functions `basis @ weights` with standard normal weights."""
    basis, at = basis.double(), at.double()
    precision = torch.eye(basis.shape[1], dtype=torch.float64) + basis.mT @ basis / noise**2
    root = torch.linalg.cholesky(precision)
    weights = torch.cholesky_solve((basis.mT @ y.double() / noise**2).unsqueeze(-1), root)
    spread = torch.linalg.solve_triangular(root, at.mT, upper=False)
    variance = spread.square().sum(0) + noise**2
    return Normal((at @ weights).squeeze(-1), variance.sqrt())


def _condition(
    kernel: Covariance, noise: float, x: Tensor, y: Tensor, at: Tensor
) -> tuple[Tensor, Tensor]:
    """Posterior mean, and the variance that the observations explain."""
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
            f"{8 * n * (2.5 * n + 2 * m) / 1e9:.0f} GB, but {free / 1e9:.0f} GB are free; use at "
            f"most {fits:,} points, or pass reach= to use only those near each target."
        )


def _groups(x: Tensor, at: Tensor, reach: float | None) -> Sequence[tuple[Tensor, Tensor]]:
    """Neighbouring targets, with the observations within reach of any of them."""
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
