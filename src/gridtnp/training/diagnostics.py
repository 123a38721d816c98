"""What in a batch is out of range, when a loss is no longer a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from torch import Tensor

from gridtnp.task import Task

USUAL = 20.0
"""Normalised values are rarely farther than this from their mean."""


def suspect(task: Task, columns: Mapping[str, Sequence[str]], rate: float) -> str:
    """A sentence about the largest normalised number of a batch, by source and variable.

    `columns` names the variables of context sets, of `target` and of `features`.
    """
    found: list[tuple[float, str]] = []
    for source, points in {**task.context, "target": task.target}.items():
        where = "the targets" if source == "target" else f"source {source!r}"
        for kind, values in (("variable", points.y), ("feature", points.features)):
            key = source if kind == "variable" else "features"
            for i, size in enumerate(_largest(values)):
                names = columns.get(key, ())
                name = repr(names[i]) if i < len(names) else f"number {i}"
                found.append((size, f"{kind} {name} of {where}"))
    if not found:
        return "the batch is empty."
    size, where = max(found)
    if size > USUAL:
        return (
            f"values must be of about unit size once normalised, but {where} reaches {size:.3g}; "
            "look for wrong units or a placeholder such as -9999 there."
        )
    return (
        f"no value of the batch is out of range (the largest, {size:.3g}, is of {where}), so the "
        f"weights must have diverged; try a lower learning rate than {rate:g}."
    )


def _largest(values: Float[Tensor, "batch n d"] | None) -> list[float]:
    if values is None or not values.numel():
        return []
    return values.abs().flatten(0, 1).amax(0).tolist()
