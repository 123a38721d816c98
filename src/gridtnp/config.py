"""Configurations: plain frozen data that describes a model.

A configuration is validated when it is made, survives a round trip through JSON, and is all that is
needed to build the model again (`build.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator
from torch import nn

from gridtnp.errors import require_known
from gridtnp.grid import Grid

Positions = Literal["absolute", "relative"]
"""Whether tokens know where they are, as in the paper, or only where they are from each other."""


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
    """A gridded model: how tokens get onto the grid, what happens there, how targets read it.

    With `positions="relative"` nothing in it knows where on the grid it is: one pseudo-token serves
    all cells, windows and decoders know offsets, and places are embedded by `Cell`. What is learned
    in one cell holds in all of them, and in those of a larger grid (`ModelConfig.on`). The paper's
    models are "absolute".
    """

    kind: Literal["gridded"] = "gridded"
    grid: Grid
    grid_encoder: Annotated[PseudoToken | Kernel | Mean, Field(discriminator="kind")]
    fusion: Literal["single", "multi"] = "single"
    processor: Annotated[Swin | HierarchicalSwin | ViT | CNN | UNet, Field(discriminator="kind")]
    decoder: Annotated[Neighbour | Full | Kernel, Field(discriminator="kind")]
    positions: Positions = "absolute"


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
            words = all(word.isidentifier() for word in name.split("."))
            if not words or hasattr(nn.ModuleDict, name):
                raise ValueError(
                    "A source name must be a plain word that is free to use, or words with dots "
                    f"between them, got {name!r}; rename it."
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
                    require_known(name, known, "coordinate or feature", "in an embedding")
            if self.tokens.shared_with is not None:
                require_known(self.tokens.shared_with, self.sources, "source", "in shared_with")
        return self

    @model_validator(mode="after")
    def _positions_fit(self) -> ModelConfig:
        a = self.architecture
        if not isinstance(a, GriddedConfig) or a.positions == "absolute":
            return self
        if isinstance(a.processor, ViT) or isinstance(a.decoder, Full):
            raise ValueError(
                "Relative positions need attention among neighbours: a Swin or convolutional "
                "processor and a neighbour or kernel decoder."
            )
        for part in self.tokens.embedding if isinstance(self.tokens, Embedded) else ():
            if not isinstance(part, Cell) and set(part.of) & set(self.coordinates):
                raise ValueError(
                    "With relative positions, coordinates must be embedded by Cell, which knows no "
                    f"more than the place inside a cell; got {part.kind} of {part.of}."
                )
        return self

    def relative(self) -> ModelConfig:
        """The same model with relative positions."""
        a, tokens = self.architecture, self.tokens
        if not isinstance(a, GriddedConfig):
            raise ValueError("Relative positions need a grid, and this model has none.")
        if isinstance(tokens, Embedded):
            embedding = [
                Cell(of=part.of) if set(part.of) <= set(self.coordinates) else part
                for part in tokens.embedding
            ]
            tokens = tokens.model_copy(update={"embedding": tuple(embedding)})
        a = a.model_copy(update={"positions": "relative"})
        return ModelConfig.model_validate(dict(self) | {"architecture": a, "tokens": tokens})

    def on(self, grid: Grid) -> ModelConfig:
        """The same model on another grid with cells of the same size. Its weights fit there too."""
        a = self.architecture
        if not isinstance(a, GriddedConfig) or a.positions != "relative":
            raise ValueError(
                "Only a gridded model with relative positions can move to another grid; train it "
                'with positions="relative".'
            )
        spacings = [[axis.step for axis in g.axes] for g in (a.grid, grid)]
        if grid.names != a.grid.names or any(
            abs(old - new) > 1e-6 * old for old, new in zip(*spacings, strict=True)
        ):
            raise ValueError(
                f"The grid must have axes {a.grid.names} with spacings {spacings[0]}, got "
                f"{grid.names} with {spacings[1]}."
            )
        return ModelConfig.model_validate(
            dict(self) | {"architecture": a.model_copy(update={"grid": grid})}
        )

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
