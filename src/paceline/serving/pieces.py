"""Bodies that are written line by line (NDJSON), and read by the model meanwhile.

The first line is a request. A line behind it lets the prompt go on, {"append": "..."}, or begins it
again, {"messages": [...]}. The end of the body is the end of the prompt: only then it is answered,
as if it had come at once, so clients that cannot read while they write are served as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request

from paceline.engine.prefill import shared_prefix
from paceline.engine.requests import Prepared, unsettled
from paceline.engine.writing import joined
from paceline.errors import PromptError
from paceline.serving.model import ServedModel
from paceline.serving.plan import Plan
from paceline.serving.protocol import (
    BadRequest,
    ChatRequest,
    CompletionRequest,
    NoObject,
    ResponsesRequest,
    object_of,
)

LINES = "application/x-ndjson"
_GROWS: dict[type[Any], str] = {
    ChatRequest: "messages",
    CompletionRequest: "prompt",
    ResponsesRequest: "input",
}


def written(request: Request, kind: type[Any]) -> Pieces | None:
    """Return what takes the lines of a request's body; None if that is no body of lines.

    BadRequest: it is one (415) for a route that answers no prompt.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != LINES:
        return None
    if kind not in _GROWS:
        raise BadRequest(
            f"content-type: {LINES} is for chat completions, completions and responses: send "
            "application/json here",
            "content-type",
            415,
        )
    return Pieces(_GROWS[kind])


class Pieces:
    """A request that is not whole yet."""

    def __init__(self, field: str) -> None:
        """`field` of the request is its prompt."""
        self._field = field
        self._fields: dict[str, Any] = {}
        self._count = 0
        self.whole = b""
        """The body, so far."""

    @property
    def progress(self) -> bool:
        """Whether it is to be told how far the whole is read."""
        return bool(self._fields.get("stream") and self._fields.get("return_progress"))

    def add(self, lines: Sequence[bytes]) -> bytes:
        """Take lines; return the body that they make; BadRequest names the one that is wrong."""
        for line in lines:
            self._count += 1
            try:
                found = object_of(line)
            except NoObject as error:
                raise BadRequest(f"line {self._count} {error}") from error
            self._take(found)
        self.whole = msgspec.json.encode(self._fields)
        return self.whole

    def _take(self, found: dict[str, Any]) -> None:
        field = self._field
        if self._count == 1:
            self._fields = found
        elif found.keys() == {field}:
            self._fields[field] = found[field]
        elif found.keys() == {"append"}:
            try:
                self._fields[field] = joined(self._fields.get(field, ""), found["append"])
            except PromptError as error:
                raise BadRequest(f"line {self._count}: append: {error}", "append") from error
        else:
            raise BadRequest(
                f"line {self._count}: it must hold append or {field}, and nothing else: all other "
                "fields belong to the first line",
                next((key for key in found if key not in ("append", field)), "append"),
            )

    def begun(
        self, model: ServedModel, plan: Callable[[ServedModel, Any], Plan], body: Any
    ) -> Prepared | None:
        """Return what can be read by now; None if nothing is written. Errors as of `plan`."""
        prompt = getattr(body, self._field)
        if isinstance(prompt, str) and not prompt.strip():
            return None
        whole = plan(model, body).prompts[0]
        less: Sequence[int] = ()
        if (before := unsettled(prompt)) is prompt:
            less = whole.tokens
        elif before:
            shorter = msgspec.structs.replace(body, **{self._field: before})
            less = plan(model, shorter).prompts[0].tokens
        known = max(1, shared_prefix(whole.tokens, less))
        return replace(whole, tokens=whole.tokens[:known], resume=(), open=True)
