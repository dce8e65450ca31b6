"""Recorded requests of other people's clients are taken, with all that is left out named; and what
the model says comes to them as it should.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import table_engines as engines
from tests.helpers.serving import Client, run
from tests.net.files import cases
from tests.serving.test_answers_over_http import speaking

from paceline.serving.messages import read_tools

FILES = sorted((Path(__file__).parent / "clients").glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("stream", [False, True])
def test_a_recorded_request_is_taken(file: Path, stream: bool) -> None:
    case = json.loads(file.read_text(encoding="utf-8"))
    expected, body = case["expected"], case["input"]["body"] | {"stream": stream}
    limit = "max_output_tokens" if "input" in body else "max_tokens"

    async def asks(client: Client) -> Any:
        return await client.post(case["input"]["path"], {limit: 20} | body)

    response = run(asks, engines.make(engines.Target(max_context=4000)))
    assert response.status_code == expected["status"], response.text
    ignored = response.headers.get("x-paceline-ignored", "")
    assert ignored.split(", ") == (expected["ignored"] or [""])
    names = [tool["function"]["name"] for tool in read_tools(body.get("tools") or [])]
    assert names == expected["tools"]
    if stream:
        assert '"error": {' not in response.text


def heard(answers: list[Any]) -> tuple[list[list[str]], str]:
    """The calls and the text of a whole answer, or of the events of a stream."""
    calls: list[list[str]] = []
    text = ""
    for answer in answers:
        kind = str(answer.get("type"))
        for item in [answer["item"]] if kind.endswith("item.done") else answer.get("output", []):
            if item["type"] == "function_call":
                calls.append([item["name"], item["arguments"]])
            text += "".join(part["text"] for part in item.get("content", []))
        for choice in answer.get("choices", []):
            said = choice.get("message") or choice["delta"]
            text += said.get("content") or ""
            for place, call in enumerate(said.get("tool_calls") or []):
                if call.get("index", place) == len(calls):
                    calls.append([call["function"]["name"], ""])
                calls[-1][1] += call["function"]["arguments"]
    return calls, text


@pytest.mark.parametrize(("given", "expected"), cases("exchanges"))
def test_a_client_gets_what_the_model_said(given: Any, expected: Any) -> None:
    """Expected are the calls that the client ran and sent back, and the text that it showed."""
    body = given["body"] | {"temperature": 0}
    body.pop("stream_options", None)

    async def asks(client: Client) -> None:
        whole = await client.post(given["path"], body | {"stream": False})
        assert whole.status_code == 200, whole.text
        ignored = whole.headers.get("x-paceline-ignored", "")
        assert ignored.split(", ") == (expected["ignored"] or [""])
        for answers in ([whole.json()], await client.stream(given["path"], body)):
            calls, text = heard(answers)
            assert calls == expected["calls"]
            assert text.strip() == expected["text"]

    run(asks, speaking(given["said"], room=8000))
