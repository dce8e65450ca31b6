"""What a completion holds, whatever it was batched and drafted with."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.table_engines import (
    EOS,
    MODEL,
    PROMPTS,
    SAMPLED,
    TOKENIZER,
    VOCABULARY,
    Target,
    drafters,
    finish,
    key,
    make,
)

from paceline.core.types import SamplingParams
from paceline.drafters.statistics.recycling import Recycling
from paceline.models.text import Tokenizer


def test_a_completion_reports_what_was_generated() -> None:
    target = Target()
    out = make(target).generate("the quick brown", SAMPLED)
    ends = out.token_ids[-1] == EOS
    assert out.finish_reason == ("stop" if ends else "length")
    assert out.text == TOKENIZER.decode(out.token_ids)
    assert out.prompt_tokens == len(
        TOKENIZER.chat([{"role": "user", "content": "the quick brown"}])
    )
    assert out.stats.committed_tokens == len(out.token_ids) == len(out.sources)
    assert out.stats.first_token_seconds is not None
    assert out.logprobs == ()
    assert target.live == []


def test_single_parameters_may_be_keywords() -> None:
    engine = make()
    whole = engine.generate("dog", SAMPLED)
    assert engine.generate("dog", SAMPLED, max_new_tokens=3).token_ids == whole.token_ids[:3]
    assert key(engine.generate("dog", temperature=1.0, seed=5, max_new_tokens=24)) == key(
        engine.generate("dog", SAMPLED, presence_penalty=0.0)
    )


def test_every_kind_of_prompt() -> None:
    engine = make()
    hello = [{"role": "user", "content": "hello"}]
    system = [{"role": "system", "content": "be kind"}, *hello]
    chat = engine.generate("hello", SAMPLED)
    assert key(engine.generate(hello, SAMPLED)) == key(chat)
    assert key(engine.generate(TOKENIZER.chat(hello), SAMPLED)) == key(chat)
    kind = engine.generate("hello", SAMPLED, system="be kind")
    assert kind.prompt_tokens == len(TOKENIZER.chat(system))
    assert key(engine.generate(system, SAMPLED)) == key(kind)
    plain = engine.generate("hello", SAMPLED, raw=True)
    assert plain.prompt_tokens == len(TOKENIZER.encode("hello"))
    assert list(map(key, engine.generate([hello, system], SAMPLED))) == [key(chat), key(kind)]
    assert [key(c) for c in engine.generate(["hello"], SAMPLED)] == [key(chat)]
    without = make(tokenizer=Tokenizer(TOKENIZER.core, eos_token_ids=(EOS,)))
    assert key(without.generate("hello", SAMPLED)) == key(plain)


@pytest.mark.parametrize("name", ["none", *drafters()])
@pytest.mark.parametrize("max_batch", [1, 2, 8])
@pytest.mark.parametrize("params", [SAMPLED, SamplingParams(max_new_tokens=24, logprobs=2)])
def test_batches_and_drafts_change_nothing(
    name: str, max_batch: int, params: SamplingParams
) -> None:
    """Continuous admission: fewer places than requests, requests of unequal length."""
    alone = [make().generate(prompt, params) for prompt in PROMPTS]
    target = Target()
    engine = make(target, drafters().get(name), max_batch=max_batch)
    together = engine.generate(PROMPTS, params)
    assert list(map(key, together)) == list(map(key, alone))
    assert max(target.batches) == min(max_batch, len(PROMPTS))
    assert target.live == []
    assert engine.pending == 0
    assert list(map(key, engine.generate(PROMPTS, params))) == list(map(key, alone))


def test_requests_join_while_others_run() -> None:
    engine = make(drafter=Recycling(VOCABULARY), max_batch=3)
    ids, done = [], {}
    for prompt in PROMPTS:
        ids.append(engine.add(prompt, SAMPLED))
        for event in engine.step():
            if event.completion:
                done[event.request] = event.completion
    done |= finish(engine)
    alone = [make().generate(prompt, SAMPLED) for prompt in PROMPTS]
    assert [key(done[request]) for request in ids] == list(map(key, alone))


def test_log_probabilities() -> None:
    out = make(drafter=Recycling(VOCABULARY)).generate("dog", SAMPLED, logprobs=3)
    assert [entry.token_id for entry in out.logprobs] == list(out.token_ids)
    context = TOKENIZER.chat([{"role": "user", "content": "dog"}])
    for entry in out.logprobs:
        distribution = MODEL.distribution(tuple(context)).probs
        assert entry.logprob == pytest.approx(np.log(distribution[entry.token_id]))
        assert [token for token, _ in entry.top] == np.argsort(-distribution)[:3].tolist()
        context.append(entry.token_id)
    only = make().generate("dog", SAMPLED, logprobs=0)
    assert all(entry.top == () for entry in only.logprobs)
    assert len(only.logprobs) == len(only.token_ids)
