"""Answers that later requests may go on from, in a memory of bounded count, size and age."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from paceline.serving.protocol import BadRequest

Json = dict[str, Any]
_BYTES = 64 * 1024 * 1024
_SECONDS = 3600.0


class Turn(NamedTuple):
    """A response, and the items that it answered: those of the turns before, and its own."""

    response: Json
    items: list[Json]
    size: int
    at: float


class KeptAnswers:
    """The latest responses by id. Any thread may use it."""

    def __init__(self, count: int = 0) -> None:
        """Keep `count` responses, 64 MiB of them, for an hour; what is old or used last goes."""
        self._most = count
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def __bool__(self) -> bool:
        return self._most > 0

    def put(self, response: Json, items: list[Json]) -> None:
        # A conversation counts whole, though turns share what came before.
        size = len(msgspec.json.encode([response, items]))
        with self._lock:
            self._turns[response["id"]] = Turn(response, items, size, monotonic())
            self._size += size
            while len(self._turns) > self._most or self._size > _BYTES:
                self._size -= self._turns.popitem(last=False)[1].size

    def get(self, id: str, param: str | None = None) -> Turn:
        """Return a response; BadRequest (404) if it is not there, or no more."""
        with self._lock:
            turn = self._turns.get(id)
            if turn is not None and monotonic() - turn.at <= _SECONDS:
                self._turns.move_to_end(id)
                return turn
        raise BadRequest(
            f"{param or 'id'}: there is no response {id[:100]!r}: it was not stored, or is gone "
            f"(the server keeps {self._most}, for an hour): send the whole conversation",
            param,
            404,
            "previous_response_not_found" if param else None,
        )

    def drop(self, id: str) -> Json:
        """Forget a response; BadRequest as `get`."""
        self.get(id)
        with self._lock:
            turn = self._turns.pop(id, None)
            self._size -= turn.size if turn is not None else 0
        return {"id": id, "object": "response", "deleted": True}


def input_items(given: str | list[Json], id: str) -> list[Json]:
    """Return the input of a request as items with ids."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    out = []
    for i, item in enumerate(given):
        made = {"id": f"item_{id}_{i}", **({"type": "message"} if "role" in item else {}), **item}
        if made.get("type") == "message" and isinstance(made.get("content"), str):
            kind = "output_text" if made.get("role") == "assistant" else "input_text"
            part: Json = {"type": kind, "text": made["content"]}
            made["content"] = [part | ({"annotations": []} if kind == "output_text" else {})]
            made.setdefault("status", "completed")
        out.append(made)
    return out


def listed(items: list[Json], query: Any) -> Json:
    """Return a page of items as OpenAI lists them: `order`, `after`, `limit`."""
    order, after = query.get("order", "desc"), query.get("after")
    if order not in ("asc", "desc"):
        raise BadRequest(f"order: it must be asc or desc, not {order[:20]!r}", "order")
    found = items if order == "asc" else items[::-1]
    if after:
        places = [i for i, each in enumerate(found) if each["id"] == after]
        if not places:
            raise BadRequest(f"after: there is no {after[:100]!r} in the list", "after", 404)
        found = found[places[0] + 1 :]
    limit = query.get("limit", "20")
    if not limit.isdecimal() or not 1 <= int(limit) <= 100:
        raise BadRequest(f"limit: it must be 1 to 100, not {limit[:20]!r}", "limit")
    page = found[: int(limit)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {}
    head = {"object": "list", "data": page, "has_more": len(found) > len(page)}
    return {**head, "first_id": None, "last_id": None, **ends}
