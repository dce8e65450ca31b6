"""What ended sequences said: a searchable window of the latest texts, of bounded size.

A suffix automaton cannot forget, so there are two, one behind the other. Both learn, but the
younger one only from when the older is three quarters full; when the older is full, the younger
takes its place. So what is read always holds the latest texts, between a quarter of the capacity
and all of it, and its counts are those of these texts alone. A token costs a third more than it
would without forgetting.
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

CAPACITY = 1 << 18
"""Tokens that a history holds at most."""

_LINE = 1 << 13
"""Tokens that may wait in line: where nobody reads, the eldest are taken in as others come."""

_MAGIC = "paceline history 1"


class History:
    """The latest texts, which every drafted sequence may read.

    Texts wait in line until `absorb` takes them in, a few tokens at a time, so that the end of a
    long sequence does not hold up the others.

    Attributes:
        waiting: number of tokens in line.
        texts: what is read.
        generation: changes when `texts` is replaced, and when a text is complete: readers must
            then find their places anew.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        """An empty history of up to `capacity` tokens (breaks between texts included).

        Raises:
            InvalidOption: the capacity is below 8.
        """
        if capacity < 8:
            raise InvalidOption(f"the capacity of a history must be 8 or more, not {capacity}")
        self.generation = 0
        self._quarter = capacity // 4
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.texts = Automaton()
        self.generation += 1
        self._younger = Automaton()
        self._both = False
        self._line: deque[List[int]] = deque()
        self._taken = 0
        self.waiting = 0

    def add(self, text: List[int]) -> None:
        """Put a text in line; of one longer than a quarter of the capacity its end."""
        text = text[-(self._quarter - 1) :]
        if len(text):
            self._line.append(text)
            self.waiting += len(text)
            self.absorb(max(0, self.waiting - _LINE))

    def absorb(self, tokens: int | None = None) -> None:
        """Learn up to `tokens` of the texts in line, or all of them."""
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
        """Write all texts, those in line included; readers see the whole file or none of it.

        Args:
            path: an `.npz` file.
            vocab_size: of the model whose tokens these are; `restore` compares it.

        Raises:
            InvalidOption: the file cannot be written.
        """
        self.absorb()
        try:
            with whole_file(path) as part:
                part.touch(0o600, exist_ok=False)  # texts of users are for nobody else to read
                with part.open("wb") as file:
                    log = np.array(self.texts.log)
                    np.savez(file, magic=_MAGIC, vocab_size=vocab_size, log=log)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidOption(f"cannot write {path} ({reason}): choose another file") from error

    def restore(self, path: Path, vocab_size: int) -> str | None:
        """Become what `save` wrote; takes about as long as it took to learn.

        Serving must not fail for the sake of a memory, so nothing is raised: without a good file
        the history starts empty. One that is damaged, or for another model, is set aside under a
        name that ends in `.bad`.

        Returns:
            None, or in one line why the history is empty.
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
        """Make room for the next text."""
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
    """Texts that never change; otherwise as `History`."""

    def __init__(self, texts: Iterable[List[int]]) -> None:
        """Learn all texts."""
        self.generation = 0
        self.texts = Automaton()
        for text in texts:
            self.texts.begin()
            self.texts.extend(text)


class Reader:
    """Where a growing text stands in other texts.

    Attributes:
        match: its longest suffix that occurs in them, as a context of `texts`, and where last.
    """

    def __init__(self, others: History | Corpus) -> None:
        """Nothing is read."""
        self.match: Match = (ROOT_STATE, 0, -1)
        self._others = others
        self._generation = -1
        self._size = 0  # of the texts when they were read

    @property
    def texts(self) -> Automaton:
        """The texts that are read, now."""
        return self._others.texts

    def read(self, tokens: List[int], new: int) -> None:
        """Go on to the end of a text, of which the last `new` tokens were not read yet.

        What is known of it before is forgotten where others have learned whole texts since: the
        last tokens are read again.
        """
        texts = self.texts
        size, self._size = self._size, len(texts.log)
        if not new and size == self._size and self._generation == self._others.generation:
            return  # nobody has learned anything
        if self._generation != self._others.generation:
            self._generation = self._others.generation
            self.match, new = (ROOT_STATE, 0, -1), texts.depth
        self.match = texts.read(*self.match[:2], tokens[max(0, len(tokens) - new) :])


def _read(path: Path, vocab_size: int) -> np.ndarray:
    """The log in a file that `History.save` wrote; any exception if it is another's."""
    with np.load(path, allow_pickle=False) as saved:
        if str(saved["magic"]) != _MAGIC:
            raise ValueError("not a history")
        if int(saved["vocab_size"]) != vocab_size:
            raise ValueError(f"it is for {saved['vocab_size']} tokens, not {vocab_size}")
        log: np.ndarray = saved["log"]
    if log.ndim != 1 or log.dtype.kind != "i" or not BREAK <= log.min() <= log.max() < vocab_size:
        raise ValueError("it holds no texts")
    return log
