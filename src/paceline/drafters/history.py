"""Sliding window over the texts of ended sequences, searchable by suffix automata.

A suffix automaton cannot forget. So a second one starts when the first is three quarters full,
and replaces it when it is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as List
from contextlib import suppress
from pathlib import Path

import numpy as np

from paceline.drafters.automaton import BREAK, ROOT_STATE, Automaton, Match
from paceline.errors import InvalidOption
from paceline.models.whole_file import whole_file

# Most tokens of a history.
CAPACITY = 1 << 18

# Most tokens queued; beyond that, the eldest are absorbed as others come.
_LINE = 1 << 13

_MAGIC = "paceline history 1"


class History:
    """The latest texts, shared by all sequences.

    Texts are queued until `absorb`, so that the end of a long sequence delays no other one.

    Attributes:
        waiting: tokens queued.
        texts: the automaton to read.
        generation: changes when `texts` is replaced or a text completed; readers must then find
            their contexts anew.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        """Create a history of `capacity` tokens, breaks included. Raises InvalidOption below 8."""
        if capacity < 8:
            raise InvalidOption(f"the capacity of a history must be 8 or more, not {capacity}")
        self.generation = 0
        self._quarter = capacity // 4
        self.clear()

    def clear(self) -> None:
        self.texts = Automaton()
        self.generation += 1
        self._younger = Automaton()
        self._both = False
        self._line: deque[List[int]] = deque()
        self._taken = 0
        self.waiting = 0

    def add(self, text: List[int]) -> None:
        """Queue a text; of one longer than a quarter of the capacity, its end."""
        text = text[-(self._quarter - 1) :]
        if len(text):
            self._line.append(text)
            self.waiting += len(text)
            self.absorb(max(0, self.waiting - _LINE))

    def absorb(self, tokens: int | None = None) -> None:
        """Learn up to `tokens` queued tokens, or all."""
        left = self.waiting if tokens is None else min(tokens, self.waiting)
        self.waiting -= left
        while left:
            text = self._line[0]
            if not self._taken:
                self._begin(len(text))
            part = text[self._taken : self._taken + left]
            self.texts.extend(part)
            if self._both:
                self._younger.extend(part)
            self._taken += len(part)
            left -= len(part)
            if self._taken == len(text):
                self._line.popleft()
                self._taken = 0
                self.generation += 1

    def save(self, path: Path, vocab_size: int) -> None:
        """Write an `.npz` file atomically. Raises InvalidOption if it cannot be written."""
        self.absorb()
        try:
            with whole_file(path) as part:
                part.touch(0o600, exist_ok=False)  # user texts are private
                with part.open("wb") as file:
                    log = np.array(self.texts.log)
                    np.savez(file, magic=_MAGIC, vocab_size=vocab_size, log=log)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidOption(f"cannot write {path} ({reason}): choose another file") from error

    def restore(self, path: Path, vocab_size: int) -> str | None:
        """Load what `save` wrote, and return None, or one line on why the history is empty.

        Never raises: serving must not fail for it. Damaged or foreign files are renamed to `.bad`.
        """
        self.clear()
        try:
            log = _read(path, vocab_size)
        except OSError as error:
            return f"{path} cannot be read ({error.strerror or error}): the history starts empty"
        except Exception as error:  # damaged archives raise almost anything
            with suppress(OSError):
                path.replace(path.with_name(f"{path.name}.bad"))
            return f"{path} is damaged or foreign ({error}): the history starts empty"
        for text in np.split(log, np.flatnonzero(log == BREAK)):
            self.add(text[text != BREAK].tolist())
        self.absorb()
        return None

    def _begin(self, tokens: int) -> None:
        self.texts.begin()
        if len(self.texts.log) + tokens > 4 * self._quarter:
            # The younger has room: it began with three quarters full, or one text before.
            self.texts = self._younger
            self.generation += 1
            self._younger = Automaton()
            self.texts.begin()
        self._both = len(self.texts.log) + tokens > 3 * self._quarter
        if self._both:
            self._younger.begin()


class Corpus:
    """Texts that never change, with the reading interface of `History`."""

    def __init__(self, texts: Iterable[List[int]]) -> None:
        self.generation = 0
        self.texts = Automaton()
        for text in texts:
            self.texts.begin()
            self.texts.extend(text)


class Reader:
    """Position of a growing text in other texts; `match` is its longest suffix there."""

    def __init__(self, others: History | Corpus) -> None:
        self.match: Match = (ROOT_STATE, 0, -1)
        self._others = others
        self._generation = -1
        self._size = 0  # of the texts when they were read

    @property
    def texts(self) -> Automaton:
        return self._others.texts

    def read(self, tokens: List[int], new: int) -> None:
        """Advance to the end of `tokens`, of which the last `new` are unread."""
        texts = self.texts
        size, self._size = self._size, len(texts.log)
        if not new and size == self._size and self._generation == self._others.generation:
            return  # nothing new was learned
        if self._generation != self._others.generation:
            self._generation = self._others.generation
            self.match, new = (ROOT_STATE, 0, -1), texts.depth
        self.match = texts.read(*self.match[:2], tokens[max(0, len(tokens) - new) :])


def _read(path: Path, vocab_size: int) -> np.ndarray:
    with np.load(path, allow_pickle=False) as saved:
        if str(saved["magic"]) != _MAGIC:
            raise ValueError("not a history")
        if int(saved["vocab_size"]) != vocab_size:
            raise ValueError(f"it is for {saved['vocab_size']} tokens, not {vocab_size}")
        log: np.ndarray = saved["log"]
    if log.ndim != 1 or log.dtype.kind != "i" or not BREAK <= log.min() <= log.max() < vocab_size:
        raise ValueError("it holds no texts")
    return log
