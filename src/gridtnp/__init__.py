"""Gridded transformer neural processes:

Observations anywhere, predictions with uncertainty anywhere.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gridtnp import demo
from gridtnp.build import build_model
from gridtnp.config import ModelConfig
from gridtnp.grid import Axis, Grid
from gridtnp.model import NeuralProcess
from gridtnp.presets import PRESETS, preset
from gridtnp.task import PointSet, Task, TokenSet
from gridtnp.version import __version__

if TYPE_CHECKING:
    from gridtnp import plots
    from gridtnp.dataset import Dataset
    from gridtnp.estimator import GriddedTNP
    from gridtnp.normalisation import Normaliser
    from gridtnp.output import Query, write
    from gridtnp.picks import Block, Count, Fraction, Gap, Rest, Whole
    from gridtnp.places import latlon_grid, observe
    from gridtnp.recipes import Recipe, recipe
    from gridtnp.sampling import Context, Sampler

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
    "demo",
    "latlon_grid",
    "observe",
    "plots",
    "preset",
    "recipe",
    "write",
]

# pandas and xarray are loaded when the first of these names is used
_DATA = {
    "Dataset": "dataset",
    "GriddedTNP": "estimator",
    "Normaliser": "normalisation",
    **dict.fromkeys(("Query", "write"), "output"),
    **dict.fromkeys(("Block", "Count", "Fraction", "Gap", "Rest", "Whole"), "picks"),
    **dict.fromkeys(("latlon_grid", "observe"), "places"),
    **dict.fromkeys(("Recipe", "recipe"), "recipes"),
    **dict.fromkeys(("Context", "Sampler"), "sampling"),
}


def __getattr__(name: str) -> Any:
    if name == "plots":
        return import_module("gridtnp.plots")
    if name not in _DATA:
        raise AttributeError(f"module 'gridtnp' has no attribute {name!r}")
    return getattr(import_module(f"gridtnp.{_DATA[name]}"), name)
