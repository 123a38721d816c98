"""How well candidate covariances predict every observation from its neighbours.

The scores of a fixed set of candidates outline the likelihood of length-scale, smoothness, noise
and anisotropy. They cost one small Cholesky factorisation per observation and candidate, whatever
the number of observations, and are what the network infers the covariance from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

RANKS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 15, 21, 30)
"""Which neighbours predict an observation: the nearest, and fewer of those farther away."""
LENGTHS = (0.5, 1.2, 3.0, 7.0, 16.0, 40.0)
NOISES = (0.001, 0.03, 0.3)
"""Variances, relative to that of the process."""
LEVEL = 2.0
"""Prior variance of the level."""
STRETCH = math.sqrt(2.0)
"""Directional candidates vary this much faster along one direction, and slower across it."""
DIRECTED = ((2.0, 0.03), (6.0, 0.03))
"""Length-scale and noise of the directional candidates."""
DIRECTIONS = 4
"""Along the first axis, the second, and the two diagonals."""
PLAIN = 2 * len(LENGTHS) * len(NOISES)
CANDIDATES = PLAIN + DIRECTIONS * len(DIRECTED)
PIECE = 2**13
"""Observations that are profiled at once."""


@dataclass(frozen=True, eq=False)
class Profile:
    """Per observation and candidate: standardised error, and log of the standard deviation.

    The process has the same variance as the values, so errors are to be compared with `scale`.
    """

    error: Float[Tensor, "batch n c"]
    log_std: Float[Tensor, "batch n c"]
    log_scale: Float[Tensor, "batch c"]
    """Of the errors, in each task."""
    score: Float[Tensor, "batch c"]
    """Mean log-likelihood per observation, with the best scale."""


@torch.no_grad()
def profile(
    x: Float[Tensor, "batch n d"],
    y: Float[Tensor, "batch n"],
    mask: Bool[Tensor, "batch n"],
    neighbours: Int[Tensor, "batch n k"],
) -> Profile:
    """Profile observations; `neighbours` are the nearest others, nearest first."""
    number = neighbours.shape[-1]
    ranks = [r - 1 for r in RANKS if r <= number]
    if len(ranks) < len(RANKS):
        ranks = list(range(min(number, len(RANKS))))
    own = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
    group = torch.cat([neighbours[..., ranks].flip(-1), own[..., None]], -1)  # itself last
    known = _take(mask, group)
    places, values = _take(x, group), _take(y, group) * known
    found = [
        _leave_one_out(p, v, k)
        for p, v, k in zip(
            places.flatten(0, 1).split(PIECE),
            values.flatten(0, 1).split(PIECE),
            known.flatten(0, 1).split(PIECE),
            strict=True,
        )
    ]
    shape = (*x.shape[:2], CANDIDATES)
    error, log_std = (torch.cat(part).view(shape) for part in zip(*found, strict=True))
    used = mask[..., None].to(x.dtype)
    count = used.sum(1).clamp_min(1)
    log_scale = 0.5 * ((error.square() * used).sum(1) / count).clamp_min(1e-12).log()
    score = -log_scale - (log_std * used).sum(1) / count
    found = (error * used, log_std * used, log_scale, score)
    return Profile(*(part.float() for part in found))


def _leave_one_out(
    x: Float[Tensor, "n k d"], y: Float[Tensor, "n k"], known: Bool[Tensor, "n k"]
) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c"]]:
    """Of the last point of every group, given all others."""
    apart = x[:, :, None] - x[:, None]
    used = (known[:, :, None] & known[:, None]).to(x.dtype)
    squared = apart.square().sum(-1)
    distance = squared.sqrt()
    diagonal = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    kernels = []
    for length in LENGTHS:
        half = torch.exp(-distance / length)
        s = distance * (math.sqrt(5) / length)
        five = (1 + s + s.square() / 3) * torch.exp(-s)
        kernels += [k + noise * diagonal for k in (half, five) for noise in NOISES]
    for length, noise in DIRECTED:
        for along in _directed(apart, squared):
            s = along.clamp_min(0).sqrt() * (math.sqrt(3) / length)
            kernels.append((1 + s) * torch.exp(-s) + noise * diagonal)
    k = torch.stack(kernels, 1) + LEVEL
    k = k * used[:, None] + diagonal * (1 - used[:, None])
    root = torch.linalg.cholesky_ex(k).L
    right = y[:, None, :, None].expand(-1, len(kernels), -1, -1)
    white = torch.linalg.solve_triangular(root, right, upper=False)
    return white[..., -1, 0], root[..., -1, -1].log()


def _directed(apart: Tensor, squared: Tensor) -> list[Tensor]:
    """Squared distances stretched along the axes and diagonals of the first two coordinates."""
    a, b = apart[..., 0], apart[..., 1]
    grow, shrink = STRETCH**2 - 1, 1 - STRETCH**-2
    first, second = a.square(), b.square()
    plus, minus = (a + b).square() / 2, (a - b).square() / 2
    pairs = ((first, second), (second, first), (plus, minus), (minus, plus))
    return [squared + grow * along - shrink * across for along, across in pairs]


def _take(values: Tensor, index: Int[Tensor, "batch n k"]) -> Tensor:
    """values[b, index[b, i, j]]"""
    rows = torch.arange(len(values), device=values.device)[:, None, None]
    return values[rows, index]
