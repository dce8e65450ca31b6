"""Memory that is short: requests wait, share and give way, and nobody can tell from the output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.paged_table import PagedTable
from tests.helpers.table_engines import MODEL, TOKENIZER, VOCABULARY, Completion, key

from paceline.core.types import LogitArray, Needs, SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.recycling import Recycling
from paceline.engine.engine import Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.prefill import Chunk, KeptFeatures, Prefiller
from paceline.engine.scheduler import QueueFull
from paceline.engine.stopping import StopRules
from paceline.errors import ContextExceeded
from paceline.policy.controller import Controller, Fixed
from paceline.policy.cost import CostModel
from paceline.policy.cost_model import CostModelController
from paceline.proof.cases import FunctionDrafter, sampled_chain
from paceline.runtimes.kv_cache import BLOCK, BlockPool
from paceline.sampling.generation import Generation
from paceline.verifiers.matching import Coupled

LONG = SamplingParams(max_new_tokens=60, ignore_eos=True)


def contextual(context: tuple[int, ...]) -> LogitArray:
    """Mostly a function of the last token, so drafts are accepted; a little of all of them."""
    seed = crc32(np.array(context, np.int32).tobytes())
    noise = np.random.default_rng(seed).normal(size=VOCABULARY)
    row: LogitArray = (MODEL.logits(context) + 0.6 * noise).astype(np.float32)
    return row


def drafters() -> dict[str, Drafter]:
    return {
        "none": NoDrafter(),
        "recycling": Recycling(VOCABULARY),
        "drawn": FunctionDrafter(sampled_chain(MODEL.distribution)),
    }


def make(
    blocks: int = 400,
    drafter: Drafter | None = None,
    *,
    context: int = 160,
    max_batch: int = 8,
    step_tokens: int | None = None,
    controller: Controller | None = None,
    max_waiting: int | None = None,
    keep: int | None = None,
) -> tuple[Engine, PagedTable]:
    target = PagedTable(
        contextual, VOCABULARY, blocks, context=min(context, blocks * BLOCK), keep=keep
    )
    stops = StopRules(TOKENIZER.eos_token_ids, target.capabilities.max_context)
    decoder = AutoregressiveDecoder(
        target, drafter or NoDrafter(), Coupled(), controller or Fixed(6, 4), stops
    )
    limits = {"max_batch": max_batch, "step_tokens": step_tokens, "max_waiting": max_waiting}
    return Engine(decoder, TOKENIZER, **limits), target  # type: ignore[arg-type]


def alone(prompt: list[int], params: SamplingParams, context: int = 160) -> Completion:
    """The request run by itself, plainly, with plenty of memory."""
    return make(context=context)[0].generate(prompt, params)


def finish(engine: Engine, most: int = 2000) -> dict[int, Completion]:
    done = {}
    for _ in range(most):
        for event in engine.step():
            if event.completion is not None:
                done[event.request] = event.completion
        if not engine.pending:
            return done
    raise AssertionError("the engine goes round without an end")


@dataclass(frozen=True)
class Asked:
    """A request, when it comes, and when it is cancelled (steps), if ever."""

    prompt: list[int]
    params: SamplingParams
    comes: int
    cancelled: int | None


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    start = [draw(st.sampled_from([7, 8]))] * draw(st.sampled_from([0, 20, 40, 70]))
    own = draw(st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=24))
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.8, 1.2])),
        seed=draw(st.integers(0, 99)),
        max_new_tokens=draw(st.sampled_from([1, 70, 120, 120])),
        presence_penalty=draw(st.sampled_from([0.0, 0.8])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        stop=draw(st.sampled_from([(), (), ("qu",), ("lazy", "12")])),
        ignore_eos=draw(st.sampled_from([True, True, True, False])),
        logprobs=draw(st.sampled_from([None, 1])),
    )
    cancelled = draw(st.sampled_from([None, None, None, 3, 20, 60]))
    return Asked(start + own, params, draw(st.sampled_from([0, 0, 1, 5, 30])), cancelled)


@settings(max_examples=40)
@given(
    st.lists(requests(), min_size=2, max_size=6),
    st.integers(5, 9),
    st.sampled_from(sorted(drafters())),
    st.sampled_from([None, 1, 24]),
    st.sampled_from([6, 4, 2, 1]),
    st.sampled_from([None, None, 0, 2]),
)
def test_every_completion_is_that_of_the_request_run_alone(
    asked: list[Asked],
    blocks: int,
    name: str,
    step_tokens: int | None,
    places: int,
    keep: int | None,
) -> None:
    """Random arrivals, lengths, cancels and drafts in little memory; none of it leaks."""
    engine, target = make(
        blocks, drafters()[name], max_batch=places, step_tokens=step_tokens, keep=keep
    )
    ids: dict[int, Asked] = {}
    done: dict[int, Completion] = {}
    waiting = sorted(asked, key=lambda each: each.comes)
    for step in range(3000):
        while waiting and waiting[0].comes <= step:
            each = waiting.pop(0)
            ids[engine.add(each.prompt, each.params)] = each
        for request, each in ids.items():
            if request not in done and each.cancelled is not None and step >= each.cancelled:
                completion = engine.cancel(request)
                assert completion is not None
                done[request] = completion
        done |= {e.request: e.completion for e in engine.step() if e.completion}
        if not waiting and not engine.pending:
            break
    assert len(done) == len(asked)
    for request, completion in done.items():
        each = ids[request]
        expected = alone(each.prompt, each.params)
        if completion.finish_reason == "cancelled":
            count = len(completion.token_ids)
            assert completion.token_ids == expected.token_ids[:count]
        else:
            assert key(completion) == key(expected)
    assert target.memory.free == target.memory.blocks


PROMPTS = [[7] * 40 + [50 + i] * (9 * i + 1) for i in range(6)]


@pytest.mark.parametrize("name", sorted(drafters()))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_preempted_requests_go_on_as_if_nothing_had_happened(name: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, max_new_tokens=60, ignore_eos=True)
    engine, target = make(12, drafters()[name])
    events: dict[int, str] = {}
    ids = [engine.add(prompt, params) for prompt in PROMPTS]
    done = {}
    while engine.pending:
        for event in engine.step():
            events[event.request] = events.get(event.request, "") + event.text
            if event.completion is not None:
                done[event.request] = event.completion
    assert engine.scheduler.preemptions > 0
    for request, prompt in zip(ids, PROMPTS, strict=True):
        assert key(done[request]) == key(alone(prompt, params))
        assert events[request] == done[request].text  # nothing twice, nothing left out
    assert target.memory.free == target.memory.blocks


def test_negative_control_blocks_given_away_while_held_show_in_the_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sharing that does not count holders: the checks above would notice."""
    system = list(range(10, 10 + 3 * BLOCK))
    prompts = [[*system, 20 + i] for i in range(3)] + [[200 + i] * 90 for i in range(3)]

    def wrong() -> int:
        engine, _ = make(12, max_batch=3)
        done = engine_all(engine, prompts)
        pairs = zip(done, prompts, strict=True)
        return sum(c.token_ids != alone(prompt, LONG).token_ids for c, prompt in pairs)

    assert wrong() == 0
    monkeypatch.setattr(BlockPool, "share", lambda self, blocks: None)
    assert wrong() > 0


def test_the_oldest_request_is_never_preempted_and_the_order_is_kept() -> None:
    engine, _ = make(9, context=150)
    ids = [engine.add(prompt, LONG) for prompt in PROMPTS]
    ended: list[int] = []
    while engine.pending:
        oldest = min(each.sequence.id for each in engine.scheduler)
        before = len(next(iter(engine.scheduler)).sequence.tokens)
        for event in engine.step():
            if event.completion is not None:
                ended.append(event.request)
        first = next((e for e in engine.scheduler if e.sequence.id == oldest), None)
        assert first is None or len(first.sequence.tokens) > before - 1
        placed = [each.sequence.id for each in engine.scheduler.placed]
        queue = [e.sequence.id for e in engine.scheduler if e.sequence.id not in placed]
        assert queue == sorted(queue)
        assert not placed or not queue or max(placed) < min(queue)
    assert ended == ids  # equal lengths: first come, first served
    assert engine.scheduler.preemptions > 0


def test_a_common_beginning_is_read_once() -> None:
    engine, target = make()
    system = list(range(10, 10 + 3 * BLOCK))
    engine.generate([*system, 20, 21], LONG)

    def read(prompt: list[int]) -> int:
        target.passes.clear()
        engine.generate(prompt, LONG, max_new_tokens=1)
        return sum(each.num_new for each in target.passes[0])

    assert read([*system, 30, 31]) == 1
    assert read([*system[1:], 30, 31]) == len(system)
    unshared, other = make(keep=0)
    unshared.generate([*system, 20, 21], LONG)
    other.passes.clear()
    unshared.generate([*system, 20, 21], LONG, max_new_tokens=1)
    assert sum(each.num_new for each in other.passes[0]) == len(system) + 1


def test_prompts_that_come_together_share_what_the_first_of_them_reads() -> None:
    engine, target = make()
    system = list(range(10, 10 + 3 * BLOCK))
    prompts = [[*system, 20 + i, 21] for i in range(8)]
    done = engine_all(engine, prompts)
    read = sum(p.num_new for passes in target.passes[:2] for p in passes)
    assert read < len(system) + 8 * 3 + 8
    assert [key(c) for c in done] == [key(alone(prompt, LONG)) for prompt in prompts]
    assert target.memory.free == target.memory.blocks


def test_prompts_that_differ_early_are_read_together() -> None:
    engine, target = make()
    engine_all(engine, [[i] * 70 for i in range(10, 14)])
    assert [p.num_new for p in target.passes[0]] == [69, 59]  # 128 in the first forward
    target.passes.clear()  # and then as many as there is time for
    engine_all(engine, [[i] * 70 for i in range(20, 24)])
    assert [p.num_new for p in target.passes[0]] == [69] * 4


def engine_all(engine: Engine, prompts: list[list[int]]) -> list[Completion]:
    ids = [engine.add(prompt, LONG) for prompt in prompts]
    done = finish(engine)
    return [done[request] for request in ids]


def test_a_dialogue_goes_on_with_what_was_generated() -> None:
    """Tokens that were drafted and kept are shared like those of a prompt."""
    engine, target = make(drafter=Recycling(VOCABULARY))
    first = engine.generate(PROMPTS[0], LONG)
    longer = [*PROMPTS[0], *first.token_ids, 60, 61]
    target.passes.clear()
    again = engine.generate(longer, LONG, max_new_tokens=9)
    assert target.passes[0][0].num_new < BLOCK + 3
    assert key(again) == key(alone(longer, replace(LONG, max_new_tokens=9)))


def test_long_prompts_are_read_in_chunks_beside_steps() -> None:
    engine, target = make(drafter=Recycling(VOCABULARY), step_tokens=24)
    running = engine.add([5, 6], LONG)
    engine.step()
    late = engine.add([11] * 130, LONG, max_new_tokens=5)
    target.passes.clear()
    steps, done = 0, {}
    while late not in done:
        before = len(target.passes)
        events = engine.step()
        steps += len(target.passes) - before
        assert running in done or any(event.request == running for event in events)
        done |= {e.request: e.completion for e in events if e.completion}
    chunks = [p.num_new for passes in target.passes for p in passes if p.num_new > 1]
    assert chunks[0] == 23  # 24 rows, one of which is the running request's
    assert sum(chunks) == 129
    assert steps == len(target.passes)
    done |= finish(engine) if engine.pending else {}
    assert key(done[late]) == key(alone([11] * 130, replace(LONG, max_new_tokens=5)))


class Featured(NoDrafter):
    """Checks that features of every token up to the root arrive, once per admission."""

    name: ClassVar[str] = "featured"
    needs = Needs(features=True)

    def __init__(self) -> None:
        self.opened: list[int] = []

    def read(self, sequence: Generation, features: LogitArray) -> None:
        assert features[:, 0].astype(int).tolist() == sequence.tokens[:-1]
        assert features.shape[1] == 4
        self.opened.append(sequence.id)


def test_drafters_that_need_features_get_them_of_shared_and_resumed_tokens_too() -> None:
    drafter = Featured()
    engine, _ = make(12, drafter, step_tokens=20)
    ids = [engine.add(prompt, LONG) for prompt in PROMPTS]
    done = finish(engine)
    assert set(drafter.opened) == set(ids)
    assert len(drafter.opened) > len(ids)  # some twice
    for request, prompt in zip(ids, PROMPTS, strict=True):
        assert key(done[request]) == key(alone(prompt, LONG))


class LastFeatured(Featured):
    """Needs those of the last tokens alone; checks that there is no gap before the root."""

    needs = Needs(features=True, recent=16)

    def read(self, sequence: Generation, features: LogitArray) -> None:
        before = sequence.tokens[:-1]
        assert features[:, 0].astype(int).tolist() == before[len(before) - len(features) :]
        assert len(features) >= min(16, len(before))
        self.opened.append(len(before) - len(features))


def test_features_reach_as_far_back_as_tokens_were_read() -> None:
    drafter = LastFeatured()
    engine, _ = make(12, drafter, step_tokens=20)
    ids = [engine.add(prompt, LONG) for prompt in PROMPTS]
    done = finish(engine)
    assert 0 in drafter.opened  # all were read
    assert any(drafter.opened)  # some were shared
    for request, prompt in zip(ids, PROMPTS, strict=True):
        assert key(done[request]) == key(alone(prompt, LONG))


def test_features_before_a_gap_are_dropped() -> None:
    """A sequence that goes on from what others have cached of it meanwhile."""
    target = make(12)[1]
    reader, needs = Prefiller(target), Needs(features=True, recent=16)
    long, other = list(range(5, 95)), [7] * 40
    first, second = (Generation.start(id, [*long, *other], LONG) for id in range(2))
    for each in (first, second):
        reader.open(each, needs)
    chunk = Chunk(second, 16)
    reader.take(chunk, *target.forward(reader.rows([chunk], needs)), seconds=0.0)
    reader.read_all(first, needs)
    reader.share(second, needs)
    assert second.cache.length > 16
    reader.read_all(second, needs)
    features = reader.features(second)
    assert features is not None
    assert features[:, 0].astype(int).tolist() == second.tokens[:-1][-len(features) :]
    assert len(features) < len(second.tokens) - 17


class FeaturedRecycling(Recycling):
    """Drafts, partly right, and checks the features it gets."""

    needs = replace(Recycling.needs, features=True, recent=16)

    def __init__(self) -> None:
        super().__init__(VOCABULARY)
        self.opened: list[int] = []

    def read(self, sequence: Generation, features: LogitArray) -> None:
        LastFeatured.read(self, sequence, features)  # type: ignore[arg-type]


@pytest.mark.parametrize("drafter", [LastFeatured, FeaturedRecycling])
@pytest.mark.parametrize("length", [5, 31, 32, 33, 64, 90])
def test_a_second_turn_reads_its_new_tokens_and_a_block_at_most(
    drafter: type[LastFeatured], length: int
) -> None:
    engine, _ = make(40, drafter(), context=600, step_tokens=20)
    turn = [9] * length
    params = replace(LONG, max_new_tokens=45)
    for new in (0, 1, 7, 40, 64):
        turn += [11] * new
        done = engine.generate(turn, params)
        read = len(turn) - done.stats.cached_tokens
        assert read <= (new + 1 + BLOCK if new else length)
        assert key(done) == key(alone(turn, params, context=600))
        turn += done.token_ids


def test_features_that_are_kept_stay_within_their_bytes_and_the_least_used_go_first() -> None:
    kept = KeptFeatures(4, most=3 * 4 * 8)
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    assert len(kept.add(list(range(10)), rows[:10])) == 2  # behind the last full block
    begin, found = kept.behind(list(range(10)), 5)
    assert (begin, len(found)) == (4, 4)
    assert kept.behind([1, *range(1, 10)], 0) == (0, None)  # another token in front
    kept.behind(list(range(4)), 0)
    kept.add(list(range(20)), rows[12:])
    begin, found = kept.behind(list(range(20)), 12)
    assert begin == 12
    assert (found == rows[12:]).all()
    assert kept.behind(list(range(8)), 4) == (4, None)  # the oldest went
    assert kept.behind(list(range(4)), 0)[1] is not None
    kept.add(list(range(8)), np.ones((4, 3), dtype=np.float32))  # of a boundary more, read since
    begin, found = kept.behind(list(range(8)), 0)
    assert (begin, found.tolist()) == (0, [*rows[:4].tolist(), *[[1, 1]] * 4])
    kept.add(list(range(60)), np.zeros((60, 2), dtype=np.float32))  # more than there is room for
    assert kept.behind(list(range(60)), 0) == (0, None)
    assert np.shape(kept.behind(list(range(60)), 48)[1]) == (12, 2)


def test_drafts_shrink_before_anybody_is_preempted_for_them() -> None:
    """Near the end of the memory there is no room for a whole draft."""
    engine, target = make(4, Recycling(VOCABULARY), controller=Fixed(24, 4), context=128)
    completion = engine.generate(PROMPTS[0], LONG)
    assert key(completion) == key(alone(PROMPTS[0], LONG, context=128))
    assert engine.scheduler.preemptions == 0
    sizes = [len(p.tree) for passes in target.passes for p in passes if p.tree is not None]
    assert max(sizes) == 24
    assert any(0 < size < 24 for size in sizes[-12:])


def test_a_prompt_that_never_fits_is_refused_at_once() -> None:
    engine, _ = make(4)
    match = r"has 128 tokens and the key-value cache holds 128.*kv_"
    with pytest.raises(ContextExceeded, match=match):
        engine.generate([5] * 128)
    assert engine.pending == 0
    assert engine.generate([5] * 127).finish_reason in ("stop", "length")


def test_a_full_queue_refuses_and_forgets() -> None:
    engine, _ = make(max_batch=2, max_waiting=1)
    for _ in range(3):
        engine.add([5], LONG)
    with pytest.raises(QueueFull, match=r"3 requests are in flight.*try again"):
        engine.add([5], LONG)
    finish(engine)
    assert engine.generate([5], LONG).token_ids


def test_the_cost_model_drafts_less_beside_a_prompt_and_learns_nothing_from_it() -> None:
    costs = CostModel((1, 8, 16), [1.0, 1.05, 3.0])
    controller = CostModelController(costs)
    engine, target = make(drafter=Recycling(VOCABULARY), controller=controller)
    engine.add([5, 6], LONG)
    for _ in range(12):
        engine.step()
    engine.add([11] * 120, LONG)
    known, target.passes = list(costs.seconds), []
    engine.step()
    [passes] = target.passes
    assert len(passes) == 2
    assert not len(passes[0].tree or ())
    assert costs.seconds == known
    finish(engine)
