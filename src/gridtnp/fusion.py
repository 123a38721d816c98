"""Several sources on one grid (section 4.4):

Fuse their tokens before encoding, or their grids after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gridtnp.grid_encoders import GridEncoder
from gridtnp.task import TokenSet


class Fusion(nn.Module, ABC):
    """One grid from the tokens of all sources; every source is present, if only with no tokens."""

    @abstractmethod
    def forward(self, tokens: Mapping[str, TokenSet]) -> Float[Tensor, "batch *grid dz"]: ...


class FuseTokens(Fusion):
    """The paper's "single":

    One grid encoder on the union of all tokens. `mix` acts on every grid point.
    """

    def __init__(self, encoder: GridEncoder, mix: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.mix = nn.Identity() if mix is None else mix

    def forward(self, tokens: Mapping[str, TokenSet]) -> Float[Tensor, "batch *grid dz"]:
        return self.mix(self.encoder(TokenSet.union(list(tokens.values()))))


class FuseGrids(Fusion):
    """The paper's "multi": a grid encoder per source; `mix` merges their grids point by point."""

    def __init__(self, encoders: Mapping[str, GridEncoder], mix: nn.Module) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict(encoders)
        self.mix = mix

    def forward(self, tokens: Mapping[str, TokenSet]) -> Float[Tensor, "batch *grid dz"]:
        return self.mix(
            torch.cat([encoder(tokens[name]) for name, encoder in self.encoders.items()], -1)
        )
