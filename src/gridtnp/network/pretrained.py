"""The pretrained process beside kriging: its covariance is inferred from every context anew.

Kriging has hyper-parameters that are fitted to all training tasks, the pretrained process has those
that suit one task, so that their errors differ and a mean of both is better than either.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from gridtnp.amortised.network import Interpolator
from gridtnp.amortised.predictor import Interpolation, mean_and_interval_std
from gridtnp.config import Kriging, ModelConfig
from gridtnp.kriging.gaussian_process import Inputs

SHARE = 0.25
"""Part of the pretrained process in the answer. On nine variables of real data, this part gained
most; parts chosen for each by some of its stations predicted worse at the others."""
NOT_COMPILED = (
    "This network blends in the pretrained process, whose search for neighbours cannot be compiled "
    "or exported; fit one with start='kriging'."
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


def why_not(config: ModelConfig) -> str | None:
    """Why a model cannot be blended with the pretrained process, if so."""
    if config.prior is None:
        return "the network corrects no kriging"
    if "time" in config.coordinates:
        return "the contexts have several times"
    if all(of is None for of in config.prior.of):
        return "the context does not observe the target"
    if config.likelihood and not any(one.is_normal for one in config.likelihood):
        return "no target is normally distributed"
    return None


def with_pretrained(config: ModelConfig, pretrained: bool | None) -> ModelConfig:
    """A configuration with another choice about the pretrained process."""
    assert isinstance(config.prior, Kriging)
    prior = config.prior.model_copy(update={"pretrained": pretrained})
    return config.model_copy(update={"prior": prior})


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
