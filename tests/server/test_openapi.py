"""schemathesis against our OpenAPI: thousands of made-up requests, none of which breaks the server."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from serving import Server, running, served

schemathesis = pytest.importorskip("schemathesis")


@pytest.mark.slow
def test_no_request_that_fits_or_breaks_the_description_is_an_error() -> None:
    from schemathesis import Case
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]
    with running(served()) as server:
        schema = schemathesis.openapi.from_url(f"{server.address}openapi.json")
        operations = [result.ok() for result in schema.get_all_operations()]
        assert len(operations) >= 15
        for operation in operations:

            @settings(
                max_examples=15,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            def attack(case: Case) -> None:
                case.call_and_validate(base_url=server.address.rstrip("/"), checks=checks)

            operation.as_strategy()
            schemathesis.hypothesis_given(operation)(attack)() if hasattr(
                schemathesis, "hypothesis_given"
            ) else _given(operation, attack)
        alive(server)


def _given(operation: object, attack: object) -> None:
    from hypothesis import given

    given(case=operation.as_strategy())(attack)()  # type: ignore[attr-defined, arg-type]


def alive(server: Server) -> None:
    server.wait(lambda: server.ask("/health").json["running"] == 0)
    assert server.ask("/health").status == 200
