"""One measurement in a fresh process: `python benchmarks/cases.py NAME ARGUMENTS…` prints JSON.

The record holds the matrix-multiply speed of the same process, by which times from a busy or slower
machine can be scaled, and the peak of resident memory above that of the imports.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

import gridtnp as gt
from gridtnp import ops, processor
from gridtnp.config import Embedded, Fourier, GriddedConfig, Neighbour, PseudoToken, Swin
from gridtnp.network.grid_encoders import PseudoTokenGridEncoder, SEKernel
from gridtnp.network.layers import AttentionBlock, mlp, steps
from gridtnp.network.presets import TENTH_RADIAN
from gridtnp.ops import native
from gridtnp.ops.rows import Add, AddKept, Keep, tensors, why_not_recomputed
from gridtnp.task import TokenSet

LONG = 4.0
"""Seconds after which a run is not repeated."""


def timed(run: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each of `repeats` runs, or of fewer long ones; of the processor if one thread."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: list[float] = []
    while len(seconds) < repeats and sum(seconds) < LONG:
        start = clock()
        run()
        seconds.append(clock() - start)
    return seconds


def matmul_speed() -> float:
    """GFLOP/s of a 2048³ matrix product in single precision."""
    a = torch.randn(2048, 2048)
    return 2 * 2048**3 / statistics.median(timed(lambda: a @ a, 6)[1:]) / 1e9


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def interleaved(run: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Median time of `run` after a first one, and the matrix-multiply speed measured in between."""
    run()
    speeds, seconds = [matmul_speed()], []
    for _ in range(2 if repeats > 1 else 1):
        seconds += timed(run, repeats)
        speeds.append(matmul_speed())
    return {"seconds": statistics.median(seconds), "gflops_sgemm": statistics.median(speeds)}


def points(grid: gt.Grid, n: int, dim_y: int, features: int, crowd: float = 0.0) -> gt.PointSet:
    """Uniform points on the grid's extent; the share `crowd` of them is in one cell."""
    low = torch.tensor([axis.low for axis in grid.axes])
    extent = torch.tensor([axis.high - axis.low for axis in grid.axes])
    x = low + extent * torch.rand(1, n, len(grid.axes))
    many = int(crowd * n)
    x[:, :many] = low + extent * 0.5 + 0.01 * torch.rand(1, many, len(grid.axes))
    extra = torch.full((1, n, features), 437_000.0) if features else None
    return gt.PointSet(x, torch.randn(1, n, dim_y), None, extra)


def domain(name: str) -> gt.Grid:
    swin = {
        "gp": "gp/swin-tnp-pt-64x64",
        "stations": "stations/swin-tnp-pt-64x128",
        "stations-rich": "stations-rich/swin-tnp-pt-128x256",
        "wind": "wind/swin-tnp-multi-pt-24x60",
    }
    architecture = gt.preset(swin[name.split("/")[0]]).architecture
    assert isinstance(architecture, GriddedConfig)
    return architecture.grid


def task_for(name: str) -> gt.Task:
    """A random task with the size of the paper's experiment."""
    config, grid, table = gt.preset(name), domain(name), name.split("/")[0]
    stations = 3_700 if table == "stations-rich" else 1_500  # a mean share of 0.375, or 0.15
    sizes = {"observations": 10_000, "skt": 64_800, "t2m": stations}
    targets = {"gp": 1_000, "wind": 22_656}.get(table, 9_957)
    df = len(config.features)
    context = {s: points(grid, sizes.get(s, 13_594), dy, df) for s, dy in config.sources.items()}
    return gt.Task(context, points(grid, targets, config.dim_y, df))


def training_step(model: gt.NeuralProcess, task: gt.Task) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-4)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        model.loss(task).backward()
        optimiser.step()

    return step


def arithmetic(network: gt.NeuralProcess, task: gt.Task) -> int:
    """FLOPs of all matrix products of a forward pass, including attention.

    The C back-ends are left out, because PyTorch's counter cannot see their work, and so are
    gradients, which it would follow into operations that have none. It lacks attention on the CPU.
    """
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counts = {attention: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)}
    network.requires_grad_(False)
    for name, table in ops.BACKENDS.items():
        ops.BACKENDS[name] = tuple(b for b in table if b.name != "native")
    with FlopCounterMode(display=False, custom_mapping=counts) as counter:
        network(task)
    return counter.get_total_flops()


def loaded_gb() -> float:
    """Memory of what PyTorch imports and loads in the first training step of any model."""
    before = peak_gb()
    training_step(*small())()
    return peak_gb() - before


def model(name: str, repeats: str) -> dict[str, Any]:
    """Training step and forward pass of a preset at batch size 1, and the memory of training.

    Memory is the peak of the first steps, above that of the imports and of a small model's step.
    """
    loaded, before = loaded_gb(), peak_gb()
    network, task = gt.build_model(gt.preset(name)), task_for(name)
    step = training_step(network, task)
    for _ in range(3 if int(repeats) > 1 else 2):
        step()
    memory = peak_gb() - before
    rows = {"step": interleaved(step, int(repeats))}
    with torch.no_grad():
        rows["forward"] = interleaved(lambda: network(task), int(repeats))
    rows["step"] |= {"gb": memory, "gb_loaded": loaded}
    forward = arithmetic(network, task)
    for row, passes in ((rows["forward"], 1), (rows["step"], 3)):
        row["gflop"] = passes * forward / 1e9
        row["share"] = row["gflop"] / row["seconds"] / row["gflops_sgemm"]
    return {"parameters": sum(p.numel() for p in network.parameters()), **rows}


PARTS = {
    "linear maps, norms and ReLUs in C": ("_Rowwise", "_RowwiseBackward"),
    "attention in windows": ("_WindowAttention", "_WindowAttentionBackward"),
    "attention of cells": ("_CellAttention", "_CellAttentionBackward"),
    "attention to neighbours": ("_NeighbourAttention", "_NeighbourAttentionBackward"),
    "attention to all": ("_FullAttention", "_FullAttentionBackward"),
    "copies": ("aten::copy_", "aten::cat", "aten::fill_", "aten::gather"),
    "by element, PyTorch's": ("aten::add", "aten::add_", "aten::mul", "aten::sub", "aten::sum"),
}


def profile(name: str) -> dict[str, Any]:
    """Shares of the time of a preset's training step and forward pass, by kind of operation."""
    network, task = gt.build_model(gt.preset(name)), task_for(name)
    step = training_step(network, task)

    def forward() -> None:
        with torch.no_grad():
            network(task)

    result: dict[str, Any] = {}
    for what, run in (("step", step), ("forward", forward)):
        run()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            for _ in range(3):
                run()
        times = {e.key: e.self_cpu_time_total for e in seen.key_averages()}
        total = sum(times.values())
        shares = {
            part: sum(times.pop(key, 0.0) for key in keys) / total for part, keys in PARTS.items()
        }
        result[what] = shares | {"all else": sum(times.values()) / total}
    return result


def encode(n: str, crowd: str) -> dict[str, Any]:
    """Encode n points onto the 64×64 grid of a gp preset."""
    name = "gp/swin-tnp-pt-64x64"
    network, grid = gt.build_model(gt.preset(name)), domain(name)
    before = peak_gb()
    context = {"observations": points(grid, int(n), 1, 0, float(crowd))}
    with torch.no_grad():
        network.encode(context)
        memory = peak_gb() - before
        result = interleaved(lambda: network.encode(context), 3 if int(n) < 5_000_000 else 1)
    return {"gb": memory, "microseconds_per_point": result["seconds"] / int(n) * 1e6, **result}


def encoder(n: str, crowd: str, backend: str) -> dict[str, Any]:
    """Forward and backward pass of cell attention alone, with a share of the points in one cell."""
    grid = domain("gp")
    part = PseudoTokenGridEncoder(grid, dim=128, heads=8, width=(1, 1))
    tokens = TokenSet(points(grid, int(n), 1, 0, float(crowd)).x, torch.randn(1, int(n), 128))
    table = ops.BACKENDS["cell_attention"]
    ops.BACKENDS["cell_attention"] = tuple(b for b in table if b.name == backend)
    before = peak_gb()

    def run() -> None:
        part([tokens]).sum().backward()

    run()
    memory = peak_gb() - before
    return {"gb": memory, **interleaved(run, 3)}


def targets(n: str) -> dict[str, Any]:
    """Predict n targets from 100,000 context points with a gp preset."""
    before = peak_gb()
    name = "gp/swin-tnp-pt-64x64"
    network, grid = gt.build_model(gt.preset(name)), domain(name)
    context, target = points(grid, 100_000, 1, 0), points(grid, int(n), 1, 0)
    task = gt.Task({"observations": context}, gt.PointSet(target.x))
    with torch.no_grad():
        result = interleaved(lambda: network(task), 1)
    return {"gb": peak_gb() - before, **result}


def op(name: str, backend: str, size: str) -> dict[str, Any]:
    """Forward pass of an op at its size in a preset, and forward with backward pass.

    Memory is that of both passes, without the inputs."""
    run, inputs = _op(name, backend, size)
    before = peak_gb()

    def both() -> None:
        out = run()
        out = out[0] if isinstance(out, tuple) else out
        torch.autograd.grad(out.sum(), inputs)

    both()
    memory = peak_gb() - before
    with torch.no_grad():
        forward = interleaved(run, 5)
    seconds = statistics.median(timed(both, 7))
    return {**forward, "seconds_with_backward": seconds, "gb": memory}


KERNELS = {"gp": 0.1, "stations": TENTH_RADIAN, "wind": (0.1, TENTH_RADIAN)}
"""Length-scales of the presets."""


def _op(name: str, backend: str, size: str) -> tuple[Callable[[], Any], list[torch.Tensor]]:
    grid = domain(size)
    heads, dh = 8, 16
    n = {"gp": 10_000, "stations": 66_300, "wind": 13_594}[size]
    t = {"gp": 1_000, "stations": 9_957, "wind": 22_656}[size]
    if name == "rowwise":
        block = AttentionBlock(heads * dh, heads)
        x = torch.randn(1, n, heads * dh, requires_grad=True)
        chain = [*steps(block.out), Add(x), Keep(), *steps(block.feed_forward), AddKept()]
        return lambda: ops.rowwise(x, *chain, backend=backend), [x, *block.out.parameters()]
    window = {"gp": (8, 8), "stations": (4, 4), "wind": (4, 4, 4)}[size]
    shift = {"gp": (4, 4), "stations": (2, 2), "wind": (0, 2, 2)}[size]
    if name == "full_attention":  # of a ViT
        n = {"gp": 32 * 32, "stations": 48 * 96, "wind": 4 * 12 * 30}[size]
        tokens = torch.randn(1, n, 3, heads, dh, requires_grad=True)
        q, k, v = tokens.unbind(2)
        return lambda: ops.full_attention(q, k, v, backend=backend), [tokens]
    if name.startswith("kernel_"):
        kernel = SEKernel(grid, KERNELS[size])
        with torch.no_grad():
            split = kernel.split(points(grid, t, 1, 0).x, torch.float32)
        rows = (split[0].shape[-1], split[2].across.shape[-1])
        shape = (t,) if name == "kernel_to_grid" else rows
        values = torch.randn(1, *shape, heads * dh, requires_grad=True)
        summed = getattr(ops, name)
        return lambda: summed(values, *split, backend=backend), [values]
    if name == "cell_sum":
        z = torch.randn(1, n, heads * dh, requires_grad=True)
        cell, valid = grid.neighbours(points(grid, n, 1, 0).x, (3,) * len(grid.axes))
        weight = valid.float()
        return lambda: ops.cell_sum(z, cell, weight, grid.size, backend=backend), [z]
    tokens = torch.randn(1, grid.size, 3, heads, dh, requires_grad=True)
    q, k, v = tokens.unbind(2)
    if name == "window_attention":
        q, k, v = (a.unflatten(1, grid.shape) for a in (q, k, v))
        args: tuple[Any, ...] = (q, k, v, window, shift, grid.periodic)
    elif name == "neighbour_attention":
        query = torch.randn(1, t, heads, dh, requires_grad=True)
        width = (3,) * len(grid.axes)
        args = (query, k, v, *grid.neighbours(points(grid, t, 1, 0).x, width))
    else:
        many = torch.randn(1, n, 2, heads, dh, requires_grad=True)
        cell = grid.nearest(points(grid, n, 1, 0).x).unsqueeze(-1)
        key, value = many.unbind(2)
        own = (q[..., 0], v)
        return lambda: ops.cell_attention(q, key, value, *own, cell, backend=backend), [
            tokens,
            many,
        ]
    function = getattr(ops, name)
    return lambda: function(*args, backend=backend), [tokens]


def small() -> tuple[gt.NeuralProcess, gt.Task]:
    """A small model, and a task with 100 observations and 100 targets."""
    grid = gt.Grid((gt.Axis.span("x", -1.0, 1.0, 16), gt.Axis.span("y", -1.0, 1.0, 16)))
    waves = Fourier(of=("x", "y"), per_column=16, shortest=0.1, longest=2.0)
    architecture = GriddedConfig(
        grid=grid,
        grid_encoder=PseudoToken(),
        processor=Swin(layers=2, window=(4, 4)),
        decoder=Neighbour(neighbours=9),
    )
    about = {"coordinates": ("x", "y"), "sources": {"s": 1}, "dim": 32, "heads": 2}
    tokens = Embedded(embedding=(waves,))
    config = gt.ModelConfig(**about, tokens=tokens, architecture=architecture)
    task = gt.Task({"s": points(grid, 100, 1, 0)}, points(grid, 100, 1, 0))
    return gt.build_model(config), task


def loop(tasks: str) -> dict[str, Any]:
    """Predict small tasks one after another."""
    network = small()[0]
    few = [small()[1] for _ in range(20)]

    def run() -> None:
        for i in range(int(tasks)):
            network(few[i % 20])

    with torch.no_grad():
        result = interleaved(run, 3)
    return {"milliseconds_per_task": result["seconds"] / int(tasks) * 1e3, **result}


def sizes(width: str) -> dict[str, Any]:
    """How many times faster C computes rows than PyTorch, in inference and in training.

    PyTorch's back-end is the one that runs without C: where activations are large, training
    recomputes them. The back-ends take turns on one thread, and only the process's own time counts,
    so that a busy machine changes both alike. This is the evidence for `native_rows.why_slower`.
    """
    torch.set_num_threads(1)
    dim = int(width)
    block, tokens = AttentionBlock(dim, 4), mlp(dim // 4, dim, dim=dim)
    results: dict[str, Any] = {}
    for n in (256, 1024, 4096, 16384):
        x, few = torch.randn(n, dim, requires_grad=True), torch.randn(n, dim // 4)
        update = [*steps(block.out), Add(x), Keep(), *steps(block.feed_forward), AddKept()]
        projection = [*steps(block.norm), *steps(block.project)]
        chains = {
            "update": (x, update),
            "projection": (x, projection),
            "tokens": (few, [*steps(tokens)]),
        }
        for name, (rows, chain) in chains.items():
            weights = [t for step in chain if not isinstance(step, Add) for t in tensors(step)]
            leaves = [t for t in (rows, *weights) if t is not None and t.requires_grad]
            results[f"{name}/{n}"] = _ratios(rows, chain, leaves)
    return results


def _ratios(x: torch.Tensor, chain: list[Any], leaves: list[torch.Tensor]) -> dict[str, float]:
    def forward(backend: str) -> torch.Tensor:
        return ops.rowwise(x, *chain, backend=backend)

    def step(backend: str) -> None:
        y = forward(backend)
        torch.autograd.grad(y, leaves, y.detach())

    with torch.no_grad():
        inference = _ratio(forward, "plain")
    large = why_not_recomputed(x, chain) is None
    return {"inference": inference, "training": _ratio(step, "recomputed" if large else "plain")}


def _ratio(run: Callable[[str], Any], other: str) -> float:
    """Median time of another back-end over that of C."""
    seconds: dict[str, list[float]] = {other: [], "native": []}
    begun = time.process_time()
    while len(seconds[other]) < 8 or time.process_time() - begun < 0.2:
        for backend, times in seconds.items():
            start = time.process_time()
            run(backend)
            times.append(time.process_time() - start)
    theirs, ours = (statistics.median(times[1:]) for times in seconds.values())
    return round(theirs / ours, 2)


if __name__ == "__main__":
    torch.manual_seed(0)
    case = globals()[sys.argv[1]]
    record = case(*sys.argv[2:])
    record |= {"bits": native.vector_bits(), "threads": torch.get_num_threads()}
    print(json.dumps(record | {"processor": processor.name()}))
