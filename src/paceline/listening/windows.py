"""A transcript of a sound, window after window of 30 seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from paceline.audio.mel import RATE, WINDOW, log_mel
from paceline.audio.silence import begin_of_speech
from paceline.core.target import Listens
from paceline.core.types import BoolArray, LogitArray, SamplingParams
from paceline.engine.engine import Completion, Engine, Prepared
from paceline.engine.hearing import Speech
from paceline.errors import InvalidOption
from paceline.listening.timestamps import Segment, TranscriptRules, segments_of

LEAST = RATE // 10
"""Samples that are worth a window."""

_WORDS = 224  # most tokens of a window's text


@dataclass(frozen=True, slots=True)
class Listening:
    """How to write a sound down.

    Attributes:
        language: its code, such as "en"; None finds it out by the first window.
        translate: to English.
        prompt: text that is taken to come before each window, for its style and its names.
        temperature: 0 chooses the most probable.
        seed: of the draws, which each window has of its own.
    """

    language: str | None = "en"
    translate: bool = False
    prompt: str = ""
    temperature: float = 0.0
    seed: int = 0


class HeardWindow(NamedTuple):
    """The window that was written down last.

    Attributes:
        begin: in seconds of the sound.
        logprob: mean of its tokens, the end included.
    """

    begin: float = 0.0
    logprob: float = 0.0


class Listener:
    """Transcribes with an engine whose model hears."""

    def __init__(self, engine: Engine) -> None:
        """Bind it; raises InvalidOption if the model hears nothing."""
        target = engine.decoder.target
        if not isinstance(target, Listens) or not target.mels:
            raise InvalidOption("this model hears nothing: choose a Whisper")
        self.engine, self.mels = engine, target.mels
        self.ids = known = engine.tokenizer.special_ids
        vocabulary = engine.decoder.target.capabilities.vocab_size
        times = known["<|notimestamps|>"] + 1
        marks = [each for name, each in known.items() if each < times and name != "<|endoftext|>"]
        end = known["<|endoftext|>"]
        self.rules = TranscriptRules(vocabulary, end, times, tuple(marks), (end,))
        # English models, of one id less, know neither languages nor tasks.
        found = [(re.fullmatch(r"<\|([a-z]{2,3})\|>", name), each) for name, each in known.items()]
        self.languages = (
            {}
            if vocabulary < 51_865
            else {name[1]: each for name, each in found if name is not None}
        )

    def segments(self, sound: LogitArray, asked: Listening | None = None) -> Iterator[Segment]:
        """Yield the segments of a sound, in order, as they become final."""
        for _, segments in self.windows(self.begin(sound, asked or Listening())):
            yield from segments

    def windows(self, transcript: Transcription) -> Iterator[tuple[int, list[Segment]]]:
        """Yield the samples that are heard behind each window, and its segments."""
        try:
            while (request := transcript.next()) is not None:
                segments = transcript.heard(self.engine.generate(request))
                yield transcript.at, segments
        finally:
            transcript.let_go()

    def begin(
        self,
        sound: LogitArray,
        asked: Listening,
        at: int = 0,
        spoken: BoolArray | None = None,
    ) -> Transcription:
        """Begin a transcript; raises InvalidOption for what the model does not know.

        Args:
            sound: float32 `[n]` at `RATE`.
            asked: how to write it down.
            at: sample where a window of another run has ended.
            spoken: whether there is speech, for each `CHUNK`: windows begin where there is.
        """
        if not self.languages and (asked.language not in ("en", None) or asked.translate):
            raise InvalidOption("this model hears English alone: choose a multilingual one")
        if self.languages and asked.language not in (*self.languages, None):
            raise InvalidOption(f"language {asked.language!r} is unknown: give a code such as en")
        return Transcription(self, sound, asked, at, spoken)


class Transcription:
    """A sound that is being written down: `next` asks for a text, and `heard` takes it.

    Whoever runs the engine drives it, and lets it go in the end.

    Attributes:
        language: its code, once it is known.
        window: that of the last text.
        at: samples that are heard.
    """

    def __init__(
        self,
        listener: Listener,
        sound: LogitArray,
        asked: Listening,
        at: int = 0,
        spoken: BoolArray | None = None,
    ) -> None:
        self._listener, self._samples, self._asked = listener, sound, asked
        self.language = asked.language if listener.languages else "en"
        self.window = HeardWindow()
        self.at, self._spoken = at, spoken
        self._speech: Speech | None = None  # the window that is heard now
        known, rules = listener.ids, listener.rules
        context = listener.engine.decoder.target.capabilities.max_context
        words = listener.engine.tokenizer.encode(asked.prompt.strip()) if asked.prompt else []
        words = [each for each in words if each < rules.end][1 - context // 2 :]
        self._before = [known["<|startofprev|>"], *words] if words else []

    def next(self) -> Prepared | None:
        """Return the text to decode next; None at the end. Takes its time, on any thread."""
        engine, listener, asked = self._listener.engine, self._listener, self._asked
        if self._speech is None:
            if self._spoken is not None:
                begin = begin_of_speech(self._spoken, self.at)
                self.at = len(self._samples) if begin is None else begin
            window = self._samples[self.at : self.at + WINDOW]
            if len(window) < LEAST:
                return None
            whole = np.pad(window, (0, WINDOW - len(window)))
            self._speech = Speech(log_mel(whole, listener.mels))
        prompt = [*self._before, listener.ids["<|startoftranscript|>"]]
        if self.language is None:
            allowed = tuple(listener.languages.values())
            params = SamplingParams(temperature=0.0, max_new_tokens=1, allowed_tokens=allowed)
            return engine.prepare(prompt[-1:], params, speech=self._speech)
        if listener.languages:
            task = "<|translate|>" if asked.translate else "<|transcribe|>"
            prompt += [listener.languages[self.language], listener.ids[task]]
        params = SamplingParams(
            temperature=asked.temperature, seed=self._seed(), max_new_tokens=_WORDS, logprobs=0
        )
        return engine.prepare(prompt, params, speech=self._speech, constraint=listener.rules)

    def heard(self, done: Completion) -> list[Segment]:
        """Take a text that was asked for; return the segments that became final."""
        rules, listener = self._listener.rules, self._listener
        if self.language is None:
            codes = {each: code for code, each in listener.languages.items()}
            self.language = codes[done.token_ids[0]]
            return []
        seconds = min(WINDOW, len(self._samples) - self.at) / RATE
        found, heard = segments_of(done.token_ids, rules.end, rules.times, seconds)
        begin = self.at / RATE
        scores = [each.logprob for each in done.logprobs]
        self.window = HeardWindow(begin, sum(scores) / len(scores) if scores else 0.0)
        self.at += max(LEAST, round(heard * RATE))
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
