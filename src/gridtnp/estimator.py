"""`GriddedTNP`: a network together with all it takes to use it on data.

What it is built of is plain: `config` describes the network, `setting` how tasks are cut from data,
`normaliser` the size of every variable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gridtnp import joint, prediction
from gridtnp.build import build_model
from gridtnp.config import ModelConfig
from gridtnp.dataset import Dataset
from gridtnp.model import NeuralProcess
from gridtnp.normalisation import Normaliser
from gridtnp.output import Answer, Places
from gridtnp.prediction import CHUNK
from gridtnp.setting import Setting
from gridtnp.understanding import Data
from gridtnp.view import Static


class GriddedTNP:
    """A model of your data."""

    def __init__(
        self,
        config: ModelConfig,
        setting: Setting,
        normaliser: Normaliser,
        network: NeuralProcess | None = None,
    ) -> None:
        self.config = config
        self.setting = setting
        self.normaliser = normaliser
        self.network = build_model(config) if network is None else network

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
    ) -> Answer | Path:
        """Means, spreads, quantiles and support at any places, in the form of the question.

        `context` is a dataset, a part of one (`test.at("1995-07-01")`), or fresh sources by name,
        with their `static` fields. `at` is a grid, a table or a pair of arrays; a static feature
        that it brings along wins. Its own times are those to predict at; else they are `times`, or
        that of the context. With `to`, the answer goes to a file, time by time, and its path comes
        back.
        """
        return prediction.predict(
            self.network,
            self.setting,
            self.normaliser,
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
        subset: int = joint.SUBSET,
        seed: int = 0,
        to: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        progress: bool = True,
    ) -> Answer | Path:
        """So many fields that could have been, each coherent over all points of the question.

        Arguments are those of `predict`. `subset` points are drawn one after the other; see
        `gridtnp.joint` for how, and what is approximate about it.
        """
        return joint.sample(
            self.network,
            self.setting,
            self.normaliser,
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
