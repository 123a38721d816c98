"""From arrays to predictive distributions: covariates, and any number of targets.

Places are Cartesian. Covariates enter through a regression in closed form: their coefficients are
estimated by ridge regression first, so that the network sees residuals, and again as a trend of the
Gaussian process, so that their uncertainty counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit
from torch import Tensor

from gridtnp.amortised.network import SOURCE, Encoding, Interpolator
from gridtnp.amortised.posterior import EXACT, groups
from gridtnp.amortised.threads import in_order, resting
from gridtnp.amortised.weights import pretrained
from gridtnp.distributions.continuous import NormalMixture
from gridtnp.task import PointSet

T = TypeVar("T")
RIDGE = 0.1
"""Penalty of the coefficients of standardised covariates, as a number of observations."""
ENTRIES = 2**20
"""Entries of a covariance between observations and targets at once; more leave the cache."""
WIDTH = 2 * 1.6448536
"""Of the 90 % interval of a normal distribution, in standard deviations."""
PIECE = 2**13
"""Targets at once if there are too many observations to factorise."""


@dataclass(frozen=True, eq=False)
class Regression:
    """A linear regression on standardised covariates, one per task."""

    centre: Float[Tensor, "batch df"]
    scale: Float[Tensor, "batch df"]
    coefficients: Float[Tensor, "batch df"]

    @classmethod
    def fit(
        cls,
        covariates: Float[Tensor, "batch n df"],
        y: Float[Tensor, "batch n"],
        mask: Bool[Tensor, "batch n"],
    ) -> Regression:
        used = mask[..., None].double()
        count = used.sum(1)
        centre = (covariates * used).sum(1) / count
        deviation = (covariates - centre[:, None]) * used
        scale = (deviation.square().sum(1) / count).sqrt()
        scale = torch.where(scale > 1e-9 * centre.abs(), scale, 1.0)
        z = deviation / scale[:, None]
        mean = (y * mask).sum(1, keepdim=True) / count
        penalty = RIDGE * torch.eye(z.shape[-1], dtype=z.dtype)
        right = z.mT @ ((y - mean) * mask)[..., None]
        return cls(centre, scale, torch.linalg.solve(z.mT @ z + penalty, right)[..., 0])

    def standardised(self, covariates: Float[Tensor, "batch n df"]) -> Float[Tensor, "batch n df"]:
        return (covariates - self.centre[:, None]) / self.scale[:, None]

    def predict(self, covariates: Float[Tensor, "batch n df"]) -> Float[Tensor, "batch n"]:
        return (self.standardised(covariates) @ self.coefficients[..., None])[..., 0]


@dataclass(frozen=True, eq=False)
class Interpolation:
    """Observations of one or several times, ready to be interpolated anywhere."""

    network: Interpolator
    encoding: Encoding
    regression: Regression | None

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        x: Float[Tensor, "batch n d"],
        y: Float[Tensor, "batch n"],
        mask: Bool[Tensor, "batch n"],
        covariates: Float[Tensor, "batch n df"] | None = None,
        error: Float[Tensor, "batch n"] | None = None,
        network: Interpolator | None = None,
    ) -> Interpolation:
        """Rows that are repeated as a whole count once: they are one reading, not two.

        `error` is the standard deviation of the reading error of every value, if it is known.
        """
        network = pretrained() if network is None else network
        if len(x) == 1:
            known = [x, y[..., None], covariates, None if error is None else error[..., None]]
            rows = _different(torch.cat([part[0] for part in known if part is not None], -1))
            x, y, mask = x[:, rows], y[:, rows], mask[:, rows]
            covariates, error = (_part(part, rows.numpy()) for part in (covariates, error))
        regression, features = None, None
        if covariates is not None and covariates.shape[-1]:
            regression = Regression.fit(covariates, y, mask)
            y, features = y - regression.predict(covariates), regression.standardised(covariates)
        read = None if error is None else error[..., None]
        points = PointSet(x, y[..., None], mask, features, read)
        with resting():
            return cls(network, network.encode({SOURCE: points}), regression)

    def at(
        self,
        x: Float[Tensor, "batch m d"],
        covariates: Float[Tensor, "batch m df"] | None,
        read: Callable[[NormalMixture], T],
    ) -> Iterator[tuple[Int[np.ndarray, " piece"], T]]:
        """Rows of targets and what `read` takes from their distributions (batch, piece).

        Pieces are compact, so that each needs few tiles, and are computed and read in parallel.
        """
        batch, n = self.encoding.y.shape
        size = max(1, ENTRIES // (batch * n)) if n <= EXACT else PIECE
        with torch.no_grad():  # here, as a decorator need not see that this is a generator
            given = self.encoding.posterior()

        def piece(rows: Int[np.ndarray, " piece"]) -> T:
            target, mean = self.target(x[:, rows], _part(covariates, rows))
            return read(self.moved(self.network.decode(self.encoding, target, given), mean))

        pieces = groups(x[0].numpy(), size)
        with torch.no_grad():
            found = in_order(piece, pieces)
        yield from zip(pieces, found, strict=True)

    def target(
        self, x: Float[Tensor, "batch m d"], covariates: Float[Tensor, "batch m df"] | None
    ) -> tuple[PointSet, Tensor | float]:
        """Targets for the network, and the regression's part of the mean."""
        if self.regression is None:
            return PointSet(x), 0.0
        assert covariates is not None
        features = self.regression.standardised(covariates)
        return PointSet(x, features=features), self.regression.predict(covariates)

    def moved(self, distribution: NormalMixture, by: Tensor | float) -> NormalMixture:
        """Shifted by a number for every point, as wide as few observations need; without outputs.

        An amplitude from n observations has n - 1 degrees of freedom, less one per covariate: 90 %
        intervals are those of Student's t.
        """
        coefficients = 0 if self.regression is None else self.regression.scale.shape[-1]
        freedom = self.encoding.mask.sum(1) - 1 - coefficients
        quantile = torch.from_numpy(stdtrit(freedom.clamp_min(1).double().numpy(), 0.95))
        factor = (2 * quantile / WIDTH)[:, None, None]
        loc, mean = distribution.loc[:, :, 0], distribution.mean
        shift = by[..., None] if isinstance(by, Tensor) else by
        return NormalMixture(
            distribution.log_weight[:, :, 0],
            mean + factor * (loc - mean) + shift,
            factor * distribution.scale[:, :, 0],
        )


def mean_and_interval_std(
    distribution: NormalMixture,
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Means, and the standard deviations of normal distributions with the same 90 % intervals."""
    mean = distribution.mean
    low, high = (distribution.icdf(torch.full(mean.shape, q).double()) for q in (0.05, 0.95))
    return mean, (high - low) / WIDTH


def _different(rows: Float[Tensor, "n k"]) -> Int[Tensor, " m"]:
    """The first of each group of equal rows, in their order."""
    import pandas as pd  # slow to load, and networks are built without it

    repeated = pd.DataFrame(rows.numpy()).duplicated().to_numpy()
    return torch.from_numpy(np.flatnonzero(~repeated))


def _part(values: Tensor | None, rows: Int[np.ndarray, " piece"]) -> Tensor | None:
    return None if values is None else values[:, rows]
