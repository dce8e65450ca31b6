"""Several answers to one prompt: read once, blocks shared, tokens as if alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.engine.test_engine_memory import Featured, LastFeatured, drafters, finish, make
from tests.helpers.paged_table import PagedTable
from tests.helpers.table_engines import Completion, Target, key
from tests.helpers.table_engines import make as make_plain

from paceline.core.types import SamplingParams
from paceline.engine.engine import Engine
from paceline.errors import InvalidOption
from paceline.runtimes.kv_cache import BLOCK

PARAMS = SamplingParams(temperature=1.0, seed=3, max_new_tokens=30, ignore_eos=True)
PROMPT = [7] * 40 + list(range(20, 70)) + [9]  # 91 tokens: two full blocks, and a part


def answers(engine: Engine, count: int = 4, params: SamplingParams = PARAMS) -> list[Completion]:
    ids = [engine.add(PROMPT, params, sample=sample) for sample in range(count)]
    done = finish(engine)
    return [done[id] for id in ids]


def alone(sample: int, params: SamplingParams = PARAMS) -> tuple[object, ...]:
    engine = make()[0]
    id = engine.add(PROMPT, params, sample=sample)
    return key(finish(engine)[id])


EXPECTED = [alone(sample) for sample in range(4)]


def read(target: PagedTable) -> int:
    """Prompt tokens that were computed."""
    return sum(p.num_new for passes in target.passes for p in passes if p.num_new > 1)


@pytest.mark.parametrize("name", sorted(drafters()))
@pytest.mark.parametrize("keep", [None, 0])
@pytest.mark.parametrize("step_tokens", [None, 16])
def test_samples_share_the_prompt_and_are_as_alone(
    name: str, keep: int | None, step_tokens: int | None
) -> None:
    engine, target = make(drafter=drafters()[name], keep=keep, step_tokens=step_tokens)
    free = target.memory.free
    used: list[int] = []
    ids = [engine.add(PROMPT, PARAMS, sample=sample) for sample in range(4)]
    done = {}
    while engine.pending:
        for event in engine.step():
            if event.completion is not None:
                done[event.request] = event.completion
        used.append(free - target.memory.free)
    assert [key(done[id]) for id in ids] == EXPECTED
    assert len(set(EXPECTED)) == 4
    assert read(target) == len(PROMPT) - 1
    assert [done[id].cached_tokens for id in ids] == [0, *[len(PROMPT) - 1] * 3]
    # Two full blocks of the prompt are held once; each has its end and its text for itself.
    own = -(-(len(PROMPT) + PARAMS.max_new_tokens + 6) // BLOCK) - 2
    assert max(used) <= 2 + 4 * own
    assert target.memory.free == free


def test_a_sample_that_comes_later_or_after_the_others_is_the_same() -> None:
    for keep in (None, 0):
        engine, target = make(keep=keep)
        first = engine.add(PROMPT, PARAMS)
        for _ in range(5):
            engine.step()
        second = engine.add(PROMPT, PARAMS, sample=1)
        done = finish(engine)
        assert read(target) == len(PROMPT) - 1
        third = engine.add(PROMPT, PARAMS, sample=2)
        done |= finish(engine)
        assert [key(done[id]) for id in (first, second, third)] == EXPECTED[:3]


@pytest.mark.parametrize("blocks", [6, 10])
@pytest.mark.parametrize("keep", [None, 0])
def test_samples_in_little_memory(keep: int | None, blocks: int) -> None:
    params = replace(PARAMS, max_new_tokens=50)
    engine, target = make(blocks, keep=keep)
    assert list(map(key, answers(engine, 4, params))) == [alone(i, params) for i in range(4)]
    assert engine.scheduler.preemptions > 0
    assert target.memory.free == target.memory.blocks


@pytest.mark.parametrize("drafter", [Featured, LastFeatured])
def test_drafters_get_the_features_that_they_need(drafter: type[Featured]) -> None:
    engine, target = make(drafter=drafter())
    assert list(map(key, answers(engine))) == EXPECTED
    rest = 0 if drafter is Featured else len(PROMPT) - 1 - 16
    assert read(target) == (len(PROMPT) - 1) + 3 * (len(PROMPT) - 1 - rest)


def test_other_prompts_and_cancelled_samples_do_not_matter() -> None:
    engine, target = make(keep=0, step_tokens=16)
    ids = [engine.add(PROMPT, PARAMS, sample=sample) for sample in range(3)]
    other = engine.add([5, *PROMPT], PARAMS, sample=1)
    engine.step()
    engine.cancel(ids[0])  # while its prompt is being read
    done = finish(engine)
    assert [key(done[id]) for id in ids[1:]] == EXPECTED[1:3]
    plain = make()[0]
    id = plain.add([5, *PROMPT], PARAMS, sample=1)
    assert key(done[other]) == key(finish(plain)[id])
    assert target.memory.free == target.memory.blocks


def test_on_a_target_without_blocks() -> None:
    def run(engine: Engine, samples: Sequence[int]) -> list[tuple[object, ...]]:
        ids = [engine.add(PROMPT, PARAMS, sample=sample) for sample in samples]
        done = finish(engine)
        return [key(done[id]) for id in ids]

    target = Target()
    together = run(make_plain(target), range(3))
    assert together == [run(make_plain(), [sample])[0] for sample in range(3)]
    assert max(target.batches) == 3
    assert target.live == []


def test_greedy_samples_are_equal_and_a_negative_number_is_refused() -> None:
    engine, _ = make()
    same = answers(engine, 2, replace(PARAMS, temperature=0.0))
    assert key(same[0]) == key(same[1])
    with pytest.raises(InvalidOption, match="sample must be 0 or more, not -1"):
        engine.add(PROMPT, PARAMS, sample=-1)
