"""Connections: how uvicorn runs the application, and how long a client may take to ask.

Bodies are watched by the guard; what comes before them, by the connection itself. Otherwise a few
hundred clients that say nothing would take all connections for ever.
"""

from __future__ import annotations

import asyncio

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from gridtnp.server.work import Limits


class Connection(H11Protocol):
    """Closes if the head of a request is not complete after `seconds`."""

    seconds: float
    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the clock when a client begins to ask, and stop it when it has."""
        asking = self.cycle is None or self.cycle.response_complete
        if not asking:
            self._forget()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(self.seconds, self.transport.close)

    def _forget(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


def configure(app: FastAPI, limits: Limits) -> uvicorn.Config:
    """How uvicorn runs the application within these limits."""
    return uvicorn.Config(
        app,
        http=type("Connection", (Connection,), {"seconds": limits.head_seconds}),
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
