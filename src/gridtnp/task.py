"""What goes into a model: observations, the places to predict, and tokens on their way between two
parts.

All values are frozen and check themselves once, when they are made. A mask is True where a point is
used; None means that all are. Masked entries may hold anything, NaN included: they are replaced by
zeros here, so that no part of a model ever sees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PointSet:
    """Observations of one source, or target locations (then `y` may be None).

    `x` holds the coordinates of the grid's axes, in their order; whatever else is known about a
    point (absolute time, elevation, …) is a column of `features`. Gridded data is just another set
    of points.
    """

    x: Float[Tensor, "batch n dx"]
    y: Float[Tensor, "batch n dy"] | None = None
    mask: Bool[Tensor, "batch n"] | None = None
    features: Float[Tensor, "batch n df"] | None = None

    def __post_init__(self) -> None:
        if self.x.ndim != 3:
            raise ValueError(
                f"x must have shape (batch, points, coordinates), got {tuple(self.x.shape)}; "
                "a single task needs a leading axis of size 1: x[None]."
            )
        if self.mask is not None and self.mask.dtype != torch.bool:
            raise ValueError(
                f"A mask must be boolean (True: use the point), got {self.mask.dtype}."
            )
        for name, ndim in (("y", 3), ("features", 3), ("mask", 2)):
            value = getattr(self, name)
            if value is None:
                continue
            if value.ndim != ndim or value.shape[:2] != self.x.shape[:2]:
                raise ValueError(
                    f"{name} must have one row per point of x, ({self.x.shape[0]}, "
                    f"{self.x.shape[1]}, …), "
                    f"got shape {tuple(value.shape)}."
                )
        for name in ("x", "y", "features"):
            value = getattr(self, name)
            if value is None:
                continue
            if not value.is_floating_point():
                raise ValueError(f"{name} must hold floating-point numbers, got {value.dtype}.")
            if self.mask is not None:
                value = torch.where(self.mask.unsqueeze(-1), value, 0.0)
                object.__setattr__(self, name, value)
            wrong = ~value.isfinite().all(-1)
            if not torch.compiler.is_compiling() and wrong.any():
                batch, point = wrong.nonzero()[0].tolist()
                raise ValueError(
                    f"{name} must be finite wherever the mask is True, but {int(wrong.sum())} "
                    "points hold NaN or "
                    f"infinity (first: batch element {batch}, point {point}); mask them or drop "
                    "them."
                )

    @property
    def batch(self) -> int:
        return self.x.shape[0]

    @property
    def n(self) -> int:
        return self.x.shape[1]

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> PointSet:
        """On another device.

        `dtype` applies to `y` alone, because places and times need their precision.
        """

        def move(value: Tensor | None) -> Tensor | None:
            return None if value is None else value.to(device=device)

        y = None if self.y is None else self.y.to(device=device, dtype=dtype)
        return PointSet(self.x.to(device=device), y, move(self.mask), move(self.features))

    def select(self, points: Tensor | slice) -> PointSet:
        """Some of the points, the same ones in every batch element:

        An index, a boolean per point or a slice.
        """
        pick = [
            None if v is None else v[:, points] for v in (self.x, self.y, self.mask, self.features)
        ]
        return PointSet(*pick)  # pyright: ignore[reportArgumentType]

    def permuted(self, order: Int[Tensor, "batch n"]) -> PointSet:
        """The same points in another order, each batch element in its own."""
        pick = [
            None if v is None else in_order(v, order)
            for v in (self.x, self.y, self.mask, self.features)
        ]
        return PointSet(*pick)  # pyright: ignore[reportArgumentType]

    def none(self, batch: int) -> PointSet:
        """No points at all, with the same columns."""
        values = (self.x, self.y, None, self.features)
        empty = [None if v is None else v.new_zeros((batch, 0, *v.shape[2:])) for v in values]
        return PointSet(*empty)  # pyright: ignore[reportArgumentType]

    @staticmethod
    def stack(sets: Sequence[PointSet]) -> PointSet:
        """One batch of several sets of different lengths.

        The shorter ones are filled up and masked.
        """
        if not sets:
            raise ValueError("At least one set of points is needed to make a batch, got none.")
        for name in ("x", "y", "features"):
            sizes = {None if (v := getattr(s, name)) is None else v.shape[-1] for s in sets}
            if len(sizes) > 1:
                raise ValueError(
                    f"All sets of a batch must have the same number of columns in {name}, got "
                    f"{sizes}."
                )
        longest = max(s.n for s in sets)

        def fill(value: Tensor) -> Tensor:
            space = value.new_zeros((value.shape[0], longest - value.shape[1], *value.shape[2:]))
            return torch.cat([value, space], 1)

        def join(name: str) -> Tensor | None:
            values = [getattr(s, name) for s in sets]
            return None if values[0] is None else torch.cat([fill(v) for v in values])

        masks = [
            torch.ones(s.x.shape[:2], dtype=torch.bool, device=s.x.device)
            if s.mask is None
            else s.mask
            for s in sets
        ]
        mask = torch.cat([fill(m) for m in masks])
        return PointSet(torch.cat([fill(s.x) for s in sets]), join("y"), mask, join("features"))


def in_order(values: Shaped[Tensor, "batch n *d"], order: Int[Tensor, "batch n"]) -> Tensor:
    """Rows in another order. (`take_along_dim` would fix their number in an exported graph.)"""
    if values.ndim == 2:
        return values.gather(1, order)
    return values.gather(1, order.unsqueeze(-1).expand(-1, -1, values.shape[-1]))


@dataclass(frozen=True, eq=False)
class TokenSet:
    """Tokens `z` at locations `x`, between two parts of a model."""

    x: Float[Tensor, "batch n dx"]
    z: Float[Tensor, "batch n dz"]
    mask: Bool[Tensor, "batch n"] | None = None

    @staticmethod
    def union(sets: Sequence[TokenSet]) -> TokenSet:
        """All tokens of several sources as one set."""
        if not sets:
            raise ValueError("At least one set of tokens is needed to join them, got none.")
        if len(sets) == 1:
            return sets[0]
        mask = None
        if any(s.mask is not None for s in sets):
            every = [
                s.x.new_ones(s.x.shape[:2], dtype=torch.bool) if s.mask is None else s.mask
                for s in sets
            ]
            mask = torch.cat(every, 1)
        return TokenSet(torch.cat([s.x for s in sets], 1), torch.cat([s.z for s in sets], 1), mask)


@dataclass(frozen=True, eq=False)
class Task:
    """Context sets by source name, and the targets to predict from them."""

    context: Mapping[str, PointSet]
    target: PointSet

    def __post_init__(self) -> None:
        for name, points in self.context.items():
            if points.y is None:
                raise ValueError(
                    f"A context source must have outputs y, but source {name!r} has none."
                )
            if points.batch != self.target.batch:
                raise ValueError(
                    "All sources and the target must have the same batch size, but source "
                    f"{name!r} has "
                    f"{points.batch} and the target {self.target.batch}."
                )
            if points.x.shape[-1] != self.target.x.shape[-1]:
                raise ValueError(
                    "All sources and the target must have the same coordinates, but source "
                    f"{name!r} has "
                    f"{points.x.shape[-1]} and the target {self.target.x.shape[-1]}."
                )

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Task:
        context = {name: points.to(device, dtype) for name, points in self.context.items()}
        return Task(context, self.target.to(device, dtype))

    def at(self, target: PointSet) -> Task:
        """The same context with other targets."""
        return replace(self, target=target)

    @staticmethod
    def stack(tasks: Sequence[Task]) -> Task:
        """One batch of several tasks. A source that some of them lack is empty there."""
        if not tasks:
            raise ValueError("At least one task is needed to make a batch, got none.")
        sources: dict[str, PointSet] = {
            name: s for task in tasks for name, s in task.context.items()
        }
        context = {}
        for name, example in sources.items():
            context[name] = PointSet.stack(
                [t.context.get(name) or example.none(t.target.batch) for t in tasks]
            )
        return Task(context, PointSet.stack([task.target for task in tasks]))
