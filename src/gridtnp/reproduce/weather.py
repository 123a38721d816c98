"""The paper's weather experiments: what the one on stations and the one on wind have in common.

Both draw tasks from a `Dataset` with a `Sampler`: some context sets, and targets among which those
of the context may be. All rows and baselines get the same test tasks.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from gridtnp.config import Full, GriddedConfig, Kriging, ModelConfig, ViT
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.design.grids import Extent
from gridtnp.design.priors import design_prior
from gridtnp.errors import require_known
from gridtnp.grid import Grid
from gridtnp.network.kriging import KrigedNetwork
from gridtnp.network.model import NeuralProcess
from gridtnp.network.presets import PRESETS
from gridtnp.recipes import Recipe
from gridtnp.reproduce.rows import Experiment, Result, Tasks
from gridtnp.reproduce.shrinking import (
    KRIGING,
    PAPER,
    SMOOTH,
    Size,
    row_configuration,
    shrunk,
)
from gridtnp.reproduce.weather_scores import Tally
from gridtnp.sources.times import show
from gridtnp.task import Task
from gridtnp.tasks.observations import Observations
from gridtnp.tasks.prefetch import prefetch
from gridtnp.tasks.sampling import Context, RawBatch, Sampler
from gridtnp.tasks.selection import Fraction, Rest, Selection, Whole
from gridtnp.tasks.specification import ContextSet, TaskSpec
from gridtnp.training.calibration import calibrate_network
from gridtnp.training.distributed import share_of
from gridtnp.training.prior_fitting import fit_prior

TRAINING_SEED, VALIDATION_SEED, TEST_SEED = 1, 2, 3
FAMILIES = {
    "cnp": "CNP",
    "pt-tnp": "PT-TNP",
    "convcnp": "ConvCNP",
    "vitnp": "ViTNP",
    "swin-tnp": "Swin-TNP",
}
"""Model families in the order of the paper's tables."""
BATCH = 8
"""Tasks in the batch whose forward pass is timed, and in validation."""
FITTED = 96
"""Training tasks that kriging is fitted to before training."""
MEMORY_TARGETS = Fraction(0.25)
"""Targets of rows that decode from the entire grid, at the paper's scale, as in the paper."""


@dataclass(frozen=True)
class Scale:
    """Size of networks, and of training and test; `held_out` is the part of the stations that are
    never in training. `thinned` keeps every so many stations, or rows and columns; kriging is
    `fitted` to so many tasks, and so are baselines.
    """

    name: str
    size: Size
    recipe: Recipe
    tests: int
    validations: int = 4
    held_out: float = 0.0
    thinned: int = 1
    fitted: int = FITTED

    @property
    def is_full(self) -> bool:
        return self.size == PAPER


@dataclass(frozen=True, eq=False)
class Weather(Experiment):
    """A table of the paper.

    `contexts` are its context sets in the order of the presets' sources, `place` moves the presets'
    grids to the data, `groups` divides the targets of a test task, `baselines` are those beside it.
    The example in the figures has `example` of the context.
    """

    table: str
    scale: Scale
    data: str
    parts: tuple[Dataset, Dataset, Dataset]
    contexts: Mapping[str, Context]
    targets: Selection
    place: Callable[[Grid], Grid] | None
    coordinates: tuple[str, ...]
    baselines: tuple[str, ...]
    example: float
    window: str = "[0h, 0h]"
    groups: Callable[[RawBatch], Mapping[str, np.ndarray]] = field(default=lambda _: {})
    sites: tuple[np.ndarray, np.ndarray] | None = None
    """Latitudes and longitudes of all stations that were given."""
    keeps_best = True
    repeats = 3
    _fitted: dict[str, tuple[nn.ModuleList, float]] = field(default_factory=dict, repr=False)
    """The Gaussian processes of rows with kriging, which all seeds share, and their seconds."""

    # ---- rows ------------------------------------------------------------------------------------

    @property
    def rows(self) -> Mapping[str, str]:
        return {row: self.label(row) for row in rows_of(self.table)}

    @property
    def recipe(self) -> Recipe:
        return self.scale.recipe

    def name_of(self, row: str) -> str:
        return row

    def label(self, row: str) -> str:
        """Model, grid encoder and grid in one line."""
        return ", ".join(part for part in self.described(row) if part)

    def described(self, row: str) -> tuple[str, str, str]:
        """Model, grid encoder and grid, as in the paper's tables."""
        family = next(name for name in sorted(FAMILIES, key=len)[::-1] if row.startswith(name))
        notes = {"-full": " (no NN-CA)", "-skt": " (skt)", "-t2m": " (t2m)"}
        notes |= {SMOOTH: " (smooth)", KRIGING: " (smooth, corrects kriging)"}
        model = FAMILIES[family] + next((v for k, v in notes.items() if row.endswith(k)), "")
        encoders = {"ki": "KI-GE", "pt": "PT-GE", "avg": "Avg-GE"}
        words = row.removeprefix(family).split("-")
        encoder = " ".join(w for w in words if w in ("multi", "single"))
        encoder += " " + next((encoders[w] for w in words if w in encoders), "")
        a: Any = self.configuration(row).architecture
        if not isinstance(a, GriddedConfig):
            pseudo = getattr(a, "pseudo_tokens", None)
            return model, "", "" if pseudo is None else f"M = {pseudo}"
        shape = [axis.size for axis in a.grid.axes if axis.name != "time"]
        grid = "×".join(map(str, shape))
        if isinstance(a.processor, ViT) and a.processor.patch is not None:
            merged = zip(shape, a.processor.patch[-2:], strict=True)
            grid += " → " + "×".join(str(n // k) for n, k in merged)
        return model, "SetConv" if family == "convcnp" else encoder.strip(), grid

    def configuration(self, row: str) -> ModelConfig:
        require_known(row, rows_of(self.table), "row")
        config, sources = row_configuration(self.table, row), list(self.contexts)
        if self.table != "wind":
            sources = list(config.sources)
        outputs = len(self.parts[0].target_names)
        config = shrunk(config, self.scale.size, sources, outputs, self.place)
        return config.model_copy(update={"prior": self._prior}) if row.endswith(KRIGING) else config

    @cached_property
    def _prior(self) -> Kriging:
        """What the network of the last row corrects: regression on fields, and kriging."""
        train = self.parts[0]
        source = train.sources[train.target_source]
        extent = Extent.of(source.lat, source.lon, train.west)
        prior, _ = design_prior(train, self.spec, extent, "kriging", 0.0)
        assert prior is not None
        return prior

    def about(self) -> Result:
        return {
            "table": self.table,
            "data": self.data,
            "scale": self.scale.name,
            "size": asdict(self.scale.size),
            "test": f"{self.scale.tests} tasks {self.periods[2]}",
            "training": self.periods[0],
            "std": list(map(float, self.normaliser.scale(self.target))),
            "variables": list(self.parts[0].target_names),
        }

    @cached_property
    def periods(self) -> list[str]:
        """First and last time of training, validation and test."""
        times = [part.times() for part in self.parts]
        return [f"from {show(t[0])} to {show(t[-1])}" for t in times if t is not None]

    # ---- tasks -----------------------------------------------------------------------------------

    @cached_property
    def normaliser(self) -> Normaliser:
        """The paper's constants at its scale, else those of the training part."""
        train = self.parts[0]
        return Normaliser.paper(train) if self.scale.is_full else Normaliser.fit(train)

    @property
    def target(self) -> tuple[str, ...]:
        train = self.parts[0]
        return tuple(f"{train.target_source}.{name}" for name in train.target_names)

    def sampler(self, part: Dataset, batch: int, seed: int, **changes: Any) -> Sampler:
        """Draws tasks with all context sets."""
        options: dict[str, Any] = {"context": self.contexts, "targets": self.targets} | changes
        return Sampler(
            part,
            window=self.window,
            target_window=self.window,
            coordinates=self.coordinates,
            normaliser=self.normaliser,
            batch=batch,
            seed=seed,
            **options,
        )

    def training(self, row: str, recipe: Recipe, seed: int, accelerator: Accelerator) -> Tasks:
        own = TRAINING_SEED + 100 * seed
        sampler = self.sampler(self.parts[0], recipe.batch, own, targets=self._targets(row))
        keep, mine = self._keep(row), None
        if sampler.independent:
            mine = share_of(recipe.batch, accelerator.process_index, accelerator.num_processes)

        def make(index: int) -> Task:
            return keep(sampler.draw(index, mine))

        return Tasks(lambda start: prefetch(make, start), apart=sampler.independent)

    def validation(self, row: str) -> Sequence[Task]:
        batch, targets = min(BATCH, self.recipe.batch), self._targets(row)
        number = min(self.scale.validations, self.scale.tests)
        sampler = self.sampler(self.parts[1], batch, VALIDATION_SEED, targets=targets)
        return [self._keep(row)(sampler.draw(i)) for i in range(number)]

    def timed(self, row: str) -> Task:
        targets = self._targets(row)
        sampler = self.sampler(self.parts[2], BATCH, TEST_SEED, targets=targets)
        return self._keep(row)(sampler.draw(0))

    def tests(self, targets: Selection | None = None) -> Iterator[tuple[Sampler, RawBatch]]:
        """Test tasks at times that are evenly spaced."""
        changes = {} if targets is None else {"targets": targets}
        sampler = self.sampler(self.parts[2], 1, TEST_SEED, **changes)
        assert sampler.times is not None
        number = min(self.scale.tests, len(sampler.times))
        some = np.linspace(0, len(sampler.times) - 1, number).round().astype(int)
        for raw in sampler.raw_batches(sampler.times[some]):
            yield sampler, raw

    def example_task(self) -> tuple[Sampler, RawBatch]:
        """The test task of the figures, in the middle of the test, with all targets."""
        own = self.parts[2].target_source
        context = {
            name: replace(of, selection=Fraction(self.example)) if _is_of(of, own) else of
            for name, of in self.contexts.items()
        }
        sampler = self.sampler(self.parts[2], 1, TEST_SEED, context=context, targets=Whole())
        assert sampler.times is not None
        middle = len(sampler.times) // 2
        return sampler, next(sampler.raw_batches(sampler.times[middle : middle + 1]))

    def _targets(self, row: str) -> Selection:
        a = self.configuration(row).architecture
        full = isinstance(a, GriddedConfig) and isinstance(a.decoder, Full)
        return MEMORY_TARGETS if full and self.scale.is_full else self.targets

    def _keep(self, row: str) -> Callable[[Task], Task]:
        """Leaves out the context sets that a row does not use."""
        sources = self.configuration(row).sources
        return lambda task: Task({name: task.context[name] for name in sources}, task.target)

    @cached_property
    def spec(self) -> TaskSpec:
        """The context sets and targets by their names in the data."""
        contexts = {}
        for name, of in self.contexts.items():
            source, variables = self.parts[0].variables_of(of.of or name)
            contexts[name] = ContextSet(source=source.name, variables=variables)
        return TaskSpec(
            coordinates=self.coordinates,
            contexts=contexts,
            target=self.target,
            window=self.window,
            target_window=self.window,
        )

    # ---- what rows with kriging need -------------------------------------------------------------

    def prepare(self, row: str, model: NeuralProcess) -> float:
        if not isinstance(model, KrigedNetwork):
            return 0.0
        if row not in self._fitted:
            start, batch = time.process_time(), min(BATCH, self.recipe.batch)
            sampler = self.sampler(self.parts[0], batch, 0, targets=Rest(self.targets))
            number = max(1, self.scale.fitted // batch)
            # few tasks are not enough for a covariance that differs from place to place
            validation = self.validation(row) if self.scale.fitted >= FITTED else ()
            tasks = [self._keep(row)(sampler.draw(i)) for i in range(number)]
            fit_prior(model, tasks, validation)
            self._fitted[row] = model.processes, time.process_time() - start
        processes, seconds = self._fitted[row]
        model.processes = copy.deepcopy(processes)
        return seconds

    # ---- scores ----------------------------------------------------------------------------------

    def score(self, row: str, model: NeuralProcess, folder: Path) -> Result:
        if isinstance(model, KrigedNetwork):
            device = next(model.parameters()).device
            calibrate_network(model, [task.to(device) for task in self.validation(row)])
        tally = Tally(self.normaliser.scale(self.target))
        for sampler, raw in self.tests(self._targets(row)):
            truth = raw.target[0].values.astype(np.float64)
            tally.add(truth, *self.predict(row, model, sampler, raw), self.groups(raw))
        sampler, raw = self.example_task()
        self.save_example(folder, raw, *self.predict(row, model, sampler, raw))
        return {"groups": tally.groups}

    @torch.no_grad()
    def predict(
        self, row: str, model: NeuralProcess, sampler: Sampler, raw: RawBatch
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations at the targets of a test task, in the data's units."""
        task = self._keep(row)(sampler.assemble(raw)).to(next(model.parameters()).device)
        forecast = model(task)
        mean, std = (t[0].double().cpu().numpy() for t in (forecast.mean, forecast.stddev))
        return self.normaliser.restore(self.target, mean), std * self.normaliser.scale(self.target)

    def save_example(self, folder: Path, raw: RawBatch, mean: np.ndarray, std: np.ndarray) -> None:
        """Predictions at the first time of the example, for the figures."""
        part, target = self.parts[2], raw.target[0]
        source = part.sources[part.target_source]
        times = source.times_of(target.rows)
        assert times is not None
        first = times == times.min()
        places = source.places(target.rows)
        own = [c[0] for n, c in raw.context.items() if _is_of(self.contexts[n], source.name)]
        observed = source.places(_first(own, source))
        np.savez_compressed(
            folder / "example.npz",
            time=str(times.min()),
            lat=source.lat[places][first].astype(np.float32),
            lon=source.lon[places][first].astype(np.float32),
            truth=target.values[first].astype(np.float32),
            mean=mean[first].astype(np.float32),
            std=std[first].astype(np.float32),
            context_lat=source.lat[observed].astype(np.float32),
            context_lon=source.lon[observed].astype(np.float32),
        )


def _is_of(context: Context, source: str) -> bool:
    return (context.of or "").split(".")[0] == source


def _first(own: list[Observations], source: Any) -> np.ndarray:
    """The rows of the first context set at the first time."""
    if not own or not len(own[0].rows):
        return np.zeros(0, int)
    times = source.times_of(own[0].rows)
    return own[0].rows[times == times.min()]


def rows_of(table: str) -> list[str]:
    """The rows of a table in the paper's order, and three of ours after them."""
    names = [name.partition("/")[2] for name in PRESETS if name.startswith(f"{table}/")]
    order = list(FAMILIES)
    names.sort(key=lambda row: max(i for i, f in enumerate(order) if row.startswith(f)))
    main = MAIN[table]
    return [*names, main.replace("-pt-", "-avg-"), main + SMOOTH, main + KRIGING]


MAIN = {
    "stations": "swin-tnp-pt-64x128",
    "stations-rich": "swin-tnp-pt-128x256",
    "wind": "swin-tnp-multi-pt-24x60",
}
"""The paper's own model in each table."""


def scale_of(
    scales: Mapping[str, Scale], name: str, tests: int | None = None, **recipe: Any
) -> Scale:
    """A scale by name; `tests` and settings of its recipe may be replaced."""
    require_known(name, scales, "scale")
    scale = scales[name]
    return replace(scale, recipe=replace(scale.recipe, **recipe), tests=tests or scale.tests)
