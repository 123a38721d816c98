"""`GriddedTNP`: fit, evaluate, predict, sample, save and load, on pandas and xarray."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from gridtnp import saving
from gridtnp.config import ModelConfig, Positions
from gridtnp.contents import ModelContents, describe
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.data.reading import Data
from gridtnp.evaluation.evaluate import evaluate
from gridtnp.evaluation.results import Evaluation
from gridtnp.exporting import export
from gridtnp.grid import Grid
from gridtnp.inference import joint_samples, prediction
from gridtnp.inference.conditioning import Static
from gridtnp.inference.prediction import CHUNK
from gridtnp.inference.queries import Places
from gridtnp.network.build import build_model
from gridtnp.network.model import NeuralProcess
from gridtnp.recipes import Recipe
from gridtnp.tasks.sampling import NOW
from gridtnp.tasks.selection import Selection
from gridtnp.tasks.specification import TaskSpec
from gridtnp.training.design import ModelOptions, Size, design, device_here
from gridtnp.training.estimates import estimate

if TYPE_CHECKING:
    from gridtnp.training.fit import Tracker


class GriddedTNP:
    """A model of your data."""

    def __init__(
        self,
        config: ModelConfig,
        spec: TaskSpec,
        normaliser: Normaliser,
        network: NeuralProcess | None = None,
        recipe: Recipe | str = "default",
    ) -> None:
        made = build_model(config) if network is None else network
        self.contents = ModelContents(config, spec, normaliser, made, recipe)

    @property
    def config(self) -> ModelConfig:
        """What describes the network."""
        return self.contents.config

    @property
    def spec(self) -> TaskSpec:
        """How tasks are made from data."""
        return self.contents.spec

    @property
    def normaliser(self) -> Normaliser:
        """Mean and standard deviation of every variable."""
        return self.contents.normaliser

    @property
    def network(self) -> NeuralProcess:
        """The network, a `torch.nn.Module`."""
        return self.contents.network

    @property
    def recipe(self) -> Recipe | str:
        """How it is trained, or was trained last."""
        return self.contents.recipe

    def __repr__(self) -> str:
        return describe(self.contents)

    # ---- fitting and keeping ---------------------------------------------------------------------

    @classmethod
    def for_data(
        cls,
        train: Dataset,
        size: Size = "tiny",
        *,
        config: ModelConfig | None = None,
        grid: Grid | None = None,
        cell: float | None = None,
        window: tuple[int, ...] | None = None,
        dim: int | None = None,
        heads: int | None = None,
        layers: int | None = None,
        neighbours: int | tuple[int, ...] | None = None,
        positions: Positions | None = None,
        fusion: Literal["single", "multi"] | None = None,
        min_noise: float | None = None,
        recipe: Recipe | str | None = None,
        context_window: str = NOW,
        target_window: str = NOW,
        lead: str = "0h",
        every: str | None = None,
        seed: int = 0,
        quiet: bool = False,
    ) -> GriddedTNP:
        """A model that suits the training part, not fitted yet; says what was chosen and why.

        Whatever is given replaces a choice: see `gridtnp.training.design.ModelOptions`. `config`
        replaces all that is about the network.
        """
        options = ModelOptions(
            size=size,
            grid=grid,
            cell=cell,
            window=window,
            dim=dim,
            heads=heads,
            layers=layers,
            neighbours=neighbours,
            positions=positions,
            fusion=fusion,
            min_noise=min_noise,
            recipe=recipe,
            context_window=context_window,
            target_window=target_window,
            lead=lead,
            every=every,
        )
        return cls.from_options(train, options, config, seed=seed, quiet=quiet)

    @classmethod
    def from_options(
        cls,
        train: Dataset,
        options: ModelOptions,
        config: ModelConfig | None = None,
        *,
        seed: int = 0,
        quiet: bool = False,
    ) -> GriddedTNP:
        """`for_data` with all options in one value, as a file holds them."""
        decision = design(train, options, config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = cls(decision.config, decision.spec, decision.normaliser, recipe=decision.recipe)
        if not quiet:
            print(decision)
            print(f"  {estimate(model.network, decision.task, decision.recipe, device_here())}")
        return model

    def fit(
        self,
        train: Dataset,
        val: Dataset | None = None,
        *,
        recipe: Recipe | str | None = None,
        minutes: float | None = None,
        out: str | os.PathLike[str] | None = None,
        resume: bool = False,
        seed: int = 0,
        selection: Mapping[str, Selection] | None = None,
        trackers: Sequence[Tracker] = (),
        workers: int = 1,
        shard: bool = False,
        quiet: bool = False,
    ) -> GriddedTNP:
        """Train on tasks of `train` and keep the weights that are best on `val`.

        `recipe` is a `Recipe` or the name of one; the default is that of `for_data`. `minutes` sets
        the number of steps from the speed of this machine. `out` is the folder of the run, which
        `resume` continues. `selection` says which observations of a context set are used, `workers`
        is the number of threads that prepare tasks. Each of several processes holds a copy of the
        network, or a shard of it with `shard`.
        """
        from gridtnp.training.fit import fit

        followed = fit(
            self.contents,
            train,
            val,
            recipe=recipe,
            minutes=minutes,
            out=out,
            resume=resume,
            seed=seed,
            selection=selection,
            trackers=trackers,
            workers=workers,
            shard=shard,
            quiet=quiet,
        )
        self.contents = replace(self.contents, recipe=followed)
        return self

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write everything that predicting needs into a folder."""
        return saving.save(self.contents, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> GriddedTNP:
        """From a folder that `save` made, or that of a run."""
        found = saving.load(folder)
        return cls(found.config, found.spec, found.normaliser, found.network, found.recipe)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """The network as a graph for any number of points (`.pt2`); see `gridtnp.exporting`."""
        return export(self.network, path)

    # ---- predicting ------------------------------------------------------------------------------

    def predict(
        self,
        context: Dataset | Mapping[str, Data],
        at: Places,
        *,
        quantiles: Sequence[float] = (0.05, 0.95),
        times: Iterable[Any] | None = None,
        static: Static = None,
        to: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        chunk: int = CHUNK,
        progress: bool = True,
    ) -> Any:
        """Means, spreads, quantiles and support at any places, in the form of the question.

        `context` is a dataset, a part of one (`test.at("1995-07-01")`), or fresh sources by name,
        with their `static` fields. `at` is a grid, a table or a pair of arrays; a static feature
        that it brings along wins. Its own times are those to predict at; else they are `times`, or
        that of the context. With `to`, the answer goes to a file, time by time, and its path comes
        back.
        """
        return prediction.predict(
            self.contents,
            context,
            at,
            quantiles=quantiles,
            times=times,
            static=static,
            to=to,
            overwrite=overwrite,
            chunk=chunk,
            progress=progress,
        )

    def sample(
        self,
        n: int,
        context: Dataset | Mapping[str, Data],
        at: Places,
        *,
        times: Iterable[Any] | None = None,
        static: Static = None,
        subset: int = joint_samples.SUBSET,
        seed: int = 0,
        to: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        progress: bool = True,
    ) -> Any:
        """So many fields that could have been, each coherent over all points of the question.

        Arguments are those of `predict`. `subset` points are drawn one after the other; see
        `gridtnp.inference.joint_samples` for how, and what is approximate about it.
        """
        return joint_samples.sample(
            self.contents,
            n,
            context,
            at,
            times=times,
            static=static,
            subset=subset,
            seed=seed,
            to=to,
            overwrite=overwrite,
            progress=progress,
        )

    # ---- judging ---------------------------------------------------------------------------------

    def evaluate(
        self,
        test: Dataset,
        baselines: Sequence[str] = (),
        *,
        train: Dataset | None = None,
        selection: Mapping[str, Selection] | None = None,
        limit: int | None = None,
        block: str | None = None,
        batch: int = 8,
        seed: int = 0,
    ) -> Evaluation:
        """Scores on a part that was not trained on, beside those of baselines, in your units.

        Print what comes back. Baselines are `"nearest"`, `"idw"`, `"bilinear"`, `"kriging"`,
        `"kriging-drift"`, `"persistence"` and `"climatology"`; they learn from `train`, or from the
        training part of the same split. `limit` is a number of times to evaluate at, `selection` says
        which observations are context, and `block` is the length of the blocks of time that are
        resampled for intervals.
        """
        return evaluate(
            self.contents,
            test,
            baselines,
            train=train,
            selection=selection,
            limit=limit,
            block=block,
            batch=batch,
            seed=seed,
        )
