"""The engine on tabular targets with a real tokenizer: text, stops, admission, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.controllers.fixed import Fixed
from paceline.decode.autoregressive import AutoregressiveDecoder
from paceline.drafters.base import Drafter
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.none import NoDrafter
from paceline.drafters.prompt_lookup import PromptLookup
from paceline.drafters.recycling import Recycling
from paceline.engine import Completion, Engine
from paceline.errors import InvalidOption, OutOfMemory, PacelineError, PromptError
from paceline.exactness.drafting import FunctionDrafter, likely_chain
from paceline.exactness.tabular import (
    LogitsOf,
    TabularCache,
    TabularModel,
    TabularTarget,
    processed,
)
from paceline.growth.shared_noise import SharedNoise
from paceline.stopping import StopRules
from paceline.target import Output, Pass
from paceline.text import Tokenizer
from paceline.types import LogitArray, SamplingParams
from paceline.verifiers.base import Verifier
from paceline.verifiers.coupled import Coupled
from paceline.verifiers.greedy import Greedy
from tiny import CHAT_TEMPLATE, tiny_tokenizer

VOCABULARY = 320
EOS = 2
TOKENIZER = Tokenizer(tiny_tokenizer(VOCABULARY), eos_token_ids=(EOS,), chat_template=CHAT_TEMPLATE)
MODEL = TabularModel(VOCABULARY, 1, seed=7, sharpness=2.5)
PROMPTS = ["the quick", "dog", "12 34 567", "def f(x): return", "lazy lazy lazy dog"]
SAMPLED = SamplingParams(temperature=1.0, seed=5, max_new_tokens=24, presence_penalty=0.1)


class Target(TabularTarget):
    """Counts batches and knows which caches are open; fails when told to."""

    def __init__(self, logits: LogitsOf = MODEL.logits, max_context: int = 400) -> None:
        super().__init__(logits, VOCABULARY, max_context)
        self.batches: list[int] = []
        self.live: list[TabularCache] = []
        self.slots = 99
        self.failure: BaseException | None = None

    def open(self) -> TabularCache:
        self.live.append(super().open())
        return self.live[-1]

    def prefill(self, cache: TabularCache, tokens: List[int], features: bool = False) -> None:
        if len(self.live) > self.slots:
            raise OutOfMemory("no room for another sequence: use shorter or fewer sequences")
        super().prefill(cache, tokens)

    def forward(self, passes: List[Pass], rows: int = 0) -> list[Output]:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        self.batches.append(len(passes))
        return super().forward(passes, rows)

    def release(self, cache: TabularCache) -> None:
        super().release(cache)
        self.live.remove(cache)


def make(
    target: Target | None = None,
    drafter: Drafter | None = None,
    verifier: Verifier | None = None,
    max_batch: int = 8,
    tokenizer: Tokenizer = TOKENIZER,
    depth: int = 6,
) -> Engine:
    target = target or Target()
    stops = StopRules(tokenizer.eos_token_ids, target.capabilities.max_context)
    decoder = AutoregressiveDecoder(
        target, drafter or NoDrafter(), verifier or Coupled(), Fixed(depth, depth), stops
    )
    return Engine(decoder, tokenizer, max_batch=max_batch)


def drafters() -> dict[str, Drafter]:
    small = TabularModel(VOCABULARY, 1, seed=7, sharpness=2.0)
    return {
        "prompt-lookup": PromptLookup(),
        "recycling": Recycling(VOCABULARY),
        "draft-model": DraftModel(
            TabularTarget(small.logits, VOCABULARY), VOCABULARY, SharedNoise([1])
        ),
    }


def speaker(text: str) -> LogitsOf:
    """A model that says `text` after a prompt of one token, over and over, end token between."""
    script = [*TOKENIZER.encode(text), EOS]

    def logits(context: tuple[int, ...]) -> LogitArray:
        row = np.zeros(VOCABULARY, np.float32)
        row[script[(len(context) - 1) % len(script)]] = 9.0
        return row

    return logits


def knowing(logits: LogitsOf) -> Drafter:
    """A drafter whose greedy chains are always right."""
    return FunctionDrafter(likely_chain(processed(logits, SamplingParams(), [])))


def key(completion: Completion) -> tuple[object, ...]:
    """What must not depend on drafts or batches."""
    return (
        completion.text,
        completion.token_ids,
        completion.logprobs,
        completion.prompt_tokens,
        completion.finish_reason,
    )


def finish(engine: Engine) -> dict[int, Completion]:
    """Step until nothing is left."""
    done = {}
    while engine.pending:
        for event in engine.step():
            if event.completion is not None:
                done[event.request] = event.completion
    assert engine.step() == []
    return done


# Results


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
        law = MODEL.law(tuple(context)).probs
        assert entry.logprob == pytest.approx(np.log(law[entry.token_id]))
        assert [token for token, _ in entry.top] == np.argsort(-law)[:3].tolist()
        context.append(entry.token_id)
    only = make().generate("dog", SAMPLED, logprobs=0)
    assert all(entry.top == () for entry in only.logprobs)
    assert len(only.logprobs) == len(only.token_ids)


# Streams and stops


def test_events_carry_tokens_sources_and_the_completion() -> None:
    logits = speaker("the quick brown fox jumps over the lazy dog")
    engine = make(Target(logits), knowing(logits))
    events = list(engine.events([0]))
    *before, last = events
    assert all(event.completion is None for event in before)
    assert last.completion is not None
    out = last.completion
    assert tuple(t for event in events for t in event.token_ids) == out.token_ids
    assert tuple(s for event in events for s in event.sources) == out.sources
    assert events[0].sources == ("likely-chain",) * 6 + (None,)
    assert "".join(event.text for event in events) == out.text
    assert out.text == "the quick brown fox jumps over the lazy dog"


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.lists(st.text("abcdefghio \n", min_size=1, max_size=3), max_size=3),
    st.sampled_from([*drafters(), "none"]),
)
def test_pieces_add_up_to_the_text(seed: int, stops: list[str], name: str) -> None:
    params = SamplingParams(temperature=1.2, seed=seed, max_new_tokens=40, stop=tuple(stops))
    expected = make().generate("dog", params)
    engine = make(drafter=drafters().get(name))
    pieces = list(engine.stream("dog", params))
    assert "".join(pieces) == expected.text == engine.generate("dog", params).text
    assert all(pieces)
    assert not any(stop in expected.text for stop in stops)


def test_characters_of_several_tokens_come_whole() -> None:
    text = "naïve café, 日本語 🎉 done"
    logits = speaker(text)
    for drafter, depth in ((NoDrafter(), 1), (knowing(logits), 2), (knowing(logits), 7)):
        pieces = list(make(Target(logits), drafter, depth=depth).stream([0]))
        assert "".join(pieces) == text
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


TEXT = "the quick brown fox jumps over the lazy dog"


@pytest.mark.parametrize("depth", [1, 3, 30])
@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (("brown",), "the quick "),
        (("k brown f",), "the quic"),
        (("the",), ""),
        (("lazy", "fox"), "the quick brown "),
        (("ox j", "fox jumps"), "the quick brown f"),
        (("dog",), "the quick brown fox jumps over the lazy "),
        (("brown bear", "lazy cat"), TEXT),
        (("dogs",), TEXT),
    ],
)
def test_stop_strings_cut_an_accepted_run(
    depth: int, stops: tuple[str, ...], expected: str
) -> None:
    logits = speaker(TEXT)
    plain = make(Target(logits)).generate([0], stop=stops)
    engine = make(Target(logits), knowing(logits), depth=depth)
    found = engine.generate([0], stop=stops)
    assert key(found) == key(plain)
    assert found.text == expected
    assert found.finish_reason == "stop"
    pieces = []
    for event in engine.events([0], stop=stops):
        pieces.append(event.text)
        assert expected.startswith("".join(pieces))  # no part of a stop string shows up early
    assert "".join(pieces) == expected


def test_stop_ids_end_tokens_and_limits() -> None:
    logits = speaker(TEXT)
    ids = TOKENIZER.encode(TEXT)
    for drafter in (NoDrafter(), knowing(logits)):
        engine = make(Target(logits), drafter)
        whole = engine.generate([0])
        assert whole.token_ids == (*ids, EOS)
        assert (whole.text, whole.finish_reason) == (TEXT, "stop")
        on = engine.generate([0], ignore_eos=True, max_new_tokens=len(ids) + 4)
        assert on.token_ids == (*ids, EOS, *ids[:3])
        assert on.finish_reason == "length"
        cut = engine.generate([0], stop_token_ids=(ids[4],))
        first = ids.index(ids[4])
        assert cut.token_ids == tuple(ids[: first + 1])
        assert cut.text == TOKENIZER.decode(ids[:first])
        assert cut.finish_reason == "stop"
        short = engine.generate([0], max_new_tokens=5)
        assert short.token_ids == tuple(ids[:5])
        assert short.finish_reason == "length"


@pytest.mark.parametrize("prompt", [1, 2, 9, 11])
def test_the_context_limits_the_answer(prompt: int) -> None:
    logits = speaker(TEXT)
    for drafter in (NoDrafter(), knowing(logits)):
        out = make(Target(logits, max_context=12), drafter).generate([0] * prompt, ignore_eos=True)
        assert len(out.token_ids) == 12 - prompt
        assert out.finish_reason == "length"


def test_one_stop_string_needs_no_list() -> None:
    """A bare string is one stop, not a list of its characters."""
    out = make(Target(speaker(TEXT))).generate([0], stop="fox")
    assert out.text == "the quick brown "


# Cancelling, sharing


def test_cancel() -> None:
    target = Target()
    engine = make(target, max_batch=1)
    running, waiting = engine.add("dog", SAMPLED), engine.add("the", SAMPLED)
    engine.step()
    engine.step()
    never = engine.cancel(waiting)
    assert never is not None
    assert (never.text, never.token_ids, never.finish_reason) == ("", (), "cancelled")
    partial = engine.cancel(running)
    assert partial is not None
    assert partial.token_ids == make().generate("dog", SAMPLED).token_ids[:2]
    assert partial.text == TOKENIZER.decode(partial.token_ids)
    assert partial.finish_reason == "cancelled"
    assert engine.cancel(running) is None
    assert engine.cancel(99) is None
    assert engine.pending == 0
    assert target.live == []
    assert engine.step() == []


@pytest.mark.parametrize("name", drafters())
def test_closing_a_stream_cancels_its_request(name: str) -> None:
    target = Target()
    engine = make(target, drafters()[name])
    other = engine.add("dog", SAMPLED)
    stream = engine.stream("the quick", SAMPLED)
    next(stream)
    assert engine.pending == 2
    assert isinstance(stream, Iterator)
    stream.close()  # type: ignore[attr-defined]  # it is a generator
    assert engine.pending == 1
    assert len(target.live) == 1
    assert key(finish(engine)[other]) == key(make().generate("dog", SAMPLED))


def bounded(engine: Engine, steps: int = 300) -> Engine:
    """An engine that fails instead of looping for ever."""
    step, count = engine.step, iter(range(steps))

    def counted() -> Any:
        assert next(count, None) is not None, "the engine goes round without an end"
        return step()

    engine.step = counted  # type: ignore[method-assign]  # a guard of this test
    return engine


def test_two_streams_of_one_engine_may_be_read_in_turn() -> None:
    engine = bounded(make(drafter=Recycling(VOCABULARY)))
    streams = {p: engine.events(p, SAMPLED) for p in PROMPTS[:3]}
    texts = dict.fromkeys(streams, "")
    while streams:
        for prompt, events in tuple(streams.items()):
            event = next(events, None)
            if event is None:
                del streams[prompt]
            else:
                texts[prompt] += event.text
    assert texts == {p: make().generate(p, SAMPLED).text for p in PROMPTS[:3]}


def test_generate_inside_a_stream() -> None:
    engine = bounded(make())
    pieces: list[str] = []
    for piece in engine.stream("dog", SAMPLED):
        if not pieces:
            inner = engine.generate("the quick", SAMPLED)
        pieces.append(piece)
    assert key(inner) == key(make().generate("the quick", SAMPLED))
    assert "".join(pieces) == make().generate("dog", SAMPLED).text


@pytest.mark.parametrize("name", drafters())
def test_engines_that_share_a_target_do_not_disturb_each_other(name: str) -> None:
    target = Target()
    first, second = make(target, drafters()[name]), make(target)
    ids = [(first.add(p, SAMPLED), second.add(p, SAMPLED)) for p in PROMPTS]
    done: tuple[dict[int, Completion], dict[int, Completion]] = ({}, {})
    while first.pending or second.pending:
        for engine, found in zip((first, second), done, strict=True):
            found |= {e.request: e.completion for e in engine.step() if e.completion}
    for prompt, (a, b) in zip(PROMPTS, ids, strict=True):
        assert key(done[0][a]) == key(done[1][b]) == key(make().generate(prompt, SAMPLED))


# Failures


@pytest.mark.parametrize("name", ["none", *drafters()])
@pytest.mark.parametrize("error", [RuntimeError("lost"), OutOfMemory("full"), KeyboardInterrupt()])
def test_a_failed_step_leaves_the_engine_usable(name: str, error: BaseException) -> None:
    target = Target()
    engine = make(target, drafters().get(name))
    bystander = engine.add("dog", SAMPLED)
    engine.step()
    engine.step()
    target.failure = error
    with pytest.raises(type(error)):
        engine.generate(PROMPTS[:2], SAMPLED)
    assert engine.pending == 1  # the requests of the failed call are gone, others stay
    assert len(target.live) == 1
    assert key(finish(engine)[bystander]) == key(make().generate("dog", SAMPLED))
    out = engine.generate("the quick", SAMPLED)
    assert key(out) == key(make().generate("the quick", SAMPLED))


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


BAD: list[tuple[str, type[PacelineError], str, Callable[[Engine], object]]] = [
    ("empty text", PromptError, "empty", lambda e: e.generate("")),
    ("blank text", PromptError, "empty", lambda e: e.generate(" \n")),
    ("empty raw text", PromptError, "empty", lambda e: e.generate("", raw=True)),
    ("empty list", PromptError, "empty", lambda e: e.generate([])),
    ("empty list in a list", PromptError, "empty", lambda e: e.generate([[]])),
    ("too long", PromptError, "400", lambda e: e.generate([5] * 400)),
    ("mixed list", PromptError, "token ids", lambda e: e.generate([1, "a"])),  # type: ignore[arg-type]
    ("no prompt", PromptError, "text", lambda e: e.generate([1.5])),  # type: ignore[arg-type]
    ("id too large", PromptError, "320", lambda e: e.generate([1, VOCABULARY])),
    ("negative id", PromptError, "-1", lambda e: e.generate([-1])),
    ("unknown option", InvalidOption, "'temprature'", lambda e: e.generate("a", temprature=1)),
    ("temperature", InvalidOption, "temperature", lambda e: e.generate("a", temperature=-1)),
    ("top_p", InvalidOption, "top_p", lambda e: e.generate("a", top_p=0)),
    ("max tokens", InvalidOption, "max_new_tokens", lambda e: e.generate("a", max_new_tokens=0)),
    ("empty stop", InvalidOption, "stop", lambda e: e.generate("a", stop=("",))),
    ("banned id", InvalidOption, "banned", lambda e: e.generate("a", banned_tokens=(320,))),
    ("bias id", InvalidOption, "logit_bias", lambda e: e.generate("a", logit_bias={-1: 2.0})),
    ("forced id", InvalidOption, "forced", lambda e: e.generate("a", forced_tokens={0: 999})),
    ("stop id", InvalidOption, "stop_token", lambda e: e.generate("a", stop_token_ids=(320,))),
    (
        "everything banned",
        InvalidOption,
        "banned",
        lambda e: e.generate("a", banned_tokens=tuple(range(VOCABULARY))),
    ),
]


@pytest.mark.parametrize(("name", "error", "says", "call"), BAD, ids=[bad[0] for bad in BAD])
def test_bad_input_is_one_line_that_names_it(
    name: str, error: type[PacelineError], says: str, call: Callable[[Engine], object]
) -> None:
    engine = make()
    with pytest.raises(error) as caught:
        call(engine)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert engine.pending == 0


def test_streams_refuse_bad_input_too() -> None:
    with pytest.raises(PromptError):
        next(iter(make().stream("")))


def test_the_greedy_verifier_refuses_to_sample() -> None:
    engine = make(verifier=Greedy())
    with pytest.raises(InvalidOption, match=r"greedy.*use verifier 'coupled'"):
        engine.generate("dog", temperature=0.5)
    assert engine.generate("dog", max_new_tokens=3).token_ids


def test_an_engine_needs_a_place() -> None:
    with pytest.raises(InvalidOption, match="max_batch"):
        make(max_batch=0)
