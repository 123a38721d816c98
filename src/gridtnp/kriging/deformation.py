"""Covariances that differ from place to place: a deformation of space.

Winds decorrelate faster along a coast than over the open sea, and temperatures vary more in
valleys. A stationary covariance fits better after a smooth change of coordinates (Sampson and
Guttorp, 1992), with an amplitude and a noise that vary along them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

WIDTH = 32
"""Hidden units in each of the two layers."""
FOLDS = 2
"""Additional coordinates, in which places that are near each other can be far apart."""
UNFOLDED = 0.05
"""Standard deviation of their first weights; all others of the last layer start at zero."""


@dataclass(frozen=True, eq=False)
class Deformed:
    """New coordinates of points, additional ones, and the factors of amplitude and noise there."""

    coordinates: Float[Tensor, "*batch n d"]
    additional: Float[Tensor, "*batch n k"]
    amplitude: Float[Tensor, "*batch n"]
    noise: Float[Tensor, "*batch n"]


class Deformation(nn.Module):
    """x ↦ x + s f((x − c) / s), and factors exp f, where f is a perceptron.

    It is the identity until `start` gives it random weights. Like other hyper-parameters, its
    weights are fitted before the network is trained.
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, coordinates: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(coordinates))
        self.register_buffer("spread", torch.ones(coordinates))
        widths = [coordinates, WIDTH, WIDTH, coordinates + FOLDS + 2]
        for i, (n, m) in enumerate(itertools.pairwise(widths)):
            self.register_buffer(f"weight_{i}", torch.zeros(m, n))
            self.register_buffer(f"bias_{i}", torch.zeros(m))
        self.layers = len(widths) - 1

    def weights(self) -> list[Tensor]:
        """Of all layers."""
        return [self.get_buffer(f"{k}_{i}") for i in range(self.layers) for k in ("weight", "bias")]

    @torch.no_grad()
    def start(self, x: Float[Tensor, "n d"], generator: torch.Generator) -> None:
        """Random weights, and the scale of the coordinates; nearly the identity."""
        self.centre.copy_(x.mean(0))
        self.spread.copy_(x.std(0).clamp_min(1e-6))
        for i in range(self.layers - 1):
            for name in (f"weight_{i}", f"bias_{i}"):
                values = self.get_buffer(name)
                bound = self.get_buffer(f"weight_{i}").shape[1] ** -0.5
                drawn = torch.rand(values.shape, generator=generator) * 2 - 1
                values.copy_((bound * drawn).to(values.device))
        last = self.get_buffer(f"weight_{self.layers - 1}")[-FOLDS - 2 : -2]
        last.copy_((UNFOLDED * torch.randn(last.shape, generator=generator)).to(last.device))

    def outputs(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n e"]:
        """f: displacements, additional coordinates, and the logarithms of the two factors."""
        z = (x - self.centre.double()) / self.spread.double()
        *hidden, (weight, bias) = zip(self.weights()[::2], self.weights()[1::2], strict=True)
        for w, b in hidden:
            z = torch.tanh(F.linear(z, w.double(), b.double()))
        return F.linear(z, weight.double(), bias.double())

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Deformed:
        f = self.outputs(x)
        moved, additional, factors = f.split([x.shape[-1], FOLDS, 2], -1)
        return Deformed(x + self.spread.double() * moved, additional, *factors.exp().unbind(-1))
