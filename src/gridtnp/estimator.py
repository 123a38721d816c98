"""`GriddedTNP`: a network together with all it takes to use it on data.

What it is built of is plain: `config` describes the network, `setting` how tasks are cut from data,
`normaliser` the size of every variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gridtnp.build import build_model
from gridtnp.config import ModelConfig
from gridtnp.dataset import Dataset
from gridtnp.evaluation import evaluate
from gridtnp.model import NeuralProcess
from gridtnp.normalisation import Normaliser
from gridtnp.picks import Pick
from gridtnp.scoreboard import Evaluation
from gridtnp.setting import Setting


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

    def evaluate(
        self,
        test: Dataset,
        baselines: Sequence[str] = (),
        *,
        train: Dataset | None = None,
        picks: Mapping[str, Pick] | None = None,
        limit: int | None = None,
        block: str | None = None,
        batch: int = 8,
        seed: int = 0,
    ) -> Evaluation:
        """Scores on a part that was not trained on, beside those of baselines, in your units.

        Print what comes back. Baselines are `"nearest"`, `"idw"`, `"bilinear"`, `"kriging"`,
        `"kriging-drift"`, `"persistence"` and `"climatology"`; they learn from `train`, or from the
        training part of the same split. `limit` is a number of times to look at, `picks` choose the
        context, and intervals are made of blocks of time of length `block`.
        """
        return evaluate(
            self.network,
            self.setting,
            self.normaliser,
            test,
            baselines,
            train=train,
            picks=picks,
            limit=limit,
            block=block,
            batch=batch,
            seed=seed,
        )
