"""Shape annotations are checked where `--check-shapes` is given:

Every tensor that goes into or out of a function.
"""

import pytest
import torch


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
