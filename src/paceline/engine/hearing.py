"""Sounds that texts are written of: encoded in pieces, between the steps of other requests."""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter
from typing import Any, cast

from paceline.core.target import Listens, Target
from paceline.core.types import LogitArray
from paceline.engine.prefill import PIECE_SECONDS, SLOWER


class Speech:
    """What any number of requests write down, until its maker calls `Engine.let_go`.

    Attributes:
        frames: float32 `[n, mels]`, log-mel frames.
        memory: what the target's encoder made of them, once it has.
        users: its maker, and requests that have not ended.
    """

    def __init__(self, frames: LogitArray, memory: Any = None) -> None:
        self.frames, self.memory, self.users = frames, memory, 1


class Hearing:
    """Encodes sounds, one after another."""

    def __init__(self, target: Target) -> None:
        assert isinstance(target, Listens)
        self._encoding, self._release = target.encoding, target.release
        self._speech: Speech | None = None  # that is being encoded
        self._pieces: Generator[Any, None, None]
        self._left = 0.0  # when its last piece was done

    def hear(self, speech: Speech, alone: bool) -> bool:
        """Encode a sound for a while; return whether it has its memory.

        Unless `alone`, steps of other requests stay about as fast as beside a prompt that is read.
        Errors are those of `Listens.encode`.
        """
        if speech.memory is not None:
            return True
        begin = perf_counter()
        step = begin - self._left if self._speech is speech else 0.0
        if self._speech is not speech:
            self._pieces = cast(Generator[Any, None, None], self._encoding(speech.frames))
            self._speech = speech
        end = begin + (PIECE_SECONDS if alone else min(PIECE_SECONDS, (SLOWER - 1) * step))
        try:
            while speech.memory is None:
                speech.memory = next(self._pieces)
                self._left = perf_counter()
                if self._left >= end:
                    break
        except BaseException:
            self._speech = None
            raise
        if speech.memory is not None:
            self._speech = None
        return speech.memory is not None

    def let_go(self, speech: Speech) -> None:
        """Free the memory of a sound with its last user."""
        speech.users -= 1
        if speech.users:
            return
        if self._speech is speech:
            self._pieces.close()
            self._speech = None
        elif speech.memory is not None:
            self._release(speech.memory)
            speech.memory = None
