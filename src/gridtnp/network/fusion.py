"""Fusion of several sources on one grid: of their tokens or of their grids (section 4.4)."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gridtnp.network.grid_encoders import GridEncoder
from gridtnp.network.layers import module_name
from gridtnp.task import TokenSet


class Fusion(nn.Module, ABC):
    """Encodes the tokens of all sources onto one grid.

    The tokens of each source come in one or more pieces, which may be empty.
    """

    @abstractmethod
    def forward(
        self, tokens: Mapping[str, Iterable[TokenSet]]
    ) -> Float[Tensor, "batch *grid dz"]: ...


class FuseTokens(Fusion):
    """The paper's "single" encoder: one grid encoder for the union of all tokens.

    `mix` is applied to each grid point.
    """

    def __init__(self, encoder: GridEncoder, mix: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.mix = nn.Identity() if mix is None else mix

    def forward(self, tokens: Mapping[str, Iterable[TokenSet]]) -> Float[Tensor, "batch *grid dz"]:
        return self.mix(self.encoder(itertools.chain.from_iterable(tokens.values())))


class FuseGrids(Fusion):
    """The paper's "multi" encoder: one grid encoder per source; `mix` merges their grids."""

    def __init__(self, encoders: Mapping[str, GridEncoder], mix: nn.Module) -> None:
        super().__init__()
        self.sources = tuple(encoders)
        self.encoders = nn.ModuleDict({module_name(s): e for s, e in encoders.items()})
        self.mix = mix

    def forward(self, tokens: Mapping[str, Iterable[TokenSet]]) -> Float[Tensor, "batch *grid dz"]:
        pairs = zip(self.sources, self.encoders.values(), strict=True)
        grids = [encoder(tokens[source]) for source, encoder in pairs]
        return self.mix(torch.cat(grids, -1))
