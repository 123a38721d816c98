"""The pretrained process beside kriging: its covariance is inferred from every context anew.

Kriging has hyper-parameters that are fitted to all training tasks, the pretrained process has those
that suit one task, so that their errors differ and a mean of both can be better than either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from gridtnp.amortised.network import Interpolator
from gridtnp.amortised.predictor import Interpolation, mean_and_interval_std
from gridtnp.kriging.gaussian_process import Inputs

NOT_EXPORTED = (
    "This network blends in the pretrained process, whose search for neighbours cannot be exported "
    "or compiled; fit one with start='kriging'."
)
FEWEST = 3
"""Observations of a task that say something about its covariance."""
POLE = 1e-9
"""Distance from the axis of the Earth at which there is no east."""


@dataclass(frozen=True, eq=False)
class Interpolated:
    """Contexts that the pretrained process is conditioned on, on the CPU."""

    given: Interpolation
    frame: Float[Tensor, "used d e"]
    """Turns places such that the first two coordinates point east and north."""
    drifts: int
    usable: Bool[Tensor, " batch"]
    """Contexts from which a covariance can be inferred."""

    @classmethod
    def of(
        cls,
        network: Interpolator,
        inputs: Inputs,
        y: Float[Tensor, "batch n"],
        mask: Bool[Tensor, "batch n"],
        drifts: int,
    ) -> Interpolated | None:
        """None if no context is usable; the first `drifts` regressors are covariates."""
        if y.shape[1] < FEWEST:
            return None
        place, regressors, y, mask = (
            v.cpu() for v in (inputs.place, inputs.regressors[..., :drifts], y, mask)
        )
        usable = (mask.sum(1) >= FEWEST) & _varies(y[..., None], mask) & _varies(place, mask)
        if not usable.any():
            return None
        frame = _frame(place, mask)
        error = None if inputs.error is None else inputs.error.cpu().sqrt()
        x, y = (place @ frame)[usable], y[usable]
        parts = mask[usable], regressors[usable], None if error is None else error[usable]
        with torch.autocast("cpu", enabled=False):
            given = Interpolation.of(x, y, *parts, network=network)
        return cls(given, frame[usable], drifts, usable)

    def predict(self, at: Inputs) -> tuple[Float[Tensor, "used m"], Float[Tensor, "used m"]]:
        """Means, and standard deviations with the same 90 % intervals, of usable contexts."""
        x = at.place.cpu()[self.usable] @ self.frame
        covariates = at.regressors[..., : self.drifts].cpu()[self.usable]
        mean, std = torch.zeros(2, *x.shape[:2], dtype=torch.float64)
        with torch.autocast("cpu", enabled=False):
            for rows, found in self.given.at(x, covariates, mean_and_interval_std):
                mean[:, rows], std[:, rows] = found
        return mean, std


def blend(
    given: Sequence[Interpolated | None],
    share: Float[Tensor, " dy"],
    at: Inputs,
    mean: Float[Tensor, "batch m dy"],
    std: Float[Tensor, "batch m dy"],
) -> tuple[Float[Tensor, "batch m dy"], Float[Tensor, "batch m dy"]]:
    """Means and log standard deviations, blended with those of the pretrained process."""
    for j, one in enumerate(given):
        if one is not None and mean.shape[1]:
            mean, std, part = mean.clone(), std.clone(), share[j].to(mean)
            location, spread = (v.to(mean) for v in one.predict(at))
            mean[one.usable, :, j] = mean[one.usable, :, j].lerp(location, part)
            std[one.usable, :, j] = std[one.usable, :, j].log().lerp(spread.log(), part).exp()
    return mean, std


def _varies(values: Float[Tensor, "batch n d"], mask: Bool[Tensor, "batch n"]) -> Tensor:
    """Whether used values differ at all."""
    used = mask[..., None]
    low = torch.where(used, values, torch.inf).amin(1)
    high = torch.where(used, values, -torch.inf).amax(1)
    return (high > low).any(-1)


def _frame(place: Float[Tensor, "batch n d"], mask: Bool[Tensor, "batch n"]) -> Tensor:
    """Axes as columns: east, north and up on the sphere, those of the coordinates in a plane."""
    batch, _, dimensions = place.shape
    if dimensions < 3:
        return torch.eye(dimensions, max(dimensions, 2), dtype=place.dtype).expand(batch, -1, -1)
    up = F.normalize((place * mask[..., None]).sum(1), dim=-1)
    east = torch.stack([-up[:, 1], up[:, 0], torch.zeros_like(up[:, 0])], -1)
    none = east.norm(dim=-1, keepdim=True) < POLE
    east = F.normalize(torch.where(none, torch.tensor([0.0, 1.0, 0.0]).to(east), east), dim=-1)
    return torch.stack([east, torch.linalg.cross(up, east), up], -1)
