"""Captions by an encoder that hears as sound comes: what it made of a chunk it never makes again.

With every chunk the last caption is verified in one pass, and goes on from where it no longer
holds. So it is the greedy text of all that was heard, as if the sound had ended there. The paper
looks at the last two tokens alone, which spares rows of the decoder and leaves what was wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from paceline.audio.mel import HOP, RATE, MelStream
from paceline.core.options import require
from paceline.core.target import Heard, HearsOn, Listens, Rows
from paceline.core.tree import chain
from paceline.core.types import Described, IntArray, LogitArray
from paceline.errors import InvalidOption
from paceline.listening.windows import Listener

ROW = 2 * HOP / RATE
"""Seconds of an encoder's row."""

_WORDS = 224  # most tokens of a window


def chunk_ends(begin: int, end: int, chunk: int) -> IntArray:
    """Return what rows from `begin` to `end` see: up to the end of their chunk, or of all."""
    at = np.arange(begin, end)
    return np.minimum((at // chunk + 1) * chunk, end)


def prompt_of(listener: Listener, language: str, before: Sequence[int] = ()) -> list[int]:
    """Return the tokens before a text without times; `before` it stands what was said."""
    known = listener.ids
    task = [listener.languages[language], known["<|transcribe|>"]] if listener.languages else []
    said = [known["<|startofprev|>"], *before] if before else []
    return [*said, known["<|startoftranscript|>"], *task, known["<|notimestamps|>"]]


class CausalCaptions(Described):
    """The captions of one sound, a caption after every chunk.

    Attributes:
        final: tokens of windows that are full, which stay.
        caption: tokens behind them, which may change.
        forwards: of the decoder.
    """

    name: ClassVar[str] = "careless-whisper"
    guarantee: ClassVar[str] = "lossy: another encoder; streaming is its masked pass, bit for bit"
    requires: ClassVar[str] = "a Whisper and an adapter for it (paceline train causal); none ships"
    paper: ClassVar[str] = "after CarelessWhisper, Krichli et al. 2025, arXiv:2508.12301"

    def __init__(
        self,
        listener: Listener,
        chunk: int = 15,
        look_back: int | None = None,
        language: str = "en",
    ) -> None:
        """Begin.

        Args:
            listener: whose engine has nothing else to do.
            chunk: encoder rows that are heard at once, of 20 ms each.
            look_back: so many of the last tokens may change (2 in the paper); None for all.
            language: of the words.

        InvalidOption: the runtime hears no sounds that grow, or a number is out of bounds.
        """
        target = listener.engine.decoder.target
        if not (isinstance(target, HearsOn) and isinstance(target, Listens)):
            raise InvalidOption("this runtime hears sounds whole: use runtime cpu or reference")
        require(look_back is None or look_back >= 0, "look_back", look_back, "0 or more, or None")
        longest = target.longest_sound
        require(1 <= chunk <= longest, "chunk", chunk, f"from 1 to {longest} rows")
        self._rows = longest // chunk * chunk
        if listener.languages and language not in listener.languages:
            raise InvalidOption(f"language {language!r} is unknown: give a code such as en")
        self._listener = listener
        self._target: Any = target
        self._context = self._target.capabilities.max_context
        rules = listener.rules
        # Neither marks nor times, nor what nobody speaks.
        self._unsaid = [*rules.suppressed, *range(rules.times, rules.vocabulary)]
        self._chunk, self._look_back, self._language = chunk, look_back, language
        self._mel = MelStream(2 * chunk, listener.mels)
        self._heard: Heard | None = None
        self._prompt = prompt_of(listener, language)
        self._scores: list[float] = []  # of the caption's tokens, when they were last looked at
        self.final: list[int] = []
        self.caption: list[int] = []
        self.forwards = 0

    def push(self, samples: LogitArray) -> bool:
        """Hear float32 samples at `audio.mel.RATE`; return whether there is a new caption.

        InvalidOption: some are not finite. OutOfMemory: there is no room for more.
        """
        return self._hear(self._mel.push(samples))

    def end(self) -> None:
        """Hear what is left of the sound."""
        self._hear(self._mel.end())

    def let_go(self) -> None:
        """Free what was heard."""
        if self._heard is not None:
            self._target.let_go(self._heard)
            self._heard = None

    def _hear(self, frames: LogitArray) -> bool:
        new = len(frames) > 0
        while len(frames):
            past = 0 if self._heard is None else self._heard.memory.length
            if past == self._rows:
                self._renew()
                past = 0
            part = frames[: 2 * (self._rows - past)]
            sees = chunk_ends(past, past + len(part) // 2, self._chunk)
            self._heard = self._target.hear(part, sees, self._heard)
            self._write()
            frames = frames[len(part) :]
        return new

    def _renew(self) -> None:
        # The window is full: another one begins, whose text goes on behind that of this one.
        self.final += self.caption
        before = self.final[-max(1, self._context // 2 - 5) :]
        self._prompt = prompt_of(self._listener, self._language, before)
        self.caption, self._scores = [], []
        self.let_go()

    def _write(self) -> None:
        assert self._heard is not None
        target, said, end = self._target, self.caption, self._listener.rules.end
        cache = target.open_to(self._heard.memory)
        try:
            rows = Rows.draft(cache, self._prompt, chain(said) if said else None)
            logits = self._allowed(target.forward([rows])[0].logits)
            self.forwards += 1
            kept = self._stable(logits)
            target.keep(cache, len(self._prompt), range(kept))
            best = int(logits[kept].argmax())
            del said[kept:], self._scores[kept:]
            last = logits[kept]
            most = min(_WORDS, self._context - len(self._prompt))
            while best != end and len(said) < most:
                said.append(best)
                self._scores.append(float(last[best]))
                [out] = target.forward([Rows.draft(cache, [best])])
                target.keep(cache, 1, ())
                self.forwards += 1
                last = self._allowed(out.logits, len(said))[0]
                best = int(last.argmax())
        finally:
            target.release(cache)

    def _stable(self, logits: LogitArray) -> int:
        # How many tokens of the caption hold: those whose score did not fall, or that are the best.
        # Where all are looked at, the best alone.
        count = len(self.caption)
        first = 0 if self._look_back is None else max(0, count - self._look_back)
        for at in range(first, count):
            token = self.caption[at]
            score, before = float(logits[at, token]), self._scores[at]
            self._scores[at] = score
            rises = self._look_back is not None and score >= before
            if not rises and int(logits[at].argmax()) != token:
                return at
        return count

    def _allowed(self, logits: LogitArray, said: int = 0) -> LogitArray:
        out = np.array(logits, np.float32)
        out[:, self._unsaid] = -np.inf
        if not said:
            out[0, list(self._listener.rules.first)] = -np.inf
        return out
