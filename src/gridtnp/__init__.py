"""Gridded transformer neural processes:

Observations anywhere, predictions with uncertainty anywhere.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gridtnp.version import __version__

if TYPE_CHECKING:
    from gridtnp import config, demo, plots
    from gridtnp.build import build_model
    from gridtnp.config import ModelConfig
    from gridtnp.dataset import Dataset
    from gridtnp.estimator import GriddedTNP
    from gridtnp.grid import Axis, Grid
    from gridtnp.model import NeuralProcess
    from gridtnp.normalisation import Normaliser
    from gridtnp.output import Query, write
    from gridtnp.picks import Block, Count, Fraction, Gap, Rest, Whole
    from gridtnp.places import latlon_grid, observe
    from gridtnp.presets import PRESETS, preset
    from gridtnp.recipes import Recipe, recipe
    from gridtnp.sampling import Context, Sampler
    from gridtnp.task import PointSet, Task, TokenSet

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
    "ModelConfig",
    "NeuralProcess",
    "Normaliser",
    "PointSet",
    "Query",
    "Recipe",
    "Rest",
    "Sampler",
    "Task",
    "TokenSet",
    "Whole",
    "__version__",
    "build_model",
    "config",
    "demo",
    "latlon_grid",
    "observe",
    "plots",
    "preset",
    "recipe",
    "write",
]

# Every name is loaded when it is first used: the command line answers without torch, and models do
# without pandas and xarray.
_HOMES = {
    "ModelConfig": "config",
    "Dataset": "dataset",
    "GriddedTNP": "estimator",
    "NeuralProcess": "model",
    "Normaliser": "normalisation",
    "build_model": "build",
    **dict.fromkeys(("Axis", "Grid"), "grid"),
    **dict.fromkeys(("Query", "write"), "output"),
    **dict.fromkeys(("Block", "Count", "Fraction", "Gap", "Rest", "Whole"), "picks"),
    **dict.fromkeys(("latlon_grid", "observe"), "places"),
    **dict.fromkeys(("PRESETS", "preset"), "presets"),
    **dict.fromkeys(("Recipe", "recipe"), "recipes"),
    **dict.fromkeys(("Context", "Sampler"), "sampling"),
    **dict.fromkeys(("PointSet", "Task", "TokenSet"), "task"),
}
_MODULES = ("config", "demo", "plots")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"gridtnp.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'gridtnp' has no attribute {name!r}")
    value = getattr(import_module(f"gridtnp.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
