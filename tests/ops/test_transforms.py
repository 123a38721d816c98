"""Derivatives of derivatives and the transforms of `torch.func`, for every op, in C if it can."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from gridtnp import ops
from gridtnp.network.layers import split_projection
from gridtnp.ops.rows import Add, AddKept, Keep, Linear, Norm, Relu

# PyTorch itself scripts what it differentiates forwards.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
INDEX = torch.tensor([[[0, 1], [2, 3], [1, 2], [3, 0]]])
VALID = torch.tensor([[[True, True], [True, False], [False, False], [True, True]]])
SEEDED = torch.Generator().manual_seed(0)
WEIGHT, BIAS = (torch.randn(*shape, generator=SEEDED) for shape in ((8, 8), (8,)))
CHAIN = (Keep(), Norm(BIAS, None, 1e-5), Linear(WEIGHT, BIAS), Relu(), AddKept())


def split(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`(4, 24)` as queries, keys and values of one batch element."""
    q, k, v = z.unflatten(-1, (3, 2, 4))[None].unbind(2)
    return q, k, v


def cell(z: Tensor, backend: str | None) -> Tensor:
    q, k, v = split(z)
    out, log_sum = ops.cell_attention(q, k, v, q[..., 0], v, INDEX, VALID, backend=backend)
    return out.flatten(2) + log_sum.sum(-1, keepdim=True)


def neighbour(z: Tensor, backend: str | None) -> Tensor:
    q, k, v = split(z)
    bias = (q * v).sum(-1)[:, :, None].expand(-1, -1, 2, -1)
    return ops.neighbour_attention(q, k, v, INDEX, VALID, bias, backend=backend)


def stencil(z: Tensor, backend: str | None) -> Tensor:
    q, k, v = split(z)
    log_weight = z[None, :, :2].masked_fill(~VALID, -torch.inf)
    features, keys = z[None, :, 2:8].unflatten(-1, (2, 3)), z[:3, :8].unflatten(-1, (2, 4))[None]
    given = (INDEX, log_weight, features, keys, (2,))
    return ops.stencil_attention(q, k, v, *given, backend=backend)


def window(z: Tensor, backend: str | None) -> Tensor:
    q, k, v = split(z)
    bias = z[:2, :4].unflatten(1, (2, 2))
    return ops.window_attention(q, k, v, (2,), (1,), (False,), bias, backend=backend)


def rowwise(z: Tensor, backend: str | None) -> Tensor:
    return ops.rowwise(z[..., :8], *CHAIN, Add(z[..., 8:16]), backend=backend)


def projection(z: Tensor, backend: str | None) -> Tensor:
    del backend
    q, k, v = split_projection(z.unflatten(-1, (3, 2, 4)))
    return q * k.exp() * v


def full(z: Tensor, backend: str | None) -> Tensor:
    q, k, v = split(z)
    return ops.full_attention(q, k, v, VALID[..., 1], backend=backend)


def cell_sum(z: Tensor, backend: str | None) -> Tensor:
    weight = z[None, :, :2]
    return ops.cell_sum(z[None], INDEX, weight, 4, backend=backend)


Op = Callable[[Tensor, str | None], Tensor]
OPS: list[tuple[Op, str]] = [
    (cell, "segment"),
    (neighbour, "gather"),
    (stencil, "gather"),
    (window, "batched"),
    (rowwise, "plain"),
    (projection, "none"),
    (cell_sum, "segment"),
    (full, "sdpa"),
]


@pytest.fixture(autouse=True)
def _in_c() -> Iterator[None]:
    """Even where PyTorch is faster."""
    with ops.backends("native"):
        yield


def value(op: Op, backend: str | None = None) -> Callable[[Tensor], Tensor]:
    return lambda z: op(z, backend).sin().sum()


def twice(of: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """The gradient of the squared gradient."""
    z = z.clone().requires_grad_()
    (first,) = torch.autograd.grad(of(z), z, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), z)
    return second


@pytest.mark.parametrize(("op", "plain"), OPS)
def test_gradients_can_be_differentiated(op: Op, plain: str) -> None:
    z = torch.randn(4, 24)
    with sdpa_kernel(SDPBackend.MATH):
        expected = twice(value(op, plain), z.double() if op is not rowwise else z)
    torch.testing.assert_close(twice(value(op), z), expected.float(), rtol=1e-3, atol=1e-4)


def derivatives(of: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    z = z.clone().requires_grad_()
    return torch.autograd.grad(of(z), z)[0]


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda of, z: grad(of)(z[0]),
    "vmap": lambda of, z: vmap(of)(z).sum(),
    "grad of each": lambda of, z: vmap(grad(of))(z)[0],
    "jacrev": lambda of, z: jacrev(of)(z[0]),
    "jvp": lambda of, z: torch.func.jvp(of, (z[0],), (torch.ones_like(z[0]),))[1],
}


@pytest.mark.parametrize(("op", "plain"), OPS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_functions_can_be_transformed(op: Op, plain: str, transform: str) -> None:
    del plain
    z = torch.randn(3, 4, 24)
    of = value(op)
    with sdpa_kernel(SDPBackend.MATH):
        found = TRANSFORMS[transform](of, z)
    gradient = derivatives(of, z[0])
    expected = {"vmap": sum(of(each) for each in z), "jvp": gradient.sum()}.get(transform, gradient)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("op", "plain"), OPS)
def test_gradients_can_be_pulled_back_in_batches(op: Op, plain: str) -> None:
    del plain
    z = torch.randn(4, 24, requires_grad=True)
    out = op(z, None)
    slopes = torch.randn(3, *out.shape)
    (found,) = torch.autograd.grad(out, z, slopes, is_grads_batched=True, retain_graph=True)
    expected = [torch.autograd.grad(out, z, slope, retain_graph=True)[0] for slope in slopes]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("op", "plain"), OPS)
def test_derivatives_can_run_forwards(op: Op, plain: str) -> None:
    del plain
    z, slope = torch.randn(4, 24), torch.randn(4, 24)
    of = value(op)
    with torch.autograd.forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
        dual = torch.autograd.forward_ad.make_dual(z, slope)
        found = torch.autograd.forward_ad.unpack_dual(of(dual)).tangent
    torch.testing.assert_close(found, (derivatives(of, z) * slope).sum(), rtol=1e-3, atol=1e-4)


def test_rows_to_add_can_be_a_batch_of_their_own() -> None:
    x, rows = torch.randn(5, 8), torch.randn(2, 5, 8)
    found = vmap(lambda r: ops.rowwise(x, Linear(WEIGHT), Add(r)))(rows)
    torch.testing.assert_close(found, x @ WEIGHT.T + rows, rtol=1e-4, atol=1e-4)
