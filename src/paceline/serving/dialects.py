"""Errors in the shape of the API that is asked: one place for all that may refuse a request."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.serving import anthropic, ollama
from paceline.serving.logs import request_id

Rewrite = Callable[[bytes, int, str], bytes]


class Dialects:
    """Middleware that rewrites errors, made in OpenAI's shape, for routes of other APIs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rewrite = _dialect(scope) if scope["type"] == "http" else None
        if rewrite is None:
            await self._app(scope, receive, send)
            return
        head: Message | None = None
        parts: list[bytes] = []

        async def told(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["request-id"] = request_id.get()
                kind = Headers(scope=message).get("content-type", "")
                if message["status"] >= 400 and kind.startswith("application/json"):
                    head = message
                    return
            elif head is not None:
                parts.append(message.get("body", b""))
                if message.get("more_body"):
                    return
                body = rewrite(b"".join(parts), head["status"], request_id.get())
                MutableHeaders(scope=head)["content-length"] = str(len(body))
                await send(head)
                message = {"type": "http.response.body", "body": body}
            await send(message)

        await self._app(scope, receive, told)


def _dialect(scope: Scope) -> Rewrite | None:
    path = scope["path"].removeprefix("/v1")
    ours = path.startswith("/messages") or (
        path.startswith("/models") and "anthropic-version" in Headers(scope=scope)
    )
    return anthropic.rewritten if ours else ollama.rewritten if path[:5] == "/api/" else None
