"""The C files with vectors of every width, whatever the processor has: compilers split them."""

import ctypes
import shutil
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import gridtnp as gt
from gridtnp import ops
from gridtnp.network.grid_encoders import SEKernel
from gridtnp.ops import native
from gridtnp.ops.rows import Add, AddKept, Keep, Linear, Norm, Relu

WIDTHS = (128, 256, 512)


@pytest.fixture(scope="module", params=WIDTHS)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    usual = native.library()
    if compiler is None or isinstance(usual, str):
        pytest.skip("the C files cannot be compiled")
    if request.param == native.vector_bits():
        return usual
    flags = [*native.FLAGS, "-O1", "-fopenmp", f"-DVECTOR_BITS={request.param}"]
    return ctypes.CDLL(str(native._built(compiler, flags)))


def tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def full(size: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    mask = torch.rand(2, 210) < 0.7
    given = [tokens(2, 50, 3, size), tokens(2, 210, 3, size), tokens(2, 210, 3, size)]
    return lambda q, k, v: ops.full_attention(q, k, v, mask), given


def window(points: int, size: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    grid = [tokens(1, 2 * points, points, 3, size) for _ in range(3)]
    layout = ((points, points), (1, 0), (False, False))
    bias = tokens(3, points**2, points**2)
    return lambda q, k, v, b: ops.window_attention(q, k, v, *layout, b), [*grid, bias]


def neighbour() -> tuple[Callable[..., Tensor], list[Tensor]]:
    index = torch.randint(0, 40, (2, 30, 9))
    given = [tokens(2, 30, 8, 16), tokens(2, 40, 8, 16), tokens(2, 40, 8, 16)]
    return lambda q, k, v: ops.neighbour_attention(q, k, v, index), given


def rows(width: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    def run(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, v: Tensor) -> Tensor:
        steps = (Keep(), Norm(scale, b, 1e-5), Linear(w, b), Relu(), Add(x), AddKept(), Linear(v))
        return ops.rowwise(x, *steps)

    sizes = [(700, width), (width, width), (width,), (width,), (5, width)]
    return run, [tokens(*s) for s in sizes]


def kernel(op: str) -> tuple[Callable[..., Tensor], list[Tensor]]:
    latitude, longitude = gt.Axis.cells("lat", -90, 90, 10), gt.Axis.circle("lon", 0, 360, 20)
    grid = gt.Grid((latitude, longitude), metric="sphere")
    x = torch.rand(2, 130, 2) * torch.tensor([170.0, 360.0]) - torch.tensor([85.0, 0.0])

    def run(values: Tensor, log_ratio: Tensor) -> Tensor:
        se = SEKernel(grid, 8.0).to(values.dtype)
        parameters = {"log_ratio": log_ratio}
        split = torch.func.functional_call(
            _Split(se), {f"kernel.{k}": v for k, v in parameters.items()}, (x.to(values.dtype),)
        )
        return getattr(ops, op)(values, *split)

    values = tokens(2, 130, 5) if op == "kernel_to_grid" else tokens(2, 10, 20, 5)
    return run, [values, torch.zeros(1, dtype=torch.float64)]


class _Split(torch.nn.Module):
    def __init__(self, kernel: SEKernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, ops.Away]:
        return self.kernel.split(x, x.dtype)


CASES: dict[str, Callable[[], tuple[Callable[..., Tensor], list[Tensor]]]] = {
    **{f"full attention, heads of {size}": lambda size=size: full(size) for size in (5, 8, 16, 32)},
    **{
        f"windows of {p}², heads of {size}": lambda p=p, size=size: window(p, size)
        for p, size in ((2, 16), (4, 16), (5, 24), (4, 5))
    },
    "neighbours": neighbour,
    **{f"rows of {width}": lambda width=width: rows(width) for width in (16, 37, 128)},
    **{op: lambda op=op: kernel(op) for op in ("kernel_to_grid", "kernel_from_grid")},
}


def results(run: Callable[..., Tensor], given: Sequence[Tensor], name: str) -> list[Tensor]:
    leaves = [t.requires_grad_() for t in given]
    with ops.backends(name):
        out = run(*leaves)
        slope = torch.arange(out.numel()).mul(7).remainder(17).sub(8).view_as(out).to(out.dtype)
        return [out.detach(), *torch.autograd.grad((out * slope / 8).sum(), leaves)]


@pytest.mark.parametrize("case", CASES)
def test_every_width_computes_the_same(
    library: ctypes.CDLL, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To twice the error of plain PyTorch in single precision."""
    monkeypatch.setattr(native, "library", lambda: library)
    run, given = CASES[case]()
    exact = results(run, [t.clone() for t in given], "vectorised")
    plain = results(run, [t.float() for t in given], "vectorised")
    found = results(run, [t.float() for t in given], "native")
    for wanted, usual, value in zip(exact, plain, found, strict=True):
        allowed = 2 * (usual - wanted).abs().max() + 1e-6 * wanted.abs().max()
        assert (value - wanted).abs().max() <= allowed
