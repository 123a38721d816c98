"""schemathesis against our OpenAPI: requests that fit the description and requests that do not."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from exploring import examples
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import schemas  # noqa: F401, loaded before any thread runs
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serving import Server

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
TRIES = settings(max_examples=examples(4), suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_request_is_an_error_of_the_server(server: Server, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{server.address}openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 15
    for operation in operations:

        @TRIES
        @given(case=operation.as_strategy(generation_mode=mode))
        def attack(case: Any) -> None:
            case.call_and_validate(base_url=server.address.rstrip("/"), checks=CHECKS)

        with suppress(Unsatisfiable):  # nothing about it can be wrong
            attack()
    server.wait(lambda: server.ask("/health").json["running"] == 0)
    assert server.ask("/health").status == 200
