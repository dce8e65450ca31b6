"""Mutated bodies: what they are, and that the server answers each without failing."""

from __future__ import annotations

import json
import random

from benchmarks.serving.abuse import SAMPLES, mutated
from tests.helpers import table_engines as engines
from tests.helpers.serving import Client, run


def test_mutations_differ_and_stay_short() -> None:
    draw = random.Random(1)
    made = {mutated(SAMPLES[path], draw) for path in SAMPLES for _ in range(50)}
    assert len(made) > 200
    whole = []
    for data in made:
        try:
            whole.append(json.loads(data))
        except (ValueError, RecursionError):
            continue
    assert 150 < len(whole) < len(made)
    counts = [each["max_tokens"] for each in whole if isinstance(each.get("max_tokens"), int)]
    assert max(counts) <= 8


def test_no_body_makes_the_server_fail() -> None:
    async def asks(client: Client) -> set[int]:
        for path, body in SAMPLES.items():  # or all would be refused for the same thing
            await client.ask(path, body)
        draw, found = random.Random(2), set()
        for number in range(400):
            path = list(SAMPLES)[number % len(SAMPLES)]
            data = mutated(SAMPLES[path], draw)
            response = await client.http.post(path, content=data)
            assert response.status_code < 500, (path, data[:500], response.text)
            assert "Traceback" not in response.text
            found.add(response.status_code)
        return found

    assert {200, 400} <= run(asks, engines.make(engines.Target(max_context=2000)))
