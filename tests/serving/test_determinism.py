"""Checks of determinism that other servers have or skip, on the default model with drafts.

vLLM compares prompts asked alone with the same prompts as one batch; llama.cpp skips comparisons of
cached with uncached prompts, of batch sizes, and of parallel slots. Nothing is rounded here.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.helpers.serving import Client, Json, run

import paceline

pytestmark = pytest.mark.real
TEXTS = "/v1/completions"
TEXT = "the river rises in the hills and the river ends in the sea where the ships wait "
WORDS = TEXT.split()
PROMPTS = [" ".join(WORDS[place % 5 : place % 5 + 3 + place // 3]) for place in range(32)]


def load() -> paceline.Engine:
    return paceline.load("smollm2-135m", kv_tokens=2048)


def said(choice: Json) -> tuple[object, ...]:
    return choice["token_ids"], choice["text"], choice["logprobs"], choice["finish_reason"]


@pytest.mark.parametrize("loaded", [False, True])
def test_a_batch_says_what_its_prompts_say_alone(loaded: bool) -> None:
    body: Json = {"temperature": 0.6, "seed": 42, "logprobs": 5, "max_tokens": 8}
    body["return_token_ids"] = True

    async def work(client: Client) -> None:
        other: Json = {"prompt": "one two three", "temperature": 1.0, "max_tokens": 400}
        others = [asyncio.create_task(client.ask(TEXTS, other)) for _ in range(3 * loaded)]
        alone: list[Json] = []
        for prompt in PROMPTS:
            alone += (await client.ask(TEXTS, body | {"prompt": prompt}))["choices"]
        together = (await client.ask(TEXTS, body | {"prompt": PROMPTS}))["choices"]
        assert list(map(said, together)) == list(map(said, alone))
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    run(work, load())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_cached_prompt_changes_nothing(temperature: float) -> None:
    # So long that drafters which need its last tokens' features leave blocks to be shared.
    body: Json = {"prompt": TEXT * 20, "max_tokens": 24, "logprobs": 3, "seed": 7}
    body |= {"temperature": temperature, "return_token_ids": True}

    async def work(client: Client) -> None:
        first, second = [await client.ask(TEXTS, body) for _ in range(2)]
        details = [each["usage"]["prompt_tokens_details"] for each in (first, second)]
        assert details[0]["cached_tokens"] == 0 < details[1]["cached_tokens"]
        assert said(first["choices"][0]) == said(second["choices"][0])

    run(work, load())


def test_neither_batch_size_nor_slot_changes_a_seeded_answer() -> None:
    body: Json = {"prompt": PROMPTS[-1], "max_tokens": 24, "logprobs": 0, "seed": 11}
    body |= {"temperature": 1.0, "return_token_ids": True}

    async def work(client: Client) -> None:
        found = []
        for size in (1, 2, 4, 8):
            answers = await asyncio.gather(*(client.ask(TEXTS, body) for _ in range(size)))
            found += [said(each["choices"][0]) for each in answers]
        assert found == found[:1] * 15
        other = await client.ask(TEXTS, body | {"seed": 12})
        assert said(other["choices"][0]) != found[0]

    run(work, load())
