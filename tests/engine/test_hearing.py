"""Sounds are encoded in pieces: to the same bits, beside others, and freed whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_whisper import WhisperWeights, freed, sound, tiny_whisper
from tests.listening.test_windows import END, engine, words

from paceline.core.target import Rows
from paceline.core.types import SamplingParams
from paceline.drafters.base import NoDrafter
from paceline.engine import hearing
from paceline.engine.engine import Engine, Event
from paceline.engine.hearing import Speech
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption, OutOfMemory, PromptError, RequestFailed
from paceline.policy.controller import Fixed
from paceline.runtimes.cpu import encoder
from paceline.runtimes.cpu.target import CpuTarget
from paceline.verifiers.matching import Coupled

LONG = SamplingParams(temperature=1.0, seed=4, max_new_tokens=30, ignore_eos=True)


def of_room(kv_tokens: int) -> Engine:
    """An engine of longer texts, whose cache holds so many tokens."""
    config = tiny_whisper(encoder_layers=1, max_target_positions=128)
    target = CpuTarget(config, WhisperWeights(config), "fp32", kv_tokens=kv_tokens, threads=2)
    parts = target, NoDrafter(), Coupled(), Fixed(6, 4), StopRules((END,), 128)
    return Engine(AutoregressiveDecoder(*parts), words())


def pool(of: Engine) -> Any:
    target: Any = of.decoder.target
    return target._writer.pool


def numbers(target: Any, memory: Any) -> bytes:
    cache = target.open_to(memory)
    [found] = target.forward([Rows.draft(cache, [5, 40, 13])])
    target.release(cache)
    logits: np.ndarray = found.logits
    return logits.tobytes()


def finish(of: Engine, count: int) -> dict[int, Event]:
    done: dict[int, Event] = {}
    while len(done) < count:
        done |= {e.request: e for e in of.step() if e.completion or e.error}
    return done


def test_pieces_make_the_memory_of_the_whole() -> None:
    target: Any = engine(rows=75).decoder.target
    frames, other = sound(1), sound(2)
    whole = target.encode(frames)
    pieces = list(target.encoding(frames))
    assert len(pieces) > 10
    assert all(each is None for each in pieces[:-1])
    between = target.encoding(frames)
    for number, each in enumerate(between):
        if number == 5:
            target.release(target.encode(other))  # in the same buffers
        last = each
    assert numbers(target, whole) == numbers(target, pieces[-1]) == numbers(target, last)
    different = target.encode(other)
    assert numbers(target, whole) != numbers(target, different)


def test_others_go_on_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "SLOWER", 1.0)  # a piece a step
    own = engine(rows=75)
    first, second = Speech(sound(0)), Speech(sound(1))
    texts = [own.generate([41, 42], LONG, speech=each).token_ids for each in (first, second)]
    for each in (first, second):
        own.let_go(each)
    assert freed(own)
    first, second = Speech(sound(0)), Speech(sound(1))
    asked = [own.add([41, 42], LONG, speech=first)]
    while not own.scheduler.running:
        own.step()
    asked.append(own.add([41, 42], LONG, speech=second))
    steps = 0
    done: dict[int, Any] = {}
    while len(done) < 2:
        heard = second.memory is not None
        events = own.step()
        steps += not heard and any(event.token_ids for event in events)
        done |= {e.request: e.completion for e in events if e.completion}
    assert steps > 10  # in which nobody waited for the whole of it
    assert [done[each].token_ids for each in asked] == texts
    for each in (first, second):
        own.let_go(each)
    assert freed(own)


@pytest.mark.parametrize("held", [False, True])
def test_a_sound_is_freed_in_the_midst(held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "PIECE_SECONDS", 0.0)
    own, speech = engine(rows=75), Speech(sound(0))
    request = own.add([41, 42], LONG, speech=speech)
    for _ in range(3):
        own.step()
    assert speech.memory is None
    assert pool(own).free < pool(own).blocks
    if held:
        own.let_go(speech)
        own.cancel(request)
    else:
        own.cancel(request)
        own.let_go(speech)
    assert freed(own)
    # Another sound is heard behind it.
    other = Speech(sound(1))
    assert own.generate([41, 42], LONG, speech=other).token_ids
    own.let_go(other)
    assert freed(own)


def test_a_preempted_text_goes_on_over_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "SLOWER", 1e9)
    longer = replace(LONG, max_new_tokens=80)
    calm, own = of_room(1024), of_room(192)  # the beginnings of three, and not their ends
    alone = []
    for seed in range(3):
        speech = Speech(sound(seed))
        alone.append(calm.generate([41, 42], longer, speech=speech).token_ids)
    sounds = [Speech(sound(seed)) for seed in range(3)]
    asked = [own.add([41, 42], longer, speech=each) for each in sounds]
    for each in sounds:
        own.let_go(each)  # which waits for its request
    done = finish(own, 3)
    assert own.scheduler.preemptions
    found = [done[each].completion for each in asked]
    assert [each.token_ids for each in found if each is not None] == alone
    assert freed(own)


def test_a_sound_serves_texts_until_it_is_let_go() -> None:
    own, speech = engine(rows=75), Speech(sound(0))
    first = own.generate([41, 42], LONG, speech=speech)
    memory = speech.memory
    assert memory is not None
    assert own.generate([41, 42], LONG, speech=speech).token_ids == first.token_ids
    assert speech.memory is memory  # encoded once
    own.let_go(speech)
    assert freed(own)


def counted(of: Engine, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Frames that are encoded from now on."""
    found: list[np.ndarray] = []
    whole = of.hearing._encoding  # type: ignore[union-attr]

    def encoding(frames: np.ndarray) -> Iterator[Any]:
        found.append(frames)
        return whole(frames)

    monkeypatch.setattr(of.hearing, "_encoding", encoding)
    return found


def test_equal_sounds_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = engine(rows=75), engine(rows=75)
    made = counted(own, monkeypatch)
    alone = Speech(sound(0))
    text = other.generate([41, 42], LONG, speech=alone).token_ids
    sounds = [Speech(sound(0)) for _ in range(3)]
    asked = [own.add([41, 42], LONG, speech=each) for each in sounds]
    done = finish(own, 3)
    assert [done[each].completion.token_ids for each in asked] == [text] * 3  # type: ignore[union-attr]
    assert len(made) == 1
    for each in sounds[:2]:
        own.let_go(each)
    assert own.generate([41, 42], LONG, speech=sounds[2]).token_ids == text
    own.let_go(sounds[2])
    # Nobody has it now, and the next one finds it; one number of another is another sound.
    again, near = Speech(sound(0)), Speech(sound(0))
    near.frames[70, 3] += 0.5
    near = Speech(near.frames)
    assert own.generate([41, 42], LONG, speech=again).token_ids == text
    assert len(made) == 1
    found = own.generate([41, 42], LONG, speech=near).token_ids
    assert len(made) == 2
    assert found == other.generate([41, 42], LONG, speech=Speech(near.frames)).token_ids
    own.let_go(again)
    own.let_go(near)
    assert freed(own)


def test_of_sounds_that_nobody_uses_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    own = engine(rows=75)
    made = counted(own, monkeypatch)
    blocks = pool(own).blocks // encoder._MEMORIES

    def hear(seed: int) -> None:
        speech = Speech(sound(seed))
        own.generate([41, 42], replace(LONG, max_new_tokens=1), speech=speech)
        own.let_go(speech)

    for seed in range(hearing._KEPT):
        hear(seed)
    hear(0)  # which is the last used now
    hear(hearing._KEPT)
    assert pool(own).blocks - pool(own).free == hearing._KEPT * blocks
    assert len(made) == hearing._KEPT + 1
    hear(0)
    assert len(made) == hearing._KEPT + 1
    hear(1)
    assert len(made) == hearing._KEPT + 2
    assert freed(own)


def test_an_encoder_that_fails_ends_its_request_alone(
    monkeypatch: pytest.MonkeyPatch, survived: list[str]
) -> None:
    own, good, bad = engine(rows=75), Speech(sound(0)), Speech(sound(1))
    target: Any = own.decoder.target
    encoding = target.encoding

    def failing(frames: np.ndarray) -> Iterator[Any]:
        if frames is bad.frames:
            yield None
            raise ZeroDivisionError
        yield from encoding(frames)

    assert own.hearing is not None
    monkeypatch.setattr(own.hearing, "_encoding", failing)
    asked = [own.add([41, 42], LONG, speech=each) for each in (bad, good, bad)]
    done = finish(own, 3)
    assert done[asked[1]].completion is not None
    assert isinstance(done[asked[0]].error, RequestFailed)
    assert isinstance(done[asked[2]].error, RequestFailed)
    survived.clear()


def test_a_sound_without_room_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_MEMORIES", 1)
    own = engine(rows=75)
    sounds = [Speech(sound(0)), Speech(sound(1))]
    asked = [own.add([41, 42], LONG, speech=each) for each in sounds]
    own.let_go(sounds[0])
    done = finish(own, 2)
    assert all(done[each].completion for each in asked)
    own.let_go(sounds[1])
    held = Speech(sound(0))
    own.generate([41, 42], LONG, speech=held)
    with pytest.raises(OutOfMemory, match="no room for another sound"):
        own.generate([41, 42], LONG, speech=Speech(sound(1)))


def test_what_the_encoder_does_not_read_is_refused() -> None:
    own = engine(rows=75)
    with pytest.raises(InvalidOption, match="up to 150"):
        own.generate([41, 42], LONG, speech=Speech(sound(1, 152)))
    with pytest.raises(PromptError, match="writes down sound"):
        own.generate([41, 42])


@pytest.mark.parametrize(("idle", "remade"), [(0.0, 12), (60.0, 6)])
def test_who_rests_gives_way_and_else_who_was_last(
    idle: float, remade: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four that go on by turns, where there is room for three: not each is made anew each time."""
    monkeypatch.setattr(hearing, "_IDLE", idle)
    own, there, made = engine(rows=75).hearing, set[int](), list[int]()
    assert own is not None

    def go_on(owner: int) -> None:
        if owner not in there:
            if len(there) == 3:
                raise OutOfMemory("full")
            there.add(owner)
            made.append(owner)

    for _ in range(3):
        for owner in range(4):
            own.hear_on(owner, partial(go_on, owner), partial(there.remove, owner))
    assert len(made) == remade
    for owner in range(4):
        own.free(owner)
        own.free(owner)
    assert not there
