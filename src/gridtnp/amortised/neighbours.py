"""Units of a task, and the nearest observations of every place.

Distances count in spacings of the observations and values in their own spread, so that the network
sees the same numbers in every unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.spatial import KDTree
from torch import Tensor

from gridtnp.amortised.threads import number_of_threads

NEIGHBOURS = 16
"""Nearest observations that a place attends to."""
RADIAL = 6
"""Functions of the distance that attention sees."""
WIDTHS = (0.3, 1.0, 3.0, 9.0)
"""Of the radial functions, in spacings."""
SPACING_RANK, SPACING = 4, 1.128
"""The distance to the neighbour of this rank, in mean spacings of uniformly distributed places."""
LARGEST = 4.0
"""Values farther than this many robust standard deviations from the median are clipped before
their spread is taken."""
TIE = 1e-9
"""Distance, in spacings, by which equally near observations are ordered by their values."""
DENSE = 256
"""Most observations whose distances are all computed; more are searched with a tree."""
SPARE = 8
"""Further neighbours that a tree finds, so that the order decides between equally near ones."""


@dataclass(frozen=True, eq=False)
class Units:
    """Values are `y * scale + centre`, places `x * spacing + origin`."""

    centre: Float[Tensor, " batch"]
    scale: Float[Tensor, " batch"]
    origin: Float[Tensor, "batch d"]
    spacing: Float[Tensor, " batch"]

    def places(self, x: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch n d"]:
        """In spacings."""
        return (x - self.origin[:, None]) / self.spacing[:, None, None]

    def values(self, y: Float[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
        """In standard deviations."""
        return (y - self.centre[:, None]) / self.scale[:, None]


@dataclass(frozen=True, eq=False)
class Near:
    """The nearest observations of every place, as attention sees them."""

    index: Int[Tensor, "batch m k"]
    radial: Float[Tensor, "batch m k r"]
    log_weight: Float[Tensor, "batch m k"]

    @classmethod
    def of(cls, distance: Float[Tensor, "batch m k"], index: Int[Tensor, "batch m k"]) -> Near:
        """From one neighbour more than are used, if there are as many.

        Weights fall to zero towards its distance, so that they are continuous in the place.
        """
        distance = distance.float()
        if distance.shape[-1] > NEIGHBOURS:
            end = distance[..., NEIGHBOURS : NEIGHBOURS + 1]
            distance, index = distance[..., :NEIGHBOURS], index[..., :NEIGHBOURS]
        else:
            end = torch.full_like(distance[..., -1:], math.inf)
        missing = ~distance.isfinite()
        ratio = (distance / end.clamp_min(1e-9)).nan_to_num(0.0, 0.0, 0.0).clamp_max(1.0)
        log_weight = (2 * (1 - ratio.square()).clamp_min(1e-6).log()).masked_fill(missing, -30.0)
        distance = torch.where(missing, 1e3, distance)
        waves = [torch.exp(-(distance / s).square()) for s in WIDTHS]
        radial = torch.stack([torch.log1p(distance) / 2, ratio, *waves], -1)
        return cls(index, radial, log_weight)

    def __getitem__(self, which: tuple[slice, slice]) -> Near:
        return Near(*(values[which] for values in vars(self).values()))


def units_of(
    x: Float[Tensor, "batch n d"], y: Float[Tensor, "batch n"], mask: Bool[Tensor, "batch n"]
) -> Units:
    """Robust centre and scale of the values, centroid and spacing of the places."""
    count = mask.sum(1).clamp_min(1)
    known = torch.where(mask, y, math.nan)
    median = known.nanmedian(1).values.nan_to_num(0.0)
    deviation = (known - median[:, None]).abs().nanmedian(1).values.nan_to_num(0.0)
    limit = torch.where(deviation > 0, LARGEST * 1.4826 * deviation, math.inf)[:, None]
    clipped = (y - median[:, None]).clamp(-limit, limit) * mask
    mean = clipped.sum(1) / count
    scale = (((clipped - mean[:, None]) * mask).square().sum(1) / count).sqrt()
    origin = (x * mask[..., None]).sum(1) / count[:, None]
    distance, _ = Index(x, mask).nearest(x, SPACING_RANK + 1)
    apart = torch.where(distance.isfinite(), distance, 0.0).amax(-1)  # there may be fewer
    apart = torch.where(mask & (apart > 0), apart, math.nan)
    spacing = apart.nanmedian(1).values / SPACING
    spacing = torch.where(spacing > 0, spacing, 1.0)
    return Units(mean + median, torch.where(scale > 0, scale, 1.0), origin, spacing)


@dataclass(frozen=True, eq=False)
class Index:
    """Observations that are searched for the nearest."""

    x: Float[Tensor, "batch n d"]
    mask: Bool[Tensor, "batch n"]

    @cached_property
    def trees(self) -> list[tuple[KDTree, Int[Tensor, " n"]]]:
        """Of every task, with the rows that it holds."""
        rows = [torch.nonzero(used)[:, 0] for used in self.mask]
        return [(KDTree(x[r].numpy()), r) for x, r in zip(self.x, rows, strict=True)]

    def nearest(
        self,
        x: Float[Tensor, "batch m d"],
        number: int,
        order: Int[Tensor, "batch n"] | None = None,
    ) -> tuple[Float[Tensor, "batch m k"], Int[Tensor, "batch m k"]]:
        """Distances and indices, nearest first; infinitely far where there are too few.

        Equally near observations come in this `order`, whatever that of the rows.
        """
        number = min(number, self.x.shape[1])
        if self.x.shape[1] <= DENSE:
            apart = torch.cdist(x, self.x, compute_mode="donot_use_mm_for_euclid_dist")
            apart = apart.masked_fill(~self.mask[:, None], math.inf)
            ties = 0.0 if order is None else TIE * order[:, None]
            index = (apart + ties).topk(number, largest=False).indices
            return apart.gather(-1, index), index
        more = min(number + (0 if order is None else SPARE), self.x.shape[1])
        found = [_query(*task, more) for task in zip(self.trees, x, strict=True)]
        distance, index = (torch.stack(part) for part in zip(*found, strict=True))
        if order is not None:
            by = distance + TIE * torch.stack([o[i] for o, i in zip(order, index, strict=True)])
            by = by.argsort(-1)[..., :number]
            distance, index = distance.gather(-1, by), index.gather(-1, by)
        return distance, index


def _query(
    of: tuple[KDTree, Int[Tensor, " n"]], x: Float[Tensor, "m d"], number: int
) -> tuple[Tensor, Tensor]:
    tree, rows = of
    distance, index = tree.query(x.numpy(), number, workers=number_of_threads())
    distance, index = (np.asarray(a).reshape(len(x), -1) for a in (distance, index))
    index = np.minimum(index, len(rows) - 1)  # too few: infinitely far, whichever it is
    return torch.from_numpy(distance), rows[torch.from_numpy(index)]


def without_self(index: Int[Tensor, "batch n k"]) -> Int[Tensor, "batch n j"]:
    """Drop every observation from its own neighbours, or the farthest if it is not among them.

    The last observation may be there several times, where there are too few.
    """
    own = torch.arange(index.shape[1], device=index.device)[:, None]
    is_self = index == own
    is_self &= is_self.cumsum(-1) == 1
    is_self[..., -1:] |= ~is_self.any(-1, keepdim=True)
    return index[~is_self].view(*index.shape[:2], max(index.shape[2] - 1, 0))


def take(values: Tensor, index: Int[Tensor, "batch n k"]) -> Tensor:
    """values[b, index[b, i, j]]"""
    rows = flat_index(index, values.shape[1])
    return values.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, index.shape)


def flat_index(index: Int[Tensor, "batch n k"], number: int) -> Int[Tensor, "batch n k"]:
    """Into the flattened rows of a batch with this number of rows each."""
    if len(index) == 1:
        return index
    return index + torch.arange(len(index), device=index.device)[:, None, None] * number
