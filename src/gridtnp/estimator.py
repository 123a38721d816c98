"""`GriddedTNP`: a network together with all it takes to use it on data.

What it is built of is plain: `config` describes the network, `setting` how tasks are cut from data,
`normaliser` the size of every variable.
"""

from __future__ import annotations

from gridtnp.build import build_model
from gridtnp.config import ModelConfig
from gridtnp.model import NeuralProcess
from gridtnp.normalisation import Normaliser
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
