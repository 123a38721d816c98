"""Point sets, token sets and tasks: validation, masking and stacking."""

import dataclasses
import math
import re

import jaxtyping
import pytest
import torch
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gridtnp.task import PointSet, Task, TokenSet, as_before, in_order

SETTINGS = settings(max_examples=examples(60))
NOT_FINITE = [math.nan, math.inf, -math.inf]


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong types on purpose: shape checks are off, so that the library itself must speak."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def points(
    batch: int = 2, n: int = 5, dx: int = 2, dy: int | None = 1, df: int | None = None
) -> PointSet:
    y = None if dy is None else torch.randn(batch, n, dy)
    features = None if df is None else torch.randn(batch, n, df)
    return PointSet(torch.randn(batch, n, dx), y, None, features)


def mask(*rows: str) -> Tensor:
    """Masks to be read: `mask("110", "100")`."""
    return torch.tensor([[mark == "1" for mark in row] for row in rows])


def some(value: Tensor | None) -> Tensor:
    assert value is not None
    return value


# ---- points --------------------------------------------------------------------------------------


def test_a_point_set_keeps_what_it_is_given() -> None:
    x, y, features = torch.randn(2, 5, 3), torch.randn(2, 5, 1), torch.randn(2, 5, 4)
    made = PointSet(x, y, None, features)
    assert (made.batch, made.n) == (2, 5)
    assert made.x is x
    assert made.y is y
    assert made.features is features
    assert made.mask is None
    alone = PointSet(x)
    assert alone.y is None
    assert alone.features is None


def test_values_are_frozen() -> None:
    made = points()
    tokens = TokenSet(made.x, made.x)
    task = Task({"a": made}, made)
    for value, name in ((made, "x"), (made, "mask"), (tokens, "z"), (task, "target")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, None)


def test_no_points_at_all_are_a_point_set() -> None:
    made = PointSet(torch.zeros(2, 0, 3), torch.zeros(2, 0, 1), torch.ones(2, 0).bool())
    assert (made.batch, made.n) == (2, 0)


@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize("name", ["x", "y", "features"])
def test_masked_entries_may_hold_anything_and_become_zeros(name: str, bad: float) -> None:
    values = {
        "x": torch.randn(2, 3, 2),
        "y": torch.randn(2, 3, 2),
        "features": torch.randn(2, 3, 2),
    }
    values[name][0, 2, 1] = bad
    values[name][1, 1, 0] = bad
    before = {key: value.clone() for key, value in values.items()}
    used = mask("110", "100")
    made = PointSet(**values, mask=used)
    assert torch.equal(some(made.mask), used)
    for key, original in before.items():
        got = getattr(made, key)
        assert torch.equal(got[used], original[used])
        assert (got[~used] == 0).all()
        torch.testing.assert_close(values[key], original, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_masking_keeps_the_precision(dtype: torch.dtype) -> None:
    made = PointSet(torch.randn(1, 3, 2, dtype=dtype), mask=mask("101"))
    assert made.x.dtype == dtype


def test_gradients_pass_through_the_mask_and_stop_where_it_is_false() -> None:
    y = torch.tensor([[[1.0], [math.nan], [3.0]]], requires_grad=True)
    made = PointSet(torch.randn(1, 3, 2), y, mask("101"))
    (some(made.y) ** 2).sum().backward()
    assert some(y.grad).flatten().tolist() == [2.0, 0.0, 6.0]


@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize("name", ["x", "y", "features"])
@pytest.mark.parametrize("used", [None, mask("1111", "0101", "1111")], ids=["all", "masked"])
def test_what_is_not_finite_is_refused_and_the_first_is_named(
    name: str, bad: float, used: Tensor | None
) -> None:
    values = {key: torch.randn(3, 4, 2) for key in ("x", "y", "features")}
    for place in ((1, 1, 0), (1, 1, 1), (1, 3, 1), (2, 0, 0)):  # two in one point count once
        values[name][place] = bad
    message = (
        rf"^{name} is NaN or infinite at 3 points that are not masked "
        r"\(first: batch element 1, point 1\); mask or drop them\.$"
    )
    with pytest.raises(ValueError, match=message):
        PointSet(**values, mask=used)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(5, 2), (5,), (1, 2, 5, 2)])
def test_coordinates_have_a_batch_axis(shape: tuple[int, ...]) -> None:
    message = rf"x has shape {re.escape(str(shape))}, not \(batch, points, coordinates\)"
    with pytest.raises(ValueError, match=message):
        PointSet(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"leading axis of size 1: x\[None\]"):
        PointSet(torch.zeros(shape))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("dtype", [torch.float32, torch.long, torch.uint8])
def test_a_mask_is_boolean(dtype: torch.dtype) -> None:
    message = rf"The mask has dtype {dtype}; must be boolean, True for points to use"
    with pytest.raises(ValueError, match=message):
        PointSet(torch.zeros(1, 3, 2), mask=torch.ones(1, 3, dtype=dtype))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("y", (2, 4, 1)),
        ("y", (1, 5, 1)),
        ("y", (2, 5)),
        ("y", (2, 5, 1, 1)),
        ("features", (2, 4, 1)),
        ("features", (2, 5)),
        ("mask", (2, 4)),
        ("mask", (1, 5)),
        ("mask", (2, 5, 1)),
    ],
)
def test_there_is_one_row_per_point(name: str, shape: tuple[int, ...]) -> None:
    value = torch.zeros(shape, dtype=torch.bool if name == "mask" else torch.float32)
    rows = r"\(2, 5\)" if name == "mask" else r"\(2, 5, …\)"
    message = rf"{name} has shape {re.escape(str(shape))}; must have one row per point of x: {rows}"
    with pytest.raises(ValueError, match=message):
        PointSet(torch.zeros(2, 5, 3), **{name: value})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["x", "y", "features"])
@pytest.mark.parametrize("used", [None, mask("110")], ids=["all", "masked"])
def test_whole_numbers_are_refused(name: str, used: Tensor | None) -> None:
    values = {key: torch.zeros(1, 3, 2) for key in ("x", "y", "features")}
    values[name] = values[name].long()
    with pytest.raises(ValueError, match=f"{name} has dtype torch.int64; must be floating-point"):
        PointSet(**values, mask=used)


def test_to_casts_outputs_and_keeps_the_precision_of_places_and_features() -> None:
    hours = torch.full((1, 3, 1), 500_000.25, dtype=torch.float64)
    made = PointSet(hours, torch.randn(1, 3, 2), mask("101"), hours.clone())
    cast = made.to(dtype=torch.bfloat16)
    assert some(cast.y).dtype == torch.bfloat16
    assert torch.equal(some(cast.y), some(made.y).bfloat16())
    assert cast.x.dtype == some(cast.features).dtype == torch.float64
    assert torch.equal(cast.x, made.x)
    assert torch.equal(some(cast.features), some(made.features))
    assert torch.equal(some(cast.mask), some(made.mask))
    same = made.to("cpu")
    assert some(same.y).dtype == torch.float32
    assert points(dy=None).to(dtype=torch.float64).y is None


def test_to_moves_everything_to_the_device() -> None:
    made = PointSet(torch.zeros(1, 2, 1), torch.zeros(1, 2, 1), None, torch.zeros(1, 2, 1))
    task = Task({"a": made}, made).to("cpu", torch.float64)
    assert some(task.target.y).dtype == some(task.context["a"].y).dtype == torch.float64
    assert task.target.x.dtype == torch.float32
    for value in (task.target.x, task.target.y, task.target.features):
        assert some(value).device.type == "cpu"


@pytest.mark.parametrize(
    "index",
    [
        slice(1, 4),
        slice(0, 0),
        torch.tensor([4, 0, 0]),
        torch.tensor([True, False, True, True, False]),
    ],
    ids=["slice", "nothing", "index", "boolean"],
)
def test_select_takes_the_same_points_of_everything(index: Tensor | slice) -> None:
    made = dataclasses.replace(points(n=5, df=3), mask=mask("11011", "01101"))
    selected = made.select(index)
    for name in ("x", "y", "mask", "features"):
        for b in range(2):
            assert torch.equal(getattr(selected, name)[b], getattr(made, name)[b][index])
    bare = points(dy=None).select(index)
    assert bare.y is None
    assert bare.mask is None
    assert bare.features is None


def test_none_has_the_same_columns_and_no_points() -> None:
    made = points(batch=2, dx=3, dy=2, df=4).to(dtype=torch.float64)
    empty = made.none(7)
    assert (empty.batch, empty.n) == (7, 0)
    assert some(empty.y).shape == (7, 0, 2)
    assert some(empty.features).shape == (7, 0, 4)
    assert some(empty.y).dtype == torch.float64
    assert empty.x.dtype == torch.float32
    assert points(dy=None).none(1).y is None


# ---- stack ---------------------------------------------------------------------------------------


@SETTINGS
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 5), st.booleans()), min_size=1, max_size=4
    ),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_stacked_sets_hold_the_originals_and_mask_the_rest(
    sizes: list[tuple[int, int, bool]], with_features: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    sets = []
    for batch, n, masked in sizes:
        made = points(batch, n, df=2 if with_features else None)
        sets.append(dataclasses.replace(made, mask=torch.rand(batch, n) < 0.5) if masked else made)
    stacked = PointSet.stack(sets)
    assert stacked.batch == sum(batch for batch, _, _ in sizes)
    assert stacked.n == max(n for _, n, _ in sizes)
    start = 0
    for made in sets:
        rows = slice(start, start + made.batch)
        start += made.batch
        used = torch.ones(made.x.shape[:2], dtype=torch.bool) if made.mask is None else made.mask
        assert torch.equal(some(stacked.mask)[rows, : made.n], used)
        assert not some(stacked.mask)[rows, made.n :].any()
        for name in ("x", "y", "features"):
            if name == "features" and not with_features:
                assert stacked.features is None
                continue
            value = getattr(stacked, name)[rows]
            assert torch.equal(value[:, : made.n], getattr(made, name))
            assert (value[:, made.n :] == 0).all()


def test_gradients_pass_through_a_stack() -> None:
    a = torch.randn(1, 2, 1, requires_grad=True)
    b = torch.randn(2, 4, 1, requires_grad=True)
    stacked = PointSet.stack(
        [PointSet(torch.zeros(1, 2, 1), a), PointSet(torch.zeros(2, 4, 1), b, mask("1011", "0111"))]
    )
    some(stacked.y).pow(2).sum().backward()
    assert torch.equal(some(a.grad), 2 * a.detach())
    assert torch.equal(some(b.grad), 2 * b.detach() * mask("1011", "0111").unsqueeze(-1))


def test_stacking_targets_without_outputs_leaves_them_without() -> None:
    stacked = PointSet.stack([points(1, 2, dy=None), points(1, 3, dy=None)])
    assert stacked.y is None
    assert some(stacked.mask).sum(1).tolist() == [2, 3]


def test_stacking_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="No point sets to stack; at least one is needed"):
        PointSet.stack([])
    with pytest.raises(ValueError, match="No tasks to stack; at least one is needed"):
        Task.stack([])


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("x", {"dx": 2}, {"dx": 3}),
        ("y", {"dy": 1}, {"dy": 2}),
        ("y", {"dy": 1}, {"dy": None}),
        ("features", {"df": None}, {"df": 1}),
        ("features", {"df": 2}, {"df": 1}),
    ],
)
def test_stacking_different_columns_is_refused(
    name: str, first: dict[str, int | None], second: dict[str, int | None]
) -> None:
    message = rf"different numbers of columns in {name} cannot be stacked: \{{.*\}}"
    with pytest.raises(ValueError, match=message):
        PointSet.stack([points(**first), points(**second)])  # type: ignore[arg-type]


# ---- tokens --------------------------------------------------------------------------------------


def test_the_union_of_one_set_is_that_set() -> None:
    tokens = TokenSet(torch.randn(2, 3, 2), torch.randn(2, 3, 4), mask("110", "011"))
    assert TokenSet.union([tokens]) is tokens


def test_permuted_points_have_everything_in_another_order() -> None:
    made = dataclasses.replace(points(n=5, df=3), mask=mask("11011", "01101"))
    order = torch.stack([torch.tensor([4, 0, 1, 3, 2]), torch.tensor([1, 2, 3, 4, 0])])
    permuted = made.permuted(order)
    for name in ("x", "y", "mask", "features"):
        for b in range(2):
            assert torch.equal(getattr(permuted, name)[b], getattr(made, name)[b][order[b]])
    assert permuted.error is None
    assert torch.equal(permuted.select(slice(2, 3)).x[0, 0], made.x[0, 1])


def test_order_can_be_undone_and_differentiated() -> None:
    values = torch.randn(2, 5, 3, requires_grad=True)
    order = torch.rand(2, 5).argsort(1)
    back = as_before(in_order(values, order), order)
    assert torch.equal(back, values)
    weight = torch.randn(2, 5, 3)
    (grad,) = torch.autograd.grad((back * weight).sum(), values)
    assert torch.equal(grad, weight)


def test_a_union_holds_all_tokens_in_order() -> None:
    a = TokenSet(torch.randn(2, 3, 2), torch.randn(2, 3, 4))
    b = TokenSet(torch.randn(2, 1, 2), torch.randn(2, 1, 4))
    c = TokenSet(torch.randn(2, 0, 2), torch.randn(2, 0, 4))
    union = TokenSet.union([a, b, c])
    assert torch.equal(union.x, torch.cat([a.x, b.x], 1))
    assert torch.equal(union.z, torch.cat([a.z, b.z], 1))
    assert union.mask is None


@pytest.mark.parametrize("masked_first", [True, False])
def test_a_union_with_one_masked_set_uses_all_of_the_others(masked_first: bool) -> None:
    a = TokenSet(torch.randn(2, 3, 2), torch.randn(2, 3, 4), mask("010", "110"))
    b = TokenSet(torch.randn(2, 2, 2), torch.randn(2, 2, 4))
    union = TokenSet.union([a, b] if masked_first else [b, a])
    expected = mask("01011", "11011") if masked_first else mask("11010", "11110")
    assert torch.equal(some(union.mask), expected)
    assert torch.equal(union.z[:, 0], (a if masked_first else b).z[:, 0])


def test_a_union_of_masked_sets_joins_their_masks() -> None:
    a = TokenSet(torch.randn(1, 2, 2), torch.randn(1, 2, 4), mask("01"))
    b = TokenSet(torch.randn(1, 2, 2), torch.randn(1, 2, 4), mask("10"))
    assert torch.equal(some(TokenSet.union([a, b]).mask), mask("0110"))


# ---- tasks ---------------------------------------------------------------------------------------


def test_a_task_may_have_no_source_and_targets_without_outputs() -> None:
    task = Task({}, points(dy=None))
    assert not task.context
    assert Task.stack([task, task]).target.batch == 4


def test_sources_may_differ_in_number_of_points_and_columns() -> None:
    task = Task({"a": points(n=3, dy=1), "b": points(n=0, dy=4)}, points(n=7))
    assert task.context["b"].n == 0


def test_a_source_without_outputs_is_refused() -> None:
    with pytest.raises(ValueError, match="Source 'b' has no values y, which a context needs"):
        Task({"a": points(), "b": points(dy=None)}, points())


def test_batch_sizes_must_agree() -> None:
    message = "Source 'b' has batch size 3, but the target has 2"
    with pytest.raises(ValueError, match=message):
        Task({"a": points(), "b": points(batch=3)}, points())


def test_coordinates_must_agree() -> None:
    message = "Source 'a' has 2 coordinates, but the target has 3"
    with pytest.raises(ValueError, match=message):
        Task({"a": points()}, points(dx=3))


def test_at_keeps_the_context_and_checks_the_new_targets() -> None:
    task = Task({"a": points()}, points())
    target = points(n=9, dy=None)
    other = task.at(target)
    assert other.target is target
    assert other.context is task.context
    with pytest.raises(ValueError, match="Source 'a' has batch size 2, but the target has 3"):
        task.at(points(batch=3))


def test_a_source_that_a_task_lacks_is_empty_there() -> None:
    a1, b1, a2, c3 = points(1, 3), points(1, 2, dy=2, df=1), points(2, 4), points(1, 1)
    tasks = [
        Task({"a": a1, "b": b1}, points(1, 2)),
        Task({"a": a2}, points(2, 6)),
        Task({"c": c3}, points(1, 0)),
    ]
    stacked = Task.stack(tasks)
    assert set(stacked.context) == {"a", "b", "c"}
    assert stacked.target.batch == 4
    assert some(stacked.target.mask).sum(1).tolist() == [2, 6, 6, 0]
    counts = {name: some(s.mask).sum(1).tolist() for name, s in stacked.context.items()}
    assert counts == {"a": [3, 4, 4, 0], "b": [2, 0, 0, 0], "c": [0, 0, 0, 1]}
    b = stacked.context["b"]
    assert torch.equal(b.x[0], b1.x[0])
    assert torch.equal(some(b.y)[0], some(b1.y)[0])
    assert torch.equal(some(b.features)[0], some(b1.features)[0])
    assert torch.equal(some(stacked.context["a"].y)[1:3], some(a2.y))
    assert torch.equal(some(stacked.context["c"].y)[3], some(c3.y)[0])


def test_the_order_of_sources_does_not_matter() -> None:
    """Defect 12."""
    a, b, target = points(), points(n=3, dy=2), points()
    one = Task.stack([Task({"a": a, "b": b}, target), Task({"b": b, "a": a}, target)])
    for name, made in (("a", a), ("b", b)):
        assert torch.equal(some(one.context[name].y), some(made.y).repeat(2, 1, 1))


def test_joining_no_sets_of_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="No token sets to join; at least one is needed"):
        TokenSet.union([])
