"""Log-probabilities of prompts: the same numbers whatever else happens."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.engine.test_engine_memory import Featured, contextual, drafters, finish, make
from tests.helpers.table_engines import Target, key
from tests.helpers.table_engines import make as make_plain
from tests.runtimes import tiny_cpu

from paceline.core.types import SamplingParams, TokenLogprob
from paceline.drafters.base import NoDrafter
from paceline.engine.engine import Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.prefill import SCORED
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.policy.controller import Fixed
from paceline.runtimes.kv_cache import BLOCK
from paceline.sampling.generation import Generation
from paceline.sampling.sampler import logprobs
from paceline.verifiers.matching import Coupled

PROMPT = [7] * 40 + list(range(20, 90)) + [9]  # longer than a chunk
PARAMS = SamplingParams(max_new_tokens=9, ignore_eos=True, prompt_logprobs=2)
EXPECTED = tuple(
    logprobs(contextual(tuple(PROMPT[:place])), PROMPT[place], 2) for place in range(1, len(PROMPT))
)


def scored(engine: Engine, params: SamplingParams = PARAMS, sample: int = 0) -> Any:
    id = engine.add(PROMPT, params, sample=sample)
    return finish(engine)[id]


def test_numbers_are_those_of_each_prompt_token_under_raw_logits() -> None:
    assert len(PROMPT) > SCORED
    completion = scored(make()[0], replace(PARAMS, temperature=1.0, top_k=3, presence_penalty=1.0))
    assert completion.prompt_logprobs == EXPECTED
    first = completion.prompt_logprobs[0]
    assert first.token_id == PROMPT[1]
    assert len(first.top) == 2
    assert first.top[0][1] >= first.top[1][1]
    assert 0 < math.exp(first.top[0][1]) < 1


@pytest.mark.parametrize("name", sorted(drafters()))
@pytest.mark.parametrize("step_tokens", [None, 1, 24])
@pytest.mark.parametrize("keep", [None, 0])
def test_numbers_depend_on_nothing_but_the_prompt(
    name: str, step_tokens: int | None, keep: int | None
) -> None:
    """Chunks, company, drafts and cached prefixes; and the text is the same as without them."""
    engine, target = make(drafter=drafters()[name], step_tokens=step_tokens, keep=keep)
    plain = replace(PARAMS, prompt_logprobs=None)
    engine.add(PROMPT[:50], plain)
    ids = [engine.add(PROMPT, params) for params in (plain, PARAMS, PARAMS)]
    done = finish(engine)
    assert [done[id].prompt_logprobs for id in ids] == [(), EXPECTED, EXPECTED]
    again = scored(engine)
    assert again.prompt_logprobs == EXPECTED
    assert again.cached_tokens == 0  # shared tokens have no logits
    assert {key(done[id]) for id in ids} == {key(again)} == {key(make()[0].generate(PROMPT, plain))}
    after = engine.generate(PROMPT, plain)
    assert after.cached_tokens == (0 if keep == 0 else (len(PROMPT) - 1) // BLOCK * BLOCK)
    assert key(after) == key(again)
    assert target.memory.free == target.memory.blocks


def test_numbers_after_preemption_while_reading() -> None:
    engine, _ = make(10, step_tokens=16)
    params = SamplingParams(max_new_tokens=100, ignore_eos=True)
    others = [engine.add([30 + i] * 20, params) for i in range(2)]
    for _ in range(3):
        engine.step()
    id = engine.add(PROMPT, PARAMS)
    for _ in range(3):
        engine.step()
    sequence = next(each.sequence for each in engine.scheduler if each.sequence.id == id)
    assert 0 < len(sequence.prompt_logprobs) < len(PROMPT) - 1  # between two chunks
    assert engine._preempt()
    assert sequence.cache is None
    done = finish(engine)
    assert done[id].prompt_logprobs == EXPECTED
    assert engine.scheduler.preemptions > 0
    assert all(done[each].finish_reason == "length" for each in others)


def test_samples_read_and_score_a_prompt_once() -> None:
    for keep in (None, 0):
        engine, target = make(keep=keep)
        ids = [engine.add(PROMPT, PARAMS, sample=sample) for sample in range(3)]
        done = finish(engine)
        assert {done[id].prompt_logprobs for id in ids} == {EXPECTED}
        rows = sum(
            len(p.tree) + 1 for passes in target.passes for p in passes if p.tree and len(p.tree)
        )
        assert rows == len(PROMPT) - 1
        other = replace(PARAMS, prompt_logprobs=0)  # other numbers: read again
        ids = [engine.add(PROMPT, params, sample=i) for i, params in enumerate([PARAMS, other])]
        short = finish(engine)[ids[1]].prompt_logprobs
        assert short == tuple(replace(each, top=()) for each in EXPECTED)


def test_no_new_tokens_where_only_those_of_the_prompt_count() -> None:
    engine, target = make()
    completion = scored(engine, replace(PARAMS, max_new_tokens=0))
    assert completion.prompt_logprobs == EXPECTED
    assert (completion.text, completion.token_ids, completion.finish_reason) == ("", (), "length")
    first, *others = engine.events(PROMPT, PARAMS)
    assert first.prompt_logprobs == EXPECTED
    assert all(event.prompt_logprobs == () for event in others)
    events = list(engine.events([5], PARAMS, max_new_tokens=0))
    assert [event.completion.prompt_logprobs for event in events if event.completion] == [()]
    assert target.memory.free == target.memory.blocks
    with pytest.raises(InvalidOption, match=r"must be 1 or more .0 if only the prompt is scored"):
        engine.add(PROMPT, max_new_tokens=0)
    with pytest.raises(InvalidOption, match="prompt_logprobs must be 0 or more, or None, not -1"):
        engine.add(PROMPT, prompt_logprobs=-1)


def test_features_are_complete() -> None:
    """`Featured` checks them."""
    assert scored(make(drafter=Featured())[0]).prompt_logprobs == EXPECTED


def test_the_decoder_alone_and_a_target_without_blocks() -> None:
    engine = make_plain(Target(contextual))
    assert scored(engine).prompt_logprobs == EXPECTED
    sequence = Generation.start(9, PROMPT, PARAMS)
    engine.decoder.open(sequence)
    assert tuple(sequence.prompt_logprobs) == EXPECTED
    engine.decoder.close(sequence)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_bits_on_the_processor(precision: str) -> None:
    """Rows of a chain and rows of plain reading; another request may share what this one read."""
    target = tiny_cpu.target(precision)
    vocabulary = target.capabilities.vocab_size
    prompt = [(5 * i * i + i) % vocabulary for i in range(3, 103)]

    def engine(**limits: Any) -> Engine:
        stops = StopRules((), target.capabilities.max_context)
        parts = target, NoDrafter(), Coupled(), Fixed(0, 0), stops
        return Engine(AutoregressiveDecoder(*parts), make_plain().tokenizer, **limits)

    def run(one: Engine) -> list[tuple[TokenLogprob, ...]]:
        ids = [one.add(prompt[:each], PARAMS) for each in (100, 70, 33)]
        ids.append(one.add(prompt, PARAMS, prompt_logprobs=None, logprobs=1))
        done = finish(one)
        texts.append(done[ids[3]].logprobs)
        return [done[id].prompt_logprobs for id in ids]

    texts: list[Any] = []
    target.memory.sharing = False
    whole = run(engine())
    assert whole[0][:69] == whole[1]
    assert whole[0][:32] == whole[2]
    target.memory.sharing = True
    assert run(engine(step_tokens=16)) == run(engine(max_batch=1)) == run(engine()) == whole
    assert len(set(map(str, texts))) == 1
