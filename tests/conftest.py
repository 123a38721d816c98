"""Test configuration: hypothesis profiles, shape checks, and safe bfloat16 products.

With `--check-shapes`, annotated shapes are checked in every call, which takes twice as long; tests
of parts with such annotations are marked `checked`, for a run with these checks of their own.
`--hypothesis-profile same`, the default, is derandomised, so that a commit passes everywhere or
nowhere; `explore` draws fresh examples, twenty times as many. Neither has deadlines.
`--sanitized` compiles the C files with checks of addresses and of undefined behaviour;
`make test-sanitized` loads their runtime. `--vectors` forces the width of vectors in C, whatever
the processor's. Where bfloat16 products would crash, oneDNN is told to do without AMX.
"""

import os

import pytest
from exploring import USUAL
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from gridtnp import processor

# Before torch is imported; child processes, those of xdist among them, inherit it.
os.environ.update(processor.safe_settings())

import torch

TIMELESS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile(
    "same",
    derandomize=True,
    database=None,
    max_examples=USUAL // 2,
    print_blob=False,
    **TIMELESS,
)
settings.register_profile(
    "explore", derandomize=False, max_examples=10 * USUAL, print_blob=True, **TIMELESS
)
settings.load_profile("same")

# hypothesis draws constants from the source of loaded modules, which depend on the tests that ran
# before; a derandomised run must not.
numbers_in_sources = providers._get_local_constants
providers._get_local_constants = lambda: (
    providers.Constants() if settings.default.derandomize else numbers_in_sources()
)


CHECKED = {
    *("amortised", "distributions", "kriging", "network", "ops", "synthetic", "tasks"),
    *("test_contracts.py", "test_golden.py", "test_grid.py", "test_task.py"),
}
"""Folders and files with the tests of annotated parts."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(config.rootpath / "tests").parts[0] in CHECKED:
            item.add_marker("checked")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--check-shapes", action="store_true", help="check all annotated shapes while testing"
    )
    parser.addoption("--vectors", choices=["128", "256", "512"], help="bits of vectors in C")
    parser.addoption("--sanitized", action="store_true", help="compile the C files with sanitizers")


SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # the tensors of tests are small
    if config.getoption("--sanitized"):
        from gridtnp.ops import native

        native.FLAGS += [*SANITIZED, "-g"]
    if config.getoption("--vectors"):
        from gridtnp.ops import native

        native.FLAGS += [f"-DVECTOR_BITS={config.getoption('--vectors')}"]
    if config.getoption("--check-shapes"):
        from jaxtyping import install_import_hook
        from shapes import annotated_modules

        install_import_hook(annotated_modules(), "shapes.check")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
