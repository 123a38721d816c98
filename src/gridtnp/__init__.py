"""Gridded transformer neural processes:

Observations anywhere, predictions with uncertainty anywhere.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gridtnp import config, demo, plots
    from gridtnp.config import ModelConfig
    from gridtnp.data.coast import land_fraction
    from gridtnp.data.dataset import Dataset
    from gridtnp.data.normalisation import Normaliser
    from gridtnp.data.places import latlon_grid, observe
    from gridtnp.estimator import GriddedTNP
    from gridtnp.evaluation.baseline_predictions import baseline
    from gridtnp.evaluation.sums import ScoreSums
    from gridtnp.grid import Axis, Grid
    from gridtnp.inference.queries import Query
    from gridtnp.inference.stores import prediction_status
    from gridtnp.inference.writers import write
    from gridtnp.interpolation.interpolate import interpolate
    from gridtnp.interpolation.regressor import GriddedTNPRegressor
    from gridtnp.network.build import build_model
    from gridtnp.network.model import NeuralProcess
    from gridtnp.network.presets import PRESETS, preset
    from gridtnp.recipes import Recipe, recipe
    from gridtnp.task import PointSet, Task, TokenSet
    from gridtnp.tasks.sampling import Context, Sampler
    from gridtnp.tasks.selection import Block, Count, Fraction, Gap, Rest, Whole

__all__ = [
    "PRESETS",
    "Axis",
    "Block",
    "Context",
    "Count",
    "Dataset",
    "Fraction",
    "Gap",
    "Grid",
    "GriddedTNP",
    "GriddedTNPRegressor",
    "ModelConfig",
    "NeuralProcess",
    "Normaliser",
    "PointSet",
    "Query",
    "Recipe",
    "Rest",
    "Sampler",
    "ScoreSums",
    "Task",
    "TokenSet",
    "Whole",
    "__version__",
    "baseline",
    "build_model",
    "config",
    "demo",
    "interpolate",
    "land_fraction",
    "latlon_grid",
    "observe",
    "plots",
    "prediction_status",
    "preset",
    "recipe",
    "write",
]

# Every name is loaded when it is first used: the command line answers without torch, and models do
# without pandas and xarray.
_HOMES = {
    "config": ("ModelConfig",),
    "data.coast": ("land_fraction",),
    "data.dataset": ("Dataset",),
    "data.normalisation": ("Normaliser",),
    "data.places": ("latlon_grid", "observe"),
    "estimator": ("GriddedTNP",),
    "evaluation.baseline_predictions": ("baseline",),
    "evaluation.sums": ("ScoreSums",),
    "grid": ("Axis", "Grid"),
    "inference.queries": ("Query",),
    "inference.stores": ("prediction_status",),
    "inference.writers": ("write",),
    "interpolation.interpolate": ("interpolate",),
    "interpolation.regressor": ("GriddedTNPRegressor",),
    "network.build": ("build_model",),
    "network.model": ("NeuralProcess",),
    "network.presets": ("PRESETS", "preset"),
    "task": ("PointSet", "Task", "TokenSet"),
    "tasks.sampling": ("Context", "Sampler"),
    "tasks.selection": ("Block", "Count", "Fraction", "Gap", "Rest", "Whole"),
    "recipes": ("Recipe", "recipe"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("config", "demo", "plots")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"gridtnp.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'gridtnp' has no attribute {name!r}")
    value = getattr(import_module(f"gridtnp.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
