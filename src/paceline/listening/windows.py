"""A transcript of a sound, window after window of 30 seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paceline.audio.mel import RATE, WINDOW, log_mel
from paceline.core.target import Listens
from paceline.core.types import LogitArray, SamplingParams
from paceline.engine.engine import Engine
from paceline.errors import InvalidOption
from paceline.listening.timestamps import Segment, TranscriptRules, segments_of

_LEAST = RATE // 10  # samples that are worth a window


@dataclass(frozen=True, slots=True)
class Listening:
    """How to write a sound down.

    Attributes:
        language: its code, such as "en".
        translate: to English.
    """

    language: str = "en"
    translate: bool = False


class Listener:
    """Transcribes with an engine whose model hears."""

    def __init__(self, engine: Engine) -> None:
        """Bind it; raises InvalidOption if the model hears nothing."""
        target = engine.decoder.target
        if not isinstance(target, Listens) or not target.mels:
            raise InvalidOption("this model hears nothing: choose a Whisper")
        self._engine, self._target = engine, target
        known = engine.tokenizer.special_ids
        self._ids = known
        vocabulary = engine.decoder.target.capabilities.vocab_size
        times = known["<|notimestamps|>"] + 1
        marks = [each for name, each in known.items() if each < times and name != "<|endoftext|>"]
        end = known["<|endoftext|>"]
        self.rules = TranscriptRules(vocabulary, end, times, tuple(marks), (end,))

    def segments(self, sound: LogitArray, asked: Listening | None = None) -> Iterator[Segment]:
        """Yield the segments of a sound, in order, as they become final."""
        prompt, at = self._prompt(asked or Listening()), 0
        while len(sound) - at >= _LEAST:
            window = sound[at : at + WINDOW]
            found, heard = self._window(window, prompt)
            for begin, end, tokens in found:
                yield Segment(begin + at / RATE, end + at / RATE, tokens)
            at += max(_LEAST, round(heard * RATE))

    def _window(self, window: LogitArray, prompt: list[int]) -> tuple[list[Segment], float]:
        seconds = len(window) / RATE
        memory = self._target.encode(
            log_mel(np.pad(window, (0, WINDOW - len(window))), self._target.mels)
        )
        try:
            done = self._engine.generate(
                prompt,
                SamplingParams(temperature=0.0, max_new_tokens=224),
                raw=True,
                memory=memory,
                constraint=self.rules,
            )
        finally:
            self._engine.decoder.target.release(memory)
        return segments_of(done.token_ids, self.rules.end, self.rules.times, seconds)

    def _prompt(self, asked: Listening) -> list[int]:
        known, begin = self._ids, self._ids["<|startoftranscript|>"]
        # English models, of one id less, know neither languages nor tasks.
        if self._target_is_english:
            if asked.language != "en" or asked.translate:
                raise InvalidOption("this model hears English alone: choose a multilingual one")
            return [begin]
        language = known.get(f"<|{asked.language}|>")
        if language is None:
            raise InvalidOption(f"language {asked.language!r} is unknown: give a code such as en")
        return [begin, language, known["<|translate|>" if asked.translate else "<|transcribe|>"]]

    @property
    def _target_is_english(self) -> bool:
        return self.rules.vocabulary < 51_865
