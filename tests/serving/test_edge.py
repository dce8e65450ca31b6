"""Devices that draft for a server: its own text, over links that lose, repeat and reorder."""

from __future__ import annotations

import asyncio
import random
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import table_engines as engines
from tests.helpers.serving import Client, Json, run

from paceline.core.types import SamplingParams
from paceline.proof.tabular import TabularModel

EDGE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "edge.py"))
TEXTS = "/v1/completions"
PARAMS = SamplingParams(temperature=1.0, seed=5, max_new_tokens=40)
PROMPTS = [engines.TOKENIZER.prompt(text, raw=True) for text in engines.PROMPTS]
NEAR = TabularModel(engines.VOCABULARY, 1, seed=7, sharpness=2.0)
"""A draft model that is often right."""


def device() -> Any:
    return EDGE["Edge"](engines.make(engines.Target(NEAR.logits, 400)), longest=6)


def plain(prompt: list[int], params: SamplingParams) -> list[int]:
    return list(engines.make().generate(prompt, params, raw=True).token_ids)


def over(client: Client, loop: asyncio.AbstractEventLoop) -> Callable[[Json], Json]:
    """A link from another thread to the service in this one."""

    def ask(body: Json) -> Json:
        coming = asyncio.run_coroutine_threadsafe(client.ask(TEXTS, body), loop)
        return coming.result(30)

    return ask


def lossy(link: Callable[[Json], Json], draw: random.Random) -> Callable[[Json], Json]:
    """Loses requests and answers, repeats, and lets old requests arrive late."""
    old: list[Json] = []

    def ask(body: Json) -> Json:
        old.append(body)
        luck = draw.random()
        if luck < 0.2:
            raise TimeoutError  # the request never arrives
        if luck < 0.4:
            link(draw.choice(old))  # one from before arrives now; nobody waits for its answer
        answer = link(body)
        if luck < 0.6:
            raise TimeoutError  # the answer is lost
        return link(body) if luck < 0.7 else answer

    return ask


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_devices_get_the_text_of_the_server(temperature: float, seed: int | None) -> None:
    params = replace(PARAMS, temperature=temperature)
    devices = [device() for _ in PROMPTS]

    async def asks(client: Client) -> list[list[int]]:
        loop = asyncio.get_running_loop()

        def work(number: int) -> list[int]:
            link = over(client, loop)
            if seed is not None:
                link = lossy(link, random.Random(100 * seed + number))
            return list(devices[number].answer(link, PROMPTS[number], params))

        return list(
            await asyncio.gather(*(asyncio.to_thread(work, n) for n in range(len(PROMPTS))))
        )

    found = run(asks)
    assert found == [plain(prompt, params) for prompt in PROMPTS]
    total = sum(map(len, found))
    assert sum(each.rounds for each in devices) < 0.9 * total
    assert sum(each.accepted for each in devices) > 0.1 * total
    assert (sum(each.repeated for each in devices) > 0) == (seed is not None)


def test_a_device_that_lies_gets_the_same_text() -> None:
    class Liar(EDGE["Edge"]):  # type: ignore[misc]
        def _draft(self, prompt: Any, params: Any, known: Any, length: Any) -> list[int]:
            return [7] * 20

    liar = Liar(None)

    async def asks(client: Client) -> list[int]:
        link = over(client, asyncio.get_running_loop())
        return await asyncio.to_thread(lambda: list(liar.answer(link, PROMPTS[0], PARAMS)))

    assert run(asks) == plain(PROMPTS[0], PARAMS)


def test_a_link_that_stays_down_is_told() -> None:
    def down(body: Json) -> Json:
        raise ConnectionError

    with pytest.raises(ConnectionError, match="20 attempts"):
        list(device().answer(down, PROMPTS[0], PARAMS))


def test_a_draft_is_limited_and_of_the_model() -> None:
    async def asks(client: Client) -> None:
        body = {"prompt": PROMPTS[0], "max_tokens": 8}
        for draft, status in (([5] * 65, 400), ([100_000], 400), ([-1], 400), ("abc", 400)):
            body["speculation"] = {"draft_token_ids": draft}
            error = await client.refused(TEXTS, body, status)
            assert error["param"] in ("speculation.draft_token_ids", "prompt", "speculation")

    run(asks)
