"""Configurations: plain frozen data that describe a model.

A configuration is validated on construction, survives a round trip through JSON, and is all that
`build_model` needs.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from torch import nn

from gridtnp.distributions.kinds import Likelihood, limits, second_of_pairs
from gridtnp.errors import in_sentences, require_known
from gridtnp.grid import Grid

Positions = Literal["absolute", "relative"]
"""Absolute positions, as in the paper, or positions relative to other tokens only."""


@in_sentences
class Part(BaseModel):
    """Base of all configurations: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Neighbours = PositiveInt | tuple[PositiveInt, ...]
"""Nearest grid points of a location: their total number (the paper's k), or one number per axis."""
Smooth = bool | tuple[str, ...]
"""Whether grid points fade in and out of neighbourhoods, at least two per axis, without jumps at
the borders of cells (docs/models.md). Grid encoders may name the sources for which they do."""


class Fourier(Part):
    """Sines and cosines of each named coordinate or feature at log-spaced wavelengths."""

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
    """Features without a transformation."""

    kind: Literal["raw"] = "raw"
    of: tuple[str, ...]


class Cell(Part):
    """The position within the grid cell along the named axes, instead of the coordinates."""

    kind: Literal["cell"] = "cell"
    of: tuple[str, ...]
    per_column: PositiveInt = 8
    smooth: bool = False


class Embedded(Part):
    """Tokens from an MLP on the embedded location and the values.

    `shared_with` is the source whose MLP targets use; without it, they have a separate one.
    """

    kind: Literal["embedded"] = "embedded"
    embedding: tuple[
        Annotated[Fourier | Harmonics | Raw | Cell, Field(discriminator="kind")], ...
    ] = Field(min_length=1)
    shared_with: str | None = None


class Values(Part):
    """Tokens of values and a density, as in the ConvCNP."""

    kind: Literal["values"] = "values"


class PseudoToken(Part):
    """Pseudo-token grid encoder (PT-GE); pseudo-tokens are shared along the axes in `shared`."""

    kind: Literal["pseudo-token"] = "pseudo-token"
    neighbours: Neighbours = 1
    shared: tuple[str, ...] = ()
    smooth: Smooth = False


class Mean(Part):
    """Mean of the tokens in each cell (Avg-GE) plus a learned token, shared as in `PseudoToken`."""

    kind: Literal["mean"] = "mean"
    shared: tuple[str, ...] = ()
    smooth: Smooth = False


class Kernel(Part):
    """Kernel interpolation to or from the grid; `neighbours=None` sums over all points.

    Length-scales are initial values in the units of the grid's distance.
    """

    kind: Literal["kernel"] = "kernel"
    length_scale: PositiveFloat | tuple[PositiveFloat, ...]
    neighbours: Neighbours | None = 1
    smooth: Smooth = False


class Swin(Part):
    """Swin transformer; `shift=None` is half a window.

    With `untied`, the plain and the shifted pass have separate weights.
    """

    kind: Literal["swin"] = "swin"
    layers: PositiveInt = 5
    window: tuple[PositiveInt, ...]
    shift: tuple[int, ...] | None = None
    untied: bool = False


class HierarchicalSwin(Part):
    """Swin layers on a pyramid of grids; `stages` is the number of layers per level."""

    kind: Literal["hierarchical-swin"] = "hierarchical-swin"
    stages: tuple[PositiveInt, ...] = Field(default=(1, 1, 1), min_length=1)
    window: tuple[PositiveInt, ...]
    shift: tuple[int, ...] | None = None
    merge: tuple[PositiveInt, ...]


class ViT(Part):
    """Vision transformer; `patch` is the number of grid points per axis merged into one token."""

    kind: Literal["vit"] = "vit"
    layers: PositiveInt = 5
    patch: tuple[PositiveInt, ...] | None = None


class CNN(Part):
    """Convolutions at the resolution of the grid."""

    kind: Literal["cnn"] = "cnn"
    layers: PositiveInt = 5
    kernel: PositiveInt = 5


class UNet(Part):
    """U-Net with `depth` poolings."""

    kind: Literal["unet"] = "unet"
    depth: PositiveInt = 2
    kernel: PositiveInt = 5


class Neighbour(Part):
    """Targets attend to their nearest grid points (NN-CA)."""

    kind: Literal["neighbour"] = "neighbour"
    neighbours: Neighbours
    smooth: bool = False


class Full(Part):
    """Targets attend to the entire grid."""

    kind: Literal["full"] = "full"


class GriddedConfig(Part):
    """A gridded model: grid encoder, fusion of sources, grid processor and grid decoder.

    With `positions="relative"` the model has no absolute positions: all cells share one
    pseudo-token, windows and decoders use offsets, and locations are embedded with `Cell`. It
    treats all cells alike and can be used on larger grids (`ModelConfig.on`). The paper's models
    have absolute positions.
    """

    kind: Literal["gridded"] = "gridded"
    grid: Grid
    grid_encoder: Annotated[PseudoToken | Kernel | Mean, Field(discriminator="kind")]
    fusion: Literal["single", "multi"] = "single"
    processor: Annotated[Swin | HierarchicalSwin | ViT | CNN | UNet, Field(discriminator="kind")]
    decoder: Annotated[Neighbour | Full | Kernel, Field(discriminator="kind")]
    positions: Positions = "absolute"


class CNPConfig(Part):
    """Conditional neural process; layers are hidden layers of its MLPs."""

    kind: Literal["cnp"] = "cnp"
    encoder_layers: PositiveInt = 2
    decoder_layers: PositiveInt = 2


class ANPConfig(Part):
    """Attentive neural process."""

    kind: Literal["anp"] = "anp"
    layers: PositiveInt = 2


class TNPConfig(Part):
    """Transformer neural process."""

    kind: Literal["tnp"] = "tnp"
    layers: PositiveInt = 5


class PTTNPConfig(Part):
    """Pseudo-token TNP: the induced set transformer."""

    kind: Literal["pt-tnp"] = "pt-tnp"
    layers: PositiveInt = 5
    pseudo_tokens: PositiveInt = 128


class GriddedField(Part):
    """Columns of a gridded source whose values at any point are features; `grid` is its own grid.

    A time axis is in hours from the time of the task.
    """

    source: str
    columns: tuple[int, ...] = Field(min_length=1)
    grid: Grid


class Kriging(Part):
    """Regression and a Gaussian process given the context, corrected by the network.

    `of` names the source and the column that observe each output, or None if none does. The mean is
    linear in `features` and `fields`; in every task the coefficients of `drift` and `fields` have
    a deviation of their own, and `drift` counts as distance too. `length_scale` (degrees, or units
    of the coordinates) and `hours` initialise hyper-parameters. `powers` are those of the values
    that are kriged, one for each output: 1/2 kriges their roots, which only outputs that are never
    negative have; without any, values are kriged as they are. `pretrained` blends the answer with
    that of the pretrained process: None leaves it to `fit`, which does where it can. Of up to
    `places` places, deviations from the regression that persist from task to task are kept, if
    validation tasks support that.
    """

    kind: Literal["kriging"] = "kriging"
    of: tuple[tuple[str, int] | None, ...] = Field(min_length=1)
    features: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    fields: tuple[GriddedField, ...] = ()
    length_scale: PositiveFloat = 1.0
    hours: PositiveFloat = 24.0
    powers: tuple[Annotated[float, Field(gt=0.0, le=1.0)], ...] = ()
    pretrained: bool | None = None
    places: NonNegativeInt = 0


class ModelConfig(Part):
    """Everything about a model except its weights.

    `sources` maps each source to its number of values, `dim_y` is the number of outputs, `features`
    names the covariates of each point. `likelihood` has one entry per output; without any, all are
    Gaussian. `errors` are the sources with known reading errors, which the network sees.
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
    prior: Kriging | None = None
    likelihood: tuple[Likelihood, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def is_gaussian(self) -> bool:
        """Whether all outputs are normal."""
        return all(one.kind == "gaussian" for one in self.likelihood)

    @model_validator(mode="after")
    def _likelihood_fits(self) -> ModelConfig:
        if len(self.likelihood) not in (0, self.dim_y):
            raise ValueError(
                f"The model has {len(self.likelihood)} likelihoods for {self.dim_y} outputs; give "
                "one for each, or none."
            )
        second_of_pairs(self.likelihood)
        return self

    @model_validator(mode="after")
    def _names_fit(self) -> ModelConfig:
        for name in self.sources:
            owner, dot, variable = name.partition(".")
            valid = owner and (variable or not dot) and name.isprintable() and "/" not in name
            if not valid or hasattr(nn.ModuleDict, name):
                raise ValueError(
                    f"Source name {name!r} is reserved, or not 'source' or 'source.variable' "
                    "without slashes; rename it."
                )
        for name in self.errors:
            require_known(name, self.sources, "source", "in errors")
        if isinstance(self.tokens, Embedded):
            for part in self.tokens.embedding:
                known = (*self.coordinates, *self.features)
                if isinstance(part, Cell):
                    if not isinstance(self.architecture, GriddedConfig):
                        raise ValueError(
                            "A Cell embedding needs a grid, and this model has none; use a Fourier "
                            "embedding."
                        )
                    known = self.architecture.grid.names
                for name in part.of:
                    require_known(name, known, "coordinate or feature", "in an embedding")
            if self.tokens.shared_with is not None:
                require_known(self.tokens.shared_with, self.sources, "source", "in shared_with")
        return self

    @model_validator(mode="after")
    def _prior_fits(self) -> ModelConfig:
        prior = self.prior
        if prior is None:
            return self
        if self.min_noise >= 1:
            raise ValueError(
                f"min_noise={self.min_noise:g}: must be below 1 for a network that corrects "
                "kriging, as it counts in standard deviations of kriging."
            )
        if len(prior.of) != self.dim_y:
            raise ValueError(
                f"The prior observes {len(prior.of)} outputs, but the model has {self.dim_y}; name "
                "a source and a column for each."
            )
        if len(prior.powers) not in (0, self.dim_y):
            raise ValueError(
                f"The prior has {len(prior.powers)} powers for {self.dim_y} outputs; give one for "
                "each, or none."
            )
        kinds = self.likelihood or (Likelihood(),) * self.dim_y
        for kind, power in zip(kinds, prior.powers, strict=False):
            if power != 1 and limits(kind)[0] < 0:
                raise ValueError(
                    f"The prior has power {power:g} for a {kind.kind} output, whose values may be "
                    "negative; use 1."
                )
        columns = [pair for pair in prior.of if pair is not None]
        columns += [(field.source, column) for field in prior.fields for column in field.columns]
        for source, column in columns:
            require_known(source, self.sources, "source", "in the prior")
            if not 0 <= column < self.sources[source]:
                raise ValueError(
                    f"Column {column} of source {source!r} in the prior does not exist; the source "
                    f"has {self.sources[source]}."
                )
        for name in (*prior.features, *prior.drift):
            require_known(name, self.features, "feature", "in the prior")
        for field in prior.fields:
            if field.grid.names != self.coordinates:
                raise ValueError(
                    f"The grid of field {field.source!r} in the prior has axes {field.grid.names}, "
                    f"but the model's coordinates are {self.coordinates}."
                )
        if isinstance(self.tokens, Values):
            raise ValueError(
                "Value tokens have no features, through which a network sees the prior; use "
                "embedded tokens."
            )
        return self

    @model_validator(mode="after")
    def _positions_fit(self) -> ModelConfig:
        a = self.architecture
        if not isinstance(a, GriddedConfig) or a.positions == "absolute":
            return self
        if isinstance(a.processor, ViT) or isinstance(a.decoder, Full):
            raise ValueError(
                "Full attention has no relative positions; use a Swin or convolutional processor "
                "and a neighbour or kernel decoder."
            )
        for part in self.tokens.embedding if isinstance(self.tokens, Embedded) else ():
            if not isinstance(part, Cell) and set(part.of) & set(self.coordinates):
                raise ValueError(
                    f"The {part.kind} embedding of {part.of} has absolute positions; with "
                    'positions="relative", embed coordinates with Cell.'
                )
        return self

    def relative(self) -> ModelConfig:
        """This configuration with relative positions."""
        a, tokens = self.architecture, self.tokens
        if not isinstance(a, GriddedConfig):
            raise ValueError("The model has no grid, which relative positions need.")
        if isinstance(tokens, Embedded):
            embedding = [
                Cell(of=part.of)
                if not isinstance(part, Cell) and set(part.of) <= set(self.coordinates)
                else part
                for part in tokens.embedding
            ]
            tokens = tokens.model_copy(update={"embedding": tuple(embedding)})
        a = a.model_copy(update={"positions": "relative"})
        return ModelConfig.model_validate(dict(self) | {"architecture": a, "tokens": tokens})

    def smooth(self) -> ModelConfig:
        """This configuration without jumps at the borders of cells (`docs/models.md`)."""
        a, tokens = self.architecture, self.tokens
        if not isinstance(a, GriddedConfig):
            return self
        if isinstance(tokens, Embedded):
            embedding = tuple(_smooth(p) if isinstance(p, Cell) else p for p in tokens.embedding)
            tokens = tokens.model_copy(update={"embedding": embedding})
        decoder = a.decoder if isinstance(a.decoder, Full) else _smooth(a.decoder)
        a = a.model_copy(update={"grid_encoder": _smooth(a.grid_encoder), "decoder": decoder})
        return ModelConfig.model_validate(dict(self) | {"architecture": a, "tokens": tokens})

    def on(self, grid: Grid) -> ModelConfig:
        """This configuration on another grid with cells of the same size; weights fit both."""
        a = self.architecture
        if not isinstance(a, GriddedConfig) or a.positions != "relative":
            raise ValueError(
                "The model has no relative positions, which another grid needs; train it with "
                'positions="relative".'
            )
        spacings = [[axis.step for axis in g.axes] for g in (a.grid, grid)]
        if grid.names != a.grid.names or any(
            abs(old - new) > 1e-6 * old for old, new in zip(*spacings, strict=True)
        ):
            raise ValueError(
                f"The new grid has axes {grid.names} with spacings {spacings[1]}, but the model "
                f"needs {a.grid.names} with {spacings[0]}."
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
                    "Value tokens need a grid, and this model has none; use embedded tokens."
                )
            return self
        if self.coordinates != self.architecture.grid.names:
            raise ValueError(
                f"Coordinates {self.coordinates} are not the grid's axes "
                f"{self.architecture.grid.names}; give the same names in the same order."
            )
        smooth = self.architecture.grid_encoder.smooth
        for name in () if isinstance(smooth, bool) else smooth:
            require_known(name, self.sources, "source", "in smooth")
        if not isinstance(smooth, bool) and self.architecture.fusion == "single":
            raise ValueError(
                "All sources share one grid encoder, which is smooth for all of them or for none; "
                'use smooth=True or fusion="multi".'
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
                "A kernel decoder does not use target tokens, so a separate MLP for them would not "
                "be trained; name a source in shared_with, or use value tokens."
            )
        return self


def _smooth(part: Part) -> Part:
    return part.model_copy(update={"smooth": True})
