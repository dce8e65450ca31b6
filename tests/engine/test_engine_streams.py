"""Streams and stops: text comes in whole pieces and ends where it should."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.table_engines import (
    EOS,
    TOKENIZER,
    Target,
    drafters,
    key,
    knowing,
    make,
    speaker,
)

from paceline.core.types import SamplingParams
from paceline.drafters.base import NoDrafter


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


@settings(max_examples=25)
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
