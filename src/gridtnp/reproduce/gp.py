"""The paper's experiment on Gaussian processes, with the exact posterior beside every model.

Scales: `smoke` (seconds, to see that it runs), `cpu` (minutes a row on two cores: the paper's
density of points on a quarter of its square) and `full` (the paper's numbers, for a GPU).
Hyperparameters were tuned on validation tasks (`VALIDATION_SEED`), scores are on test tasks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from gridtnp.config import (
    CNN,
    CNPConfig,
    Embedded,
    Fourier,
    Full,
    GriddedConfig,
    Kernel,
    Mean,
    ModelConfig,
    Neighbour,
    PseudoToken,
    PTTNPConfig,
    Swin,
    Values,
    ViT,
)
from gridtnp.errors import require_known
from gridtnp.files import read_tensors, write_tensors
from gridtnp.grid import Axis, Grid
from gridtnp.network.build import build_model
from gridtnp.network.model import NeuralProcess
from gridtnp.network.presets import preset
from gridtnp.recipes import Recipe
from gridtnp.reproduce.rows import Experiment, Result, Tasks, forward_milliseconds
from gridtnp.synthetic.covariances import SquaredExponential
from gridtnp.synthetic.processes import (
    GaussianProcess,
    Process,
    RankLimitedProcess,
    SyntheticBatch,
    draw_at,
    stream,
)
from gridtnp.task import Task
from gridtnp.training.checkpoints import weights_of
from gridtnp.training.run_folder import commit

TRAINING_SEED, VALIDATION_SEED, TEST_SEED = 1, 2, 3
NAMES = {
    "cnp": "CNP",
    "pt-tnp": "PT-TNP",
    "convcnp": "ConvCNP",
    "vitnp-ki": "ViTNP, KI-GE",
    "vitnp-pt": "ViTNP, PT-GE",
    "swin-tnp-ki": "Swin-TNP, KI-GE",
    "swin-tnp-avg": "Swin-TNP, Avg-GE",
    "swin-tnp-pt": "Swin-TNP, PT-GE",
    "swin-tnp-pt-full": "Swin-TNP, PT-GE, no NN-CA",
    "swin-tnp-pt-relative": "Swin-TNP, PT-GE, relative positions",
    "swin-tnp-pt-smooth-relative": "Swin-TNP, PT-GE, smooth, relative positions",
}
PACKAGED = {0.5: "swin-tnp-pt-smooth-relative", 0.1: "swin-tnp-pt-relative"}
"""The rows whose trained weights come with the package, by length-scale."""
PRESETS_OF_ROWS = {
    "cnp": "gp/cnp",
    "pt-tnp": "gp/pt-tnp-256",
    "convcnp": "gp/convcnp-64x64",
    "vitnp-ki": "gp/vitnp-ki-64x64-to-32x32",
    "vitnp-pt": "gp/vitnp-pt-64x64-to-32x32",
    "swin-tnp-ki": "gp/swin-tnp-ki-64x64",
    "swin-tnp-avg": "gp/swin-tnp-avg-64x64",
    "swin-tnp-pt": "gp/swin-tnp-pt-64x64",
    "swin-tnp-pt-full": "gp/swin-tnp-pt-32x32-full",
    "swin-tnp-pt-relative": "gp/swin-tnp-pt-64x64",
    "swin-tnp-pt-smooth-relative": "gp/swin-tnp-pt-64x64",
}


@dataclass(frozen=True)
class Scale:
    """Size of the experiment, on the square [-half, half]²."""

    half: float
    context: int
    targets: int
    cells: int
    window: int
    dim: int
    heads: int
    layers: int
    recipe: Recipe
    tests: int
    pool: int | None = None
    """Number of training batches, repeated in order; None samples new ones without end."""

    def process(self, length_scale: float, data: str) -> Process:
        kind = {"exact": GaussianProcess, "rank-limited": RankLimitedProcess}[data]
        box = ((-self.half, self.half),) * 2
        return kind(
            box=box,
            context=self.context,
            targets=self.targets,
            kernel=SquaredExponential(length_scale),
        )


SCALES = {
    "smoke": Scale(0.75, 60, 40, 8, 4, 16, 2, 1, Recipe(6, 2, 1e-3, "cosine"), 2),
    "cpu": Scale(
        3.0, 2500, 4000, 32, 8, 64, 4, 3, Recipe(3_000, 2, 1e-2, "cosine", optimiser="muon"), 64
    ),
    "full": Scale(6.0, 10_000, 1_000, 64, 8, 128, 8, 5, Recipe(500_000, 8), 1_000, pool=20_000),
}


def scale_for(name: str, length_scale: float, **recipe: Any) -> Scale:
    """A scale by name; `recipe` replaces its steps, batch or minutes.

    Except at the paper's own scale, cells are at most one length-scale wide.
    """
    require_known(name, SCALES, "scale")
    scale = SCALES[name]
    scale = replace(scale, recipe=replace(scale.recipe, **recipe))
    if name == "full":
        return scale
    cells = math.ceil(2 * scale.half / length_scale / scale.window) * scale.window
    return replace(scale, cells=max(cells, scale.cells))


def configuration(row: str, scale: Scale) -> ModelConfig:
    """The model of a row: the paper's at full scale, else a narrower one on fewer cells."""
    require_known(row, NAMES, "row")
    if scale.dim == SCALES["full"].dim:
        config = preset(PRESETS_OF_ROWS[row])
        return _variant(config, row)
    axes = ("x1", "x2")
    grid = Grid(tuple(Axis.cells(a, -scale.half, scale.half, scale.cells) for a in axes))
    cell, near = Kernel(length_scale=0.1), Neighbour(neighbours=9)
    swin = Swin(window=(scale.window,) * 2, layers=scale.layers)
    vit = ViT(patch=(2, 2), layers=scale.layers)
    tokens: Any = Embedded(
        embedding=(Fourier(of=axes, per_column=32, shortest=0.1, longest=4 * scale.half),),
        shared_with="observations",
    )
    encoder, processor, decoder = {
        "convcnp": (
            cell,
            CNN(kernel=9, layers=scale.layers),
            Kernel(length_scale=0.1, neighbours=9),
        ),
        "vitnp-ki": (cell, vit, near),
        "vitnp-pt": (PseudoToken(), vit, near),
        "swin-tnp-ki": (cell, swin, near),
        "swin-tnp-avg": (Mean(), swin, near),
        "swin-tnp-pt-full": (PseudoToken(), swin, Full()),
    }.get(row, (PseudoToken(), swin, near))
    architecture: Any = GriddedConfig(
        grid=grid, grid_encoder=encoder, processor=processor, decoder=decoder
    )
    if row == "cnp":
        architecture = CNPConfig(encoder_layers=5, decoder_layers=5)
    elif row == "pt-tnp":
        architecture = PTTNPConfig(pseudo_tokens=128, layers=scale.layers)
    elif row == "convcnp":
        tokens = Values()
    config = ModelConfig(
        coordinates=axes,
        sources={"observations": 1},
        tokens=tokens,
        architecture=architecture,
        dim=scale.dim,
        heads=scale.heads,
    )
    return _variant(config, row)


def _variant(config: ModelConfig, row: str) -> ModelConfig:
    """With relative positions and smooth parts, if the row's name says so."""
    config = config.relative() if row.endswith("relative") else config
    return config.smooth() if "smooth" in row else config


def tasks_from(process: Process, scale: Scale, start: int, seed: int = 0) -> Iterator[Task]:
    """Training tasks from batch number `start`."""
    batch, own = scale.recipe.batch, TRAINING_SEED + 100 * seed
    if scale.pool is None:
        for made in stream(process, seed=own, batch=batch, start=start):
            yield made.task
    while scale.pool is not None:
        yield draw_at(process, own, start % scale.pool, batch).task
        start += 1


def unseen(process: Process, count: int, seed: int = TEST_SEED) -> list[SyntheticBatch]:
    """Test tasks, one per batch."""
    return [draw_at(process, seed, index, 1) for index in range(count)]


@torch.no_grad()
def scores(model: NeuralProcess, batches: Sequence[SyntheticBatch]) -> list[float]:
    """Log-likelihood per target, for every batch."""
    device = next(model.parameters()).device
    return [_score(model.eval()(batch.task.to(device)), batch) for batch in batches]


def oracle_scores(batches: Sequence[SyntheticBatch], reach: float | None = None) -> list[float]:
    """`scores` of the exact posterior."""
    return [_score(batch.posterior(reach=reach), batch) for batch in batches]


def _score(distribution: torch.distributions.Distribution, batch: SyntheticBatch) -> float:
    assert batch.task.target.y is not None
    y = batch.task.target.y.double().to(distribution.mean.device)
    return distribution.log_prob(y).mean().item()


@dataclass(frozen=True)
class GP(Experiment):
    """The table of one length-scale; `data` are exact or rank-limited samples."""

    scale: Scale
    length_scale: float
    data: str = "exact"

    @classmethod
    def of(cls, result: Result) -> GP:
        """The table that a result belongs to."""
        return cls(scale_of(result), result["length_scale"], result["data"])

    @property
    def rows(self) -> Mapping[str, str]:
        return NAMES

    @property
    def recipe(self) -> Recipe:
        return self.scale.recipe

    @property
    def process(self) -> Process:
        return self.scale.process(self.length_scale, self.data)

    def name_of(self, row: str) -> str:
        return f"{row}-{self.length_scale:g}-{self.data}"

    def about(self) -> Result:
        return {
            "length_scale": self.length_scale,
            "data": self.data,
            "scale": asdict(self.scale),
        }

    def configuration(self, row: str) -> ModelConfig:
        return configuration(row, self.scale)

    def training(self, row: str, recipe: Recipe, seed: int, accelerator: Accelerator) -> Tasks:  # noqa: ARG002
        scale = replace(self.scale, recipe=recipe)
        return Tasks(lambda start: tasks_from(self.process, scale, start, seed))

    def validation(self, row: str) -> Sequence[Task]:  # noqa: ARG002
        number = max(2, self.scale.tests // 2)
        return [batch.task for batch in unseen(self.process, number, VALIDATION_SEED)]

    def score(self, row: str, model: NeuralProcess, folder: Path) -> Result:  # noqa: ARG002
        tests = unseen(self.process, self.scale.tests)
        return {"log_likelihood": scores(model, tests), "oracle": oracle_scores(tests)}

    def timed(self, row: str) -> Task:  # noqa: ARG002
        return unseen(self.process, 1)[0].task


def scale_of(result: Result) -> Scale:
    """The scale of a result."""
    values = result["scale"]
    return Scale(**(values | {"recipe": Recipe(**values["recipe"])}))


def on_square(config: ModelConfig, half: float) -> ModelConfig:
    """A model with relative positions on [-half, half]², with cells of the same size."""
    assert isinstance(config.architecture, GriddedConfig)
    axes = [
        Axis.cells(axis.name, -half, half, round(2 * half / axis.step))
        for axis in config.architecture.grid.axes
    ]
    return config.on(Grid(tuple(axes)))


def run_larger(
    model: NeuralProcess, row: str, table: GP, half: float, folder: Path, command: str
) -> Result:
    """Score a trained row with relative positions on a larger square, without training it again.

    Points are as dense as in training. The exact posterior uses points up to five length-scales
    away, which costs it less than 0.0001 nats.
    """
    scale, length_scale = table.scale, table.length_scale
    context = round(scale.context * (half / scale.half) ** 2)
    process = replace(scale, half=half, context=context).process(length_scale, "exact")
    tests = unseen(process, 1 if half > 10 else 16)
    result = {
        "row": row,
        "length_scale": length_scale,
        "half": half,
        "context": context,
        "log_likelihood": scores(model, tests),
        "oracle": oracle_scores(tests, reach=5 * length_scale),
        "forward_ms": forward_milliseconds(model, tests[0].task, 1),
        "commit": commit(),
        "command": command,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"larger-{half:g}.json").write_text(json.dumps(result) + "\n")
    return result


def trained(length_scale: float = 0.5, half: float = 3.0) -> NeuralProcess:
    """A Swin-TNP with relative positions that comes with the package, trained on [-3, 3]².

    It predicts on any square [-half, half]² whose sides are multiples of a window.
    """
    paths = {
        path.stem.removeprefix("gp-"): path
        for path in Path(__file__).parent.glob("gp-*.safetensors")
    }
    require_known(f"{length_scale:g}", paths, "length-scale", "of the trained models")
    tensors, about = read_tensors(paths[f"{length_scale:g}"])
    config = ModelConfig.model_validate_json(about["config"])
    model = build_model(on_square(config, half))
    model.load_state_dict(tensors)
    return model.eval()


def keep(row: str, table: GP, folder: Path, to: Path) -> None:
    """Write weights and configuration of a row trained in a folder, as `trained` reads them."""
    tensors, _ = read_tensors(folder / "checkpoint.safetensors")
    trained_at = json.loads((folder / "result.json").read_text())["commit"]
    about = {"config": table.configuration(row).model_dump_json(), "commit": trained_at}
    write_tensors(to / f"gp-{table.length_scale:g}.safetensors", weights_of(tensors), about)
