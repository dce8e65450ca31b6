"""The server in one process on a tabular engine, without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from tests.helpers import table_engines as engines

from paceline.engine.engine import Engine
from paceline.serving.app import Service
from paceline.serving.model import ServedModel
from paceline.serving.settings import Settings

Json = dict[str, Any]
T = TypeVar("T")
CHAT: Json = {"messages": [{"role": "user", "content": "the quick"}], "max_tokens": 12}
TEXT: Json = {"prompt": "the quick", "max_tokens": 12}


def served(engine: Engine | None = None) -> ServedModel:
    return ServedModel(engine or engines.make(), ["tables", "other"], "weights", "/nowhere")


class Client:
    """Asks a service as an HTTP client does."""

    def __init__(self, service: Service, http: httpx.AsyncClient) -> None:
        self.service = service
        self.http = http

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return await self.http.post(path, json=body, headers=headers)

    async def ask(self, path: str, body: Json) -> Json:
        response = await self.post(path, body)
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    async def refused(self, path: str, body: Any, status: int = 400) -> Json:
        response = await self.post(path, body)
        assert response.status_code == status, response.text
        error: Json = response.json()["error"]
        assert error["message"]
        assert "Traceback" not in response.text
        return error

    async def stream(self, path: str, body: Json) -> list[Json]:
        response = await self.post(path, body | {"stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return events(response.text)


def events(text: str) -> list[Json]:
    """The events of a stream, without the mark of its end."""
    data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


@asynccontextmanager
async def serving(
    engine: Engine | None = None, keys: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[Client]:
    service = Service(Settings(**settings), keys)
    service.open(served(engine))
    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://tables") as http:
            yield Client(service, http)
    finally:
        service.stop()


def run(work: Callable[[Client], Awaitable[T]], engine: Engine | None = None, **settings: Any) -> T:
    """Run a test's coroutine against a service."""

    async def whole() -> T:
        async with serving(engine, **settings) as client:
            return await work(client)

    return asyncio.run(asyncio.wait_for(whole(), 60))
