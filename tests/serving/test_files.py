"""Files and batches by OpenAI's client: answers as in the file, cancelled, and after a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.helpers import table_engines as engines
from tests.helpers.serve_tables import Slow
from tests.helpers.serving import Client, Json, serving

from paceline.serving import files

CHATS = "/v1/chat/completions"


def line(id: str, **fields: Any) -> Json:
    body: Json = {"messages": [{"role": "user", "content": id}], "max_tokens": 5, "seed": 3}
    return {"custom_id": id, "method": "POST", "url": CHATS, "body": body | fields}


def of(client: Client) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://tables/v1", api_key="x", http_client=client.http, max_retries=0
    )


def data(lines: list[Any]) -> tuple[str, bytes]:
    return "in.jsonl", "\n".join(map(json.dumps, lines)).encode()


async def ended(asks: openai.AsyncOpenAI, id: str) -> Any:
    for _ in range(2000):
        batch = await asks.batches.retrieve(id)
        if batch.status in ("completed", "failed", "cancelled"):
            return batch
        await asyncio.sleep(0.005)
    raise AssertionError("the batch does not end")


def test_a_batch_is_answered(tmp_path: Path) -> None:
    async def whole() -> None:
        async with serving(files=str(tmp_path)) as client:
            asks = of(client)
            file = await asks.files.create(
                file=data([line("a"), line("b", temperature=9), line("c")]), purpose="batch"
            )
            assert (file.filename, file.purpose) == ("in.jsonl", "batch")
            batch = await asks.batches.create(
                input_file_id=file.id,
                endpoint=CHATS,
                completion_window="24h",
                metadata={"why": "test"},
            )
            assert (batch.status, batch.metadata) == ("validating", {"why": "test"})
            batch = await ended(asks, batch.id)
            assert batch.status == "completed"
            counts = batch.request_counts
            assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
            text = (await asks.files.content(batch.output_file_id)).text
            found = {each["custom_id"]: each for each in map(json.loads, text.splitlines())}
            assert set(found) == {"a", "c"}
            alone = await client.ask(CHATS, line("a")["body"])
            assert found["a"]["response"]["body"]["choices"] == alone["choices"]
            [wrong] = (await asks.files.content(batch.error_file_id)).text.splitlines()
            assert json.loads(wrong)["response"]["body"]["error"]["param"] == "temperature"
            assert [each.id async for each in asks.batches.list()] == [batch.id]
            assert len([each async for each in asks.files.list()]) == 3
            assert [each.id async for each in asks.files.list(purpose="batch")] == [file.id]
            with pytest.raises(openai.ConflictError):
                await asks.batches.cancel(batch.id)
            assert (await asks.files.delete(file.id)).deleted
            for call in (asks.files.retrieve, asks.files.content, asks.files.delete):
                with pytest.raises(openai.NotFoundError):
                    await call(file.id)  # type: ignore[operator]
            for id in (file.id, "file-..%2f..%2fx", "batch-x"):
                with pytest.raises(openai.NotFoundError):
                    await asks.batches.create(
                        input_file_id=id, endpoint=CHATS, completion_window="24h"
                    )

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_faults_of_the_file_fail_the_batch(tmp_path: Path) -> None:
    async def whole() -> None:
        async with serving(files=str(tmp_path)) as client:
            asks = of(client)
            lines = [line("a"), {**line("a")}, {**line("b"), "url": "/v1/x"}, "x"]
            file = await asks.files.create(file=data(lines), purpose="batch")
            batch = await asks.batches.create(
                input_file_id=file.id, endpoint=CHATS, completion_window="24h"
            )
            batch = await ended(asks, batch.id)
            assert batch.status == "failed"
            assert [(each.line, each.code) for each in batch.errors.data] == [
                (2, "duplicate_custom_id"),
                (3, "mismatched_url"),
                (4, "missing_custom_id"),
            ]
            with pytest.raises(openai.BadRequestError, match="purpose"):
                await asks.files.create(file=data([]), purpose="fine-tune")
            with pytest.raises(openai.BadRequestError, match="file"):
                await asks.post("/files", cast_to=httpx.Response, body={"purpose": "batch"})

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_batch_goes_on_after_a_restart_and_can_be_cancelled(tmp_path: Path) -> None:
    lines = [line(str(i)) for i in range(12)]

    def slow() -> Any:
        return engines.make(Slow(0.003))

    async def whole() -> None:
        async with serving(slow(), files=str(tmp_path)) as client:
            asks = of(client)
            file = await asks.files.create(file=data(lines), purpose="batch")

            async def begun() -> Any:
                batch = await asks.batches.create(
                    input_file_id=file.id, endpoint=CHATS, completion_window="24h"
                )
                while not (await asks.batches.retrieve(batch.id)).request_counts.completed:
                    await asyncio.sleep(0.003)
                return batch

            cancelled = await begun()
            assert (await asks.batches.cancel(cancelled.id)).status == "cancelling"
            cancelled = await ended(asks, cancelled.id)
            assert cancelled.status == "cancelled"
            assert 0 < cancelled.request_counts.completed < 12
            text = (await asks.files.content(cancelled.output_file_id)).text
            assert len(text.splitlines()) == cancelled.request_counts.completed
            batch = await begun()
            client.service.drain()
        async with serving(slow(), files=str(tmp_path)) as client:
            batch = await ended(of(client), batch.id)
            assert batch.status == "completed"
            assert batch.request_counts.completed == 12

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_without_a_folder_and_with_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def whole() -> None:
        async with serving() as client:
            for path in ("/v1/files", "/v1/batches"):
                response = await client.http.get(path)
                assert response.status_code == 501
                assert "--files" in response.json()["error"]["message"]
        monkeypatch.setattr(files, "_FOLDER", 100)
        async with serving(files=str(tmp_path)) as client:
            with pytest.raises(openai.APIStatusError, match="full"):
                await of(client).files.create(file=data(["x" * 200]), purpose="batch")

    asyncio.run(asyncio.wait_for(whole(), 60))
