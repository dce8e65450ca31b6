"""Letters of a sound that comes, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np

from paceline.audio.mel import HOP, RATE, MelStream
from paceline.core.options import require
from paceline.core.types import Described, LogitArray
from paceline.errors import InvalidOption
from paceline.listening.live import LiveCaption
from paceline.methods.conformer.encoder import (
    BLANK,
    LETTERS,
    STACKED,
    Conformer,
    CpuConformer,
    load_conformer,
    sight,
)

_CHUNK = 14  # rows of live captions that are heard at once: 0.56 s


def stacked(frames: LogitArray) -> LogitArray:
    """Return rows of log-mel frames `[n, mels]`; the last frame fills up the last row."""
    padded = np.pad(frames, ((0, -len(frames) % STACKED), (0, 0)), mode="edge")
    return padded.reshape(-1, STACKED * frames.shape[1])


class ConformerStream(Described):
    """What is said in one sound, by the most probable letter of each row.

    Attributes:
        text: so far; it never changes.
        rows: of each letter, the number of rows that were heard when it was written.
    """

    name: ClassVar[str] = "cache-aware-conformer"
    guarantee: ClassVar[str] = "lossy: its own network; streaming is its masked pass, bit for bit"
    requires: ClassVar[str] = "weights (paceline train conformer); none ship"
    paper: ClassVar[str] = "after Cache-aware FastConformer, Noroozi et al. 2024, arXiv:2312.17279"

    def __init__(self, model: Conformer, chunk: int) -> None:
        """Begin; `chunk` rows of 40 ms are heard at once, so the last of them looks at none ahead.

        InvalidOption: rows that are seen before a chunk are not whole chunks.
        """
        require(chunk >= 1, "chunk", chunk, "1 or more")
        if model.shape.left % chunk:
            raise InvalidOption(
                f"a chunk of {chunk} rows does not divide the {model.shape.left} before it: take "
                "another"
            )
        self._model, self._chunk, self._cache = model, chunk, model.open()
        self._mel = MelStream(STACKED * chunk, model.shape.mels)
        self._last, self._heard = BLANK, 0
        self.text = ""
        self.rows: list[int] = []

    @classmethod
    def live_from(cls, path: Path, threads: int) -> ConformerLive:
        """Return captions by a file of `paceline train conformer`; ModelError if it is none."""
        return ConformerLive(CpuConformer(*load_conformer(path), threads))

    @property
    def room(self) -> int:
        """Rows that may still come."""
        return self._model.shape.longest - self._heard

    def push(self, samples: LogitArray) -> str:
        """Hear float32 samples at `audio.mel.RATE`; return the letters that they bring.

        InvalidOption: samples are not finite, or the stream is longer than the model's longest.
        """
        return self._hear(stacked(self._mel.push(samples)))

    def end(self) -> str:
        """Hear what is left, and return the letters that it brings."""
        out = self._hear(stacked(self._mel.end()))
        self._model.close(self._cache)
        return out

    def _hear(self, rows: LogitArray) -> str:
        told = len(self.text)
        if len(rows) > self.room:
            raise InvalidOption(
                f"a stream has at most {self._model.shape.longest} rows: begin another one"
            )
        for begin in range(0, len(rows), self._chunk):
            part = rows[begin : begin + self._chunk]
            end = self._heard + len(part)
            sees = sight(self._heard, end, self._chunk, self._model.shape.left)
            self._heard = end
            for letter in self._model.forward(self._cache, part, sees).argmax(axis=1).tolist():
                if letter not in (BLANK, self._last):
                    self.text += LETTERS[letter]
                    self.rows.append(end)
                self._last = letter
        return self.text[told:]


class ConformerLive:
    """Captions with the face of `listening.live.Live`, a step a chunk, of streams end to end.

    A word is final when another one begins.

    Attributes:
        tokens: letters that were written.
        forwards: chunks that were heard.
    """

    def __init__(self, model: Conformer, chunk: int = _CHUNK) -> None:
        self._model, self._chunk = model, chunk
        self._stream = ConformerStream(model, chunk)
        self._samples: LogitArray = np.zeros(0, np.float32)
        self._word = ""  # that may go on
        self._ends = self._ended = False
        self.tokens = self.forwards = 0

    @property
    def waiting(self) -> float:
        return len(self._samples) / RATE

    def push(self, samples: LogitArray) -> None:
        if self._ends:
            raise InvalidOption("the sound has ended: begin another")
        self._samples = np.concatenate([self._samples, samples])

    def end(self) -> None:
        self._ends = True

    def step(self, meanwhile: Callable[[], object]) -> LiveCaption | None:
        size = STACKED * HOP * self._chunk
        while len(self._samples) >= size or (self._ends and not self._ended):
            part, self._samples = self._samples[:size], self._samples[size:]
            new = self._stream.push(part)
            self._ended = self._ends and not len(self._samples)
            if self._ended or self._stream.room < 2 * self._chunk:
                new += self._stream.end()
                self._stream = ConformerStream(self._model, self._chunk)
            self.tokens, self.forwards = self.tokens + len(new), self.forwards + 1
            meanwhile()
            if new or self._ended:
                return self._told(new)
        return None

    def let_go(self) -> None: ...

    def _told(self, new: str) -> LiveCaption:
        *final, self._word = (self._word + new).split(" ")
        if self._ended:
            final, self._word = [*final, self._word], ""
        draft = [self._word] if self._word else []
        return LiveCaption([*filter(None, final)], draft, [False] * len(draft), self.waiting)
