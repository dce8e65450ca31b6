"""A transcript of a sound, window after window of 30 seconds (Radford et al. 2022, section 4.5).

A text that the model is not sure of, or that goes in circles, is drawn anew at higher temperatures,
by draws that are named after seed, window and position. Where no speech is probable there is none.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paceline.audio.mel import RATE, WINDOW, log_mel
from paceline.audio.silence import SpokenSound
from paceline.core.target import Listens
from paceline.core.types import LogitArray, SamplingParams, Speculation
from paceline.engine.engine import Completion, Engine, Prepared
from paceline.engine.hearing import Speech
from paceline.errors import InvalidOption, ModelError
from paceline.listening.timestamps import Segment, TranscriptRules, segments_of, unsaid_of, unspoken

LEAST = RATE // 10
"""Samples that are worth a window."""

_WORDS = 224  # most tokens of a window's text

_TEMPERATURES = 5  # behind 0, in equal steps up to 1
_SURE = -1.0  # least mean log-probability of a text that stands
_CIRCLES = 2.4  # most bytes of such a text for one that zlib makes of them
_SILENT = 0.6  # probability of no speech from which on there is none
_TIMES = 1501  # marks of times
_OPENAI = (51_864, 51_865, 51_866)  # tokens of English models, of others, of large v3: to the last
_MARKS = ("endoftext", "startoftranscript", "notimestamps")  # of all models
_BEFORE = "<|startofprev|>"
_NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")  # the token of it has one name or the other


@dataclass(frozen=True, slots=True)
class Listening:
    """How to write a sound down.

    Attributes:
        language: its code, such as "en"; None or "" finds it out by the first window.
        translate: to English.
        prompt: text that is taken to come before each window, for its style and its names.
        temperature: 0 chooses the most probable, and draws where the text would not do.
        seed: of the draws, which each window has of its own.
    """

    language: str | None = "en"
    translate: bool = False
    prompt: str = ""
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        code = self.language.lower() if self.language else None
        object.__setattr__(self, "language", code)


class HeardWindow(NamedTuple):
    """A text of a window.

    Attributes:
        begin: in seconds of the sound.
        temperature: at which it was drawn.
        logprob: mean of its words, the end included.
        circles: its bytes for one that zlib makes of them.
        silence: probability of no speech, where the text leaves a doubt.
    """

    begin: float = 0.0
    temperature: float = 0.0
    logprob: float = 0.0
    circles: float = 0.0
    silence: float | None = None


class Listener:
    """Transcribes with an engine whose model hears."""

    def __init__(self, engine: Engine, path: Path | None = None) -> None:
        """Bind it.

        Args:
            engine: whose model hears.
            path: of its files, which may say what is never said; else it is what Whispers leave
                out, signs and marks of music.

        Raises:
            InvalidOption: the model hears nothing.
            ModelError: its tokenizer is no Whisper's, or its files name what is no token.
        """
        target = engine.decoder.target
        if not isinstance(target, Listens) or not target.mels:
            raise InvalidOption("this model hears nothing: choose a Whisper")
        self.engine, self.mels = engine, target.mels
        self.ids = known = engine.tokenizer.special_ids
        if missing := [each for each in _MARKS if f"<|{each}|>" not in known]:
            raise ModelError(f"the tokenizer has no <|{missing[0]}|>: take that of the Whisper")
        vocabulary = engine.decoder.target.capabilities.vocab_size
        times = known["<|notimestamps|>"] + 1
        last = times + _TIMES
        if times > vocabulary or (last != vocabulary and vocabulary in _OPENAI):
            raise ModelError(
                f"the tokenizer is of another Whisper: its tokens end at {last}, those of the "
                f"weights at {vocabulary}"
            )
        end, blank = known["<|endoftext|>"], engine.tokenizer.plain(" ")
        marks = {each for each in known.values() if each < times and each != end}
        own, begin = (None, None) if path is None else unsaid_of(path, vocabulary)
        silent = tuple(sorted(marks | (unspoken(engine.tokenizer) if own is None else own)))
        first = (*blank, end) if begin is None else begin
        self.rules = TranscriptRules(vocabulary, end, times, silent, first)
        # English models, of one id less, know neither languages nor tasks.
        found = [(re.fullmatch(r"<\|([a-z]{2,3})\|>", name), each) for name, each in known.items()]
        self.languages = (
            {}
            if vocabulary < 51_865
            else {name[1]: each for name, each in found if name is not None}
        )
        self.silence = [known[each] for each in _NO_SPEECH if each in known]
        self.continues = _BEFORE in known  # whether texts may have one before them

    def segments(self, sound: LogitArray, asked: Listening | None = None) -> Iterator[Segment]:
        """Yield the segments of a sound, in order, as they become final."""
        for _, segments in self.windows(self.begin(sound, asked or Listening())):
            yield from segments

    def windows(self, transcript: Transcription) -> Iterator[tuple[int, list[Segment]]]:
        """Yield the samples that are heard behind each window, and its segments."""
        try:
            while (request := transcript.next()) is not None:
                begin = transcript.at
                segments = transcript.heard(self.engine.generate(request))
                if transcript.at > begin:
                    yield transcript.at, segments
        finally:
            transcript.let_go()

    def begin(
        self,
        sound: LogitArray,
        asked: Listening,
        at: int = 0,
        spoken: SpokenSound | None = None,
    ) -> Transcription:
        """Begin a transcript; raises InvalidOption for what the model does not know.

        Args:
            sound: float32 `[n]` at `RATE`.
            asked: how to write it down.
            at: sample where a window of another run has ended.
            spoken: where there is speech: windows begin there.
        """
        if not self.languages and (asked.language not in ("en", None) or asked.translate):
            raise InvalidOption("this model hears English alone: choose a multilingual one")
        if self.languages and asked.language not in (*self.languages, None):
            raise InvalidOption(f"language {asked.language!r} is unknown: give a code such as en")
        if asked.prompt and not self.continues:
            raise InvalidOption(f"the tokenizer has no {_BEFORE}: leave the prompt out")
        return Transcription(self, sound, asked, at, spoken)


class Transcription:
    """A sound that is being written down: `next` asks for a text, and `heard` takes it.

    Its caller drives it beside the engine, and lets it go in the end.

    Attributes:
        language: its code, once it is known.
        window: that of the last text.
        at: samples that are heard.
        likely: tokens that a text is likely to repeat, which changes no text.
    """

    def __init__(
        self,
        listener: Listener,
        sound: LogitArray,
        asked: Listening,
        at: int = 0,
        spoken: SpokenSound | None = None,
    ) -> None:
        self._listener, self._samples, self._asked = listener, sound, asked
        self.language = asked.language if listener.languages else "en"
        self.window = HeardWindow()
        self.at, self._spoken = at, spoken
        self.likely: Sequence[int] = ()
        self._speech: Speech | None = None  # the window that is heard now, and where it begins
        self._begin = at
        self._texts: list[tuple[HeardWindow, tuple[int, ...]]] = []  # of that window
        self._doubts = False  # whether it holds speech
        known, rules = listener.ids, listener.rules
        context = listener.engine.decoder.target.capabilities.max_context
        words = listener.engine.tokenizer.encode(asked.prompt.strip()) if asked.prompt else []
        words = [each for each in words if each < rules.end][1 - context // 2 :]
        self._before = [known[_BEFORE], *words] if words else []

    def next(self) -> Prepared | None:
        """Return the text to decode next; None at the end. Takes its time, on any thread."""
        engine, listener, asked = self._listener.engine, self._listener, self._asked
        if self._speech is None:
            begin: int | None = 0 if self.language is None else self.at
            if self._spoken is not None:
                begin = self._spoken.begin(begin or 0)
            self._begin = len(self._samples) if begin is None else begin
            self.at = max(self.at, self._begin)
            window = self._samples[self._begin : self._begin + WINDOW]
            if len(window) < LEAST:
                return None
            whole = np.pad(window, (0, WINDOW - len(window)))
            self._speech = Speech(log_mel(whole, listener.mels))
        prompt = [*self._before, listener.ids["<|startoftranscript|>"]]
        if self.language is None or self._doubts:
            first = listener.languages.values() if self.language is None else listener.silence
            params = SamplingParams(
                temperature=0.0, max_new_tokens=1, logprobs=0, allowed_tokens=tuple(first)
            )
            return engine.prepare(prompt[-1:], params, speech=self._speech)
        if listener.languages:
            task = "<|translate|>" if asked.translate else "<|transcribe|>"
            prompt += [listener.languages[self.language], listener.ids[task]]
        params = SamplingParams(
            temperature=self._temperature, seed=self._seed(), max_new_tokens=_WORDS, logprobs=0
        )
        return engine.prepare(
            prompt,
            params,
            speech=self._speech,
            constraint=listener.rules,
            prediction=self.likely,
            speculation=Speculation(marks=listener.rules.times),
        )

    def heard(self, done: Completion) -> list[Segment]:
        """Take a text that was asked for; return the segments that became final."""
        if self.language is None:
            codes = {each: code for code, each in self._listener.languages.items()}
            self.language = codes[done.token_ids[0]]
            if self._begin < self.at:  # the first window told it, and is written down
                self.let_go()
            return []
        if self._doubts:
            self._doubts, ((window, tokens),) = False, self._texts
            window = window._replace(silence=math.exp(done.logprobs[0].logprob))
            silent = window.silence is not None and window.silence > _SILENT
            self._texts = [(window, () if silent else tokens)]
            return self._final() if silent or self._last else []
        window = self._judged(done)
        self._texts.append((window, done.token_ids))
        unsure = window.logprob < _SURE
        self._doubts = unsure and len(self._texts) == 1 and bool(self._listener.silence)
        if self._doubts or not (self._last or (window.circles <= _CIRCLES and not unsure)):
            return []
        return self._final()

    @property
    def _temperature(self) -> float:
        # Of the next text of a window.
        return self._asked.temperature or len(self._texts) / _TEMPERATURES

    @property
    def _last(self) -> bool:
        return self._asked.temperature > 0 or len(self._texts) > _TEMPERATURES

    def _judged(self, done: Completion) -> HeardWindow:
        listener = self._listener
        words = [each for each in done.logprobs if each.token_id < listener.rules.times]
        said = listener.engine.tokenizer.decode([each.token_id for each in words]).encode()
        logprob = sum(each.logprob for each in words) / max(1, len(words))
        circles = len(said) / len(zlib.compress(said))
        return HeardWindow(self.at / RATE, self._temperature, logprob, circles)

    def _final(self) -> list[Segment]:
        # Of the texts of a window the one that stands, or else the surest that goes in no circles.
        self.window, tokens = max(self._texts, key=_worth)
        rules, begin = self._listener.rules, self.window.begin
        seconds = min(WINDOW, len(self._samples) - self.at) / RATE
        found, heard = segments_of(tokens, rules.end, rules.times, seconds)
        self.at, self._texts = self.at + max(LEAST, round(heard * RATE)), []
        self.let_go()
        return [Segment(each.begin + begin, each.end + begin, each.tokens) for each in found]

    def let_go(self) -> None:
        """Free what the engine holds of the window."""
        speech, self._speech = self._speech, None
        if speech is not None:
            self._listener.engine.let_go(speech)

    def _seed(self) -> int:
        named = f"{self._asked.seed} {self.at}".encode()
        return int.from_bytes(blake2b(named, digest_size=7).digest())


def _worth(text: tuple[HeardWindow, tuple[int, ...]]) -> tuple[bool, float]:
    return text[0].circles <= _CIRCLES, text[0].logprob
