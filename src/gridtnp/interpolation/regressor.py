"""`GriddedTNPRegressor`: the pretrained model as a scikit-learn estimator.

It follows scikit-learn's conventions without needing it: `fit` keeps the observations, `predict`
interpolates them, so that pipelines, cross-validation and verde can use it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from gridtnp.amortised.predictor import Interpolation

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "GriddedTNPRegressor needs scikit-learn; install it with pip install 'gridtnp[rivals]'."
    ) from error

FEWEST = 3
"""Observations with different values and places that are interpolated; else their mean is it."""


class GriddedTNPRegressor(RegressorMixin, BaseEstimator):
    """Interpolates y over the first `coordinates` columns of X; further columns are covariates."""

    def __init__(self, coordinates: int = 2) -> None:
        self.coordinates = coordinates

    def fit(self, X: Any, y: Any) -> GriddedTNPRegressor:
        """Keep the observations; nothing is trained."""
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        if self.coordinates < 1:
            raise ValueError(f"coordinates={self.coordinates}: must be at least 1.")
        y = np.asarray(y, np.float64)
        places, covariates = self._columns(X)
        self.constant_ = None
        if len(y) < FEWEST or np.ptp(y) == 0 or len(np.unique(places, axis=0)) < 2:
            self.constant_ = float(y.mean()), float(y.std())
            return self
        self.interpolation_ = Interpolation.of(
            _tensor(places),
            _tensor(y),
            torch.ones(1, len(y), dtype=torch.bool),
            _tensor(covariates),
        )
        return self

    def predict(
        self, X: Any, return_std: bool = False
    ) -> Float[np.ndarray, " m"] | tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
        """The mean at places and, if asked for, the standard deviation of new observations."""
        check_is_fitted(self, "constant_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        mean, std = (np.empty(len(X)) for _ in range(2))
        if self.constant_ is not None:
            mean[:], std[:] = self.constant_
        else:
            places, covariates = self._columns(X)
            x, known = _tensor(places), _tensor(covariates)
            moments = self.interpolation_.at(x, known, lambda found: (found.mean, found.stddev))
            for piece, found in moments:
                mean[piece], std[piece] = (moment[0].numpy() for moment in found)
        return (mean, std) if return_std else mean

    def _columns(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places, in two dimensions at least, and covariates."""
        places = X[:, : self.coordinates]
        if places.shape[1] == 1:
            places = np.concatenate([places, np.zeros_like(places)], 1)
        return places, X[:, self.coordinates :]


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[None]
