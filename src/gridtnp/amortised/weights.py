"""The pretrained weights in the package, and how they were made."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from gridtnp.amortised.network import Interpolator
from gridtnp.files import read_tensors, write_tensors

WEIGHTS = Path(__file__).parent / "interpolator.safetensors"


def load(
    path: Path = WEIGHTS, kind: type[Interpolator] = Interpolator
) -> tuple[Interpolator, dict[str, Any]]:
    """A pretrained network, ready to predict, and what is known of its training."""
    tensors, about = read_tensors(path)
    network = kind(**json.loads(about["settings"]))
    network.load_state_dict(tensors, assign=True)  # also where models are built without memory
    return network.eval().requires_grad_(False), about


@cache
def pretrained() -> Interpolator:
    """The network that comes with the package."""
    return load()[0]


class Frozen(Interpolator):
    """Stays on the CPU and in its own precision, whatever the network that it is a part of does."""

    def _apply(self, *_: Any, **__: Any) -> Frozen:
        return self


def frozen() -> Interpolator:
    """A copy with buffers in place of parameters: saved with a model, but not trained with it."""
    network = load(kind=Frozen)[0]
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, parameter.detach())
    return network


def keep(path: Path, network: Interpolator, tensors: dict[str, Tensor], about: dict[str, str]):
    """Write weights as `load` reads them."""
    write_tensors(path, tensors, about | {"settings": json.dumps(network.settings)})
