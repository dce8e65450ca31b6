"""What requests wait for, in pieces between the steps of others; sounds that texts are of.

Equal sounds share what is made of them, also with the last ones that nobody writes down any more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from hashlib import blake2b
from time import perf_counter
from typing import Any, TypeVar, cast

import numpy as np

from paceline.core.target import Listens, Target
from paceline.core.types import LogitArray
from paceline.engine.prefill import PIECE_SECONDS, SLOWER
from paceline.errors import OutOfMemory

T = TypeVar("T")
_IDLE = 10.0  # seconds after which a sound that was to go on is taken to rest
_KEPT = 4  # memories without a user: of a file that is sent again, with other settings


class Speech:
    """What any number of requests write down, until its maker calls `Engine.let_go`.

    Attributes:
        frames: float32 `[n, mels]`, log-mel frames.
        key: of what they are; equal sounds have equal ones.
        memory: what the target's encoder made of them, once it has.
        users: its maker, and requests that have not ended.
    """

    def __init__(self, frames: LogitArray) -> None:
        self.frames, self.users = frames, 1
        whole = np.ascontiguousarray(frames)
        self.key = blake2b(whole.tobytes(), digest_size=16, salt=b"%d" % len(whole)).digest()
        self.memory: Any = None


@dataclass(slots=True)
class _HeldMemory:
    # A memory, and how many sounds have it.
    memory: Any
    users: int = 0


class Piecewise:
    """Works at one thing after another, a while at a time."""

    def __init__(self) -> None:
        self._what: object = None  # that is in work
        self._pieces: Generator[Any, None, None]
        self._left = 0.0  # when its last piece was done

    def go_on(
        self, what: object, begin: Callable[[], Generator[Any, None, None]], alone: bool
    ) -> Any:
        """Do pieces of `what` for a while; return what the last one yields, and None before.

        Unless `alone`, steps of other requests stay about as fast as beside a prompt that is read.
        Errors are those of the pieces.
        """
        now = perf_counter()
        step = now - self._left if self._what is what else 0.0
        end = now + (PIECE_SECONDS if alone else min(PIECE_SECONDS, (SLOWER - 1) * step))
        try:
            if self._what is not what:
                self._pieces, self._what = begin(), what
            while (found := next(self._pieces)) is None:
                self._left = perf_counter()
                if self._left >= end:
                    return None
        except BaseException:
            self._what = None
            raise
        self._what = None
        return found

    def leave(self, what: object) -> bool:
        """Go on with `what` no more; return whether it was in work."""
        found = self._what is what
        if found:
            self._pieces.close()
            self._what = None
        return found


class Hearing:
    """Encodes sounds, one after another."""

    def __init__(self, target: Target) -> None:
        assert isinstance(target, Listens)
        self._encoding, self._release = target.encoding, target.release
        # By the keys of their sounds, the last used behind.
        self._held: dict[bytes, _HeldMemory] = {}
        # What frees a memory that its owner can make again, and its last use; the latest behind.
        self._again: dict[object, tuple[Callable[[], None], float]] = {}
        self._work = Piecewise()

    def hear(self, speech: Speech, alone: bool) -> bool:
        """Encode a sound for a while, as `Piecewise.go_on`; return whether it has its memory.

        Errors are those of `Listens.encode`.
        """
        if speech.memory is None and speech.key in self._held:
            self._take(speech)
        if speech.memory is not None:
            return True
        pieces = cast(Callable[[LogitArray], Generator[Any, None, None]], self._encoding)
        try:
            made = self._work.go_on(speech, lambda: pieces(speech.frames), alone)
        except OutOfMemory:
            if not self._make_room():
                raise
            made = None
        if made is not None:
            self._held[speech.key] = _HeldMemory(made)
            self._take(speech)
        return made is not None

    def let_go(self, speech: Speech) -> None:
        """Say that a sound has a user less; with the last one it has no memory any more."""
        speech.users -= 1
        if not speech.users and not self._work.leave(speech) and speech.memory is not None:
            held = self._held.pop(speech.key)
            held.users -= 1
            self._held[speech.key], speech.memory = held, None
            self.forget(_KEPT)

    def forget(self, kept: int = 0) -> bool:
        """Free memories without a user but the last ones; return whether there were others."""
        idle = [key for key, held in self._held.items() if not held.users]
        gone = idle[: max(0, len(idle) - kept)]
        for key in gone:
            self._release(self._held.pop(key).memory)
        return bool(gone)

    def hear_on(self, owner: object, more: Callable[[], T], free: Callable[[], None]) -> T:
        """Return what `more` makes, in a turn of the engine; `free` frees all that it has made.

        That may happen in any later turn, for others: the owner must be able to make it again.
        Errors are those of `more`; OutOfMemory only if sounds that others write down fill all room.
        """
        self._again.pop(owner, None)
        try:
            while True:
                try:
                    return more()
                except OutOfMemory:
                    if not self._make_room():
                        raise
        finally:
            self._again[owner] = free, perf_counter()

    def free(self, owner: object) -> None:
        """Free what an owner has made by `hear_on`, if anything, in a turn."""
        if (found := self._again.pop(owner, None)) is not None:
            found[0]()

    def _make_room(self) -> bool:
        # What nobody uses, else the sound that rests for the longest time. Where all go on, the
        # last one, whose turn is far: by turns each of them would be gone when its turn comes.
        if self.forget():
            return True
        owners = [*self._again]
        if not owners:
            return False
        rests = perf_counter() - self._again[owners[0]][1] > _IDLE
        self.free(owners[0 if rests else -1])
        return True

    def _take(self, speech: Speech) -> None:
        held = self._held[speech.key]
        held.users += 1
        speech.memory = held.memory
