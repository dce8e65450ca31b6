"""The benchmark of the loop, with a tiny tokenizer."""

from __future__ import annotations

import pytest
from tests.helpers.tiny_model import tiny_tokenizer

from benchmarks import loop
from paceline.core.types import SamplingParams
from paceline.models.text import Tokenizer

TOKENIZER = Tokenizer(tiny_tokenizer(), eos_token_ids=(2,))
TEXT = loop.script(TOKENIZER, 100)[:100] * 20


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("drafting", loop.DRAFTING)
def test_steps_replay_the_text_and_drafts_are_partly_right(drafting: str, batch: int) -> None:
    # Forwards of about two milliseconds, as the controller is told: traced for coverage, drafts
    # take half of one. On a machine that does other things they do not pay now and then.
    for _ in range(4):
        engine = loop.make(drafting, TOKENIZER, TEXT, batch, evict=16)
        spent, tokens = loop.measure(
            engine, TEXT[:50], loop.TEMPERATURE_KINDS["greedy"], batch, steps=30
        )
        if (tokens > 1.2) == (drafting == "drafted"):
            break
    assert len(spent) == 30
    assert (spent > 0).all()
    assert (tokens > 1.2) == (drafting == "drafted")
    assert engine.pending == 0


def test_the_text_goes_on_where_the_prompt_ends() -> None:
    engine = loop.make("drafted", TOKENIZER, TEXT, 1, evict=32)
    done = engine.generate(TEXT[:50], SamplingParams(max_new_tokens=40), ignore_eos=True)
    assert list(done.token_ids) == TEXT[50:90]
