"""Anthropic's Messages API: chats as its client sends them, answers and events as it reads them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.helpers import table_engines as engines
from tests.helpers.serving import Client, Json, events, run, served
from tests.serving.test_answers_over_http import NUMBERS, SAID, speaking

from paceline.errors import PromptError
from paceline.serving.anthropic import MessagesRequest, _chat
from paceline.serving.messages import Notes
from paceline.serving.protocol import decode

PATH = "/v1/messages"
USER: Json = {"messages": [{"role": "user", "content": "the quick"}], "max_tokens": 12}
TOOLS: list[Json] = [{"name": "add", "input_schema": NUMBERS}]


def test_an_answer_and_its_stream_say_the_same() -> None:
    body = USER | {"tools": TOOLS, "max_tokens": 200, "temperature": 0}

    async def asks(client: Client) -> None:
        whole = await client.ask(PATH, body)
        thinking, text, call = whole["content"]
        assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", "tables")
        assert (thinking["type"], thinking["thinking"]) == ("thinking", "well")
        assert thinking["signature"]
        assert (text["type"], text["text"].strip()) == ("text", "sum:")
        assert (call["name"], call["input"]) == ("add", {"a": 1})
        assert whole["stop_reason"] == "tool_use"
        assert whole["stop_sequence"] is None
        count = await client.ask(PATH + "/count_tokens", {"messages": USER["messages"]})
        plain = await client.ask(PATH, USER | {"max_tokens": 1})
        assert count == {"input_tokens": plain["usage"]["input_tokens"]}
        extra = USER | {"betas": ["x"], "max_tokens": 3}
        told = await client.post(PATH + "/count_tokens", extra)
        assert told.headers["x-paceline-ignored"] == "max_tokens, betas"
        stream = await client.stream(PATH, body)
        assert stream[0]["type"] == "message_start"
        assert stream[0]["message"]["content"] == []
        assert [each["type"] for each in stream[-2:]] == ["message_delta", "message_stop"]
        assert stream[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
        assert stream[-2]["usage"] == whole["usage"]
        made: list[Json] = []
        pieces: dict[str, str] = {}
        open_block = False
        for event in stream[1:-2]:
            kind = event["type"]
            if kind == "content_block_start":
                assert not open_block
                assert event["index"] == len(made)
                made.append(event["content_block"])
                open_block, pieces = True, {}
            elif kind == "content_block_delta":
                assert open_block
                assert event["index"] == len(made) - 1
                _, (key, value) = event["delta"].items()
                pieces[key] = pieces.get(key, "") + value
            elif kind == "content_block_stop":
                open_block = False
                if "partial_json" in pieces:
                    pieces = {"input": json.loads(pieces["partial_json"])}  # type: ignore[dict-item]
                made[-1] |= pieces
            else:
                assert kind == "ping"
        assert not open_block
        made[2]["id"] = whole["content"][2]["id"]  # made from the request's
        assert made == whole["content"]

    run(asks, speaking(SAID))


@pytest.mark.parametrize(
    ("extra", "stopped"),
    [
        ({"stop_sequences": ["brown"]}, ("stop_sequence", "brown")),
        ({"max_tokens": 2}, ("max_tokens", None)),
        ({}, ("end_turn", None)),
    ],
)
def test_why_an_answer_ended(extra: Json, stopped: tuple[str, str | None]) -> None:
    body = USER | {"max_tokens": 200, "temperature": 0} | extra
    answer = run(lambda c: c.ask(PATH, body), speaking("the quick brown fox"))
    assert (answer["stop_reason"], answer["stop_sequence"]) == stopped
    assert "brown" not in answer["content"][0]["text"] or not extra


def test_an_answer_that_fills_the_context_says_so() -> None:
    body = USER | {"max_tokens": 5000, "ignore_eos": True, "temperature": 0}
    answer = run(lambda c: c.ask(PATH, body))
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert sum(answer["usage"][name] for name in ("input_tokens", "output_tokens")) == 400


def test_a_call_that_was_cut_is_none() -> None:
    said = SAID.replace("1}", '1, "b": 22, "c": 333}')
    body = USER | {"tools": TOOLS, "temperature": 0}

    async def asks(client: Client) -> None:
        whole = await client.ask(PATH, body | {"max_tokens": 200})
        assert whole["content"][-1]["input"] == {"a": 1, "b": 22, "c": 333}
        cut = body | {"max_tokens": whole["usage"]["output_tokens"] - 20}
        answer = await client.ask(PATH, cut)
        assert [each["type"] for each in answer["content"]] == ["thinking", "text"]
        assert answer["stop_reason"] == "max_tokens"
        kinds = [each["type"] for each in await client.stream(PATH, cut)]
        assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3

    run(asks, speaking(said))


@pytest.mark.parametrize(
    ("format", "status"),
    [({"type": "json_schema", "schema": {"enum": ["dog"]}}, 200), ({"type": "text"}, 400)],
)
def test_a_format_holds_the_answer(format: Json, status: int) -> None:
    async def asks(client: Client) -> None:
        for body in ({"output_config": {"format": format}}, {"output_format": format}):
            response = await client.post(PATH, USER | body)
            assert response.status_code == status
            if status == 200:
                assert response.json()["content"][0]["text"] == '"dog"'
            else:
                assert "json_schema" in response.json()["error"]["message"]

    run(asks)


def chat(**fields: Any) -> tuple[Any, Notes]:
    body, _ = decode(MessagesRequest, json.dumps(USER | fields).encode())
    notes = Notes()
    return _chat(served(), body, notes), notes


def test_a_conversation_with_tools_is_read() -> None:
    """As Claude Code sends one: blocks everywhere, and its line for accounts first."""
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "You code."},
    ]
    call = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "2"}],
    }
    failed = {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "1+1"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "sum", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I add."},
                call,
                {**call, "id": "t2"},
            ],
        },
        {"role": "user", "content": [result, failed, {"type": "text", "text": "so?"}]},
    ]
    search = {"type": "web_search_20250305", "name": "web_search"}
    asked, notes = chat(
        system=system,
        messages=messages,
        tools=[*TOOLS, search],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["x"],
        thinking={"type": "adaptive"},
    )
    function = {"name": "add", "arguments": '{"a": 1}'}
    assert asked.messages == [
        {"role": "system", "content": "Be brief.\n\nYou code."},
        {"role": "user", "content": "1+1"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "sum",
            "tool_calls": [
                {"id": i, "type": "function", "function": function} for i in ("t1", "t2")
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "2"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no"},
        {"role": "user", "content": "so?"},
    ]
    assert [each["function"]["name"] for each in asked.tools] == ["add"]
    assert (asked.tool_choice, asked.parallel_tool_calls, asked.stop) == ("required", False, ["x"])
    assert notes.left == [
        "system[0]",
        "messages[1].content[1]:redacted_thinking",
        "tools[1]:web_search_20250305",
        "thinking",
    ]


def test_an_assistants_last_message_goes_on() -> None:
    asked, _ = chat(messages=[*USER["messages"], {"role": "assistant", "content": "The"}])
    assert (asked.continue_final_message, asked.add_generation_prompt) == (True, False)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([{"type": "image", "source": {}}], r"messages\[0\].content\[0\].source.type is None"),
        ([{"type": "text", "text": 3}], r"messages\[0\].content\[0\].text"),
        ([{"type": "document", "source": {"type": "url"}}], r"source.type is 'url'"),
        ([{"type": "tool_result", "content": "x"}], "tool_use_id"),
        (["x"], r"messages\[0\].content"),
        (None, r"messages\[0\].content"),
    ],
)
def test_what_is_no_text_is_named(content: Any, named: str) -> None:
    with pytest.raises(PromptError, match=named):
        chat(messages=[{"role": "user", "content": content}])


def test_errors_and_lists_of_models_are_anthropics() -> None:
    async def asks(client: Client) -> None:
        async def error(response: httpx.Response, status: int, kind: str) -> None:
            assert response.status_code == status
            found = response.json()
            assert found["type"] == "error"
            assert found["error"]["type"] == kind
            assert found["request_id"] == response.headers["request-id"]

        post, get = client.post, client.http.get
        version = {"anthropic-version": "2023-06-01"}
        await error(await post(PATH, {}), 400, "invalid_request_error")
        await error(await post(PATH, USER | {"model": "x"}), 404, "not_found_error")
        await error(await post(PATH, USER | {"mcp_servers": [{}]}), 400, "invalid_request_error")
        await error(await get("/v1/models/x", headers=version), 404, "not_found_error")
        await error(await get(PATH), 405, "invalid_request_error")
        assert "type" not in (await get("/v1/models/x")).json()
        listed = (await get("/v1/models", headers=version)).json()
        assert [each["id"] for each in listed["data"]] == ["tables", "other"]
        assert (listed["first_id"], listed["last_id"]) == ("tables", "other")
        assert listed["has_more"] is False
        one = (await get("/v1/models/other", headers=version)).json()
        assert (one["type"], one["id"]) == ("model", "other")

    run(asks)


def test_an_error_within_a_stream_is_an_event() -> None:
    engine = engines.make()
    step, steps = engine.step, iter(range(9))

    def failing() -> Any:
        if next(steps) == 3:
            raise RuntimeError("broken")
        return step()

    engine.step = failing  # type: ignore[method-assign]

    async def asks(client: Client) -> None:
        body = USER | {"stream": True, "max_tokens": 50, "ignore_eos": True}
        response = await client.post(PATH, body)
        last = events(response.text)[-1]
        assert last["type"] == "error"
        assert last["error"]["type"] == "api_error"
        assert "event: error\n" in response.text

    run(asks, engine)
