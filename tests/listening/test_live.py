"""Captions of a sound that comes: on a virtual clock by a scripted speaker, and by an engine."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_whisper import LoudFinder, freed
from tests.listening.test_windows import WORDS, engine, noise

from paceline.audio.mel import RATE, WINDOW
from paceline.drafters.base import NoDrafter
from paceline.errors import InvalidOption
from paceline.listening import live as live_module
from paceline.listening.live import Live, LiveCaption
from paceline.listening.timestamps import Segment
from paceline.listening.windows import Listener, Listening


class Speaker:
    """Says word i in second i: a listener whose transcripts are those of the samples' numbers.

    A sample holds the number of its word. The last word of a window may be misheard.
    """

    def __init__(self, seed: int, hears: float = 1.0) -> None:
        self.rng, self.hears = random.Random(seed), hears
        self.engine: Any = self
        self.tokenizer: Any = self
        self.rules: Any = self
        self.end, self.continues = 1000, True
        self.windows: list[tuple[float, int, list[str]]] = []

    def decode(self, tokens: tuple[int, ...]) -> str:
        return " ".join(f"w{each}," if self.rng.random() < 0.3 else f"W{each}" for each in tokens)

    def stream(self) -> Any: ...

    def begin(self, window: np.ndarray, asked: Listening) -> Any:
        self.windows.append((len(window) / RATE, int(window[0]), asked.prompt.split()))
        return Step(self, window)


class Step:
    language = "en"
    likely: tuple[int, ...] = ()

    def __init__(self, speaker: Speaker, window: np.ndarray) -> None:
        self.speaker, self.sound, self.at = speaker, window, 0

    def next(self) -> Any:
        return self

    def let_go(self) -> None: ...

    def heard(self, done: Any) -> list[Segment]:
        rng, found = self.speaker.rng, []
        numbers = self.sound[:: RATE // 10].astype(int)  # ten a second
        words = sorted(set(numbers.tolist()))
        seconds = len(self.sound) / RATE
        for begin in range(0, len(words), 4):  # segments of four words
            said = words[begin : begin + 4]
            ends = np.flatnonzero(numbers <= said[-1])[-1] + 1
            if begin + 4 >= len(words):
                ends = len(numbers)
                if rng.random() > self.speaker.hears:
                    said[-1] = 900 + rng.randrange(99)
            found.append(Segment(0.0, min(seconds, ends / 10), tuple(said)))
        if len(self.sound) == WINDOW:  # as Whisper, which begins a segment that does not end
            found = found[:-1]
        self.at = round(found[-1].end * RATE)
        return found


class Done:
    token_ids = sources = ()


def spoken(seconds: int) -> np.ndarray:
    return np.repeat(np.arange(seconds), RATE).astype(np.float32)


def listen(live: Live, sound: np.ndarray, cost: float) -> tuple[list[str], list[LiveCaption]]:
    """Let a sound come in its own time; each step takes `cost` seconds."""
    clock, pushed, final, told = 0.0, 0, list[str](), list[LiveCaption]()
    while True:
        due = min(len(sound), round(clock * RATE))
        if pushed < due:
            live.push(sound[pushed:due])
            pushed = due
        if pushed == len(sound):
            live.end()
        request = live.next()
        if request is None:
            if pushed == len(sound):
                return final, told
            clock += 0.1
            continue
        clock += cost
        due = min(len(sound), round(clock * RATE))
        if pushed < due:  # it comes while the step goes on
            live.push(sound[pushed:due])
            pushed = due
        caption = live.heard(Done())  # type: ignore[arg-type]
        assert caption is not None
        final += caption.final
        told.append(caption)


def plain(words: list[str]) -> list[str]:
    return [each.casefold().strip(",") for each in words]


@pytest.mark.parametrize("cost", [0.2, 0.9, 3.0, 7.0])
@pytest.mark.parametrize("seed", range(3))
def test_every_word_becomes_final_once_and_the_lag_is_bounded(seed: int, cost: float) -> None:
    speaker = Speaker(seed, hears=0.7)
    final, told = listen(Live(speaker, Listening()), spoken(75), cost)  # type: ignore[arg-type]
    heard = plain(final)
    # A word that is misheard twice in a row does not agree, and the last may be.
    assert heard[:-1] == [f"w{i}" for i in range(74)]
    assert len(heard) == 75
    assert max(each.lag for each in told) <= cost + 0.01
    assert all(seconds <= 30 for seconds, _, _ in speaker.windows)
    for _, first, before in speaker.windows:  # what the window has lost stands before it
        assert plain(before) == heard[:first]
    assert speaker.windows[-1][1] > 40


def test_what_is_kept_of_an_endless_sound_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "_TOLD", 8)
    speaker = Speaker(4)
    live = Live(speaker, Listening(prompt="of old"))  # type: ignore[arg-type]
    final, _ = listen(live, spoken(150), 0.3)
    assert [int(each.strip(",wW")) for each in final] == [*range(150)]
    told = [prompt for _, _, prompt in speaker.windows]
    assert max(map(len, told)) == 2 + 8
    assert len(live._before) == 8
    # The last words before a window are told, and no others.
    for _, first, prompt in speaker.windows:
        words = [int(each.strip(",wW")) for each in prompt[2:]]
        assert words == [*range(max(0, first - 8), first)]


@pytest.mark.parametrize("rest", [2.0, 60.0])
def test_a_text_that_ends_before_the_sound_is_not_the_last(
    rest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, early = Step.heard, iter([False, False, True])

    def cut(step: Step, done: Any) -> list[Segment]:
        found = heard(step, done)  # which says that it has heard all
        return found[:1] if next(early, False) else found

    monkeypatch.setattr(Step, "heard", cut)
    monkeypatch.setattr(live_module, "_REST", rest * RATE)
    live = Live(Speaker(0), Listening())  # type: ignore[arg-type]
    final, _ = listen(live, spoken(12), 5.5)
    assert (plain(final) == [f"w{i}" for i in range(12)]) == (rest < 12)


def test_a_mishearing_is_never_final_before_it_is_heard_twice() -> None:
    speaker = Speaker(1, hears=0.0)  # the last word is always wrong
    live = Live(speaker, Listening())  # type: ignore[arg-type]
    final, told = listen(live, spoken(20), 0.5)
    assert plain(final)[:-1] == [f"w{i}" for i in range(19)]
    assert all(each.draft for each in told[:-1])


def test_no_step_is_due_without_sound() -> None:
    live = Live(Speaker(0), Listening())  # type: ignore[arg-type]
    assert live.next() is None
    live.push(spoken(1)[: RATE // 2])
    assert live.next() is None
    live.push(spoken(1)[: RATE // 2])
    assert live.next() is not None
    live.end()
    with pytest.raises(InvalidOption, match="has ended"):
        live.push(spoken(1))


def captions(own: Any, likely: bool) -> list[LiveCaption]:
    live, sound, told = Live(Listener(own), Listening()), noise(4.0, seed=2), list[LiveCaption]()
    for begin in range(0, len(sound), RATE):
        live.push(sound[begin : begin + RATE])
        if begin + RATE >= len(sound):
            live.end()
        while (request := live.next()) is not None:
            live._texts = live._texts if likely else ()
            caption = live.heard(own.generate(request))
            told += [] if caption is None else [caption]
    live.let_go()
    return told


def test_the_last_caption_drafts_and_changes_nothing() -> None:
    own, other = engine(NoDrafter()), engine(NoDrafter())
    told = captions(own, likely=True)
    assert [each.final for each in told] == [each.final for each in captions(other, likely=False)]
    assert all(word[1:].isdigit() for each in told for word in each.final)
    assert any(each.final for each in told)
    assert int(max(word[1:] for each in told for word in each.final)) < WORDS
    assert freed(own)


def quiet(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), np.float32)


def test_silence_makes_no_steps_and_a_pause_makes_words_final() -> None:
    speaker, finder = Speaker(3, hears=0.0), LoudFinder()
    words = spoken(7) + 1  # of which none is silent
    sound = np.concatenate([quiet(20), words[: 4 * RATE], quiet(12), words[4 * RATE :], quiet(40)])
    live = Live(speaker, Listening(), finder=finder)  # type: ignore[arg-type]
    final, told = listen(live, sound, 0.2)
    # The last word before a pause is misheard, and final all the same; silence is w0.
    said = [each for each in plain(final) if each != "w0"]
    assert said[:3] == ["w1", "w2", "w3"]
    assert said[4:6] == ["w5", "w6"]
    assert len(said) == 7
    assert len(told) < 14  # of 79 seconds
    assert all(seconds < 6 for seconds, _, _ in speaker.windows)
    loose = Live(Speaker(3, hears=0.0), Listening())  # type: ignore[arg-type]
    assert len(listen(loose, sound[: 24 * RATE], 0.2)[1]) > 20


def test_words_are_drafted_where_all_their_letters_are() -> None:
    live = Live(Listener(own := engine(NoDrafter())), Listening())
    done = SimpleNamespace(token_ids=(50, 3, 4, 55, 40), sources=("p", "p", None, "p", None))
    words = own.tokenizer.decode([3, 4]).split()
    assert live._drafted(done, words) == [True, False]  # type: ignore[arg-type]
    assert live._drafted(done, words[:1]) == [True]  # type: ignore[arg-type]
    assert live._drafted(done, ["w9", *words]) == [False] * 3  # type: ignore[arg-type]


def test_texts_draft_what_the_window_still_holds() -> None:
    live = Live(Listener(engine(NoDrafter())), Listening())
    times, end = live._listener.rules.times, live._listener.rules.end
    said = (times, 1, 2, times + 5, times + 5, 3, times + 9, end)
    assert live._ahead(said, 0) == said
    lost = round(5 * 0.02 * RATE)
    assert live._ahead(said, lost) == (times, 3, times + 4, end)
    assert live._ahead((times, 1, times + 5, 3, end), lost) == (times, 3, end)
    assert live._ahead((times, 1, end), lost) == ()
