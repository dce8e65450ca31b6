"""Little memory on the real model: preemption, chunks and shared beginnings change no token."""

from __future__ import annotations

import numpy as np
import pytest
from tests.real.conftest import load
from tests.real.prompts import PROMPTS

from paceline.core.types import SamplingParams
from paceline.drafters.resources import Loaded
from paceline.registry.loading import load_model, make_engine

pytestmark = pytest.mark.real

TOKENS = 56


@pytest.fixture(scope="module")
def small() -> Loaded:
    return load_model(precision="int8", kv_tokens=640)


def params(index: int) -> SamplingParams:
    temperature = 0.8 if index % 2 else 0.0
    return SamplingParams(
        temperature=temperature, seed=index, max_new_tokens=TOKENS, ignore_eos=True
    )


def test_a_batch_of_eight_in_little_memory_equals_single_runs(small: Loaded) -> None:
    engine = make_engine(small, drafter="suffix-automaton", nodes=6)
    ids = [engine.add(prompt, params(i)) for i, prompt in enumerate(PROMPTS)]
    done = {}
    while engine.pending:
        done |= {e.request: e.completion for e in engine.step() if e.completion}
    assert engine.scheduler.preemptions > 0
    plain = make_engine(load("int8"), drafter="none")
    for index, (request, prompt) in enumerate(zip(ids, PROMPTS, strict=True)):
        completion = done[request]
        assert completion is not None
        assert completion.token_ids == plain.generate(prompt, params(index)).token_ids
    memory = engine.decoder.memory
    assert memory is not None
    assert memory.free == memory.blocks == 20


def test_shared_blocks_are_bit_for_bit_those_of_a_prefill() -> None:
    """Of a prompt that was read in chunks, and of tokens that were drafted and kept."""
    loaded = load("int8")
    engine = make_engine(loaded, drafter="suffix-automaton", nodes=6)
    other = engine.add(PROMPTS[0], params(0))
    engine.step()
    request = engine.add(PROMPTS[3] * 3, params(2))
    sequence = next(each.sequence for each in engine.scheduler if each.sequence.id == request)
    while engine.pending:
        engine.step()
    assert other != request
    assert sequence.stats.accepted_tokens > 0
    target = loaded.target
    shared, fresh = target.open(), target.open()
    shared.share(sequence.tokens)
    target.prefill(fresh, sequence.tokens)
    assert shared.length > sequence.prompt_length + 32
    blocks = range(shared.length // 32)
    memory = shared.pool.slabs[0].memory
    for block in blocks:
        assert shared.blocks[block] != fresh.blocks[block]
        assert np.array_equal(memory[:, shared.blocks[block]], memory[:, fresh.blocks[block]])
    target.release(shared)
    target.release(fresh)
