"""The default model behind HTTP: under load and with drafts, what the library alone says."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.helpers.serving import Client, Json, run

import paceline
from paceline.core.types import SamplingParams, Speculation

pytestmark = pytest.mark.real
TEXTS = "/v1/completions"
PROMPTS = ["def add(a, b):\n", "The capital of France is", "one two three one two three one"]


def test_answers_under_load_are_those_of_the_library_alone() -> None:
    draw = random.Random(1)
    asked: list[Json] = []
    for seed in range(24):
        body: Json = {"prompt": draw.choice(PROMPTS), "max_tokens": draw.randrange(4, 24)}
        body |= {"seed": seed, "temperature": draw.choice([0.0, 1.0]), "logprobs": 2}
        body |= {"speculation": {"enabled": draw.random() < 0.6}, "return_token_ids": True}
        body |= {"presence_penalty": draw.choice([0.0, 0.6]), "min_p": draw.choice([0.0, 0.05])}
        asked.append(body)

    async def load(client: Client) -> list[Json]:
        return list(await asyncio.gather(*(client.ask(TEXTS, body) for body in asked)))

    answers = run(load, paceline.load("smollm2-135m", kv_tokens=512))
    alone = paceline.load("smollm2-135m", drafter="none")
    for body, answer in zip(asked, answers, strict=True):
        fields: dict[str, Any] = {key: body[key] for key in ("seed", "temperature", "min_p")}
        params = SamplingParams(
            **fields,
            presence_penalty=body["presence_penalty"],
            max_new_tokens=body["max_tokens"],
            logprobs=2,
        )
        plain = alone.generate(body["prompt"], params, raw=True, speculation=Speculation())
        [choice] = answer["choices"]
        assert choice["text"] == plain.text
        assert choice["token_ids"] == list(plain.token_ids)
        numbers = [each.logprob for each in plain.logprobs]
        assert choice["logprobs"]["token_logprobs"] == numbers
        assert answer["usage"]["completion_tokens"] == len(plain.token_ids)
