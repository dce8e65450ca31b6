"""HTTP below the routes: bodies with limits, errors, server-sent events, keys, disconnects."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import hmac
import re
import zlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.errors import (
    BadLogits,
    ContextExceeded,
    InvalidOption,
    OutOfMemory,
    PacelineError,
    PromptError,
    RuntimeUnavailable,
)
from paceline.serving.admission import Busy, Closed
from paceline.serving.protocol import FIELDS, TOO_LONG, BadRequest
from paceline.serving.worker import ShutDown, SlowReader

PING = b": ping\n\n"
"""A comment, which keeps proxies from closing a silent stream."""

_KEY = "openai-insecure-api-key."
_MOST_TOLD = 50  # names in a header, of which clients take 8 KiB or so

T = TypeVar("T")
_ENCODE = msgspec.json.Encoder().encode
_BREAKS = {"\x85": b"\\u0085", "\u2028": b"\\u2028", "\u2029": b"\\u2029"}
_UNPACKED = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


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


def described(error: PacelineError) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status of an error, and its body in OpenAI's shape."""
    status, param = status_of(error)
    code = getattr(error, "code", None) or {429: "rate_limit_exceeded"}.get(status)
    if isinstance(error, ContextExceeded):
        code = TOO_LONG
    return status, error_body(str(error), status, param, code)


def encoded(content: Any) -> bytes:
    """Return JSON in which no character stands at which some clients split lines."""
    data = _ENCODE(content)
    for char, escaped in _BREAKS.items():
        data = data.replace(char.encode(), escaped)
    return data


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """Return a request's body, unpacked; errors as `read_parts`."""
    parts = []
    async with aclosing(read_parts(request, limit)) as body, _patience(seconds):
        async for part in body:
            parts.append(part)
    return text_of(b"".join(parts))


async def read_lines(
    request: Request, limit: int, seconds: float
) -> AsyncGenerator[list[bytes], None]:
    """Yield the lines of a body as they come, those together that do, blank ones left out.

    Raises BadRequest if `seconds` go by without the end of a line, else as `read_parts`.
    """
    rest: bytes | None = b""
    async with aclosing(read_parts(request, limit)) as body:
        while rest is not None:
            lines: list[bytes] = []
            async with _patience(seconds):
                while rest is not None and not lines:
                    part = await anext(body, None)
                    *lines, rest = (rest + (b"\n" if part is None else part)).split(b"\n")
                    rest = None if part is None else rest
            if lines := [text_of(line) for line in lines if line.strip()]:
                yield lines


@contextlib.asynccontextmanager
async def _patience(seconds: float) -> AsyncGenerator[None, None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise BadRequest(
            f"the body did not arrive in {seconds:g} s: send it faster", status=408
        ) from error


def text_of(data: bytes) -> bytes:
    """Return a text without its mark of UTF-8; BadRequest if it is UTF-16."""
    data = data.removeprefix(codecs.BOM_UTF8)
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise BadRequest("the body is UTF-16: send UTF-8")
    return data


async def read_parts(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield a request's body as it comes, unpacked.

    Raises:
        BadRequest: it is too large (413), takes too long (408), or is packed in a way that is not
            read (415), or wrongly (400).
        Gone: the client has closed the connection.
    """
    large = BadRequest(f"the body is larger than {limit} bytes: send less", status=413)
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise large
    packing = request.headers.get("content-encoding", "").strip().lower() or "identity"
    if packing != "identity" and packing not in _UNPACKED:
        raise BadRequest(
            f"content-encoding: {packing[:40]!r} is not read: send gzip, deflate or none",
            "content-encoding",
            415,
        )
    unpacked = zlib.decompressobj(_UNPACKED[packing]) if packing in _UNPACKED else None
    size = 0
    try:
        async for part in request.stream():
            if unpacked is not None:
                part = unpacked.decompress(part, limit - size + 1)
            size += len(part)
            if size > limit:
                raise large
            yield part
        if unpacked is not None and not unpacked.eof:
            raise zlib.error("it is cut off")
    except zlib.error as error:
        raise BadRequest(
            f"the body is no {packing} ({error}): mend it, or the header content-encoding"
        ) from error
    except ClientDisconnect as error:
        raise Gone from error


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
        patience: float,
    ) -> None:
        """`close` is called at the end, whatever that is.

        A client that does not read for `patience` seconds has gone.
        """
        self._patience = patience
        self._events = events
        self._close = close
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # A response that is left unfinished makes the server below close the connection.
            with contextlib.suppress(Gone, TimeoutError):
                await unless_gone(receive, self._send(send))
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            async for body in self._events:
                async with asyncio.timeout(self._patience):
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
        out.append(name + b"data: " + encoded(content) + b"\n\n")
    return b"".join(out)


def header_value(text: str) -> str:
    """Return `text` with "?" for all that may not stand in a header or a log."""
    return re.sub(r"[^\x21-\x7e]", "?", text[:100])


def ignoring(names: Sequence[str]) -> dict[str, str]:
    """Return headers that name what a request holds and the answer does not heed."""
    # An empty name would leave a blank at the end, for which h11 closes the connection.
    told = [header_value(name) or "?" for name in names[:_MOST_TOLD]]
    if len(names) > _MOST_TOLD:
        told.append(f"and-{len(names) - _MOST_TOLD}-more")
    return {"x-paceline-ignored": ", ".join(told)} if told else {}


class Keys:
    """Middleware that asks for an API key on every route but /health and the page."""

    def __init__(
        self, app: ASGIApp, keys: tuple[str, ...], refusal: Callable[..., Response]
    ) -> None:
        """`refusal` makes the answer to a request without a key."""
        self._app, self._refusal = app, refusal
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["type"] in ("http", "websocket") and scope["path"] not in ("/health", "/")
        if not asked or not self._keys or self._known(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        said = "the API key is missing or wrong: send Authorization: Bearer KEY"
        headers = {"www-authenticate": "Bearer"}
        response = self._refusal(scope, 401, said, None, "invalid_api_key", headers)
        await response(scope, receive, send)

    def _known(self, headers: Headers) -> bool:
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = [key.strip() if kind.lower() == "bearer" else ""]
        given += [headers.get(name, "").strip() for name in ("x-api-key", "api-key")]
        # Pages cannot give a WebSocket headers of their own.
        offered = headers.get("sec-websocket-protocol", "").split(",")
        given += [each.strip().removeprefix(_KEY) for each in offered if _KEY in each]
        tried = [each.encode("utf-8", "replace") for each in given]
        # Every key is compared, in constant time, so that time tells nothing.
        return sum(hmac.compare_digest(each, key) for each in tried for key in self._keys) > 0


class PlainPaths:
    """Middleware that reads paths with doubled or trailing slashes as without."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = "/" + "/".join(filter(None, scope["path"].split("/")))
            scope = {**scope, "path": path}
        await self._app(scope, receive, send)
