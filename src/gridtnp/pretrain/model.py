"""The network of the model in the box as a neural process, which is what training takes."""

from __future__ import annotations

from collections.abc import Mapping

from gridtnp.amortised.network import SOURCE, Encoding, Interpolator
from gridtnp.distributions.continuous import NormalMixture
from gridtnp.network.model import NeuralProcess, Signature
from gridtnp.task import PointSet


class InterpolatorProcess(NeuralProcess):
    """Interpolates in a plane."""

    def __init__(self, network: Interpolator) -> None:
        super().__init__(Signature(("x1", "x2"), (), {SOURCE: 1}, 1))
        self.network = network

    def encode(self, context: Mapping[str, PointSet]) -> Encoding:
        return self.network.encode(context)

    def decode(self, encoding: Encoding, target: PointSet) -> NormalMixture:
        return self.network.decode(encoding, target)
