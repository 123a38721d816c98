"""Contracts: checks that every implementation of a role must pass, for use in your own tests.

A check takes a function that builds the part with fresh weights, and raises an AssertionError that
names the violated property:

    check_grid_encoder(lambda: MyGridEncoder(grid, dim=16), dim=16)

With `compiled=True` the part must also compile to one graph with a dynamic number of points.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from gridtnp.grid import Grid
from gridtnp.network.fusion import Fusion
from gridtnp.network.grid_decoders import GridDecoder
from gridtnp.network.grid_encoders import GridEncoder
from gridtnp.network.grid_processors import GridProcessor
from gridtnp.network.likelihoods import LikelihoodHead
from gridtnp.network.model import NeuralProcess
from gridtnp.network.tokens import TokenEncoder
from gridtnp.task import PointSet, Task, TokenSet

Points = TypeVar("Points", PointSet, TokenSet)
EXACT = torch.float64


def check_token_encoder(
    make: Callable[[], TokenEncoder],
    sources: Mapping[str, int],
    *,
    dim_x: int,
    dim_features: int = 0,
    compiled: bool = False,
) -> None:
    """A token encoder acts point-wise, for each source and for targets."""

    def points(n: int, dim_y: int | None) -> PointSet:
        y = None if dim_y is None else _random(2, n, dim_y)
        features = _random(2, n, dim_features) if dim_features else None
        return PointSet(_random(2, n, dim_x), y, None, features)

    def call(encoder: nn.Module, batch: Mapping[str, PointSet]) -> list[Tensor]:
        assert isinstance(encoder, TokenEncoder)
        sets = [encoder(name, batch[name]) for name in sources]
        return [s.z for s in (*sets, encoder.targets(batch["targets"]))]

    def sample(n: int) -> dict[str, PointSet]:
        return {name: points(n, dy) for name, dy in sources.items()} | {"targets": points(n, None)}

    encoder = make().to(EXACT)
    batch = sample(7)
    z = call(encoder, batch)
    order = torch.randperm(7)
    shuffled = call(encoder, {name: _each(p, lambda t: t[:, order]) for name, p in batch.items()})
    for before, after in zip(z, shuffled, strict=True):
        _assert(before.shape == (2, 7, before.shape[-1]), "return one token per point")
        _same(before[:, order], after, "be equivariant to permutations of the points")
    _check_module(make, sample, call, compiled)


def check_grid_encoder(
    make: Callable[[], GridEncoder], *, dim: int, dim_out: int | None = None, compiled: bool = False
) -> None:
    """A grid encoder is invariant to the order of tokens and to masked tokens."""
    grid = make().grid

    def call(encoder: nn.Module, tokens: TokenSet) -> list[Tensor]:
        return [encoder([tokens])]

    encoder, tokens = make().to(EXACT), _tokens(grid, 40, dim)
    pieces = [_each(tokens, lambda t, i=i: t[:, i : i + 13]) for i in range(0, 40, 13)]
    _same(encoder([tokens]), encoder(pieces), "not depend on how tokens are split")

    _check_set_to_grid(make, grid, lambda n: _tokens(grid, n, dim), call, dim_out or dim)
    _check_module(make, lambda n: _tokens(grid, n, dim), call, compiled)


def check_fusion(
    make: Callable[[], Fusion],
    grid: Grid,
    sources: Sequence[str],
    *,
    dim: int,
    dim_out: int | None = None,
    compiled: bool = False,
) -> None:
    """A fusion is a grid encoder for each source; sources differ in their numbers of tokens."""

    def sample(n: int) -> dict[str, TokenSet]:
        return {name: _tokens(grid, n + i, dim) for i, name in enumerate(sources)}

    def call(fusion: nn.Module, tokens: Mapping[str, TokenSet]) -> list[Tensor]:
        return [fusion({name: [t] for name, t in tokens.items()})]

    others = sample(5)

    def with_source(source: str) -> Callable[[nn.Module, TokenSet], list[Tensor]]:
        return lambda fusion, t: call(fusion, _batch(others, slice(0, len(t.x))) | {source: t})

    for source in sources:
        sample_source = partial(_tokens, grid, dim=dim)
        _check_set_to_grid(make, grid, sample_source, with_source(source), dim_out or dim)
    _check_module(make, sample, call, compiled)


def check_grid_processor(
    make: Callable[[], GridProcessor], grid: Grid, *, dim: int, compiled: bool = False
) -> None:
    """A grid processor returns one output per layer, on the grids that it declares."""

    def call(processor: nn.Module, u: Tensor) -> list[Tensor]:
        return list(processor(u))

    processor = make().to(EXACT)
    outputs = call(processor, _random(2, *grid.shape, dim))
    _assert(len(outputs) == len(processor.grids), "return one output per layer")
    for u, layer_grid in zip(outputs, processor.grids, strict=True):
        _assert(u.shape == (2, *layer_grid.shape, dim), "return each layer on its grid")
    _check_module(make, lambda _: _random(2, *grid.shape, dim), call, compiled)


def check_grid_decoder(
    make: Callable[[], GridDecoder],
    *,
    dim: int,
    dim_target: int | None = None,
    compiled: bool = False,
) -> None:
    """A grid decoder decodes each target independently of the others."""
    decoder = make().to(EXACT)
    grids = decoder.grids

    def sample(n: int) -> tuple[TokenSet, list[Tensor]]:
        targets = _tokens(grids[0], n, dim if dim_target is None else dim_target)
        return targets, [_random(2, *grid.shape, dim) for grid in grids]

    def call(decoder: nn.Module, inputs: tuple[TokenSet, list[Tensor]]) -> list[Tensor]:
        assert isinstance(decoder, GridDecoder)
        return [decoder(inputs[0], decoder.prepare(inputs[1]))]

    targets, layers = sample(9)
    prepared = decoder.prepare(layers)
    z = decoder(targets, prepared)
    _assert(z.shape == (2, 9, dim), "return one token per target")
    order = torch.randperm(9)[:6]
    some = decoder(_each(targets, lambda t: t[:, order]), prepared)
    _same(z[:, order], some, "decode each target independently")
    none = decoder(_each(targets, lambda t: t[:, :0]), prepared)
    _assert(none.shape == (2, 0, dim), "accept an empty set of targets")
    _check_module(make, sample, call, compiled)


def check_likelihood(
    make: Callable[[], LikelihoodHead], *, dim: int, compiled: bool = False
) -> None:
    """A likelihood returns a distribution per target with a finite density."""

    def call(likelihood: nn.Module, z: Tensor) -> list[Tensor]:
        return _summary(likelihood(z))

    distribution = make().to(EXACT)(_random(2, 5, dim) * 100)
    _assert(isinstance(distribution, Distribution), "return a torch distribution")
    _assert(distribution.mean.shape[:2] == (2, 5), "return one distribution per target")
    density = distribution.log_prob(distribution.sample())
    _assert(bool(density.isfinite().all()), "have a finite density")
    _check_module(make, lambda n: _random(2, n, dim), call, compiled)


def check_neural_process(
    make: Callable[[], NeuralProcess], domain: Grid, *, compiled: bool = False
) -> None:
    """A model on random tasks inside `domain`: invariances, missing sources, empty contexts."""
    signature = make().signature
    features = len(signature.features)

    def points(n: int, dim_y: int) -> PointSet:
        extra = _random(2, n, features) if features else None
        return PointSet(_locations(domain, n), _random(2, n, dim_y), None, extra)

    def sample(n: int) -> Task:
        context = {
            name: points(n + i, dy) for i, (name, dy) in enumerate(signature.sources.items())
        }
        return Task(context, points(n + 4, signature.dim_y))

    def call(model: nn.Module, task: Task) -> list[Tensor]:
        return _summary(model(task))

    model = make().to(EXACT)
    task = sample(11)
    before = call(model, task)
    _assert(before[0].shape == (2, 15, signature.dim_y), "predict all outputs at all targets")
    for name, source in task.context.items():
        others = dict(task.context)
        order = torch.randperm(source.n)
        shuffled = Task(others | {name: _each(source, lambda t, o=order: t[:, o])}, task.target)
        _all_same(before, call(model, shuffled), "not depend on the order of observations")
        padded = Task(others | {name: _with_junk(source, domain)}, task.target)
        _all_same(before, call(model, padded), "ignore masked observations")
        all_masked = replace(source, mask=torch.zeros(source.x.shape[:2], dtype=torch.bool))
        without = {key: value for key, value in others.items() if key != name}
        missing = call(model, Task(without, task.target))
        empty = Task(others | {name: source.none(2)}, task.target)
        _all_same(missing, call(model, empty), "treat a missing source as empty")
        masked = Task(others | {name: all_masked}, task.target)
        _all_same(missing, call(model, masked), "treat a masked source as empty")
    reverse = Task(dict(reversed(list(task.context.items()))), task.target)
    _all_same(before, call(model, reverse), "not depend on the order of sources")
    prior = call(model, Task({}, task.target))
    _assert(all(bool(t.isfinite().all()) for t in prior), "predict without context")
    subset = task.at(task.target.select(torch.tensor([3, 0, 8])))
    expected = [t[:, [3, 0, 8]] for t in before]
    _all_same(expected, call(model, subset), "predict each target independently")
    without_outputs = task.at(replace(task.target, y=None))
    _all_same(before, call(model, without_outputs), "ignore target outputs")
    _check_module(make, sample, call, compiled)


def _check_set_to_grid(
    make: Callable[[], nn.Module],
    grid: Grid,
    sample: Callable[[int], TokenSet],
    call: Callable[[nn.Module, TokenSet], list[Tensor]],
    dim_out: int,
) -> None:
    module = make().to(EXACT)
    tokens = sample(40)
    u = call(module, tokens)
    _assert(u[0].shape == (2, *grid.shape, dim_out), "return one token per grid point")
    order = torch.randperm(40)
    shuffled = call(module, _each(tokens, lambda t: t[:, order]))
    _all_same(u, shuffled, "not depend on the order of tokens")
    _all_same(u, call(module, _with_junk(tokens, grid)), "ignore masked tokens")
    empty = call(module, sample(0))
    _assert(bool(empty[0].isfinite().all()), "accept an empty set")
    all_masked = replace(tokens, mask=torch.zeros(2, 40, dtype=torch.bool))
    _all_same(empty, call(module, all_masked), "treat a masked set as empty")


def _check_module(
    make: Callable[[], nn.Module],
    sample: Callable[[int], Any],
    call: Callable[[nn.Module, Any], list[Tensor]],
    compiled: bool,
) -> None:
    """Properties of every part: batch elements, gradients, state dict, precisions, compilation."""
    module = make().to(EXACT)
    inputs = sample(12)
    outputs = call(module, inputs)
    for element in (0, 1):
        alone = call(module, _batch(inputs, slice(element, element + 1)))
        in_batch = [t[element : element + 1] for t in outputs]
        _all_same(in_batch, alone, "treat the elements of a batch independently")

    total = torch.stack([_weighted(t) for t in outputs]).sum()
    if total.requires_grad:
        total.backward()
    for name, parameter in module.named_parameters():
        gradient = parameter.grad
        _assert(
            gradient is not None and bool(gradient.isfinite().all()), f"have a gradient for {name}"
        )

    other = make().to(EXACT)
    other.load_state_dict(module.state_dict())
    _all_same(outputs, call(other, inputs), "be restored by its state dict")

    for dtype, tolerance in ((torch.float32, 1e-3), (torch.bfloat16, 0.5)):
        low = call(copy.deepcopy(module).to(dtype), _cast(inputs, dtype))
        for exact, rough in zip(outputs, low, strict=True):
            exact, rough = exact.detach(), rough.detach()
            error = (exact - rough.to(EXACT)).abs().sum() / (exact.abs().sum() + 1e-3)
            _assert(bool(error < tolerance), f"run in {dtype} (relative error {float(error):.2g})")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = call(copy.deepcopy(module).float(), _cast(inputs, torch.float32))
    _assert(all(bool(t.isfinite().all()) for t in mixed), "run under autocast")

    if compiled:
        torch.compiler.reset()
        single = make()
        graph = torch.compile(call, fullgraph=True, dynamic=True, backend="eager")
        for n in (12, 17, 5):
            again = _cast(sample(n), torch.float32)
            for eager, traced in zip(call(single, again), graph(single, again), strict=True):
                _same(eager.to(EXACT), traced.to(EXACT), "be unchanged by compilation", 1e-5)


def _summary(distribution: Distribution) -> list[Tensor]:
    return [distribution.mean, distribution.stddev]


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=EXACT)


def _locations(grid: Grid, n: int) -> Tensor:
    """Random locations in the grid's cells, including those at the edges."""
    low = torch.tensor([axis.low - axis.step / 2 for axis in grid.axes], dtype=EXACT)
    extent = torch.tensor([axis.period for axis in grid.axes], dtype=EXACT)
    return low + extent * torch.rand(2, n, len(grid.axes), dtype=EXACT)


def _tokens(grid: Grid, n: int, dim: int) -> TokenSet:
    return TokenSet(_locations(grid, n), _random(2, n, dim))


def _each(points: Points, change: Callable[[Tensor], Tensor]) -> Points:
    values = {f.name: getattr(points, f.name) for f in fields(points)}
    return replace(points, **{name: change(v) for name, v in values.items() if v is not None})


def _with_junk(points: Points, grid: Grid) -> Points:
    """Append three masked points."""
    n = points.x.shape[1]
    longer = _each(points, lambda t: torch.cat([t, 1e3 + torch.zeros_like(t[:, :3])], 1))
    mask = torch.arange(n + 3).expand(2, -1) < n
    x = torch.cat([points.x, _locations(grid, 3)], 1)
    return replace(longer, x=x, mask=mask)


def _batch(inputs: Any, elements: slice) -> Any:
    """Some elements of a batch."""

    def select(leaf: Any) -> Any:
        return leaf[elements] if isinstance(leaf, Tensor) else _each(leaf, lambda t: t[elements])

    return _map(inputs, select)


def _cast(inputs: Any, dtype: torch.dtype) -> Any:
    """Cast to the precision of a module, but locations to at least float32, as in real tasks."""
    at_least_single = torch.promote_types(dtype, torch.float32)

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, PointSet):
            features = None if leaf.features is None else leaf.features.to(at_least_single)
            return replace(leaf, x=leaf.x.to(at_least_single), features=features).to(dtype=dtype)
        if isinstance(leaf, TokenSet):
            return replace(leaf, x=leaf.x.to(at_least_single), z=leaf.z.to(dtype))
        return leaf.to(dtype)

    return _map(inputs, cast)


def _map(inputs: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to every tensor, point set and token set."""
    if isinstance(inputs, Task):
        return Task(_map(dict(inputs.context), change), change(inputs.target))
    if isinstance(inputs, Mapping):
        return {name: _map(value, change) for name, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        return type(inputs)(_map(value, change) for value in inputs)
    return change(inputs)


def _weighted(t: Tensor) -> Tensor:
    """A weighted sum, so that no symmetry cancels gradients."""
    return (t * torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view(t.shape)).sum()


def _all_same(a: Sequence[Tensor], b: Sequence[Tensor], contract: str) -> None:
    for first, second in zip(a, b, strict=True):
        _same(first, second, contract)


def _same(a: Tensor, b: Tensor, contract: str, tolerance: float = 1e-9) -> None:
    a, b = a.detach(), b.detach()
    scale = max(1.0, float(a.abs().max())) if a.numel() else 1.0
    worst = float((a - b).abs().max()) / scale if a.shape == b.shape and a.numel() else 0.0
    _assert(a.shape == b.shape and worst <= tolerance, f"{contract} (off by {worst:.2g})")


def _assert(holds: bool, contract: str) -> None:
    if not holds:
        raise AssertionError(f"Contract violated: the part must {contract}.")
