"""Requests for texts without an end."""

from __future__ import annotations

from typing import Any

import pytest
from tests.helpers.endless import WINDOW, endless_engine
from tests.helpers.serving import Client, Json, run

from paceline.methods.prompt_lookup import PromptLookup

LONG = "the quick brown fox jumps over the lazy dog 12 34 567 " * 60
BASE: Json = {"temperature": 1.0, "seed": 3, "ignore_eos": True}
ROUTES = [
    ("/v1/completions", {"prompt": LONG, "max_tokens": 300}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 300}),
    ("/v1/responses", {"input": LONG, "max_output_tokens": 300}),
]


def content(answer: Json) -> Any:
    if "output" in answer:
        return answer["output"][0]["content"][0]["text"]
    [choice] = answer["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_prompts_may_be_longer_than_the_context(path: str, body: Json) -> None:
    async def work(client: Client) -> list[Any]:
        whole = await client.http.post(path, json=BASE | body)
        assert whole.status_code == 400
        assert whole.json()["error"]["code"] == "context_length_exceeded"
        return [
            content(await client.ask(path, BASE | body | {"endless": window}))
            for window in (True, WINDOW)
        ]

    plain = run(work, endless_engine())
    assert plain[0] == plain[1]  # the usual window of so short a context
    assert run(work, endless_engine(PromptLookup(), max_batch=2)) == plain
    assert len(plain[0]) > 300


def test_an_answer_without_a_limit_takes_a_context() -> None:
    async def work(client: Client) -> Json:
        body = BASE | {"prompt": "the lazy dog", "endless": True}
        return await client.ask("/v1/completions", body)

    assert run(work, endless_engine())["usage"]["completion_tokens"] == 700


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (WINDOW + 1, "multiple of 256"),
        (10**6, "multiple of 256"),
        (0, "endless"),
        ("on", "endless"),
    ],
)
def test_what_cannot_be_is_refused(value: Any, told: str) -> None:
    async def work(client: Client) -> None:
        body = BASE | {"prompt": "the lazy dog", "endless": value}
        response = await client.http.post("/v1/completions", json=body)
        assert response.status_code == 400
        assert told in response.json()["error"]["message"]

    run(work, endless_engine())


def test_who_keeps_all_says_so() -> None:
    async def work(client: Client) -> None:
        body = BASE | {"prompt": "the lazy dog", "endless": True}
        response = await client.http.post("/v1/completions", json=body)
        assert response.status_code == 400
        assert "lets no tokens leave" in response.json()["error"]["message"]

    run(work)  # a table
