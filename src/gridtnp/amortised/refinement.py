"""The constants that the network infers, refined by the likelihood of the observations.

The network reads the likelihood of candidates only. One step of Fisher scoring maximises it between
them, under a prior that keeps the constants close to the network's where observations are few.
Predictions are refined; pretraining is not.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.spatial import KDTree
from torch import Tensor

from gridtnp.amortised.constants import SHAPE, Change
from gridtnp.amortised.posterior import groups, observed_covariance
from gridtnp.amortised.process import Places, Shape, stable_root

PRIOR = (0.1, 0.1, 0.15, 0.4, 0.4, 0.1, 0.1)
"""Standard deviations of a `Change` before the observations are seen."""
FEW = 60
"""Observations with which half of the step is taken: the network's spread already allows for
constants that few observations leave open."""
DIFFERENCE = 1e-4
"""Step of finite differences."""
EXACT = 256
"""Most observations whose likelihood is taken as a whole."""
BLOCKS, BLOCK = 4, 128
"""Groups of neighbouring observations that are taken of more, and their size."""


@torch.no_grad()
def refine(
    observed: Places,
    y: Float[Tensor, "batch n"],
    mask: Bool[Tensor, "batch n"],
    read: Float[Tensor, "batch n"],
    shape: Shape,
) -> Change:
    """How the constants of a process change; `read` is the known variance of readings."""
    found = []
    for b, rows in enumerate(map(_blocks, observed.x, mask)):
        places = Places(*(value[b][rows] for value in observed))
        number = int(mask[b].sum())
        weight = min(1.0, number / max(rows.numel(), 1))
        change = _fisher_step(places, y[b][rows], read[b][rows], shape[b], weight)
        found.append(change * number / (number + FEW))
    return Change(torch.stack(found))


def _blocks(x: Float[Tensor, "n d"], mask: Bool[Tensor, " n"]) -> Int[Tensor, "blocks m"]:
    """Rows of observations whose likelihoods are added."""
    rows = torch.nonzero(mask)[:, 0]
    if len(rows) <= EXACT:
        return rows[None]
    places = x[rows].numpy()
    every = groups(places, BLOCK)
    some = np.unique(np.linspace(0, len(every) - 1, BLOCKS).round().astype(int))
    centres = np.stack([places[every[i]].mean(0) for i in some])
    return rows[torch.from_numpy(np.asarray(KDTree(places).query(centres, BLOCK)[1]))]


def _fisher_step(
    observed: Places,
    y: Float[Tensor, "blocks m"],
    read: Float[Tensor, "blocks m"],
    shape: Shape,
    weight: float,
) -> Float[Tensor, " p"]:
    """The change of constants, unless the step ends where they are less likely."""
    mask, prior = torch.ones_like(y[:1], dtype=torch.bool), y.new_tensor(PRIOR)

    def covariance(values: Float[Tensor, " p"]) -> Float[Tensor, "blocks m m"]:
        form = Change(values[None]).shape(shape) if values[SHAPE].any() else shape
        places = Change(values.expand(len(y), -1)).places(observed, read)
        each = [observed_covariance(places[i], form, mask) for i in range(len(y))]
        return torch.cat(each)  # one by one, as they share the table of the correlation

    def loss(values: Float[Tensor, " p"], root: Float[Tensor, "blocks m m"]) -> float:
        white = torch.linalg.solve_triangular(root, y[..., None], upper=False)
        likelihood = 0.5 * white.square().sum() + root.diagonal(dim1=-2, dim2=-1).log().sum()
        return (weight * likelihood + 0.5 * (values / prior).square().sum()).item()

    start = torch.zeros_like(prior)
    k = covariance(start)
    root = stable_root(k)
    inverse = torch.cholesky_inverse(root)
    alpha = inverse @ y[..., None]
    steps = torch.diag(torch.full_like(prior, DIFFERENCE))
    slopes = [(covariance(step) - k) / DIFFERENCE for step in steps]
    solved = [inverse @ slope for slope in slopes]
    fit = torch.stack([(alpha * (slope @ alpha)).sum() for slope in slopes])
    trace = torch.stack([a.diagonal(dim1=-2, dim2=-1).sum() for a in solved])
    fisher = torch.stack([torch.stack([(a * b.mT).sum() for b in solved]) for a in solved])
    precision = weight * fisher / 2 + torch.diag(prior**-2)
    found = torch.linalg.solve(precision, weight * (fit - trace) / 2).clamp(-2 * prior, 2 * prior)
    return found if loss(found, stable_root(covariance(found))) < loss(start, root) else start
