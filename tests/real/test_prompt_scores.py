"""Prompt log-probabilities and several answers on the real model: the same bits in any company."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.real.prompts import PROMPTS

from paceline.core.types import SamplingParams
from paceline.drafters.resources import Loaded
from paceline.engine.engine import Engine
from paceline.engine.memory import memory_of
from paceline.registry.loading import make_engine

pytestmark = [pytest.mark.real, pytest.mark.parametrize("loaded", ["int8"], indirect=True)]

TEXT = " ".join(PROMPTS[:3])
SCORED = SamplingParams(max_new_tokens=8, temperature=1.0, seed=4, prompt_logprobs=2)


def run(engine: Engine, params: list[SamplingParams]) -> list[Any]:
    """The answers to one prompt, each a sample of its own."""
    ids = [engine.add(TEXT, each, sample=sample) for sample, each in enumerate(params)]
    done = {}
    while engine.pending:
        done |= {event.request: event.completion for event in engine.step()}
    return [done[id] for id in ids]


def test_scores_and_samples_are_the_same_bits(loaded: Loaded) -> None:
    memory = memory_of(loaded.target)
    assert memory is not None
    free = memory.free
    mixed = [SCORED, replace(SCORED, prompt_logprobs=None), SCORED]
    first = run(make_engine(loaded, drafter="none"), mixed)
    memory.sharing = False
    again = run(make_engine(loaded, drafter="recycling", step_tokens=40), mixed)
    memory.sharing = True
    for one, other in zip(first, again, strict=True):
        assert one.token_ids == other.token_ids
        assert one.prompt_logprobs == other.prompt_logprobs
        assert other.cached_tokens in (0, one.prompt_tokens - 1)
    assert len({each.token_ids for each in first}) == 3
    assert first[0].prompt_logprobs == first[2].prompt_logprobs
    assert len(first[0].prompt_logprobs) == first[0].prompt_tokens - 1
    assert memory.free == free
