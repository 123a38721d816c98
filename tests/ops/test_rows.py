"""Row by row: every back-end against the formula, forward and backward, for any list of steps."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from exploring import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rounding import product, rounded
from torch import Tensor

from gridtnp import ops
from gridtnp.ops import native, native_rows
from gridtnp.ops.rows import Add, AddKept, Keep, Linear, Norm, Relu, Step

NAMES = [b.name for b in ops.BACKENDS["rowwise"]]
TRIALS, MOVES = 4, 16
"""How often results are moved by rounding, and how many times as far they may be off. In 12,000
chains of mostly narrow rows no back-end was off by more than 2.3 times as far; PyTorch's own norm
of two numbers that differ much, whose gradient is all rounding, by 11 times."""
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


def inexact(eps: float) -> Callable[..., Tensor]:
    """The same with rounding errors, some `eps` large, in all that is computed on the way.

    A norm takes its mean off last, as those do that compute in one go over the row.
    """

    def r(t: Tensor) -> Tensor:
        return rounded(t, eps)

    def run(x: Tensor, steps: tuple[Step, ...]) -> Tensor:
        def each(t: Tensor) -> Tensor:
            """The same numbers for every row, whose gradients are summed over rows."""
            return product(torch.ones_like(x[..., :1]), r(t)[:, None], eps)

        def mean(t: Tensor) -> Tensor:
            return product(t, t.new_full((1, t.shape[-1]), 1 / t.shape[-1]), eps)

        x = kept = r(x)
        for step in steps:
            match step:
                case Linear(weight, bias):
                    x = product(x, r(weight), eps)
                    x = x if bias is None else r(x + each(bias))
                case Norm(weight, bias, inside):
                    middle = mean(x)
                    off = r(x - middle)
                    variance = mean(r(r(off * x) - r(off * middle)))
                    scale = r((variance + inside).rsqrt())
                    x = r(r(scale * x) - r(scale * middle))
                    x = r(r(x * each(weight)) + each(bias))
                case Relu():
                    x = torch.where(x > 0, x, torch.zeros_like(x))
                case Add(rows):
                    x = r(x + r(rows))
                case Keep():
                    kept = x
                case AddKept():
                    x = r(x + kept)
        return x

    return run


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
        if not isinstance(step, Relu | Norm):
            continue
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


def allowances(made: Made, dtype: torch.dtype) -> list[float]:
    """How far the result and each gradient may be off: some times as far as rounding moves them,
    and twice as far as the formula is in the same precision.
    """
    exact = evaluate(formula, made, torch.float64)
    luck = torch.get_rng_state()
    torch.manual_seed(0)
    run = inexact(torch.finfo(dtype).eps)
    moved = [list(map(apart, evaluate(run, made, torch.float64), exact)) for _ in range(TRIALS)]
    torch.set_rng_state(luck)
    plain = map(apart, evaluate(formula, made, dtype), exact)
    return [2 * error + MOVES * max(moves) for error, *moves in zip(plain, *moved, strict=True)]


def grains(made: Made, dtype: torch.dtype) -> list[float]:
    """How far if the number of rows does not count: the grain of the largest number in place of
    what rounding moves.
    """
    exact, plain = evaluate(formula, made, torch.float64), evaluate(formula, made, dtype)
    grain = 64 * torch.finfo(dtype).eps
    return [2 * apart(p, e) + grain * apart(e, 0 * e) for p, e in zip(plain, exact, strict=True)]


def apart(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item() if a.numel() else 0.0


def check(
    run: Callable[..., Tensor],
    made: Made,
    dtype: torch.dtype = torch.float32,
    rule: Callable[[Made, torch.dtype], list[float]] = allowances,
) -> None:
    """Errors of the result and of all gradients are not larger than rounding explains."""
    check_all({"this": run}, made, dtype, rule)


def check_all(
    runs: dict[str, Callable[..., Tensor]],
    made: Made,
    dtype: torch.dtype = torch.float32,
    rule: Callable[[Made, torch.dtype], list[float]] = allowances,
) -> None:
    """The same of several by name: what rounding explains takes longer to find than the results."""
    exact, allowed = evaluate(formula, made, torch.float64), rule(made, dtype)
    for name, run in runs.items():
        for found, true, limit in zip(evaluate(run, made, dtype), exact, allowed, strict=True):
            assert found.shape == true.shape, name
            assert apart(found, true) <= limit, name


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


def test_every_back_end_computes_what_the_formula_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridtnp.ops.rows.LARGE", 0)
    names = [n for n in NAMES if n != "native" or not isinstance(native.library(), str)]

    @settings(max_examples=examples(100))
    @given(CHAINS)
    def every(made: Made) -> None:
        assume(well_conditioned(made))
        check_all({name: by(name) for name in names}, made)

    every()


@pytest.mark.parametrize("runnable", NAMES, indirect=True)
@pytest.mark.parametrize("seed", [0, 48, 63])
def test_norms_of_two_numbers_are_as_exact_as_rounding_lets_them(runnable: str, seed: int) -> None:
    """Their gradients nearly cancel, and what is left of them is mostly rounding."""
    kinds = ["linear", "norm", "add", "nested", "linear", "residual"]
    made = make(kinds, [2, 2, 2, 2, 2, 7, 2], 6, 1, seed)
    assert well_conditioned(made)
    check(by(runnable), made)


def wrong_eps(x: Tensor, steps: tuple[Step, ...]) -> Tensor:
    return formula(x, tuple(replace(s, eps=1e-4) if isinstance(s, Norm) else s for s in steps))


def no_bias(x: Tensor, steps: tuple[Step, ...]) -> Tensor:
    return formula(x, tuple(replace(s, bias=None) if isinstance(s, Linear) else s for s in steps))


def one_wrong_number(x: Tensor, steps: tuple[Step, ...]) -> Tensor:
    return _off(formula(x, steps))


def one_wrong_gradient(x: Tensor, steps: tuple[Step, ...]) -> Tensor:
    same = x.clone()
    if same.requires_grad:
        same.register_hook(_off)
    return formula(same, steps)


def one_row_left_out_of_a_sum(x: Tensor, steps: tuple[Step, ...]) -> Tensor:
    first, *rest = steps
    assert isinstance(first, Linear)
    alone = formula(x[:, :1], (Linear(first.weight.detach(), first.bias),))
    return formula(torch.cat([alone, formula(x[:, 1:], (first,))], 1), tuple(rest))


def _off(t: Tensor) -> Tensor:
    """By a thousandth in the number of middling size."""
    middling = t.detach().abs() == t.detach().abs().median()
    return t * (1 + 1e-3 * middling)


@pytest.mark.parametrize("n", [1, 40, 400])
@pytest.mark.parametrize(
    "wrong",
    [wrong_eps, no_bias, one_wrong_number, one_wrong_gradient, one_row_left_out_of_a_sum],
)
def test_a_mistake_is_more_than_rounding(wrong: Callable[..., Tensor], n: int) -> None:
    made = make(["linear", "norm", "linear"], [16, 16, 16, 8], n, 1, 0)
    check(formula, made)
    with pytest.raises(AssertionError):
        check(wrong, made)


def test_without_rounding_nothing_moves() -> None:
    made = make(KINDS, [5] * (len(KINDS) + 1), 7, 2, 0)
    exact = evaluate(formula, made, torch.float64)
    for found, true in zip(evaluate(inexact(0.0), made, torch.float64), exact, strict=True):
        torch.testing.assert_close(found, true, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("runnable", NAMES, indirect=True)
@pytest.mark.parametrize("n", [1000, 4000])
def test_errors_do_not_grow_with_the_number_of_rows(runnable: str, n: int) -> None:
    kinds = ["norm", "linear", "relu", "add", "linear", "residual", "norm", "linear without bias"]
    check(by(runnable), make(kinds, [64] * (len(kinds) + 1), n, 1, 0), rule=grains)


@pytest.mark.parametrize("runnable", ["recomputed", "plain"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(runnable: str, dtype: torch.dtype) -> None:
    kinds = ["norm", "linear", "add", "linear without bias", "keep"]
    check(by(runnable), make(kinds, [16] * 6, 40, 2, 0), dtype)


@pytest.mark.parametrize("size", [2, 7])
def test_double_precision_in_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridtnp.ops.rows.LARGE", 0)
    monkeypatch.setattr("gridtnp.ops.rows.ROWS", size)
    made = make(["linear", "add", "residual"], [3, 5, 5, 5], 8, 2, 0)
    check(by("recomputed"), made, torch.float64)


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
        ops.rowwise(x.double(), Linear(torch.randn(2, 4).double()), backend="native")
    with pytest.raises(ValueError, match="rowwise has no back-end 'abacus'; choose one of"):
        ops.rowwise(x, *steps, backend="abacus")


def test_c_is_preferred_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rule that `benchmarks/cases.py sizes` supports; on request it runs anyway."""
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    ran: list[str] = []

    def noting(b: ops.Backend) -> ops.Backend:
        return replace(b, run=lambda *arguments: (ran.append(b.name), b.run(*arguments))[1])

    table = tuple(noting(b) for b in ops.BACKENDS["rowwise"])
    monkeypatch.setitem(ops.BACKENDS, "rowwise", table)
    one = Linear(torch.randn(4, 4))

    def chosen(n: int, *steps: Step) -> str:
        x = torch.randn(n, 4)
        results = [ops.rowwise(x, *steps), ops.rowwise(x, *steps, backend="plain")]
        torch.testing.assert_close(*results)
        return ran[-2]

    assert chosen(native_rows.MANY, one, Relu()) == "native"
    assert chosen(native_rows.MANY - 1, one, Relu()) == "plain"
    with ops.backends("native"):
        assert chosen(3, one) == "native"
    ops.rowwise(torch.randn(3, 4), one, backend="native")
    assert ran[-1] == "native"


@pytest.mark.parametrize("n", [1, 100, 1300])
def test_gradients_are_those_of_what_is_not_kept(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit: what is kept is what would be computed again."""
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    x, rows, a, b, c = (
        torch.randn(*shape, requires_grad=True)
        for shape in ((n, 32), (n, 37), (37, 32), (32, 37), (37, 32))
    )
    weight = torch.randn(37, requires_grad=True)
    norm = Norm(weight, None, 1e-5)
    chain = (Linear(a), Add(rows), Keep(), norm, Linear(b), Relu(), Linear(c), AddKept(), Relu())

    def gradients() -> tuple[Tensor, ...]:
        y = ops.rowwise(x, *chain, backend="native")
        return y, *torch.autograd.grad(y.square().sum(), (x, rows, a, b, c, weight))

    kept = gradients()
    monkeypatch.setattr("gridtnp.ops.native_rows.KEPT", 0)
    for one, other in zip(kept, gradients(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("vectors", ["avx2", "avx512"])
def test_measurements_support_the_rule(vectors: str) -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "results" / vectors / "sizes.json"
    supported = 0
    for width, row in json.loads(path.read_text(encoding="utf-8"))["results"].items():
        for key, ratios in row.items():
            rows = int(key.rpartition("/")[-1]) if isinstance(ratios, dict) else 0
            if rows >= native_rows.MANY:
                assert min(ratios.values()) >= 1.0, (width, key)
                supported += 1
    assert supported == 24


def test_sizes_may_be_symbols_while_a_graph_is_traced() -> None:
    class Rows(torch.nn.Module):
        def forward(self, x: Tensor, rows: Tensor) -> Tensor:
            return ops.rowwise(x, Linear(torch.ones(4, 4)), Add(rows), Relu())

    x, rows = torch.randn(2, 5, 4), torch.randn(1, 5, 4)
    n = torch.export.Dim("n", min=2)
    shapes = {"x": {1: n}, "rows": {1: n}}
    graph = torch.export.export(Rows(), (x, rows), dynamic_shapes=shapes, strict=False).module()
    x, rows = torch.randn(2, 7, 4), torch.randn(1, 7, 4)
    torch.testing.assert_close(graph(x, rows), (x.sum(-1, keepdim=True) + rows).relu())


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
