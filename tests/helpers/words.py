"""A small constraint: the text is one of some words, then end tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.core.types import BoolArray
from paceline.errors import InvalidOption

Word = tuple[int, ...]


class Words:
    """One of `words` over `vocabulary` tokens, of which the last is the end token.

    `forced` is said to come next after some beginnings; by default where nothing else may.
    """

    def __init__(
        self, words: Sequence[Word], vocabulary: int, forced: dict[Word, Word] | None = None
    ) -> None:
        self.words = tuple(words)
        self.end = vocabulary - 1
        self.forced = forced

    def start(self) -> WordState:
        return WordState(self)

    def follows(self, said: Word) -> set[int]:
        """Tokens that may follow; none after a beginning of no word."""
        text = said[: said.index(self.end)] if self.end in said else said
        if text != said:
            after = self.follows(text) if set(said[len(text) :]) == {self.end} else set()
            return after & {self.end}
        ends = {self.end} if text in self.words else set()
        return ends | {w[len(text)] for w in self.words if w[: len(text)] == text != w}


class WordState:
    def __init__(self, words: Words) -> None:
        self._words = words
        self._said: Word = ()

    def mask(self, path: Sequence[int] = ()) -> BoolArray:
        if self.valid(path) < len(path):
            return np.ones(self._words.end + 1, np.bool_)
        mask = np.zeros(self._words.end + 1, np.bool_)
        mask[list(self._words.follows((*self._said, *path)))] = True
        return mask

    def valid(self, path: Sequence[int]) -> int:
        for count, token in enumerate(path):
            if token not in self._words.follows((*self._said, *path[:count])):
                return count
        return len(path)

    def forced(self) -> Word:
        if self._words.forced is not None:
            return self._words.forced.get(self._said, ())
        run: Word = ()
        while len(next_ := self._words.follows((*self._said, *run))) == 1:
            if self._words.end in next_:
                break
            run += tuple(next_)
        return run

    def commit(self, tokens: Sequence[int]) -> None:
        if self.valid(tokens) < len(tokens):
            raise InvalidOption(f"{tuple(tokens)} begins no word")
        self._said += tuple(tokens)
