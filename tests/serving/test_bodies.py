"""Bodies of every route: what is not heeded is named at any depth, what is wrong is refused."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.serving import Client, Json, run, serving
from tests.serving.test_fill import engine as filling

CHATS, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CLAUDE = "/v1/messages"
SCHEMA: Json = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOL: Json = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CALL: Json = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
# A body of each route with all kinds of objects that it may hold.
GOOD: dict[str, Json] = {
    CHATS: {
        "model": "tables",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
        ],
        "max_tokens": 2,
        "tools": [TOOL],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "prediction": {"type": "content", "content": [{"type": "text", "text": "hello"}]},
        "logit_bias": {"5": 1},
        "stop": ["zz"],
    },
    TEXTS: {"prompt": ["a", "b"], "max_tokens": 2, "logprobs": 1, "echo": True, "stop": "q"},
    RESPONSES: {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
            {"role": "user", "content": "go"},
        ],
        "max_output_tokens": 2,
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": "none"},
        "tool_choice": "none",
        "instructions": "i",
    },
    CLAUDE: {
        "model": "tables",
        "max_tokens": 2,
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t", "signature": "x"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": [{"type": "text", "text": "1"}],
                    },
                    {"type": "document", "source": {"type": "text", "data": "d"}},
                ],
            },
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
        "tool_choice": {"type": "none"},
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "none"},
        "stop_sequences": ["zz"],
        "metadata": {"user_id": "u"},
    },
    "/infill": {
        "input_prefix": "a",
        "input_suffix": "b",
        "input_extra": [{"filename": "f", "text": "t"}],
        "n_predict": 2,
    },
    "/api/chat": {
        "model": "tables",
        "stream": False,
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": "",
                "thinking": "h",
                "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
            },
            {"role": "tool", "tool_name": "f", "content": "1"},
        ],
        "tools": [TOOL],
        "options": {"num_predict": 2, "temperature": 0.5, "stop": ["zz"], "seed": 1},
        "think": False,
    },
    "/api/generate": {
        "model": "tables",
        "stream": False,
        "prompt": "hi",
        "system": "s",
        "options": {"num_predict": 2},
    },
    "/tokenize": {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/embeddings": {"input": ["a", "b"], "encoding_format": "float"},
    "/api/embed": {"model": "tables", "input": ["a"]},
    "/api/show": {"model": "tables"},
    "/v1/batches": {"input_file_id": "file-x", "endpoint": CHATS, "metadata": {"a": "b"}},
}
STATES = ("/v1/embeddings", "/api/embed")  # which a table has not
# Objects that may have any field.
OPEN = {"parameters", "input_schema", "metadata", "logit_bias", "arguments", "function"}
OPEN |= {"cache_control"}
SHOWN = {(RESPONSES, ("tools", 0))}  # to the model, as it is
WRONG: list[Any] = [None, True, 5, -7, 1.5, "", "x", [], {}, [[]], [5], {"a": 1}, 10**30, -(2**63)]


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*place, key))


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def changed(body: Json, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    body = copy.deepcopy(body)
    at(body, place[:-1])[place[-1]] = value
    return body


def spelled(place: tuple[Any, ...]) -> str:
    steps = [f"[{key}]" if isinstance(key, int) else f".{key}" for key in place]
    return "".join(steps).removeprefix(".")


@pytest.mark.parametrize("route", [each for each in GOOD if each not in STATES])
def test_a_field_that_nothing_reads_is_named_at_its_place(route: str, tmp_path: Path) -> None:
    """In every object of the body; with `strict` it is refused by the same name."""

    async def asks(client: Client) -> None:
        body = copy.deepcopy(GOOD[route])
        if route == "/v1/batches":
            made = await client.http.post(
                "/v1/files", files={"file": b""}, data={"purpose": "batch"}
            )
            body["input_file_id"] = made.json()["id"]
        response = await client.post(route, body)
        assert response.status_code == 200, response.text
        assert "x-paceline-ignored" not in response.headers
        for place in places(body):
            free = OPEN & set(place) or place[-1:] == ("input",)
            if free or not isinstance(at(body, place), dict) or (route, place) in SHOWN:
                continue
            odd = changed(body, (*place, "no_such_field"), 7)
            response = await client.post(route, odd)
            name = spelled((*place, "no_such_field"))
            if client.service.settings.strict:
                assert response.status_code == 400, (place, response.text)
                assert name in response.text
            else:
                assert response.status_code == 200, (place, response.text)
                left = response.headers.get("x-paceline-ignored", "").split(", ")
                assert name in left, (place, left)

    for strict in (False, True):
        run(asks, filling("xy"), files=str(tmp_path), strict=strict)


def told(route: str, error: Any) -> bool:
    """Whether an error has the shape of the route's API."""
    if route.startswith("/api/"):
        return isinstance(error.get("error"), str)
    ours = isinstance(error.get("error", {}).get("message"), str)
    return ours and (error.get("type") == "error") == route.startswith(CLAUDE)


@pytest.mark.parametrize("route", list(GOOD))
def test_any_value_at_any_place_is_answered_or_refused(route: str, tmp_path: Path) -> None:
    """No status of 500, no answer without end, and errors in the shape of the route's API."""
    draw = random.Random(route)
    body = GOOD[route]
    tried = [(place, value) for place in places(body) for value in WRONG]
    draw.shuffle(tried)

    async def whole() -> None:
        async with serving(filling("xy"), files=str(tmp_path), keep_responses=4) as client:
            for place, value in tried[:90]:
                sent = json.dumps(changed(body, place, value))
                response = await asyncio.wait_for(client.http.post(route, content=sent), 20)
                assert response.status_code < 500, (place, value, response.text)
                if response.status_code >= 400:
                    assert told(route, response.json()), (place, value, response.text)

    asyncio.run(whole())


@pytest.mark.parametrize(
    "data", [b"", b"[", b"null", b"\xff", b'{"a": NaN}', b"[" * 40_000, b'{"model": "\\ud800"}']
)
def test_what_is_no_json_is_refused_in_the_shape_of_each_route(data: bytes) -> None:
    async def asks(client: Client) -> None:
        for route in GOOD:
            response = await client.http.post(route, content=data)
            assert 400 <= response.status_code < 500, (route, response.text)
            assert told(route, response.json()), (route, response.text)

    run(asks)


@pytest.mark.parametrize("route", [CHATS, TEXTS, RESPONSES, CLAUDE, "/infill", "/api/chat"])
def test_an_error_within_a_stream_has_the_form_of_its_api(route: str) -> None:
    engine = filling("x" * 80)
    step, steps = engine.step, iter(range(9))

    def failing() -> Any:
        if next(steps, None) is None:
            raise RuntimeError("broken")
        return step()

    engine.step = failing
    body = copy.deepcopy(GOOD[route]) | {"stream": True, "ignore_eos": True}
    body |= {name: 60 for name in ("max_tokens", "max_output_tokens", "n_predict") if name in body}
    body.pop("stop", None)
    if "options" in body:
        body = body | {"options": {"num_predict": 60}}

    async def asks(client: Client) -> None:
        response = await client.post(route, body)
        assert response.status_code == 200, response.text
        lines = [line for line in response.text.splitlines() if line]
        if route in (CHATS, TEXTS):
            assert lines.pop() == "data: [DONE]"
        last = json.loads(lines[-1].removeprefix("data: "))
        if route == RESPONSES:
            assert lines[-2] == "event: response.failed"
            assert last["response"]["status"] == "failed"
            last = last["response"]
        elif route == CLAUDE:
            assert lines[-2] == "event: error"
            assert last["error"]["type"] == "api_error"
        if route == "/api/chat":
            assert "the engine failed" in last["error"]
        else:
            assert "the engine failed" in last["error"]["message"]

    run(asks, engine)
