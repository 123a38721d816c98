"""Guard: what is checked of every request before anything else reads it.

It refuses unknown hosts and other origins, asks for the token, reads bodies within their limits of
size and time, and adds the headers that keep browsers from running anything that is not ours.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gridtnp.server.work import RETRY_AFTER, Limits, Refused

COOKIE = "gridtnp"
BUFFERED = 8
"""Bodies of the largest size that may be held at once."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
WORDS = {
    400: "InvalidParameterValue",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "Timeout",
    409: "Conflict",
    413: "TooLarge",
    415: "UnsupportedMediaType",
    421: "MisdirectedRequest",
    429: "TooManyRequests",
}


def error_body(status: int, description: str) -> dict[str, str]:
    """An OGC exception: a code and a sentence."""
    return {"code": WORDS.get(status, "NoApplicableCode"), "description": description}


class Guard:
    """Wraps the application; `hosts` are the names it may be called by, None for any."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        token: str | None = None,
        origins: Collection[str] = (),
        hosts: Collection[str] | None = None,
    ) -> None:
        self.app, self.limits, self.token = app, limits, token
        self.origins, self.hosts = frozenset(origins), hosts
        self.buffered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no websockets
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }
        origin = headers.get("origin")
        allowed = origin if origin in self.origins else None
        answer = _with_headers(send, allowed)
        held = 0
        try:
            self._require_host(headers)
            self._require_origin(scope, headers)
            if allowed is not None and scope["method"] == "OPTIONS":
                await _send(answer, 204, b"", {})
                return
            redirect = self._require_token(scope, headers)
            if redirect is not None:
                await _send(answer, 303, b"", redirect)
                return
            body = None
            if scope["method"] in ("POST", "PUT", "PATCH", "DELETE"):
                body = await self._body(headers, receive)
                held = len(body)
            await self.app(scope, receive if body is None else _replay(body, receive), answer)
        except Refused as refused:
            await refuse(answer, refused)
        finally:
            self.buffered -= held

    # ---- who asks --------------------------------------------------------------------------------

    def _require_host(self, headers: dict[str, str]) -> None:
        """Against pages whose name is made to lead here (DNS rebinding)."""
        if self.hosts is None:
            return
        host = (
            headers.get("host", "").rsplit(":", 1)[0]
            if "]" not in headers.get("host", "")
            else (headers["host"].partition("]")[0].lstrip("["))
        )
        if host.lower() not in self.hosts:
            raise Refused(
                421, f"This server is not called {host!r}; use {sorted(self.hosts)[0]!r}."
            )

    def _require_origin(self, scope: Scope, headers: dict[str, str]) -> None:
        origin = headers.get("origin")
        own = f"{scope.get('scheme', 'http')}://{headers.get('host', '')}"
        if origin is not None and origin != own and origin not in self.origins:
            raise Refused(
                403, f"Pages of {origin!r} may not use this server; serve with --allow-origin."
            )

    def _require_token(self, scope: Scope, headers: dict[str, str]) -> dict[str, str] | None:
        """Raise without the token; a page with it in its address is redirected, with a cookie."""
        if self.token is None or scope["path"] == "/health":
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        in_address = dict(query).get("token", "")
        if self._is_token(in_address):
            if scope["path"] != "/" or scope["method"] != "GET":
                return None
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            return {"Location": f"/?{rest}" if rest else "/", "Set-Cookie": cookie}
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given.strip()):
            return None
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        if cookie is not None and self._is_token(cookie.value):
            return None
        raise Refused(
            401,
            "This server needs its token; send the header Authorization: Bearer TOKEN, or add "
            "?token=TOKEN to the address.",
            {"WWW-Authenticate": "Bearer"},
        )

    def _is_token(self, given: str) -> bool:
        assert self.token is not None
        return hmac.compare_digest(given.encode(), self.token.encode())

    # ---- bodies ----------------------------------------------------------------------------------

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes:
        """The whole body, if it is small and quick enough."""
        limits = self.limits
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(415, "Compressed bodies are not read; send it as it is.")
        too_large = Refused(
            413, f"The body is larger than {limits.body:,} bytes, which is the limit; send less."
        )
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > limits.body:
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "The body is not complete; send all of it.")
                    part = message.get("body", b"")
                    size += len(part)
                    self.buffered += len(part)
                    parts.append(part)
                    if size > limits.body:
                        raise too_large
                    if self.buffered > BUFFERED * limits.body:
                        raise Refused(
                            429,
                            f"Too many large bodies at once; try again in {RETRY_AFTER} s.",
                            {"Retry-After": RETRY_AFTER},
                        )
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            self.buffered -= size
            raise Refused(
                408,
                f"The body was not complete within {limits.body_seconds:g} s, which is the limit; "
                "send it faster.",
            ) from None
        except BaseException:
            self.buffered -= size
            raise


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body in one message, then what else comes: the end of the connection."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_headers(send: Send, origin: str | None) -> Send:
    more = dict(HEADERS)
    if origin is not None:
        more |= {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Headers": "Authorization, Content-Type",
            "Access-Control-Allow-Methods": "GET, POST, DELETE",
            "Vary": "Origin",
        }
        more["Cross-Origin-Resource-Policy"] = "cross-origin"

    async def add(message: Message) -> None:
        if message["type"] == "http.response.start":
            have = {key.lower() for key, _ in message.get("headers", ())}
            added = [
                (key.lower().encode(), value.encode("latin-1"))
                for key, value in more.items()
                if key.lower().encode() not in have
            ]
            if b"content-security-policy" not in have:
                added.append((b"content-security-policy", b"default-src 'none'"))
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return add


async def _send(send: Send, status: int, body: bytes, headers: dict[str, Any]) -> None:
    pairs = [(key.lower().encode(), str(value).encode("latin-1")) for key, value in headers.items()]
    pairs.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, refused: Refused) -> None:
    body = json.dumps(error_body(refused.status, refused.description), ensure_ascii=True).encode()
    headers = {"Content-Type": "application/json", "Connection": "close", **refused.headers}
    await _send(send, refused.status, body, headers)
