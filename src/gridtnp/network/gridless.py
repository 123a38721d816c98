"""Neural processes without a grid: CNP, ANP, TNP and PT-TNP (appendix A)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from gridtnp import ops
from gridtnp.network.embeddings import InputEmbedding
from gridtnp.network.layers import AttentionBlock, mlp, module_name
from gridtnp.network.likelihoods import LikelihoodHead
from gridtnp.network.model import NeuralProcess, Signature
from gridtnp.network.tokens import TokenEncoder, locations
from gridtnp.task import PointSet, TokenSet


class CNP(NeuralProcess):
    """Conditional neural process (Garnelo et al., 2018).

    The means of the tokens of each source are summed over sources. The likelihood's head takes this
    sum and the embedded target location, twice the token width.
    """

    def __init__(
        self,
        signature: Signature,
        embedding: InputEmbedding,
        likelihood: LikelihoodHead,
        *,
        dim: int,
        hidden_layers: int,
    ) -> None:
        super().__init__(signature)
        self.embedding = embedding
        self.sources = nn.ModuleDict(
            {
                module_name(name): mlp(dim + dy, dim, dim=dim, hidden_layers=hidden_layers)
                for name, dy in signature.values.items()
            }
        )
        self.likelihood = likelihood

    def encode(self, context: Mapping[str, PointSet]) -> Float[Tensor, "batch 1 dz"]:
        means = []
        for name, points in context.items():
            x = self.embedding(locations(points))
            z = self.sources[module_name(name)](torch.cat([x, points.values.to(x.dtype)], -1))
            weight = x.new_ones(x.shape[:2]) if points.mask is None else points.mask.to(x.dtype)
            total = torch.einsum("bn,bnd->bd", weight, z)
            means.append(total / weight.sum(1, keepdim=True).clamp_min(1))
        return torch.stack(means).sum(0).unsqueeze(1)

    def decode(self, encoding: Float[Tensor, "batch 1 dz"], target: PointSet) -> Distribution:
        x = self.embedding(locations(target))
        return self.likelihood(torch.cat([encoding.expand(-1, x.shape[1], -1), x], -1))


class ANP(NeuralProcess):
    """Attentive neural process (Kim et al., 2019): targets attend to the context by location.

    Queries and keys come from tokens of the locations alone, values from context tokens after
    self-attention. The likelihood's head takes the attention output and the target token, twice the
    token width.
    """

    def __init__(
        self,
        signature: Signature,
        tokens: TokenEncoder,
        likelihood: LikelihoodHead,
        *,
        dim: int,
        heads: int,
        layers: int,
    ) -> None:
        super().__init__(signature)
        self.heads = heads
        self.tokens = tokens
        self.blocks = nn.ModuleList(AttentionBlock(dim, heads) for _ in range(layers))
        self.project = nn.ModuleDict(
            {role: nn.Linear(dim, dim) for role in ("query", "key", "value", "out")}
        )
        self.likelihood = likelihood

    def encode(self, context: Mapping[str, PointSet]) -> tuple[Tensor, Tensor, Tensor | None]:
        tokens = union(self.tokens, context)
        z = tokens.z
        for block in self.blocks:
            z = block(z, None, partial(ops.full_attention, mask=tokens.mask))
        x = torch.cat([self.tokens.targets(points).z for points in context.values()], 1)
        return self._heads("key", x), self._heads("value", z), tokens.mask

    def decode(
        self, encoding: tuple[Tensor, Tensor, Tensor | None], target: PointSet
    ) -> Distribution:
        x = self.tokens.targets(target).z
        attended = ops.full_attention(self._heads("query", x), *encoding).flatten(-2)
        return self.likelihood(torch.cat([self.project["out"](attended), x], -1))

    def _heads(self, role: str, z: Tensor) -> Tensor:
        return self.project[role](z).unflatten(-1, (self.heads, -1))


class TNP(NeuralProcess):
    """Transformer neural process: target tokens attend to the context after each layer (eq. 12)."""

    def __init__(
        self,
        signature: Signature,
        tokens: TokenEncoder,
        likelihood: LikelihoodHead,
        *,
        dim: int,
        heads: int,
        layers: int,
    ) -> None:
        super().__init__(signature)
        self.tokens = tokens
        self.context_blocks = nn.ModuleList(AttentionBlock(dim, heads) for _ in range(layers))
        self.target_blocks = nn.ModuleList(AttentionBlock(dim, heads) for _ in range(layers))
        self.likelihood = likelihood

    def encode(self, context: Mapping[str, PointSet]) -> tuple[list[Tensor], Tensor | None]:
        tokens = union(self.tokens, context)
        attend = partial(ops.full_attention, mask=tokens.mask)
        states = [tokens.z]
        for block in self.context_blocks:
            states.append(block(states[-1], None, attend))
        return states[1:], tokens.mask

    def decode(
        self, encoding: tuple[list[Tensor], Tensor | None], target: PointSet
    ) -> Distribution:
        states, mask = encoding
        z = update_targets(self.target_blocks, self.tokens.targets(target).z, states, mask)
        return self.likelihood(z)


class PTTNP(NeuralProcess):
    """Induced set transformer: a few pseudo-tokens between context and targets (eq. 13)."""

    def __init__(
        self,
        signature: Signature,
        tokens: TokenEncoder,
        likelihood: LikelihoodHead,
        *,
        dim: int,
        heads: int,
        layers: int,
        pseudo_tokens: int,
    ) -> None:
        super().__init__(signature)
        if pseudo_tokens < 1:
            raise ValueError(f"pseudo_tokens={pseudo_tokens}: must be at least 1.")
        self.tokens = tokens
        self.pseudo_tokens = nn.Parameter(torch.randn(pseudo_tokens, dim))
        self.gather_blocks = nn.ModuleList(AttentionBlock(dim, heads) for _ in range(layers))
        self.target_blocks = nn.ModuleList(AttentionBlock(dim, heads) for _ in range(layers))
        self.context_blocks = nn.ModuleList(AttentionBlock(dim, heads) for _ in range(layers - 1))
        self.likelihood = likelihood

    def encode(self, context: Mapping[str, PointSet]) -> list[Tensor]:
        tokens = union(self.tokens, context)
        z = tokens.z
        u = self.pseudo_tokens.expand(z.shape[0], -1, -1)
        states = []
        for layer, gather in enumerate(self.gather_blocks):
            if layer > 0:  # updated here, because nothing reads the context after the last layer
                z = cross_attend(self.context_blocks[layer - 1], z, u, None)
            u = cross_attend(gather, u, z, tokens.mask)
            states.append(u)
        return states

    def decode(self, encoding: list[Tensor], target: PointSet) -> Distribution:
        z = update_targets(self.target_blocks, self.tokens.targets(target).z, encoding, None)
        return self.likelihood(z)


def union(encoder: TokenEncoder, context: Mapping[str, PointSet]) -> TokenSet:
    """The tokens of all sources as one set."""
    return TokenSet.union([encoder(name, points) for name, points in context.items()])


def cross_attend(block: nn.Module, x: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
    """Update `x` by attention to the context where the mask is True."""
    assert isinstance(block, AttentionBlock)
    return block(x, block.keys_values(context), partial(ops.full_attention, mask=mask))


def update_targets(
    blocks: nn.ModuleList, z: Tensor, states: list[Tensor], mask: Tensor | None
) -> Tensor:
    """Target tokens attend to the state after each layer in turn, each with its own block."""
    for block, state in zip(blocks, states, strict=True):
        z = cross_attend(block, z, state, mask)
    return z
