"""One server for all tests of this folder."""

from collections.abc import Iterator

import pytest
from serving import Server, running, served


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running(served()) as found:
        yield found
