"""Diagnosing divergence: which value of a batch is out of range when the loss is not finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from torch import Tensor

from gridtnp.task import Task

USUAL = 20.0
"""Normalised values are rarely larger than this."""


def explain_divergence(task: Task, columns: Mapping[str, Sequence[str]], rate: float) -> str:
    """Name the variable or feature with the largest normalised value of a batch.

    `columns` has the names of the variables of each context set, of `target` and of `features`.
    """
    largest: list[tuple[float, str]] = []
    for source, points in {**task.context, "target": task.target}.items():
        where = "the targets" if source == "target" else f"source {source!r}"
        for kind, values in (("variable", points.y), ("feature", points.features)):
            key = source if kind == "variable" else "features"
            for i, size in enumerate(_largest(values)):
                names = columns.get(key, ())
                name = repr(names[i]) if i < len(names) else f"number {i}"
                largest.append((size, f"{kind} {name} of {where}"))
    if not largest:
        return "the batch is empty."
    size, where = max(largest)
    if size > USUAL:
        return (
            f"{where} reaches {size:.3g} after normalisation, where values of about 1 are usual; "
            "look for wrong units or a placeholder such as -9999."
        )
    return (
        f"no value of the batch is out of range (the largest is {size:.3g}, in {where}), so the "
        f"weights must have diverged; try a learning rate lower than {rate:g}."
    )


def _largest(values: Float[Tensor, "batch n d"] | None) -> list[float]:
    """Largest magnitude of each column."""
    if values is None or not values.numel():
        return []
    return values.abs().flatten(0, 1).amax(0).tolist()
