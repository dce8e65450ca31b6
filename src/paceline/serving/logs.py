"""Logs of the server: one JSON object per line, with request ids and without prompts."""

from __future__ import annotations

import json
import logging
import sys
import uuid
from contextvars import ContextVar
from datetime import UTC, datetime

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.serving.http import header_value

request_id: ContextVar[str] = ContextVar("request_id", default="")

# Fields that the server's own records carry beside their message.
_FIELDS = ("path", "seconds", "prompt_tokens", "completion_tokens")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        out = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        if request_id.get():
            out["request_id"] = request_id.get()
        out |= {name: vars(record)[name] for name in _FIELDS if name in vars(record)}
        if record.exc_info:
            out["error"] = self.formatException(record.exc_info)
        return json.dumps(out)


def set_up(text: bool) -> None:
    """Send the logs of the server and of uvicorn to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(message)s") if text else JsonLines()
    )
    for name in ("paceline", "uvicorn"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO)


class RequestIds:
    """Middleware that gives every request an id, the client's where it sent a fair one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        id = header_value(given) or uuid.uuid4().hex
        request_id.set(id)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = headers["request-id"] = id
            await send(message)

        await self._app(scope, receive, named)
