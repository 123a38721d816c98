"""Token encoders: one token per observation and per target (the encoder e of section 2.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gridtnp import ops
from gridtnp.network.embeddings import InputEmbedding
from gridtnp.network.layers import MLP, is_plain, mlp, module_name, steps
from gridtnp.task import PointSet, TokenSet


class TokenEncoder(nn.Module, ABC):
    """Tokens of the observations of each source, and of targets. `dim` is their width."""

    dim: int

    @abstractmethod
    def forward(self, source: str, points: PointSet) -> TokenSet:
        """Tokens of a source's observations, from their locations and values."""

    @abstractmethod
    def targets(self, points: PointSet) -> TokenSet:
        """Tokens of the locations to predict at."""


class EmbeddedTokenEncoder(TokenEncoder):
    """A shared embedding of the location, then one MLP per source on (embedding, values).

    If `shared_with` names a source, targets use the MLP of that source with zeros as values and a
    flag (0 context, 1 target); otherwise targets have a separate MLP. `sources` are the numbers of
    values of each source, reading errors included.
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
        values = points.values
        if source == self.shared_with:
            values = torch.cat([values, torch.zeros_like(values[..., :1])], -1)
        return self._tokens(self.sources[module_name(source)], points, values)

    def targets(self, points: PointSet) -> TokenSet:
        if self.target is not None:
            return self._tokens(self.target, points, points.x[..., :0])
        assert self.shared_with is not None
        flag = torch.ones_like(points.x[..., :1])
        values = flag.new_zeros((*flag.shape[:-1], self.dims_y[self.shared_with]))
        encoder = self.sources[module_name(self.shared_with)]
        return self._tokens(encoder, points, torch.cat([values, flag], -1))

    def _tokens(self, encoder: nn.Module, points: PointSet, values: Tensor) -> TokenSet:
        assert isinstance(encoder, MLP)
        first, *others = encoder.children()
        embedding = self.embedding
        own_ways = not is_plain(encoder, MLP) or not is_plain(embedding, InputEmbedding)
        if is_plain(first, nn.Linear) and is_plain(embedding.mix, nn.Linear) and not own_ways:
            features = embedding.features(locations(points), values)
            z = ops.rowwise(features, embedding.fused_with(first), *steps(*others))
        else:
            z = encoder(torch.cat([embedding(locations(points)), values], -1))
        return TokenSet(points.x, z, points.mask)


class ValueTokenEncoder(TokenEncoder):
    """Density (ones) and values, each source in its own channels, for the ConvCNP (appendix A)."""

    def __init__(self, sources: Mapping[str, int]) -> None:
        super().__init__()
        self.channels = {name: dy + 1 for name, dy in sources.items()}
        self.dim = sum(self.channels.values())
        # There are no weights, so this buffer records the dtype and device set by .to().
        self.like = nn.Buffer(torch.zeros(()), persistent=False)

    def forward(self, source: str, points: PointSet) -> TokenSet:
        y = points.values.to(self.like.dtype)
        own = torch.cat([y.new_ones((*y.shape[:-1], 1)), y], -1)
        blocks = [
            own if name == source else y.new_zeros((*y.shape[:-1], width))
            for name, width in self.channels.items()
        ]
        return TokenSet(points.x, torch.cat(blocks, -1), points.mask)

    def targets(self, points: PointSet) -> TokenSet:
        empty = self.like.new_zeros((*points.x.shape[:-1], 0))
        return TokenSet(points.x, empty, points.mask)


def locations(points: PointSet) -> Float[Tensor, "batch n d"]:
    """Coordinates and features, concatenated: the input of an `InputEmbedding`."""
    return points.x if points.features is None else torch.cat([points.x, points.features], -1)
