"""Configurations: plain frozen data that describes a model, and `build_model`, all the wiring on
one page.

A configuration is validated when it is made, survives a round trip through JSON, and is all that is
needed to build the model again. Names are mapped to classes here and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator
from torch import nn

from gridtnp.baselines import ANP, CNP, PTTNP, TNP
from gridtnp.embeddings import (
    CellEmbedding,
    Embedding,
    FourierEmbedding,
    InputEmbedding,
    RawEmbedding,
    SphericalHarmonics,
)
from gridtnp.errors import require_known
from gridtnp.fusion import FuseGrids, FuseTokens, Fusion
from gridtnp.grid import Grid
from gridtnp.grid_decoders import (
    AttentionGridDecoder,
    GridDecoder,
    KernelGridDecoder,
)
from gridtnp.grid_encoders import (
    GridEncoder,
    KernelGridEncoder,
    MeanGridEncoder,
    PseudoTokenGridEncoder,
)
from gridtnp.grid_processors import (
    CNNProcessor,
    GridProcessor,
    HierarchicalSwinProcessor,
    SwinProcessor,
    UNetProcessor,
    ViTProcessor,
)
from gridtnp.layers import mlp
from gridtnp.likelihoods import GaussianLikelihood
from gridtnp.model import GriddedTNP, NeuralProcess, Signature
from gridtnp.tokens import EmbeddedTokenEncoder, TokenEncoder, ValueTokenEncoder


class Part(BaseModel):
    """Frozen, and strict about unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Neighbours = PositiveInt | tuple[PositiveInt, ...]
"""Grid points around a location: so many in all (the paper's k), or so many along each axis."""


class Fourier(Part):
    """Sines and cosines of each named coordinate or feature."""

    kind: Literal["fourier"] = "fourier"
    of: tuple[str, ...]
    per_column: PositiveInt
    shortest: PositiveFloat
    longest: PositiveFloat


class Harmonics(Part):
    """Spherical harmonics of latitude and longitude."""

    kind: Literal["harmonics"] = "harmonics"
    of: tuple[str, str] = ("lat", "lon")
    degrees: PositiveInt = 10


class Raw(Part):
    """Features as they are."""

    kind: Literal["raw"] = "raw"
    of: tuple[str, ...]


class Cell(Part):
    """Relative inputs: the place inside the grid cell, along the named axes."""

    kind: Literal["cell"] = "cell"
    of: tuple[str, ...]
    per_column: PositiveInt = 8


class Embedded(Part):
    """Tokens by perceptrons on an embedding of the place.

    `shared_with`: the source whose perceptron targets use.
    """

    kind: Literal["embedded"] = "embedded"
    embedding: tuple[
        Annotated[Fourier | Harmonics | Raw | Cell, Field(discriminator="kind")], ...
    ] = Field(min_length=1)
    shared_with: str | None = None


class Values(Part):
    """Tokens are the values and a density, as in the ConvCNP."""

    kind: Literal["values"] = "values"


class PseudoToken(Part):
    """`shared`: the axes along which pseudo-tokens are the same."""

    kind: Literal["pseudo-token"] = "pseudo-token"
    neighbours: Neighbours = 1
    shared: tuple[str, ...] = ()


class Mean(Part):
    kind: Literal["mean"] = "mean"
    shared: tuple[str, ...] = ()


class Kernel(Part):
    """`neighbours=None` sums over everything.

    Length-scales are initial values in the grid's units.
    """

    kind: Literal["kernel"] = "kernel"
    length_scale: PositiveFloat | tuple[PositiveFloat, ...]
    neighbours: Neighbours | None = 1


class Swin(Part):
    """`shift=None` is half a window.

    `untied`: separate weights for the plain and the shifted pass.
    """

    kind: Literal["swin"] = "swin"
    layers: PositiveInt = 5
    window: tuple[PositiveInt, ...]
    shift: tuple[int, ...] | None = None
    untied: bool = False


class HierarchicalSwin(Part):
    kind: Literal["hierarchical-swin"] = "hierarchical-swin"
    stages: tuple[PositiveInt, ...] = Field(default=(1, 1, 1), min_length=1)
    window: tuple[PositiveInt, ...]
    shift: tuple[int, ...] | None = None
    merge: tuple[PositiveInt, ...]


class ViT(Part):
    """`patch`: grid points per axis that are merged into one first."""

    kind: Literal["vit"] = "vit"
    layers: PositiveInt = 5
    patch: tuple[PositiveInt, ...] | None = None


class CNN(Part):
    kind: Literal["cnn"] = "cnn"
    layers: PositiveInt = 5
    kernel: PositiveInt = 5


class UNet(Part):
    kind: Literal["unet"] = "unet"
    depth: PositiveInt = 2
    kernel: PositiveInt = 5


class Neighbour(Part):
    kind: Literal["neighbour"] = "neighbour"
    neighbours: Neighbours


class Full(Part):
    kind: Literal["full"] = "full"


class GriddedConfig(Part):
    """A gridded model: how tokens get onto the grid, what happens there, how targets read it."""

    kind: Literal["gridded"] = "gridded"
    grid: Grid
    grid_encoder: Annotated[PseudoToken | Kernel | Mean, Field(discriminator="kind")]
    fusion: Literal["single", "multi"] = "single"
    processor: Annotated[Swin | HierarchicalSwin | ViT | CNN | UNet, Field(discriminator="kind")]
    decoder: Annotated[Neighbour | Full | Kernel, Field(discriminator="kind")]


class CNPConfig(Part):
    kind: Literal["cnp"] = "cnp"
    encoder_layers: PositiveInt = 2
    decoder_layers: PositiveInt = 2


class ANPConfig(Part):
    kind: Literal["anp"] = "anp"
    layers: PositiveInt = 2


class TNPConfig(Part):
    kind: Literal["tnp"] = "tnp"
    layers: PositiveInt = 5


class PTTNPConfig(Part):
    kind: Literal["pt-tnp"] = "pt-tnp"
    layers: PositiveInt = 5
    pseudo_tokens: PositiveInt = 128


class ModelConfig(Part):
    """Everything about a model but its weights.

    `sources` gives the number of outputs of each source, `features` names the extra columns of
    every point.
    """

    coordinates: tuple[str, ...] = Field(min_length=1)
    sources: dict[str, PositiveInt] = Field(min_length=1)
    dim_y: PositiveInt = 1
    features: tuple[str, ...] = ()
    tokens: Annotated[Embedded | Values, Field(discriminator="kind")]
    architecture: Annotated[
        GriddedConfig | CNPConfig | ANPConfig | TNPConfig | PTTNPConfig, Field(discriminator="kind")
    ]
    dim: PositiveInt = 128
    heads: PositiveInt = 8
    min_noise: float = Field(default=0.0, ge=0.0)

    @model_validator(mode="after")
    def _names_fit(self) -> ModelConfig:
        for name in self.sources:
            if not name.isidentifier() or hasattr(nn.ModuleDict, name):
                raise ValueError(
                    f"A source name must be a plain word that is free to use, got {name!r}; rename "
                    "it."
                )
        if isinstance(self.tokens, Embedded):
            for part in self.tokens.embedding:
                known = (*self.coordinates, *self.features)
                if isinstance(part, Cell):
                    if not isinstance(self.architecture, GriddedConfig):
                        raise ValueError(
                            "Relative inputs need a grid, and this model has none; "
                            "use a Fourier embedding."
                        )
                    known = self.architecture.grid.names
                for name in part.of:
                    require_known(name, known, "An embedding is of coordinates or features")
            if self.tokens.shared_with is not None:
                rule = "Targets can share the perceptron of a source"
                require_known(self.tokens.shared_with, self.sources, rule)
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> ModelConfig:
        values = isinstance(self.tokens, Values)
        if not isinstance(self.architecture, GriddedConfig):
            if values:
                raise ValueError(
                    "Value tokens belong to the ConvCNP; models without a grid need embedded "
                    "tokens."
                )
            return self
        if self.coordinates != self.architecture.grid.names:
            raise ValueError(
                "The coordinates must be the grid's axes in their order "
                f"{self.architecture.grid.names}, "
                f"got {self.coordinates}."
            )
        kernels = [
            isinstance(p, Kernel)
            for p in (self.architecture.grid_encoder, self.architecture.decoder)
        ]
        if values and not all(kernels):
            raise ValueError(
                "Value tokens need a kernel grid encoder and a kernel decoder; use embedded tokens."
            )
        if kernels[1] and isinstance(self.tokens, Embedded) and self.tokens.shared_with is None:
            raise ValueError(
                "A kernel decoder does not read target tokens, so they cannot have a perceptron of "
                "their own; "
                "name a source in shared_with or use value tokens."
            )
        return self


def build_model(config: ModelConfig) -> NeuralProcess:
    """The model that a configuration describes, with fresh weights from torch's random
    generator.
    """
    signature = Signature(config.coordinates, config.features, dict(config.sources), config.dim_y)
    a, dim, heads = config.architecture, config.dim, config.heads

    def likelihood(dim_in: int = dim, hidden_layers: int = 2) -> GaussianLikelihood:
        return GaussianLikelihood(
            dim_in, config.dim_y, dim=dim, hidden_layers=hidden_layers, min_noise=config.min_noise
        )

    if isinstance(a, CNPConfig):
        head = likelihood(2 * dim, a.decoder_layers)
        return CNP(signature, _embedding(config), head, dim=dim, hidden_layers=a.encoder_layers)
    tokens = _tokens(config)
    if isinstance(a, ANPConfig):
        return ANP(signature, tokens, likelihood(2 * dim), dim=dim, heads=heads, layers=a.layers)
    if isinstance(a, TNPConfig):
        return TNP(signature, tokens, likelihood(), dim=dim, heads=heads, layers=a.layers)
    if isinstance(a, PTTNPConfig):
        return PTTNP(
            signature,
            tokens,
            likelihood(),
            dim=dim,
            heads=heads,
            layers=a.layers,
            pseudo_tokens=a.pseudo_tokens,
        )
    processor = _processor(a, dim, heads)
    decoder = _decoder(a, processor, dim, heads)
    return GriddedTNP(
        signature, a.grid, tokens, _fusion(config, a, tokens), processor, decoder, likelihood()
    )


def _embedding(config: ModelConfig) -> InputEmbedding:
    assert isinstance(config.tokens, Embedded)
    columns = (*config.coordinates, *config.features)
    parts: list[tuple[list[int], Embedding]] = []
    for part in config.tokens.embedding:
        if isinstance(part, Fourier):
            module = FourierEmbedding(
                len(part.of),
                per_column=part.per_column,
                shortest=part.shortest,
                longest=part.longest,
            )
        elif isinstance(part, Harmonics):
            module = SphericalHarmonics(part.degrees)
        elif isinstance(part, Cell):
            assert isinstance(config.architecture, GriddedConfig)
            module = CellEmbedding(config.architecture.grid, part.of, per_column=part.per_column)
        else:
            module = RawEmbedding(len(part.of))
        parts.append(([columns.index(name) for name in part.of], module))
    return InputEmbedding(parts, config.dim)


def _tokens(config: ModelConfig) -> TokenEncoder:
    if isinstance(config.tokens, Values):
        return ValueTokenEncoder(config.sources)
    return EmbeddedTokenEncoder(
        _embedding(config), config.sources, dim=config.dim, shared_with=config.tokens.shared_with
    )


def _fusion(config: ModelConfig, a: GriddedConfig, tokens: TokenEncoder) -> Fusion:
    def encoder() -> GridEncoder:
        e = a.grid_encoder
        if isinstance(e, PseudoToken):
            width = _width(a.grid, e.neighbours)
            return PseudoTokenGridEncoder(
                a.grid, dim=config.dim, heads=config.heads, width=width, shared=e.shared
            )
        if isinstance(e, Mean):
            return MeanGridEncoder(a.grid, dim=config.dim, shared=e.shared)
        width = None if e.neighbours is None else _width(a.grid, e.neighbours)
        return KernelGridEncoder(a.grid, length_scale=e.length_scale, width=width)

    values = isinstance(config.tokens, Values)
    if a.fusion == "single":
        return FuseTokens(
            encoder(), mlp(tokens.dim, config.dim, dim=config.dim) if values else None
        )
    side_by_side = tokens.dim * len(config.sources)
    mix = (
        mlp(side_by_side, config.dim, dim=config.dim)
        if values
        else nn.Linear(side_by_side, config.dim)
    )
    return FuseGrids({name: encoder() for name in config.sources}, mix)


def _processor(a: GriddedConfig, dim: int, heads: int) -> GridProcessor:
    p = a.processor
    if isinstance(p, CNN):
        return CNNProcessor(a.grid, dim=dim, layers=p.layers, kernel=p.kernel)
    if isinstance(p, UNet):
        return UNetProcessor(a.grid, dim=dim, depth=p.depth, kernel=p.kernel)
    if isinstance(p, ViT):
        return ViTProcessor(a.grid, dim=dim, heads=heads, layers=p.layers, patch=p.patch)
    shift = tuple(w // 2 for w in p.window) if p.shift is None else p.shift
    if isinstance(p, HierarchicalSwin):
        return HierarchicalSwinProcessor(
            a.grid,
            dim=dim,
            heads=heads,
            stages=p.stages,
            window=p.window,
            shift=shift,
            merge=p.merge,
        )
    return SwinProcessor(
        a.grid, dim=dim, heads=heads, layers=p.layers, window=p.window, shift=shift, untied=p.untied
    )


def _decoder(a: GriddedConfig, processor: GridProcessor, dim: int, heads: int) -> GridDecoder:
    d = a.decoder
    near = None if isinstance(d, Full) else d.neighbours
    width = None if near is None else _width(a.grid, near)
    if isinstance(d, Kernel):
        return KernelGridDecoder(processor.grids, length_scale=d.length_scale, width=width)
    return AttentionGridDecoder(processor.grids, dim=dim, heads=heads, width=width)


def _width(grid: Grid, neighbours: Neighbours) -> tuple[int, ...]:
    return (
        grid.width(neighbours)
        if isinstance(neighbours, int)
        else grid.per_axis(neighbours, "neighbours")
    )
