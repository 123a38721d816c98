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

from gridtnp.amortised.neighbours import take
from gridtnp.amortised.threads import in_order
from gridtnp.ops import native

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
PIECE = 512
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
    known = take(mask, group)
    places, values = take(x, group), take(y, group) * known
    flat = [part.flatten(0, 1) for part in (places, values, known)]
    pieces = list(zip(*(part.split(PIECE) for part in flat), strict=True))
    found = zip(*in_order(lambda piece: _leave_one_out(*piece), pieces), strict=True)
    error, log_std = (torch.cat(part).view(*mask.shape, CANDIDATES) for part in found)
    used = mask[..., None].to(x.dtype)
    count = used.sum(1).clamp_min(1)
    log_scale = 0.5 * ((error.square() * used).sum(1) / count).clamp_min(1e-12).log()
    score = -log_scale - (log_std * used).sum(1) / count
    found = (error * used, log_std * used, log_scale, score)
    return Profile(*(part.float() for part in found))


def _leave_one_out(
    x: Float[Tensor, "n k d"], y: Float[Tensor, "n k"], known: Bool[Tensor, "n k"]
) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c"]]:
    """Standardised errors of the last point of every group, given all others, and log standard
    deviations.
    """
    number = x.shape[1]
    row, column = torch.tril_indices(number, number, device=x.device)
    x, y, used = x.permute(1, 2, 0), y.mT.contiguous(), known.mT.to(x.dtype)
    kernels = _kernels(x[row] - x[column])
    if not known.all():
        both = (used[row] * used[column])[:, None]
        kernels = kernels * both + (row == column)[:, None, None] * (1 - both)
    solve = _in_c
    if native.why_not(kernels, y, precision=torch.float64) is not None:
        solve = _on_long_vectors
    which, noises = (torch.tensor(part) for part in zip(*_candidates(), strict=True))
    error, std = solve(kernels, y, which.to(x.device), noises.to(x))
    return error.mT, std.log().mT


Solved = tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]
"""Of every candidate and group: the standardised error and standard deviation of the last point."""


def _in_c(kernels: Tensor, y: Tensor, which: Tensor, noises: Tensor) -> Solved:
    error, std = (y.new_empty(len(which), y.shape[1]) for _ in range(2))
    sizes = (y.shape[1], len(y), kernels.shape[1], len(which))
    native.call("leave_one_out", error, std, kernels, y, which, noises, *sizes)
    return error, std


def _on_long_vectors(kernels: Tensor, y: Tensor, which: Tensor, noises: Tensor) -> Solved:
    """Groups are along the last axis, so that one Cholesky factorisation of them all is a few
    operations on long vectors, which is many times as fast as one factorisation each.
    """
    number = len(y)
    row, column = torch.tril_indices(number, number, device=y.device)
    k = y.new_zeros(number + 1, number, len(which), y.shape[1])
    k[row, column] = kernels[:, which]
    k.diagonal()[...] += noises[:, None, None]
    k[number] = y[:, None]  # below its covariance, a vector is decorrelated by the factorisation
    for j in range(number):
        k[j:, j] *= k[j, j].rsqrt()
        below = k[j + 1 :, j]
        k[j + 1 :, j + 1 :].addcmul_(below[:, None], below[None, :-1], value=-1)
    return k[number, -1], k[number - 1, -1]


def _kernels(apart: Float[Tensor, "p d n"]) -> Float[Tensor, "p kernels n"]:
    """Different covariances of pairs, without noise."""
    squared = apart.square().sum(1)
    distance, found = squared.sqrt(), []
    for length in LENGTHS:
        found.append(torch.exp(distance / -length))
        s = distance * (math.sqrt(5) / length)
        found.append((1 + s + s.square() / 3) * torch.exp(-s))
    directed = _directed(apart, squared)
    for length, _ in DIRECTED:
        for along in directed:
            s = along.clamp_min(0).sqrt() * (math.sqrt(3) / length)
            found.append((1 + s) * torch.exp(-s))
    return torch.stack(found, 1).add_(LEVEL)


def _candidates() -> list[tuple[int, float]]:
    """Numbers of their kernels, and their noises."""
    plain = [(kernel, noise) for kernel in range(2 * len(LENGTHS)) for noise in NOISES]
    directed = [noise for _, noise in DIRECTED for _ in range(DIRECTIONS)]
    return plain + list(enumerate(directed, 2 * len(LENGTHS)))


def _directed(apart: Float[Tensor, "p d n"], squared: Float[Tensor, "p n"]) -> list[Tensor]:
    """Squared distances stretched along the axes and diagonals of the first two coordinates."""
    a, b = apart[:, 0], apart[:, 1]
    grow, shrink = STRETCH**2 - 1, 1 - STRETCH**-2
    first, second = a.square(), b.square()
    plus, minus = (a + b).square() / 2, (a - b).square() / 2
    pairs = ((first, second), (second, first), (plus, minus), (minus, plus))
    return [squared + grow * along - shrink * across for along, across in pairs]
