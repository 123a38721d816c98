"""Several processes that train one network: how it is spread over them, and what they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from accelerate import Accelerator, DistributedType
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from gridtnp.sharing import SummedLoss


def spread(
    accelerator: Accelerator, shell: SummedLoss, optimisers: Sequence[Optimizer]
) -> tuple[torch.nn.Module, list[Optimizer]]:
    """The network and its optimisers on their devices: copied to every process, or in shards."""
    if accelerator.distributed_type == DistributedType.FSDP:
        plugin = accelerator.state.fsdp_plugin
        if plugin.fsdp_version != 2:
            raise ValueError(
                f"Sharded training needs version 2 of FSDP, got {plugin.fsdp_version}; start it "
                "with `accelerate launch --use_fsdp --fsdp_version 2`."
            )
        if any(isinstance(o, torch.optim.Muon) for o in optimisers):
            raise ValueError(
                'Sharded training needs optimiser="adamw", got "muon", whose steps need whole '
                "matrices."
            )
        # the parts of a network call each other by other ways than `forward`
        plugin.auto_wrap_policy = None
    shell, *wrapped = accelerator.prepare(shell, *optimisers)
    return shell, wrapped


@contextmanager
def together() -> Iterator[None]:
    """Turns the failure of a message between processes into a sentence."""
    try:
        yield
    except RuntimeError as error:
        lost = ("Connection closed", "Connection reset", "Broken pipe", "NCCL", "gloo", "Gloo")
        if torch.distributed.is_initialized() and any(word in str(error) for word in lost):
            raise RuntimeError(
                "All processes of a training must live to its end, but another one has stopped; "
                f"start them again with resume=True to go on ({str(error).splitlines()[0]})."
            ) from error
        raise


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be in shards, gathered; all processes must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(mine: Tensor, value: Tensor) -> Tensor:
    """A whole tensor on the device and in the shards of another one."""
    if isinstance(mine, DTensor) and not isinstance(value, DTensor):
        return distribute_tensor(value.to(mine.device), mine.device_mesh, mine.placements)
    return value.to(mine.device)
