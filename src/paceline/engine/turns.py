"""Turns of threads at one model: one at a time, whole, in the order of asking.

Ctrl-C waits for the end of a turn, since half a step would tear a request from its cache. A
process that was forked off goes on from the last whole turn.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from paceline.errors import EngineFailed

# What `signal` is over, without its enumerations: they take longer than all else of a turn.
_signals: Any = import_module("_signal")


class Turns:
    """A lock that is handed on in the order of asking; no thread takes it twice at once."""

    def __init__(self, survives_fork: bool = True) -> None:
        """Say whether what it guards works in a process that was forked off."""
        self._survives = survives_fork
        self._lost: str | None = None
        self._waiting: deque[Callable[[], None]] = deque()
        self._held: _Held
        self.renew()
        _ALL.add(self)

    def __enter__(self) -> None:
        if self._lost is not None:
            raise EngineFailed(self._lost)
        if threading.get_ident() in self._inside:
            raise EngineFailed("a step cannot call its own engine: use another engine")
        self._take(wait=True)

    def __exit__(self, _kind: object, error: object, _at: object) -> None:
        try:
            self._end(told=isinstance(error, KeyboardInterrupt))
        finally:
            self._catch_up()

    def later(self, work: Callable[[], None]) -> None:
        """Do what must not wait, as in finalisers: now if that is free, else as a turn ends."""
        self._waiting.append(work)
        self._catch_up()

    def renew(self) -> None:
        """Begin anew, as a process that was forked off."""
        self._asking, self._turn = threading.Lock(), threading.Lock()
        self._inside: set[int] = set()  # threads that ask or have the turn

    def forked(self) -> None:
        if self._turn.locked():
            self._lost = "the process was forked in the midst of a step: load an engine in it"
        elif not self._survives:
            self._lost = "this runtime does not survive a fork: load an engine in the new process"
        self.renew()

    def _end(self, told: bool = False) -> None:
        held = self._held
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._turn.release()
            self._inside.discard(threading.get_ident())
            held.release(told)

    def _catch_up(self) -> None:
        # For work that came too late for the end of a turn and too early for the next one.
        while self._waiting and self._lost is None and threading.get_ident() not in self._inside:
            if not self._take(wait=False):
                return
            self._end()

    def _take(self, wait: bool) -> bool:
        held, taken = _Held(), False
        self._inside.add(threading.get_ident())
        try:
            if wait:
                with self._asking:  # a thread that has just had a turn stands behind the others
                    taken = self._turn.acquire()
            else:
                taken = self._turn.acquire(blocking=False)
            if taken:
                self._held = held
        finally:
            if not taken:
                self._inside.discard(threading.get_ident())
                held.release()
        return taken


class _Held:
    # Keeps the first Ctrl-C until the turn ends; a second one is not held up.
    def __init__(self) -> None:
        self._before: Any = None
        self._pressed: list[tuple[int, FrameType | None]] = []
        if threading.current_thread() is threading.main_thread():
            before = _signals.getsignal(_signals.SIGINT)
            if callable(before):
                self._before = before
                _signals.signal(_signals.SIGINT, self._press)

    def _press(self, number: int, frame: FrameType | None) -> None:
        self._pressed.append((number, frame))
        while len(self._pressed) > 1:
            self._before(*self._pressed.pop())

    def release(self, told: bool = False) -> None:
        if self._before is not None:
            _signals.signal(_signals.SIGINT, self._before)
            if self._pressed and not told:
                self._before(*self._pressed.pop())


_ALL: WeakSet[Turns] = WeakSet()
_OF: WeakKeyDictionary[Any, Turns] = WeakKeyDictionary()


def turns_of(target: Any, survives_fork: bool) -> Turns:
    """Return the turns at a target, which engines may share."""
    return _OF.setdefault(target, Turns(survives_fork))


def _forked() -> None:
    for each in list(_ALL):
        each.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
