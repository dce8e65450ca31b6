"""Letters of a sound that comes, chunk by chunk."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.audio.mel import MelStream
from paceline.core.options import require
from paceline.core.types import Described, LogitArray
from paceline.errors import InvalidOption
from paceline.methods.conformer.encoder import BLANK, LETTERS, STACKED, Conformer, sight


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
        if self._heard + len(rows) > self._model.shape.longest:
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
