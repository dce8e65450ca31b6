"""Steps that fail, and memory that is short on a target that states none."""

from __future__ import annotations

import pytest
from tests.helpers.table_engines import PROMPTS, SAMPLED, Target, drafters, finish, key, make

from paceline.errors import OutOfMemory, PromptError


@pytest.mark.parametrize("name", ["none", *drafters()])
def test_an_interrupted_step_leaves_the_engine_usable(name: str) -> None:
    target = Target()
    engine = make(target, drafters().get(name))
    bystander = engine.add("dog", SAMPLED)
    engine.step()
    engine.step()
    target.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS[:2], SAMPLED)
    assert engine.pending == 1  # the requests of the failed call are gone, others stay
    assert len(target.live) == 1
    assert key(finish(engine)[bystander]) == key(make().generate("dog", SAMPLED))
    out = engine.generate("the quick", SAMPLED)
    assert key(out) == key(make().generate("the quick", SAMPLED))


@pytest.mark.parametrize("name", ["none", *drafters()])
def test_a_step_without_memory_preempts_the_newest_and_goes_on(name: str) -> None:
    target = Target()
    engine = make(target, drafters().get(name))
    bystander = engine.add("dog", SAMPLED)
    engine.step()
    target.failure = OutOfMemory("full")
    outputs = engine.generate(PROMPTS[:2], SAMPLED)
    assert list(map(key, outputs)) == [key(make().generate(p, SAMPLED)) for p in PROMPTS[:2]]
    assert engine.scheduler.preemptions == 1
    assert all(event.request == bystander for event in engine.step())
    finish(engine)
    assert target.live == []


def test_a_step_without_memory_ends_a_request_that_runs_alone() -> None:
    target = Target()
    engine = make(target)
    alone = engine.add("dog", SAMPLED)
    engine.step()
    waiting = engine.add("the quick", SAMPLED)
    target.slots = 1
    target.failure = OutOfMemory("full")
    [failed, *_] = engine.step()
    assert (failed.request, failed.completion, str(failed.error)) == (alone, None, "full")
    assert engine.pending == 1
    assert key(finish(engine)[waiting]) == key(make().generate("the quick", SAMPLED))
    assert target.live == []


def test_a_bad_prompt_among_good_ones_leaves_nothing_behind() -> None:
    engine = make()
    with pytest.raises(PromptError):
        engine.generate(["dog", ""], SAMPLED)
    assert engine.pending == 0


@pytest.mark.parametrize("name", ["none", *drafters()])
def test_admission_waits_for_memory_while_others_run(name: str) -> None:
    target = Target()
    target.slots = 2
    engine = make(target, drafters().get(name))
    outputs = engine.generate(PROMPTS, SAMPLED)
    assert list(map(key, outputs)) == [key(make().generate(p, SAMPLED)) for p in PROMPTS]
    assert max(target.batches) == 2
    assert target.live == []


def test_a_request_that_does_not_even_fit_alone_is_an_error() -> None:
    target = Target()
    target.slots = 0
    engine = make(target)
    with pytest.raises(OutOfMemory):
        engine.generate("dog", SAMPLED)
    assert engine.pending == 0
    assert target.live == []
    target.slots = 1
    assert key(engine.generate("dog", SAMPLED)) == key(make().generate("dog", SAMPLED))
