"""What a completion holds, whatever it was batched and drafted with."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

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
from paceline.drafters.recycling import Recycling
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


@pytest.mark.parametrize("name", ["none", *drafters()])
def test_events_carry_the_log_probabilities_of_their_tokens(name: str) -> None:
    engine = make(drafter=drafters().get(name))
    events = list(engine.events("dog", SAMPLED, logprobs=1))
    for event in events:
        assert [entry.token_id for entry in event.logprobs] == list(event.token_ids)
    assert events[-1].completion is not None
    joined = tuple(entry for event in events for entry in event.logprobs)
    assert joined == events[-1].completion.logprobs
    assert all(event.logprobs == () for event in engine.events("dog", SAMPLED))


def test_a_request_may_be_prepared_in_other_threads() -> None:
    engine = make()
    with ThreadPoolExecutor(4) as pool:
        prepared = list(pool.map(lambda prompt: engine.prepare(prompt, SAMPLED), PROMPTS))
    assert engine.pending == 0
    assert [len(each.tokens) for each in prepared] == [
        len(TOKENIZER.chat([{"role": "user", "content": prompt}])) for prompt in PROMPTS
    ]
    ids = [engine.add(each) for each in prepared]
    done = finish(engine)
    assert [key(done[id]) for id in ids] == [key(make().generate(p, SAMPLED)) for p in PROMPTS]


@pytest.mark.parametrize("name", ["none", *drafters()])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_least_tokens_come_before_an_end(name: str, temperature: float) -> None:
    """Inside drafts too: where a place is in the text counts, not where it is in the draft."""
    params = replace(SAMPLED, temperature=temperature, logit_bias={EOS: 30.0, 9: 25.0})
    engine = make(drafter=drafters().get(name))
    assert engine.generate("dog", params).token_ids == (EOS,)
    out = engine.generate("dog", params, min_tokens=7)
    assert EOS not in out.token_ids[:7]
    assert out.token_ids[7:] == (EOS,)
    assert out.finish_reason == "stop"
    both = engine.generate("dog", params, min_tokens=7, stop_token_ids=(9,))
    assert not {EOS, 9} & set(both.token_ids[:7])
    ignored = engine.generate("dog", params, min_tokens=7, ignore_eos=True)
    assert ignored.token_ids[0] == EOS


def test_allowed_tokens_and_a_stop_string_that_stays() -> None:
    engine = make(drafter=Recycling(VOCABULARY))
    some = engine.generate("dog", SAMPLED, allowed_tokens=(40, 50, 60))
    assert set(some.token_ids) <= {40, 50, 60}
    whole = engine.generate("dog", SAMPLED)
    stop = whole.text[4:7]
    cut = engine.generate("dog", SAMPLED, stop=stop)
    kept = engine.generate("dog", SAMPLED, stop=stop, keep_stop=True)
    assert kept.text == cut.text + stop
    assert kept.token_ids == cut.token_ids
