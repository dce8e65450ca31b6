"""T3 on the real model: speculation on or off, alone or batched, the tokens are the same."""

from __future__ import annotations

import pytest
from tests.real.prompts import PROMPTS

from paceline import Completion, SamplingParams
from paceline.drafters.resources import Loaded
from paceline.registry.loading import make_engine

pytestmark = pytest.mark.real

GREEDY = SamplingParams(max_new_tokens=32)
SAMPLED = SamplingParams(
    max_new_tokens=24,
    temperature=1.0,
    top_p=0.95,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.1,
    seed=7,
    logprobs=2,
)
DRAFTERS = ("recycling", "prompt-lookup")


@pytest.fixture(scope="module")
def plain(loaded: Loaded) -> dict[str, list[Completion]]:
    """Plain decoding, one prompt at a time."""
    engine = make_engine(loaded, drafter="none")
    return {
        "greedy": [engine.generate(p, GREEDY) for p in PROMPTS],
        "sampled": [engine.generate(p, SAMPLED) for p in PROMPTS[:4]],
    }


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_ids_equal_plain_decoding(loaded, plain, drafter, batch):
    engine = make_engine(loaded, drafter=drafter, nodes=10, depth=4, max_batch=batch)
    prompts = PROMPTS if batch != 3 else PROMPTS[:5]
    outputs = engine.generate(prompts, GREEDY)
    for output, expected in zip(outputs, plain["greedy"], strict=False):
        assert output.token_ids == expected.token_ids
        assert output.text == expected.text
    assert sum(o.stats.accepted_tokens for o in outputs) > 0


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_seeded_sampling_equals_plain_decoding(loaded, plain, drafter, batch):
    engine = make_engine(
        loaded, drafter=drafter, verifier="coupled", nodes=8, depth=4, max_batch=batch
    )
    outputs = engine.generate(PROMPTS[:4], SAMPLED)
    for output, expected in zip(outputs, plain["sampled"], strict=True):
        assert output.token_ids == expected.token_ids
        if loaded.target.capabilities.bit_exact:  # then equal floats: the logits are the same
            assert output.logprobs == expected.logprobs
    if drafter == "recycling":  # penalties leave prompt lookup little to copy
        assert sum(o.stats.accepted_tokens for o in outputs) > 0


def test_plain_decoding_in_a_batch_equals_plain_decoding_alone(loaded, plain):
    engine = make_engine(loaded, drafter="none", max_batch=8)
    for output, expected in zip(engine.generate(PROMPTS, GREEDY), plain["greedy"], strict=True):
        assert output.token_ids == expected.token_ids


def test_the_cost_model_changes_no_token(loaded, plain):
    engine = make_engine(loaded, drafter="recycling", max_batch=4)
    for output, expected in zip(engine.generate(PROMPTS, GREEDY), plain["greedy"], strict=True):
        assert output.token_ids == expected.token_ids
