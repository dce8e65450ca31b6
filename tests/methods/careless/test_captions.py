"""Captions of a causal encoder: those of what was heard, in whichever pieces it came."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_whisper import freed
from tests.helpers.tiny_whisper import sound as heard
from tests.listening.test_windows import END, TIMES, engine, noise

from paceline.audio.mel import MelStream
from paceline.core.target import Rows
from paceline.engine.hearing import Speech
from paceline.errors import InvalidOption, OutOfMemory
from paceline.listening.windows import Listener
from paceline.methods.careless import captions as causal
from paceline.methods.careless.captions import CausalCaptions, CausalLive, chunk_ends, prompt_of
from paceline.runtimes.cpu import encoder


@pytest.fixture(scope="module")
def listener() -> Listener:
    return Listener(engine(rows=75))


def captions(listener: Listener, sound: np.ndarray, piece: int, **options: Any) -> list[list[int]]:
    """The captions behind each piece of a sound, and that of its end."""
    own = CausalCaptions(listener, **options)
    found = []
    for begin in range(0, len(sound), piece):
        if own.push(sound[begin : begin + piece]):
            found.append([*own.final, *own.caption])
    own.end()
    own.let_go()
    return [*found, [*own.final, *own.caption]]


def test_a_caption_is_that_of_a_sound_that_ends_there(listener: Listener) -> None:
    sound = noise(1.4, 3)
    found = captions(listener, sound, 4800 + 40, chunk=15)
    assert len({tuple(each) for each in found}) > 1
    for number, caption in enumerate(found[:-1], 1):
        own = CausalCaptions(listener, 15)
        own.push(sound[: number * 4840])
        assert own.caption == caption
        own.let_go()
    assert captions(listener, sound, 100, chunk=15)[-1] == found[-1]
    assert captions(listener, sound, len(sound), chunk=15)[-1] == found[-1]


def test_the_caption_is_the_greedy_text_of_the_masked_encoder(listener: Listener) -> None:
    sound = noise(1.4, 5)
    [*_, caption] = captions(listener, sound, 1000, chunk=10)
    stream = MelStream(20)
    frames = np.concatenate([stream.push(sound), stream.end()])
    target: Any = listener.engine.decoder.target
    heard = target.hear(frames, chunk_ends(0, len(frames) // 2, 10))
    cache = target.open_to(heard.memory)
    rows, written = prompt_of(listener, "en"), []
    for _ in range(len(caption) + 1):
        logits = target.forward([Rows.draft(cache, rows)])[0].logits[-1].copy()
        target.keep(cache, len(rows), ())
        logits[[*listener.rules.suppressed, *range(TIMES, 64)]] = -np.inf
        logits[list(listener.rules.first) if not written else []] = -np.inf
        rows = [int(logits.argmax())]
        written += rows
    target.release(cache)
    target.let_go(heard)
    assert len(caption) > 3
    assert written[:-1] == caption
    assert written[-1] == END or len(caption) == 64 - 2


def test_looking_back_at_less_changes_only_the_end(listener: Listener) -> None:
    sound = noise(1.4, 3)
    every = captions(listener, sound, 4840, chunk=15)
    assert captions(listener, sound, 4840, chunk=15, look_back=1000)[0] == every[0]
    for back in (0, 2):
        found = captions(listener, sound, 4840, chunk=15, look_back=back)
        for before, after in pairwise(found):
            kept = max(0, len(before) - back)
            assert after[:kept] == before[:kept]
    assert found != every


def test_a_full_window_is_followed_by_another(listener: Listener) -> None:
    sound = noise(4.0, 1)
    own = CausalCaptions(listener, 20)
    own.push(sound)
    own.end()
    assert own.final
    first = CausalCaptions(listener, 20)
    first.push(sound[: 60 * 320 + 40])
    assert own.final[: len(first.caption)] == first.caption
    own.let_go()
    first.let_go()
    target: Any = listener.engine.decoder.target
    assert target._writer.pool.free == target._writer.pool.blocks


def lived(listener: Listener, sound: np.ndarray, piece: int, back: int) -> list[str]:
    """Words that became final as a sound came in pieces."""
    live, final = CausalLive(CausalCaptions(listener, look_back=back), listener), list[str]()
    for begin in range(0, len(sound) + 1, piece):
        live.push(sound[begin : begin + piece])
        if begin + piece > len(sound):
            live.end()
        while (told := live.step(lambda: None)) is not None:
            assert len(told.draft) == len(told.drafted)
            final += told.final
    assert not live.waiting
    assert live.tokens > live.forwards // 2
    live.let_go()
    with pytest.raises(InvalidOption, match="has ended"):
        live.push(sound)
    return final


@pytest.mark.parametrize(("seconds", "back"), [(1.4, 2), (1.4, 60), (4.0, 2), (4.0, 60)])
def test_live_words_are_those_of_the_file(
    listener: Listener, seconds: float, back: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = noise(seconds, 3)
    own = CausalCaptions(listener, look_back=back)
    for begin in range(0, len(sound), own.samples):  # a caption a chunk, of a sound that is there
        own.push(sound[begin : begin + own.samples])
    own.end()
    own.let_go()
    told = listener.engine.tokenizer.decode([*own.final, *own.caption]).split()
    assert bool(own.final) == (seconds > 1.5)
    assert len(told) > 3
    for piece in (100, 4799, 5000, len(sound)):
        assert np.array_equal(lived(listener, sound, piece, back), told)
    if back == 60:  # words that may change are not final
        monkeypatch.setattr(CausalCaptions, "stays", property(lambda own: len(own.caption)))
        assert lived(listener, sound, 5000, back) != told


def test_nothing_heard_is_nothing_said(listener: Listener) -> None:
    own = CausalCaptions(listener)
    assert not own.push(noise(0.1))
    assert own.caption == own.final == []
    own.end()
    assert own.forwards
    own.let_go()


@pytest.mark.parametrize("back", [None, 2])
def test_shorter_turns_change_no_caption(
    listener: Listener, back: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = noise(1.4, 3)
    whole = captions(listener, sound, 4840, look_back=back)
    assert max(map(len, whole)) > 8
    monkeypatch.setattr(causal, "_TURN", 1)
    assert captions(listener, sound, 4840, look_back=back) == whole


def test_captions_stand_beside_requests_and_end_when_they_are_let_go(listener: Listener) -> None:
    """Requests of another thread change no caption; what is let go in a push hears no more."""
    sound, own = noise(1.4, 3), CausalCaptions(listener, look_back=2)
    alone = captions(listener, sound, 4840, look_back=2)
    asked = [Speech(heard(seed)) for seed in range(6)]
    said: list[Any] = []

    def work() -> None:
        for each in asked * 3:
            said.append(listener.engine.generate([41, 42], max_new_tokens=20, speech=each))

    beside = threading.Thread(target=work)
    beside.start()
    found = captions(listener, sound, 4840, look_back=2)
    beside.join()
    assert found == alone
    assert [each.token_ids for each in said[:6]] == [each.token_ids for each in said[6:12]]
    for each in asked:
        listener.engine.let_go(each)
    target: Any = listener.engine.decoder.target
    forward, forwards = target.forward, list[int]()

    def last(rows: Any) -> Any:
        forwards.append(len(rows))
        own.let_go()
        return forward(rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "forward", last)
        own.push(sound[:4840])
    assert not own.push(sound[4840:])
    own.end()
    assert own.forwards == len(forwards) > 0
    assert freed(listener.engine)


@pytest.mark.parametrize("piece", [4000, 4840, 9000])
def test_more_sounds_than_there_is_room_for_change_no_caption(
    listener: Listener, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for two, and five sounds at once, of one window and of more; a file beside them."""
    sounds = [noise(seconds, seed) for seed, seconds in enumerate((1.4, 4.0, 1.4, 2.0, 0.9))]
    alone = [captions(listener, each, piece, look_back=2) for each in sounds]
    file = Speech(heard(7))
    wanted = listener.engine.generate([41, 42], max_new_tokens=20, speech=file).token_ids
    monkeypatch.setattr(encoder, "_MEMORIES", 2)
    small = Listener(engine(rows=75))
    every = [CausalCaptions(small, look_back=2) for _ in sounds]
    found: list[list[list[int]]] = [[] for _ in sounds]
    for begin in range(0, max(map(len, sounds)), piece):
        for own, sound, told in zip(every, sounds, found, strict=True):
            if own.push(sound[begin : begin + piece]):
                told.append([*own.final, *own.caption])
        again = Speech(file.frames)
        said = small.engine.generate([41, 42], max_new_tokens=20, speech=again)
        assert said.token_ids == wanted
        small.engine.let_go(again)
    for own, told in zip(every, found, strict=True):
        own.end()
        told.append([*own.final, *own.caption])
        own.let_go()
    assert found == alone
    assert freed(small.engine)
    listener.engine.let_go(file)


def test_captions_beside_files_that_leave_no_room_say_so_and_go_on(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = noise(1.4, 3)
    alone = captions(listener, sound, 4840)[-1]
    monkeypatch.setattr(encoder, "_MEMORIES", 1)
    small = Listener(engine(rows=75))
    file, own = Speech(heard(7)), CausalCaptions(small)
    small.engine.generate([41, 42], max_new_tokens=2, speech=file)
    with pytest.raises(OutOfMemory, match="no room for another sound beside 1"):
        own.push(sound[:4840])
    small.engine.let_go(file)  # which is kept for another like it, until the room is needed
    own.push(sound[4840:])
    own.end()
    assert own.caption == alone
    own.let_go()
    assert freed(small.engine)


def test_wrong_numbers_are_refused(listener: Listener) -> None:
    for wrong in ({"chunk": 0}, {"chunk": 76}, {"look_back": -1}):
        with pytest.raises(InvalidOption, match=next(iter(wrong))):
            CausalCaptions(listener, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="not finite"):
        CausalCaptions(listener).push(np.full(9, np.inf, np.float32))
