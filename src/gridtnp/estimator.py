"""`GriddedTNP`: a model that fits, predicts, samples and evaluates pandas and xarray data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from gridtnp import saving
from gridtnp.config import ModelConfig, Positions
from gridtnp.contents import ModelContents, describe, describe_html
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.design.likelihoods import require_possible_values
from gridtnp.design.models import ModelOptions, Size, design
from gridtnp.distributions.kinds import Likelihood
from gridtnp.evaluation.evaluate import evaluate
from gridtnp.evaluation.results import Evaluation
from gridtnp.exporting import export
from gridtnp.grid import Grid
from gridtnp.inference import joint_samples, prediction
from gridtnp.inference.context_reader import Static
from gridtnp.inference.prediction import CHUNK, Exceed
from gridtnp.inference.queries import Places
from gridtnp.inference.running import Output
from gridtnp.network.build import build_model
from gridtnp.network.model import NeuralProcess
from gridtnp.recipes import Recipe
from gridtnp.sources.reading import Data
from gridtnp.tasks.selection import Selection
from gridtnp.tasks.specification import TaskSpec
from gridtnp.training.distributed import device_here
from gridtnp.training.estimates import estimate

if TYPE_CHECKING:
    from gridtnp.training.fit import Tracker


class GriddedTNP:
    """A gridded transformer neural process for a dataset.

    `GriddedTNP.for_data(train)` designs a model, `fit` trains it, `predict` and `sample` apply it
    anywhere, `evaluate` scores it, and `save` and `load` keep it. The constructor is for models
    with a network of your own: `config` describes the network, `spec` how tasks are made from data,
    `normaliser` the scale of every variable. A missing `network` is built from the config.

        >>> train, val, test = data.split(time=["1995", "1996"], hold_out_stations=0.2)
        >>> model = GriddedTNP.for_data(train).fit(train, val)
        >>> print(model.evaluate(test, ["kriging"]))
        >>> grid = gt.latlon_grid(lat=(37, 41), lon=(-109, -102), step=0.1)
        >>> july = model.predict(test.at("1996-07-01"), at=grid)
    """

    def __init__(
        self,
        config: ModelConfig,
        spec: TaskSpec,
        normaliser: Normaliser,
        network: NeuralProcess | None = None,
        recipe: Recipe | str = "default",
    ) -> None:
        network = build_model(config) if network is None else network
        self.contents = ModelContents(config, spec, normaliser, network, recipe)

    @property
    def config(self) -> ModelConfig:
        """Description of the network."""
        return self.contents.config

    @property
    def spec(self) -> TaskSpec:
        """How tasks are made from data: context sets, targets, time windows, features."""
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
        """The training recipe: of the last `fit`, or else the default of the next."""
        return self.contents.recipe

    def __repr__(self) -> str:
        return describe(self.contents)

    def _repr_html_(self) -> str:
        return describe_html(self.contents)

    # ---- fitting and saving ----------------------------------------------------------------------

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
        prior: Literal["kriging", "none"] | None = None,
        start: Literal["kriging", "pretrained"] | None = None,
        likelihood: str | Likelihood | dict[str, str | Likelihood] | None = None,
        recipe: Recipe | str | None = None,
        context_window: str | None = None,
        target_window: str | None = None,
        lead: str = "0h",
        every: str | None = None,
        seed: int = 0,
        quiet: bool = False,
    ) -> GriddedTNP:
        """Design an untrained model for the training part, and print its design with reasons.

        Every option replaces an automatic choice; `None` leaves it automatic.

        Args:
            size: Preset of width, depth, number of cells and recipe.
            config: Complete description of the network, instead of the options for it.
            grid: Grid of the network.
            cell: Height of a grid cell in degrees of latitude.
            window: Attention window of the Swin transformer, in cells per axis.
            dim, heads, layers: Width of tokens, attention heads, and layers of the grid processor.
            neighbours: Grid points that each target attends to, in total or per axis.
            positions: `"absolute"`, or `"relative"` for a network that is equivariant to shifts.
            fusion: `"single"` for one grid for all sources, `"multi"` for one grid per source.
            min_noise: Lower bound of the predicted standard deviation: in standard deviations of
                kriging if the network corrects it, else in normalised units.
            prior: `"kriging"`: the network corrects regression on features and gridded sources and
                kriging of the context; `"none"`: it predicts everything itself.
            start: `"pretrained"`: after `fit`, a quarter of the answer is that of the process of
                `gt.interpolate`; the default where it is possible. `"kriging"`: none of it.
            likelihood: Distribution of the targets, such as `"bernoulli-gamma"` for rain, or of
                some by name: `{"tmax": "gaussian", "rain": "bernoulli-gamma"}`. By default it is
                chosen from the values (docs/likelihoods.md).
            recipe: Training recipe, a `Recipe` or the name of one.
            context_window: Times of the context relative to the task's, such as `"(-6h, 0h]"`; by
                default the task's own time, or more if single times hold too few observations.
            target_window: Times of the targets relative to that of the task plus the lead.
            lead: Lead time of a forecast, such as `"24h"`.
            every: Interval of task times, such as `"6h"`; by default the target's own times.
            seed: Seed of the initial weights.
            quiet: Print nothing.
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
            prior=prior,
            start=start,
            likelihood=likelihood,
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
        """`for_data` with the options as one value, as in an experiment file."""
        found = design(train, options, config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = cls(found.config, found.spec, found.normaliser, recipe=found.recipe)
        if not quiet:
            print(found)
            task = model.contents.sampler(train, batch=found.recipe.batch).draw(0)
            print(f"  {estimate(model.network, task, found.recipe, device_here())}")
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
        """Train on tasks of `train`, and keep the weights with the best score on `val`.

        Without `val`, the last weights are kept. Observations outside of the model's grid are
        dropped, with a warning.

        Args:
            recipe: A `Recipe` or the name of one; the default is the model's own.
            minutes: Training time by the clock, validation included, instead of a number of steps.
            out: Folder for checkpoints, metrics and the fitted model.
            resume: Continue the run in `out` from its last checkpoint.
            seed: Seed of the tasks.
            selection: Which observations are context, by context set, such as
                `{"stations": gt.Fraction(0.1, 0.5)}`.
            trackers: Experiment trackers: names such as `"tensorboard"`, or accelerate trackers.
            workers: Threads that prepare tasks.
            shard: Shard the weights over all processes (FSDP) instead of replicating them.
            quiet: Print nothing.

        Returns:
            The model itself.
        """
        from gridtnp.training.fit import fit

        parts = [train] if val is None else [train, val]
        self.spec.warn_outside(parts, self.network.grid, stacklevel=2)
        require_possible_values(self.config.likelihood, self.spec, parts)
        self.contents = fit(
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
        return self

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write config, weights, normaliser and task specification to a folder."""
        return saving.save(self.contents, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> GriddedTNP:
        """Read a model from a folder written by `save`, or from the `out` folder of `fit`."""
        found = saving.load(folder)
        return cls(found.config, found.spec, found.normaliser, found.network, found.recipe)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Export the network as a graph for any number of points (`.pt2`).

        See `gridtnp.exporting` for its inputs and outputs.
        """
        return export(self.network, path)

    # ---- predicting ------------------------------------------------------------------------------

    def predict(
        self,
        context: Dataset | Mapping[str, Data],
        at: Places,
        *,
        quantiles: Sequence[float] = (0.05, 0.95),
        exceed: Exceed = (),
        derive: Sequence[str] = (),
        times: Iterable[Any] | None = None,
        static: Static = None,
        to: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        layout: str | os.PathLike[str] | None = None,
        part: tuple[int, int] | None = None,
        resume: bool = False,
        regions: Mapping[str, int] | None = None,
        client: Any = None,
        chunk: int = CHUNK,
        progress: bool = True,
    ) -> Any:
        """Predict at any places and times, in the form of the query.

        The answer has, for every target variable, `<name>_mean`, `<name>_std`, quantiles such as
        `<name>_q05`, and `<name>_support`, the distance in km to the nearest observation. Points
        outside of the model's grid, or without a static feature, are NaN; a warning counts them.

        Args:
            context: The observations: a dataset, a part of one (`test.at("1995-07-01")`), or fresh
                sources by name.
            at: Where to predict: an xarray grid, a pandas table, or a tuple of latitudes and
                longitudes. Its static features, such as a column `elevation`, take precedence.
            quantiles: Which quantiles to predict.
            exceed: Thresholds t, in the units of the data, whose probability P(Y > t) is predicted
                as `<name>_above_<t>`; with several target variables `{"rain": [1, 10]}`.
            derive: `["speed", "direction"]` of the wind, if the targets are its eastward and its
                northward component with likelihood `"bivariate-gaussian"` (docs/likelihoods.md).
            times: When to predict, if `at` has no times; the default is the context's only time.
            static: Static fields of fresh sources.
            to: File to write to, time by time: `.nc`, `.zarr`, `.parquet` or `.csv`.
            overwrite: Replace an existing file.
            layout: Zarr store to lay out for a prediction in parts; nothing is predicted.
            part: `(i, n)`: predict part i of n, counted from 0, into the Zarr store `to`, which is
                laid out if it is not there. What is done already is not done again. The store can
                be opened when all parts are done.
            resume: Continue a prediction into the Zarr store `to`, or start one that can be
                continued: the same as `part=(0, 1)`.
            regions: Size of the regions, and chunks, of a Zarr store by dimension, such as
                `{"time": 24}`; by default all places, and as many times as make a megabyte.
            client: A `dask.distributed.Client`, whose workers predict into the Zarr store `to`.
            chunk: Points decoded at once; bounds memory and does not change the numbers.
            progress: Show a progress bar on terminals.

        Returns:
            A Dataset for a grid, a table for a table, a dict of arrays for a tuple; with `to`, the
            path of the file.
        """
        return prediction.predict(
            self.contents,
            context,
            at,
            quantiles=quantiles,
            exceed=exceed,
            derive=derive,
            times=times,
            static=static,
            chunk=chunk,
            output=Output(to, overwrite, layout, part, resume, regions, client, progress),
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
        """Draw `n` joint samples: fields that are coherent over all points of the query.

        Samples have the mean and standard deviation of `predict` at every point, and the model's
        correlations between points. See `gridtnp.inference.joint_samples` for the method and its
        approximations.

        Args:
            n: Number of samples.
            subset: Points drawn autoregressively; more are slower, and more accurate at short
                distances.
            seed: Seed of the samples; sample `i` does not depend on `n`.
            context, at, times, static, to, overwrite, progress: As in `predict`.

        Returns:
            A dimension `sample` for grids and arrays, columns `<name>_sample0`, … for tables.
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

    # ---- evaluation ------------------------------------------------------------------------------

    def evaluate(
        self,
        test: Dataset,
        baselines: Sequence[str] | None = None,
        *,
        train: Dataset | None = None,
        selection: Mapping[str, Selection] | None = None,
        limit: int | None = None,
        block: str | None = None,
        batch: int = 8,
        seed: int = 0,
        part: tuple[int, int] | None = None,
    ) -> Evaluation:
        """Score the model and baselines on a part that it was not trained on.

        Observations outside of the model's grid are dropped, with a warning.

        Args:
            test: The part to evaluate on.
            baselines: Any of `"nearest"`, `"idw"`, `"bilinear"`, `"kriging"`, `"kriging-drift"`,
                `"regression-kriging"`, `"gpboost"`, `"boosting"`, `"persistence"`,
                `"climatology"`, `"normal-scores"`, `"empirical-climatology"` and `"pretrained"`; by
                default the strongest that apply, `[]` for none.
            train: Data to fit the baselines to; by default the training part of the same split.
            selection: Which observations are context, by context set. By default all of them if
                the targets are at held-out stations, else a random 5 to 95 % of the target source.
            limit: Most times to evaluate at, evenly spaced.
            block: Length of the blocks of time resampled for confidence intervals, such as
                `"30D"`; by default longer than errors are correlated.
            batch: Tasks predicted at once.
            seed: Seed of the random contexts and of the resampling.
            part: `(i, n)`: part i of n of the times, counted from 0. `gt.ScoreSums.add_up` adds
                the `sums()` of all parts up to the scores of the whole.

        Returns:
            Scores in the units of the data; `print` shows them as a table.
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
            part=part,
        )

    def report(
        self,
        test: Dataset,
        path: str | os.PathLike[str] = "report.html",
        *,
        evaluation: Evaluation | None = None,
        baselines: Sequence[str] | None = None,
        train: Dataset | None = None,
        times: int = 12,
        points: int = 12_000,
        samples: int = 6,
        overwrite: bool = False,
    ) -> Path:
        """Write a report as one HTML file that needs no network.

        It has a headline, the data, an interactive map, calibration, scores beside baselines, what
        each source is worth, joint samples, the worst cases, and how to reproduce it. Its numbers
        are those of `evaluate`.

        Args:
            test: The part to test on, which the model was not trained on.
            path: The file to write.
            evaluation: The result of `evaluate` on this part, if there is one already.
            baselines, train: As in `evaluate`.
            times: How many of the last times are on the map.
            points: About how many grid points the map has.
            samples: Number of joint samples; 0 leaves them out.
            overwrite: Replace an existing file.

        Returns:
            The path of the file.
        """
        from gridtnp.report.page import write_report

        return write_report(
            self.contents,
            test,
            path,
            evaluation=evaluation,
            baselines=baselines,
            train=train,
            times=times,
            points=points,
            samples=samples,
            overwrite=overwrite,
        )
