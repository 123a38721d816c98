"""Row by row: every back-end against the formula, forward and backward, for any list of steps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from exploring import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gridtnp import ops
from gridtnp.ops import native
from gridtnp.ops.rows import Add, AddKept, Keep, Linear, Norm, Relu, Step

NAMES = [b.name for b in ops.BACKENDS["rowwise"]]
Made = tuple[list[Tensor], Callable[..., tuple[Step, ...]]]


def formula(x: Tensor, steps: tuple[Step, ...]) -> Tensor:
    """What the steps mean, written out."""
    kept = x
    for step in steps:
        match step:
            case Linear(weight, bias):
                x = x @ weight.T + (0 if bias is None else bias)
            case Norm(weight, bias, eps):
                off = x - x.mean(-1, keepdim=True)
                x = off / (off.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias
            case Relu():
                x = torch.where(x > 0, x, torch.zeros_like(x))
            case Add(rows):
                x = x + rows
            case Keep():
                kept = x
            case AddKept():
                x = x + kept
    return x


KINDS = ["linear", "linear without bias", "norm", "relu", "add", "keep", "residual", "nested"]


def make(kinds: list[str], widths: list[int], n: int, batch: int, seed: int) -> Made:
    """Tensors in double precision, x first, and a way to make steps of those that follow."""
    torch.manual_seed(seed)
    width = widths[0]
    tensors = [torch.randn(batch, n, width, dtype=torch.float64)]
    plan: list[tuple[str, int]] = []
    for kind, wanted in zip(kinds, widths[1:], strict=True):
        count = len(tensors)
        if kind.startswith("linear"):
            tensors.append(torch.randn(wanted, width, dtype=torch.float64) / width**0.5)
            width = wanted
        if kind == "linear" or kind == "norm":
            tensors += [torch.randn(width, dtype=torch.float64)]
        if kind == "norm":
            tensors += [torch.randn(width, dtype=torch.float64)]
        if kind == "add":
            tensors.append(torch.randn(batch, n, width, dtype=torch.float64))
        if kind in ("residual", "nested"):
            tensors.append(torch.randn(width, width, dtype=torch.float64) / width**0.5)
        plan.append((kind, count))

    def steps(*t: Tensor) -> tuple[Step, ...]:
        found: list[Step] = []
        for kind, i in plan:
            match kind:
                case "linear":
                    found.append(Linear(t[i], t[i + 1]))
                case "linear without bias":
                    found.append(Linear(t[i]))
                case "norm":
                    found.append(Norm(t[i], t[i + 1], 1e-5))
                case "relu":
                    found.append(Relu())
                case "add":
                    found.append(Add(t[i]))
                case "keep":
                    found.append(Keep())
                case "residual":
                    found += [Keep(), Relu(), Linear(t[i]), AddKept()]
                case _:
                    found += [Keep(), Linear(t[i]), Keep(), AddKept(), Linear(t[i]), AddKept()]
        return tuple(found)

    return tensors, steps


def well_conditioned(made: Made) -> bool:
    """No ReLU close to its kink and no norm of rows that hardly vary, where rounding decides."""
    steps, x = made[1](*made[0]), made[0][0]
    for i, step in enumerate(steps):
        before = formula(x, steps[:i])
        if isinstance(step, Relu) and ((before.abs() < 1e-3) & (before != 0)).any():
            return False
        if before.numel() and isinstance(step, Norm) and before.std(-1).min() < 0.1:
            return False
    return True


def evaluate(run: Callable[..., Tensor], made: Made, dtype: torch.dtype) -> list[Tensor]:
    """The result and all gradients."""
    tensors = [t.to(dtype, copy=True).requires_grad_() for t in made[0]]
    y = run(tensors[0], made[1](*tensors))
    slope = torch.arange(y.numel()).mul(7).remainder(17).sub(8).view_as(y).to(dtype) / 8
    grads = torch.autograd.grad((y * slope).sum(), tensors, allow_unused=True)
    found = [
        g if g is not None else torch.zeros_like(t) for g, t in zip(grads, tensors, strict=True)
    ]
    return [y.detach().double(), *(g.double() for g in found)]


def by(backend: str) -> Callable[..., Tensor]:
    return lambda x, steps: ops.rowwise(x, *steps, backend=backend)


def check(backend: str, made: Made, dtype: torch.dtype = torch.float32) -> None:
    """Errors are at most twice those of the formula in the same precision, beside its grain."""
    exact = evaluate(formula, made, torch.float64)
    expected = evaluate(formula, made, dtype)
    for found, plain, true in zip(evaluate(by(backend), made, dtype), expected, exact, strict=True):
        assert found.shape == true.shape
        if true.numel():
            grain = 64 * torch.finfo(dtype).eps * max(1.0, true.abs().max().item())
            assert (found - true).abs().max() <= 2 * (plain - true).abs().max() + grain


CHAINS = st.lists(st.sampled_from(KINDS), min_size=1, max_size=6).flatmap(
    lambda kinds: st.builds(
        make,
        st.just(kinds),
        st.lists(
            st.sampled_from([2, 3, 7, 8, 15, 16, 17, 33]),
            min_size=len(kinds) + 1,
            max_size=len(kinds) + 1,
        ),
        st.sampled_from([0, 1, 5, 6, 7, 97]),
        st.integers(1, 2),
        st.integers(0, 2**31),
    )
)


@pytest.fixture
def runnable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A back-end that can run: none is left out because the activations are small."""
    monkeypatch.setattr("gridtnp.ops.rows.LARGE", 0)
    if request.param == "native" and isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    return request.param


@pytest.mark.parametrize("runnable", NAMES, indirect=True)
def test_a_back_end_computes_what_the_formula_says(runnable: str) -> None:
    @settings(max_examples=examples(150))
    @given(CHAINS)
    def every(made: Made) -> None:
        assume(well_conditioned(made))
        check(runnable, made)

    every()


@pytest.mark.parametrize("runnable", NAMES, indirect=True)
@pytest.mark.parametrize("n", [1000, 4000])
def test_errors_do_not_grow_with_the_number_of_rows(runnable: str, n: int) -> None:
    kinds = ["norm", "linear", "relu", "add", "linear", "residual", "norm", "linear without bias"]
    check(runnable, make(kinds, [64] * (len(kinds) + 1), n, 1, 0))


@pytest.mark.parametrize("runnable", ["recomputed", "plain"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(runnable: str, dtype: torch.dtype) -> None:
    kinds = ["norm", "linear", "add", "linear without bias", "keep"]
    check(runnable, make(kinds, [16] * 6, 40, 2, 0), dtype)


@pytest.mark.parametrize("size", [2, 7])
def test_double_precision_in_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridtnp.ops.rows.LARGE", 0)
    monkeypatch.setattr("gridtnp.ops.rows.ROWS", size)
    made = make(["linear", "add", "residual"], [3, 5, 5, 5], 8, 2, 0)
    check("recomputed", made, torch.float64)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_any_number_of_threads_agrees(threads: int) -> None:
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    made = make(["norm", "linear", "relu", "add", "linear"], [9, 9, 20, 20, 20, 3], 500, 1, 0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = evaluate(by("native"), made, torch.float32)
        torch.set_num_threads(threads)
        several = evaluate(by("native"), made, torch.float32)
        again = evaluate(by("native"), made, torch.float32)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one[0], several[0])  # rows have nothing to do with each other
    for a, b, c in zip(one, several, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-5)
        assert torch.equal(b, c)


@pytest.mark.parametrize("runnable", NAMES, indirect=True)
def test_a_row_does_not_depend_on_how_many_others_there_are(runnable: str) -> None:
    tensors, steps = make(["linear", "norm", "linear"], [128, 128, 128, 6], 300, 1, 0)
    x, *weights = (t.float() for t in tensors)
    whole = ops.rowwise(x, *steps(x, *weights), backend=runnable)
    for n in (1, 95, 96, 97, 200):
        some = ops.rowwise(x[:, :n], *steps(x, *weights), backend=runnable)
        if runnable == "native":
            assert torch.equal(some, whole[:, :n])
        torch.testing.assert_close(some, whole[:, :n])


@pytest.mark.parametrize("runnable", NAMES, indirect=True)
def test_rows_may_lie_anywhere_and_be_shared_by_the_batch(runnable: str) -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 4)
    wide = torch.randn(2, 5, 9)
    for x in (wide[..., 2:6], wide.transpose(1, 2)[:, :5, :4], wide[:, ::2, 1:5]):
        rows = torch.randn(1, x.shape[1], 4, requires_grad=True)
        y = ops.rowwise(x, Linear(weight.T), Add(rows), backend=runnable)
        torch.testing.assert_close(y, x @ weight + rows)
        (grad,) = torch.autograd.grad(y.sum(), rows)
        torch.testing.assert_close(grad, torch.full_like(rows, 2.0))


@pytest.mark.parametrize("runnable", NAMES, indirect=True)
@pytest.mark.parametrize("wanted", range(6))
def test_what_needs_no_gradient_gets_none_and_the_rest_is_the_same(
    runnable: str, wanted: int
) -> None:
    tensors, steps = make(["linear", "add", "norm"], [5, 4, 4, 4], 9, 1, 0)
    assert len(tensors) == 6
    every = evaluate(formula, (tensors, steps), torch.float64)[1 + wanted]
    leaves = [t.float().requires_grad_(i == wanted) for i, t in enumerate(tensors)]
    y = ops.rowwise(leaves[0], *steps(*leaves), backend=runnable)
    slope = torch.arange(y.numel()).mul(7).remainder(17).sub(8).view_as(y) / 8
    (y * slope).sum().backward()
    assert [i for i, leaf in enumerate(leaves) if leaf.grad is not None] == [wanted]
    torch.testing.assert_close(leaves[wanted].grad, every.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("runnable", NAMES, indirect=True)
def test_what_is_no_number_is_not_hidden(runnable: str) -> None:
    x = torch.tensor([[1.0, torch.nan]])
    assert ops.rowwise(x, Relu(), backend=runnable).isnan().any()
    weight = torch.ones(2, 2)
    assert ops.rowwise(x, Linear(weight), Relu(), backend=runnable).isnan().all()
    huge, one = torch.tensor([[1e30, -2e30]]), torch.ones(2)  # their variance is infinite
    assert ops.rowwise(huge, Norm(one, one, 1e-5), backend=runnable).isnan().all()


def test_who_computes_is_told_by_what_there_is_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    x, steps = torch.randn(3, 4), (Linear(torch.randn(2, 4)), Relu())

    def chosen(x: Tensor, *steps: Any) -> list[str]:
        return [b.name for b in ops.BACKENDS["rowwise"] if b.why_not(x, steps) is None]

    if not isinstance(native.library(), str):
        assert chosen(x, *steps) == ["native", "plain"]
    assert chosen(x.double(), *steps) == ["plain"]
    with torch.autocast("cpu", torch.bfloat16):
        assert chosen(x, *steps) == ["plain"]
        assert ops.rowwise(x, *steps).dtype == torch.bfloat16
    monkeypatch.setattr("gridtnp.ops.rows.LARGE", 0)
    assert chosen(x.double(), *steps) == ["recomputed", "plain"]
    with torch.no_grad():
        assert chosen(x.double(), *steps) == ["plain"]
    with pytest.raises(
        ValueError, match="'native' cannot run rowwise here: it computes on the CPU"
    ):
        ops.rowwise(x.double(), *steps, backend="native")
    with pytest.raises(ValueError, match="rowwise has no back-end 'abacus'; choose one of"):
        ops.rowwise(x, *steps, backend="abacus")


def test_no_steps_change_nothing() -> None:
    x = torch.randn(3, 2)
    assert ops.rowwise(x) is x


def test_sums_in_place_never_lose_precision() -> None:
    low, high = torch.ones(1, 2, dtype=torch.bfloat16), torch.full((1, 2), 1e-3)
    assert ops.rowwise(low, Linear(low.new_ones(2, 2)), Add(high)).dtype == torch.float32


@pytest.mark.parametrize("runnable", NAMES, indirect=True)
def test_rows_may_lie_in_columns(runnable: str) -> None:
    columns = torch.randn(5, 2, 40, requires_grad=True)  # as embeddings make them
    weight = torch.randn(3, 5)
    y = ops.rowwise(columns.movedim(0, -1), Relu(), Linear(weight), backend=runnable)
    torch.testing.assert_close(y, columns.movedim(0, -1).relu() @ weight.T)
    (grad,) = torch.autograd.grad(y.sum(), columns)
    torch.testing.assert_close(grad, (columns > 0) * weight.sum(0).view(5, 1, 1))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            (Linear(torch.zeros(2, 3)),),
            "Step 1, Linear, must be for rows of 4 numbers, got one for 3",
        ),
        ((Relu(), Add(torch.zeros(5, 2))), "Step 2, Add, must be for rows of 4 numbers"),
        ((Norm(torch.ones(5), torch.ones(5), 1e-5),), "Norm, must be for rows of 4 numbers"),
        ((Norm(torch.ones(4), torch.ones(3), 1e-5),), "Norm, must have a bias of 4 numbers"),
        ((Keep(), Linear(torch.zeros(2, 4)), AddKept()), "Step 3, AddKept, must be for rows of 2"),
        ((Relu(), AddKept()), "Step 2 adds what was kept, but no step keeps before"),
    ],
)
@pytest.mark.parametrize("backend", [None, *NAMES])
def test_steps_that_do_not_fit_are_refused(
    steps: tuple[Step, ...], message: str, backend: str | None
) -> None:
    with pytest.raises(ValueError, match=message):
        ops.rowwise(torch.zeros(5, 4), *steps, backend=backend)
