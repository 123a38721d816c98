"""The constants of a Gaussian process, one set per task, and changes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from gridtnp.amortised.process import Places, Shape

LOG_WEIGHTS = (-1.0, -0.3, 0.3, 1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
"""Of the correlation functions: what smoothness and the longer length-scale add to them."""

SHAPE, ANISOTROPY = slice(3, 5), slice(5, 7)
"""Columns of a change."""


@dataclass(frozen=True, eq=False)
class Constants:
    """The covariance's constants, one each per task; lengths in spacings."""

    transform: Float[Tensor, "batch d d"]
    """Divides by the length-scale; anisotropic."""
    amplitude: Float[Tensor, " batch"]
    noise: Float[Tensor, " batch"]
    trend: Float[Tensor, "batch 2"]
    shape: Shape


@dataclass(frozen=True, eq=False)
class Change:
    """What is added to log length-scale, log amplitude, log variance of the noise, smoothness,
    share of the longer length-scale, and two components of anisotropy.
    """

    values: Float[Tensor, "batch 7"]

    def constants(self, constants: Constants) -> Constants:
        return replace(
            constants,
            transform=constants.transform @ self._transform(constants.transform.shape[-1]),
            amplitude=constants.amplitude * self.values[:, 1].exp(),
            noise=constants.noise * self.values[:, 2].exp(),
            shape=self.shape(constants.shape),
        )

    def places(self, places: Places, known: Float[Tensor, "batch n"]) -> Places:
        """`known` is a part of the noise that does not change."""
        amplitude, noise = self.values[:, 1:3, None].exp().unbind(1)
        return replace(
            places,
            x=places.x @ self._transform(places.x.shape[-1]),
            amplitude=places.amplitude * amplitude,
            noise=(places.noise - known) * noise + known,
        )

    def shape(self, shape: Shape) -> Shape:
        more = self.values[:, SHAPE] @ self.values.new_tensor(LOG_WEIGHTS)
        return Shape((shape.weights.log() + more).softmax(-1), shape.shrink)

    def _transform(self, dim: int) -> Float[Tensor, "batch d d"]:
        """Multiplies places in length-scales from the right."""
        found = torch.eye(dim, dtype=self.values.dtype).repeat(len(self.values), 1, 1)
        if dim > 1:
            found[:, :2, :2] = stretch(*self.values[:, ANISOTROPY].unbind(-1))
        return found / self.values[:, 0, None, None].exp()


def stretch(a: Float[Tensor, " batch"], b: Float[Tensor, " batch"]) -> Float[Tensor, "batch 2 2"]:
    """The exponential of ((a, b), (b, -a)), limited: it stretches one direction and shrinks the
    other.
    """
    norm = (a.square() + b.square() + 1e-12).sqrt()
    size = 1.3 * torch.tanh(norm / 1.3)
    even, mixed = torch.cosh(size), torch.sinh(size) / norm
    rows = [torch.stack([even + mixed * a, mixed * b], -1)]
    rows.append(torch.stack([mixed * b, even - mixed * a], -1))
    return torch.stack(rows, -2)
