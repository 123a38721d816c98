"""The pretrained weights in the package, and how they were made."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from gridtnp.files import read_tensors, write_tensors
from gridtnp.interpolation.network import Interpolator

WEIGHTS = Path(__file__).parent / "interpolator.safetensors"


def load(path: Path = WEIGHTS) -> tuple[Interpolator, dict[str, Any]]:
    """A pretrained network, ready to predict, and what is known of its training."""
    tensors, about = read_tensors(path)
    network = Interpolator(**json.loads(about["settings"]))
    network.load_state_dict(tensors)
    return network.eval().requires_grad_(False), about


@cache
def pretrained() -> Interpolator:
    """The network that comes with the package."""
    return load()[0]


def keep(path: Path, network: Interpolator, tensors: dict[str, Tensor], about: dict[str, str]):
    """Write weights as `load` reads them."""
    write_tensors(path, tensors, about | {"settings": json.dumps(network.settings)})
