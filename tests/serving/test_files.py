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
from tests.helpers.serving import Client, Json, run, serving

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


def test_lines_are_parted_into_answers_and_errors(tmp_path: Path) -> None:
    """Whatever they say: an answer that quotes a status, a body nested deep, a field unknown."""
    quoting = '"response":{"status_code":200,'
    deep: Any = []
    for _ in range(450):
        deep = [deep]
    lines = [
        line(quoting, temperature=9),
        line("deep", tools=deep),
        line("odd", no_such_field=1, stop=["x"]),
        line("none", messages=None),
        {**line("text"), "body": "x"},
        {**line("nothing"), "body": None},
    ]

    async def whole() -> None:
        async with serving(files=str(tmp_path)) as client:
            asks = of(client)
            file = await asks.files.create(file=data(lines), purpose="batch")
            batch = await ended(asks, (await begin(asks, file.id)).id)
            assert batch.status == "completed"
            counts = batch.request_counts
            assert (counts.total, counts.completed, counts.failed) == (6, 1, 5)
            good = json.loads((await asks.files.content(batch.output_file_id)).text)
            assert good["custom_id"] == "odd"
            assert good["response"]["ignored"] == ["no_such_field"]
            text = (await asks.files.content(batch.error_file_id)).text
            wrong = {
                each["custom_id"]: each["response"]
                for each in map(json.loads, text.split("\n")[:-1])
            }
            assert {each["status_code"] for each in wrong.values()} == {400}
            assert set(wrong) == {quoting, "deep", "none", "text", "nothing"}

    asyncio.run(asyncio.wait_for(whole(), 60))


async def begin(asks: openai.AsyncOpenAI, file: str) -> Any:
    return await asks.batches.create(input_file_id=file, endpoint=CHATS, completion_window="24h")


def test_a_file_that_is_gone_or_empty(tmp_path: Path) -> None:
    async def whole() -> None:
        async with serving(files=str(tmp_path)) as client:
            asks = of(client)
            empty = await asks.files.create(file=("in.jsonl", b"\n\n"), purpose="batch")
            batch = await ended(asks, (await begin(asks, empty.id)).id)
            assert (batch.status, batch.request_counts.total) == ("completed", 0)
            assert (batch.output_file_id, batch.error_file_id) == (None, None)
            (tmp_path / f"{empty.id}.data").unlink()
            batch = await ended(asks, (await begin(asks, empty.id)).id)
            assert batch.status == "failed"
            assert "cannot be read" in batch.errors.data[0].message
            for id in ("batch-" + "x" * 5000, "batch-\u00e9", "file-x", ""):
                with pytest.raises((openai.NotFoundError, ValueError)):
                    await asks.batches.retrieve(id)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_an_engine_that_has_ended_leaves_its_batch_to_the_next_server(tmp_path: Path) -> None:
    engine = engines.make()
    step, steps = engine.step, iter(range(6))

    def failing() -> Any:
        if next(steps, None) is None:
            raise SystemExit  # ends the engine's thread
        return step()

    engine.step = failing  # type: ignore[method-assign]
    lines = [line(str(i)) for i in range(12)]

    async def whole() -> None:
        async with serving(engine, files=str(tmp_path), max_batch=2) as client:
            asks = of(client)
            file = await asks.files.create(file=data(lines), purpose="batch")
            batch = await begin(asks, file.id)
            while client.service.gate.closed is None:
                await asyncio.sleep(0.005)
            while client.service.batches.running:
                await asyncio.sleep(0.005)
            kept = json.loads((tmp_path / f"{batch.id}.json").read_text())
            assert kept["status"] == "in_progress"
            with pytest.raises(openai.InternalServerError, match="begins or ends"):
                await asks.batches.cancel(batch.id)
        async with serving(files=str(tmp_path)) as client:
            batch = await ended(of(client), batch.id)
            counts = batch.request_counts
            assert (batch.status, counts.completed, counts.failed) == ("completed", 12, 0)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_full_disk_fails_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> None:
        async with serving(files=str(tmp_path)) as client:
            asks = of(client)
            file = await asks.files.create(file=data([line("a")]), purpose="batch")

            def full(*_: Any) -> Any:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(files, "_parted", full)
            batch = await ended(asks, (await begin(asks, file.id)).id)
            assert batch.status == "failed"
            assert "No space left" in batch.errors.data[0].message

    asyncio.run(asyncio.wait_for(whole(), 60))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=B", b""),
        ("application/json", b"{}"),
        ("multipart/form-data; boundary=B", b"--B\r\n\r\nx\r\n--B--"),
        (
            "multipart/form-data; boundary=B",
            b'--B\r\ncontent-disposition: form-data; name="purpose"\r\n'
            b"content-type: multipart/mixed; boundary=C\r\n\r\n--C\r\n\r\nx\r\n--C--\r\n"
            b'--B\r\ncontent-disposition: form-data; name="file"\r\n\r\nx\r\n--B--',
        ),
    ],
)
def test_a_form_that_is_none_is_refused(kind: str, body: bytes, tmp_path: Path) -> None:
    async def asks(client: Client) -> None:
        response = await client.http.post("/v1/files", content=body, headers={"content-type": kind})
        assert response.status_code == 400
        assert response.json()["error"]["param"] in ("file", "purpose")

    run(asks, files=str(tmp_path))


def test_a_file_is_kept_as_it_is_and_what_is_no_batch_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.serving.batch._LARGEST", 200)
    monkeypatch.setattr(files, "_LINES", 20)
    kinds = {
        b"\r\n\r\n--B no end\n": "invalid_json_line",
        b"": None,
        b"\n" * 50: "too_many_lines",
        b"\r" * 50: "too_many_lines",
        b'{"custom_id": "a", "body": "' + b"x" * 200 + b'"}': "line_too_large",
    }

    async def asks(client: Client) -> None:
        for text, code in kinds.items():
            response = await client.http.post(
                "/v1/files", files={"file": ("a b.jsonl", text)}, data={"purpose": "batch"}
            )
            file = response.json()
            assert (file["filename"], file["bytes"]) == ("a b.jsonl", len(text))
            content = await client.http.get(f"/v1/files/{file['id']}/content")
            assert content.content == text
            batch = await ended(of(client), (await begin(of(client), file["id"])).id)
            assert (batch.errors.data[0].code if batch.errors else None) == code

    run(asks, files=str(tmp_path))


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
