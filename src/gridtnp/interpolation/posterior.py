"""Posteriors of the Gaussian process: exact, and in overlapping tiles for many observations.

A tile is a group of neighbouring observations; a target is predicted from the observations around
the two nearest tiles, whose weights are continuous in the place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.spatial import KDTree
from torch import Tensor

from gridtnp.interpolation.process import Condition, Places, Shape, covariance, stable_root

EXACT = 2048
"""Most observations that are factorised as a whole."""
GROUP = 64
"""Observations in a tile."""
AROUND = 384
"""Observations that a tile's targets are predicted from: the nearest to its centre."""
SMALLEST = 1e-10
"""Variance of the posterior, at least."""
NEGLIGIBLE = 1e-3
"""Weight below which a second tile is not evaluated."""


@dataclass(frozen=True, eq=False)
class Factor:
    """A factorised covariance of observations, for any number of predictions."""

    root: Float[Tensor, "batch n n"]
    white: Float[Tensor, "batch n 1"]
    """The observations, decorrelated."""

    @classmethod
    def of(
        cls,
        observed: Places,
        y: Float[Tensor, "batch n"],
        mask: Bool[Tensor, "batch n"],
        shape: Shape,
    ) -> Factor:
        root = stable_root(observed_covariance(observed, shape, mask))
        return cls(root, torch.linalg.solve_triangular(root, y[..., None], upper=False))


def posterior(
    observed: Places,
    y: Float[Tensor, "batch n"],
    mask: Bool[Tensor, "batch n"],
    at: Places,
    shape: Shape,
    factor: Factor | None = None,
) -> tuple[Float[Tensor, "batch m"], Float[Tensor, "batch m"]]:
    """Mean and variance at the targets, without noise."""
    if y.shape[1] > EXACT:
        found = [
            _in_tiles(observed[b, mask[b]], y[b, mask[b]], at[b], shape[b]) for b in range(len(y))
        ]
        mean, rest = (torch.stack(part) for part in zip(*found, strict=True))
        return mean, rest
    across = covariance(observed, at, shape) * mask[..., None]
    if not torch.is_grad_enabled():
        factor = Factor.of(observed, y, mask, shape) if factor is None else factor
        half = torch.linalg.solve_triangular(factor.root, across, upper=False)
        explained = half.square().sum(1)
        return (half.mT @ factor.white)[..., 0], (at.variance - explained).clamp_min(SMALLEST)
    k = observed_covariance(observed, shape, mask)
    mean, explained = cast(Any, Condition.apply(k, across, y))
    return mean, (at.variance - explained).clamp_min(SMALLEST)


def observed_covariance(
    a: Places, shape: Shape, mask: Bool[Tensor, "batch n"]
) -> Float[Tensor, "batch n n"]:
    """Of observations, with noise; masked ones are independent of all others."""
    used = mask.to(a.x.dtype)
    k = covariance(a, a, shape) * used[:, :, None] * used[:, None]
    return k + torch.diag_embed(a.noise * used + (1 - used))


@torch.no_grad()
def _in_tiles(observed: Places, y: Tensor, at: Places, shape: Shape) -> tuple[Tensor, Tensor]:
    """Of one task (batch of one)."""
    places, targets = observed.x[0].numpy(), at.x[0].numpy()
    centres = np.stack([places[rows].mean(0) for rows in tiles(places)])
    number = min(3, len(centres))
    found = KDTree(centres).query(targets, number, workers=torch.get_num_threads())
    distance, nearest = (np.asarray(part) for part in found)
    weight = (1 - distance[:, :2] / np.maximum(distance[:, 2:], 1e-12)).clip(1e-9) ** 2
    weight /= weight.sum(1, keepdims=True)
    around = np.asarray(KDTree(places).query(centres, min(AROUND, len(places)))[1])
    which = np.concatenate([nearest[:, 0], nearest[:, 1]])
    rows = np.tile(np.arange(len(targets)), 2)
    weights = np.concatenate([weight[:, 0], weight[:, 1]])
    kept = weights > NEGLIGIBLE
    which, rows, weights = which[kept], rows[kept], weights[kept]
    order = np.argsort(which, kind="stable")
    which, rows, weights = which[order], rows[order], weights[order]
    starts = np.flatnonzero(np.diff(which, prepend=-1)).tolist()
    sums = torch.zeros(3, len(targets), dtype=torch.float64)  # weights, means, variances
    prior = at.variance[0]
    every = torch.ones(1, around.shape[1], dtype=torch.bool)
    for start, stop in zip(starts, [*starts[1:], len(which)], strict=True):
        near = torch.from_numpy(around[which[start]])
        some = torch.from_numpy(rows[start:stop])
        weight_here = torch.from_numpy(weights[start:stop])
        own, new = observed[0, near], at[0, some]
        root = stable_root(observed_covariance(own, shape, every))
        across = covariance(own, new, shape)
        right = torch.cat([across, y[near][None, :, None]], -1)
        half = torch.linalg.solve_triangular(root, right, upper=False)[0]
        mean = half[:, :-1].mT @ half[:, -1]
        rest = prior[some] - half[:, :-1].square().sum(0)
        update = torch.stack([weight_here, weight_here * mean, weight_here * rest])
        sums.index_add_(1, some, update)
    return sums[1] / sums[0], (sums[2] / sums[0]).clamp_min(SMALLEST)


def tiles(x: Float[np.ndarray, "n d"], most: int = GROUP) -> list[np.ndarray]:
    """Split places at the median of their widest extent until groups are small."""
    groups, done = [np.arange(len(x))], []
    while groups:
        rows = groups.pop()
        if len(rows) <= most:
            done.append(rows)
            continue
        axis = int(np.ptp(x[rows], axis=0).argmax())
        half = np.argpartition(x[rows, axis], len(rows) // 2)
        groups += [rows[half[: len(rows) // 2]], rows[half[len(rows) // 2 :]]]
    return done
