"""Bodies that are written line by line: the answer is that to the whole, sent at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.helpers import table_engines as engines
from tests.helpers.serving import CHAT, TEXT, Client, Json, run, serving

CHATS, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
LINES = {"content-type": "application/x-ndjson"}
LONG = "the quick brown fox jumps over the lazy dog " * 3


def turn(text: str) -> list[Json]:
    return [{"role": "user", "content": text}]


async def write(client: Client, path: str, lines: list[Any], pause: float = 0.0) -> httpx.Response:
    async def body() -> AsyncIterator[bytes]:
        for line in lines:
            yield line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
            await asyncio.sleep(pause)

    return await client.http.post(path, content=body(), headers=LINES)


def same(written: Json, whole: Json) -> None:
    """Answers are equal but for their ids and what was known before."""
    for each in (written, whole):
        each.pop("id")
        each.pop("created", None)
        each.pop("created_at", None)
        usage = each["usage"]
        usage.pop("prompt_tokens_details", None)
        usage.pop("input_tokens_details", None)
    assert written == whole


@pytest.mark.parametrize(
    ("path", "field", "form"),
    [(CHATS, "messages", turn), (TEXTS, "prompt", str), (RESPONSES, "input", str)],
)
@pytest.mark.parametrize("pause", [0.0, 0.02])
def test_answers_are_those_to_the_whole(path: str, field: str, form: Any, pause: float) -> None:
    base: Json = {"temperature": 1.0, "seed": 4}
    base["max_output_tokens" if path == RESPONSES else "max_tokens"] = 12

    async def work(client: Client) -> None:
        whole = await client.ask(path, base | {field: form(LONG + "cat")})
        lines = [base | {field: form("lazy")}, {field: form("the quick")}, {"append": LONG[9:50]}]
        lines += [b"\n", b'{"app', b"", b'end": ""}\n', {"append": LONG[50:]}, {"append": "cat"}]
        response = await write(client, path, lines, pause)
        assert response.status_code == 200, response.text
        written = response.json()
        if pause and path != RESPONSES:
            known = written["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert 20 < known < written["usage"]["prompt_tokens"]
        if path == RESPONSES:
            assert written["output"][0]["content"] == whole["output"][0]["content"]
        else:
            same(written, whole)

    run(work)


def test_messages_may_follow_and_several_answers_be_asked_for() -> None:
    async def work(client: Client) -> None:
        body = CHAT | {"n": 3, "temperature": 1.0, "seed": 2}
        more = [{"role": "assistant", "content": "yes"}, *turn("the lazy dog")]
        whole = await client.ask(CHATS, body | {"messages": [*CHAT["messages"], *more]})
        response = await write(
            client, CHATS, [body, {"append": more[:1]}, {"append": more[1:]}], 0.02
        )
        same(response.json(), whole)

    run(work)


def test_streams_follow_the_end_of_the_body() -> None:
    async def work(client: Client) -> None:
        body = TEXT | {"temperature": 0}
        whole = await client.ask(TEXTS, body)
        lines = [body | {"prompt": "the", "stream": True}, {"append": " quick"}]
        response = await write(client, TEXTS, lines, 0.01)
        data = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
        text = "".join(c["text"] for each in data for c in json.loads(each)["choices"])
        assert text == whole["choices"][0]["text"]

    run(work)


@pytest.mark.parametrize(
    ("lines", "status", "said", "param"),
    [
        ([b"{\n"], 400, "line 1 is no valid JSON", None),
        ([b"[1]\n"], 400, "line 1 must be a JSON object", None),
        ([CHAT, b"nonsense\n"], 400, "line 2 is no valid JSON", None),
        ([b'{"messages": [{"role": "user", "content": "\xff"}]}\n'], 400, "line 1 is no", None),
        ([CHAT, b'{"append": "\xff\xfe"}\n'], 400, "line 2 is no valid JSON", None),
        ([CHAT, b'{"append": "\\ud83d"}\n'], 400, "d83d is half of a UTF-16 pair", None),
        ([CHAT, b'{"append": ' + b"[" * 3000 + b"\n"], 400, "nested too deeply", None),
        (
            [CHAT, {"append": "a", "temperature": 1}],
            400,
            "line 2: it must hold append",
            "temperature",
        ),
        ([CHAT, {"prompt": "a"}], 400, "line 2: it must hold append or messages", "prompt"),
        ([CHAT, {}], 400, "line 2: it must hold append", "append"),
        ([CHAT, {"append": 5}], 400, "line 2: append: a piece goes on", "append"),
        ([CHAT, {"append": [3]}], 400, "line 2: append: a piece goes on", "append"),
        ([CHAT, {"append": None}], 400, "line 2: append: a piece goes on", "append"),
        ([CHAT, {"append": False}], 400, "line 2: append: a piece goes on", "append"),
        ([CHAT, {"append": {}}], 400, "line 2: append: a piece goes on", "append"),
        ([CHAT, {"messages": []}], 400, "messages", "messages"),
        ([CHAT, {"append": [{"role": "nobody", "content": "a"}]}], 400, "role", "messages"),
        ([CHAT | {"temperature": 9}, {"append": "a"}], 400, "temperature", "temperature"),
        ([CHAT | {"model": "another"}], 404, "another", "model"),
        ([CHAT, {"append": " dog" * 900}], 400, "maximum context length", "messages"),
        ([CHAT, {"append": "a" * 9000}], 413, "larger than 8000 bytes", None),
        ([], 400, "JSON", None),
    ],
)
def test_what_is_wrong_is_told_by_line_and_leaves_nothing(
    lines: list[Any], status: int, said: str, param: str | None
) -> None:
    engine = engines.make(engines.Target())

    async def work(client: Client) -> None:
        response = await write(client, CHATS, lines, 0.01)
        error = response.json()["error"]
        assert (response.status_code, error["param"] or "")[0] == status, response.text
        assert said in error["message"]
        if param is not None:
            assert error["param"].startswith(param)
        assert client.service.idle
        await client.ask(CHATS, CHAT)  # no neighbour's trouble

    run(work, engine, max_body=8000)
    assert engine.pending == 0
    assert engine.decoder.target.live == []  # type: ignore[attr-defined]  # of a test's target


def test_who_pauses_too_long_is_told_and_who_pauses_often_is_not() -> None:
    async def work(client: Client) -> None:
        lines = [CHAT, *({"append": " a"} for _ in range(8))]
        assert (await write(client, CHATS, lines, 0.05)).status_code == 200
        response = await write(client, CHATS, [CHAT, {"append": "a"}], 0.6)
        assert response.status_code == 408
        assert client.service.idle

    run(work, body_timeout=0.3)


def test_other_routes_take_no_lines() -> None:
    async def work(client: Client) -> None:
        for path in ("/v1/embeddings", "/v1/messages", "/infill"):
            response = await write(client, path, [{"input": "a"}])
            assert response.status_code == 415
            assert "content-type" in response.text

    run(work)


def test_a_client_that_hangs_up_while_it_writes_leaves_nothing() -> None:
    engine = engines.make(engines.Target())

    async def work() -> None:
        async with serving(engine) as client:
            parts = [json.dumps(CHAT).encode() + b"\n", json.dumps({"append": LONG}).encode()]

            async def receive() -> Json:
                await asyncio.sleep(0.02)
                if parts:
                    return {"type": "http.request", "body": parts.pop(0), "more_body": True}
                return {"type": "http.disconnect"}

            async def send(message: Json) -> None:
                """Nobody listens."""

            scope = {"type": "http", "method": "POST", "path": CHATS, "raw_path": CHATS.encode()}
            scope |= {"headers": [(b"content-type", b"application/x-ndjson")], "query_string": b""}
            scope |= {"scheme": "http", "http_version": "1.1", "server": ("x", 80)}
            scope |= {"client": ("y", 1), "root_path": "", "asgi": {}}
            await client.service.app(scope, receive, send)
            assert client.service.idle
            await client.ask(CHATS, CHAT)

    asyncio.run(work())
    assert engine.pending == 0


def test_an_idle_prompt_costs_no_turns() -> None:
    engine = engines.make()
    count = 0
    step = engine.step

    def counted() -> Any:
        nonlocal count
        count += 1
        return step()

    engine.step = counted  # type: ignore[method-assign]  # a guard of this test

    async def work(client: Client) -> None:
        await write(client, CHATS, [CHAT | {"max_tokens": 1}, {"append": " dog"}], 0.4)

    run(work, engine)
    assert count < 40
