"""Live captions on a clock that their own steps move: what a step takes, drafts and makes final."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from statistics import fmean, quantiles
from time import perf_counter
from typing import NamedTuple

from paceline.audio.mel import RATE
from paceline.core.types import LogitArray
from paceline.engine.engine import Engine
from paceline.listening.agreement import words_of
from paceline.listening.live import Live
from paceline.listening.timestamps import Segment

PIECE = 0.05
"""Seconds of sound that come at once."""

COLUMNS = (
    *("captions", "tokens per forward", "step, s", "19 of 20 within", "share of real time"),
    *("words final after, s", "19 of 20 within, s", "wrong words, %"),
)


@dataclass
class LiveRun:
    """What the steps of several sounds took, in all, and how late each final word was."""

    seconds: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    tokens: int = 0
    forwards: int = 0


class Told(NamedTuple):
    """A word, and the second of the sound at which it became final, or at which it was said."""

    word: str
    at: float


def follow(
    run: LiveRun,
    live: Live,
    engine: Engine,
    sound: LogitArray,
    drafted: bool = True,
    clock: Callable[[], float] = perf_counter,
) -> list[Told]:
    """Caption a sound that comes in its own time: while a step works, so much more of it comes."""
    now, taken, took, told = 0.0, 0, 0.0, list[Told]()

    def come() -> bool:
        nonlocal taken
        before, taken = taken, min(len(sound), round(now * RATE))
        if taken > before:
            live.push(sound[before:taken])
            if taken == len(sound):
                live.end()
        return taken == len(sound)

    while True:
        ended = come()
        begun = clock()
        request = live.next()
        if request is None:
            if ended:
                return told
            now += PIECE
            continue
        if not drafted:
            request = replace(request, speculation=replace(request.speculation, prediction=()))
        done = engine.generate(request)
        spent = clock() - begun
        now, took = now + spent, took + spent
        run.tokens += len(done.token_ids)
        run.forwards += done.stats.target_forwards
        come()
        caption = live.heard(done)
        if caption is not None:  # else the same window is written down once more
            run.seconds.append(took)
            took = 0.0
            told += [Told(word, now) for word in caption.final]


def spoken(segments: Sequence[Segment], decode: Callable[[Sequence[int]], str]) -> list[Told]:
    """Return when each word ends: within a segment, by its letters."""
    out: list[Told] = []
    for each in segments:
        words = words_of(decode(each.tokens))
        letters, so_far = sum(map(len, words)), 0
        for word in words:
            so_far += len(word)
            out.append(Told(word, each.begin + (each.end - each.begin) * so_far / letters))
    return out


def delays(told: Sequence[Told], said: Sequence[Told]) -> list[float]:
    """Return seconds from the end of a word to where it is final, of words that both have."""
    first, second = (
        ["".join(filter(str.isalnum, w.word.casefold())) for w in x] for x in (told, said)
    )
    blocks = SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    pairs = ((told[a + i], said[b + i]) for a, b, size in blocks for i in range(size))
    return [final.at - word.at for final, word in pairs]


def figures(run: LiveRun, seconds: float) -> list[float]:
    """Return the cells of `COLUMNS` but the first and last; the sounds last so many seconds."""
    return [
        round(run.tokens / max(1, run.forwards), 2),
        round(fmean(run.seconds), 2),
        round(quantiles(run.seconds, n=20)[-1], 2),
        round(sum(run.seconds) / seconds, 2),
        round(fmean(run.late), 2),
        round(quantiles(run.late, n=20)[-1], 2),
    ]
