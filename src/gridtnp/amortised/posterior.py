"""Posteriors of the Gaussian process: exact, and in overlapping tiles for many observations.

    observations ≤ EXACT → ExactPosterior: one factorisation
                    more → TiledPosterior: one small factorisation per group of neighbours

A target is predicted from the observations around its tile, and near a border also around the tiles
beyond, with weights that are continuous in the place, so that maps show no borders.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.spatial import KDTree
from torch import Tensor

from gridtnp.amortised.process import Condition, Places, Shape, covariance, stable_root
from gridtnp.amortised.threads import number_of_threads

EXACT = 512
"""Most observations that are factorised as a whole."""
GROUP = 32
"""Observations in a tile."""
AROUND = 192
"""Observations that a tile's targets are predicted from: the nearest to its centre."""
SMALLEST = 1e-10
"""Variance of the posterior, at least."""
OVERLAP, MEETING = 0.15, 8
"""A tile counts at places where the nearest is at most this part nearer; so many may meet."""
KEPT = 256
"""Factorised tiles that are kept, for targets that come later: 75 MB."""

Moments = tuple[Float[Tensor, "batch m"], Float[Tensor, "batch m"]]
"""Mean and variance at the targets, without noise."""


@dataclass(frozen=True, eq=False)
class ExactPosterior:
    """A process given observations whose covariance is factorised as a whole."""

    observed: Places
    mask: Bool[Tensor, "batch n"]
    shape: Shape
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
    ) -> ExactPosterior:
        root = stable_root(observed_covariance(observed, shape, mask))
        white = torch.linalg.solve_triangular(root, y[..., None], upper=False)
        return cls(observed, mask, shape, root, white)

    def predict(self, at: Places) -> Moments:
        across = covariance(self.observed, at, self.shape)
        across = across if self.mask.all() else across * self.mask[..., None]
        half = torch.linalg.solve_triangular(self.root, across, upper=False)
        rest = at.variance - half.square().sum(1)
        return (half.mT @ self.white)[..., 0], rest.clamp_min(SMALLEST)


class TiledPosterior:
    """A process of one task given many observations, in overlapping tiles."""

    def __init__(self, observed: Places, y: Float[Tensor, " n"], shape: Shape) -> None:
        self.observed, self.y, self.shape = observed, y, shape
        places = observed.x[0].numpy()
        centres = np.stack([places[rows].mean(0) for rows in groups(places, GROUP)])
        self.centres = KDTree(centres)
        found = KDTree(places).query(centres, min(AROUND, len(places)), workers=number_of_threads())
        self.around = np.asarray(found[1])
        self.kept: OrderedDict[int, ExactPosterior] = OrderedDict()
        self.lock = Lock()  # threads predict different targets

    def predict(self, at: Places) -> Moments:
        """Of a batch of one."""
        rows, tiles, weights = self._pairs(at.x[0].numpy())
        ordered = torch.from_numpy(rows)
        starts = np.flatnonzero(np.diff(tiles, prepend=-1)).tolist()
        stops, places = [*starts[1:], len(tiles)], at[0, ordered]
        found = [
            torch.cat(self._tile(int(tiles[i])).predict(places[0, i:j]))
            for i, j in zip(starts, stops, strict=True)
        ]
        sums = torch.zeros(2, at.x.shape[1], dtype=torch.float64)
        if found:
            sums.index_add_(1, ordered, torch.cat(found, 1) * torch.from_numpy(weights))
        return sums[:1], sums[1:].clamp_min(SMALLEST)

    def _pairs(self, x: Float[np.ndarray, "m d"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Targets with a tile and its weight each, ordered by tile."""
        number = min(MEETING, self.centres.n)
        found = self.centres.query(x, number, workers=number_of_threads())
        distance, nearest = (np.asarray(part).reshape(len(x), number) for part in found)
        ratio = distance[:, :1] / np.maximum(distance, 1e-300)
        ratio[:, 0] = 1  # also at its centre
        s = (1 - (1 - ratio) / OVERLAP).clip(0)
        weight = s**2 * (3 - 2 * s)
        weight /= weight.sum(1, keepdims=True)
        rows, column = np.nonzero(weight)
        tiles = nearest[rows, column]
        order = np.argsort(tiles, kind="stable")
        return rows[order], tiles[order], weight[rows, column][order]

    def _tile(self, number: int) -> ExactPosterior:
        with self.lock:
            if number in self.kept:
                self.kept.move_to_end(number)
                return self.kept[number]
        near = torch.from_numpy(self.around[number])
        every = torch.ones(1, len(near), dtype=torch.bool)
        found = ExactPosterior.of(self.observed[0, near], self.y[near][None], every, self.shape)
        with self.lock:
            self.kept[number] = found
            if len(self.kept) > KEPT:
                self.kept.popitem(last=False)
        return found


@dataclass(frozen=True, eq=False)
class TaskPosteriors:
    """Posteriors of several tasks."""

    tasks: list[TiledPosterior]

    def predict(self, at: Places) -> Moments:
        found = [task.predict(at[b]) for b, task in enumerate(self.tasks)]
        mean, rest = (torch.cat(part) for part in zip(*found, strict=True))
        return mean, rest


def condition(
    observed: Places,
    y: Float[Tensor, "batch n"],
    mask: Bool[Tensor, "batch n"],
    shape: Shape,
) -> ExactPosterior | TaskPosteriors:
    """The process given observations, for any number of predictions."""
    if y.shape[1] <= EXACT:
        return ExactPosterior.of(observed, y, mask, shape)
    return TaskPosteriors(
        [TiledPosterior(observed[b, mask[b]], y[b, mask[b]], shape[b]) for b in range(len(y))]
    )


def differentiable(
    observed: Places,
    y: Float[Tensor, "batch n"],
    mask: Bool[Tensor, "batch n"],
    at: Places,
    shape: Shape,
) -> Moments:
    """As `ExactPosterior`, with gradients."""
    across = covariance(observed, at, shape) * mask[..., None]
    k = observed_covariance(observed, shape, mask)
    mean, explained = cast(Any, Condition.apply(k, across, y))
    return mean, (at.variance - explained).clamp_min(SMALLEST)


def observed_covariance(
    a: Places, shape: Shape, mask: Bool[Tensor, "batch n"]
) -> Float[Tensor, "batch n n"]:
    """Of observations, with noise; masked ones are independent of all others."""
    used, k = mask.to(a.x.dtype), covariance(a, a, shape)
    if mask.all():
        return k + torch.diag_embed(a.noise)
    k = k * used[:, :, None] * used[:, None]
    return k + torch.diag_embed(a.noise * used + (1 - used))


def groups(x: Float[np.ndarray, "n d"], most: int) -> list[Int[np.ndarray, " m"]]:
    """Split places at the median of their widest extent until groups are small; neighbouring
    groups follow each other.
    """
    left, done = [np.arange(len(x))], []
    while left:
        rows = left.pop()
        if len(rows) <= most:
            done.append(rows)
            continue
        axis = int(np.ptp(x[rows], axis=0).argmax())
        half = np.argpartition(x[rows, axis], len(rows) // 2)
        left += [rows[half[: len(rows) // 2]], rows[half[len(rows) // 2 :]]]
    return done
