"""The description of the server for machines: its parameters, answers and refusals."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query
from pydantic import BaseModel

from gridtnp.server.coverages import MEDIA
from gridtnp.server.queries import Format

Coords = Annotated[str, Query(description="Well-known text of longitudes and latitudes.")]
Datetime = Annotated[
    str | None, Query(description="An instant, or an interval: 1996-01-01/1996-06-30, ../1996.")
]
ParameterName = Annotated[
    str | None, Query(alias="parameter-name", description="Columns, separated by commas.")
]
Ignored = Annotated[str | None, Query()]
F = Annotated[Format, Query(description="Format of the answer.")]


class Failure(BaseModel):
    """What went wrong, in one sentence."""

    code: str
    description: str


class Health(BaseModel):
    """Whether the server answers, and what it is doing."""

    status: str
    running: int
    waiting: int
    jobs: int


class JobStatus(BaseModel):
    """The state of a job."""

    id: str
    status: str
    progress: int
    message: str
    notes: list[str]
    links: list[dict[str, str]]


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Failure, "description": text}
    for status, text in {
        400: "Wrong parameters.",
        401: "No token.",
        403: "Another origin.",
        404: "Not found.",
        405: "Another method.",
        408: "Too slow.",
        413: "Too large.",
        415: "Compressed body.",
        421: "Another host.",
        429: "Too busy.",
    }.items()
}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Predictions.",
        "content": {kind.partition(";")[0]: {} for kind in MEDIA.values()},
    },
    202: {"model": JobStatus, "description": "A job; its address is in the header Location."},
    **REFUSALS,
}


def json_body(kind: type[BaseModel]) -> dict[str, Any]:
    schema = kind.model_json_schema()
    for own in schema.pop("$defs", {}).values():  # the only one: the grid
        schema["properties"]["grid"]["anyOf"][0] = own
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe(app: FastAPI) -> None:
    """Leave FastAPI's own error 422 out of the description: wrong parameters are a 400 here."""
    made = app.openapi

    def described() -> dict[str, Any]:
        found = made()
        for path in found["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            found["components"]["schemas"].pop(name, None)
        return found

    app.openapi = described
