"""Row by row, in pieces and computed again: the same values and gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gridtnp.recompute import added, parts, rowwise


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [2, 7])
def test_the_same_in_pieces(
    rest: bool, bias: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(4, 5).double(), nn.Linear(5, 4, bias=bias).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    z = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)

    def body(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor | None]:
        return first(x * z).relu(), x + z if rest else None

    def results() -> list[Tensor]:
        weights = [*first.parameters(), *last.parameters()]
        y = rowwise(body, (x, z), [*first.parameters()], last.weight, last.bias)
        assert y.shape == (2, 3, 4)
        return [y.detach(), *torch.autograd.grad(y.sin().sum(), [x, z, *weights])]

    plain = results()
    hidden, added = body(x, z)
    expected = F.linear(hidden, last.weight, last.bias) + (0 if added is None else added)
    torch.testing.assert_close(plain[0], expected.detach())
    monkeypatch.setattr("gridtnp.recompute.LARGE", 0)
    monkeypatch.setattr("gridtnp.recompute.ROWS", rows)
    for found, wanted in zip(results(), plain, strict=True):
        torch.testing.assert_close(found, wanted)


def test_no_rows_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridtnp.recompute.LARGE", 0)
    weight, x = torch.ones(3, 2, requires_grad=True), torch.zeros(1, 0, 2, requires_grad=True)
    y = rowwise(lambda x: (x, None), (x,), [], weight)
    assert y.shape == (1, 0, 3)
    y.sum().backward()
    assert torch.equal(weight.grad, torch.zeros(3, 2))


def test_rows_that_need_no_gradient_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridtnp.recompute.LARGE", 0)
    weight = torch.ones(3, 2, requires_grad=True)
    x, fixed = torch.randn(5, 2, requires_grad=True), torch.randn(5, 2, requires_grad=False)
    rowwise(lambda f, x: (f * x, None), (fixed, x), [], weight).sum().backward()
    assert fixed.grad is None
    torch.testing.assert_close(x.grad, 3 * fixed)


@pytest.mark.parametrize("layout", ["side by side", "apart", "the other way round"])
def test_parts_have_the_gradient_of_the_whole(layout: str) -> None:
    z = torch.randn(2, 3, 2, 4, 5, requires_grad=True)
    wanted = torch.randn(2, 3, 2, 4, 5)
    grads = list(wanted.unbind(-3))
    if layout == "apart":
        grads = [g.clone() for g in grads]
    elif layout == "the other way round":
        grads = list(wanted.flip(-3).contiguous().unbind(-3))[::-1]
    (found,) = torch.autograd.grad(parts(z), z, grads)
    assert torch.equal(found, wanted)
    if layout == "side by side":
        assert found.data_ptr() == wanted.data_ptr()  # taken as it is


def test_adding_in_place_never_loses_precision() -> None:
    low, high = torch.ones(2, dtype=torch.bfloat16), torch.full((2,), 1e-3)
    assert added(low, high).dtype == torch.float32
    assert added(high, torch.ones(2)) is high
