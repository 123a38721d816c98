"""Gridded transformer neural processes:

Observations anywhere, predictions with uncertainty anywhere.
"""

from gridtnp import demo
from gridtnp.build import build_model
from gridtnp.config import ModelConfig
from gridtnp.grid import Axis, Grid
from gridtnp.model import GriddedTNP, NeuralProcess
from gridtnp.presets import PRESETS, preset
from gridtnp.task import PointSet, Task, TokenSet
from gridtnp.version import __version__

__all__ = [
    "PRESETS",
    "Axis",
    "Grid",
    "GriddedTNP",
    "ModelConfig",
    "NeuralProcess",
    "PointSet",
    "Task",
    "TokenSet",
    "__version__",
    "build_model",
    "demo",
    "preset",
]
