"""Recorded requests of other people's clients: taken, with all that is left out named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import table_engines as engines
from tests.helpers.serving import Client, run

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
