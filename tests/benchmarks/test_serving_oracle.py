"""The comparison of a server with the library alone: it is silent on ours, and finds a fault."""

from __future__ import annotations

import random

import pytest
from benchmarks.serving import oracle
from tests.helpers import table_engines as engines
from tests.helpers.serving import Client, run

from paceline.drafters.base import Drafter
from paceline.engine.engine import Engine
from paceline.errors import EngineFailed
from paceline.methods.prompt_lookup import PromptLookup


def make(drafter: Drafter | None = None) -> Engine:
    return engines.make(engines.Target(max_context=4000), drafter)


def cases(count: int) -> list[oracle.Case]:
    draw, alone = random.Random(3), oracle.Alone(make())
    return [alone.case(draw) for _ in range(count)]


def test_the_server_says_what_the_library_says_alone() -> None:
    asked = cases(40)
    assert {"tools", "response_format", "resume_token_ids", "n", "stop", "top_logprobs"} <= {
        name for case in asked for name in case.body
    }
    tally = oracle.Tally()

    async def work(client: Client) -> None:
        for case in asked:
            for stream in (False, True):
                body = case.body | {"stream": stream}
                said = await oracle.ask(client.http, case.path, body)
                tally.compare("", body, said, case.expected)
        await oracle.traffic(client.http, asked, 1.0, random.Random(1), "", tally)
        await oracle.batches(client.http, 1, "", tally)

    run(work, make(PromptLookup()), max_waiting=256)
    assert tally.answers > 0
    assert tally.batches == 1
    assert not tally.differences


def test_every_difference_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    path, body, expected = next(case for case in cases(20) if case.body.get("logprobs"))
    tally = oracle.Tally()

    async def work(client: Client) -> None:
        said = await oracle.ask(client.http, path, body)
        tally.compare("", body, said, expected)
        assert not tally.differences
        expected["choices"][0]["logprobs"][0][0] += 1e-7
        tally.compare("", body, said, expected)
        other = await oracle.ask(client.http, path, body | {"seed": 1, "temperature": 2.0})
        tally.compare("", body, other, expected)

    run(work, make())
    assert len(tally.differences) == 2
    assert "different" in capsys.readouterr().err


def test_a_refusal_is_no_answer() -> None:
    async def work(client: Client) -> None:
        for stream in (False, True):
            with pytest.raises(EngineFailed, match="400"):
                await oracle.ask(client.http, oracle.TEXT, {"prompt": [], "stream": stream})

    run(work)
