"""Ollama's API: requests as its client sends them, lines as it reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.helpers import table_engines as engines
from tests.helpers.serving import CHAT, TEXT, Client, Json, run
from tests.serving.test_answers_over_http import NUMBERS, SAID, speaking

TOOL = {"type": "function", "function": {"name": "add", "parameters": NUMBERS}}
PLAIN = {"model": "tables", "stream": False, "options": {"temperature": 0, "num_predict": 12}}
USER = {"messages": [{"role": "user", "content": "the quick"}]}


async def lines(client: Client, path: str, body: Json) -> list[Json]:
    response = await client.post(path, body | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_chat_and_its_lines_say_the_same() -> None:
    body = PLAIN | USER | {"tools": [TOOL], "options": {"temperature": 0}}

    async def asks(client: Client) -> None:
        whole = await client.ask("/api/chat", body)
        message = whole["message"]
        assert (message["role"], message["thinking"]) == ("assistant", "well")
        assert message["content"].strip() == "sum:"
        [call] = message["tool_calls"]
        assert call["function"] == {"index": 0, "name": "add", "arguments": {"a": 1}}
        assert (whole["done"], whole["done_reason"]) == (True, "stop")
        *parts, last = await lines(client, "/api/chat", body)
        assert not any(each["done"] for each in parts)
        said = [each["message"] for each in parts]
        for name in ("content", "thinking"):
            assert "".join(each.get(name, "") for each in said) == message[name]
        assert [c for each in said for c in each.get("tool_calls", [])] == [call]
        assert last["done"] is True
        for name in ("eval_count", "prompt_eval_count", "done_reason"):
            assert last[name] == whole[name]

    run(asks, speaking(SAID))


def test_answers_are_those_of_the_other_routes() -> None:
    """Ollama samples at 0.8 with top-k 40 and top-p 0.9 where nothing is said."""
    sampled = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 5}
    options = {"num_predict": 12, "seed": 5, "repeat_penalty": 1.1, "stop": ["zz"]}
    penalty = {"repetition_penalty": 1.1}

    async def asks(client: Client) -> None:
        chat = await client.ask("/v1/chat/completions", CHAT | sampled | penalty)
        text = await client.ask("/v1/completions", TEXT | sampled | penalty)
        said, written = chat["choices"][0]["message"]["content"], text["choices"][0]["text"]
        body = {"model": "tables", "stream": False, "options": options}
        assert (await client.ask("/api/chat", body | USER))["message"]["content"] == said
        prompt = body | {"prompt": "the quick"}
        assert (await client.ask("/api/generate", prompt))["response"] == said
        raw = await client.ask("/api/generate", prompt | {"raw": True, "logprobs": True})
        assert raw["response"] == written
        assert (raw["done_reason"], len(raw["logprobs"])) == ("length", 12)
        parts = await lines(client, "/api/generate", prompt | {"raw": True})
        assert "".join(each["response"] for each in parts) == written
        held = await client.ask("/api/chat", PLAIN | USER | {"format": {"enum": ["dog"]}})
        assert held["message"]["content"] == '"dog"'

    run(asks)


def test_what_is_left_out_is_named_and_what_is_wrong_refused() -> None:
    async def asks(client: Client) -> None:
        extra = {"options": {"num_ctx": 9, "num_predict": 1}, "keep_alive": "5m", "think": True}
        response = await client.post("/api/chat", PLAIN | USER | extra)
        left = response.headers["x-paceline-ignored"]
        assert left == "options.num_ctx, keep_alive, think"
        image = {"messages": [{"role": "user", "content": "x", "images": ["eA=="]}]}
        wrong: list[tuple[str, Json, int, str]] = [
            ("chat", image, 400, "images"),
            ("chat", {}, 400, "messages"),
            ("chat", USER | {"model": "x"}, 404, "model"),
            ("chat", USER | {"format": "yaml"}, 400, "format"),
            ("chat", USER | {"options": {"temperature": "hot"}}, 400, "temperature"),
            ("generate", {"prompt": "x", "images": ["eA=="]}, 400, "images"),
            ("generate", {"prompt": "x", "context": [1]}, 400, "context"),
            ("generate", {"prompt": "x", "template": "{{ .Prompt }}"}, 400, "template"),
            ("generate", {"prompt": "x", "suffix": "y"}, 400, "suffix"),
            ("nothing", {}, 404, "/api/nothing"),
        ]
        for path, body, status, named in wrong:
            refused = await client.post(f"/api/{path}", PLAIN | body)
            assert refused.status_code == status, (path, body)
            assert named in refused.json()["error"]

    run(asks)


@pytest.mark.parametrize("path", ["tags", "ps"])
def test_the_model_is_listed(path: str) -> None:
    async def asks(client: Client) -> None:
        found = (await client.http.get(f"/api/{path}")).json()["models"]
        assert [each["name"] for each in found] == ["tables", "other"]
        assert "version" in (await client.http.get("/api/version")).json()
        shown: Any = await client.ask("/api/show", {"model": "tables"})
        assert shown["capabilities"] == ["completion", "embedding", "tools"]
        assert shown["template"] == engines.TOKENIZER.chat_template
        assert (await client.post("/api/show", {"model": "x"})).status_code == 404

    run(asks)
