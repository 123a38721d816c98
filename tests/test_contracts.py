"""Every implementation of every role keeps its role's contract. A new part adds one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from torch import nn

from gridtnp import testing
from gridtnp.config import (
    ANPConfig,
    Cell,
    CNPConfig,
    Embedded,
    Fourier,
    GriddedConfig,
    Harmonics,
    Kernel,
    ModelConfig,
    Neighbour,
    PseudoToken,
    PTTNPConfig,
    Raw,
    Swin,
    TNPConfig,
    UNet,
    Values,
)
from gridtnp.grid import Axis, Grid
from gridtnp.network.build import build_model
from gridtnp.network.embeddings import (
    CellEmbedding,
    FourierEmbedding,
    InputEmbedding,
    RawEmbedding,
    SmoothCellEmbedding,
    SphericalHarmonics,
)
from gridtnp.network.fusion import FuseGrids, FuseTokens
from gridtnp.network.grid_decoders import (
    AttentionGridDecoder,
    KernelGridDecoder,
    SmoothAttentionGridDecoder,
    SmoothKernelGridDecoder,
)
from gridtnp.network.grid_encoders import (
    KernelGridEncoder,
    MeanGridEncoder,
    PseudoTokenGridEncoder,
    SmoothKernelGridEncoder,
    SmoothMeanGridEncoder,
    SmoothPseudoTokenGridEncoder,
)
from gridtnp.network.grid_processors import (
    CNNProcessor,
    HierarchicalSwinProcessor,
    SwinProcessor,
    UNetProcessor,
    ViTProcessor,
)
from gridtnp.network.likelihoods import FAMILIES, GaussianLikelihood, ProductLikelihood
from gridtnp.network.tokens import EmbeddedTokenEncoder, ValueTokenEncoder

DIM = 8
LINE = Grid((Axis.span("x", -2.0, 2.0, 8),))
PLANE = Grid((Axis.span("x1", -1.0, 1.0, 4), Axis.circle("x2", 0.0, 6.0, 8)))
GLOBE = Grid((Axis.cells("lat", -90.0, 90.0, 4), Axis.circle("lon", -180.0, 360.0, 8)), "sphere")
SPACETIME = Grid((Axis.span("time", 0.0, 3.0, 4), *GLOBE.axes), "sphere")
SPACE4 = Grid((Axis.span("level", 0.0, 1.0, 2), *SPACETIME.axes), "sphere")
GRIDS = {"line": LINE, "plane": PLANE, "globe": GLOBE, "spacetime": SPACETIME, "four": SPACE4}
SOURCES = {"stations": 1, "ships": 2}


def each(grid: Grid, value: int) -> tuple[int, ...]:
    return (value,) * len(grid.axes)


def embedding() -> InputEmbedding:
    parts = [
        ((0, 1), SphericalHarmonics(3)),
        ((2,), FourierEmbedding(1, per_column=4, shortest=1.0, longest=10.0)),
        ((1,), CellEmbedding(GLOBE, ("lon",), per_column=4)),
        ((0, 1), SmoothCellEmbedding(GLOBE, ("lat", "lon"), per_column=4)),
        ((2,), RawEmbedding(1)),
    ]
    return InputEmbedding(parts, DIM)


def token_encoders() -> dict[str, Callable[[bool], None]]:
    check = partial(testing.check_token_encoder, sources=SOURCES, dim_x=2, dim_features=1)
    makers = {
        "own": lambda: EmbeddedTokenEncoder(embedding(), SOURCES, dim=DIM),
        "shared": lambda: EmbeddedTokenEncoder(embedding(), SOURCES, dim=DIM, shared_with="ships"),
        "values": lambda: ValueTokenEncoder(SOURCES),
    }
    return {f"tokens-{k}": lambda c, m=m: check(m, compiled=c) for k, m in makers.items()}


def grid_encoders() -> dict[str, Callable[[bool], None]]:
    cases: dict[str, Callable[[bool], None]] = {}
    for where, grid in GRIDS.items():
        pseudo = partial(PseudoTokenGridEncoder, grid, dim=DIM, heads=2)
        makers: dict[str, Callable[[], Any]] = {
            "pseudo-token": partial(pseudo, width=each(grid, 1)),
            "pseudo-token-shared": partial(pseudo, width=each(grid, 1), shared=grid.names),
            "pseudo-token-wide": partial(pseudo, width=each(grid, 2)),
            "mean": partial(MeanGridEncoder, grid, dim=DIM, shared=grid.names[:1]),
            "kernel-cell": partial(KernelGridEncoder, grid, length_scale=1.5, width=each(grid, 1)),
            "kernel-all": partial(KernelGridEncoder, grid, length_scale=1.5, width=None),
            "pseudo-token-smooth": partial(
                SmoothPseudoTokenGridEncoder, grid, dim=DIM, heads=2, width=each(grid, 2)
            ),
            "mean-smooth": partial(
                SmoothMeanGridEncoder, grid, dim=DIM, width=each(grid, 2), shared=grid.names
            ),
            "kernel-smooth": partial(
                SmoothKernelGridEncoder, grid, length_scale=1.5, width=each(grid, 2)
            ),
        }
        for kind, make in makers.items():
            cases[f"{kind}-{where}"] = lambda c, m=make: testing.check_grid_encoder(
                m, dim=DIM, compiled=c
            )
    return cases


def fusions() -> dict[str, Callable[[bool], None]]:
    def encoder() -> PseudoTokenGridEncoder:
        return PseudoTokenGridEncoder(GLOBE, dim=DIM, heads=2, width=(1, 1))

    makers = {
        "single": lambda: FuseTokens(encoder()),
        "single-mixed": lambda: FuseTokens(encoder(), nn.Linear(DIM, DIM)),
        "multi": lambda: FuseGrids({s: encoder() for s in SOURCES}, nn.Linear(2 * DIM, DIM)),
    }
    check = partial(testing.check_fusion, grid=GLOBE, sources=tuple(SOURCES), dim=DIM)
    return {f"fusion-{k}": lambda c, m=m: check(m, compiled=c) for k, m in makers.items()}


def grid_processors() -> dict[str, Callable[[bool], None]]:
    cases: dict[str, Callable[[bool], None]] = {}
    for where, grid in GRIDS.items():
        swin = partial(SwinProcessor, grid, dim=DIM, heads=2, layers=2)
        makers: dict[str, Callable[[], Any]] = {
            "swin": partial(swin, window=each(grid, 2), shift=each(grid, 1)),
            "swin-untied": partial(swin, window=each(grid, 2), shift=each(grid, 1), untied=True),
            "swin-unequal": partial(swin, window=grid.shape, shift=each(grid, 0)),
            "vit": partial(ViTProcessor, grid, dim=DIM, heads=2, layers=2),
            "vit-patches": partial(
                ViTProcessor, grid, dim=DIM, heads=2, layers=1, patch=(2, *each(grid, 1)[1:])
            ),
            "hierarchical": partial(
                HierarchicalSwinProcessor,
                grid,
                dim=DIM,
                heads=2,
                stages=(1, 2),
                window=(*each(grid, 1)[1:], 2),
                shift=(*each(grid, 0)[1:], 1),
                merge=(*each(grid, 1)[1:], 2),
            ),
        }
        if grid is not SPACE4:
            makers["cnn"] = partial(CNNProcessor, grid, dim=DIM, layers=2, kernel=3)
            makers["unet"] = partial(UNetProcessor, grid, dim=DIM, depth=2, kernel=3)
        for kind, make in makers.items():
            cases[f"{kind}-{where}"] = lambda c, m=make, g=grid: testing.check_grid_processor(
                m, g, dim=DIM, compiled=c
            )
    return cases


def grid_decoders() -> dict[str, Callable[[bool], None]]:
    cases: dict[str, Callable[[bool], None]] = {}
    for where, grid in GRIDS.items():
        grids = (grid, grid.coarsen(each(grid, 2)), grid)
        near = partial(AttentionGridDecoder, grids, dim=DIM, heads=2)
        makers: dict[str, tuple[Callable[[], Any], int]] = {
            "neighbour-1": (partial(near, width=each(grid, 1)), DIM),
            "neighbour-2": (partial(near, width=each(grid, 2)), DIM),
            "neighbour-3": (partial(near, width=each(grid, 3)), DIM),
            "full": (partial(near, width=None), DIM),
            "kernel-near": (
                partial(KernelGridDecoder, grids, length_scale=1.5, width=each(grid, 3)),
                0,
            ),
            "kernel-all": (partial(KernelGridDecoder, grids, length_scale=1.5, width=None), 0),
            "neighbour-smooth": (
                partial(SmoothAttentionGridDecoder, grids, dim=DIM, heads=2, width=each(grid, 3)),
                DIM,
            ),
            "neighbour-smooth-relative": (
                partial(
                    SmoothAttentionGridDecoder,
                    *(grids,),
                    dim=DIM,
                    heads=2,
                    width=each(grid, 2),
                    positions="relative",
                ),
                DIM,
            ),
            "kernel-smooth": (
                partial(SmoothKernelGridDecoder, grids, length_scale=1.5, width=each(grid, 3)),
                0,
            ),
        }
        for kind, (make, dim_target) in makers.items():
            cases[f"{kind}-{where}"] = lambda c, m=make, d=dim_target: testing.check_grid_decoder(
                m, dim=DIM, dim_target=d, compiled=c
            )
    return cases


def likelihoods() -> dict[str, Callable[[bool], None]]:
    makers = {
        "gaussian": lambda: GaussianLikelihood(DIM, 2, dim=DIM),
        "gaussian-min-noise": lambda: GaussianLikelihood(DIM, 1, dim=DIM, min_noise=0.1),
    }
    makers |= {
        f"product-{kind}": lambda family=family: ProductLikelihood(
            DIM, [family(4), FAMILIES["gaussian"](1)], dim=DIM, min_noise=0.1
        )
        for kind, family in FAMILIES.items()
    }
    return {
        k: lambda c, m=m: testing.check_likelihood(m, dim=DIM, compiled=c)
        for k, m in makers.items()
    }


def models() -> dict[str, Callable[[bool], None]]:
    place = (
        Harmonics(degrees=3),
        Fourier(of=("hours",), per_column=4, shortest=1.0, longest=24.0),
        Raw(of=("elevation",)),
    )
    common: dict[str, Any] = {
        "coordinates": ("time", "lat", "lon"),
        "features": ("hours", "elevation"),
        "sources": SOURCES,
        "dim_y": 2,
        "dim": DIM,
        "heads": 2,
    }
    embedded = common | {"tokens": Embedded(embedding=place)}
    shared = common | {"tokens": Embedded(embedding=place, shared_with="ships")}
    relative = (Cell(of=("time", "lat", "lon")), Raw(of=("hours", "elevation")))
    swin: dict[str, Any] = {
        "grid": SPACETIME,
        "processor": Swin(layers=2, window=(4, 2, 2), shift=(0, 1, 1)),
        "decoder": Neighbour(neighbours=27),
    }
    kernel = Kernel(length_scale=(2.0, 20.0))
    all_points = Kernel(length_scale=(2.0, 20.0), neighbours=None)
    configs = {
        "cnp": ModelConfig(**embedded, architecture=CNPConfig()),
        "anp": ModelConfig(**embedded, architecture=ANPConfig(layers=1)),
        "anp-shared": ModelConfig(**shared, architecture=ANPConfig(layers=1)),
        "tnp": ModelConfig(**embedded, architecture=TNPConfig(layers=2)),
        "pt-tnp": ModelConfig(**shared, architecture=PTTNPConfig(layers=2, pseudo_tokens=3)),
        "convcnp": ModelConfig(
            **common,
            tokens=Values(),
            architecture=GriddedConfig(
                grid=SPACETIME,
                grid_encoder=kernel,
                processor=UNet(depth=1, kernel=3),
                decoder=all_points,
            ),
        ),
        "swin-tnp-single": ModelConfig(
            **shared, architecture=GriddedConfig(**swin, grid_encoder=PseudoToken())
        ),
        "swin-tnp-multi": ModelConfig(
            **embedded, architecture=GriddedConfig(**swin, grid_encoder=kernel, fusion="multi")
        ),
        "swin-tnp-relative": ModelConfig(
            **common,
            tokens=Embedded(embedding=relative),
            architecture=GriddedConfig(
                **swin, grid_encoder=PseudoToken(shared=("time", "lat", "lon"))
            ),
        ),
    }
    configs["swin-tnp-smooth"] = configs["swin-tnp-relative"].smooth()
    configs["convcnp-smooth"] = configs["convcnp"].smooth()
    return {
        f"model-{k}": lambda c, config=config: testing.check_neural_process(
            partial(build_model, config), SPACETIME, compiled=c
        )
        for k, config in configs.items()
    }


CASES = {
    **token_encoders(),
    **grid_encoders(),
    **fusions(),
    **grid_processors(),
    **grid_decoders(),
    **likelihoods(),
    **models(),
}
TRACED = [name for name in CASES if not name.endswith(("-line", "-plane", "-globe", "-four"))]
RARELY = {
    *(name for name in CASES if name.startswith(("model-", "product-"))),
    *("hierarchical-spacetime", "swin-unequal-spacetime", "swin-untied-spacetime"),
    *("neighbour-1-spacetime", "neighbour-2-spacetime", "kernel-all-spacetime"),
    *("swin-spacetime", "pseudo-token-smooth-spacetime", "neighbour-smooth-spacetime"),
    *("pseudo-token-shared-spacetime", "pseudo-token-wide-spacetime", "mean-smooth-spacetime"),
    *("neighbour-smooth-relative-spacetime", "tokens-own"),
    *("tokens-shared", "fusion-single", "fusion-single-mixed", "vit-patches-spacetime"),
} - {"model-swin-tnp-smooth"}
"""Traced by `make test-all` only: of the same parts as others, or variants of them."""


@pytest.mark.parametrize("case", CASES)
def test_contract(case: str) -> None:
    CASES[case](False)


def test_a_violated_contract_is_named() -> None:
    class Forgetful(MeanGridEncoder):
        def forward(self, pieces: Any) -> Any:
            return super().forward([replace(tokens, mask=None) for tokens in pieces])

    with pytest.raises(AssertionError, match="Contract violated: the part must ignore masked tok"):
        testing.check_grid_encoder(lambda: Forgetful(PLANE, dim=DIM), dim=DIM)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.slow) if c in RARELY else c for c in TRACED],
)
def test_compiles_as_one_graph_with_any_number_of_points(case: str) -> None:
    CASES[case](True)
