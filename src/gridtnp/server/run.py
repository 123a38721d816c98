"""Running the server: a socket, a process, and its address."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from gridtnp.errors import require_installed
from gridtnp.server.work import Limits

SWITCH = 0.001
"""Seconds after which a thread gives way; the event loop waits no longer for those that compute."""
LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})


def require_server() -> None:
    """Raise unless all packages of the server are installed."""
    for module in ("fastapi", "uvicorn", "edr_pydantic", "covjson_pydantic"):
        require_installed(module, "serve", "The server")
    require_installed("jinja2", "report", "The live page")


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens, or one sentence on why there is none."""
    if not 0 <= port <= 65535:
        raise ValueError(f"port={port}: must be from 0 (any free port) to 65535.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(2048)
    except (OSError, UnicodeError) as error:
        made.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise OSError(
                f"Port {port} of {host} is in use; pass port=0 for any free port."
            ) from None
        raise OSError(f"Cannot serve on {host!r}, port {port} ({error}).") from None
    return made


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def serve(
    served: object,
    listening: socket.socket,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    origins: Sequence[str] = (),
    report: Path | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until Ctrl-C. Only local names lead to a server on this machine's own address."""
    import uvicorn

    from gridtnp.server.app import create_app
    from gridtnp.server.connections import configure
    from gridtnp.server.served import Served

    assert isinstance(served, Served)
    limits = limits or Limits()
    torch.set_num_threads(1)  # predictions run beside each other instead
    sys.setswitchinterval(SWITCH)
    hosts = LOCAL if listening.getsockname()[0] in LOCAL else None
    app = create_app(served, limits, token=token, origins=origins, hosts=hosts, report=report)
    ready()
    uvicorn.Server(configure(app, limits)).run(sockets=[listening])
