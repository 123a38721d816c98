"""`ModelContents`: a network with everything needed to use it on data, as one value.

Fitting, prediction, evaluation and files on disk all work on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import torch

from gridtnp.config import GriddedConfig, ModelConfig
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.distributions.kinds import limits
from gridtnp.network.model import NeuralProcess
from gridtnp.recipes import Recipe, recipe
from gridtnp.sources.times import duration
from gridtnp.tasks.assembly import Assembler
from gridtnp.tasks.sampling import NOW, Sampler
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

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """The lowest and the highest possible value of targets, in the units of the data."""
        if not self.config.likelihood:
            return {}
        ends = np.array([limits(one) for one in self.config.likelihood]).T
        low, high = (self.normaliser.restore(self.spec.target, end[None])[0] for end in ends)
        pairs = zip(self.spec.target_names, low.tolist(), high.tolist(), strict=True)
        return {name: (a, b) for name, a, b in pairs}

    def sampler(
        self, data: Dataset, selection: Mapping[str, Selection] | None = None, **options: Any
    ) -> Sampler:
        """Tasks of this model from a dataset, without locations outside of its grid.

        See `TaskSpec.sampler`.
        """
        grid = self.network.grid
        return self.spec.sampler(data, self.normaliser, selection, grid=grid, **options)

    def assembler(self, data: Dataset) -> Assembler:
        """Turns the observations of a dataset into points of this model."""
        return self.spec.assembler(data, self.normaliser, self.network.grid)

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Evaluation mode without gradients; afterwards the network is as before."""
        if not any(module.training for module in self.network.modules()):
            with torch.no_grad():  # nothing to change, which takes longer than a small prediction
                yield
            return
        training = self.network.training
        self.network.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.network.train(training)


def describe(model: ModelContents) -> str:
    """A model in a few lines: targets, context, features, times, grid, network and recipe."""
    title, rows = _described(model)
    width = max(map(len, rows))
    return "\n".join([title, *(f"  {what:<{width}}  {text}" for what, text in rows.items())])


def describe_html(model: ModelContents) -> str:
    """The same as a table, for notebooks."""
    title, rows = _described(model)
    lines = [f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows.items()]
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"


def _described(model: ModelContents) -> tuple[str, dict[str, str]]:
    """A title, and what there is to say by key."""
    config, spec, network = model.config, model.spec, model.network
    targets = [f"{name} ({spec.units.get(name) or 'no units'})" for name in spec.target]
    contexts = [
        f"{name} ({', '.join(held.variables)})" if name == held.source else name
        for name, held in spec.contexts.items()
    ]
    rows = {"context": ", ".join(contexts)}
    if spec.statics or spec.computed:
        rows["features"] = ", ".join((*spec.statics, *spec.computed))
    rows |= _times(spec)
    rows["grid"] = "none"
    if network.grid is not None:
        axes = [
            f"{a.size} {a.name} ({a.low:.4g} to {a.high:.4g}{', periodic' * a.periodic})"
            for a in network.grid.axes
        ]
        rows["grid"] = " × ".join(axes)
    a = config.architecture
    kind = a.processor.kind if isinstance(a, GriddedConfig) else a.kind
    parameters = sum(p.numel() for p in network.parameters())
    rows["network"] = f"{kind}, {parameters:,} parameters, width {config.dim}"
    if not config.is_gaussian:
        pairs = zip(spec.target_names, config.likelihood, strict=True)
        rows["likelihood"] = ", ".join(f"{name} {one.kind}" for name, one in pairs)
    rows["recipe"] = recipe(model.recipe).summary
    return f"GriddedTNP to predict {', '.join(targets)}", rows


def _times(spec: TaskSpec) -> dict[str, str]:
    """Time windows and lead, where they are not the time of the task alone."""
    windows = {held.window or spec.window for held in spec.contexts.values()}
    rows = {}
    if windows != {NOW}:
        each = [f"{name} {held.window or spec.window}" for name, held in spec.contexts.items()]
        rows["windows"] = ", ".join(each) if len(windows) > 1 else windows.pop()
    if duration(spec.lead):
        rows["lead"] = spec.lead
    if spec.target_window != NOW:
        rows["targets"] = f"within {spec.target_window}"
    return rows
