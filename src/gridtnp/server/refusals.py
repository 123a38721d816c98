"""Errors as answers: a 4xx status, a code and one sentence."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from gridtnp.server.guard import error_body
from gridtnp.server.work import Abandoned, Refused

GONE = 499
"""Status of a request whose client has left; nobody receives it."""


def handle_errors(app: FastAPI) -> None:
    """Answer every error that the library raises for wrong requests."""

    def failure(status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
        return JSONResponse(error_body(status, text), status, headers)

    @app.exception_handler(Refused)
    async def _refused(_: Request, error: Refused) -> Response:
        return failure(error.status, error.description, error.headers)

    @app.exception_handler(Abandoned)
    async def _abandoned(_: Request, __: Abandoned) -> Response:
        return Response(status_code=GONE)

    async def _invalid(_: Request, error: Exception) -> Response:
        return failure(400, " ".join(str(error).split())[:1000])

    for kind in (ValueError, TypeError, OverflowError):  # what the library raises for wrong data
        app.add_exception_handler(kind, _invalid)

    @app.exception_handler(RequestValidationError)
    async def _wrong(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:])
        if first["type"] == "missing":
            return failure(400, f"The parameter {name!r} is missing; give it.")
        return failure(400, f"{name}={str(first.get('input'))[:60]!r}: {first['msg']}.")

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        texts = {
            404: f"There is nothing at {request.url.path[:100]!r}; see /openapi.json.",
            405: f"{request.method} is not for {request.url.path[:100]!r}; see /openapi.json.",
        }
        text = texts.get(error.status_code, str(error.detail))
        return failure(error.status_code, text, dict(error.headers or {}))
