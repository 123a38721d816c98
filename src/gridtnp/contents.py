"""`ModelContents`: a network together with all it takes to use it on data, as one value.

Fitting, prediction, evaluation and files on disk all work on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gridtnp.config import ModelConfig
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.network.model import NeuralProcess
from gridtnp.recipes import Recipe, recipe
from gridtnp.tasks.assembly import Assembler
from gridtnp.tasks.sampling import Sampler
from gridtnp.tasks.selection import Selection
from gridtnp.tasks.specification import TaskSpec


@dataclass(frozen=True, eq=False)
class ModelContents:
    """`config` describes the network, `spec` its tasks, `normaliser` the scale of every variable;
    `recipe` is how to train it.
    """

    config: ModelConfig
    spec: TaskSpec
    normaliser: Normaliser
    network: NeuralProcess
    recipe: Recipe | str = "default"

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.network.parameters()), torch.device("cpu"))

    def sampler(
        self, data: Dataset, selection: Mapping[str, Selection] | None = None, **options: Any
    ) -> Sampler:
        """Tasks of this model from a dataset; see `TaskSpec.sampler`."""
        grid = self.network.grid
        return self.spec.sampler(data, self.normaliser, selection, grid=grid, **options)

    def assembler(self, data: Dataset) -> Assembler:
        """What turns the observations of a dataset into points of this model."""
        return self.spec.assembler(data, self.normaliser, self.network.grid)

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Evaluation mode without gradients; afterwards the network is as before."""
        training = self.network.training
        self.network.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.network.train(training)


def describe(model: ModelContents) -> str:
    """What a model is, in a few lines: target, sources, grid, size."""
    spec, network = model.spec, model.network
    parameters = sum(p.numel() for p in network.parameters())
    units = [f"{name} ({spec.units.get(name) or 'no units'})" for name in spec.target]
    lines = [f"GriddedTNP of {', '.join(units)}", f"  context   {', '.join(spec.contexts)}"]
    if spec.statics or spec.computed:
        lines.append(f"  features  {', '.join((*spec.statics, *spec.computed))}")
    if network.grid is not None:
        axes = " × ".join(
            f"{a.size} {a.name} ({a.low:.4g} to {a.high:.4g})" for a in network.grid.axes
        )
        lines.append(f"  grid      {axes}")
    lines.append(f"  network   {parameters:,} parameters, width {model.config.dim}")
    lines.append(f"  recipe    {recipe(model.recipe).summary}")
    return "\n".join(lines)
