"""Presets: the configuration behind every row of the paper's four results tables, by name.

A name is `table/model[-encoder][-grid][-variant]`. The tables are `gp` (table 3), `stations` (table
1), `stations-rich` (table 6) and `wind` (table 2). Encoders are `pt` (pseudo-token), `ki` (kernel
interpolation) and `avg` (mean); `multi` and `single` are the two fusions. `64x64-to-32x32` merges
patches, `full` decodes from the entire grid instead of the nearest neighbours, `skt` and `t2m` use
that source only.
"""

from __future__ import annotations

from typing import Any, Literal

from gridtnp.config import (
    CNN,
    CNPConfig,
    Embedded,
    Fourier,
    Full,
    GriddedConfig,
    Harmonics,
    Kernel,
    Mean,
    ModelConfig,
    Neighbour,
    PseudoToken,
    PTTNPConfig,
    Swin,
    UNet,
    Values,
    ViT,
)
from gridtnp.errors import require_known
from gridtnp.grid import Axis, Grid

TENTH_RADIAN = 5.729577951308232
"""Initial length-scale on the sphere, in degrees: 0.1 on the paper's sphere of radius 1."""


def preset(name: str) -> ModelConfig:
    """The configuration behind a row of the paper, e.g. `gp/swin-tnp-pt-64x64`."""
    require_known(name, PRESETS, "preset")
    return PRESETS[name]


def _gp() -> dict[str, ModelConfig]:
    def grid(size: int) -> Grid:
        return Grid((Axis.span("x1", -6.0, 6.0, size), Axis.span("x2", -6.0, 6.0, size)))

    embedding = (Fourier(of=("x1", "x2"), per_column=64, shortest=0.01, longest=12.0),)
    common: dict[str, Any] = {"coordinates": ("x1", "x2"), "sources": {"observations": 1}}
    common["tokens"] = Embedded(embedding=embedding, shared_with="observations")
    all_points, cell = Kernel(length_scale=0.1, neighbours=None), Kernel(length_scale=0.1)
    near = Neighbour(neighbours=9)
    encoders = {"pt": PseudoToken(), "ki": cell, "avg": Mean()}
    models: dict[str, Any] = {"cnp": CNPConfig(encoder_layers=5, decoder_layers=5)}
    for m in (128, 256):
        models[f"pt-tnp-{m}"] = PTTNPConfig(pseudo_tokens=m)
    for size, kernel in ((32, 5), (64, 9)):
        models[f"convcnp-{size}x{size}"] = GriddedConfig(
            grid=grid(size), grid_encoder=cell, processor=CNN(kernel=kernel), decoder=all_points
        )
    for size in (16, 32):
        for kind, encoder in (("ki", all_points), ("pt", PseudoToken())):
            models[f"vitnp-{kind}-{size}x{size}"] = GriddedConfig(
                grid=grid(size), grid_encoder=encoder, processor=ViT(), decoder=near
            )
            models[f"vitnp-{kind}-{2 * size}x{2 * size}-to-{size}x{size}"] = GriddedConfig(
                grid=grid(2 * size),
                grid_encoder=encoders[kind],
                processor=ViT(patch=(2, 2)),
                decoder=near,
            )
    for size, window in ((32, 4), (64, 8)):
        for kind, encoder in encoders.items():
            models[f"swin-tnp-{kind}-{size}x{size}"] = GriddedConfig(
                grid=grid(size),
                grid_encoder=encoder,
                processor=Swin(window=(window, window)),
                decoder=near,
            )
    for kind in ("ki", "pt"):
        swin = models[f"swin-tnp-{kind}-32x32"]
        models[f"swin-tnp-{kind}-32x32-full"] = swin.model_copy(update={"decoder": Full()})
    values: dict[str, Any] = common | {"tokens": Values()}
    return {
        f"gp/{name}": ModelConfig(
            **(values if name.startswith("convcnp") else common), architecture=architecture
        )
        for name, architecture in models.items()
    }


def _stations(
    table: str, swin_rows: int, swin_window: int, min_noise: float
) -> dict[str, ModelConfig]:
    """The station tables: the main one and the one with richer context sets."""

    def grid(rows: int) -> Grid:
        step = 180 / rows
        longitude = Axis.circle("lon", -180 + step / 2, 360.0, 2 * rows)
        return Grid((Axis.cells("lat", -90.0, 90.0, rows), longitude), metric="sphere")

    def config(
        architecture: Any, sources: tuple[str, ...] = ("t2m", "skt"), values: bool = False
    ) -> ModelConfig:
        shared_with = "t2m" if "t2m" in sources else None
        return ModelConfig(
            coordinates=("lat", "lon"),
            sources=dict.fromkeys(sources, 1),
            tokens=Values()
            if values
            else Embedded(embedding=(Harmonics(),), shared_with=shared_with),
            architecture=architecture,
            min_noise=min_noise,
        )

    def convcnp(rows: int, neighbours: int | None) -> ModelConfig:
        decoder = Kernel(length_scale=TENTH_RADIAN, neighbours=neighbours)
        architecture = GriddedConfig(
            grid=grid(rows), grid_encoder=cell, processor=UNet(kernel=9), decoder=decoder
        )
        return config(architecture, values=True)

    def swin(encoder: Any, rows: int, window: int, decoder: Any) -> GriddedConfig:
        processor = Swin(window=(window, window))
        return GriddedConfig(
            grid=grid(rows), grid_encoder=encoder, processor=processor, decoder=decoder
        )

    cell, near = Kernel(length_scale=TENTH_RADIAN), Neighbour(neighbours=9)
    encoders = {"ki": cell, "pt": PseudoToken()}
    size = f"{swin_rows}x{2 * swin_rows}"
    rows: dict[str, ModelConfig] = {
        # The text's two hidden layers do not give the size printed in the table; these depths do.
        "cnp": config(CNPConfig(encoder_layers=6, decoder_layers=5)),
        "pt-tnp-256": config(PTTNPConfig(pseudo_tokens=256)),
    }
    for kind, encoder in encoders.items():
        plain = GriddedConfig(grid=grid(48), grid_encoder=encoder, processor=ViT(), decoder=near)
        patches = GriddedConfig(
            grid=grid(144), grid_encoder=encoder, processor=ViT(patch=(3, 3)), decoder=near
        )
        rows[f"vitnp-{kind}-48x96"] = config(plain)
        rows[f"vitnp-{kind}-144x288-to-48x96"] = config(patches)
        rows[f"swin-tnp-{kind}-{size}"] = config(swin(encoder, swin_rows, swin_window, near))
    for source in ("skt", "t2m"):
        alone = swin(PseudoToken(), swin_rows, swin_window, near)
        rows[f"swin-tnp-pt-{size}-{source}"] = config(alone, sources=(source,))
    if table == "stations":
        rows["convcnp-64x128-full"] = convcnp(64, None)
        rows["convcnp-192x384"] = convcnp(192, 9)
        rows["swin-tnp-pt-192x384"] = config(swin(PseudoToken(), 192, 8, near))
        for kind, encoder in encoders.items():
            rows[f"swin-tnp-{kind}-{size}-full"] = config(
                swin(encoder, swin_rows, swin_window, Full())
            )
    else:
        rows["convcnp-64x128"] = convcnp(64, 9)
    return {f"{table}/{name}": row for name, row in rows.items()}


def _wind() -> dict[str, ModelConfig]:
    def grid(rows: int, columns: int) -> Grid:
        time = Axis.span("time", 0.0, 3.0, 4)
        space = Axis.span("lat", 25.0, 49.0, rows), Axis.span("lon", -125.0, -66.0, columns)
        return Grid((time, *space), metric="sphere")

    def config(architecture: Any, values: bool = False) -> ModelConfig:
        hours = Fourier(of=("hours",), per_column=10, shortest=1.0, longest=8766.0)
        return ModelConfig(
            coordinates=("time", "lat", "lon"),
            features=("hours",),
            sources={f"{component}{level}": 1 for level in (700, 850, 1000) for component in "uv"},
            dim_y=6,
            tokens=Values() if values else Embedded(embedding=(hours, Harmonics())),
            architecture=architecture,
        )

    def gridded(
        kind: str,
        size: tuple[int, int],
        processor: Any,
        fusion: Literal["multi", "single"] = "multi",
    ) -> ModelConfig:
        return config(
            GriddedConfig(
                grid=grid(*size),
                grid_encoder=encoders[kind],
                fusion=fusion,
                processor=processor,
                decoder=Neighbour(neighbours=27),
            )
        )

    scales = (0.1, TENTH_RADIAN)  # hours, degrees
    cell = Kernel(length_scale=scales)
    encoders: dict[str, Any] = {"ki": cell, "pt": PseudoToken(shared=("time",))}
    rows: dict[str, ModelConfig] = {
        # As above: these depths give the size printed in the table.
        "cnp": config(CNPConfig(encoder_layers=5, decoder_layers=2)),
        "pt-tnp-64": config(PTTNPConfig(pseudo_tokens=64)),
    }
    for (height, width), neighbours in (((24, 60), None), ((48, 120), 27)):
        architecture = GriddedConfig(
            grid=grid(height, width),
            grid_encoder=cell,
            processor=UNet(kernel=5),
            decoder=Kernel(length_scale=scales, neighbours=neighbours),
        )
        rows[f"convcnp-{height}x{width}"] = config(architecture, values=True)
    swin = Swin(window=(4, 4, 4), shift=(0, 2, 2))
    for kind in encoders:
        rows |= {
            f"vitnp-multi-{kind}-12x30": gridded(kind, (12, 30), ViT()),
            f"vitnp-multi-{kind}-24x60-to-12x30": gridded(kind, (24, 60), ViT(patch=(1, 2, 2))),
            f"swin-tnp-multi-{kind}-24x60": gridded(kind, (24, 60), swin),
            f"swin-tnp-single-{kind}-24x60": gridded(kind, (24, 60), swin, "single"),
        }
    rows["swin-tnp-multi-pt-48x120"] = gridded("pt", (48, 120), swin)
    return {f"wind/{name}": row for name, row in rows.items()}


PRESETS: dict[str, ModelConfig] = {
    **_gp(),
    **_stations("stations", 64, 4, 0.0),
    **_stations("stations-rich", 128, 8, 0.1),
    **_wind(),
}
