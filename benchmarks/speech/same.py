"""Whether a sound's transcript is the same however it is made, and what drafts save.

    python -m benchmarks.speech same --sounds sounds --model WHISPER --seconds 4 --count 200

Texts are compared token for token, with those of other temperatures where a window was heard anew.
Beside what one engine writes, alone and without drafts, stand: drafters, a batch of eight, one
whose texts give way to others and are read again, and, by `--isa`, other instruction sets. A few
sounds are also written down live, whose drafts are the last captions, beside the same steps
without, and in two ways that are wrong on purpose and must differ: a rule that takes what is near
the best (GAD++), and another seed.

Ways take turns at each sound, which is encoded once for all of them; the whole time has it in it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple
from unittest.mock import patch

from paceline.audio.mel import RATE
from paceline.audio.read import read_sound
from paceline.core.metrics import GenerationStats
from paceline.core.types import LogitArray
from paceline.engine.engine import Engine
from paceline.lab.measure.results import Cell
from paceline.listening.live import Live
from paceline.listening.windows import Listener, Listening, Transcription
from paceline.native import build
from paceline.registry.loading import load_model, make_engine
from paceline.registry.options import Options

COLUMNS = [
    "way",
    "temperature",
    "sounds",
    "the same",
    "tokens per forward",
    "time of text, times alone's",
    "whole time, times alone's",
]
FEW = 8
"""Sounds that are written down live, and in ways that are wrong."""
BATCH = 8
_STEPS = 5  # between two texts that give way to others
Text = tuple[tuple[int, ...], ...]
"""Tokens of all texts that a sound was written down by, in order."""


class Way(NamedTuple):
    """A way to write sounds down; `options` are of an engine, `differs` if its texts must."""

    name: str
    options: Mapping[str, Any]
    live: bool = False
    drafts: bool = True
    seed: int = 0
    differs: bool = False
    yields: bool = False
    isa: str | None = None


@dataclass
class Written:
    """What a way has written: texts by sound, and how often one gave way to another.

    `seconds` are without those of the encoder.
    """

    texts: list[Text] = field(default_factory=list)
    stats: GenerationStats = field(default_factory=GenerationStats)
    seconds: float = 0.0
    preempted: int = 0


class EncodedOnce:
    """The encoder of a target, which keeps the last sounds; `seconds` are those that it took."""

    def __init__(self, target: Any) -> None:
        self._target, self._encode = target, target.encoding
        self._kept: dict[bytes, Any] = {}
        self.seconds = 0.0
        target.encoding = self.encoding

    def encoding(self, frames: LogitArray) -> Iterator[Any]:
        begun, key = perf_counter(), frames.tobytes()
        if key not in self._kept:
            *_, self._kept[key] = self._encode(frames)
            if len(self._kept) > BATCH:
                self._target.release(self._kept.pop(next(iter(self._kept))))
        self.seconds += perf_counter() - begun
        yield self._target.fork(self._kept[key])


def clips(sounds: Sequence[Path], seconds: float | None) -> Iterator[LogitArray]:
    """Yield sounds, or pieces of so many seconds of them; shorter ends are left out."""
    for path in sounds:
        sound = read_sound(path)
        size = len(sound) if seconds is None else round(seconds * RATE)
        for begin in range(0, len(sound) - size + 1, size):
            yield sound[begin : begin + size]


def together(
    engine: Engine, sounds: Sequence[LogitArray], asked: Listening, yields: bool = False
) -> Written:
    """Write sounds down, as many at once as the engine's batch takes."""
    listener, begun = Listener(engine), perf_counter()
    found, texts = Written(), [list[tuple[int, ...]]() for _ in sounds]
    running: dict[int, tuple[int, Transcription]] = {}
    waiting, most = enumerate(sounds), engine.scheduler.limits.running

    def ask(index: int, transcript: Transcription) -> None:
        prepared = transcript.next()
        if prepared is None:
            transcript.let_go()
        else:
            running[engine.add(prepared)] = index, transcript

    def more() -> None:
        for index, sound in islice(waiting, most - len(running)):
            ask(index, listener.begin(sound, asked))

    more()
    for step in count(1):
        if not running:
            break
        if yields and step % _STEPS == 0:
            engine._preempt()
        for event in engine.step():
            if event.error is not None:
                raise event.error
            if (done := event.completion) is not None:
                index, transcript = running.pop(event.request)
                transcript.heard(done)
                texts[index].append(done.token_ids)
                found.stats.add(done.stats)
                ask(index, transcript)
        more()
    found.texts, found.preempted = [tuple(each) for each in texts], engine.scheduler.preemptions
    found.seconds = perf_counter() - begun
    return found


def lively(engine: Engine, sound: LogitArray, asked: Listening, drafts: bool) -> Written:
    """Write a sound down while it comes, second by second."""
    live, texts, found = Live(Listener(engine), asked), list[tuple[int, ...]](), Written()
    begun = perf_counter()
    for at in range(0, len(sound), RATE):
        live.push(sound[at : at + RATE])
        if at + RATE >= len(sound):
            live.end()
        while (prepared := live.next()) is not None:
            if not drafts:
                plain = replace(prepared.speculation, prediction=())
                prepared = replace(prepared, speculation=plain)
            done = engine.generate(prepared)
            live.heard(done)
            texts.append(done.token_ids)
            found.stats.add(done.stats)
    live.let_go()
    found.texts, found.seconds = [tuple(texts)], perf_counter() - begun
    return found


def ways(drafters: Sequence[str], temperature: float) -> list[Way]:
    """Return those that are compared; the first is what others are compared with."""
    alone: dict[str, Any] = {"drafter": "none", "max_batch": 1}
    drafted = {name.partition(":")[0]: alone | {"drafter": name} for name in drafters}
    return [
        Way("alone", alone),
        *(Way(f"drafts of {name}", each) for name, each in drafted.items()),
        *(
            Way(f"{name}, what is near the best", each | {"verifier": "top-gap"}, differs=True)
            for name, each in drafted.items()
        ),
        *([Way("another seed", alone, seed=1, differs=True)] if temperature else []),
        Way("live, no drafts", alone, live=True, drafts=False),
        Way("live, drafts of the last captions", alone, live=True),
        Way(f"a batch of {BATCH}", alone | {"max_batch": BATCH}),
        Way(f"a batch of {BATCH}, texts give way", alone | {"max_batch": BATCH}, yields=True),
    ]


def same(
    asked: Options, sounds: Sequence[LogitArray], named: Sequence[Way], temperature: float
) -> tuple[dict[str, Written], float]:
    """Write all sounds down in all ways, by turns.

    Returns what they wrote, and the seconds of the encoder for all sounds.
    """
    found, spent = {way.name: Written() for way in named}, 0.0
    loaded = load_model(asked)
    once = EncodedOnce(loaded.target)
    engines = {way.name: make_engine(loaded, asked, **way.options) for way in named}

    def write(way: Way, group: Sequence[LogitArray]) -> None:
        nonlocal spent
        engine, whole = engines[way.name], found[way.name]
        listening = Listening(language="en", temperature=temperature, seed=way.seed)
        once.seconds = 0.0
        if way.live:
            part = lively(engine, group[0], listening, way.drafts)
        else:
            part = together(engine, group, listening, way.yields)
            spent += once.seconds
        whole.texts += part.texts
        whole.stats.add(part.stats)
        whole.seconds += part.seconds - once.seconds
        whole.preempted = part.preempted

    turns = [each for each in named if each.options["max_batch"] == 1]
    for first in range(0, len(sounds), BATCH):
        group = sounds[first : first + BATCH]
        for index, sound in enumerate(group, first):
            for way in turns[index % len(turns) :] + turns[: index % len(turns)]:
                if index < FEW or not (way.differs or way.live):
                    write(way, [sound])
        for way in named:
            if way not in turns:
                write(way, group)
        print(f"{first + len(group)} of {len(sounds)}", end="\r", file=sys.stderr)
    print(file=sys.stderr)
    return found, spent


def elsewhere(
    isa: str, asked: Options, sounds: Sequence[LogitArray], temperature: float
) -> tuple[Way, dict[str, Written]]:
    """Write all sounds down alone, in a process that uses an instruction set of that name.

    InvalidOption: the processor lacks it, or there is none.
    """
    way = Way(f"alone, on {isa}", ways((), temperature)[0].options, isa=isa)
    # What a process has loaded stays, so this one needs its own.
    with (
        patch.dict("os.environ", {build.FORCE: isa}),
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
    ):
        return way, pool.submit(same, asked, sounds, [way], temperature).result()[0]


def rows(
    named: Sequence[Way], found: Mapping[str, Written], encoder: float, temperature: float
) -> tuple[list[list[Cell]], list[str]]:
    """Return a row a way, and what went wrong."""
    table: list[list[Cell]] = []
    faults = []
    for way in named:
        base, mine = found["live, no drafts" if way.live else "alone"], found[way.name]
        number = len(mine.texts)
        equal = sum(a == b for a, b in zip(mine.texts, base.texts, strict=False))
        per = round(mine.stats.committed_tokens / max(1, mine.stats.target_forwards), 2)
        times: list[Cell] = [None, None]
        one = way.options["max_batch"] == 1 and not (way.live or way.isa)
        if number == len(base.texts) and one:
            whole = (mine.seconds + encoder) / (base.seconds + encoder)
            times = [round(mine.seconds / base.seconds, 2), round(whole, 2)]
        table.append([way.name, temperature, number, equal, per, *times])
        if way.differs and equal == number:
            faults.append(f"{way.name}: no text differs, so that a difference is not found")
        if not way.differs and equal < number:
            faults.append(f"{way.name}: {number - equal} of {number} texts differ")
        if way.yields and not mine.preempted:
            faults.append(f"{way.name}: no text gave way to another")
    return table, faults
