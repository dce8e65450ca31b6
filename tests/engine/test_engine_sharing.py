"""Cancelling, and several readers or engines at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.helpers.table_engines import (
    PROMPTS,
    SAMPLED,
    TOKENIZER,
    VOCABULARY,
    Target,
    bounded,
    drafters,
    finish,
    key,
    make,
)

from paceline.drafters.recycling import Recycling
from paceline.engine.engine import Completion


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
