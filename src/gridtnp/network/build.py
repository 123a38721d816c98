"""Build a model from its configuration: the only place that maps names to classes."""

from __future__ import annotations

from torch import nn

from gridtnp.amortised.weights import frozen
from gridtnp.config import (
    CNN,
    ANPConfig,
    Cell,
    CNPConfig,
    Embedded,
    Fourier,
    Full,
    GriddedConfig,
    Harmonics,
    HierarchicalSwin,
    Kernel,
    Kriging,
    ModelConfig,
    Neighbours,
    PseudoToken,
    PTTNPConfig,
    Raw,
    TNPConfig,
    UNet,
    Values,
    ViT,
)
from gridtnp.grid import Grid
from gridtnp.network.embeddings import (
    CellEmbedding,
    Embedding,
    FourierEmbedding,
    InputEmbedding,
    RawEmbedding,
    SmoothCellEmbedding,
    SphericalHarmonics,
)
from gridtnp.network.fusion import FuseGrids, FuseTokens, Fusion
from gridtnp.network.grid_decoders import (
    AttentionGridDecoder,
    GridDecoder,
    KernelGridDecoder,
    SmoothAttentionGridDecoder,
    SmoothKernelGridDecoder,
)
from gridtnp.network.grid_encoders import (
    GridEncoder,
    KernelGridEncoder,
    MeanGridEncoder,
    PseudoTokenGridEncoder,
    SmoothKernelGridEncoder,
    SmoothMeanGridEncoder,
    SmoothPseudoTokenGridEncoder,
)
from gridtnp.network.grid_processors import (
    CNNProcessor,
    GridProcessor,
    HierarchicalSwinProcessor,
    SwinProcessor,
    UNetProcessor,
    ViTProcessor,
)
from gridtnp.network.gridless import ANP, CNP, PTTNP, TNP
from gridtnp.network.kriging import COLUMNS, KrigedNetwork
from gridtnp.network.layers import mlp
from gridtnp.network.likelihoods import GaussianLikelihood, ProductLikelihood, families
from gridtnp.network.model import GriddedNetwork, NeuralProcess, Signature
from gridtnp.network.tokens import EmbeddedTokenEncoder, TokenEncoder, ValueTokenEncoder

MAX_OVERLAP = 8
"""Neighbourhoods may be this many times larger than the grid."""


def build_model(config: ModelConfig) -> NeuralProcess:
    """The model that a configuration describes, initialised from torch's global random state."""
    return _network(config) if config.prior is None else _kriged(config, config.prior)


def _kriged(config: ModelConfig, prior: Kriging) -> KrigedNetwork:
    """A network that sees kriging as features, and starts by correcting nothing."""
    extra = [f"{name}_{j}" for j in range(config.dim_y) for name in COLUMNS]
    extra += [f"{field.source}_{c}" for field in prior.fields for c in field.columns]
    assert isinstance(config.tokens, Embedded)
    embedding = (*config.tokens.embedding, Raw(of=tuple(extra)))
    tokens = config.tokens.model_copy(update={"embedding": embedding})
    inner = {"features": (*config.features, *extra), "tokens": tokens, "prior": None}
    network = _network(ModelConfig.model_validate(dict(config) | inner))
    likelihood = network.likelihood
    assert isinstance(likelihood, GaussianLikelihood | ProductLikelihood)
    likelihood.predict_standard_normal()
    means = [name for name in prior.features if name not in prior.drift]
    return KrigedNetwork(
        _signature(config),
        network,
        prior.of,
        [config.features.index(name) for name in (*prior.drift, *means)],
        prior.fields,
        drifts=len(prior.drift),
        length=prior.length_scale,
        hours=prior.hours,
        powers=prior.powers,
        pretrained=frozen() if prior.pretrained else None,
        places=prior.places,
        gaussian=[one.is_normal for one in config.likelihood] or None,
    )


def _signature(config: ModelConfig) -> Signature:
    sources = dict(config.sources)
    return Signature(
        config.coordinates, config.features, sources, config.dim_y, tuple(config.errors)
    )


def _network(config: ModelConfig) -> GriddedNetwork | CNP | ANP | TNP | PTTNP:
    signature = _signature(config)
    a, dim, heads = config.architecture, config.dim, config.heads

    def likelihood(
        dim_in: int = dim, hidden_layers: int = 2
    ) -> GaussianLikelihood | ProductLikelihood:
        options = {"dim": dim, "hidden_layers": hidden_layers}
        if config.is_gaussian:
            return GaussianLikelihood(dim_in, config.dim_y, min_noise=config.min_noise, **options)
        return ProductLikelihood(
            dim_in, families(config.likelihood), min_noise=config.min_noise, **options
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
    return GriddedNetwork(
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
            kind = SmoothCellEmbedding if part.smooth else CellEmbedding
            module = kind(config.architecture.grid, part.of, per_column=part.per_column)
        else:
            module = RawEmbedding(len(part.of))
        parts.append(([columns.index(name) for name in part.of], module))
    return InputEmbedding(parts, config.dim)


def _tokens(config: ModelConfig) -> TokenEncoder:
    if isinstance(config.tokens, Values):
        return ValueTokenEncoder(_signature(config).values)
    return EmbeddedTokenEncoder(
        _embedding(config),
        _signature(config).values,
        dim=config.dim,
        shared_with=config.tokens.shared_with,
    )


def _fusion(config: ModelConfig, a: GriddedConfig, tokens: TokenEncoder) -> Fusion:
    def encoder(source: str | None = None) -> GridEncoder:
        e = a.grid_encoder
        smooth = e.smooth if isinstance(e.smooth, bool) else source in e.smooth
        if isinstance(e, Kernel):
            if e.neighbours is None:
                return KernelGridEncoder(a.grid, length_scale=e.length_scale, width=None)
            kind = SmoothKernelGridEncoder if smooth else KernelGridEncoder
            width = _width(a.grid, e.neighbours, smooth)
            return kind(a.grid, length_scale=e.length_scale, width=width)
        shared = a.grid.names if a.positions == "relative" else e.shared
        width = _width(a.grid, e.neighbours if isinstance(e, PseudoToken) else 1, smooth)
        if isinstance(e, PseudoToken):
            kind = SmoothPseudoTokenGridEncoder if smooth else PseudoTokenGridEncoder
            return kind(a.grid, dim=config.dim, heads=config.heads, width=width, shared=shared)
        if smooth:
            return SmoothMeanGridEncoder(a.grid, dim=config.dim, width=width, shared=shared)
        return MeanGridEncoder(a.grid, dim=config.dim, shared=shared)

    values = isinstance(config.tokens, Values)
    if a.fusion == "single":
        return FuseTokens(
            encoder(), mlp(tokens.dim, config.dim, dim=config.dim) if values else None
        )
    dim_in = tokens.dim * len(config.sources)
    mix = mlp(dim_in, config.dim, dim=config.dim) if values else nn.Linear(dim_in, config.dim)
    return FuseGrids({name: encoder(name) for name in config.sources}, mix)


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
            positions=a.positions,
        )
    return SwinProcessor(
        a.grid,
        dim=dim,
        heads=heads,
        layers=p.layers,
        window=p.window,
        shift=shift,
        untied=p.untied,
        positions=a.positions,
    )


def _decoder(a: GriddedConfig, processor: GridProcessor, dim: int, heads: int) -> GridDecoder:
    d, grids = a.decoder, processor.grids
    if isinstance(d, Full) or d.neighbours is None:
        if isinstance(d, Kernel):
            return KernelGridDecoder(grids, length_scale=d.length_scale, width=None)
        return AttentionGridDecoder(grids, dim=dim, heads=heads, width=None, positions=a.positions)
    width = _width(a.grid, d.neighbours, bool(d.smooth))
    if isinstance(d, Kernel):
        kind = SmoothKernelGridDecoder if d.smooth else KernelGridDecoder
        return kind(grids, length_scale=d.length_scale, width=width)
    kind = SmoothAttentionGridDecoder if d.smooth else AttentionGridDecoder
    return kind(grids, dim=dim, heads=heads, width=width, positions=a.positions)


def _width(grid: Grid, neighbours: Neighbours, smooth: bool) -> tuple[int, ...]:
    """Neighbours per axis; those that fade in and out are at least two."""
    if isinstance(neighbours, int):
        width = grid.width(neighbours)
    else:
        width = grid.per_axis(neighbours, "neighbours")
    for w, axis in zip(width, grid.axes, strict=True):
        if w > MAX_OVERLAP * (axis.size + 1):
            raise ValueError(
                f"neighbours={neighbours}: {w} along axis {axis.name!r} are far more than its "
                f"{axis.size} grid points; give fewer."
            )
    return tuple(max(w, 2) for w in width) if smooth else width
