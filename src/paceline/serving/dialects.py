"""Errors in the shape of the API that is asked: one place for all that may refuse a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from paceline.serving import anthropic
from paceline.serving.http import error_body, json_response
from paceline.serving.logs import request_id


def refusal(
    scope: Scope,
    status: int,
    message: str,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an error as the API of a request's path has it."""
    path = scope["path"].removeprefix("/v1")
    listing = path.startswith("/models") and "anthropic-version" in Headers(scope=scope)
    body: dict[str, Any] = error_body(message, status, param, code)
    if path.startswith("/api/"):
        body = {"error": message}
    elif listing or path.startswith("/messages"):
        body = anthropic.error_body(message, status, request_id.get())
    return json_response(body, status, headers)
