"""Token encoders:

One token per observation or target, point by point (the encoder e of section 2.1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gridtnp import ops
from gridtnp.network.embeddings import InputEmbedding
from gridtnp.network.layers import mlp, module_name, steps
from gridtnp.task import PointSet, TokenSet


class TokenEncoder(nn.Module, ABC):
    """Tokens of every source, and of targets. `dim` is their width."""

    dim: int

    @abstractmethod
    def forward(self, source: str, points: PointSet) -> TokenSet:
        """Tokens of a source's observations, from their places and values."""

    @abstractmethod
    def targets(self, points: PointSet) -> TokenSet:
        """Tokens of the places to predict."""


class EmbeddedTokenEncoder(TokenEncoder):
    """An embedding of the place that all share, then one perceptron per source on (place, values).

    If `shared_with` names a source, targets go through that source's perceptron with zeros for
    values, and a flag tells the two apart (0 context, 1 target); otherwise targets have a
    perceptron of their own.
    """

    def __init__(
        self,
        embedding: InputEmbedding,
        sources: Mapping[str, int],
        *,
        dim: int,
        shared_with: str | None = None,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.embedding = embedding
        self.shared_with = shared_with
        self.dims_y = dict(sources)
        self.sources = nn.ModuleDict(
            {
                module_name(name): mlp(dim + dy + (name == shared_with), dim, dim=dim)
                for name, dy in sources.items()
            }
        )
        self.target = None if shared_with else mlp(dim, dim, dim=dim)

    def forward(self, source: str, points: PointSet) -> TokenSet:
        assert points.y is not None
        values = points.y
        if source == self.shared_with:
            values = torch.cat([values, torch.zeros_like(values[..., :1])], -1)
        return self._tokens(self.sources[module_name(source)], points, values)

    def targets(self, points: PointSet) -> TokenSet:
        if self.target is not None:
            return self._tokens(self.target, points, points.x[..., :0])
        assert self.shared_with is not None
        flag = torch.ones_like(points.x[..., :1])
        values = flag.new_zeros((*flag.shape[:-1], self.dims_y[self.shared_with]))
        perceptron = self.sources[module_name(self.shared_with)]
        return self._tokens(perceptron, points, torch.cat([values, flag], -1))

    def _tokens(self, perceptron: nn.Module, points: PointSet, values: Tensor) -> TokenSet:
        assert isinstance(perceptron, nn.Sequential)
        first, *others = perceptron
        assert isinstance(first, nn.Linear)
        features = self.embedding.features(locations(points), values)
        z = ops.rowwise(features, self.embedding.into(first), *steps(*others))
        return TokenSet(points.x, z, points.mask)


class ValueTokenEncoder(TokenEncoder):
    """No encoding, for the ConvCNP:

    A one for the density and the values, each source in its own channels.
    """

    def __init__(self, sources: Mapping[str, int]) -> None:
        super().__init__()
        self.channels = {name: dy + 1 for name, dy in sources.items()}
        self.dim = sum(self.channels.values())
        self.dtype_of = nn.Buffer(
            torch.zeros(()), persistent=False
        )  # follows .to(), as a weight would

    def forward(self, source: str, points: PointSet) -> TokenSet:
        assert points.y is not None
        y = points.y.to(self.dtype_of.dtype)
        own = torch.cat([y.new_ones((*y.shape[:-1], 1)), y], -1)
        blocks = [
            own if name == source else y.new_zeros((*y.shape[:-1], width))
            for name, width in self.channels.items()
        ]
        return TokenSet(points.x, torch.cat(blocks, -1), points.mask)

    def targets(self, points: PointSet) -> TokenSet:
        empty = self.dtype_of.new_zeros((*points.x.shape[:-1], 0))
        return TokenSet(points.x, empty, points.mask)


def locations(points: PointSet) -> Float[Tensor, "batch n d"]:
    """Coordinates and features side by side, as embeddings take them."""
    return points.x if points.features is None else torch.cat([points.x, points.features], -1)
