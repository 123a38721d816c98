"""Inputs of a model: `PointSet`, `Task`, and the `TokenSet` passed between its parts.

All of them are frozen and validated on construction. A mask is True where a point is used; None
means all points. Masked entries may hold anything, even NaN: they are replaced by zeros here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PointSet:
    """Observations of one source, or target locations (then `y` may be None).

    `x` holds the coordinates, in the order of the grid's axes; other covariates (absolute time,
    elevation, …) are columns of `features`. Gridded data are a point set as well. `error` is the
    standard deviation of the reading error of every value of `y`, if it is known.
    """

    x: Float[Tensor, "batch n dx"]
    y: Float[Tensor, "batch n dy"] | None = None
    mask: Bool[Tensor, "batch n"] | None = None
    features: Float[Tensor, "batch n df"] | None = None
    error: Float[Tensor, "batch n dy"] | None = None

    def __post_init__(self) -> None:
        if self.x.ndim != 3:
            raise ValueError(
                f"x has shape {tuple(self.x.shape)}, not (batch, points, coordinates); a single "
                "task needs a leading axis of size 1: x[None]."
            )
        if self.mask is not None and self.mask.dtype != torch.bool:
            raise ValueError(
                f"The mask has dtype {self.mask.dtype}; must be boolean, True for points to use."
            )
        for name, ndim in (("y", 3), ("features", 3), ("mask", 2), ("error", 3)):
            value = getattr(self, name)
            if value is None:
                continue
            if value.ndim != ndim or value.shape[:2] != self.x.shape[:2]:
                raise ValueError(
                    f"{name} has shape {tuple(value.shape)}; must have one row per point of x: "
                    f"({self.x.shape[0]}, {self.x.shape[1]}{', …' if ndim == 3 else ''})."
                )
        if self.error is not None and (self.y is None or self.y.shape != self.error.shape):
            raise ValueError(
                f"error has shape {tuple(self.error.shape)}; must have one number for every value "
                "of y."
            )
        for name in ("x", "y", "features", "error"):
            value = getattr(self, name)
            if value is None:
                continue
            if not value.is_floating_point():
                raise ValueError(f"{name} has dtype {value.dtype}; must be floating-point.")
            if self.mask is not None:
                value = torch.where(self.mask.unsqueeze(-1), value, 0.0)
                object.__setattr__(self, name, value)
            wrong = ~value.isfinite().all(-1)
            if not torch.compiler.is_compiling() and wrong.any():
                batch, point = wrong.nonzero()[0].tolist()
                raise ValueError(
                    f"{name} is NaN or infinite at {int(wrong.sum())} points that are not masked "
                    f"(first: batch element {batch}, point {point}); mask or drop them."
                )
        if self.error is not None and not torch.compiler.is_compiling() and (self.error < 0).any():
            raise ValueError("error is negative somewhere; a standard deviation cannot be.")

    def used(self, values: Float[Tensor, "batch n *each"]) -> Float[Tensor, "batch n *each"]:
        """Values of the points, which may be infinite or NaN where a point is masked: 0 there."""
        if self.mask is None:
            return values
        mask = self.mask.reshape(*self.mask.shape, *(1,) * (values.ndim - 2))
        return torch.where(mask, values, 0.0)

    @property
    def batch(self) -> int:
        return self.x.shape[0]

    @property
    def n(self) -> int:
        return self.x.shape[1]

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> PointSet:
        """Move to a device; `dtype` applies to `y` only: coordinates need their precision."""

        def move(value: Tensor | None) -> Tensor | None:
            return None if value is None else value.to(device=device)

        y = None if self.y is None else self.y.to(device=device, dtype=dtype)
        error = None if self.error is None else self.error.to(device=device, dtype=dtype)
        return PointSet(self.x.to(device=device), y, move(self.mask), move(self.features), error)

    @property
    def values(self) -> Float[Tensor, "batch n k"]:
        """What was observed: `y`, followed by its errors if they are known."""
        assert self.y is not None
        return self.y if self.error is None else torch.cat([self.y, self.error], -1)

    @property
    def _columns(self) -> tuple[Tensor | None, ...]:
        """All tensors, in the order of the fields."""
        return self.x, self.y, self.mask, self.features, self.error

    def select(self, points: Tensor | slice) -> PointSet:
        """Select the same points in every batch element, by index, boolean or slice."""
        selected = [None if v is None else v[:, points] for v in self._columns]
        return PointSet(*selected)  # pyright: ignore[reportArgumentType]

    def permuted(self, order: Int[Tensor, "batch n"]) -> PointSet:
        """Reorder the points of each batch element; they need not be validated again."""
        reordered = object.__new__(PointSet)
        for name in _COLUMNS:
            value = getattr(self, name)
            found = None if value is None else in_order(value, order)
            object.__setattr__(reordered, name, found)
        return reordered

    def none(self, batch: int) -> PointSet:
        """An empty set with the same columns."""
        values = (self.x, self.y, None, self.features, self.error)
        empty = [None if v is None else v.new_zeros((batch, 0, *v.shape[2:])) for v in values]
        return PointSet(*empty)  # pyright: ignore[reportArgumentType]

    @staticmethod
    def stack(sets: Sequence[PointSet]) -> PointSet:
        """Batch several sets, padding shorter ones and masking the padding."""
        if not sets:
            raise ValueError("No point sets to stack; at least one is needed.")
        for name in ("x", "y", "features", "error"):
            sizes = {None if (v := getattr(s, name)) is None else v.shape[-1] for s in sets}
            if len(sizes) > 1:
                raise ValueError(
                    f"Point sets with different numbers of columns in {name} cannot be stacked: "
                    f"{sizes}."
                )
        longest = max(s.n for s in sets)

        def pad(value: Tensor) -> Tensor:
            zeros = value.new_zeros((value.shape[0], longest - value.shape[1], *value.shape[2:]))
            return torch.cat([value, zeros], 1)

        def join(name: str) -> Tensor | None:
            values = [getattr(s, name) for s in sets]
            return None if values[0] is None else torch.cat([pad(v) for v in values])

        masks = [
            torch.ones(s.x.shape[:2], dtype=torch.bool, device=s.x.device)
            if s.mask is None
            else s.mask
            for s in sets
        ]
        mask = torch.cat([pad(m) for m in masks])
        x, features = torch.cat([pad(s.x) for s in sets]), join("features")
        return PointSet(x, join("y"), mask, features, join("error"))


_COLUMNS = tuple(field.name for field in fields(PointSet))


def in_order(values: Shaped[Tensor, "batch n *d"], order: Int[Tensor, "batch n"]) -> Tensor:
    """Reorder rows. (`take_along_dim` would fix their number in an exported graph.)"""
    if values.ndim == 2:
        return values.gather(1, order)
    return values.gather(1, order.unsqueeze(-1).expand(-1, -1, values.shape[-1]))


def as_before(
    values: Shaped[Tensor, "batch n d"], order: Int[Tensor, "batch n"]
) -> Shaped[Tensor, "batch n d"]:
    """Undo `in_order`."""
    index = order.unsqueeze(-1).expand(-1, -1, values.shape[-1])
    return torch.empty_like(values).scatter(1, index, values)


@dataclass(frozen=True, eq=False)
class TokenSet:
    """Tokens `z` at locations `x`, as passed between the parts of a model."""

    x: Float[Tensor, "batch n dx"]
    z: Float[Tensor, "batch n dz"]
    mask: Bool[Tensor, "batch n"] | None = None

    @staticmethod
    def union(sets: Sequence[TokenSet]) -> TokenSet:
        """The tokens of several sources as one set."""
        if not sets:
            raise ValueError("No token sets to join; at least one is needed.")
        if len(sets) == 1:
            return sets[0]
        mask = None
        if any(s.mask is not None for s in sets):
            masks = [
                s.x.new_ones(s.x.shape[:2], dtype=torch.bool) if s.mask is None else s.mask
                for s in sets
            ]
            mask = torch.cat(masks, 1)
        return TokenSet(torch.cat([s.x for s in sets], 1), torch.cat([s.z for s in sets], 1), mask)


@dataclass(frozen=True, eq=False)
class Task:
    """Context sets by source name, and the targets to predict from them."""

    context: Mapping[str, PointSet]
    target: PointSet

    def __post_init__(self) -> None:
        for name, points in self.context.items():
            if points.y is None:
                raise ValueError(f"Source {name!r} has no values y, which a context needs.")
            if points.batch != self.target.batch:
                raise ValueError(
                    f"Source {name!r} has batch size {points.batch}, but the target has "
                    f"{self.target.batch}."
                )
            if points.x.shape[-1] != self.target.x.shape[-1]:
                raise ValueError(
                    f"Source {name!r} has {points.x.shape[-1]} coordinates, but the target has "
                    f"{self.target.x.shape[-1]}."
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
        """Batch several tasks. Sources that a task lacks are empty there."""
        if not tasks:
            raise ValueError("No tasks to stack; at least one is needed.")
        sources: dict[str, PointSet] = {
            name: s for task in tasks for name, s in task.context.items()
        }
        context = {}
        for name, example in sources.items():
            context[name] = PointSet.stack(
                [t.context.get(name) or example.none(t.target.batch) for t in tasks]
            )
        return Task(context, PointSet.stack([task.target for task in tasks]))
