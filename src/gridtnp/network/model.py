"""`NeuralProcess`, the interface of all models, and the gridded network composed of its parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from gridtnp import ops
from gridtnp.distributions.marginals import of_readings
from gridtnp.errors import require_known
from gridtnp.grid import Grid
from gridtnp.network.fusion import Fusion
from gridtnp.network.grid_decoders import GridDecoder
from gridtnp.network.grid_processors import GridProcessor
from gridtnp.network.likelihoods import LikelihoodHead
from gridtnp.network.tokens import TokenEncoder
from gridtnp.task import PointSet, Task, TokenSet, as_before

PIECE = 16384
"""Points per piece when no gradients are needed; small enough to stay in the cache."""


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a model.

    `sources` maps each context source to its number of values, `dim_y` is the number of outputs.
    `errors` are the sources with known reading errors.
    """

    coordinates: tuple[str, ...]
    features: tuple[str, ...]
    sources: Mapping[str, int]
    dim_y: int
    errors: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, int]:
        """The numbers of values of each source, reading errors included."""
        return {k: dy * (2 if k in self.errors else 1) for k, dy in self.sources.items()}

    def check(self, points: PointSet, what: str, dim_y: int) -> None:
        """Raise unless the points have the model's columns."""
        for found, wanted, name in (
            (points.x.shape[-1], self.coordinates, "coordinates"),
            (
                0 if points.features is None else points.features.shape[-1],
                self.features,
                "features",
            ),
        ):
            if found != len(wanted):
                raise ValueError(
                    f"The {what} have {found} {name}, but the model takes {len(wanted)}: {wanted}."
                )
        if points.y is not None and points.y.shape[-1] != dim_y:
            raise ValueError(
                f"The {what} have {points.y.shape[-1]} outputs, but the model has {dim_y}."
            )

    def complete(self, context: Mapping[str, PointSet], like: PointSet) -> dict[str, PointSet]:
        """All sources in the order of the signature; missing ones are empty."""
        for name in context:
            require_known(name, self.sources, "source", "in the context")
        found = {
            name: context[name] if name in context else _no_points(like, dim_y)
            for name, dim_y in self.sources.items()
        }
        for name in self.errors:
            points = found[name]
            if points.error is None and points.y is not None:  # readings without error
                found[name] = replace(points, error=torch.zeros_like(points.y))
        return found


def _no_points(like: PointSet, dim_y: int) -> PointSet:
    """An empty source, with the coordinates and features of other points."""
    y = like.x.new_zeros((like.batch, 0, dim_y))
    return replace(like.none(like.batch), y=y, error=None)


class NeuralProcess(nn.Module, ABC):
    """Maps context sets to a predictive distribution at any targets (section 2.1).

    `encode` depends on the context only, so that one encoding serves any number of `decode` calls.
    Missing context sources count as empty.
    """

    def __init__(self, signature: Signature, grid: Grid | None = None) -> None:
        super().__init__()
        self.signature = signature
        self.grid = grid

    @abstractmethod
    def encode(self, context: Mapping[str, PointSet]) -> Any:
        """Encode the context for `decode`; it has every source of the signature."""

    @abstractmethod
    def decode(self, encoding: Any, target: PointSet) -> Distribution:
        """The predictive distribution at the target locations; `target.y` is ignored."""

    def forward(self, task: Task) -> Distribution:
        context = self.signature.complete(task.context, task.target)
        if not torch.compiler.is_compiling():  # the checks depend on values
            self.check(task)
        return self.decode(self.encode(context), task.target)

    def check(self, task: Task) -> None:
        """Raise if the task has unknown sources, other columns, or points far off the grid."""
        checks: list[tuple[PointSet, str, int]] = []
        for name, points in task.context.items():
            require_known(name, self.signature.sources, "source", "in the context")
            checks.append((points, f"points of source {name!r}", self.signature.sources[name]))
            if points.error is not None and name not in self.signature.errors:
                raise ValueError(
                    f"The points of source {name!r} have errors, but the model was trained without "
                    "them; leave them out."
                )
        for points, what, dim_y in [*checks, (task.target, "targets", self.signature.dim_y)]:
            self.signature.check(points, what, dim_y)
            if self.grid is not None:
                used = points.x.flatten(0, 1) if points.mask is None else points.x[points.mask]
                self.grid.check(used, what)

    def loss(self, task: Task) -> Float[Tensor, ""]:
        """Negative log-likelihood (eq. 1), summed over outputs and averaged over targets."""
        if task.target.y is None:
            raise ValueError("The targets have no outputs y, which the loss needs.")
        forecast = of_readings(self(task), task.target.error)
        log_density = forecast.log_prob(task.target.y).sum(-1)
        if task.target.mask is None:
            return -log_density.mean()
        return -task.target.used(log_density).sum() / task.target.mask.sum().clamp_min(1)


class GriddedNetwork(NeuralProcess):
    """The gridded TNP (figure 2): tokens → grid → processor → target tokens → distribution."""

    def __init__(
        self,
        signature: Signature,
        grid: Grid,
        tokens: TokenEncoder,
        fusion: Fusion,
        processor: GridProcessor,
        decoder: GridDecoder,
        likelihood: LikelihoodHead,
    ) -> None:
        super().__init__(signature, grid)
        self.tokens = tokens
        self.fusion = fusion
        self.processor = processor
        self.decoder = decoder
        self.likelihood = likelihood

    def encode(self, context: Mapping[str, PointSet]) -> list[Any]:
        tokens = {name: self._tokens(name, points) for name, points in context.items()}
        u = self.fusion(tokens)  # (batch, *grid, dz)
        return self.decoder.prepare(self.processor(u))  # keys and values of every layer

    def decode(self, encoding: list[Any], target: PointSet) -> Distribution:
        raw = [self._raw(encoding, piece) for piece in in_pieces(target)]
        joined = torch.cat(raw, 1) if len(raw) > 1 else raw[0]
        return self.likelihood.distribution(joined)  # over (batch, n, dy)

    def _tokens(self, source: str, points: PointSet) -> Iterable[TokenSet]:
        """Tokens of a source, piece by piece, `(batch, n, dz)` each."""
        for piece in in_pieces(points):
            yield self.tokens(source, piece.permuted(self._cell_order(piece)))

    def _raw(self, encoding: list[Any], target: PointSet) -> Tensor:
        """Raw parameters of the likelihood at some targets."""
        order = self._cell_order(target)
        z = self.decoder(self.tokens.targets(target.permuted(order)), encoding)  # (batch, n, dz)
        return as_before(self.likelihood.head(z), order)

    def _cell_order(self, points: PointSet) -> Tensor:
        """Sort points by cell, so that neighbours in space are neighbours in memory."""
        assert self.grid is not None
        cell, _ = ops.neighbours(points.x, self.grid, (1,) * len(self.grid.axes))
        return cell.squeeze(-1).argsort(1)


def in_pieces(points: PointSet) -> list[PointSet]:
    """Split points into pieces that fit the cache; not while training or compiling."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return [points]
    size = max(PIECE // points.batch, 1)
    if points.n <= size:
        return [points]
    return [points.select(slice(i, i + size)) for i in range(0, points.n, size)]
