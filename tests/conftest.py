"""How tests are run: which examples hypothesis tries, and whether shapes are checked.

Where products in bfloat16 would end Python, oneDNN is told to do without AMX.

Where `--check-shapes` is given, every tensor that goes into or out of a function is checked against
its annotation. `--hypothesis-profile` says which examples are tried. `same`, the default, has the
same ones for everyone, so that a commit passes everywhere or nowhere; `explore` has fresh ones and
ten times as many. Neither asks how long anything takes.
"""

import os

import pytest
from exploring import USUAL
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from gridtnp import processor

# Before torch is there, and in all processes that this one starts, those of xdist among them.
os.environ.update(processor.safe_settings())

import torch

TIMELESS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile(
    "same", derandomize=True, database=None, max_examples=USUAL, print_blob=False, **TIMELESS
)
settings.register_profile(
    "explore", derandomize=False, max_examples=10 * USUAL, print_blob=True, **TIMELESS
)
settings.load_profile("same")

# Some of the numbers tried are found in the sources of those modules that happen to be loaded, so
# that they would depend on which tests ran before.
numbers_in_sources = providers._get_local_constants
providers._get_local_constants = lambda: (
    providers.Constants() if settings.default.derandomize else numbers_in_sources()
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--check-shapes", action="store_true", help="check all annotated shapes while testing"
    )


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # the tensors of tests are small
    if config.getoption("--check-shapes"):
        from jaxtyping import install_import_hook

        install_import_hook("gridtnp", "shapes.check")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
