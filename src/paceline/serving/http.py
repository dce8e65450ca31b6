"""HTTP below the routes: bodies with limits, errors, server-sent events, keys, disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.errors import (
    BadLogits,
    InvalidOption,
    OutOfMemory,
    PacelineError,
    PromptError,
    RuntimeUnavailable,
)
from paceline.serving.admission import Busy, Closed
from paceline.serving.protocol import FIELDS, BadRequest
from paceline.serving.worker import ShutDown, SlowReader

PING = b": ping\n\n"
"""A comment, which keeps proxies from closing a silent stream."""

_MOST_TOLD = 50  # names in a header, of which clients take 8 KiB or so

T = TypeVar("T")
_ENCODE = msgspec.json.Encoder().encode


class Gone(Exception):
    """The client has closed the connection: its answer has no reader."""


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(_ENCODE(content), status, dict(headers or {}), media_type="application/json")


def error_body(
    message: str, status: int, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return an error in OpenAI's shape."""
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def status_of(error: PacelineError) -> tuple[int, str | None]:
    """Return the HTTP status of an error, and the field that it is about."""
    if isinstance(error, BadRequest):
        return error.status, error.param
    if isinstance(error, Busy):
        return 429, None
    if isinstance(error, Closed | ShutDown | OutOfMemory):
        return 503, None
    if isinstance(error, SlowReader):
        return 408, None
    if isinstance(error, PromptError | InvalidOption | BadLogits | RuntimeUnavailable):
        return 400, _named(str(error))
    return 500, None


def _named(message: str) -> str | None:
    # Messages about a field begin with it, or are about the prompt.
    first = message.split(" ", 1)[0].rstrip(":")
    if re.split(r"\W", first)[0] in FIELDS:
        return first
    return {"max_new_tokens": "max_tokens", "the": "prompt"}.get(first)


def error_response(error: PacelineError) -> Response:
    status, param = status_of(error)
    headers = {"retry-after": "1"} if status in (429, 503) else None
    code = getattr(error, "code", None)
    return json_response(error_body(str(error), status, param, code), status, headers)


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """Return a request's body; BadRequest (413, 408) if it is too large or takes too long."""
    large = BadRequest(f"the body is larger than {limit} bytes: send less", status=413)
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise large
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise large
                parts.append(part)
    except TimeoutError as error:
        raise BadRequest(
            f"the body did not arrive in {seconds:g} s: send it faster", status=408
        ) from error
    except ClientDisconnect as error:
        raise Gone from error
    return b"".join(parts)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, or cancel it and raise Gone once the client has closed the connection."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait((task, gone))


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events, until they end or the client has gone."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        close: Callable[[], None],
    ) -> None:
        """`close` is called at the end, whatever that is."""
        self._events = events
        self._close = close
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(Gone):
                await unless_gone(receive, self._send(send))
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            async for body in self._events:
                await send(_part(body))
            await send(_part(b"", more=False))
        finally:
            await self._events.aclose()


def _part(body: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def sse(contents: Iterable[Any], named: bool = False) -> bytes:
    """Return events as bytes; `named` ones carry their "type" as the event's name."""
    out = []
    for content in contents:
        name = f"event: {content['type']}\n".encode() if named else b""
        out.append(name + b"data: " + _ENCODE(content) + b"\n\n")
    return b"".join(out)


def header_value(text: str) -> str:
    """Return `text` with "?" for all that may not stand in a header or a log."""
    return re.sub(r"[^\x21-\x7e]", "?", text[:100])


def ignoring(names: Sequence[str]) -> dict[str, str]:
    """Return headers that name what a request holds and the answer does not heed."""
    # An empty name would leave a blank at the end, for which h11 closes the connection.
    told = [header_value(name) or "?" for name in names]
    if len(told) > _MOST_TOLD:
        told[_MOST_TOLD:] = [f"and-{len(told) - _MOST_TOLD}-more"]
    return {"x-paceline-ignored": ", ".join(told)} if told else {}


class Keys:
    """Middleware that asks for an API key on every route but /health and the page."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        free = scope["type"] != "http" or scope["path"] in ("/health", "/") or not self._keys
        if free or self._known(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        body = error_body("the API key is missing or wrong: send Authorization: Bearer KEY", 401)
        response = json_response(body, 401, {"www-authenticate": "Bearer"})
        await response(scope, receive, send)

    def _known(self, headers: Headers) -> bool:
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip().encode("utf-8", "replace") if kind.lower() == "bearer" else b""
        # Every key is compared, in constant time, so that time tells nothing.
        return sum(hmac.compare_digest(given, key) for key in self._keys) > 0
