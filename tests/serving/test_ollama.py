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


def test_a_call_that_was_cut_is_none() -> None:
    body = PLAIN | USER | {"tools": [TOOL]}

    async def asks(client: Client) -> None:
        options = {"temperature": 0}
        count = (await client.ask("/api/chat", body | {"options": options}))["eval_count"]
        for less in (1, 20):
            cut = body | {"options": options | {"num_predict": count - less}}
            whole = await client.ask("/api/chat", cut)
            assert whole["done_reason"] == "length"
            *parts, _ = await lines(client, "/api/chat", cut)
            told = [call for part in parts for call in part["message"].get("tool_calls", [])]
            assert whole["message"].get("tool_calls", []) == told
            assert len(told) == (less == 1)

    run(asks, speaking(SAID.replace("1}", '1, "b": 22}')))


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


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"min_p": 0.2}, {}),
        ({"typical_p": 0.5}, {}),
        ({"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2}, {}),
        ({"repeat_penalty": 1.3}, {"repetition_penalty": 1.3, "repeat_last_n": 64}),
        ({"repeat_penalty": 1.3, "repeat_last_n": 4}, {}),
        ({"presence_penalty": 0.5, "frequency_penalty": 0.4}, {}),
        ({"temperature": 1.3, "top_k": 0, "top_p": 1.0}, {}),
        ({"stop": ["o"]}, {}),
        ({"num_predict": 3}, {"max_tokens": 3}),
        ({"num_predict": None, "temperature": None}, {}),
        ({"num_predict": -1, "stop": "e"}, {"max_tokens": -1, "stop": "e"}),
        ({"num_predict": -2, "stop": "e"}, {"max_tokens": -1, "stop": "e"}),
        ({"tfs_z": 1.0}, {}),
    ],
)
def test_options_are_fields_of_the_other_routes(options: Json, same: Json) -> None:
    usual = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 5}
    options = {"num_predict": 12, "seed": 5} | options
    fields = {name: each for name, each in options.items() if each is not None}
    fields.pop("num_predict", None)

    async def asks(client: Client) -> None:
        ours = CHAT | usual | fields | same
        said = (await client.ask("/v1/chat/completions", ours))["choices"][0]["message"]["content"]
        body = {"model": "tables", "stream": False, "options": options}
        if options["num_predict"] is None:
            said = said[:5]
        response = await client.post("/api/chat", body | USER)
        assert response.json()["message"]["content"].startswith(said)
        assert "x-paceline-ignored" not in response.headers
        if options["num_predict"] is not None:
            assert response.json()["message"]["content"] == said

    run(asks)


def test_a_seed_of_minus_one_is_a_fresh_one() -> None:
    async def asks(client: Client) -> None:
        body = PLAIN | USER | {"options": {"seed": -1, "num_predict": 2}}
        first, second = [(await client.ask("/api/chat", body))["seed"] for _ in range(2)]
        assert first != second

    run(asks)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/api/generate", {}),
        ("/api/generate", {"prompt": "", "keep_alive": 0}),
        ("/api/generate", {"prompt": "", "system": "be brief", "raw": True}),
        ("/api/chat", {}),
        ("/api/chat", {"messages": []}),
    ],
)
def test_what_asks_for_nothing_loads_the_model(path: str, asked: Json, stream: bool) -> None:
    """As `ollama run` does first, and clients to warm a model up."""

    async def asks(client: Client) -> None:
        response = await client.post(path, {"model": "tables", "stream": stream} | asked)
        assert response.status_code == 200, response.text
        [line] = [json.loads(each) for each in response.text.splitlines()]
        assert (line["done"], line["done_reason"], line["model"]) == (True, "load", "tables")
        said = line["message"]["content"] if path == "/api/chat" else line["response"]
        assert said == ""
        assert (await client.post(path, {"model": "x"} | asked)).status_code == 404
        assert client.service.idle

    run(asks)


def test_what_is_left_out_is_named_and_what_is_wrong_refused() -> None:
    async def asks(client: Client) -> None:
        extra = {"options": {"num_ctx": 9, "num_predict": 1}, "keep_alive": "5m", "think": True}
        response = await client.post("/api/chat", PLAIN | USER | extra)
        left = response.headers["x-paceline-ignored"]
        assert left == "keep_alive, options.num_ctx, think"
        quiet = {"keep_alive": -1, "think": False}
        assert (
            "x-paceline-ignored"
            not in (await client.post("/api/chat", PLAIN | USER | quiet)).headers
        )
        high = await client.post("/api/chat", PLAIN | USER | {"think": "high", "keep_alive": 0})
        assert high.headers["x-paceline-ignored"] == "keep_alive, think"
        image = {"messages": [{"role": "user", "content": "x", "images": ["eA=="]}]}
        wrong: list[tuple[str, Json, int, str]] = [
            ("chat", image, 400, "images"),
            ("chat", {"messages": 3}, 400, "messages"),
            ("chat", USER | {"options": {"num_predict": "all"}}, 400, "options.num_predict"),
            ("chat", USER | {"options": {"top_p": 2}}, 400, "options.top_p"),
            ("chat", USER | {"options": {"tfs_z": 0.5}}, 400, "options.tfs_z"),
            ("chat", USER | {"options": {"mirostat": 3}}, 400, "options.mirostat"),
            ("chat", {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
            ("chat", {"messages": [{"role": "x", "content": ""}]}, 400, "messages[0].role"),
            ("chat", {"messages": [{"role": "user", "content": "", "tool_calls": 5}]}, 400, "list"),
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
