"""The C back-end: where it runs, and that its results do not depend on the number of threads."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gridtnp import ops, processor
from gridtnp.ops import native
from gridtnp.ops.rows import Linear, Relu


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


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder, and a library without a file in C that takes long to compile."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "small.c"
    source.write_text("int answer(void) { return 42; }")
    monkeypatch.setattr(native, "SOURCES", [source])
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler")
    return tmp_path / "gridtnp"


def answer() -> int:
    """From the library, as a new process would find it."""
    found = native.library.__wrapped__()
    assert not isinstance(found, str), found
    return found.answer()


def test_a_missing_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.shutil, "which", lambda _: None)
    assert native.library.__wrapped__() == "there is no C compiler"


def test_a_failing_compiler_is_a_reason_and_reported_with_its_last_line(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(native.shutil, "which", lambda _: "/bin/false")
    reason = "/bin/false cannot compile the files in C \\(exit status 1\\)"
    with pytest.warns(UserWarning, match=f"PyTorch computes what C would do faster: {reason}"):
        assert str(native.library.__wrapped__()).startswith("/bin/false cannot compile")
    failing = cache.parent / "failing"
    failing.write_text("#!/bin/sh\necho first >&2\necho no such instruction >&2\nexit 1\n")
    failing.chmod(0o700)
    monkeypatch.setattr(native.shutil, "which", lambda _: str(failing))
    with pytest.warns(UserWarning, match=r"cannot compile the files in C \(no such instruction\)"):
        native.library.__wrapped__()
    assert not list(cache.rglob("*.so"))


@pytest.mark.parametrize("damage", ["cut short", "empty", "a flipped byte"])
def test_a_damaged_library_is_found_out_and_built_anew(cache: Path, damage: str) -> None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    path = native._built(compiler, [*native.FLAGS, "-fopenmp"])
    good = path.read_bytes()
    bad = {"cut short": good[: len(good) // 2], "empty": b""}.get(damage)
    path.write_bytes(bytes([good[0] ^ 1]) + good[1:] if bad is None else bad)
    assert answer() == 42
    (path,) = cache.glob("*.so")
    assert len(path.read_bytes()) == len(good)


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_library_that_others_could_have_written_is_built_anew(cache: Path, mode: int) -> None:
    assert answer() == 42
    (path,) = cache.glob("*.so")
    before = path.stat().st_ino
    path.chmod(mode)
    keep = path.open("rb")  # so that the number of the file is not given away again
    assert answer() == 42
    (path,) = cache.glob("*.so")
    assert path.stat().st_ino != before
    assert path.stat().st_mode & 0o777 == 0o700
    keep.close()


def test_a_library_of_another_user_is_not_loaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer() == 42
    (path,) = cache.glob("*.so")
    assert not processor.others_may_write(path)
    own = os.getuid()
    monkeypatch.setattr(processor.os, "getuid", lambda: own + 1)
    assert processor.others_may_write(path) == (own != 0)  # files of root are fine for everyone


def test_a_cache_folder_that_others_can_write_is_closed(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    processor._private.cache_clear()
    assert answer() == 42
    assert cache.stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("obstacle", ["a file in its place", "of another user", "no home"])
def test_without_a_cache_folder_a_temporary_one_is_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    processor._private.cache_clear()
    if obstacle == "a file in its place":
        cache.write_text("")
    elif obstacle == "of another user":
        cache.mkdir()
        monkeypatch.setattr(processor, "others_may_write", lambda path: path == cache)
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(processor.Path, "home", none)
    with pytest.warns(UserWarning, match="compiled in every process.*; set XDG_CACHE_HOME to a fo"):
        assert answer() == 42
    folder = processor.cache_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.glob("*.so"))
    assert answer() == 42  # found there, and reported once
    processor._private.cache_clear()


X86 = "processor : 0\nmodel : 1\nmodel name : X\nflags : fpu avx2\ncpu MHz : {}\n"
ARM = (
    "processor : 0\nBogoMIPS : {}\nFeatures : fp asimd {}\nCPU implementer : 0x41\nCPU part : {}\n"
)


def test_the_description_of_a_processor_has_all_that_code_depends_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def described(cpuinfo: str) -> str:
        monkeypatch.setattr(processor.Path, "read_text", lambda _: cpuinfo)
        return processor.description()

    assert described(X86.format(2000)) == described(X86.format(3000))
    assert described(X86) != described(X86.replace("avx2", "avx512f"))
    assert described(X86) != described(X86.replace("model : 1", "model : 2"))
    arm = ARM.format(1, "sve", "0xd40")
    assert described(arm) == described(ARM.format(2, "sve", "0xd40"))
    assert described(arm) != described(ARM.format(1, "", "0xd40"))
    assert described(arm) != described(ARM.format(1, "sve", "0xd4f"))
    small = arm + ARM.format(1, "sve", "0xd05")
    assert described(small) not in (described(arm), described(ARM.format(1, "sve", "0xd05")))


@pytest.mark.parametrize("op", ["cell", "neighbour", "window", "full", "rows"])
@pytest.mark.parametrize("order", ["sorted", "shuffled", "reversed"])
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_results_do_not_depend_on_the_number_of_threads(op: str, order: str, threads: int) -> None:
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    torch.manual_seed(0)
    tokens = torch.randn(2, 1024, 3, 4, 8, requires_grad=True)
    near = torch.randint(0, 16, (2, 1024, 3)).sort(1, descending=order == "reversed").values
    if order == "shuffled":
        near = near[:, torch.randperm(1024)]
    valid = torch.rand(2, 1024, 3) < 0.8
    linear, bias = (torch.randn(*s, requires_grad=True) for s in ((5, 32), (4, 16, 16)))

    def run() -> list[torch.Tensor]:
        query, key, value = tokens.unbind(2)
        if op == "cell":
            own = (torch.zeros(1, 16, 4), torch.zeros(1, 16, 4, 8))
            given = (query[:, :16], key, value, *own, near, valid)
            out = ops.cell_attention(*given, backend="native")[0]
        elif op == "neighbour":
            out = ops.neighbour_attention(query, key, value, near, valid, backend="native")
        elif op == "full":
            out = ops.full_attention(query, key, value, valid[..., 0], backend="native")
        elif op == "rows":
            out = ops.rowwise(query.flatten(2), Linear(linear), backend="native")
        else:
            q, k, v = (t.unflatten(1, (32, 32)) for t in (query, key, value))
            layout = ((4, 4), (2, 2), (False, False))
            out = ops.window_attention(q, k, v, *layout, bias, backend="native")
        leaves = (tokens, linear, bias)
        gradients = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
        return [out.detach(), *(g for g in gradients if g is not None)]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = run()
        torch.set_num_threads(threads)
        several = run()
    finally:
        torch.set_num_threads(before)
    for a, b in zip(one, several, strict=True):
        assert torch.equal(a, b)


THREADS = """
import os, torch
from gridtnp import ops
from gridtnp.ops import native
from gridtnp.ops.rows import Linear

x = torch.randn(1, 512, 2, 8, requires_grad=True)
index = torch.arange(512).view(1, 512, 1)
grid, weight = (1, 8, 64, 2, 8), torch.randn(4, 16)
ops_of_c = {
    "neighbour": lambda: ops.neighbour_attention(x, x, x, index, backend="native"),
    "cell": lambda: ops.cell_attention(x, x, x, x[..., 0], x, index, backend="native")[0],
    "window": lambda: ops.window_attention(
        *[x.view(grid)] * 3, (4, 4), (0, 0), (False, False), backend="native"
    ),
    "rows": lambda: ops.rowwise(x.flatten(2), Linear(weight), backend="native"),
    "full": lambda: ops.full_attention(x, x, x, backend="native"),
}

def threads(count, call):
    torch.get_num_threads = lambda: count
    found = call()
    return found, len(os.listdir("/proc/self/task"))

for name, run in ops_of_c.items():
    if not os.fork():  # threads of one op do not count for the next
        _, one = threads(1, run)
        out, three = threads(3, run)
        _, six = threads(6, lambda: torch.autograd.grad(out.sum(), x))
        print(name, one, three, six, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads cannot be counted here")
def test_as_many_threads_run_as_pytorch_has() -> None:
    """Forwards and backwards, whatever OpenMP would use."""
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", THREADS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, *_ in lines] == ["neighbour", "cell", "window", "rows", "full"]
    for name, *numbers in lines:
        one, three, six = map(int, numbers)
        assert (three, six) == (one + 2, one + 5), name


def test_full_attention_with_large_heads_is_left_to_pytorch() -> None:
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    for size, name in ((32, "native"), (33, "sdpa")):
        x = torch.randn(1, 6, 2, size)
        found = ops.full_attention(x, x, x)
        assert torch.equal(found, ops.full_attention(x, x, x, backend=name))


def test_another_default_device_changes_nothing() -> None:
    """What is computed on the CPU stays there."""
    query, key, value, index = arguments()

    def attended() -> tuple[torch.Tensor, ...]:
        with ops.backends("native"):
            near = ops.neighbour_attention(query, key, value, index)
            return near, ops.full_attention(query, key, value)

    before = attended()
    with torch.device("meta"):
        after = attended()
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_indices_that_were_changed_are_noticed_in_the_backward_pass() -> None:
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    z, weight = torch.randn(1, 6, 4, requires_grad=True), torch.ones(1, 6, 2)
    cell = torch.zeros(1, 6, 2, dtype=torch.int64)
    y = ops.cell_sum(z, cell, weight, 3, backend="native")
    cell.fill_(10**9)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


AT_THE_END_OF_MEMORY = """
import ctypes, mmap, torch
from gridtnp import ops
from gridtnp.ops.rows import Linear

page, rows, out = mmap.PAGESIZE, 12, int({out})
memory = mmap.mmap(-1, 16 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + 15 * page), page, 0) == 0
offset = 15 * page - 4 * rows * out
grad = torch.frombuffer(memory, dtype=torch.float32, count=rows * out, offset=offset)
grad = grad.view(rows, out).fill_(1)
x, weight = torch.randn(rows, 8), torch.randn(out, 8, requires_grad=True)
ops.rowwise(x, Linear(weight), backend="native").backward(grad)
torch.testing.assert_close(weight.grad, grad.T @ x)
"""


@pytest.mark.parametrize("out", [16, 64])
def test_nothing_is_read_beyond_the_gradient(out: int) -> None:
    """Which may lie at the end of the memory that a process has."""
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    if sys.platform != "linux":
        pytest.skip("memory is protected in another way than on Linux")
    code = AT_THE_END_OF_MEMORY.format(out=out)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_derivatives_are_prepared_only_where_they_are_needed() -> None:
    """What PyTorch does for them takes as long as the rest of an op on small data."""
    if isinstance(native.library(), str):
        pytest.skip(str(native.library()))
    x, weight = torch.randn(5, 4), torch.randn(3, 4, requires_grad=True)
    made: list[str] = []

    class Noting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore
            made.append(type(ctx).__name__)
            native.save(ctx, torch.clone, (x,))
            return x.clone()

    with torch.no_grad():
        assert native.apply(Noting, x) is not x
    native.apply(Noting, x)
    assert made == ["_Unsaved", "NotingBackward"]
    steps = (Linear(weight), Relu())
    with torch.no_grad():
        assert not ops.rowwise(x, *steps, backend="native").requires_grad
    (grad,) = torch.autograd.grad(ops.rowwise(x, *steps, backend="native").sum(), weight)
    (plain,) = torch.autograd.grad(ops.rowwise(x, *steps, backend="plain").sum(), weight)
    torch.testing.assert_close(grad, plain)
