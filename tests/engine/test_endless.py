"""Engines over texts without an end: drafts, batches, preemption and prefixes change no token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.helpers import hybrid
from tests.helpers.endless import CONFIG, WEIGHTS, WINDOW, endless_engine, endless_target
from tests.helpers.table_engines import VOCABULARY

from paceline.core import target as targets
from paceline.core.target import LEAVING, SINKS, whole
from paceline.core.types import Needs, SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.recycling import Recycling
from paceline.engine import speculator
from paceline.engine.engine import Engine
from paceline.errors import ContextExceeded, InvalidOption
from paceline.methods.prompt_lookup import PromptLookup
from paceline.models.ops import Temperature
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget
from paceline.trees.deterministic import SharedNoise

DRAW = np.random.default_rng(3)
SHORT = DRAW.integers(3, 300, 40).tolist()
LONG = DRAW.integers(3, 300, 900).tolist()
GREEDY = SamplingParams(max_new_tokens=800, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0, seed=4, top_k=3)


def ask(made: Engine, prompt: list[int], params: SamplingParams, **options: Any) -> Any:
    return made.generate(prompt, params, endless=WINDOW, **options)


@pytest.fixture(scope="module")
def plain() -> dict[tuple[int, float], tuple[int, ...]]:
    """Answers of an engine that drafts nothing, one by one."""
    made = endless_engine()
    return {
        (len(prompt), params.temperature): ask(made, prompt, params).token_ids
        for prompt in (SHORT, LONG)
        for params in (GREEDY, SAMPLED)
    }


def test_answers_go_on_beyond_the_context(plain: Any) -> None:
    assert {len(each) for each in plain.values()} == {GREEDY.max_new_tokens}
    with pytest.raises(ContextExceeded):
        endless_engine().generate(LONG, GREEDY)
    ended = endless_engine().generate(SHORT, GREEDY)
    assert ended.finish_reason == "length"
    assert len(ended.token_ids) == CONFIG.max_context - len(SHORT)
    # Before anything has left, it is the answer without an end.
    same = whole(WINDOW) - len(SHORT)
    assert ended.token_ids[:same] == plain[len(SHORT), 0.0][:same]
    assert ended.token_ids != plain[len(SHORT), 0.0][: len(ended.token_ids)]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_the_reference_answers_the_same(params: SamplingParams, plain: Any) -> None:
    made = endless_engine(target=ReferenceTarget(CONFIG, WEIGHTS, "fp32"), drafter=PromptLookup())
    short = replace(params, max_new_tokens=300)
    prompt = LONG[:700]  # the reference takes its time
    found = ask(made, prompt, short).token_ids
    assert found == ask(endless_engine(), prompt, short).token_ids


@pytest.mark.parametrize("kind", ["lookup", "recycling", "draft model"])
def test_drafts_and_batches_change_no_token(kind: str, plain: Any) -> None:
    drafter: Drafter = PromptLookup()
    if kind == "recycling":
        drafter = Recycling(VOCABULARY)
    if kind == "draft model":  # itself, as far as its context goes
        model = endless_target()
        drafter = DraftModel(model, VOCABULARY, SharedNoise([1]))
    made = endless_engine(drafter, max_batch=4)
    asked = [(p, each) for p in (SHORT, LONG) for each in (GREEDY, SAMPLED)]
    requests = [made.add(p, each, endless=WINDOW) for p, each in asked]
    found: dict[int, Any] = {}
    while made.pending:
        for event in made.checked_step():
            if event.completion is not None:
                found[event.request] = event.completion
    for request, (prompt, params) in zip(requests, asked, strict=True):
        assert found[request].token_ids == plain[len(prompt), params.temperature]
    accepted = sum(each.stats.accepted_tokens for each in found.values())
    assert accepted > 100


def test_short_memory_changes_no_token(plain: Any) -> None:
    """Two texts in memory for one and a half: one gives way, again and again."""
    made = endless_engine(PromptLookup(), tokens=whole(WINDOW) * 3 // 2 // 32 * 32, max_batch=4)
    requests = [made.add(LONG, GREEDY, endless=WINDOW), made.add(SHORT, SAMPLED, endless=WINDOW)]
    found: dict[int, Any] = {}
    while made.pending:
        for event in made.checked_step():
            if event.completion is not None:
                found[event.request] = event.completion.token_ids
    assert found[requests[0]] == plain[len(LONG), 0.0]
    assert found[requests[1]] == plain[len(SHORT), 1.0]
    assert made.scheduler.preemptions > 0
    memory = made.decoder.memory
    assert memory is not None
    assert memory.free == memory.blocks


def test_a_next_turn_goes_on_from_what_is_there(plain: Any) -> None:
    """What depends on tokens that have left is found by whole texts of the same window only."""
    made = endless_engine()
    answer = plain[len(LONG), 0.0]
    assert ask(made, LONG, GREEDY).token_ids == answer
    turn = [*LONG, *answer, *SHORT]
    short = replace(GREEDY, max_new_tokens=60)
    fresh = ask(endless_engine(), turn, short)
    again = ask(made, turn, short)
    assert again.token_ids == fresh.token_ids
    assert again.cached_tokens >= len(LONG) + len(answer) - 33
    wider = made.generate(turn[1:], short, endless=WINDOW)
    assert wider.cached_tokens == 0
    other = endless_engine(tokens=8000, target=None)
    assert other.generate(turn, short, endless=WINDOW).token_ids == fresh.token_ids


def test_samples_share_their_prompt_and_part(plain: Any) -> None:
    made = endless_engine(max_batch=3)
    requests = [
        made.add(made.prepare(LONG, replace(SAMPLED, max_new_tokens=350), endless=WINDOW, sample=n))
        for n in range(3)
    ]
    found: dict[int, Any] = {}
    while made.pending:
        for event in made.checked_step():
            if event.completion is not None:
                found[event.request] = event.completion
    assert found[requests[0]].token_ids == plain[len(LONG), 1.0][:350]
    assert len({each.token_ids for each in found.values()}) == 3
    for number, request in enumerate(requests):
        params = replace(SAMPLED, max_new_tokens=350)
        alone = made.prepare(LONG, params, endless=WINDOW, sample=number)
        assert ask_prepared(endless_engine(), alone) == found[request].token_ids


def ask_prepared(made: Engine, prepared: Any) -> Any:
    made.add(prepared)
    events = []
    while made.pending:
        events += made.checked_step()
    return events[-1].completion.token_ids


def test_scores_of_a_prompt_are_those_of_the_rule() -> None:
    """In chunks of any size; those behind the first loss are not those of a whole text."""
    params = SamplingParams(max_new_tokens=1, prompt_logprobs=0)
    found = [
        endless_engine(step_tokens=size).generate(LONG, params, endless=WINDOW).prompt_logprobs
        for size in (None, 23)
    ]
    assert found[0] == found[1]
    wide = endless_target(2000, max_context=1024)
    full = endless_engine(target=wide).generate(LONG, params).prompt_logprobs
    same = whole(WINDOW)
    assert found[0][: same - 1] == full[: same - 1]
    assert found[0] != full


def test_a_written_prompt_goes_on_beyond_the_context(plain: Any) -> None:
    made = endless_engine()
    with made.writing(GREEDY, endless=WINDOW) as prompt:
        for begin in range(0, len(LONG), 130):
            prompt.append(LONG[begin : begin + 130])
            while prompt.read():
                pass
        prompt.finish()
        found = prompt.completion()
    assert found.token_ids == plain[len(LONG), 0.0]
    assert found.cached_tokens > len(LONG) - 200


@pytest.mark.parametrize("last", [False, WINDOW, 2 * WINDOW])
def test_a_prompt_may_change_what_is_kept_of_it(last: int) -> None:
    """It is read again then, and drafters are told of what is."""
    made = endless_engine(Listening(), target=endless_target(max_context=1024))
    request = made.add(made.prepare(LONG[:700], GREEDY, endless=WINDOW, open=True))
    for _ in range(3):
        made.step()
    short = replace(GREEDY, max_new_tokens=40)
    made.replace(request, made.prepare(LONG[:650], short, endless=last))
    events = []
    while made.pending:
        events += made.checked_step()
    alone = endless_engine(target=endless_target(max_context=1024))
    expected = alone.generate(LONG[:650], short, endless=last)
    assert events[-1].completion.token_ids == expected.token_ids
    assert made.loop.drafter.heard == [650 - 1]  # type: ignore[attr-defined]


class Listening(NoDrafter):
    """Drafts nothing, and counts the features that it is given."""

    needs = Needs(features=True)

    def __init__(self) -> None:
        self.heard: list[int] = []

    def read(self, sequence: Any, features: Any) -> None:
        self.heard.append(len(features))


@pytest.mark.parametrize("wrong", ["sinks stay behind", "a draft lets tokens leave"])
def test_controls_differ(wrong: str, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if wrong == "sinks stay behind":
        monkeypatch.setattr(CpuTarget, "slide", lambda self, cache, sinks: cache.leave())
        found = ask(endless_engine(), LONG, GREEDY).token_ids
        assert found != plain[len(LONG), 0.0]
        return
    # Tokens leave one step too early, where a draft had no room.
    monkeypatch.setattr(speculator, "room_of", lambda cache: 10**6)
    made = endless_engine(DraftModel(endless_target(), VOCABULARY, SharedNoise([1])))
    slid: list[int] = []
    slide = CpuTarget.slide

    def told(self: Any, cache: Any, sinks: Any) -> None:
        slid.append(targets.stored(cache))
        slide(self, cache, sinks)

    monkeypatch.setattr(CpuTarget, "slide", told)
    params = replace(GREEDY, max_new_tokens=620)
    found = ask(made, SHORT, params).token_ids
    assert found != plain[len(SHORT), 0.0][:620]


@pytest.mark.parametrize("value", [1, WINDOW + 1, 0, 10 * LEAVING])
def test_windows_that_do_not_fit_are_refused(value: int) -> None:
    with pytest.raises(InvalidOption, match="endless must be true or a multiple of 256"):
        endless_engine().generate(SHORT, GREEDY, endless=value)


def test_a_window_that_the_cache_does_not_hold_is_refused() -> None:
    for tokens, told in (576, "key-value cache, which holds 576"), (512, "at least 544 tokens"):
        with pytest.raises(InvalidOption, match=told):
            endless_engine(tokens=tokens).prepare(SHORT, GREEDY, endless=True)


def test_the_usual_window_fits() -> None:
    assert endless_engine().prepare(SHORT, GREEDY, endless=True).window == 256
    wide = endless_target(16000, max_context=9000)
    assert endless_engine(target=wide).prepare(SHORT, GREEDY, endless=True).window == 4096
    assert whole(0) == SINKS + LEAVING


def test_who_keeps_all_says_so(tmp_path: Any) -> None:
    import paceline

    made = paceline.load(str(hybrid.save(tmp_path)), drafter="none")
    with pytest.raises(InvalidOption, match="'cpu' lets no tokens leave"):
        made.generate("the lazy dog", GREEDY, endless=True)


def test_layers_that_know_places_otherwise_keep_all() -> None:
    assert CONFIG.slides
    assert not replace(CONFIG, temperature=Temperature(8, (1.0, 1.1))).slides
    assert not hybrid.config().slides
