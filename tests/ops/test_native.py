"""The C back-end: where it runs, and that its results do not depend on the number of threads."""

import shutil
from pathlib import Path

import pytest
import torch

from gridtnp import ops
from gridtnp.ops import native


def test_where_there_is_a_compiler_there_is_a_library() -> None:
    """Otherwise all tests of what is written in C would be left out and nobody would notice."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler")
    assert not isinstance(native.library(), str), native.library()


def arguments() -> tuple[torch.Tensor, ...]:
    query, key, value = (torch.randn(2, 30, 4, 8) for _ in range(3))
    return query, key, value, torch.randint(0, 30, (2, 30, 5))


def test_it_runs_in_single_precision_only() -> None:
    query, key, value, index = arguments()
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    assert native.why_not(query, key, value) is None
    assert (
        native.why_not(query.double(), key, value) == "it computes on the CPU in single precision"
    )
    with pytest.raises(
        ValueError, match="'native' cannot run neighbour_attention here: it computes"
    ):
        ops.neighbour_attention(
            query.double(), key.double(), value.double(), index, backend="native"
        )


def test_without_a_compiler_the_other_back_ends_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value, index = arguments()
    before = ops.neighbour_attention(query, key, value, index)
    monkeypatch.setattr(native, "library", lambda: "there is no C compiler")
    after = ops.neighbour_attention(query, key, value, index)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="cannot run neighbour_attention here: there is no C comp"):
        ops.neighbour_attention(query, key, value, index, backend="native")


def test_a_missing_or_failing_compiler_is_a_reason_not_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native.shutil, "which", lambda _: None)
    assert native.library.__wrapped__() == "there is no C compiler"
    monkeypatch.setattr(native.shutil, "which", lambda _: "/bin/false")
    assert native.library.__wrapped__() == "/bin/false cannot compile the files in C"
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize("op", ["cell", "neighbour", "window"])
@pytest.mark.parametrize("order", ["sorted", "shuffled", "reversed"])
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_any_number_of_threads_agrees(op: str, order: str, threads: int) -> None:
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    torch.manual_seed(0)
    tokens = torch.randn(2, 16, 3, 4, 8, requires_grad=True)
    near = torch.randint(0, 16, (2, 16, 3)).sort(1, descending=order == "reversed").values
    if order == "shuffled":
        near = near[:, torch.randperm(16)]
    valid = torch.rand(2, 16, 3) < 0.8

    def run() -> list[torch.Tensor]:
        query, key, value = tokens.unbind(2)
        if op == "cell":
            own = (torch.zeros(1, 16, 4), torch.zeros(1, 16, 4, 8))
            out = ops.cell_attention(query, key, value, *own, near, valid, backend="native")[0]
        elif op == "neighbour":
            out = ops.neighbour_attention(query, key, value, near, valid, backend="native")
        else:
            q, k, v = (t.unflatten(1, (4, 4)) for t in (query, key, value))
            out = ops.window_attention(q, k, v, (2, 2), (1, 1), (False, False), backend="native")
        (gradient,) = torch.autograd.grad(out.square().sum(), tokens)
        return [out.detach(), gradient]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = run()
        torch.set_num_threads(threads)
        several = run()
    finally:
        torch.set_num_threads(before)
    for a, b in zip(one, several, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=2e-6)
