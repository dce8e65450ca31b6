"""Self-speculation on the real model: the text and the cache are those of plain decoding."""

from __future__ import annotations

import numpy as np
import pytest
from tests.real.prompts import PROMPTS

from paceline import SamplingParams
from paceline.drafters.resources import Loaded
from paceline.registry.loading import make_engine
from paceline.sampling.generation import Generation

pytestmark = pytest.mark.real

LEAST = {"swift:skip=0.1": 1.2, "swift:skip=0.1,trials=0": 1.2, "double-exit:stop=0.1": 1.2}
"""Tokens per forward, greedy. Early exits without training (`del`) bring about none."""
DRAFTERS = (*LEAST, "del:spacing=3,every=2")
PARAMS = {
    "greedy": SamplingParams(max_new_tokens=40),
    "sampled": SamplingParams(
        max_new_tokens=40, temperature=1, top_p=0.95, presence_penalty=0.3, seed=7
    ),
}


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_texts_are_those_of_plain_decoding(loaded: Loaded, drafter: str, params: str) -> None:
    sampling = PARAMS[params]
    plain = make_engine(loaded, drafter="none").generate(PROMPTS[:3], sampling)
    engine = make_engine(loaded, drafter=drafter, nodes=4, depth=4, max_batch=3)
    drafted = engine.generate(PROMPTS[:3], sampling)
    assert [each.token_ids for each in drafted] == [each.token_ids for each in plain]
    stats = [each.stats for each in drafted]
    assert sum(each.drafter_errors for each in stats) == 0
    forwards = sum(each.target_forwards for each in stats)
    committed = sum(each.committed_tokens for each in stats)
    if params == "greedy":
        assert committed > LEAST.get(drafter, 0.99) * forwards


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_cache_is_that_of_the_text(loaded: Loaded, drafter: str) -> None:
    """Bit for bit: what a second cache reads from the text alone gives the same logits."""
    engine = make_engine(loaded, drafter=drafter, nodes=4, depth=4)
    decoder, target = engine.decoder, loaded.target
    prompt = loaded.tokenizer.encode("The days of the week are Monday, Tuesday,")
    sequence = Generation.start(0, prompt, SamplingParams(max_new_tokens=64, ignore_eos=True))
    decoder.open(sequence)
    for _ in range(20):
        decoder.step([sequence])
    fresh = target.open()
    target.prefill(fresh, sequence.tokens[:-1])
    pool = target.memory  # type: ignore[attr-defined]
    for row in range(fresh.length):
        a, b = (
            pool.slabs[0].token(each.blocks[row // 32], row % 32)
            for each in (sequence.cache, fresh)
        )
        assert all(map(np.array_equal, a, b))
    decoder.close(sequence)
    target.release(fresh)
